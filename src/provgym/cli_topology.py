"""``provgym eval topology``: teams of agents on held-out questions, beside their baselines and controls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from provgym.cli_group import names_of, progress_bars
from provgym.cli_options import show_report, what_was_given

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from provgym.envs.workflow import WorkflowRuntime
    from provgym.eval.topology_config import TopologyEvalConfig
    from provgym.eval.topology_data import TopologyData
    from provgym.eval.topology_ladder import LadderParts
    from provgym.eval.topology_result import TopologyEvalResult
    from provgym.eval.topology_sweeps import Sweep, SweepSetting
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
_FILES = "report.md, plots/, summary.json, runs/METHOD.jsonl"


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
    _evaluate(config, players, run, factors, _folder_for(out, _default_folder(config, max_nodes)))


def _evaluate(
    config: TopologyEvalConfig, agents: AgentsConfig, run_dir: Path | None, factors: Sequence[float], folder: Path
) -> None:
    from provgym.eval.topology import evaluate_methods
    from provgym.eval.topology_code import code_outcome_lines
    from provgym.eval.topology_data import TopologyData, ladder_parts, load_encoder, load_tasks
    from provgym.eval.topology_ladder import build_methods, default_methods
    from provgym.eval.topology_report import report_on_methods

    data = TopologyData(load_tasks(config), load_encoder(config), config.replicates, config.seed, config.choice)
    parts = ladder_parts(config, data)
    names = config.methods or default_methods(parts)
    methods = build_methods(names, parts)  # all are checked before the first one plays
    runtime, fingerprint = _runtime(agents, run_dir or folder, runs_code=config.runs_code)
    bars = progress_bars("question", is_shown=True)
    result = evaluate_methods(
        methods,
        data.questions(config.depth),
        runtime,
        folder,
        executor_fingerprint=fingerprint,
        rule=config.rule(),
        settings=config.model_dump(mode="json") | {"agents": agents.model_dump(mode="json")},
        config_hash=config.question_hash,
        resampling=config.resampling(),
        on_progress=bars,
    )
    show_report(report_on_methods(result))
    for line in code_outcome_lines(result.runs):
        typer.echo(line)
    for sweep in _sweeps(config, agents, data, parts, factors, folder, run_dir):
        _show_sweep(sweep)
    typer.echo(f"files: {folder}/ ({_FILES})")
    _refuse_if_unscored(result)


def _sweeps(
    config: TopologyEvalConfig,
    agents: AgentsConfig,
    data: TopologyData,
    parts: LadderParts,
    factors: Sequence[float],
    folder: Path,
    run_dir: Path | None,
) -> list[Sweep]:
    """Play the sweeps that were asked for: over retrieval depth, and over how often simulated agents err."""
    from provgym.eval.topology import reference_of
    from provgym.eval.topology_ladder import build_methods, default_methods
    from provgym.eval.topology_names import SWEPT
    from provgym.eval.topology_sweeps import SweepSetting, run_sweep

    known = default_methods(parts)
    methods = build_methods(config.methods or [name for name in SWEPT if name in known], parts)

    def setting(value: float, depth: int, players: AgentsConfig) -> Callable[[], SweepSetting]:
        def build() -> SweepSetting:
            runtime, fingerprint = _runtime(players, run_dir or folder, runs_code=config.runs_code)
            return SweepSetting(value, methods, data.questions(depth), runtime, fingerprint)

        return build

    axes = {
        "depth": [setting(float(depth), depth, agents) for depth in config.depths],
        "error factor": [
            setting(factor, config.depth, agents.model_copy(update={"error_factor": factor})) for factor in factors
        ],
    }
    return [
        run_sweep(
            axis,
            settings,
            folder / "sweeps" / axis.replace(" ", "_"),
            rule=config.rule(),
            reference=reference_of([method.name for method in methods]),
            config_hash=config.question_hash,
            resampling=config.resampling(),
            on_progress=progress_bars("question", is_shown=True),
        )
        for axis, settings in axes.items()
        if settings
    ]


def _runtime(agents: AgentsConfig, folder: Path, *, runs_code: bool) -> tuple[WorkflowRuntime, str]:
    """Return who runs teams and what decides its runs; replies are kept in the folder, shared by all methods."""
    from provgym.envs.roles import DEFAULT_ROLES
    from provgym.envs.workflow import WorkflowRuntime
    from provgym.trainers.kgat_world import code_judge, load_agent, open_cache

    agent = load_agent(agents)
    judge = code_judge() if runs_code else None
    runtime = WorkflowRuntime(
        agent,
        roles=DEFAULT_ROLES,
        cache=open_cache(agents, folder),
        max_concurrency=agents.max_concurrency,
        judge=judge,
    )
    return runtime, agent.fingerprint if judge is None else f"{agent.fingerprint} {judge.fingerprint}"


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


def _show_sweep(sweep: Sweep) -> None:
    from provgym.eval.table import print_tables

    print_tables([sweep.table()])
    for metric in ("accuracy", "score"):
        values = sweep.without_lead(metric)
        where = f"at {sweep.axis} {', '.join(f'{value:g}' for value in values)}" if values else "nowhere in this sweep"
        typer.echo(f"a single agent is as good by {metric}: {where}")


def _refuse_if_unscored(result: TopologyEvalResult) -> None:
    """Stop if every run of a method ended in an error: there is no figure to read.

    Raises:
        RuntimeError: If so; the first error is in the message.
    """
    for name, found in result.summary.methods.items():
        if found.coverage.episodes and not found.coverage.scored:
            raise RuntimeError(
                f"{name}: all {found.coverage.episodes} runs ended in an error, so nothing was measured; the first: "
                f"{found.first_error}. Put that right and give the same command again: they are played anew"
            )
