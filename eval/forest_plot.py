"""Forest plots: one row per policy or arm, its figure with interval, and every training seed as a point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from provgym.eval.crossed import CrossedEstimate
from provgym.eval.estimate import NOT_AVAILABLE
from provgym.eval.plots import COLOURS, save_figure

Panel = Mapping[str, CrossedEstimate]
"""Row label to figure, in the order drawn from the top."""


def plot_forest(
    panels: Mapping[str, Panel], path: Path, *, title: str = "", marks: Mapping[str, Sequence[float]] | None = None
) -> None:
    """Draw panels side by side that share their rows.

    Args:
        panels: Panel title to rows; a row that a panel lacks is left empty there.
        path: PNG file to write, in one step.
        title: Above the panels.
        marks: Panel title to values drawn as dashed vertical lines (probes, or the start's figure).

    Raises:
        ValueError: If there is no row.
    """
    rows = list(dict.fromkeys(label for panel in panels.values() for label in panel))
    if not rows:
        raise ValueError("panels has no row; there is nothing to draw")
    size = (4.4 * len(panels) + 1.6, 0.42 * len(rows) + 1.3)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, (name, panel) in zip(axes, panels.items(), strict=True):
        _draw_rows(axis, rows, panel)
        for value in (marks or {}).get(name, ()):
            axis.axvline(value, color="0.5", linestyle="--", linewidth=0.8)
        axis.set_title(name, fontsize=10)
    axes[0].set_yticks(range(len(rows)), rows, fontsize=8)
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    figure.suptitle(title, fontsize=11)
    save_figure(figure, path)


def _draw_rows(axis: Axes, rows: Sequence[str], panel: Panel) -> None:
    for place, label in enumerate(rows):
        found = panel.get(label)
        if found is None:
            continue
        seeds = [value for value in found.by_seed if value == value]
        axis.plot(seeds, [place] * len(seeds), "o", color=COLOURS[5], markersize=4, alpha=0.8)
        overall = found.overall
        if not overall.is_available:
            axis.text(0.02, place, NOT_AVAILABLE, transform=axis.get_yaxis_transform(), va="center", fontsize=7)
            continue
        if overall.has_interval:
            axis.plot([overall.low, overall.high], [place, place], color=COLOURS[0], linewidth=1.6)
        axis.plot(overall.value, place, "D", color=COLOURS[0], markersize=6)
        text = f"{overall.value:.3f}  n={overall.n}"
        axis.annotate(text, (overall.value, place), (0, 6), textcoords="offset points", ha="center", fontsize=6)
    axis.grid(axis="x", alpha=0.3)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
