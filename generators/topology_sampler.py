"""Random feasible topologies, exactly uniform over distinct graphs, without listing them.

A decode sequence (roles, and each node's set of senders) of a given length is drawn uniformly: the number of ways to
complete a prefix depends only on how many nodes are placed and open, so it follows from a small table. A graph has
several sequences, some more than others, so what was drawn is kept with probability 1 / (its number of sequences) and
drawn again otherwise. That makes all graphs equally likely.

Source: acceptance and rejection, von Neumann 1951; the table is the counting twin of
:mod:`provgym.generators.kgat_constraints`.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb
from typing import Literal, NamedTuple

import numpy as np

from provgym.envs.roles import ANSWERER
from provgym.envs.topology import Topology
from provgym.envs.topology_rules import TopologyRules
from provgym.generators.topology_orders import count_sequences

UniformOver = Literal["sizes", "graphs"]


def random_topology(
    rules: TopologyRules, rng: np.random.Generator, *, uniform_over: UniformOver = "sizes", num_nodes: int | None = None
) -> Topology:
    """Draw a valid topology.

    Args:
        rules: What is valid.
        rng: Random numbers.
        uniform_over: ``sizes``: every number of nodes that has a valid graph is equally likely, and so is every
            distinct graph of that number. ``graphs``: every distinct graph is equally likely, whatever its size; nearly
            all of them have N_max nodes (of 407 graphs of up to 4 nodes with three roles beside the Answerer and
            in-degree 3, 379 have 4).
        num_nodes: Draws only graphs of this size, all equally likely.

    Returns:
        A topology in canonical form.

    Raises:
        ValueError: If there is no valid graph of that size.
    """
    sizes = [size for size in range(1, rules.max_nodes + 1) if num_sequences(rules, size)]
    if num_nodes is not None:
        if num_nodes not in sizes:
            raise ValueError(f"num_nodes={num_nodes} has no valid topology under {rules}; sizes that have one: {sizes}")
        sizes = [num_nodes]
    elif uniform_over == "sizes":
        sizes = [sizes[int(rng.integers(len(sizes)))]]
    counts = np.array([num_sequences(rules, size) for size in sizes], dtype=np.float64)
    while True:
        size = sizes[int(rng.choice(len(sizes), p=counts / counts.sum()))]
        topology = _draw_sequence(rules, size, rng)
        if rng.random() * count_sequences(topology) < 1.0:
            return topology.canonical()


def num_sequences(rules: TopologyRules, num_nodes: int) -> int:
    """Return the number of decode sequences of valid topologies with exactly ``num_nodes`` nodes.

    Example:
        >>> num_sequences(TopologyRules(("Planner", "Reasoner", "Verifier", "Answerer"), 4, None), 4)
        567
    """
    roles: int = len(rules.member_roles) ** (num_nodes - 1)
    return roles * _completions(num_nodes, int(min(rules.in_degree_limit, num_nodes)), 0, 0)


class _Choice(NamedTuple):
    """How the next node may get its messages: from how many open nodes, and from how many others."""

    from_open: int
    from_others: int
    ways: int  # of all completions of the prefix, those that begin with this choice


@lru_cache(maxsize=4096)
def _choices(num_nodes: int, limit: int, placed: int, num_open: int) -> tuple[_Choice, ...]:
    """Return the choices at a prefix that can be completed to ``num_nodes`` nodes; roles are not counted."""
    others = placed - num_open
    is_last = placed == num_nodes - 1  # the Answerer, which hears every open node
    found = []
    for from_open in range(num_open if is_last else 0, min(num_open, limit) + 1):
        rest = 1 if is_last else _completions(num_nodes, limit, placed + 1, num_open - from_open + 1)
        for from_others in range(min(others, limit - from_open) + 1):
            ways = comb(num_open, from_open) * comb(others, from_others) * rest
            if ways:
                found.append(_Choice(from_open, from_others, ways))
    return tuple(found)


def _completions(num_nodes: int, limit: int, placed: int, num_open: int) -> int:
    return sum(choice.ways for choice in _choices(num_nodes, limit, placed, num_open))


def _draw_sequence(rules: TopologyRules, num_nodes: int, rng: np.random.Generator) -> Topology:
    """Draw one of the sequences of ``num_nodes`` nodes, all equally likely; there must be one."""
    limit = int(min(rules.in_degree_limit, num_nodes))
    edges: list[tuple[int, int]] = []
    open_nodes: list[int] = []
    for node in range(num_nodes):
        choices = _choices(num_nodes, limit, node, len(open_nodes))
        ways = np.array([choice.ways for choice in choices], dtype=np.float64)
        choice = choices[int(rng.choice(len(choices), p=ways / ways.sum()))]
        others = [earlier for earlier in range(node) if earlier not in open_nodes]
        heard = [open_nodes[i] for i in rng.permutation(len(open_nodes))[: choice.from_open]]
        open_nodes = [earlier for earlier in open_nodes if earlier not in heard] + [node]
        heard += [others[i] for i in rng.permutation(len(others))[: choice.from_others]]
        edges += [(sender, node) for sender in heard]
    members = rules.member_roles
    roles = [members[int(rng.integers(len(members)))] for _ in range(num_nodes - 1)]
    return Topology((*roles, ANSWERER), tuple(edges))
