"""The orders in which a topology can be built, by subset dynamic programming, and how many of them look alike.

A prefix of a topological order is a *down-set*: a set of nodes that holds every sender of its nodes. An N-node graph
has at most 2^N of them, while its orders may be (N - 1)! many. Whatever depends on a prefix only through its set can
therefore be summed over all orders by going through the down-sets by size.

Two orders are the same *sequence* of roles and edges exactly if an automorphism maps one to the other, and the
identity alone fixes an order. So a graph has (number of orders) / (number of automorphisms) distinct sequences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from provgym.envs.topology import Topology

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class OrderPlan:
    """One topology's down-sets and the steps between them.

    Nodes are numbered by one topological order of the graph; a set is an integer whose bit j is node j. M down-sets,
    T steps, N nodes.

    Attributes:
        roles: (N) role names.
        senders: (N,) set of each node's senders.
        placed: (M,) the down-sets by size, from the empty to the full one.
        open: (M,) those of their nodes that have no receiver among them.
        source: (T,) number of the down-set that a step adds its node to; ascending.
        node: (T,) the node.
        target: (T,) number of the down-set after it.
        log_automorphisms: Natural logarithm of the number of automorphisms, roles kept.
    """

    roles: tuple[str, ...]
    senders: IntArray
    placed: IntArray
    open: IntArray
    source: IntArray
    node: IntArray
    target: IntArray
    log_automorphisms: float


@lru_cache(maxsize=16_384)
def order_plan(topology: Topology) -> OrderPlan:
    """Return a topology's plan; equal topologies share one."""
    roles, senders = _in_order(topology)
    receivers = _receivers(senders)
    placed, steps = _down_sets(senders)
    open_sets = [_without_receiver(subset, receivers) for subset in placed]
    table = np.array(steps, dtype=np.int64).reshape(-1, 3)
    return OrderPlan(
        roles,
        np.array(senders, dtype=np.int64),
        np.array(placed, dtype=np.int64),
        np.array(open_sets, dtype=np.int64),
        table[:, 0],
        table[:, 1],
        table[:, 2],
        math.log(_automorphisms(roles, senders)),
    )


def count_orders(topology: Topology) -> int:
    """Return the number of topological orders.

    Example:
        >>> count_orders(Topology(("Reasoner", "Reasoner", "Answerer"), ((0, 2), (1, 2))))
        2
    """
    plan = order_plan(topology)
    ways = [0] * len(plan.placed)
    ways[0] = 1
    for source, target in zip(plan.source.tolist(), plan.target.tolist(), strict=True):
        ways[target] += ways[source]  # sources ascend by size, so each is complete when it is read
    return ways[-1]


def count_automorphisms(topology: Topology) -> int:
    """Return the number of ways to map a topology to itself, roles and edges kept; the identity counts.

    Example:
        >>> count_automorphisms(Topology(("Reasoner", "Reasoner", "Answerer"), ((0, 2), (1, 2))))
        2
    """
    return _automorphisms(*_in_order(topology))


def count_sequences(topology: Topology) -> int:
    """Return in how many distinct sequences of roles and edges a topology can be decoded.

    Example:
        >>> count_sequences(Topology(("Planner", "Reasoner", "Answerer"), ((0, 2), (1, 2))))
        2
    """
    return count_orders(topology) // count_automorphisms(topology)


def members(subset: int) -> list[int]:
    """Return the nodes of a set, ascending.

    Example:
        >>> members(0b101)
        [0, 2]
    """
    return [node for node in range(subset.bit_length()) if subset >> node & 1]


def _in_order(topology: Topology) -> tuple[tuple[str, ...], list[int]]:
    """Return roles and sets of senders, nodes renumbered by a topological order."""
    order = list(topology.topological_order())
    place = {node: number for number, node in enumerate(order)}
    senders = [sum(1 << place[sender] for sender in topology.predecessors(node)) for node in order]
    return tuple(topology.roles[node] for node in order), senders


def _receivers(senders: list[int]) -> list[int]:
    receivers = [0] * len(senders)
    for node, subset in enumerate(senders):
        for sender in members(subset):
            receivers[sender] |= 1 << node
    return receivers


def _without_receiver(subset: int, receivers: list[int]) -> int:
    return sum(1 << node for node in members(subset) if not receivers[node] & subset)


def _down_sets(senders: list[int]) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Return the down-sets by size, and the steps (source, node, target) between their numbers."""
    placed, number, steps = [0], {0: 0}, []
    for source, subset in enumerate(placed):  # grows while it is read: breadth first, so by size
        for node, needed in enumerate(senders):
            if subset >> node & 1 or needed & ~subset:
                continue
            larger = subset | 1 << node
            if larger not in number:
                number[larger] = len(placed)
                placed.append(larger)
            steps.append((source, node, number[larger]))
    return placed, steps


def _automorphisms(roles: tuple[str, ...], senders: list[int]) -> int:
    """Count the automorphisms as a product of orbits.

    The orbit-stabiliser theorem, node after node: those that leave nodes 0 to i - 1 in place number as many as node i
    has images under them, times those that leave node i in place too. So no automorphism is listed, only looked for.
    """
    count = 1
    for node in range(len(roles)):
        fixed = list(range(node))
        count *= sum(_extends([*fixed, image], roles, senders) for image in range(node, len(roles)))
    return count


def _extends(image: list[int], roles: tuple[str, ...], senders: list[int]) -> bool:
    """Whether some automorphism maps nodes 0, 1, ... to the images given, which are distinct.

    Nodes are in topological order, so a mapping that keeps roles and maps every node's senders onto those of its image
    keeps all edges.
    """
    node = len(image) - 1
    if node >= 0:
        wanted = sum(1 << image[sender] for sender in members(senders[node]))
        if roles[image[node]] != roles[node] or senders[image[node]] != wanted:
            return False
    if len(image) == len(roles):
        return True
    return any(_extends([*image, other], roles, senders) for other in range(len(roles)) if other not in image)
