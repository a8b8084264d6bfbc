"""Pictures of results: bars with intervals, a map of conditions, training curves.

PNG files, drawn without a display and without pyplot's global state.

Colours are those of Okabe and Ito, which stay apart for colour-blind readers; no meaning hangs on them alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from provgym.eval.estimate import Estimate
from provgym.eval.metrics import GENERAL_PREFIX
from provgym.eval.probes import Probe
from provgym.generators.json_lines import BadFileError, atomic_file, check_is_file

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000")
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "--", "oo")
BAR_METRICS = ("accuracy", "balanced_accuracy", "echo_rate", "source_recall")
DPI = 150
STEP_KEYS = ("step", "global_step")


def plot_policies(
    policies: Mapping[str, Mapping[str, Estimate]],
    path: Path,
    *,
    metrics: Sequence[str] = BAR_METRICS,
    probes: Mapping[str, Sequence[Probe]] | None = None,
) -> None:
    """Draw policies side by side: one row of panels per group of conditions, one panel per metric.

    Args:
        policies: Policy name to metrics, general ones with their prefix.
        path: PNG file to write, in one step.
        metrics: Names without prefix, all of values in [0, 1].
        probes: Metric prefix to probes; drawn as dashed lines across the accuracy panels.

    Raises:
        ValueError: If there is no policy.
    """
    if not policies:
        raise ValueError("policies is empty; there is nothing to draw")
    has = [p for p in ("", GENERAL_PREFIX) if any(p + n in m for m in policies.values() for n in metrics)]
    prefixes = has or [""]
    width = max(2.2, 0.75 * len(policies) + 1.2)
    figure = Figure(figsize=(width * len(metrics) + 0.6, 3.6 * len(prefixes)), layout="constrained")
    axes = figure.subplots(len(prefixes), len(metrics), squeeze=False)
    for row, prefix in zip(axes, prefixes, strict=True):
        for axis, metric in zip(row, metrics, strict=True):
            _draw_bars(axis, {name: found.get(prefix + metric) for name, found in policies.items()})
            axis.set_title(metric.replace("_", " "), fontsize=10)
            axis.set_ylim(0.0, 1.12)
            if metric in ("accuracy", "balanced_accuracy"):
                _draw_probes(axis, metric, (probes or {}).get(prefix, ()))
        row[0].set_ylabel("general conditions" if prefix else "named conditions")
    save_figure(figure, path)


def plot_conditions(
    policies: Mapping[str, Mapping[str, Mapping[str, Estimate]]],
    path: Path,
    *,
    metrics: Sequence[str] = BAR_METRICS,
) -> None:
    """Draw one map per metric: policies in rows, conditions in columns, each cell with its figure and n.

    Args:
        policies: Policy name to condition to metrics.
        path: PNG file to write, in one step.
        metrics: Names, all of values in [0, 1].

    Raises:
        ValueError: If there is no condition.
    """
    conditions = list(dict.fromkeys(c for found in policies.values() for c in found))
    if not conditions:
        raise ValueError("no policy has a condition; there is nothing to draw")
    height = 0.55 * len(policies) + 0.9
    size = (max(4.0, 0.95 * len(conditions) + 2.2), height * len(metrics))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(metrics), 1, squeeze=False)[:, 0]
    for axis, metric in zip(axes, metrics, strict=True):
        _draw_map(axis, policies, conditions, metric)
    save_figure(figure, path)


def plot_training(metrics_file: Path, path: Path, *, keys: Sequence[str], smooth: int = 1, title: str = "") -> None:
    """Draw training curves from a metrics file, one panel per key.

    Args:
        metrics_file: JSON lines, each with ``step`` (or ``global_step``) and some of the keys; null and NaN
            are left out. Of two lines with one step and key the later counts.
        path: PNG file to write, in one step.
        keys: What to draw, in order.
        smooth: Width of a trailing mean drawn over the raw points, in logged steps; 1 for none.
        title: Above the panels.

    Raises:
        BadFileError: If a line cannot be read; the message names file and line.
        ValueError: If ``keys`` is empty, ``smooth`` < 1, or the file never holds a key.
    """
    if not keys or smooth < 1:
        raise ValueError(f"keys={list(keys)} must name at least one, smooth={smooth} must be >= 1")
    series = read_series(metrics_file)
    absent = [key for key in keys if key not in series]
    if absent:
        raise ValueError(f"{metrics_file} never holds {absent}; it holds {sorted(series)}")
    figure = Figure(figsize=(3.4 * len(keys) + 0.4, 3.0), layout="constrained")
    axes = figure.subplots(1, len(keys), squeeze=False)[0]
    for axis, key, colour in zip(axes, keys, _cycle(COLOURS, len(keys)), strict=True):
        steps, values = (np.array(column, dtype=np.float64) for column in zip(*series[key], strict=True))
        logged = np.isfinite(values)
        axis.plot(steps[logged], values[logged], color=colour, linewidth=1.0, alpha=1.0 if smooth == 1 else 0.35)
        if smooth > 1:
            axis.plot(steps, trailing_mean(values, smooth), color=colour, linewidth=1.8)
        axis.set_title(f"{key} (n={int(logged.sum())})", fontsize=10)
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
    figure.suptitle(title)
    save_figure(figure, path)


def read_series(metrics_file: Path) -> dict[str, list[tuple[float, float]]]:
    """Return every numeric key of a metrics file as (step, value) pairs, ascending; null becomes NaN.

    Raises:
        BadFileError: If a whole line is no JSON object with a step; a last line cut short is left out.
    """
    check_is_file(metrics_file)
    found: dict[str, dict[float, float]] = {}
    with metrics_file.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            try:
                row = json.loads(raw)
                step = next(float(row[key]) for key in STEP_KEYS if key in row)
            except (ValueError, TypeError, StopIteration) as error:
                if not raw.endswith(b"\n"):
                    continue
                problem = f"expected a JSON object with one of {list(STEP_KEYS)}, found {raw[:40]!r}"
                raise BadFileError(metrics_file, problem, number) from error
            for key, value in row.items():
                if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
                    found.setdefault(key, {})[step] = math.nan if value is None else float(value)
    return {key: sorted(points.items()) for key, points in found.items()}


def trailing_mean(values: np.ndarray[Any, np.dtype[np.float64]], width: int) -> Any:
    """Return the mean of each value and the ``width`` - 1 before it, NaN left out; shape (n,) to (n,).

    Example:
        >>> trailing_mean(np.array([0.5, np.nan, 0.8]), 3).round(3).tolist()
        [0.5, 0.5, 0.65]
    """
    finite = np.isfinite(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(finite)])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(0, end - width)
    n = count[end] - count[start]
    return np.where(n > 0, (total[end] - total[start]) / np.maximum(n, 1), math.nan)


def _draw_bars(axis: Axes, bars: Mapping[str, Estimate | None]) -> None:
    labels = []
    for place, (name, estimate) in enumerate(bars.items()):
        if estimate is None or not estimate.is_available:
            axis.text(place, 0.02, "not available", rotation=90, ha="center", va="bottom", fontsize=8)
            labels.append(f"{name}\nn=0")
            continue
        colour, hatch = COLOURS[place % len(COLOURS)], HATCHES[place % len(HATCHES)]
        axis.bar(place, estimate.value, width=0.7, color=colour, hatch=hatch, edgecolor="white")
        top = estimate.value
        if estimate.has_interval:
            ends = [[max(0.0, estimate.value - estimate.low)], [max(0.0, estimate.high - estimate.value)]]
            axis.errorbar(place, estimate.value, yerr=ends, fmt="none", ecolor="black", capsize=4)
            top = max(top, estimate.high)
        axis.text(place, top + 0.015, f"{estimate.value:.3f}", ha="center", va="bottom", fontsize=8)
        labels.append(f"{name}\nn={estimate.n}")
    axis.set_xticks(range(len(labels)), labels, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_probes(axis: Axes, metric: str, probes: Sequence[Probe]) -> None:
    for probe in probes:
        value: float = getattr(probe, metric)
        if not math.isnan(value):
            axis.axhline(value, color="0.35", linestyle="--", linewidth=0.9)
            label = f"{probe.name} {value:.2f}"
            axis.text(1.02, value, label, transform=axis.get_yaxis_transform(), va="center", fontsize=6)


def _draw_map(
    axis: Axes,
    policies: Mapping[str, Mapping[str, Mapping[str, Estimate]]],
    conditions: Sequence[str],
    metric: str,
) -> None:
    values = np.full((len(policies), len(conditions)), math.nan)
    for row, found in enumerate(policies.values()):
        for column, condition in enumerate(conditions):
            estimate = found.get(condition, {}).get(metric)
            if estimate is None or not estimate.is_available:
                axis.text(column, row, "n=0", ha="center", va="center", fontsize=7)
                continue
            values[row, column] = estimate.value
            colour = "white" if estimate.value < 0.55 else "black"  # cividis is dark at its low end
            text = f"{estimate.value:.2f}\nn={estimate.n}"
            axis.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
    axis.imshow(values, vmin=0.0, vmax=1.0, cmap="cividis", aspect="auto")
    axis.set_xticks(range(len(conditions)), list(conditions), fontsize=8)
    axis.set_yticks(range(len(policies)), list(policies), fontsize=8)
    axis.set_title(metric.replace("_", " "), fontsize=10)


def _cycle(items: Sequence[str], count: int) -> list[str]:
    return [items[i % len(items)] for i in range(count)]


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG in one step.

    Raises:
        OSError: If the folder cannot be written.
    """
    FigureCanvasAgg(figure)  # attaches itself
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=DPI)
