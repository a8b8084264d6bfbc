"""Pictures with a line per policy: figures against the walk budget, accuracy against stated confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from provgym.eval.condition_groups import CONDITION_GROUPS, Settings, lines_of, parse_setting
from provgym.eval.estimate import NOT_AVAILABLE, Estimate
from provgym.eval.metrics import GENERAL_PREFIX
from provgym.eval.plots import COLOURS, save_figure
from provgym.eval.reliability import BINS, Reliability

BUDGET_METRICS = ("accuracy", "echo_rate", "source_recall")
MARKERS = "os^Dv<>P"
STYLES = ("-", "--", ":", "-.")


def plot_budgets(policies: Mapping[str, Settings], path: Path, *, metrics: Sequence[str] = BUDGET_METRICS) -> None:
    """Draw metrics against the walk budget: a row of panels per group, a line per policy and mitigation.

    Args:
        policies: Policy name to its settings.
        path: PNG file to write, in one step.
        metrics: Names, all of values in [0, 1]; one column of panels each.

    Raises:
        ValueError: If no policy has a group of conditions.
    """
    groups = [g for g in CONDITION_GROUPS if any(g in cell for found in policies.values() for cell in found.values())]
    if not groups:
        raise ValueError(f"no policy played one of the groups {list(CONDITION_GROUPS)}; there is nothing to draw")
    figure = Figure(figsize=(3.6 * len(metrics) + 1.8, 2.6 * len(groups)), layout="constrained")
    axes = figure.subplots(len(groups), len(metrics), squeeze=False, sharex=True)
    for row, group in zip(axes, groups, strict=True):
        for axis, metric in zip(row, metrics, strict=True):
            _draw_lines(axis, policies, group, metric)
            axis.set_title(f"{group.replace('_', ' ')}: {metric.replace('_', ' ')}", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("walk budget")
    # A policy may lack a group; the legend names every line once, wherever it is drawn.
    drawn = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(drawn.values(), drawn.keys(), loc="outside right upper", fontsize=8)
    save_figure(figure, path)


def plot_reliability(policies: Mapping[str, Mapping[str, Reliability]], path: Path) -> None:
    """Draw reliability curves and, below each, the judgements per bin; one column of panels per group of conditions.

    Args:
        policies: Policy name to metric prefix to reliability.
        path: PNG file to write, in one step.

    Raises:
        ValueError: If no policy has a group of conditions.
    """
    prefixes = [p for p in ("", GENERAL_PREFIX) if any(p in found for found in policies.values())]
    if not prefixes:
        raise ValueError("no policy has a reliability; there is nothing to draw")
    figure = Figure(figsize=(4.6 * len(prefixes) + 0.4, 5.2), layout="constrained")
    axes = figure.subplots(2, len(prefixes), squeeze=False, sharex=True, height_ratios=(3, 1))
    for column, prefix in enumerate(prefixes):
        shown = {name: found[prefix] for name, found in policies.items() if prefix in found}
        _draw_curves(axes[0, column], shown)
        _draw_counts(axes[1, column], shown)
        axes[0, column].set_title("general conditions" if prefix else "named conditions", fontsize=10)
    axes[0, 0].set_ylabel("share right")
    axes[1, 0].set_ylabel("judgements")
    save_figure(figure, path)


def _draw_lines(axis: Axes, policies: Mapping[str, Settings], group: str, metric: str) -> None:
    for number, (name, settings) in enumerate(policies.items()):
        for place, (mitigation, points) in enumerate(lines_of(settings, group, metric).items()):
            budgets, values = [budget for budget, _ in points], [found.value for _, found in points]
            axis.errorbar(
                budgets,
                values,
                yerr=_arms([found for _, found in points]),
                color=COLOURS[number % len(COLOURS)],
                linestyle=STYLES[place % len(STYLES)],
                marker=MARKERS[place % len(MARKERS)],
                markersize=4,
                capsize=2,
                label=f"{name} {mitigation}",
            )
    played = sorted({parse_setting(setting)[1] for found in policies.values() for setting in found})
    axis.set_xticks(played)
    axis.set_ylim(-0.03, 1.06)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_curves(axis: Axes, shown: Mapping[str, Reliability]) -> None:
    axis.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=0.9)
    for number, (name, reliability) in enumerate(shown.items()):
        parts = [part for part in reliability.bins if part.n]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        label = f"{name}: Brier {_short(reliability.brier)}, ECE {_short(reliability.ece)}, n={reliability.n}"
        x, y = [p.confidence for p in parts], [p.accuracy.value for p in parts]
        axis.errorbar(
            x, y, yerr=_arms([part.accuracy for part in parts]), fmt=f"{marker}-", color=colour, capsize=3, label=label
        )
    axis.set_ylim(-0.03, 1.03)
    axis.legend(fontsize=7, loc="upper left")
    axis.spines[["top", "right"]].set_visible(False)


def _draw_counts(axis: Axes, shown: Mapping[str, Reliability]) -> None:
    width = 1 / BINS / max(1, len(shown))
    for number, reliability in enumerate(shown.values()):
        for part in reliability.bins:
            if part.n:
                left = part.low + number * width
                axis.bar(left, part.n, width=width, align="edge", color=COLOURS[number % len(COLOURS)])
                axis.text(left + width / 2, part.n, str(part.n), ha="center", va="bottom", fontsize=6)
    axis.set_xlim(0, 1)
    axis.margins(y=0.25)
    axis.set_xlabel("stated confidence")
    axis.spines[["top", "right"]].set_visible(False)


def _arms(points: Sequence[Estimate]) -> list[list[float]]:
    """Return the lengths of the intervals' lower and upper arms; none where there is no interval."""
    pairs = [(p.value - p.low, p.high - p.value) if p.has_interval else (0.0, 0.0) for p in points]
    return [[max(0.0, low) for low, _ in pairs], [max(0.0, high) for _, high in pairs]]


def _short(estimate: Estimate) -> str:
    return f"{estimate.value:.3f}" if estimate.is_available else NOT_AVAILABLE
