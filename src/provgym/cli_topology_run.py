"""``provgym run topology``: one team of agents on one question, with everything that was said and what it cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provgym.cli_group import checked, names_of, new_group
from provgym.cli_options import ApiKeyEnv, BaseUrl, EndpointDir, EndpointFile, ModelName, TimeoutS
from provgym.cli_topology_design import read_designing_run

if TYPE_CHECKING:
    from provgym.envs.evidence_units import EvidenceContext, KnowledgeGraph
    from provgym.envs.topology import Topology
    from provgym.envs.topology_tasks import TopologyTask
    from provgym.envs.workflow import Agent, TopologyRun
    from provgym.envs.workflow_cache import ReplyStore
    from provgym.rewards.answers import AnswerKind

run_app = new_group("Run one team of agents and see what they say.")

_SIMULATED, _ENDPOINT = "simulated", "endpoint"
_ANY_GOLD = {"verdict": "MIXED", "multiple_choice": "A", "yes_no": "yes", "number": "0", "exact": "none"}


@run_app.command(
    epilog="Example: provgym run topology --question 'In agriculture, bolnan raises the yield of dalkon.' "
    "--evidence evidence.jsonl | provgym run topology --question '...' --evidence evidence.jsonl "
    "--topology debate --agent endpoint --base-url http://localhost:8000/v1 --model NAME | "
    "provgym run topology --question '...' --evidence evidence.jsonl --topology runs/kgat-simulated"
)
def topology(
    question: Annotated[str, typer.Option(help="What the team is asked.", show_default=False)],
    evidence: Annotated[
        Path, typer.Option(help="Knowledge graph, .jsonl or .parquet: docs/knowledge_graphs.md.", show_default=False)
    ],
    team: Annotated[
        str,
        typer.Option(
            "--topology",
            help="Template (single, chain, star, tree, with_verifier, debate), a JSON file, or a K-GAT run's folder: "
            "its generator then chooses the team by question and evidence.",
        ),
    ] = "with_verifier",
    agent: Annotated[
        str, typer.Option(help="simulated, endpoint, smollm2, or a Hugging Face model's folder or id.")
    ] = _SIMULATED,
    kind: Annotated[
        str, typer.Option(help="How it is answered: verdict, multiple_choice, yes_no, number or exact.")
    ] = "verdict",
    choices: Annotated[str | None, typer.Option(help="Of a multiple_choice question, by commas.")] = None,
    gold: Annotated[str | None, typer.Option(help="The right answer, to check against; no agent sees it.")] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            help="Show only so many units, those nearest to the question; all, or what the K-GAT run was trained with, "
            "unless given."
        ),
    ] = None,
    replicate: Annotated[int, typer.Option(help="Number of the repeat: others are other draws.")] = 0,
    temperature: Annotated[float, typer.Option(help="Of a language model; 0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of simulated luck, or of sampling.")] = 0,
    max_new_tokens: Annotated[int, typer.Option(help="Longest reply of a local model, in tokens.")] = 256,
    base_url: BaseUrl = None,
    model: ModelName = None,
    api_key_env: ApiKeyEnv = None,
    timeout_s: TimeoutS = None,
    endpoint_dir: EndpointDir = None,
    endpoint_file: EndpointFile = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder of replies, so that none is asked for twice; none is kept without.")
    ] = None,
) -> None:
    """Run a team on a question; show the topology, the messages, and the ledger.

    Without --gold nothing is said about whether the answer is right.
    """
    from provgym.envs.roles import DEFAULT_ROLES
    from provgym.envs.workflow import MessageCache, RunRequest, WorkflowRuntime
    from provgym.generators.knowledge_graph_files import read_knowledge_graph
    from provgym.rewards.answers import AnswerKind

    designing = read_designing_run(Path(team)) if Path(team).is_dir() else None
    chosen = None if designing is not None else _team_named(team)
    graph = read_knowledge_graph(evidence).graph
    options = tuple(names_of(choices, "--choices")) if choices is not None else ()
    task = _task(question, checked(AnswerKind, kind, "--kind"), options, gold, graph)
    if designing is None:
        context = _shown(graph, question, depth)
    else:
        context, chosen = designing.design(task, depth, replicate)
    given = {"base_url": base_url, "model": model, "api_key_env": api_key_env, "timeout_s": timeout_s}
    player = _agent_named(agent, temperature, seed, max_new_tokens, given, endpoint_dir, endpoint_file)
    store: ReplyStore | None = None if cache is None else MessageCache(cache)
    runtime = WorkflowRuntime(player, roles=DEFAULT_ROLES, cache=store)
    assert chosen is not None
    (run,) = runtime.run_many_sync([RunRequest(chosen, task, context, replicate)])
    _show(run, is_checked=gold is not None)


def _team_named(text: str) -> Topology:
    """Return a template, or the topology in a JSON file."""
    from provgym.envs.roles import DEFAULT_ROLES
    from provgym.envs.topology import Topology
    from provgym.envs.topology_rules import TopologyRules
    from provgym.generators.topology_templates import templates

    named = templates(TopologyRules(DEFAULT_ROLES.names))
    if text in named:
        return named[text]
    path = Path(text)
    if not path.is_file():
        raise FileNotFoundError(
            f"--topology {text!r} is no template, no file and no folder; templates are {', '.join(named)}. A file "
            'holds {"roles": ["Reasoner", "Answerer"], "edges": [[0, 1]]}'
        )
    try:
        return Topology.from_json(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"--topology {path}: {error}") from error


def _task(
    question: str, kind: AnswerKind, choices: tuple[str, ...], gold: str | None, graph: KnowledgeGraph
) -> TopologyTask:
    """Return the question as a task; without a gold answer any will do, since nobody looks at it."""
    from provgym.envs.topology_tasks import TopologyTask

    if kind == "code":
        raise ValueError(
            "--kind code: to judge code is to run it, which this command does not do; use provgym eval topology "
            "--benchmark humaneval --run-code, or --kind exact"
        )
    wanted = _ANY_GOLD[kind] if gold is None else gold
    return TopologyTask("question", "question", "test", question, wanted, kind, choices, graph, None)


def _shown(graph: KnowledgeGraph, question: str, depth: int | None) -> EvidenceContext:
    """Return all units, or those nearest to the question."""
    from provgym.envs.evidence_units import EvidenceContext

    if depth is None:
        return EvidenceContext(graph.units, (0.0,) * len(graph.units))
    if depth < 1:  # before the encoder is loaded
        raise ValueError(f"--depth {depth} must be >= 1; leave it out to show all units")
    from provgym.generators.retriever import Retriever
    from provgym.generators.sentence_encoder import SentenceEncoder

    return Retriever(graph, SentenceEncoder()).retrieve(question, depth)


def _agent_named(
    text: str,
    temperature: float,
    seed: int,
    max_new_tokens: int,
    given: dict[str, str | float | None],
    endpoint_dir: Path | None,
    endpoint_file: Path | None,
) -> Agent:
    """Return the agent that plays all roles; options of an endpoint are refused beside any other."""
    places = {"endpoint_dir": endpoint_dir, "endpoint_file": endpoint_file}
    said = [f"--{name.replace('_', '-')}" for name, value in {**given, **places}.items() if value is not None]
    if text == _ENDPOINT:
        from provgym.generators.endpoint_agent import EndpointAgent
        from provgym.generators.endpoint_config import ENDPOINT_DIR, read_endpoint_config
        from provgym.generators.engine import Sampling

        config = read_endpoint_config(endpoint_file, endpoint_dir or ENDPOINT_DIR, given)
        return EndpointAgent(config, Sampling(temperature), seed=seed)
    if said:
        raise ValueError(f"{' and '.join(said)} mean nothing to --agent {text}; leave them out, or use endpoint")
    if text == _SIMULATED:
        from provgym.envs.simulated_agents import SimulatedAgent

        if temperature:
            raise ValueError(f"--temperature {temperature} means nothing to --agent {_SIMULATED}; leave it out")
        return SimulatedAgent(seed=seed)
    from provgym.generators.policy_kinds import HFSpec, SmolLM2Spec
    from provgym.generators.policy_spec import policy_spec

    spec = policy_spec(text)  # what is no model is refused before anything is loaded
    if not isinstance(spec, (HFSpec, SmolLM2Spec)):
        raise ValueError(f"--agent {text} is no language model; use simulated, endpoint, smollm2, or a model's folder")
    from provgym.generators.hf_agent import load_hf_agent

    name = spec.path if isinstance(spec, HFSpec) else "smollm2"
    return load_hf_agent(name, adapter=spec.adapter, temperature=temperature, seed=seed, max_new_tokens=max_new_tokens)


def _show(run: TopologyRun, *, is_checked: bool) -> None:
    """Print what the run came to; a run that ended in an error ends the command with one."""
    from provgym.eval.table import print_tables
    from provgym.eval.topology_transcript import ledger_table, message_lines, outcome_line, topology_table

    print_tables([topology_table(run.topology)])
    for line in message_lines(run):
        typer.echo(line)
    print_tables([ledger_table(run)])
    typer.echo(outcome_line(run, is_checked=is_checked))
    if run.is_correct is None:
        first = next(failure for failure in run.failures if failure.cause is None)
        raise RuntimeError(f"{first}; what was answered is kept where a cache was given: give the same command again")
