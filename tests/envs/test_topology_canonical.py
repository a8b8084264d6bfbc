"""The canonical form against networkx's isomorphism, on random and on awkwardly symmetric graphs."""

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.envs.random_topologies import are_isomorphic, dags, renumbered

from provgym.envs.topology import MAX_NODES, Topology
from provgym.envs.topology_canonical import canonical_order, node_depths


@given(dags(), st.data())
def test_numbering_changes_neither_key_nor_form(topology: Topology, data: st.DataObject) -> None:
    other = renumbered(topology, data.draw(st.permutations(range(topology.num_nodes))))
    assert other.key == topology.key
    assert other.canonical() == topology.canonical()


@given(dags(max_nodes=5, roles=("R", "V")), dags(max_nodes=5, roles=("R", "V")))
@settings(max_examples=200)
def test_keys_are_equal_exactly_for_isomorphic_graphs(one: Topology, other: Topology) -> None:
    assert (one.key == other.key) == are_isomorphic(one, other)


def test_all_small_graphs_of_one_role() -> None:
    """All 64 acyclic graphs over 4 numbered nodes in order: classes by key are classes by networkx, 31 of them.

    31 is the number of unlabelled acyclic graphs of 4 nodes, OEIS A003087.
    """
    pairs = [(i, j) for j in range(4) for i in range(j)]
    classes: dict[str, list[Topology]] = {}
    for chosen in range(64):
        edges = tuple(pair for bit, pair in enumerate(pairs) if chosen >> bit & 1)
        topology = Topology(("R",) * 4, edges)
        classes.setdefault(topology.key, []).append(topology)
    assert len(classes) == 31
    representatives = [members[0] for members in classes.values()]
    assert all(are_isomorphic(members[0], other) for members in classes.values() for other in members)
    assert not any(are_isomorphic(a, b) for a in representatives for b in representatives if a is not b)


@given(dags())
def test_the_form_is_the_same_graph_in_order(topology: Topology) -> None:
    form = topology.canonical()
    assert are_isomorphic(form, topology)
    assert form.canonical() == form
    assert form.key == topology.key
    assert all(sender < receiver for sender, receiver in form.edges)
    order = canonical_order(topology.roles, topology.edges)
    assert tuple(topology.roles[node] for node in order) == form.roles


def bipartite(pairs: list[tuple[int, int]], size: int) -> Topology:
    """``size`` Planners that send to ``size`` Verifiers."""
    return Topology(("Planner",) * size + ("Verifier",) * size, tuple((a, size + b) for a, b in pairs))


def test_graphs_that_colour_refinement_alone_confuses() -> None:
    """One ring of twelve and two rings of six, edges from even to odd: every node looks alike in both."""
    whole = bipartite([(k, k) for k in range(6)] + [(k, (k + 1) % 6) for k in range(6)], 6)
    halves = bipartite(
        [(k, k) for k in range(6)] + [(k, 3 * (k // 3) + (k + 1) % 3) for k in range(6)],
        6,
    )
    assert nx.weisfeiler_lehman_graph_hash(
        whole.to_networkx().to_undirected(), node_attr="role"
    ) == nx.weisfeiler_lehman_graph_hash(halves.to_networkx().to_undirected(), node_attr="role")
    assert not are_isomorphic(whole, halves)
    assert whole.key != halves.key


@given(st.permutations(range(12)))
@settings(max_examples=30)
def test_rings_keep_their_key(numbers: list[int]) -> None:
    whole = bipartite([(k, k) for k in range(6)] + [(k, (k + 1) % 6) for k in range(6)], 6)
    halves = bipartite([(k, k) for k in range(6)] + [(k, 3 * (k // 3) + (k + 1) % 3) for k in range(6)], 6)
    assert renumbered(whole, numbers).key == whole.key
    assert renumbered(halves, numbers).key == halves.key


@pytest.mark.parametrize("length", [1, 2, 3])
def test_large_symmetric_teams_are_named_without_trying_all_orders(length: int) -> None:
    """As many equal chains into one Answerer as 64 nodes hold: up to 63! numberings, one key, bounded work."""
    chains = (MAX_NODES - 1) // length
    roles = ("Planner", "Reasoner", "Verifier")[:length] * chains + ("Answerer",)
    inside = [(c * length + k, c * length + k + 1) for c in range(chains) for k in range(length - 1)]
    ends = [(c * length + length - 1, chains * length) for c in range(chains)]
    team = Topology(roles, tuple(inside + ends))
    backwards = renumbered(team, range(team.num_nodes - 1, -1, -1))
    assert backwards.key == team.key
    assert team.canonical().roles[-1] == "Answerer"


def test_depths_by_hand() -> None:
    assert node_depths(4, [(0, 1), (1, 2), (0, 2)]) == [0, 1, 2, 0]
    assert node_depths(4, [(0, 1), (1, 2), (2, 1), (2, 3)]) == [0, -1, -1, -1]
    assert node_depths(0, []) == []
