"""The judgement harness: any policy on any claims with all routes shown at once.

A judgement is stored as an episode without walks, so stores, metrics and comparisons are those of walking. The files
in a policy's folder are those of :mod:`provgym.eval.evaluation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from provgym.eval.eval_config import LoadedInstances, load_instances
from provgym.eval.evaluation import EvaluationPlan, carry_out
from provgym.eval.finished import UNKNOWN_TOKEN_LIMIT, FinishedEvaluation, unanswered_note, unknown_token_note
from provgym.eval.judge_config import JudgeEvalConfig, build_judge_tasks
from provgym.eval.judge_summary import JudgeSummary, summarise_judgements
from provgym.eval.processes import Processes
from provgym.eval.walk_play import Progress
from provgym.generators.episode import Policy

PLOTTED = ("accuracy", "support_rate", "refute_rate", "mixed_rate")


@dataclass(frozen=True)
class JudgeResult(FinishedEvaluation[JudgeEvalConfig, JudgeSummary]):
    """A finished judgement evaluation; see :class:`~provgym.eval.finished.FinishedEvaluation`."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures has to know."""
        notes = []
        coverage = self.summary.coverage
        if not self.episodes:
            notes.append("n = 0, not available: there was nothing to judge")
        if coverage.errors:
            notes.append(f"{coverage.errors} of {coverage.episodes} judgements ended in error and are not scored")
        for mitigation in self.summary.by_mitigation:
            own = [episode for episode in self.episodes if episode.mitigation == mitigation]
            notes += [f"{mitigation}: {note}" for note in unanswered_note(own)]
        cut = sum(episode.cut_characters > 0 for episode in self.episodes)
        if cut:
            characters = sum(episode.cut_characters for episode in self.episodes)
            notes.append(f"{cut} of {coverage.episodes} prompts were cut, by {characters} characters in all")
        for mitigation, found in self.summary.by_mitigation.items():
            for name, rate in found.metrics.items():
                if name.endswith("unknown_token_rate") and rate.is_available and rate.value > UNKNOWN_TOKEN_LIMIT:
                    notes.append(unknown_token_note(f"{mitigation} {name}", rate.value))
        return tuple(notes)

    def to_json(self) -> dict[str, Any]:
        """Return what ``summary.json`` holds; ``metrics`` and ``shifts`` are those of the first mitigation."""
        summary = self.summary.to_json()
        first = summary["by_mitigation"].get(self.config.mitigations[0], {"metrics": {}, "shifts": {}})
        return {
            "kind": "judge",
            **self.facts(),
            "conditions": list(dict.fromkeys(episode.condition for episode in self.episodes)),
            "metrics": first["metrics"],
            "shifts": first["shifts"],
            **summary,
            **self.ending_facts(),
        }


def evaluate_judge(
    config: JudgeEvalConfig,
    policy: Policy,
    out_dir: Path,
    *,
    loaded: LoadedInstances | None = None,
    fingerprint: str = "",
    parquet: bool = False,
    plots: bool = True,
    retry_errors: bool = True,
    processes: Processes | None = None,
    on_progress: Progress | None = None,
) -> JudgeResult:
    """Let a policy judge the claims of a config and write what came of it; goes on where an earlier call stopped.

    What is not named here is as in :func:`~provgym.eval.evaluation.carry_out`.

    Args:
        config: What to judge.
        policy: Who judges.
        out_dir: Folder of this evaluation alone.
        loaded: What to judge in place of ``config.claims``.
        fingerprint: See there.
        parquet: See there.
        plots: Also draw ``plots/conditions.png``.
        retry_errors: See there.
        processes: See there.
        on_progress: See there.

    Raises:
        ValueError: If the claims are refused, or as :func:`~provgym.eval.evaluation.carry_out`.
        RuntimeError: If another process of the launch failed.
        OSError: If the disk is full; finished judgements are kept.
    """
    loaded = load_instances(config) if loaded is None else loaded
    tasks = build_judge_tasks(config, loaded.instances)
    summary = partial(summarise_judgements, instances=loaded.instances, seed=config.seed, resamples=config.resamples)
    plan = EvaluationPlan("judge_eval", config, loaded, tasks, JudgeResult, summary, _draw)
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


def _draw(result: JudgeResult) -> None:
    from provgym.eval.plots import plot_conditions

    rows = {name: found.by_condition for name, found in result.summary.by_mitigation.items()}
    plot_conditions(rows, result.out_dir / "plots" / "conditions.png", metrics=PLOTTED)
