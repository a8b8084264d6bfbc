"""One order of a graph's nodes that does not depend on how they are numbered.

Colour refinement splits the nodes into ordered classes; where a class is left with several nodes, each of them in turn
is put first and the split goes on, and of all orders reached that way the one with the least edge list is taken. The
result is exact: two graphs get the same list if and only if one is the other renumbered. Nodes that can be swapped
without a change, and branches that an automorphism found on the way maps to earlier ones, are looked at once.

Source: individualisation and refinement as in McKay and Piperno, "Practical graph isomorphism, II", 2014, section 2,
with its pruning by automorphisms; no code of theirs. Depth as the first colour is ours: it makes every order reached
a topological one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

Edge = tuple[int, int]
Colours = tuple[int, ...]  # (N,) rank of each node's class, 0 upwards; the classes are ordered


class _Leaf(NamedTuple):
    """An order without ties: its edges, the node at each place, and the nodes that were put first to get there."""

    edges: tuple[Edge, ...]
    order: tuple[int, ...]
    path: tuple[int, ...]


@lru_cache(maxsize=65_536)
def canonical_order(roles: tuple[str, ...], edges: tuple[Edge, ...]) -> tuple[int, ...]:
    """Return the nodes of an acyclic graph in canonical order, which is a topological one.

    Args:
        roles: (N,) role of each node.
        edges: (E,) sender and receiver, acyclic.

    Returns:
        (N,) node at each place. Two graphs that are the same but for numbering give equal roles and edges when
        renumbered by their orders.
    """
    senders: list[list[int]] = [[] for _ in roles]
    receivers: list[list[int]] = [[] for _ in roles]
    for sender, receiver in edges:
        senders[receiver].append(sender)
        receivers[sender].append(receiver)
    search = _Search(edges, senders, receivers)
    depths = node_depths(len(roles), edges)
    first = _ranked((depths[v], roles[v], len(senders[v]), len(receivers[v])) for v in range(len(roles)))
    search.descend(search.refine(first), ())
    return search.leaves[-1].order


@lru_cache(maxsize=65_536)
def canonical_form(roles: tuple[str, ...], edges: tuple[Edge, ...]) -> tuple[tuple[str, ...], tuple[Edge, ...]]:
    """Return the roles and the sorted edges of an acyclic graph, renumbered by :func:`canonical_order`.

    Args:
        roles: (N,) role of each node.
        edges: (E,) sender and receiver, acyclic.
    """
    order = canonical_order(roles, edges)
    place = {node: number for number, node in enumerate(order)}
    renumbered = sorted((place[sender], place[receiver]) for sender, receiver in edges)
    return tuple(roles[node] for node in order), tuple(renumbered)


def node_depths(num_nodes: int, edges: Iterable[Edge]) -> list[int]:
    """Return the length of the longest path that ends in each node, (N,); -1 for nodes on or behind a cycle."""
    receivers: list[list[int]] = [[] for _ in range(num_nodes)]
    waiting = [0] * num_nodes
    for sender, receiver in edges:
        receivers[sender].append(receiver)
        waiting[receiver] += 1
    depths = [-1] * num_nodes
    ready = [node for node in range(num_nodes) if not waiting[node]]
    for depth in range(num_nodes):
        following: list[int] = []
        for node in ready:
            depths[node] = depth
            for receiver in receivers[node]:
                waiting[receiver] -= 1
                if not waiting[receiver]:
                    following.append(receiver)
        ready = following
    return depths


class _Search:
    """The search tree over one graph.

    Attributes:
        leaves: The first leaf and the least one so far, in that order; one leaf may be both.
    """

    def __init__(self, edges: tuple[Edge, ...], senders: list[list[int]], receivers: list[list[int]]) -> None:
        self._edges = edges
        self._senders = senders
        self._receivers = receivers
        # What a node may be swapped for without a change: the same neighbours on both sides.
        self._surroundings = [(frozenset(s), frozenset(r)) for s, r in zip(senders, receivers, strict=True)]
        self._automorphisms: list[tuple[int, ...]] = []
        self.leaves: list[_Leaf] = []

    def refine(self, colours: Colours) -> Colours:
        """Split classes until nodes of one class agree in the classes of their senders and of their receivers."""
        while True:
            split = _ranked(
                (
                    colours[node],
                    tuple(sorted(colours[s] for s in self._senders[node])),
                    tuple(sorted(colours[r] for r in self._receivers[node])),
                )
                for node in range(len(colours))
            )
            if max(split, default=0) == max(colours, default=0):
                return split
            colours = split

    def descend(self, colours: Colours, path: tuple[int, ...]) -> int:
        """Look at all orders that agree with ``colours``.

        Args:
            colours: Refined.
            path: Nodes that were put first on the way here.

        Returns:
            The length of the path to go back to: ``len(path)`` unless everything up to an earlier fork is known to be
            the image of what was seen there.
        """
        colours = self._split_twins(colours)
        tied = _first_tie(colours)
        if not tied:
            return self._reach(colours, path)
        tried: list[int] = []
        for node in tied:
            if self._is_image(node, tried, path):
                continue
            tried.append(node)
            put_first = _ranked((colours[v], v != node) for v in range(len(colours)))
            back_to = self.descend(self.refine(put_first), (*path, node))
            if back_to < len(path):
                return back_to
        return len(path)

    def _reach(self, colours: Colours, path: tuple[int, ...]) -> int:
        order = tuple(sorted(range(len(colours)), key=colours.__getitem__))
        edges = tuple(sorted((colours[s], colours[r]) for s, r in self._edges))
        for known in self.leaves:
            if known.edges == edges:
                image = dict(zip(known.order, order, strict=True))
                self._automorphisms.append(tuple(image[node] for node in range(len(order))))
                return _common_length(known.path, path)
        leaf = _Leaf(edges, order, path)
        if not self.leaves:
            self.leaves = [leaf]
        elif edges < self.leaves[-1].edges:
            self.leaves = [self.leaves[0], leaf]
        return len(path)

    def _is_image(self, node: int, tried: list[int], path: tuple[int, ...]) -> bool:
        """Whether automorphisms that leave the path alone carry one of the tried nodes to ``node``."""
        reached = set(tried)
        if not reached:
            return False
        fixing = [image for image in self._automorphisms if all(image[v] == v for v in path)]
        frontier = list(tried)
        while frontier:
            place = frontier.pop()
            for image in fixing:
                if image[place] not in reached:
                    reached.add(image[place])
                    frontier.append(image[place])
        return node in reached

    def _split_twins(self, colours: Colours) -> Colours:
        """Order the nodes of every class whose members may be swapped freely; any order gives the same edges."""
        members: dict[int, list[int]] = {}
        for node, colour in enumerate(colours):
            members.setdefault(colour, []).append(node)
        place = [0] * len(colours)
        for nodes in members.values():
            if len({self._surroundings[node] for node in nodes}) == 1:
                for number, node in enumerate(nodes):
                    place[node] = number
        return _ranked((colours[node], place[node]) for node in range(len(colours)))


def _ranked(signatures: Iterable[Hashable]) -> Colours:
    """Return the rank of each signature among the distinct ones."""
    listed: list[Any] = list(signatures)
    ranks = {signature: rank for rank, signature in enumerate(sorted(set(listed)))}
    return tuple(ranks[signature] for signature in listed)


def _first_tie(colours: Colours) -> list[int]:
    """Return the nodes of the first class with several, or none."""
    seen: dict[int, list[int]] = {}
    for node, colour in enumerate(colours):
        seen.setdefault(colour, []).append(node)
    tied = [colour for colour, nodes in seen.items() if len(nodes) > 1]
    return seen[min(tied)] if tied else []


def _common_length(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length
