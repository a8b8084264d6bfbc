"""Sweeps: the same methods while one thing changes, such as how many units are retrieved or how often agents err."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provgym.eval.estimate import Estimate
from provgym.eval.run_files import write_json_atomic
from provgym.eval.table import ResultTable, estimate_cell
from provgym.eval.topology import evaluate_methods
from provgym.eval.topology_estimates import Resampling
from provgym.eval.topology_methods import Executor, Method, Question
from provgym.eval.topology_names import SINGLE_AGENT
from provgym.eval.topology_play import Watch
from provgym.eval.topology_summary import TopologySummary
from provgym.eval.topology_tables import INTERVALS, signed_cell
from provgym.generators.topology_targets import ScoreRule


@dataclass(frozen=True, slots=True)
class SweepSetting:
    """One value of what is swept.

    Attributes:
        value: Where the point stands on the axis.
        methods: Who answers; in all settings the same names.
        questions: What is asked.
        executor: Runs teams.
        executor_fingerprint: What decides a team's run beside the question.
    """

    value: float
    methods: Sequence[Method]
    questions: Sequence[Question]
    executor: Executor
    executor_fingerprint: str


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """What one value of a sweep came to.

    Attributes:
        value: Where the point stands on the axis.
        summary: Every figure of every method.
    """

    value: float
    summary: TopologySummary

    def lead(self, metric: str, other: str = SINGLE_AGENT) -> Estimate:
        """Return the reference minus another method, paired; not available if that one was not played."""
        for comparison in self.summary.comparisons:
            if (comparison.second, comparison.metric) == (other, metric):
                return comparison.paired.difference
        return Estimate.missing()


@dataclass(frozen=True, slots=True)
class Sweep:
    """Methods over the values of one thing.

    Attributes:
        axis: What was varied.
        points: In the order swept.
    """

    axis: str
    points: tuple[SweepPoint, ...]

    def without_lead(self, metric: str = "score", other: str = SINGLE_AGENT) -> tuple[float, ...]:
        """Return the values at which another method is at least as good as the reference.

        Figures decide, not intervals: this says where there is no lead, not that the other is better there.
        """
        leads = [(point.value, point.lead(metric, other)) for point in self.points]
        return tuple(value for value, lead in leads if lead.is_available and lead.value <= 0.0)

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "axis": self.axis,
            "points": [
                {
                    "value": point.value,
                    "methods": point.summary.to_map(),
                    "lead_over_single_agent": {m: point.lead(m).to_json() for m in ("accuracy", "score")},
                }
                for point in self.points
            ],
            "single_agent_as_good_at": {m: list(self.without_lead(m)) for m in ("accuracy", "score")},
        }

    def table(self) -> ResultTable:
        """Return a row per value and method."""
        columns = ("accuracy", "score", "tokens", "nodes")
        rows = [
            (f"{point.value:g}: {name}", *(estimate_cell(found.metrics[c]) for c in columns), _lead(point, name))
            for point in self.points
            for name, found in point.summary.methods.items()
        ]
        header = (f"{self.axis}: method", *columns, "score, reference minus this")
        return ResultTable(f"Sweep over {self.axis}", header, tuple(rows), INTERVALS)


def run_sweep(
    axis: str,
    settings: Sequence[SweepSetting] | Sequence[Callable[[], SweepSetting]],
    out_dir: Path,
    *,
    rule: ScoreRule,
    reference: str,
    config_hash: str = "",
    resampling: Resampling | None = None,
    on_progress: Watch | None = None,
) -> Sweep:
    """Evaluate every setting in a folder of its own, then write ``sweep.json`` and ``sweep.png``.

    An interrupted sweep goes on where it stopped when it is called again with the same arguments.

    Args:
        axis: What is varied.
        settings: In the order of the axis; functions are called when their turn comes.
        out_dir: Of the whole sweep; each setting goes to ``VALUE/`` in it.
        rule: Prices of structure.
        reference: The method that others are compared with.
        config_hash: Of the settings that decide questions.
        resampling: Seed and number of resamples.
        on_progress: Told after each run; the value stands before the method's name.

    Raises:
        ValueError: If there is no setting, a value stands twice, or an evaluation is at fault.
    """
    points: list[SweepPoint] = []
    for given in settings:
        setting = given() if callable(given) else given
        if any(point.value == setting.value for point in points):
            raise ValueError(f"{axis} {setting.value:g} stands twice in the sweep; give each value once")
        label = f"{setting.value:g}"
        result = evaluate_methods(
            setting.methods,
            setting.questions,
            setting.executor,
            out_dir / label,
            executor_fingerprint=setting.executor_fingerprint,
            rule=rule,
            reference=reference,
            settings={"axis": axis, "value": setting.value},
            config_hash=config_hash,
            resampling=resampling,
            plots=False,
            on_progress=_labelled(on_progress, f"{axis} {label}"),
        )
        points.append(SweepPoint(setting.value, result.summary))
    if not points:
        raise ValueError(f"there is no value of {axis} to sweep; give at least one")
    sweep = Sweep(axis, tuple(points))
    write_json_atomic(out_dir / "sweep.json", sweep.to_json())
    _draw(sweep, out_dir / "sweep.png")
    return sweep


def _draw(sweep: Sweep, path: Path) -> None:
    from provgym.eval.topology_plots import plot_sweep

    figures: list[Mapping[str, Mapping[str, Estimate]]] = [
        {name: found.metrics for name, found in point.summary.methods.items()} for point in sweep.points
    ]
    plot_sweep(sweep.axis, [point.value for point in sweep.points], figures, path)


def _lead(point: SweepPoint, name: str) -> str:
    return "-" if name == point.summary.reference else signed_cell(point.lead("score", name))


def _labelled(on_progress: Watch | None, label: str) -> Watch | None:
    if on_progress is None:
        return None
    return lambda name, done, total: on_progress(f"{label}: {name}", done, total)
