"""Random feasible topologies: valid, uniform, and by the stream that was passed in alone."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.generators.kgat_worlds import FOUR, THREE, TWO, rules_of

from provgym.envs.roles import ANSWERER
from provgym.envs.topology_rules import TopologyRules, enumerate_topologies
from provgym.generators.topology_orders import count_sequences
from provgym.generators.topology_sampler import UniformOver, num_sequences, random_topology


@pytest.mark.parametrize(
    "rules", [rules_of(FOUR, 4, None), rules_of(FOUR, 4, 2), rules_of(THREE, 5, 2), rules_of(TWO, 5, 1)]
)
def test_sequences_are_counted_without_listing_them(rules: TopologyRules) -> None:
    listed = Counter[int]()
    for graph in enumerate_topologies(rules):
        listed[graph.num_nodes] += count_sequences(graph)
    assert {size: num_sequences(rules, size) for size in range(1, rules.max_nodes + 1)} == dict(listed)


@pytest.mark.parametrize(
    ("rules", "over"),
    [
        (rules_of(TWO, 4, 2), "graphs"),
        (rules_of(THREE, 3, 3), "graphs"),
        (rules_of(TWO, 5, 3), "sizes"),
        (rules_of(THREE, 3, None), "sizes"),
    ],
)
def test_every_graph_is_as_likely_as_promised(rules: TopologyRules, over: UniformOver) -> None:
    graphs = list(enumerate_topologies(rules))
    per_size = Counter(graph.num_nodes for graph in graphs)
    expected = {
        graph.key: 1 / len(graphs) if over == "graphs" else 1 / len(per_size) / per_size[graph.num_nodes]
        for graph in graphs
    }
    rng = np.random.default_rng(7)
    count = 1200
    drawn = Counter(random_topology(rules, rng, uniform_over=over).key for _ in range(count))
    assert set(drawn) <= set(expected)
    keys = sorted(expected)
    result = stats.chisquare([drawn[key] for key in keys], [count * expected[key] for key in keys])
    assert result.pvalue > 1e-3


@settings(max_examples=30)
@given(
    st.integers(0, 2**32),
    st.integers(1, 7),
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from([TWO, THREE, FOUR, (ANSWERER,)]),
)
def test_whatever_the_rules_the_draw_is_valid(
    seed: int, max_nodes: int, max_in_degree: int | None, roles: tuple[str, ...]
) -> None:
    rules = rules_of(roles, max_nodes, max_in_degree)
    topology = random_topology(rules, np.random.default_rng(seed))
    rules.check(topology)
    assert topology == topology.canonical()
    assert topology == random_topology(rules, np.random.default_rng(seed))


def test_a_size_can_be_asked_for() -> None:
    rng = np.random.default_rng(1)
    rules = rules_of(TWO, 4, 3)
    assert {random_topology(rules, rng, num_nodes=3).num_nodes for _ in range(20)} == {3}
    with pytest.raises(ValueError, match=r"num_nodes=5 has no valid topology .* sizes that have one: \[1, 2, 3, 4\]"):
        random_topology(rules, rng, num_nodes=5)


def test_without_another_role_there_is_one_topology() -> None:
    rng = np.random.default_rng(1)
    assert random_topology(rules_of((ANSWERER,), 6, 3), rng).roles == (ANSWERER,)
    assert random_topology(rules_of(FOUR, 1, 3), rng).roles == (ANSWERER,)


def test_global_generators_are_left_alone() -> None:
    """Fault kind "global RNG"."""
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the global generator is what the test is about
    before = (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]  # noqa: NPY002
    random_topology(rules_of(FOUR, 6, 3), np.random.default_rng(3))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]  # noqa: NPY002
