"""What ``provgym eval topology`` does once it knows what was asked for: play methods and sweeps, and show them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from provgym.cli_group import progress_bars
from provgym.cli_options import show_report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from provgym.envs.workflow import WorkflowRuntime
    from provgym.eval.topology_config import TopologyEvalConfig
    from provgym.eval.topology_data import TopologyData
    from provgym.eval.topology_ladder import LadderParts
    from provgym.eval.topology_result import TopologyEvalResult
    from provgym.eval.topology_sweeps import Sweep, SweepSetting
    from provgym.trainers.kgat_world_config import AgentsConfig

_FILES = "report.md, plots/, summary.json, runs/METHOD.jsonl"


def evaluate_topologies(
    config: TopologyEvalConfig, agents: AgentsConfig, run_dir: Path | None, factors: Sequence[float], folder: Path
) -> None:
    """Play what was asked for, show the tables, and then the sweeps.

    Args:
        config: What is asked.
        agents: Who answers.
        run_dir: Folder of the K-GAT run whose stored replies are shared; None shares none.
        factors: Multiples of simulated errors to sweep over.
        folder: Of the results.

    Raises:
        ValueError: If a method lacks a part, or what is stored there is of another evaluation.
        RuntimeError: If nothing could be scored.
    """
    from provgym.eval.topology import evaluate_methods
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
