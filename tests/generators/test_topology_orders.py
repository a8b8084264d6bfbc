"""Orders, automorphisms and sequences, against networkx and by hand."""

from __future__ import annotations

import itertools
import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.generators.kgat_worlds import FOUR, rules_of, sequences_of

from provgym.envs.roles import ANSWERER
from provgym.envs.topology import Topology
from provgym.envs.topology_rules import enumerate_topologies
from provgym.generators.topology_orders import (
    count_automorphisms,
    count_orders,
    count_sequences,
    members,
    order_plan,
)


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 6) -> Topology:
    """Any acyclic graph, its nodes numbered in any order."""
    size = draw(st.integers(1, max_nodes))
    roles = draw(st.lists(st.sampled_from(["Planner", "Reasoner", ANSWERER]), min_size=size, max_size=size))
    pairs = list(itertools.combinations(draw(st.permutations(range(size))), 2))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return Topology(tuple(roles), tuple(chosen))


@settings(max_examples=50)
@given(graphs())
def test_orders_are_networkx_s(topology: Topology) -> None:
    assert count_orders(topology) == sum(1 for _ in nx.all_topological_sorts(topology.to_networkx()))


@settings(max_examples=50)
@given(graphs())
def test_automorphisms_are_networkx_s(topology: Topology) -> None:
    graph = topology.to_networkx()
    matcher = nx.algorithms.isomorphism.DiGraphMatcher(graph, graph, lambda a, b: a["role"] == b["role"])
    assert count_automorphisms(topology) == sum(1 for _ in matcher.isomorphisms_iter())


@settings(max_examples=50)
@given(graphs(max_nodes=5))
def test_sequences_are_the_distinct_ones_among_the_orders(topology: Topology) -> None:
    assert count_sequences(topology) == len(sequences_of(topology))


@settings(max_examples=50)
@given(graphs())
def test_numbering_changes_nothing(topology: Topology) -> None:
    order = np.random.default_rng(topology.num_edges).permutation(topology.num_nodes).tolist()
    place = {node: number for number, node in enumerate(order)}
    other = Topology(
        tuple(topology.roles[node] for node in order), tuple((place[s], place[r]) for s, r in topology.edges)
    )
    assert count_sequences(other) == count_sequences(topology)
    assert len(order_plan(other).placed) == len(order_plan(topology).placed)


@settings(max_examples=50)
@given(graphs())
def test_down_sets_are_those_that_hold_every_sender(topology: Topology) -> None:
    plan = order_plan(topology)
    size = topology.num_nodes
    senders = plan.senders.tolist()
    expected = {subset for subset in range(2**size) if all(senders[node] & ~subset == 0 for node in members(subset))}
    placed = plan.placed.tolist()
    assert set(placed) == expected
    assert len(placed) == len(expected)
    assert [subset.bit_count() for subset in placed] == sorted(subset.bit_count() for subset in expected)
    for subset, open_ in zip(placed, plan.open.tolist(), strict=True):
        heard = set().union(*(members(senders[node]) for node in members(subset)))
        assert members(open_) == [node for node in members(subset) if node not in heard]
    for source, node, target in zip(plan.source, plan.node, plan.target, strict=True):
        assert placed[source] | 1 << int(node) == placed[target] != placed[source]
    assert sorted(plan.source.tolist()) == plan.source.tolist()


def test_three_roles_beside_the_answerer_have_567_sequences_and_379_graphs_of_four_nodes() -> None:
    """Of exactly four nodes and without a limit on in-degree: 21 edge patterns times 27 choices of roles."""
    found = [graph for graph in enumerate_topologies(rules_of(FOUR, 4, None)) if graph.num_nodes == 4]
    assert len(found) == 379
    assert sum(count_sequences(graph) for graph in found) == 567


@pytest.mark.parametrize(
    ("roles", "edges", "orders", "automorphisms"),
    [
        ((ANSWERER,), (), 1, 1),
        (("Reasoner",) * 5 + (ANSWERER,), tuple((node, 5) for node in range(5)), math.factorial(5), math.factorial(5)),
        (("Planner", "Reasoner", "Reasoner", ANSWERER), ((0, 1), (0, 2), (1, 3), (2, 3)), 2, 2),
        # Two chains of two into one Answerer: C(4, 2) orders; the chains may be swapped.
        (("Reasoner",) * 4 + (ANSWERER,), ((0, 1), (2, 3), (1, 4), (3, 4)), 6, 2),
    ],
)
def test_by_hand(roles: tuple[str, ...], edges: tuple[tuple[int, int], ...], orders: int, automorphisms: int) -> None:
    topology = Topology(roles, edges)
    assert (count_orders(topology), count_automorphisms(topology)) == (orders, automorphisms)
    assert order_plan(topology).log_automorphisms == pytest.approx(math.log(automorphisms))


def test_the_largest_star_is_counted_at_once() -> None:
    star = Topology(("Reasoner",) * 9 + (ANSWERER,), tuple((node, 9) for node in range(9)))
    assert count_sequences(star) == 1
    assert len(order_plan(star).placed) == 2**9 + 1
