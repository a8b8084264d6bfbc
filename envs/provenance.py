"""Evidence graphs: claims, sources, atoms, routes, and who observed what.

A *route* is a three-hop path source -> representation -> observation -> claim that carries one *atom* (one
observation of one source). Many routes may carry one atom: that is structural diversity without provenance.

Source: GraphEcho, arXiv:2609.17695, section 3.1 (``N_path`` is equation 1, ``N_prov`` equation 2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from provgym.envs.evidence_records import REPRESENTATION_KINDS, Atom, Claim, NodeKind, Route, Stance
from provgym.envs.graph_arrays import (
    MAX_NEIGHBOURS,
    ClaimNodes,
    ClaimTable,
    build_adjacency,
    build_claim_table,
    build_columns,
    find_torn_route,
)
from provgym.rewards.outcome import Verdict

__all__ = [
    "REPRESENTATION_KINDS",
    "Atom",
    "Claim",
    "EvidenceGraph",
    "Instance",
    "NodeKind",
    "Route",
    "Stance",
]


@dataclass(frozen=True, eq=False)
class EvidenceGraph:
    """An undirected graph of claims, observations, representations and sources.

    Nodes are integers in this order: claims, one observation per route, one representation per route, sources.
    The routes of one atom share its source node. Observations of one claim are joined to each other (shared-claim
    edges); where that would exceed :data:`MAX_NEIGHBOURS`, they form a ring and the claim node is joined to
    evenly spaced ones.

    Attributes:
        claims: Distinct ids.
        atoms: Distinct ids.
        routes: Distinct ids; each names a claim and an atom of this graph.

    Raises:
        ValueError: If ids repeat or are unknown, a source both supports and refutes one claim, or a source has more
            routes than :data:`MAX_NEIGHBOURS`; the message names the id.
    """

    claims: tuple[Claim, ...]
    atoms: tuple[Atom, ...]
    routes: tuple[Route, ...]
    sources: tuple[str, ...] = field(init=False)
    node_kind: NDArray[np.int8] = field(init=False, repr=False)  # (N,)
    node_atom: NDArray[np.int32] = field(init=False, repr=False)  # (N,) -1 for connectors
    node_source: NDArray[np.int32] = field(init=False, repr=False)  # (N,) -1 for claims
    node_route: NDArray[np.int32] = field(init=False, repr=False)  # (N,) -1 for connectors
    node_claim: NDArray[np.int32] = field(init=False, repr=False)  # (N,) -1 for sources
    indptr: NDArray[np.int64] = field(init=False, repr=False)  # (N+1,)
    indices: NDArray[np.int64] = field(init=False, repr=False)  # (2E,) sorted within each node; int64 indexes fastest

    def __post_init__(self) -> None:
        claim_index = _index("claim", (c.claim_id for c in self.claims))
        atom_index = _index("atom", (a.atom_id for a in self.atoms))
        _index("route", (r.route_id for r in self.routes))
        sources = tuple(dict.fromkeys(a.source_id for a in self.atoms))
        source_index = {s: i for i, s in enumerate(sources)}
        for route in self.routes:
            if route.claim_id not in claim_index:
                raise ValueError(f"route {route.route_id!r} names claim {route.claim_id!r}, which the graph lacks")
            if route.atom_id not in atom_index:
                raise ValueError(f"route {route.route_id!r} names atom {route.atom_id!r}, which the graph lacks")
        atom_source = np.array([source_index[a.source_id] for a in self.atoms], dtype=np.int32)
        route_claim = np.array([claim_index[r.claim_id] for r in self.routes], dtype=np.int32)
        route_atom = np.array([atom_index[r.atom_id] for r in self.routes], dtype=np.int32)
        route_source = atom_source[route_atom]
        self._check_provenance(sources, route_claim, route_atom, route_source)
        columns = build_columns(len(self.claims), len(sources), route_claim, route_atom, route_source)
        indptr, indices = build_adjacency(len(self.claims), len(self.routes), len(sources), route_claim, route_source)
        arrays: dict[str, NDArray[Any]] = {
            **{f"node_{name.removesuffix('s')}": column for name, column in columns._asdict().items()},
            "indptr": indptr,
            "indices": indices,
        }
        object.__setattr__(self, "sources", sources)
        for name, array in arrays.items():
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    def _check_provenance(
        self,
        sources: tuple[str, ...],
        route_claim: NDArray[np.int32],
        route_atom: NDArray[np.int32],
        route_source: NDArray[np.int32],
    ) -> None:
        supports = np.array([a.stance is Stance.SUPPORT for a in self.atoms], dtype=bool)[route_atom]
        torn = find_torn_route(route_claim, route_source, supports)
        if torn is not None:
            raise ValueError(
                f"source {sources[route_source[torn]]!r} both supports and refutes claim "
                f"{self.routes[torn].claim_id!r}; give each observation its own source id"
            )
        counts = np.bincount(route_source, minlength=1)
        if counts.max() > MAX_NEIGHBOURS:
            source = int(counts.argmax())
            raise ValueError(
                f"source {sources[source]!r} has {counts[source]} routes; a node has at most {MAX_NEIGHBOURS} "
                "neighbours: put its claims into separate graphs"
            )

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.node_kind)

    def neighbours(self, node: int) -> NDArray[np.int64]:
        """Return the neighbours of ``node``, ascending; a read-only view, at most :data:`MAX_NEIGHBOURS` long."""
        return self.indices[self.indptr.item(node) : self.indptr.item(node + 1)]

    @cached_property
    def _claim_table(self) -> ClaimTable:
        own = slice(len(self.claims), len(self.claims) + len(self.routes))  # observations
        return build_claim_table(len(self.claims), len(self.sources), self.node_claim[own], self.node_source[own])

    def claim_nodes(self, claim: int) -> ClaimNodes:
        """Return the nodes of a claim, with kinds and sources; other claims add nothing to the cost."""
        return self._claim_table.of(claim)

    def claim_routes(self, claim: int) -> NDArray[np.int64]:
        """Return the route indices of a claim, ascending; other claims add nothing to the cost."""
        own = self.claim_nodes(claim)
        return own.nodes[1 : 1 + own.num_routes] - len(self.claims)

    @cached_property
    def routes_of_claim(self) -> tuple[tuple[int, ...], ...]:
        """Route indices of each claim, in order."""
        return tuple(tuple(self.claim_routes(claim).tolist()) for claim in range(len(self.claims)))

    def n_path(self, claim: int = 0) -> int:
        """Structural diversity: the number of routes to a claim."""
        return len(self.claim_routes(claim))

    def n_prov(self, claim: int = 0) -> int:
        """Provenance diversity: the number of distinct atoms that the claim's routes carry."""
        return len(self._atoms_of(claim))

    def _atoms_of(self, claim: int) -> set[int]:
        """Return the indices of the atoms that a claim's routes carry."""
        return set(self.node_atom[len(self.claims) + self.claim_routes(claim)].tolist())

    def source_counts(self, claim: int = 0) -> tuple[int, int]:
        """Return the numbers of distinct supporting and refuting sources of a claim."""
        atoms = [self.atoms[a] for a in self._atoms_of(claim)]
        by_stance = [{a.source_id for a in atoms if a.stance is stance} for stance in Stance]
        return len(by_stance[0]), len(by_stance[1])

    def node_id(self, node: int) -> str:
        """Return a stable text id, such as ``observation:r3`` or ``source:S-12``."""
        kind = NodeKind(int(self.node_kind[node]))
        if kind is NodeKind.CLAIM:
            name = self.claims[node].claim_id
        elif kind is NodeKind.SOURCE:
            name = self.sources[self.node_source[node]]
        else:
            name = self.routes[self.node_route[node]].route_id
        return f"{kind.name.lower()}:{name}"

    def to_networkx(self) -> nx.Graph[str]:
        """Return a networkx graph whose nodes, named by :meth:`node_id`, carry the records as attributes."""
        graph: nx.Graph[str] = nx.Graph()
        names = [self.node_id(n) for n in range(self.num_nodes)]
        for node, name in enumerate(names):
            record: dict[str, Any] = {"kind": NodeKind(int(self.node_kind[node])).name.lower(), "order": node}
            if record["kind"] == "claim":
                claim = self.claims[node]
                record |= {"text": claim.text, "domain": claim.domain, "entities": claim.entities}
            elif record["kind"] == "source":
                record["source_id"] = self.sources[self.node_source[node]]
            else:
                route = self.routes[self.node_route[node]]
                atom = self.atoms[self.node_atom[node]]
                record |= {"claim_id": route.claim_id, "route_kind": route.kind, "atom_id": atom.atom_id}
                record |= {"source_id": atom.source_id, "stance": atom.stance.value, "text": atom.text}
                record |= {"weight": atom.weight}
            graph.add_node(name, **record)
        for node, name in enumerate(names):
            graph.add_edges_from((name, names[other]) for other in self.neighbours(node) if other > node)
        return graph

    @classmethod
    def from_networkx(cls, graph: nx.Graph[str]) -> EvidenceGraph:
        """Rebuild a graph from :meth:`to_networkx`'s attributes; edges follow from the routes.

        Raises:
            ValueError: If a node lacks an attribute, or the edges differ from those that the routes imply.
        """
        claims: list[Claim] = []
        atoms: dict[str, Atom] = {}
        routes: list[Route] = []
        for name, record in sorted(graph.nodes(data=True), key=lambda item: item[1].get("order", 0)):
            try:
                if record["kind"] == "claim":
                    claims.append(
                        Claim(name.split(":", 1)[1], record["text"], record["domain"], tuple(record["entities"]))
                    )
                elif record["kind"] == "observation":
                    atom = Atom(
                        record["atom_id"],
                        record["source_id"],
                        Stance(record["stance"]),
                        record["text"],
                        record["weight"],
                    )
                    if atoms.setdefault(atom.atom_id, atom) != atom:
                        raise ValueError(
                            f"node {name!r} gives atom {atom.atom_id!r} other contents than an earlier node"
                        )
                    routes.append(Route(name.split(":", 1)[1], record["claim_id"], atom.atom_id, record["route_kind"]))
            except KeyError as error:
                raise ValueError(f"node {name!r} lacks the attribute {error.args[0]!r}") from error
        built = cls(tuple(claims), tuple(atoms.values()), tuple(routes))
        if not nx.utils.edges_equal(built.to_networkx().edges, graph.edges):
            raise ValueError("the graph's edges differ from those that its routes imply; change routes, not edges")
        return built

    @classmethod
    def merge(cls, graphs: Iterable[EvidenceGraph]) -> EvidenceGraph:
        """Join graphs into one; sources with the same id become one node."""
        parts = list(graphs)
        return cls(
            tuple(c for g in parts for c in g.claims),
            tuple(a for g in parts for a in g.atoms),
            tuple(r for g in parts for r in g.routes),
        )


@dataclass(frozen=True, eq=False)
class Instance:
    """One claim of a graph to be judged under one condition.

    Attributes:
        instance_id: Unique within a data set.
        graph: Where the walk takes place.
        condition: Name such as ``C2`` or ``3+2``.
        gold: The verdict of the claim's distinct sources, or the data set's own label.
        split: ``train``, ``dev`` or ``test``.
        claim: Index of the claim in ``graph.claims``.
    """

    instance_id: str
    graph: EvidenceGraph
    condition: str
    gold: Verdict
    split: str = "test"
    claim: int = 0

    @property
    def base_claim(self) -> Claim:
        """The claim to judge."""
        return self.graph.claims[self.claim]

    @cached_property
    def source_counts(self) -> tuple[int, int]:
        """Distinct supporting and refuting sources of the claim."""
        return self.graph.source_counts(self.claim)


def _index(what: str, ids: Iterable[str]) -> dict[str, int]:
    index: dict[str, int] = {}
    for position, name in enumerate(ids):
        if name in index:
            raise ValueError(f"{what} id {name!r} appears twice in one graph")
        index[name] = position
    return index
