"""From a configuration to questions with evidence, and to the parts that methods are made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from provgym.envs.evidence_units import EvidenceContext, KnowledgeGraph
from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.topology import MAX_NODES, Topology
from provgym.envs.topology_rules import TopologyRules
from provgym.envs.topology_tasks import TopologyTask
from provgym.eval.run_files import read_json_file
from provgym.eval.topology_config import HASHED, BenchmarkTasks, TopologyEvalConfig
from provgym.eval.topology_ladder import LadderParts
from provgym.eval.topology_methods import Question
from provgym.generators.evidence_tasks import make_evidence_tasks
from provgym.generators.hashed_encoder import HashedEncoder
from provgym.generators.retriever import Retriever, retrieve_contexts

if TYPE_CHECKING:
    from provgym.eval.topology_generator import Designer

DEFAULT_MAX_NODES = 6
DEFAULT_IN_DEGREE = 3


class NamedEncoder(Protocol):
    """A sentence encoder that says which one it is."""

    @property
    def fingerprint(self) -> str:
        """What tells its vectors from another's."""
        ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return (n, d) float32 rows of length 1, one for each text."""
        ...


def load_tasks(config: TopologyEvalConfig) -> tuple[TopologyTask, ...]:
    """Return the tasks that a config asks for.

    Raises:
        ValueError: If there is none, or a file is bad; the message names it.
        FileNotFoundError: If a file does not exist.
        OSError: If the hub can't be reached.
    """
    tasks = _benchmark(config.tasks) if isinstance(config.tasks, BenchmarkTasks) else _evidence(config)
    if not tasks:
        raise ValueError(f"split {config.split!r} has no task; ask for at least one")
    if config.limit is None:
        return tasks
    kept = set(list(dict.fromkeys(task.base_id for task in tasks))[: config.limit])
    return tuple(task for task in tasks if task.base_id in kept)


def load_encoder(config: TopologyEvalConfig) -> NamedEncoder:
    """Return the sentence encoder that a config names.

    Raises:
        ValueError: If the name is a misspelt one of ours: no hub is asked for it.
        ImportError: If sentence-transformers or the package of the weights is missing; the message names the extra.
        OSError: If stored embeddings can't be written.
    """
    if config.encoder == HASHED:
        return HashedEncoder()
    if get_close_matches(config.encoder, [HASHED], cutoff=0.7) and not Path(config.encoder).is_dir():
        raise ValueError(f"encoder {config.encoder!r} is no name of ours and no folder; did you mean {HASHED!r}?")
    from provgym.generators.sentence_encoder import SentenceEncoder  # here, because it looks for packages

    return SentenceEncoder(config.encoder, revision=config.encoder_revision, cache=config.embeddings)


@dataclass(frozen=True)
class TopologyData:
    """Tasks and how evidence is found for them.

    Attributes:
        tasks: In order.
        encoder: Of questions and units.
        replicates: Repetitions of each question.
        seed: Of random retrieval.
        choice: Which units the questions come with.
    """

    tasks: Sequence[TopologyTask]
    encoder: NamedEncoder
    replicates: int = 1
    seed: int = 42
    choice: Literal["similar", "random"] = "similar"
    _retrievers: dict[int, Retriever] = field(default_factory=dict, repr=False, compare=False)

    def questions(self, depth: int) -> list[Question]:
        """Return every task, ``replicates`` times, with ``depth`` units of its graph."""
        contexts = retrieve_contexts(self.tasks, self.encoder, depth, choice=self.choice, seed=self.seed)
        return [
            Question(task, context, replicate)
            for task, context in zip(self.tasks, contexts, strict=True)
            for replicate in range(self.replicates)
        ]

    def random_evidence(self, questions: Sequence[Question]) -> list[EvidenceContext]:
        """Return as many units as each question's evidence has, drawn at random from its graph."""
        found: list[EvidenceContext] = []
        for question in questions:
            count = len(question.evidence.units)
            if not count:
                found.append(question.evidence)
                continue
            found += retrieve_contexts([question.task], self.encoder, count, choice="random", seed=self.seed)
        return found

    def nearest(self, task: TopologyTask, text: str, count: int) -> EvidenceContext:
        """Return the units of a task's graph that are nearest to a text; a graph is indexed once.

        Args:
            task: Whose graph is searched.
            text: What is looked for.
            count: Units at most.
        """
        graph: KnowledgeGraph = task.graph
        if id(graph) not in self._retrievers:  # tasks hold their graphs, so ids stay
            self._retrievers[id(graph)] = Retriever(graph, self.encoder)
        return self._retrievers[id(graph)].retrieve(text, count)


def ladder_parts(
    config: TopologyEvalConfig, data: TopologyData, load: Callable[[Path], Designer] | None = None
) -> LadderParts:
    """Return what the methods of a config are made from.

    Args:
        config: What is asked.
        data: Tasks and encoder.
        load: Reads a generator's folder; :func:`~provgym.eval.topology_generator.load_designer` if None.

    Raises:
        FileNotFoundError: If a generator's folder holds none.
        ValueError: If a generator and the config do not go together, or the closed one is none.
    """
    read = _load_designer(config, data) if load is None else load
    designer = None if config.generator is None else read(config.generator)
    second = None if config.query_generator is None else read(config.query_generator)
    third = None if config.closed_generator is None else read(config.closed_generator)
    if load is None and config.closed_generator is not None:
        _check_closed_book(config.closed_generator)
    rules = _rules(config, designer)
    return LadderParts(
        rules=rules,
        num_replicates=config.replicates,
        seed=config.seed,
        designer=_within(designer, rules),
        second=_within(second, rules),
        third=_within(third, rules),
        fixed=None if config.fixed_team is None else read_fixed_team(config.fixed_team),
        show_random=data.random_evidence,
        retrieve=data.nearest,
        max_samples=config.max_samples,
        step_units=config.step_units,
    )


def read_fixed_team(path: Path) -> Topology:
    """Read the team that a run chose on dev.

    Raises:
        BadFileError: If the file holds no team.
        OSError: If it can't be read.
    """
    return _read_fixed(path)[0]


def is_fixed_team_of(path: Path, training_hash: str) -> bool:
    """Whether a file holds the team that a run of this very training chose."""
    return path.is_file() and _read_fixed(path)[1] == training_hash


def _read_fixed(path: Path) -> tuple[Topology, str]:
    return read_json_file(
        path,
        lambda data: (_team_of(data["topology"]), str(data["training_hash"])),
        expected="the team that a run chose on dev",
        way_out="remove it: the run chooses again",
    )


def _team_of(data: Any) -> Topology:
    team = Topology.from_dict(data)
    TopologyRules(DEFAULT_ROLES.names, max_nodes=MAX_NODES, max_in_degree=None).check(team)
    return team


def _check_closed_book(folder: Path) -> None:
    """Refuse a generator whose teams were mined with evidence; older folders do not tell.

    Raises:
        ValueError: If it says so.
    """
    from provgym.generators.kgat_folder import load_generator

    if load_generator(folder).about.get("agents_see_evidence") is True:
        raise ValueError(
            f"closed_generator {folder}: found a generator whose teams were mined by agents that see evidence, "
            "expected one of a run with agents_see_evidence: false; name that one, or leave it out"
        )


def _load_designer(config: TopologyEvalConfig, data: TopologyData) -> Callable[[Path], Designer]:
    from provgym.eval.topology_generator import load_designer  # here, because it loads torch

    def load(folder: Path) -> Designer:
        return load_designer(
            folder,
            data.encoder,
            data.encoder.fingerprint,
            mode=config.decoding,
            temperature=config.temperature,
            seed=config.seed,
        )

    return load


def _rules(config: TopologyEvalConfig, designer: Designer | None) -> TopologyRules:
    """Return the limits of all teams: what is asked, else the generator's, else the source's."""
    if designer is None:
        own = TopologyRules(DEFAULT_ROLES.names, DEFAULT_MAX_NODES, DEFAULT_IN_DEGREE)
    else:
        own = designer.model.rules
    return TopologyRules(
        own.role_names,
        own.max_nodes if config.max_nodes is None else config.max_nodes,
        own.max_in_degree if config.max_in_degree is None else config.max_in_degree,
    )


def _within(designer: Designer | None, rules: TopologyRules) -> Designer | None:
    """Return a generator that decodes under the limits that all teams have."""
    return None if designer is None else designer.within(rules.max_nodes, rules.max_in_degree)


def _evidence(config: TopologyEvalConfig) -> tuple[TopologyTask, ...]:
    assert not isinstance(config.tasks, BenchmarkTasks)
    return make_evidence_tasks(config.tasks.made, config.split)


def _benchmark(tasks: BenchmarkTasks) -> tuple[TopologyTask, ...]:
    from provgym.generators.benchmark_tasks import benchmark_from_file, benchmark_from_hub
    from provgym.generators.knowledge_graph_files import read_knowledge_graph

    graph = None if tasks.graph is None else read_knowledge_graph(tasks.graph).graph
    if tasks.path is None:
        return benchmark_from_hub(tasks.name, graph=graph, limit=tasks.sample, seed=tasks.sample_seed)
    return benchmark_from_file(tasks.name, tasks.path, graph=graph, limit=tasks.sample, seed=tasks.sample_seed)
