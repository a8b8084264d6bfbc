"""From a run's configuration to its world: tasks, evidence, embeddings, agents and their runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provgym.envs.code_judge import CodeJudge
from provgym.envs.evidence_units import EvidenceContext
from provgym.envs.roles import DEFAULT_ROLES, RoleLibrary
from provgym.envs.simulated_agents import SimulatedAgent
from provgym.envs.topology_tasks import TopologyTask
from provgym.envs.workflow import Agent, MemoryMessageCache, MessageCache, SessionAgent, WorkflowRuntime
from provgym.envs.workflow_cache import ReplyStore
from provgym.eval.topology_config import TopologyEvalConfig, topology_eval_config
from provgym.eval.topology_data import NamedEncoder, load_encoder
from provgym.generators.benchmark_tasks import benchmark_from_file
from provgym.generators.engine import Sampling
from provgym.generators.evidence_tasks import check_task_splits, make_evidence_tasks
from provgym.generators.kgat_context import ContextBatch, embed_contexts
from provgym.generators.knowledge_graph_files import read_knowledge_graph
from provgym.generators.retriever import retrieve_contexts
from provgym.generators.splits import check_splits
from provgym.trainers.kgat_config import KgatConfig
from provgym.trainers.kgat_rounds import TaskSet
from provgym.trainers.kgat_world_config import AgentsConfig, TasksConfig

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Split:
    """The tasks of one split, as the agents and the generator see them.

    Attributes:
        seen: Tasks with what the agents are given.
        retrieved: What was retrieved, whether or not the agents are given it.
        contexts: (B, ...) what the generator may see: always with evidence.
    """

    seen: TaskSet
    retrieved: tuple[EvidenceContext, ...]
    contexts: ContextBatch


@dataclass(frozen=True)
class KgatWorld:
    """Everything around the generator.

    Attributes:
        splits: Name to split.
        encoder: Of questions and units.
        agent: Plays the roles.
        roles: All roles that there are.
    """

    splits: dict[str, Split]
    encoder: NamedEncoder
    agent: Agent
    roles: RoleLibrary = DEFAULT_ROLES

    def session(self) -> AbstractAsyncContextManager[object]:
        """Open what the agent keeps open while it answers."""
        return self.agent.session() if isinstance(self.agent, SessionAgent) else nullcontext()

    def open_runtime(self, config: KgatConfig) -> WorkflowRuntime:
        """Return what executes topologies; from now on the run's folder holds a cache.

        Raises:
            ValueError: If the folder holds replies of another format.
            OSError: If it can't be written.
        """
        cache = open_cache(config.agents, config.run_dir)
        return WorkflowRuntime(
            self.agent,
            roles=self.roles,
            cache=cache,
            max_concurrency=config.agents.max_concurrency,
            judge=code_judge() if runs_code(config.tasks) else None,
        )


def build_world(config: KgatConfig, *, encoder: NamedEncoder | None = None, agent: Agent | None = None) -> KgatWorld:
    """Build the world of a run; the same configuration gives the same world on every process.

    Nothing is written into the run's folder yet, so that what is missing or doesn't fit costs no earlier run.

    Args:
        config: The run.
        encoder: In place of the configured one.
        agent: In place of the configured one.

    Raises:
        ValueError: If splits leak, the encoder's vectors do not fit the generator, or a role is unknown.
        ImportError: If the encoder's package is not installed.
        OSError: If a file can't be read.
    """
    try:
        for name in config.generator.role_names:
            DEFAULT_ROLES[name]
    except ValueError as error:
        raise ValueError(f"generator.role_names: {error}") from error
    encoder = encoder or load_encoder(eval_config_of(config))
    tasks = {split: load_tasks(config.tasks, split) for split in SPLITS}
    if config.tasks.benchmark is None:
        check_task_splits(task for found in tasks.values() for task in found)
    else:  # questions must not leak; a knowledge graph, and so its sources, may serve all of them
        check_splits((task.split, task.base_id, (), ()) for found in tasks.values() for task in found)
    splits = {split: _split(config, found, encoder) for split, found in tasks.items()}
    size = splits["train"].contexts.query.shape[1]
    if size != config.generator.encoder_size:
        raise ValueError(
            f"generator.encoder_size={config.generator.encoder_size}, but vectors of {encoder.fingerprint!r} have "
            f"{size} numbers; set generator.encoder_size to that"
        )
    return KgatWorld(splits, encoder, agent or load_agent(config.agents))


def eval_config_of(config: KgatConfig) -> TopologyEvalConfig:
    """Return the evaluation of a run's held-out tasks, retrieved and priced as in training.

    Raises:
        ValueError: If a method is unknown.
    """
    evaluation, benchmark = config.evaluation, config.tasks.benchmark
    given: dict[str, Any] = {
        "methods": evaluation.played_methods(),
        "replicates": evaluation.replicates,
        "seed": config.seed,
        "max_nodes": config.generator.max_nodes,
        "max_in_degree": config.generator.max_in_degree,
    }
    if benchmark is not None:
        given["tasks"] = {
            "kind": "benchmark",
            "name": benchmark.name,
            "path": benchmark.test,
            "graph": benchmark.graph,
            "sample": benchmark.limit,
            "sample_seed": config.tasks.evidence.seed,
            "run_code": benchmark.run_code,
        }
    return topology_eval_config(config.model_dump(mode="json"), given)


def load_tasks(config: TasksConfig, split: str) -> tuple[TopologyTask, ...]:
    """Return the tasks of one split.

    Raises:
        ValueError: If there are none, or a file's row can't be read.
        OSError: If a file can't be read.
    """
    chosen = config.benchmark
    if chosen is None:
        return make_evidence_tasks(config.evidence, split)
    graph = None if chosen.graph is None else read_knowledge_graph(chosen.graph).graph
    path = {"train": chosen.train, "dev": chosen.dev, "test": chosen.test}[split]
    return benchmark_from_file(
        chosen.name, path, split=split, graph=graph, limit=chosen.limit, seed=config.evidence.seed
    )


def load_agent(config: AgentsConfig) -> Agent:
    """Return the configured agent.

    Raises:
        ValueError: If an endpoint's key is missing.
        OSError: If a model can't be read.
    """
    if config.kind == "simulated":
        return SimulatedAgent(config.error_model(), config.seed)
    if config.kind == "endpoint":
        from provgym.generators.endpoint_agent import EndpointAgent

        assert config.endpoint is not None
        return EndpointAgent(config.endpoint, Sampling(config.temperature), seed=config.seed)
    from provgym.generators.hf_agent import load_hf_agent

    assert config.model is not None
    return load_hf_agent(
        config.model, temperature=config.temperature, max_new_tokens=config.max_new_tokens, seed=config.seed
    )


def code_judge() -> CodeJudge:
    """Return what runs answers in code; only for those who allowed it."""
    return CodeJudge()


def runs_code(config: TasksConfig) -> bool:
    """Whether a run was allowed to run what its agents write."""
    return config.benchmark is not None and config.benchmark.run_code


def open_cache(config: AgentsConfig, run_dir: Path) -> ReplyStore | None:
    """Return where replies are kept.

    Raises:
        ValueError: If the folder holds replies of another format.
        OSError: If it can't be written.
    """
    openers: dict[str, Callable[[], ReplyStore | None]] = {
        "disk": lambda: MessageCache(config.cache_dir or run_dir / "messages"),
        "memory": MemoryMessageCache,
        "none": lambda: None,
    }
    return openers[config.cache]()


def _split(config: KgatConfig, tasks: Sequence[TopologyTask], encoder: NamedEncoder) -> Split:
    retrieval = config.retrieval
    retrieved = retrieve_contexts(
        tasks, encoder, retrieval.depth, choice=retrieval.choice, seed=config.tasks.evidence.seed
    )
    nothing = EvidenceContext((), ())
    given = tuple(retrieved) if config.agents_see_evidence else (nothing,) * len(tasks)
    contexts = ContextBatch.of(embed_contexts([task.question for task in tasks], retrieved, encoder))
    return Split(TaskSet(tuple(tasks), given), tuple(retrieved), contexts)
