"""The walk harness: any policy on any claims; its files are those of :mod:`provgym.eval.evaluation`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from provgym.envs.provenance import Instance
from provgym.eval.bootstrap import DEFAULT_RESAMPLES, DEFAULT_SEED
from provgym.eval.episode_store import read_episodes
from provgym.eval.evaluation import EvaluationPlan, carry_out
from provgym.eval.probes import probes_of
from provgym.eval.processes import Processes
from provgym.eval.walk_config import LoadedInstances, WalkEvalConfig, build_tasks, load_instances
from provgym.eval.walk_play import EPISODES_FILE, Progress
from provgym.eval.walk_result import WalkEvalResult
from provgym.eval.walk_summary import WalkSummary, summarise
from provgym.generators.episode import Policy
from provgym.rewards.rubric import Rubric


def evaluate(
    config: WalkEvalConfig,
    policy: Policy,
    out_dir: Path,
    *,
    instances: Sequence[Instance] | None = None,
    fingerprint: str = "",
    rubric: Rubric | None = None,
    parquet: bool = False,
    plots: bool = True,
    retry_errors: bool = True,
    processes: Processes | None = None,
    on_progress: Progress | None = None,
) -> WalkEvalResult:
    """Play a policy on the claims of a config and write what came of it; goes on where an earlier call stopped.

    What is not named here is as in :func:`~provgym.eval.evaluation.carry_out`.

    Args:
        config: What to play.
        policy: Who plays.
        out_dir: Folder of this evaluation alone.
        instances: What to play in place of ``config.claims``.
        fingerprint: See there.
        rubric: Reported as ``reward`` and ``reward_TERM``; the full PAPT rubric if None.
        parquet: See there.
        plots: See there.
        retry_errors: See there.
        processes: See there.
        on_progress: See there.

    Raises:
        ValueError: If the claims are refused, or as :func:`~provgym.eval.evaluation.carry_out`.
        RuntimeError: If another process of the launch failed.
        OSError: If the disk is full; finished episodes are kept.
    """
    loaded = load_instances(config) if instances is None else LoadedInstances(list(instances))
    tasks = build_tasks(config, loaded.instances)
    probes = probes_of(loaded.instances)
    summary = partial(summarise, rubric=rubric, seed=config.seed, resamples=config.resamples, probes=probes)
    plan = EvaluationPlan("walk_eval", config, loaded, tasks, WalkEvalResult, summary, _draw)
    return carry_out(
        plan,
        policy,
        out_dir,
        fingerprint=fingerprint,
        parquet=parquet,
        plots=plots,
        retry_errors=retry_errors,
        processes=processes,
        on_progress=on_progress,
    )


def rescore(
    path: Path,
    rubric: Rubric,
    *,
    seed: int = DEFAULT_SEED,
    resamples: int = DEFAULT_RESAMPLES,
) -> WalkSummary:
    """Score stored episodes under another rubric; nothing is played.

    Args:
        path: An evaluation's folder, or a ``.jsonl`` or ``.parquet`` file of episodes.
        rubric: What to score by.
        seed: Run seed of the resampling; with the evaluation's own seed its figures come back exactly.
        resamples: Bootstrap resamples.

    Raises:
        FileNotFoundError: If there are no episodes at ``path``.
        ValueError: If a line is no episode; the message names file and line.
    """
    file = path / EPISODES_FILE if path.is_dir() else path
    return summarise(read_episodes(file), rubric=rubric, seed=seed, resamples=resamples)


def _draw(result: WalkEvalResult) -> None:
    from provgym.eval.curve_plots import plot_reliability
    from provgym.eval.plots import plot_conditions, plot_policies

    summary, folder = result.summary, result.out_dir / "plots"
    plot_reliability({result.policy: summary.reliability}, folder / "reliability.png")
    plot_policies({result.policy: result.metrics}, folder / "metrics.png", probes=summary.probes)
    plot_conditions({result.policy: summary.by_condition}, folder / "conditions.png")
