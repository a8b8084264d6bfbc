"""Pictures of the topologies that a generator chooses, one panel per kind of evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import networkx as nx
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from provgym.envs.topology import Topology
from provgym.eval.plots import COLOURS, save_figure

_COLUMNS = 3  # commonest teams shown of each kind


def draw_teams(teams: Mapping[str, Sequence[tuple[Topology, int]]], path: Path, title: str = "") -> None:
    """Draw the commonest teams of every kind of evidence, messages from left to right.

    Args:
        teams: Kind of evidence to (topology, number of tasks), the commonest first.
        path: PNG file to write, in one step.
        title: Above the picture.

    Raises:
        OSError: If the folder can't be written.
    """
    rows = max(1, len(teams))
    columns = max(1, *(min(len(found), _COLUMNS) for found in teams.values())) if teams else 1
    figure = Figure(figsize=(4.2 * columns, 1.4 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    roles = sorted({role for found in teams.values() for topology, _ in found for role in topology.roles})
    colours = {role: COLOURS[place % len(COLOURS)] for place, role in enumerate(roles)}
    for axis in axes.flat:
        axis.set_axis_off()
    for row, (kind, found) in enumerate(teams.items()):
        total = sum(count for _, count in found)
        for column, (topology, count) in enumerate(found[:columns]):
            _draw(axes[row, column], topology, colours)
            axes[row, column].set_title(f"{kind}: {count} of {total} tasks", fontsize=9, loc="left")
    figure.suptitle(title, fontsize=10)
    save_figure(figure, path)


def _draw(axis: Axes, topology: Topology, colours: Mapping[str, str]) -> None:
    """Draw one topology: a node's column is its longest way from a node without senders."""
    graph = topology.to_networkx()
    depth_of = {node: depth for depth, nodes in enumerate(nx.topological_generations(graph)) for node in nodes}
    nx.set_node_attributes(graph, depth_of, "depth")
    columns: dict[int, list[int]] = {}
    for node in sorted(graph):
        columns.setdefault(depth_of[node], []).append(node)
    places = {
        node: (float(depth), (len(nodes) - 1) / 2 - row)
        for depth, nodes in columns.items()
        for row, node in enumerate(nodes)
    }
    for sender, receiver in topology.edges:
        skips = depth_of[receiver] - depth_of[sender] > 1  # around what stands between
        arrow = FancyArrowPatch(
            places[sender],
            places[receiver],
            connectionstyle=f"arc3,rad={-0.35 if skips else 0.0}",
            arrowstyle="-|>",
            mutation_scale=12,
            shrinkA=30,
            shrinkB=30,
            linewidth=1.2,
            color="#444444",
        )
        axis.add_patch(arrow)
    for node, (x, y) in places.items():
        role = topology.roles[node]
        box = {"boxstyle": "round,pad=0.45", "facecolor": "white", "edgecolor": colours[role], "linewidth": 2.0}
        axis.text(x, y, role, ha="center", va="center", fontsize=8, bbox=box)
    axis.set_xlim(-0.6, max(2.0, len(columns) - 1.0) + 0.6)  # teams of up to three columns are drawn alike
    tallest = max(len(nodes) for nodes in columns.values())
    axis.set_ylim(-(tallest / 2 + 0.2), tallest / 2 + 0.2)
