"""Training curves of a page: raw points, a trailing mean, phases and the chosen step, in drawing units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from provgym.eval.plots import read_series, trailing_mean
from provgym.eval.report_source import ReportSource

CURVES = {
    "rollout/reward": "reward",
    "rollout/accuracy": "accuracy",
    "rollout/echo_rate": "echo rate",
    "rollout/source_recall": "source recall",
    "rollout/walks": "walks",
    "rollout/invalid_actions": "actions that did nothing",
    "train/entropy": "entropy",
    "rollout/zero_spread_groups": "groups without spread",
}
"""What is drawn where it was logged, in order."""
SMOOTHING = 10
"""Steps of the trailing mean."""
WIDTH, HEIGHT = 260.0, 120.0
"""Drawing units of a curve's field."""


class Curve(NamedTuple):
    """One logged figure over the steps.

    Attributes:
        key: As logged.
        label: As shown.
        raw: Points of an SVG polyline.
        mean: The same of the trailing mean.
        x_ticks: (position, step).
        y_ticks: (position, figure).
        end: (position, figure) of the trailing mean's last point.
        start: The trailing mean after its first full window (or all points, if fewer).
        n: Points that were logged.
        boundaries: Positions at which a phase begins, but the first.
        chosen: Position of the chosen checkpoint's step; None if there is none.
        points: (step, raw, mean) of every logged step, for reading a value off.
    """

    key: str
    label: str
    raw: str
    mean: str
    x_ticks: tuple[tuple[float, int], ...]
    y_ticks: tuple[tuple[float, str], ...]
    end: tuple[float, float]
    start: float
    n: int
    boundaries: tuple[float, ...]
    chosen: float | None
    points: tuple[tuple[int, float, float], ...]


def training_curves(source: ReportSource) -> list[Curve]:
    """Return a run's curves; none without a metrics file.

    Raises:
        BadFileError: If a line of the metrics file cannot be read; the message names file and line.
    """
    if source.metrics_file is None:
        return []
    series = read_series(source.metrics_file)
    starts = np.cumsum([int(phase.get("steps", 0)) for phase in source.phases])[:-1] + 1
    chosen = source.summary.get("selected_step")
    curves = []
    for key, label in CURVES.items():
        points = [(step, value) for step, value in series.get(key, []) if math.isfinite(value)]
        if len(points) > 1:
            curves.append(_curve(key, label, points, starts.tolist(), chosen if isinstance(chosen, int) else None))
    return curves


def nice_ticks(low: float, high: float, count: int = 3) -> list[float]:
    """Return round figures that span ``low`` to ``high``, about ``count`` steps apart.

    Example:
        >>> nice_ticks(0.0, 1.0), nice_ticks(0.31, 0.87), nice_ticks(2.0, 2.0)
        ([0.0, 0.5, 1.0], [0.2, 0.4, 0.6, 0.8, 1.0], [2.0, 2.5, 3.0])
    """
    span = (high - low) or 1.0
    rough = span / count
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(m * size for m in (1.0, 2.0, 5.0, 10.0) if m * size >= rough)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil((high if high > low else low + span) / step - 1e-9), first + 1)
    return [round(i * step, 10) for i in range(first, last + 1)]


def _curve(
    key: str, label: str, points: Sequence[tuple[float, float]], starts: Sequence[int], chosen: int | None
) -> Curve:
    steps, values = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))  # (n,) each
    means: NDArray[np.float64] = trailing_mean(values, SMOOTHING)
    ticks = nice_ticks(float(values.min()), float(values.max()))
    bottom, top = ticks[0], ticks[-1]
    first, last = float(steps[0]), float(steps[-1])

    def x(step: float) -> float:
        return round((step - first) / (last - first) * WIDTH, 1)

    def y(value: float) -> float:
        return round(HEIGHT - (value - bottom) / (top - bottom) * HEIGHT, 1)

    def line(ys: NDArray[np.float64]) -> str:
        return " ".join(f"{x(s)},{y(v)}" for s, v in zip(steps.tolist(), ys.tolist(), strict=True))

    digits = max(0, -math.floor(math.log10(ticks[1] - ticks[0]) + 1e-9))
    window = min(SMOOTHING, len(values)) - 1
    return Curve(
        key,
        label,
        line(values),
        line(means),
        tuple((x(s), int(s)) for s in (first, last)),
        tuple((y(t), f"{t:.{digits}f}".replace("-", "−")) for t in ticks),
        (y(float(means[-1])), float(means[-1])),
        float(means[window]),
        len(values),
        tuple(x(s) for s in starts if first < s < last),
        x(chosen) if chosen is not None and first <= chosen <= last else None,
        tuple(zip(steps.astype(int).tolist(), values.round(4).tolist(), means.round(4).tolist(), strict=True)),
    )
