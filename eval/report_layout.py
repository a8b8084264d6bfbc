"""Where the nodes of an evidence graph are drawn: rings around the claim, one sector per source.

From the middle outwards lie the claim, its observations, their representations, and the sources, so that five routes
of one source fan out from one node. Supporting sources stand on the left, refuting ones on the right. Coordinates
follow from the graph alone: no randomness, no iteration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from provgym.envs.provenance import EvidenceGraph, Instance, NodeKind, Stance

OBSERVATION_RADIUS, REPRESENTATION_RADIUS, SOURCE_RADIUS, OTHER_RADIUS = 82.0, 124.0, 165.0, 190.0
"""Distances from the claim in drawing units; what belongs to other claims lies outermost."""
MAX_DRAWN_ROUTES = 80
"""More routes are drawn only where the walk came by (ours: nodes would overlap)."""
_GAP = 0.9  # between two sources, in widths of a route


class DrawnSource(NamedTuple):
    """A source of the claim.

    Attributes:
        source_id: As in the data.
        stance: What its observation says of the claim.
        routes: By how many routes it reaches the claim.
    """

    source_id: str
    stance: Stance
    routes: int


class DrawnNode(NamedTuple):
    """A node in its place.

    Attributes:
        node: Its number in the graph.
        kind: What it is.
        word: ``claim``, ``source``, ``observation``, or the representation's kind such as ``table``.
        x: To the right of the claim, in drawing units.
        y: Below the claim.
        source: Index in :attr:`Layout.sources`; -1 for the claim and for other claims' nodes.
    """

    node: int
    kind: NodeKind
    word: str
    x: float
    y: float
    source: int


class Layout(NamedTuple):
    """A graph, ready to be drawn.

    Attributes:
        nodes: The claim first.
        edges: Pairs of indices into ``nodes``, without those among observations of the claim.
        sources: Supporting ones first, in the graph's order.
        hidden_routes: Routes that are not drawn.
        joins_all: Whether every two observations of the claim are joined; else they form a ring.
        radius: Of an observation's mark, in drawing units.
    """

    nodes: tuple[DrawnNode, ...]
    edges: tuple[tuple[int, int], ...]
    sources: tuple[DrawnSource, ...]
    hidden_routes: int
    joins_all: bool
    radius: float


def lay_out(instance: Instance, walked: Sequence[int] = ()) -> Layout:
    """Place the nodes of an instance's claim.

    Args:
        instance: What was walked.
        walked: Nodes that must be drawn, whatever they belong to.
    """
    graph = instance.graph
    by_source = _routes_by_source(instance)
    drawn = _drawn_routes(graph, by_source, set(walked))
    sources = tuple(DrawnSource(s, stance, len(routes)) for (s, stance), routes in by_source.items())
    angles = _angles([(stance, len(routes)) for (_, stance), routes in zip(by_source, drawn, strict=True)])
    nodes = [DrawnNode(instance.claim, NodeKind.CLAIM, "claim", 0.0, 0.0, -1)]
    first_source = graph.num_nodes - len(graph.sources)
    for place, (routes, fan) in enumerate(zip(drawn, angles, strict=True)):
        for route, angle in zip(routes, fan, strict=True):
            observation = len(graph.claims) + route
            nodes.append(_at(graph, observation, OBSERVATION_RADIUS, angle, place))
            nodes.append(_at(graph, observation + len(graph.routes), REPRESENTATION_RADIUS, angle, place))
        if routes:
            source = first_source + int(graph.node_source[len(graph.claims) + routes[0]])
            nodes.append(_at(graph, source, SOURCE_RADIUS, sum(fan) / len(fan), place))
    nodes += _others(graph, nodes, walked)
    total = sum(map(len, by_source.values()))
    slots = sum(map(len, drawn)) + _GAP * len(drawn)
    radius = min(11.0, max(3.5, 0.4 * math.tau * OBSERVATION_RADIUS / max(slots, 1.0)))
    joins_all = all(len(graph.neighbours(n.node)) >= total for n in nodes[1:2])
    edges = _edges(graph, nodes, instance.claim)
    return Layout(tuple(nodes), edges, sources, total - sum(map(len, drawn)), joins_all, round(radius, 2))


def _routes_by_source(instance: Instance) -> dict[tuple[str, Stance], list[int]]:
    """Return the claim's routes by source and stance, supporting sources first."""
    graph = instance.graph
    found: dict[tuple[str, Stance], list[int]] = {}
    for route in graph.claim_routes(instance.claim).tolist():
        atom = graph.atoms[int(graph.node_atom[len(graph.claims) + route])]
        found.setdefault((atom.source_id, atom.stance), []).append(route)
    return dict(sorted(found.items(), key=lambda item: item[0][1] is Stance.REFUTE))


def _drawn_routes(
    graph: EvidenceGraph, by_source: dict[tuple[str, Stance], list[int]], walked: set[int]
) -> list[list[int]]:
    total = sum(map(len, by_source.values()))
    if total <= MAX_DRAWN_ROUTES:
        return list(by_source.values())
    met = {int(graph.node_route[node]) for node in walked}
    # Walked ones, and the first of every source so that no source is missing while there is room.
    kept = [[r for place, r in enumerate(routes) if r in met or place == 0] for routes in by_source.values()]
    return kept if sum(map(len, kept)) <= MAX_DRAWN_ROUTES else [[r for r in rs if r in met] for rs in kept]


def _angles(fans: Sequence[tuple[Stance, int]]) -> list[list[float]]:
    """Return the angle of every route, in radians clockwise from the right; sources keep a gap.

    The supporting half is centred on the left.
    """
    widths = [count + _GAP if count else 0.0 for _, count in fans]
    total = sum(widths) or 1.0
    supporting = sum(width for width, (stance, _) in zip(widths, fans, strict=True) if stance is Stance.SUPPORT)
    place = math.pi - math.pi * supporting / total
    angles = []
    for width, (_, count) in zip(widths, fans, strict=True):
        step = math.tau / total
        angles.append([place + (_GAP / 2 + 0.5 + i) * step for i in range(count)])
        place += width * step
    return angles


def _at(graph: EvidenceGraph, node: int, radius: float, angle: float, source: int) -> DrawnNode:
    kind = NodeKind(int(graph.node_kind[node]))
    is_representation = kind is NodeKind.REPRESENTATION
    word = graph.routes[int(graph.node_route[node])].kind if is_representation else kind.name.lower()
    x, y = radius * math.cos(angle), radius * math.sin(angle)
    return DrawnNode(node, kind, word, round(x, 1) + 0.0, round(y, 1) + 0.0, source)


def _others(graph: EvidenceGraph, nodes: Sequence[DrawnNode], walked: Sequence[int]) -> list[DrawnNode]:
    """Place walked nodes of other claims outermost, evenly from the top."""
    known = {n.node for n in nodes}
    others = [node for node in dict.fromkeys(walked) if node not in known]
    return [
        _at(graph, node, OTHER_RADIUS, math.tau * place / len(others) - math.pi / 2, -1)
        for place, node in enumerate(others)
    ]


def _edges(graph: EvidenceGraph, nodes: Sequence[DrawnNode], claim: int) -> tuple[tuple[int, int], ...]:
    index = {n.node: place for place, n in enumerate(nodes)}
    own = {n.node for n in nodes if n.kind is NodeKind.OBSERVATION and int(graph.node_claim[n.node]) == claim}
    edges = []
    for place, drawn in enumerate(nodes):
        for other in graph.neighbours(drawn.node).tolist():
            if index.get(other, -1) > place and not (drawn.node in own and other in own):
                edges.append((place, index[other]))
    return tuple(edges)
