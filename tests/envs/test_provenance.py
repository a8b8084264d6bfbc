"""Evidence graphs: what counts as a path, what as a source, and how nodes are joined."""

from collections.abc import Callable, Sequence

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provgym.envs.graph_arrays import MAX_NEIGHBOURS
from provgym.envs.provenance import Atom, Claim, EvidenceGraph, Instance, NodeKind, Route, Stance

InstanceOf = Callable[..., Instance]
CONDITIONS: list[tuple[str, list[int], list[int], int, int]] = [
    # name, routes of each supporting source, of each refuting source, N_path, N_prov
    ("C1", [1], [1], 2, 2),
    ("C2", [5], [1], 6, 2),
    ("C3", [1] * 5, [1], 6, 6),
    ("C4", [1], [1] * 5, 6, 6),
    ("C2R", [1], [5], 6, 2),
    ("1S5P", [5], [], 5, 1),
    ("5S5P", [1] * 5, [], 5, 5),
    ("1S1P", [1], [], 1, 1),
]


@pytest.mark.parametrize(("name", "supporting", "refuting", "paths", "sources"), CONDITIONS)
def test_paths_and_sources_by_hand(
    instance_of: InstanceOf, name: str, supporting: list[int], refuting: list[int], paths: int, sources: int
) -> None:
    graph = instance_of(supporting, refuting).graph
    assert (graph.n_path(), graph.n_prov()) == (paths, sources)
    assert graph.source_counts() == (len(supporting), len(refuting))
    assert graph.num_nodes == 1 + 2 * paths + sources


def test_source_count_is_all_that_differs_between_1s5p_and_5s5p(instance_of: InstanceOf) -> None:
    one, five = instance_of([5], []).graph, instance_of([1] * 5, []).graph
    assert five.num_nodes - one.num_nodes == 4  # four more source nodes, nothing else
    kinds = [np.bincount(graph.node_kind, minlength=4).tolist() for graph in (one, five)]
    assert kinds == [[1, 5, 5, 1], [1, 5, 5, 5]]
    own = len(one.claims) + 2 * len(one.routes)
    shared = [{(a, int(b)) for a in range(own) for b in g.neighbours(a) if b < own} for g in (one, five)]
    assert shared[0] == shared[1]


def test_edges_of_a_small_graph_by_hand(instance_of: InstanceOf) -> None:
    # 0 claim; 1, 2, 3 observations (two routes of one atom, one of another); 4, 5, 6 representations; 7, 8 sources
    graph = instance_of([2], [1]).graph
    expected = {0: [1, 2, 3], 1: [0, 2, 3, 4], 2: [0, 1, 3, 5], 3: [0, 1, 2, 6]}
    expected |= {4: [1, 7], 5: [2, 7], 6: [3, 8], 7: [4, 5], 8: [6]}
    assert {node: graph.neighbours(node).tolist() for node in range(9)} == expected
    assert [graph.node_id(n) for n in (0, 1, 6, 8)] == [
        "claim:c-claim",
        "observation:c-r0",
        "representation:c-r2",
        "source:c-source1",
    ]


def test_claim_nodes_by_hand(merged_instance: Instance) -> None:
    own = merged_instance.graph.claim_nodes(1)
    assert own.nodes.tolist() == [1, 4, 5, 8, 9, 10, 12]
    assert own.kinds.tolist() == [0, 1, 1, 2, 2, 3, 3]
    assert own.places.tolist() == [0, 1, 2, 1, 2, 1, 2]
    assert (own.num_routes, own.num_sources) == (2, 2)
    assert merged_instance.graph.claim_routes(1).tolist() == [2, 3]
    assert merged_instance.graph.routes_of_claim == ((0, 1), (2, 3))


def test_a_graph_without_routes(bare_instance: Instance) -> None:
    graph = bare_instance.graph
    assert graph.num_nodes == 1
    assert graph.neighbours(0).tolist() == []
    assert (graph.n_path(), graph.n_prov(), graph.source_counts()) == (0, 0, (0, 0))
    own = graph.claim_nodes(0)
    assert (own.num_routes, own.num_sources) == (0, 0)


@pytest.mark.parametrize(("routes", "is_ring"), [(63, False), (64, True), (300, True)])
def test_no_node_has_more_than_64_neighbours(routes: int, is_ring: bool) -> None:
    claim = Claim("c", "It holds.")
    atoms = tuple(Atom(f"a{k}", f"s{k}", Stance.SUPPORT, "It held.") for k in range(routes))
    graph = EvidenceGraph((claim,), atoms, tuple(Route(f"r{k}", "c", f"a{k}", "result") for k in range(routes)))
    degrees = np.diff(graph.indptr)
    assert degrees.max() == min(routes, MAX_NEIGHBOURS) + (0 if is_ring else 1)
    assert degrees[0] == min(routes, MAX_NEIGHBOURS)
    observations = degrees[1 : routes + 1]
    # In a ring: two observations, the representation, and for some the claim.
    assert set(observations.tolist()) <= ({3, 4} if is_ring else {routes + 1})
    assert nx.is_connected(graph.to_networkx())


def test_networkx_round_trip(merged_instance: Instance, instance_of: InstanceOf) -> None:
    for graph in (merged_instance.graph, instance_of([3, 1], [2]).graph):
        back = EvidenceGraph.from_networkx(graph.to_networkx())
        assert (back.claims, back.atoms, back.routes) == (graph.claims, graph.atoms, graph.routes)
        assert np.array_equal(back.indices, graph.indices)


def test_networkx_edges_must_follow_from_the_routes(instance_of: InstanceOf) -> None:
    graph = instance_of([1], [1]).graph.to_networkx()
    graph.add_edge("claim:c-claim", "source:c-source0")
    with pytest.raises(ValueError, match="edges differ"):
        EvidenceGraph.from_networkx(graph)
    graph = instance_of([1], [1]).graph.to_networkx()
    del graph.nodes["observation:c-r0"]["stance"]
    with pytest.raises(ValueError, match=r"'observation:c-r0' lacks the attribute 'stance'"):
        EvidenceGraph.from_networkx(graph)


def routes_for(atoms: Sequence[Atom]) -> tuple[Route, ...]:
    return tuple(Route(f"r{k}", "c", atom.atom_id, "result") for k, atom in enumerate(atoms))


ATOM = Atom("a", "s", Stance.SUPPORT, "It held.")
OTHER = Atom("b", "s", Stance.REFUTE, "It failed.")
CLAIM = Claim("c", "It holds.")


@pytest.mark.parametrize(
    ("claims", "atoms", "routes", "message"),
    [
        ((CLAIM, CLAIM), (), (), "claim id 'c' appears twice"),
        ((CLAIM,), (ATOM, ATOM), (), "atom id 'a' appears twice"),
        ((CLAIM,), (ATOM,), (routes_for([ATOM]) * 2), "route id 'r0' appears twice"),
        ((CLAIM,), (ATOM,), (Route("r", "x", "a", "result"),), "route 'r' names claim 'x'"),
        ((CLAIM,), (ATOM,), (Route("r", "c", "x", "result"),), "route 'r' names atom 'x'"),
        ((CLAIM,), (ATOM, OTHER), routes_for([ATOM, OTHER]), "source 's' both supports and refutes claim 'c'"),
        ((CLAIM,), (ATOM,), routes_for([ATOM] * 65), "source 's' has 65 routes"),
    ],
)
def test_impossible_graphs_are_refused_by_name(
    claims: tuple[Claim, ...], atoms: tuple[Atom, ...], routes: tuple[Route, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        EvidenceGraph(claims, atoms, routes)


def test_arrays_are_read_only(instance_of: InstanceOf) -> None:
    graph = instance_of([1], [1]).graph
    for array in (graph.node_kind, graph.node_atom, graph.indices, graph.neighbours(0), graph.claim_nodes(0).nodes):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_merge_joins_sources_with_one_id(instance_of: InstanceOf, merged_instance: Instance) -> None:
    parts = [instance_of([2], [1], name="x").graph, instance_of([1], [1], name="y").graph]
    merged = EvidenceGraph.merge(parts)
    assert merged.num_nodes == sum(part.num_nodes for part in parts)
    assert [merged.source_counts(c) for c in (0, 1)] == [(1, 1), (1, 1)]
    both = merged_instance.graph
    node = next(n for n in range(both.num_nodes) if both.node_id(n) == "source:both")
    assert both.neighbours(node).tolist() == [6, 8]  # a representation of each claim


counts = st.lists(st.integers(1, 5), max_size=5)


@settings(max_examples=60, deadline=None)
@given(counts, counts, st.randoms(use_true_random=False))
def test_order_of_atoms_and_routes_does_not_matter(supporting: list[int], refuting: list[int], random: object) -> None:
    """Graph code: permute the records, get the same counts, degrees and kinds of neighbours."""
    atoms: list[Atom] = []
    routes: list[Route] = []
    for stance, side in ((Stance.SUPPORT, supporting), (Stance.REFUTE, refuting)):
        for count in side:
            atoms.append(Atom(f"a{len(atoms)}", f"s{len(atoms)}", stance, "text"))
            routes += [Route(f"r{len(routes) + k}", "c", atoms[-1].atom_id, "table") for k in range(count)]
    graph = EvidenceGraph((CLAIM,), tuple(atoms), tuple(routes))
    random.shuffle(atoms)  # type: ignore[attr-defined]
    random.shuffle(routes)  # type: ignore[attr-defined]
    shuffled = EvidenceGraph((CLAIM,), tuple(atoms), tuple(routes))
    for one in (graph, shuffled):
        assert one.n_path() == sum(supporting) + sum(refuting)
        assert one.n_prov() == len(supporting) + len(refuting)
        assert one.source_counts() == (len(supporting), len(refuting))
    assert edges_by_id(graph) == edges_by_id(shuffled)


def edges_by_id(graph: EvidenceGraph) -> set[frozenset[str]]:
    return {
        frozenset((graph.node_id(node), graph.node_id(int(other))))
        for node in range(graph.num_nodes)
        for other in graph.neighbours(node)
    }


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), max_size=40))
def test_arrays_agree_with_a_plain_reading_of_the_records(pairs: list[tuple[int, int]]) -> None:
    """The vectorised tables against loops over the records, for several claims that share sources."""
    claims = tuple(Claim(f"c{k}", "text") for k in range(4))
    atoms = tuple(Atom(f"a{k}", f"s{k // 2}", Stance.SUPPORT, "text") for k in range(8))
    routes = tuple(Route(f"r{k}", f"c{c}", f"a{a}", "result") for k, (c, a) in enumerate(pairs))
    graph = EvidenceGraph(claims, atoms, routes)
    edges: set[frozenset[str]] = set()
    for route in routes:
        source = atoms[int(route.atom_id[1:])].source_id
        observation, representation = f"observation:{route.route_id}", f"representation:{route.route_id}"
        edges |= {frozenset((f"claim:{route.claim_id}", observation)), frozenset((observation, representation))}
        edges.add(frozenset((representation, f"source:{source}")))
        for other in routes:
            if other.claim_id == route.claim_id and other is not route:
                edges.add(frozenset((observation, f"observation:{other.route_id}")))
    assert edges_by_id(graph) == edges
    for number, claim in enumerate(claims):
        rows = [k for k, route in enumerate(routes) if route.claim_id == claim.claim_id]
        assert graph.claim_routes(number).tolist() == rows
        assert graph.n_prov(number) == len({routes[k].atom_id for k in rows})
        assert graph.source_counts(number) == (len({pairs[k][1] // 2 for k in rows}), 0)
        own = graph.claim_nodes(number)
        assert own.kinds.tolist() == graph.node_kind[own.nodes].tolist()
        sources = own.nodes[own.kinds == NodeKind.SOURCE]
        for node, place in zip(own.nodes.tolist(), own.places.tolist(), strict=True):
            expected = -1 if place == 0 else int(graph.node_source[sources[place - 1]])
            assert int(graph.node_source[node]) == expected
