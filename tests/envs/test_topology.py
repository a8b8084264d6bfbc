"""Topologies: what is stored, what is refused, and every form in and out."""

import json
import pickle

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.envs.random_topologies import dags

from provgym.envs.topology import MAX_NODES, Topology
from provgym.envs.topology_faults import TopologyError, TopologyFault

DIAMOND = Topology(("Planner", "Reasoner", "Verifier", "Answerer"), ((2, 3), (0, 1), (0, 2), (1, 3)))


def fault_of(roles: object, edges: object) -> tuple[TopologyFault, str]:
    with pytest.raises(TopologyError) as caught:
        Topology(roles, edges)  # type: ignore[arg-type]
    return caught.value.fault, str(caught.value)


def test_a_diamond_by_hand() -> None:
    assert DIAMOND.edges == ((0, 1), (0, 2), (1, 3), (2, 3))
    assert (DIAMOND.num_nodes, DIAMOND.num_edges) == (4, 4)
    assert [DIAMOND.predecessors(node) for node in range(4)] == [(), (0,), (0,), (1, 2)]
    assert [DIAMOND.successors(node) for node in range(4)] == [(1, 2), (3,), (3,), ()]
    assert [DIAMOND.in_degree(node) for node in range(4)] == [0, 1, 1, 2]
    assert DIAMOND.sinks == (3,)
    assert DIAMOND.topological_order() == (0, 1, 2, 3)
    assert DIAMOND == Topology(DIAMOND.roles, tuple(reversed(DIAMOND.edges)))
    assert hash(DIAMOND) == hash(Topology(DIAMOND.roles, list(DIAMOND.edges)))  # type: ignore[arg-type]


def test_a_topology_can_not_be_changed() -> None:
    with pytest.raises(AttributeError):
        DIAMOND.roles = ()  # type: ignore[misc]


@given(dags())
def test_the_order_runs_senders_first(topology: Topology) -> None:
    order = topology.topological_order()
    place = {node: number for number, node in enumerate(order)}
    assert sorted(order) == list(range(topology.num_nodes))
    assert all(place[sender] < place[receiver] for sender, receiver in topology.edges)
    assert list(order) == list(nx.lexicographical_topological_sort(topology.to_networkx()))


@pytest.mark.parametrize(
    ("roles", "edges", "fault", "message"),
    [
        ((), (), "empty", "at least one node"),
        (("A",), ((0, 0),), "cycle", r"A (0) -> A (0)"),
        (("A", "B"), ((0, 1), (1, 0)), "cycle", "-> "),
        (("A", "B"), ((0, 1), (0, 1)), "bad_edge", "edge (0, 1) stands twice"),
        (("A", "B"), ((0, 2),), "bad_edge", "edge (0, 2) names a node outside 0 to 1"),
        (("A", "B"), ((-1, 1),), "bad_edge", "edge (-1, 1) names a node outside 0 to 1"),
        (("A", "B"), ((0, 1, 2),), "bad_edge", "is no pair of node numbers"),
        (("A", "B"), ((0.0, 1),), "bad_edge", "is no pair of node numbers"),
        (("A", "B"), ((False, True),), "bad_edge", "is no pair of node numbers"),
        (("A", "B"), ("01",), "bad_edge", "is no pair of node numbers"),
        (("A",) * (MAX_NODES + 1), (), "too_many_nodes", f"at most {MAX_NODES} nodes, found {MAX_NODES + 1}"),
    ],
)
def test_faults_are_named(roles: object, edges: object, fault: str, message: str) -> None:
    """Fault "cyclic graph": self-loop, doubled edge, unknown agent; refused, never flattened or endless."""
    found, text = fault_of(roles, edges)
    assert found.value == fault
    assert message in text


def test_a_cycle_is_named_without_the_nodes_around_it() -> None:
    """Fault "cyclic graph": planner -> searcher -> critic -> searcher, critic -> judge."""
    fault, text = fault_of(("Planner", "Searcher", "Critic", "Judge"), ((0, 1), (1, 2), (2, 1), (2, 3)))
    assert fault is TopologyFault.CYCLE
    assert "Searcher (1) -> Critic (2) -> Searcher (1)" in text or "Critic (2) -> Searcher (1) -> Critic (2)" in text
    assert "Planner" not in text
    assert "Judge" not in text


@given(dags(), st.data())
def test_every_cycle_that_is_named_is_one(topology: Topology, data: st.DataObject) -> None:
    """Fault "cyclic graph": close a path of any acyclic graph; the walk named follows edges and comes round."""
    paths = [
        (end, start)
        for start, ends in nx.all_pairs_shortest_path_length(topology.to_networkx())
        for end in ends
        if end != start
    ]
    node = data.draw(st.integers(0, topology.num_nodes - 1))
    closing = data.draw(st.sampled_from(paths)) if paths else (node, node)
    edges = (*topology.edges, closing)
    fault, text = fault_of(topology.roles, edges)
    assert fault is TopologyFault.CYCLE
    walk = [int(part.split("(")[1].split(")")[0]) for part in text.split("cycle: ")[1].split(";")[0].split(" -> ")]
    assert walk[0] == walk[-1]
    assert len(set(walk)) == len(walk) - 1
    assert all(step in edges for step in zip(walk, walk[1:], strict=False))


@pytest.mark.parametrize("name", ["", " x", "x ", 'a"b', "a\nb", "a>b", "a+b", "a:b", "-a", "x" * 65, None, 3])
def test_role_names_that_would_break_keys_or_diagrams_are_refused(name: object) -> None:
    """Fault "markup injection": a name can't hold what keys, DOT or Mermaid give a meaning to."""
    with pytest.raises(ValueError, match="role name"):
        Topology((name,), ())  # type: ignore[arg-type]


@given(dags())
def test_every_form_comes_back_equal(topology: Topology) -> None:
    assert Topology.from_json(topology.to_json()) == topology
    assert Topology.from_dict(json.loads(json.dumps(topology.as_dict()))) == topology
    assert Topology.from_networkx(topology.to_networkx()) == topology
    assert pickle.loads(pickle.dumps(topology)) == topology


def test_json_by_hand() -> None:
    assert DIAMOND.to_json() == (
        '{"roles": ["Planner", "Reasoner", "Verifier", "Answerer"], "edges": [[0, 1], [0, 2], [1, 3], [2, 3]]}'
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not the JSON of a topology"),
        ("[" * 100_000, "not the JSON of a topology"),
        ("[]", r"field '\(whole\)'"),
        ('{"roles": ["A"]}', "field 'edges'"),
        ('{"roles": ["A"], "edges": [], "name": "x"}', "field 'name'"),
        ('{"roles": [1], "edges": []}', "field 'roles.0'"),
        ('{"roles": ["A", "B"], "edges": [["0", 1]]}', "field 'edges.0.0'"),
        ('{"roles": ["A", "B"], "edges": [[0]]}', "is no pair of node numbers"),
        ('{"roles": [], "edges": []}', "at least one node"),
    ],
)
def test_wrong_json_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Topology.from_json(text)


def test_networkx_graphs_may_have_any_names() -> None:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_node("think", role="Reasoner")
    graph.add_node("say", role="Answerer")
    graph.add_edge("think", "say")
    assert Topology.from_networkx(graph) == Topology(("Reasoner", "Answerer"), ((0, 1),))


def test_networkx_graphs_that_are_no_topology_are_refused() -> None:
    """Fault "cyclic graph": an edge that a multigraph holds twice is not flattened."""
    with pytest.raises(ValueError, match="directed"):
        Topology.from_networkx(nx.Graph())
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    graph.add_node("a", role="Reasoner")
    graph.add_node("b", role="Answerer")
    graph.add_edges_from([("a", "b"), ("a", "b")])
    with pytest.raises(TopologyError, match="stands twice"):
        Topology.from_networkx(graph)
    graph.add_node("c")
    with pytest.raises(ValueError, match="node 'c' lacks the attribute 'role'"):
        Topology.from_networkx(graph)


def test_diagrams_by_hand() -> None:
    pair = Topology(("Reasoner", "Answerer"), ((0, 1),))
    assert pair.to_dot() == (
        'digraph topology {\n  rankdir=LR;\n  n0 [label="Reasoner"];\n  n1 [label="Answerer"];\n  n0 -> n1;\n}\n'
    )
    assert pair.to_mermaid() == 'flowchart LR\n  n0["Reasoner"]\n  n1["Answerer"]\n  n0 --> n1\n'


def test_errors_cross_between_processes() -> None:
    error = pickle.loads(pickle.dumps(TopologyError(TopologyFault.CYCLE, "round and round")))
    assert (error.fault, str(error)) == (TopologyFault.CYCLE, "round and round")
