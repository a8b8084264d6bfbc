"""Pictures of the topologies that a generator chooses, one panel per kind of evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import networkx as nx
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
    figure = Figure(figsize=(3.4 * _COLUMNS, 2.3 * rows), layout="constrained")
    axes = figure.subplots(rows, _COLUMNS, squeeze=False)
    roles = sorted({role for found in teams.values() for topology, _ in found for role in topology.roles})
    colours = {role: COLOURS[place % len(COLOURS)] for place, role in enumerate(roles)}
    for axis in axes.flat:
        axis.set_axis_off()
    for row, (kind, found) in enumerate(teams.items()):
        total = sum(count for _, count in found)
        for column, (topology, count) in enumerate(found[:_COLUMNS]):
            _draw(axes[row, column], topology, colours)
            axes[row, column].set_title(f"{kind}: {count} of {total} tasks", fontsize=9)
    figure.suptitle(title, fontsize=10)
    save_figure(figure, path)


def _draw(axis: Axes, topology: Topology, colours: Mapping[str, str]) -> None:
    """Draw one topology: a node's column is its longest way from a node without senders."""
    graph = topology.to_networkx()
    for depth, nodes in enumerate(nx.topological_generations(graph)):
        for node in nodes:
            graph.nodes[node]["depth"] = depth
    places = nx.multipartite_layout(graph, subset_key="depth")
    nx.draw_networkx_edges(
        graph, places, ax=axis, node_size=900, arrowsize=12, width=1.2, connectionstyle="arc3,rad=0.12"
    )
    nx.draw_networkx_nodes(
        graph, places, ax=axis, node_size=900, node_color=[colours[topology.roles[node]] for node in graph]
    )
    labels = {node: topology.roles[node][:4] for node in graph}
    nx.draw_networkx_labels(graph, places, labels, ax=axis, font_size=8)
    axis.margins(0.25)
