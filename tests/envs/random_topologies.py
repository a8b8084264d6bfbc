"""Random topologies, and their renumberings, for properties."""

from collections.abc import Sequence

import networkx as nx
from hypothesis import strategies as st

from provgym.envs.topology import Topology
from provgym.envs.topology_draft import TopologyDraft
from provgym.envs.topology_rules import TopologyRules

ROLES = ("Planner", "Reasoner", "Verifier")


@st.composite
def dags(draw: st.DrawFn, max_nodes: int = 7, roles: Sequence[str] = ROLES) -> Topology:
    """Any acyclic graph over few roles, so that symmetries are common."""
    num_nodes = draw(st.integers(1, max_nodes))
    pairs = [(i, j) for j in range(num_nodes) for i in range(j)]
    kept = draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    names = draw(st.lists(st.sampled_from(roles), min_size=num_nodes, max_size=num_nodes))
    return Topology(tuple(names), tuple(pair for pair, is_kept in zip(pairs, kept, strict=True) if is_kept))


@st.composite
def drafts(draw: st.DrawFn, rules: TopologyRules) -> TopologyDraft:
    """Any finished draft, reached by legal decisions."""
    draft = TopologyDraft(rules)
    while not draft.is_complete:
        if draft.pending is None:
            draft = draft.with_role(draw(st.sampled_from(draft.legal_roles)))
        else:
            draft = draft.with_edge(draw(st.sampled_from(draft.legal_edges)))
    return draft


def renumbered(topology: Topology, numbers: Sequence[int]) -> Topology:
    """The same graph with node i called ``numbers[i]``."""
    roles = [""] * topology.num_nodes
    for node, number in enumerate(numbers):
        roles[number] = topology.roles[node]
    return Topology(tuple(roles), tuple((numbers[s], numbers[r]) for s, r in topology.edges))


def are_isomorphic(one: Topology, other: Topology) -> bool:
    """Whether networkx finds the two to be the same graph, roles included."""
    return bool(
        nx.is_isomorphic(one.to_networkx(), other.to_networkx(), node_match=lambda a, b: bool(a["role"] == b["role"]))
    )
