"""Topologies: acyclic graphs of agents in roles, and of the messages between them.

Example:
    >>> team = Topology(("Reasoner", "Answerer", "Reasoner"), ((0, 1), (2, 1)))
    >>> team.canonical()
    Topology(roles=('Reasoner', 'Reasoner', 'Answerer'), edges=((0, 2), (1, 2)))
    >>> team.key
    'Reasoner+Reasoner+Answerer:0>2,1>2'
    >>> team.key == Topology(("Answerer", "Reasoner", "Reasoner"), ((2, 0), (1, 0))).key
    True
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from typing import Any

import networkx as nx
from pydantic import BaseModel, ConfigDict, ValidationError

from provgym.envs.roles import check_role_name
from provgym.envs.topology_canonical import Edge, canonical_form, node_depths
from provgym.envs.topology_faults import TopologyError, TopologyFault

MAX_NODES = 64
"""No topology has more nodes than this, so that naming one has a bound on its cost."""


class _TopologyRecord(BaseModel):
    """The JSON shape of a topology."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    roles: list[str]
    edges: list[list[int]]


@dataclass(frozen=True, slots=True)
class Topology:
    """An acyclic graph of role instances and message edges.

    Equality and ``hash`` are those of the numbered graph; :attr:`key` is equal for graphs that differ in numbering
    alone. Which roles there are, and what a complete team needs, is for
    :class:`~provgym.envs.topology_rules.TopologyRules` to say.

    Attributes:
        roles: (N,) role name of each node, N in [1, :data:`MAX_NODES`]. One role may stand several times.
        edges: (E,) pairs (sender, receiver), stored sorted.

    Raises:
        TopologyError: Fault ``empty``, ``too_many_nodes``, ``bad_edge`` or ``cycle``; a cycle is named.
        ValueError: If a role name can't be used.
    """

    roles: tuple[str, ...]
    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "roles", tuple(self.roles))
        if not self.roles:
            raise TopologyError(TopologyFault.EMPTY, "a topology needs at least one node, found none")
        if self.num_nodes > MAX_NODES:
            raise TopologyError(
                TopologyFault.TOO_MANY_NODES, f"a topology has at most {MAX_NODES} nodes, found {self.num_nodes}"
            )
        for role in self.roles:
            check_role_name(role)
        object.__setattr__(self, "edges", self._checked_edges())
        self._check_acyclic()

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.roles)

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.edges)

    def predecessors(self, node: int) -> tuple[int, ...]:
        """Return the nodes whose messages ``node`` gets, ascending."""
        return tuple(sender for sender, receiver in self.edges if receiver == node)

    def successors(self, node: int) -> tuple[int, ...]:
        """Return the nodes that get the message of ``node``, ascending."""
        return tuple(receiver for sender, receiver in self.edges if sender == node)

    def in_degree(self, node: int) -> int:
        """Return the number of messages that ``node`` gets."""
        return sum(receiver == node for _, receiver in self.edges)

    @property
    def sinks(self) -> tuple[int, ...]:
        """The nodes that send to nobody, ascending."""
        senders = {sender for sender, _ in self.edges}
        return tuple(node for node in range(self.num_nodes) if node not in senders)

    def topological_order(self) -> tuple[int, ...]:
        """Return the nodes in an order that runs senders first; of all such orders the least."""
        waiting = [self.in_degree(node) for node in range(self.num_nodes)]
        ready = [node for node in range(self.num_nodes) if not waiting[node]]
        order: list[int] = []
        while ready:
            node = heapq.heappop(ready)
            order.append(node)
            for receiver in self.successors(node):
                waiting[receiver] -= 1
                if not waiting[receiver]:
                    heapq.heappush(ready, receiver)
        return tuple(order)

    def canonical(self) -> Topology:
        """Return the same graph numbered in canonical order, in which every edge leads to a higher number."""
        return Topology(*canonical_form(self.roles, self.edges))

    @property
    def key(self) -> str:
        """A readable name; two topologies have the same one if and only if they differ in numbering alone."""
        roles, edges = canonical_form(self.roles, self.edges)
        return "+".join(roles) + ":" + ",".join(f"{sender}>{receiver}" for sender, receiver in edges)

    def to_networkx(self) -> nx.DiGraph[int]:
        """Return a networkx graph of nodes 0 to N - 1 with the attribute ``role``."""
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from((node, {"role": role}) for node, role in enumerate(self.roles))
        graph.add_edges_from(self.edges)
        return graph

    @classmethod
    def from_networkx(cls, graph: nx.DiGraph[Any]) -> Topology:
        """Read a directed networkx graph whose nodes carry ``role``; they are numbered in the graph's own order.

        Raises:
            TopologyError: As for the constructor; edges that a multigraph holds twice are ``bad_edge``.
            ValueError: If the graph is undirected or a node has no role.
        """
        if not graph.is_directed():
            raise ValueError("a topology needs a directed graph: from sender to receiver")
        number = {node: place for place, node in enumerate(graph)}
        roles: list[str] = []
        for node, data in graph.nodes(data=True):
            if "role" not in data:
                raise ValueError(f"node {node!r} lacks the attribute 'role'; found {sorted(map(str, data))}")
            roles.append(data["role"])
        return cls(tuple(roles), tuple((number[sender], number[receiver]) for sender, receiver in graph.edges()))

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for run files; :meth:`from_dict` reverses it exactly."""
        return {"roles": list(self.roles), "edges": [list(edge) for edge in self.edges]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Topology:
        """Read :meth:`as_dict`'s data, strictly.

        Raises:
            TopologyError: As for the constructor.
            ValueError: If the data are not ``{"roles": [names], "edges": [[sender, receiver], ...]}``.
        """
        try:
            record = _TopologyRecord.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "(whole)"
            raise ValueError(
                f"field {place!r}: {first['msg']}, found {str(first['input'])[:80]!r}; a topology is written "
                '{"roles": ["Reasoner", "Answerer"], "edges": [[0, 1]]}'
            ) from error
        return cls(tuple(record.roles), tuple(_pair(edge) for edge in record.edges))

    def to_json(self) -> str:
        """Return :meth:`as_dict` as one line of JSON."""
        return json.dumps(self.as_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Topology:
        """Read :meth:`to_json`'s text, strictly.

        Raises:
            TopologyError: As for the constructor.
            ValueError: If the text is not the JSON of a topology.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not the JSON of a topology ({error}): {text[:80]!r}") from error
        return cls.from_dict(data)

    def to_dot(self) -> str:
        """Return a Graphviz digraph, one statement per line."""
        nodes = [f'  n{node} [label="{role}"];' for node, role in enumerate(self.roles)]
        edges = [f"  n{sender} -> n{receiver};" for sender, receiver in self.edges]
        return "\n".join(["digraph topology {", "  rankdir=LR;", *nodes, *edges, "}"]) + "\n"

    def to_mermaid(self) -> str:
        """Return a Mermaid flowchart, one statement per line."""
        nodes = [f'  n{node}["{role}"]' for node, role in enumerate(self.roles)]
        edges = [f"  n{sender} --> n{receiver}" for sender, receiver in self.edges]
        return "\n".join(["flowchart LR", *nodes, *edges]) + "\n"

    def _checked_edges(self) -> tuple[Edge, ...]:
        edges = sorted(_pair(edge) for edge in self.edges)
        for place, (sender, receiver) in enumerate(edges):
            if not (0 <= sender < self.num_nodes and 0 <= receiver < self.num_nodes):
                raise _bad_edge((sender, receiver), f"names a node outside 0 to {self.num_nodes - 1}")
            if place and edges[place - 1] == (sender, receiver):
                raise _bad_edge((sender, receiver), "stands twice; a message is sent once")
        return tuple(edges)

    def _check_acyclic(self) -> None:
        depths = node_depths(self.num_nodes, self.edges)
        if min(depths) >= 0:
            return
        # Every node left over has a sender that is left over too: going back along them must come round.
        node = depths.index(-1)
        path: list[int] = []
        while node not in path:
            path.append(node)
            node = next(sender for sender in self.predecessors(node) if depths[sender] < 0)
        cycle = [node, *reversed(path[path.index(node) :])]
        named = " -> ".join(f"{self.roles[v]} ({v})" for v in cycle)
        raise TopologyError(TopologyFault.CYCLE, f"the topology has a cycle: {named}; messages must run one way")


def _pair(edge: Any) -> Edge:
    """Read one edge as two plain integers."""
    try:
        sender, receiver = edge
        if isinstance(sender, bool) or isinstance(receiver, bool):
            raise TypeError
        return index(sender), index(receiver)
    except (TypeError, ValueError):
        raise _bad_edge(edge, "is no pair of node numbers (sender, receiver)") from None


def _bad_edge(edge: Any, why: str) -> TopologyError:
    return TopologyError(TopologyFault.BAD_EDGE, f"edge {edge!r} {why}")
