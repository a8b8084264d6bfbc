"""Arrays behind an evidence graph, built without a Python loop over claims, routes or nodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_NEIGHBOURS = 64
"""No node of an evidence graph has more neighbours than this, so that a step's cost has a bound."""

Edges = tuple[NDArray[np.int64], NDArray[np.int64]]


class NodeColumns(NamedTuple):
    """What each of N nodes is: C claims, R observations, R representations and S sources, in this order.

    Attributes:
        kinds: (N,) int8 :class:`~provgym.envs.provenance.NodeKind`, as plain numbers.
        atoms: (N,) int32, -1 for claims and sources.
        sources: (N,) int32, -1 for claims.
        routes: (N,) int32, -1 for claims and sources.
        claims: (N,) int32, -1 for sources.
    """

    kinds: NDArray[np.int8]
    atoms: NDArray[np.int32]
    sources: NDArray[np.int32]
    routes: NDArray[np.int32]
    claims: NDArray[np.int32]


class ClaimNodes(NamedTuple):
    """What belongs to one claim of k routes and m distinct sources; read-only views, n = 1 + 2k + m.

    Attributes:
        nodes: (n,) the claim, its observations, its representations, its sources; ascending within each.
        kinds: (n,) :class:`~provgym.envs.provenance.NodeKind` of each node, as plain numbers.
        places: (n,) number of the node's source among the claim's, 1 to m; 0 for the claim.
    """

    nodes: NDArray[np.int64]
    kinds: NDArray[np.int64]
    places: NDArray[np.int64]

    @property
    def num_sources(self) -> int:
        """Distinct sources of the claim, m."""
        return self.places.item(-1)

    @property
    def num_routes(self) -> int:
        """Routes of the claim, k."""
        return (len(self.nodes) - 1 - self.num_sources) // 2


class ClaimTable(NamedTuple):
    """The nodes of every claim, one claim after the other.

    Attributes:
        bounds: (C+1,) where each claim's nodes begin.
        nodes: See :class:`ClaimNodes`; this and the next two are all claims' arrays, one after the other.
        kinds: See :class:`ClaimNodes`.
        places: See :class:`ClaimNodes`.
    """

    bounds: NDArray[np.int64]
    nodes: NDArray[np.int64]
    kinds: NDArray[np.int64]
    places: NDArray[np.int64]

    def of(self, claim: int) -> ClaimNodes:
        """Return one claim's nodes; other claims add nothing to the cost."""
        bounds = self.bounds
        own = slice(bounds.item(claim), bounds.item(claim + 1))
        return ClaimNodes(self.nodes[own], self.kinds[own], self.places[own])


def build_columns(
    num_claims: int,
    num_sources: int,
    route_claim: NDArray[np.int32],
    route_atom: NDArray[np.int32],
    route_source: NDArray[np.int32],
) -> NodeColumns:
    """Describe every node.

    Args:
        num_claims: C.
        num_sources: S.
        route_claim: (R,) claim of each route.
        route_atom: (R,) atom of each route.
        route_source: (R,) source of each route.
    """
    num_routes = len(route_claim)
    no_claim, no_source = (np.full(number, -1, dtype=np.int32) for number in (num_claims, num_sources))
    routes = np.arange(num_routes, dtype=np.int32)
    claims, sources = np.arange(num_claims, dtype=np.int32), np.arange(num_sources, dtype=np.int32)
    return NodeColumns(
        np.repeat(np.arange(4, dtype=np.int8), [num_claims, num_routes, num_routes, num_sources]),
        np.concatenate([no_claim, route_atom, route_atom, no_source]),
        np.concatenate([no_claim, route_source, route_source, sources]),
        np.concatenate([no_claim, routes, routes, no_source]),
        np.concatenate([claims, route_claim, route_claim, no_source]),
    )


def find_torn_route(
    route_claim: NDArray[np.int32], route_source: NDArray[np.int32], supports: NDArray[np.bool_]
) -> int | None:
    """Return the first route whose source both supports and refutes its claim, or None.

    Args:
        route_claim: (R,) claim of each route.
        route_source: (R,) source of each route.
        supports: (R,) whether the route's atom supports the claim.
    """
    if not len(route_claim):
        return None
    num_sources = route_source.max().astype(np.int64) + 1
    pair = route_claim * num_sources + route_source  # (R,) claim and source as one number
    torn = np.isin(pair, np.intersect1d(pair[supports], pair[~supports]))
    return int(torn.argmax()) if torn.any() else None


def build_claim_table(
    num_claims: int, num_sources: int, route_claim: NDArray[np.int32], route_source: NDArray[np.int32]
) -> ClaimTable:
    """Group nodes by claim.

    Args:
        num_claims: C.
        num_sources: S.
        route_claim: (R,) claim of each route.
        route_source: (R,) source of each route.
    """
    num_routes = len(route_claim)
    claims = np.arange(num_claims)
    routes = np.argsort(route_claim, kind="stable")
    owner = route_claim[routes].astype(np.int64)
    pairs, pair_of_route = np.unique(owner * num_sources + route_source[routes], return_inverse=True)
    pair_owner, pair_source = np.divmod(pairs, max(num_sources, 1))
    first_pair = np.searchsorted(pair_owner, claims)
    place = pair_of_route - first_pair[owner] + 1  # (R,)
    pair_place = np.arange(len(pairs)) - first_pair[pair_owner] + 1
    observations = num_claims + routes
    nodes = [claims, observations, observations + num_routes, num_claims + 2 * num_routes + pair_source]
    owners = np.concatenate([claims, owner, owner, pair_owner])
    order = np.argsort(owners, kind="stable")
    table = ClaimTable(
        np.searchsorted(owners[order], np.arange(num_claims + 1)),
        np.concatenate(nodes)[order],
        np.repeat(np.arange(4), [len(part) for part in nodes])[order],
        np.concatenate([np.zeros(num_claims, dtype=np.int64), place, place, pair_place])[order],
    )
    for array in table:
        array.setflags(write=False)
    return table


def build_adjacency(
    num_claims: int,
    num_routes: int,
    num_sources: int,
    route_claim: NDArray[np.int32],
    route_source: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Build the CSR adjacency (both directions) of the graph."""
    observation = num_claims + np.arange(num_routes, dtype=np.int64)
    representation = observation + num_routes
    source_node = num_claims + 2 * num_routes + route_source.astype(np.int64)
    pairs: list[Edges] = [
        (observation, representation),
        (representation, source_node),
    ]
    pairs += _shared_claim_edges(num_claims, observation, route_claim)
    first = np.concatenate([a for a, _ in pairs])  # (E,)
    second = np.concatenate([b for _, b in pairs])  # (E,)
    num_nodes = num_claims + 2 * num_routes + num_sources
    # One number per directed edge sorts several times faster than two columns.
    edges = np.concatenate([first * num_nodes + second, second * num_nodes + first])  # (2E,)
    edges.sort()
    start, end = np.divmod(edges, max(num_nodes, 1))
    indptr = np.zeros(num_nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(start, minlength=num_nodes), out=indptr[1:])
    return indptr, end


def _shared_claim_edges(num_claims: int, observation: NDArray[np.int64], route_claim: NDArray[np.int32]) -> list[Edges]:
    """Join each claim to its observations and those to each other: all pairs, or a ring where there are too many.

    Claims with equally many observations are joined together, so that the work in Python is bounded by the number
    of different sizes, not by the number of claims.
    """
    members_by_claim = observation[np.argsort(route_claim, kind="stable")]
    sizes = np.bincount(route_claim, minlength=num_claims)
    starts = np.cumsum(sizes) - sizes
    pairs: list[Edges] = []
    for size in np.unique(sizes[sizes > 0]).tolist():
        claims = np.flatnonzero(sizes == size)
        members = members_by_claim[starts[claims, None] + np.arange(size)]  # (claims, size)
        # An observation of a fully joined claim has size - 1 observations, its claim and its representation around it.
        if size + 1 <= MAX_NEIGHBOURS:
            first, second = np.triu_indices(size, 1)
            entries, left, right = members, members[:, first], members[:, second]
        else:
            entries = members[:, np.linspace(0, size - 1, MAX_NEIGHBOURS).round().astype(np.int64)]
            left, right = members, np.roll(members, -1, axis=1)
        pairs.append((np.repeat(claims, entries.shape[1]), entries.ravel()))
        pairs.append((left.ravel(), right.ravel()))
    return pairs
