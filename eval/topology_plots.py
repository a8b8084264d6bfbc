"""Pictures of a topology evaluation: accuracy against tokens, team sizes by kind of evidence, sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from provgym.eval.curve_plots import MARKERS
from provgym.eval.estimate import Estimate
from provgym.eval.plots import COLOURS, HATCHES, save_figure
from provgym.eval.topology_adaptation import Adaptation

Figures = Mapping[str, Mapping[str, Estimate]]
"""Method to metric to figure."""


def plot_accuracy_tokens(methods: Figures, path: Path, *, metric: str = "accuracy", title: str = "") -> None:
    """Draw a point per method: what it gets against the tokens it takes, with both intervals; tokens on a log axis.

    Args:
        methods: Method to metrics; those without tokens (a server that counts none) are named below the axis.
        path: PNG file to write, in one step.
        metric: What stands on the upright axis.
        title: Above the picture.

    Raises:
        ValueError: If no method has both figures.
    """
    drawn = {
        name: (found[metric], found["tokens"])
        for name, found in methods.items()
        if found[metric].is_available and found["tokens"].is_available and found["tokens"].value > 0
    }
    if not drawn:
        raise ValueError(f"no method has {metric} and tokens; there is nothing to draw")
    figure = Figure(figsize=(7.6, 4.8), layout="constrained")
    axis = figure.subplots()
    best_first = sorted(drawn.items(), key=lambda entry: -entry[1][0].value)  # the legend is a numbered ranking
    for number, (name, (value, tokens)) in enumerate(best_first):
        axis.errorbar(
            tokens.value,
            value.value,
            xerr=_arms(tokens),
            yerr=_arms(value),
            fmt=MARKERS[number % len(MARKERS)],
            color=COLOURS[(number // len(MARKERS) + number) % len(COLOURS)],
            capsize=2,
            markersize=7,
            elinewidth=0.8,
            label=f"{number + 1}  {name} {value.value:.3f} (n={value.n})",
        )
        axis.annotate(str(number + 1), (tokens.value, value.value), (5, 4), textcoords="offset points", fontsize=7.5)
    axis.set_xscale("log")
    missing = [name for name in methods if name not in drawn]
    axis.set_xlabel("tokens per question" + (f"   (not counted: {', '.join(missing)})" if missing else ""))
    axis.set_ylabel(metric.replace("_", " "))
    axis.set_title(title, fontsize=10)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", fontsize=8)
    save_figure(figure, path)


def plot_adaptation(methods: Mapping[str, Adaptation], path: Path) -> None:
    """Draw mean team sizes and the share of each size by kind of evidence: a row of panels per method.

    Args:
        methods: Method to its teams.
        path: PNG file to write, in one step.

    Raises:
        ValueError: If no method has a kind of evidence.
    """
    shown = {name: found for name, found in methods.items() if found.kinds}
    if not shown:
        raise ValueError("no method has teams of a kind of evidence; there is nothing to draw")
    figure = Figure(figsize=(8.4, 2.9 * len(shown)), layout="constrained")
    axes = figure.subplots(len(shown), 2, squeeze=False)
    for row, (name, found) in zip(axes, shown.items(), strict=True):
        _draw_sizes(row[0], found)
        row[0].set_title(f"{name}: nodes of a team", fontsize=10)
        _draw_shares(row[1], found)
        row[1].set_title(f"{name}: share of team sizes", fontsize=10)
    save_figure(figure, path)


def plot_sweep(
    axis_name: str,
    values: Sequence[float],
    points: Sequence[Figures],
    path: Path,
    *,
    metrics: Sequence[str] = ("accuracy", "score", "tokens"),
) -> None:
    """Draw a line per method over the values of a sweep, one panel per metric.

    Args:
        axis_name: What was varied.
        values: In the order swept.
        points: Figures at each value.
        path: PNG file to write, in one step.
        metrics: One panel each.

    Raises:
        ValueError: If there is no value, or not one set of figures per value.
    """
    if not values or len(values) != len(points):
        raise ValueError(f"found {len(points)} sets of figures for the values {list(values)}; expected one each, some")
    figure = Figure(figsize=(3.6 * len(metrics) + 1.8, 3.2), layout="constrained")
    axes = figure.subplots(1, len(metrics), squeeze=False)[0]
    methods = list(dict.fromkeys(name for found in points for name in found))
    for axis, metric in zip(axes, metrics, strict=True):
        for number, name in enumerate(methods):
            _draw_line(axis, number, name, values, [found.get(name, {}).get(metric) for found in points])
        axis.set_title(metric.replace("_", " "), fontsize=10)
        axis.set_xlabel(axis_name)
        axis.set_xticks(list(values))
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8)
    save_figure(figure, path)


def _draw_line(axis: Axes, number: int, name: str, values: Sequence[float], found: Sequence[Estimate | None]) -> None:
    known = [(value, e) for value, e in zip(values, found, strict=True) if e is not None and e.is_available]
    arms = [_arms(e) for _, e in known]
    axis.errorbar(
        [value for value, _ in known],
        [e.value for _, e in known],
        yerr=[[arm[0][0] for arm in arms], [arm[1][0] for arm in arms]],
        marker=MARKERS[number % len(MARKERS)],
        color=COLOURS[number % len(COLOURS)],
        markersize=4,
        capsize=2,
        label=name,
    )


def _draw_sizes(axis: Axes, found: Adaptation) -> None:
    for place, teams in enumerate(found.kinds.values()):
        axis.bar(place, teams.nodes.value, width=0.6, color=COLOURS[place], hatch=HATCHES[place], edgecolor="white")
        axis.errorbar(place, teams.nodes.value, yerr=_arms(teams.nodes), fmt="none", ecolor="black", capsize=4)
    labels = [f"{kind}\nn={teams.nodes.n}" for kind, teams in found.kinds.items()]
    axis.set_xticks(range(len(labels)), labels, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_shares(axis: Axes, found: Adaptation) -> None:
    sizes = sorted({size for teams in found.kinds.values() for size in teams.sizes})
    width = 0.8 / max(1, len(found.kinds))
    for number, (kind, teams) in enumerate(found.kinds.items()):
        places = [place + (number - (len(found.kinds) - 1) / 2) * width for place in range(len(sizes))]
        shares = [teams.sizes.get(size, 0.0) for size in sizes]
        axis.bar(places, shares, width, color=COLOURS[number], hatch=HATCHES[number], edgecolor="white", label=kind)
    axis.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axis.set_xlabel("nodes")
    axis.set_ylim(0.0, 1.02)
    axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axis.spines[["top", "right"]].set_visible(False)


def _arms(estimate: Estimate) -> list[list[float]]:
    """Return the lengths of an interval's two arms, as matplotlib wants them for one point; 0 without an interval."""
    if not estimate.has_interval:
        return [[0.0], [0.0]]
    return [[max(0.0, estimate.value - estimate.low)], [max(0.0, estimate.high - estimate.value)]]
