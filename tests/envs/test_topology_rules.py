"""What a complete team needs, and all complete teams, against brute force over numbered graphs."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.envs.random_topologies import are_isomorphic, dags

from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.topology import MAX_NODES, Topology
from provgym.envs.topology_rules import TopologyError, TopologyFault, TopologyRules, enumerate_topologies

RULES = TopologyRules(DEFAULT_ROLES.names, max_nodes=4, max_in_degree=2)
A, P, R, V = "Answerer", "Planner", "Reasoner", "Verifier"


def brute_force(rules: TopologyRules) -> dict[str, Topology]:
    """Every valid topology, by trying all roles and all sets of edges from lower to higher numbers."""
    found: dict[str, Topology] = {}
    for num_nodes in range(1, rules.max_nodes + 1):
        pairs = [(i, j) for j in range(num_nodes) for i in range(j)]
        for roles in product(rules.role_names, repeat=num_nodes):
            for chosen in range(1 << len(pairs)):
                topology = Topology(roles, tuple(pair for bit, pair in enumerate(pairs) if chosen >> bit & 1))
                if rules.is_valid(topology):
                    found.setdefault(topology.key, topology)
    return found


@pytest.mark.parametrize(
    ("roles", "edges", "fault", "message"),
    [
        ((R, R, R, R, A), ((0, 4), (1, 4), (2, 4), (3, 4)), "too_many_nodes", "has 5 nodes, at most max_nodes=4"),
        (("Critic", A), ((0, 1),), "unknown_role", "node 0 has role 'Critic', which is unknown"),
        ((R, V), ((0, 1),), "no_answerer", "no node is the Answerer"),
        ((R, A, A), ((0, 1), (0, 2)), "second_answerer", r"nodes \[1, 2\] are all Answerer"),
        ((A, R), ((0, 1),), "answerer_not_sink", r"the Answerer \(0\) sends to \[1\]"),
        ((A, R), (), "dead_end", r"Reasoner \(1\) sends to nobody"),
        ((P, R, V, A), ((0, 1), (0, 2), (1, 3)), "dead_end", r"Verifier \(2\) sends to nobody"),
        ((P, R, V, A), ((0, 3), (1, 3), (2, 3)), "in_degree", r"Answerer \(3\) gets 3 messages"),
        ((P, R, V, A), ((0, 2), (1, 2), (2, 3)), None, ""),
        ((A,), (), None, ""),
    ],
)
def test_faults_by_name(roles: tuple[str, ...], edges: tuple[tuple[int, int], ...], fault: str, message: str) -> None:
    """Fault "cyclic graph", its neighbours: unknown agent, no judge, two judges, a node nobody hears."""
    topology = Topology(roles, edges)
    if fault is None:
        RULES.check(topology)
        assert RULES.is_valid(topology)
        return
    with pytest.raises(TopologyError, match=message) as caught:
        RULES.check(topology)
    assert caught.value.fault is TopologyFault(fault)
    assert not RULES.is_valid(topology)


def test_no_limit_on_in_degree() -> None:
    debate = Topology((R,) * 5 + (A,), tuple((i, j) for j in range(6) for i in range(j)))
    TopologyRules((R, A), max_nodes=6, max_in_degree=None).check(debate)
    with pytest.raises(TopologyError, match="Reasoner \\(4\\) gets 4 messages"):
        TopologyRules((R, A), max_nodes=6).check(debate)


@given(dags(max_nodes=5, roles=(A, R, V)))
def test_checks_do_not_depend_on_numbering(topology: Topology) -> None:
    assert RULES.is_valid(topology) == RULES.is_valid(topology.canonical())


@pytest.mark.parametrize(
    ("names", "max_nodes", "max_in_degree", "message"),
    [
        ((R, V), 4, 3, "must hold 'Answerer'"),
        ((A, R, R), 4, 3, "must be distinct"),
        ((A, 'x"'), 4, 3, "role name"),
        ((A,), 0, 3, r"max_nodes=0 must lie in \[1, 64\]"),
        ((A,), MAX_NODES + 1, 3, "max_nodes=65"),
        ((A,), 4, 0, "max_in_degree=0 must be >= 1, or None"),
    ],
)
def test_impossible_rules_are_named(
    names: tuple[str, ...], max_nodes: int, max_in_degree: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        TopologyRules(names, max_nodes, max_in_degree)


@pytest.mark.parametrize(
    ("names", "max_nodes", "max_in_degree"),
    [
        ((A,), 3, 3),
        ((R, A), 1, 3),
        ((R, A), 4, 1),
        ((R, A), 4, 2),
        ((R, A), 4, None),
        ((R, V, A), 3, 2),
        ((R, V, P, A), 3, None),
    ],
)
def test_enumeration_is_brute_force_without_repeats(
    names: tuple[str, ...], max_nodes: int, max_in_degree: int | None
) -> None:
    rules = TopologyRules(names, max_nodes, max_in_degree)
    listed = list(enumerate_topologies(rules))
    expected = brute_force(rules)
    assert [topology.key for topology in listed] == list(dict.fromkeys(topology.key for topology in listed))
    assert {topology.key for topology in listed} == set(expected)
    assert all(rules.is_valid(topology) and topology == topology.canonical() for topology in listed)
    assert [topology.num_nodes for topology in listed] == sorted(topology.num_nodes for topology in listed)
    assert all(are_isomorphic(topology, expected[topology.key]) for topology in listed)


def test_sizes_with_three_roles_beside_the_answerer() -> None:
    """379 is the number of graphs of exactly four nodes; with all smaller ones there are 407."""
    sizes = Counter(t.num_nodes for t in enumerate_topologies(TopologyRules(DEFAULT_ROLES.names, 4, None)))
    assert sizes == {1: 1, 2: 3, 3: 24, 4: 379}
    # Four nodes give the Answerer at most three messages: the default in-degree limits nothing yet.
    assert sizes == Counter(t.num_nodes for t in enumerate_topologies(TopologyRules(DEFAULT_ROLES.names, 4)))


@pytest.mark.slow
def test_sizes_of_five_nodes() -> None:
    sizes = Counter(t.num_nodes for t in enumerate_topologies(TopologyRules(DEFAULT_ROLES.names, 5, None)))
    assert sizes[5] == 11_961


def test_a_single_node_is_the_only_topology_of_one() -> None:
    """Bad input "N_max 1"."""
    assert [t.key for t in enumerate_topologies(TopologyRules(DEFAULT_ROLES.names, 1))] == ["Answerer:"]


@given(st.integers(1, 5), st.integers(1, 3))
def test_absorbable_is_what_a_tree_can_take(num_left: int, limit: int) -> None:
    """Independent route: let each further node take ``limit`` open ones and stay open, the last one none."""
    rules = TopologyRules((R, A), 6, limit)
    most = max(count for count in range(1, 30) if _can_close(count, num_left, limit))
    assert rules.absorbable(num_left) == most
    assert rules.absorbable(0) == 0.0
    assert TopologyRules((R, A), 6, None).absorbable(num_left) == float("inf")
    assert TopologyRules((R, A), 6, None).absorbable(0) == 0.0


def _can_close(num_open: int, num_left: int, limit: int) -> bool:
    if num_left < 1:
        return False
    if num_open <= limit:
        return True
    return any(_can_close(num_open - taken + 1, num_left - 1, limit) for taken in range(limit + 1))
