"""The figures of a page: stored estimates in tables and as ranges on a line, nothing computed anew."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from provgym.eval.estimate import Estimate
from provgym.eval.metrics import GENERAL_PREFIX, HEADLINE
from provgym.eval.report_source import ReportSource, read_estimates
from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL
from provgym.generators.json_lines import BadFileError
from provgym.rewards.outcome import Ending

LABELS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro-F1",
    "echo_rate": "echo rate",
    "source_recall": "source recall",
    "count_mae": "count error",
    "invalid_rate": "invalid",
    "walks": "walks",
    "reward": "reward",
}
"""Metrics of the result tables, in order; a table leaves out what is not stored."""
DIRECTIONS = {"echo_rate": "lower", "count_mae": "lower", "invalid_rate": "lower", "walks": "", "reward": "higher"}
"""Which way is better, where it is not ``higher``; walks are neither."""
BY_CONDITION = ("accuracy", "echo_rate", "source_recall", "count_mae")
PLOT_WIDTH = 200.0
"""Drawing units of a row's line."""


class RangeMark(NamedTuple):
    """One policy's figure on a row's line: centre and ends, in drawing units."""

    policy: int
    x: float
    low: float
    high: float


class FigureRow(NamedTuple):
    """One metric of every policy.

    Attributes:
        metric: Name as stored, with its prefix.
        label: As shown.
        better: ``higher``, ``lower`` or empty.
        cells: One per policy; None where it is not stored.
        gain: Paired difference of trained minus start; None without one.
        marks: The same on a line.
        ticks: (position in drawing units, probe's name and accuracy), on the accuracy row alone.
        top: Figure at the right end of the line.
    """

    metric: str
    label: str
    better: str
    cells: tuple[Estimate | None, ...]
    gain: Estimate | None
    marks: tuple[RangeMark, ...]
    ticks: tuple[tuple[float, str], ...]
    top: float


class FigureTable(NamedTuple):
    """Metrics by policies over one group of conditions.

    Attributes:
        title: The group.
        rows: One per metric.
        probes: (name, accuracy) of what can be scored without reading evidence.
        sizes: Numbers of episodes behind accuracies, ascending.
    """

    title: str
    rows: tuple[FigureRow, ...]
    probes: tuple[tuple[str, float], ...]
    sizes: tuple[int, ...]


class ConditionRow(NamedTuple):
    """One condition: for each metric of :data:`BY_CONDITION` one cell per policy."""

    name: str
    cells: tuple[tuple[Estimate | None, ...], ...]
    n: int


def figure_tables(source: ReportSource) -> list[FigureTable]:
    """Return the result tables: named conditions, then general ones; a group that was not played is left out.

    Raises:
        BadFileError: If a stored figure is malformed; the message names file and key.
    """
    found = [_policy_figures(source, policy.name) for policy in source.policies]
    gains = _stored(source, "gain")
    tables = []
    for prefix, title in (("", _named_title(source)), (GENERAL_PREFIX, "General conditions")):
        names = [m for m in LABELS if any(prefix + m in figures for figures in found)]
        if "accuracy" not in names:
            continue
        probes = _probes(source, prefix)
        rows = tuple(_row(prefix, m, [f.get(prefix + m) for f in found], gains.get(prefix + m), probes) for m in names)
        sizes = sorted({cell.n for cell in rows[0].cells if cell is not None})
        tables.append(FigureTable(title, rows, probes, tuple(sizes)))
    return tables


def condition_rows(source: ReportSource) -> list[ConditionRow]:
    """Return figures by condition, in the stored order."""
    names: list[str] = list(dict.fromkeys(c for p in source.policies for c in p.summary.get("by_condition", {})))
    rows = []
    for name in names:
        found = [p.estimates("by_condition", name) for p in source.policies]
        cells = tuple(tuple(figures.get(metric) for figures in found) for metric in BY_CONDITION)
        rows.append(ConditionRow(name, cells, max((c.n for c in cells[0] if c is not None), default=0)))
    return rows


def comparison_rows(source: ReportSource) -> list[tuple[str, str, str, Estimate]]:
    """Return stored pairwise differences as (first, second, metric, first minus second)."""
    path = source.folder / "comparison.json"
    return [
        (
            str(row["first"]),
            str(row["second"]),
            str(row["metric"]),
            read_estimates({"difference": row["difference"]}, path)["difference"],
        )
        for row in source.comparisons
        if str(row["metric"]).removeprefix(GENERAL_PREFIX) in HEADLINE
    ]


def ending_rows(source: ReportSource) -> list[tuple[str, Mapping[str, int]]]:
    """Return how each policy's episodes ended.

    Raises:
        BadFileError: If the stored counts are malformed; the message names the file.
    """
    names = [ending.value for ending in Ending]
    rows: list[tuple[str, Mapping[str, int]]] = []
    for policy in source.policies:
        stored = policy.summary.get("total_endings", {})
        if not isinstance(stored, Mapping) or not all(isinstance(stored.get(name, 0), int) for name in names):
            raise BadFileError(
                policy.folder / "summary.json", f"'total_endings' is {stored!r}, expected {names} counted"
            )
        rows.append((policy.name, {name: stored.get(name, 0) for name in names}))
    return rows


def _policy_figures(source: ReportSource, name: str) -> dict[str, Estimate]:
    """A training run's own summary counts; what it leaves out (reward, macro-F1) comes from the evaluation's."""
    policy = next(p for p in source.policies if p.name == name)
    return policy.estimates("metrics") | _stored(source, name)


def _stored(source: ReportSource, key: str) -> dict[str, Estimate]:
    found = source.summary.get(key, {})
    path = source.folder / "summary.json"
    if not isinstance(found, Mapping):
        raise BadFileError(path, f"key {key!r} is {found!r}, expected metric names and estimates")
    return read_estimates(found, path)


def _named_title(source: ReportSource) -> str:
    config = source.policies[0].config
    if config.claims.kind == "scifact":
        return "SciFact"
    names = [name for name in source.policies[0].summary.get("by_condition", {}) if name != GENERAL]
    kind = "Conflict conditions" if set(names) <= set(CONFLICT_CONDITIONS) else "Named conditions"
    return f"{kind} {', '.join(names)}"


def _probes(source: ReportSource, prefix: str) -> tuple[tuple[str, float], ...]:
    path = source.policies[0].folder / "summary.json"
    try:
        stored = source.policies[0].summary.get("probes", {}).get(prefix or "conditions", ())
        return tuple((str(p["name"]), float(p["accuracy"])) for p in stored if p["accuracy"] is not None)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadFileError(path, f"'probes' must hold lists of objects with name and accuracy ({error!r})") from error


def _row(
    prefix: str,
    metric: str,
    cells: Sequence[Estimate | None],
    gain: Estimate | None,
    probes: Sequence[tuple[str, float]],
) -> FigureRow:
    shown = [(place, cell) for place, cell in enumerate(cells) if cell is not None and cell.is_available]
    bottom, top = _scale(metric, [cell for _, cell in shown])
    reach = (top - bottom) or 1.0

    def x(value: float) -> float:
        return round((value - bottom) / reach * PLOT_WIDTH, 2)

    marks = tuple(
        RangeMark(place, x(cell.value), *((x(cell.low), x(cell.high)) if cell.has_interval else (x(cell.value),) * 2))
        for place, cell in shown
    )
    ticks = tuple((x(a), f"{name} {a:.2f}") for name, a in probes) if metric == "accuracy" else ()
    return FigureRow(
        prefix + metric, LABELS[metric], DIRECTIONS.get(metric, "higher"), tuple(cells), gain, marks, ticks, top
    )


def _scale(metric: str, cells: Sequence[Any]) -> tuple[float, float]:
    """Return the figures at the ends of a line: 0 to 1 for shares, else whole numbers around what is shown."""
    if metric not in ("count_mae", "walks", "reward"):
        return 0.0, 1.0
    ends = [v for cell in cells for v in (cell.value, cell.low, cell.high) if not math.isnan(v)]
    return float(min(0, math.floor(min(ends, default=0.0)))), float(max(1, math.ceil(max(ends, default=1.0))))
