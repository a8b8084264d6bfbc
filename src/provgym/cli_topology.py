"""``provgym eval topology``: teams of agents on held-out questions, beside their baselines and controls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from provgym.cli_group import names_of
from provgym.cli_options import what_was_given
from provgym.cli_topology_play import evaluate_topologies

if TYPE_CHECKING:
    from provgym.eval.topology_config import TopologyEvalConfig
    from provgym.trainers.kgat_config import KgatConfig
    from provgym.trainers.kgat_world_config import AgentsConfig

_EPILOG = (
    "Example: provgym eval topology --run runs/kgat-simulated | "
    "provgym eval topology --encoder hashed --limit 20 --methods single_agent,react,debate | "
    "provgym eval topology --run runs/kgat-simulated --depths 1,2,3,4,5,6,7,8,9,10 --error-factors 0,0.5,1,1.5 | "
    "provgym eval topology --run runs/kgat-simulated --max-nodes 8 --methods kgat,single_agent,debate | "
    "provgym eval topology --benchmark gsm8k --file gsm8k.jsonl --sample 50 --agents agents.yaml | "
    "provgym eval topology --benchmark humaneval --file HumanEval.jsonl.gz --run-code --agents agents.yaml"
)


def add_topology(group: typer.Typer) -> None:
    """Add the command ``topology`` to a group of commands."""
    group.command(epilog=_EPILOG)(topology)


def topology(
    run: Annotated[
        Path | None,
        typer.Option(help="Folder of a K-GAT run: its generators, held-out tasks, retrieval, agents, prices."),
    ] = None,
    generator: Annotated[Path | None, typer.Option(help="Folder of a trained generator.")] = None,
    query_generator: Annotated[
        Path | None, typer.Option(help="Folder of one trained without evidence, for query_conditioned.")
    ] = None,
    closed_generator: Annotated[
        Path | None, typer.Option(help="Folder of one mined and trained closed book, for no_evidence_in_training.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Names by commas; all that there are parts for unless given.")
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(help="mmlu, mmlu_pro, gpqa, strategyqa, gsm8k, aqua or humaneval; evidence tasks unless given."),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="The benchmark's file; the hub is asked without.")] = None,
    graph: Annotated[
        Path | None, typer.Option(help="Knowledge graph that a benchmark's questions retrieve from.")
    ] = None,
    sample: Annotated[int | None, typer.Option(help="A random sample of so many questions of a benchmark.")] = None,
    run_code: Annotated[
        bool,
        typer.Option(
            "--run-code",
            help="Run what agents write (humaneval), in a sandbox that is no security boundary: use a container.",
        ),
    ] = False,
    split: Annotated[str | None, typer.Option(help="train, dev or test; test unless given.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many base claims.")] = None,
    replicates: Annotated[int | None, typer.Option(help="Repetitions of each question; 4 unless given.")] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Sentence encoder: a name, a folder, or hashed, which needs no weights.")
    ] = None,
    depth: Annotated[int | None, typer.Option(help="Units retrieved for each question; the run's, or 6.")] = None,
    depths: Annotated[str | None, typer.Option(help="Also sweep over these depths, by commas.")] = None,
    error_factors: Annotated[
        str | None, typer.Option(help="Also sweep over how many times as often simulated agents err, by commas.")
    ] = None,
    agents: Annotated[
        Path | None, typer.Option(help="YAML file that says who answers; the run's, or simulated agents.")
    ] = None,
    decoding: Annotated[str | None, typer.Option(help="greedy or sample, of the generator.")] = None,
    max_nodes: Annotated[
        int | None, typer.Option(help="Most nodes of a team, designed ones included; the generator's, or 6.")
    ] = None,
    node: Annotated[float | None, typer.Option(help="Price of a node.")] = None,
    edge: Annotated[float | None, typer.Option(help="Price of an edge.")] = None,
    cost_weight: Annotated[
        float | None, typer.Option(help="What a unit of structural cost takes off the score.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of random teams, sampling and intervals; 42 unless given.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results; runs/topology/HASH unless given.")] = None,
) -> None:
    """Let methods answer held-out questions, and report accuracy, score, tokens, calls and teams, with intervals.

    The trained generator stands beside its controls, templates, a single agent and self-consistency at the same tokens;
    all get the same questions, evidence and agents. An interrupted evaluation goes on where it stopped.
    """
    from provgym.eval.topology_config import topology_eval_config
    from provgym.trainers.kgat_world import eval_config_of

    given = {
        "generator": generator,
        "query_generator": query_generator,
        "closed_generator": closed_generator,
        "methods": None if methods is None else names_of(methods, "--methods"),
        "tasks": _benchmark(benchmark, file, graph, sample, run_code),
        "split": split,
        "limit": limit,
        "replicates": replicates,
        "encoder": encoder,
        "depth": depth,
        "depths": None if depths is None else names_of(depths, "--depths"),
        "decoding": decoding,
        "max_nodes": max_nodes,
        "node": node,
        "edge": edge,
        "cost_weight": cost_weight,
        "seed": seed,
    }
    trained = _config_of(run)
    brought = {} if trained is None else eval_config_of(trained).model_dump()
    config = topology_eval_config(None, brought | _generators_of(run) | what_was_given(given))
    players = _agents_config(agents, trained)
    factors = [] if error_factors is None else [_number(word) for word in names_of(error_factors, "--error-factors")]
    if factors and players.kind != "simulated":
        raise ValueError(
            f"--error-factors changes simulated agents, found agents of kind {players.kind!r}; leave it out"
        )
    evaluate_topologies(config, players, run, factors, _folder_for(out, _default_folder(config, max_nodes)))


def _config_of(run: Path | None) -> KgatConfig | None:
    """Return the resolved configuration of a run; None without one."""
    if run is None:
        return None
    from provgym.trainers.config_file import load_config
    from provgym.trainers.kgat_config import KgatConfig

    path = run / "config.yaml"
    if not path.is_file():
        raise FileNotFoundError(f"--run {run} holds no config.yaml; name the folder of a K-GAT run, such as runs/NAME")
    return load_config(KgatConfig, path)


def _generators_of(run: Path | None) -> dict[str, Path]:
    """Return what a run left for an evaluation, and say so if that is nothing."""
    if run is None:
        return {}
    from provgym.eval.topology_run_parts import parts_of_run

    found = parts_of_run(run)
    if not found:
        typer.echo(
            f"{run} holds no generator (yet): methods that need one are left out unless another is given", err=True
        )
    return found


def _agents_config(file: Path | None, run: KgatConfig | None) -> AgentsConfig:
    """Return who answers: what the file says, else the run's agents, else simulated ones."""
    from provgym.trainers.config_file import load_config
    from provgym.trainers.kgat_world_config import AgentsConfig

    if file is not None:
        return load_config(AgentsConfig, file)
    return AgentsConfig() if run is None else run.agents


def _benchmark(
    name: str | None, file: Path | None, graph: Path | None, sample: int | None, run_code: bool
) -> dict[str, Any] | None:
    """Return where questions come from; None if nothing was said."""
    said = {"--file": file, "--graph": graph, "--sample": sample, "--run-code": run_code or None}
    named = [option for option, value in said.items() if value is not None]
    if name is None:
        if named:
            raise ValueError(f"{' and '.join(named)} go with --benchmark, which is not given; add it")
        return None
    return {"kind": "benchmark", "name": name} | what_was_given(
        {"path": file, "graph": graph, "sample": sample, "run_code": run_code or None}
    )


def _default_folder(config: TopologyEvalConfig, max_nodes: int | None) -> Path:
    """Return where an evaluation goes unless told: other limits ask the same questions of other teams."""
    folder = Path("runs") / "topology" / config.question_hash
    return folder if max_nodes is None else folder.with_name(f"{folder.name}-n{max_nodes}")


def _folder_for(out: Path | None, default: Path) -> Path:
    """Return the folder of the evaluation, checked before anything is loaded; an earlier one of it goes on.

    Raises:
        ValueError: If it is a run's own folder, whose files would be mixed with these.
        OSError: If no file can be written there.
    """
    from provgym.generators.writable_folder import check_writable

    folder = default if out is None else out
    check_writable(folder, "--out")
    own = [name for name in ("checkpoints", "rounds", "config.json", "generator.json") if (folder / name).exists()]
    if own:
        raise ValueError(
            f"--out {folder} is the folder of a run or a model (it holds {own[0]}), expected one of its own; name "
            f"another one, such as {folder / 'topology'}"
        )
    return folder


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError as error:
        raise ValueError(f"--error-factors {word}: expected numbers by commas, such as 0,0.5,1") from error
