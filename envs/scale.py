"""Merged evidence graphs of any size, for measuring that a step costs the same in a graph of 10^2 or 10^6 nodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from provgym.envs.graph_arrays import MAX_NEIGHBOURS
from provgym.envs.provenance import (
    REPRESENTATION_KINDS,
    Atom,
    Claim,
    EvidenceGraph,
    Instance,
    Route,
    Stance,
)
from provgym.rewards.outcome import Verdict

MAX_ROUTES_PER_ATOM = 5
_RECENT_SOURCES = 50
_TEXT = {
    Stance.SUPPORT: "treating {subject} raised the measured value.",
    Stance.REFUTE: "treating {subject} lowered the measured value.",
}


class _Side(NamedTuple):
    stance: Stance
    num_sources: int


class _Builder:
    """Collects claims, atoms and routes, and remembers which sources can still serve another claim."""

    def __init__(self, rng: np.random.Generator, shared_share: float) -> None:
        self._rng = rng
        self._shared_share = shared_share
        self.claims: list[Claim] = []
        self.atoms: list[Atom] = []
        self.routes: list[Route] = []
        self.golds: list[Verdict] = []
        self._routes_left: list[int] = []  # of each source, below the limit of neighbours

    @property
    def num_nodes(self) -> int:
        return len(self.claims) + 2 * len(self.routes) + len(self._routes_left)

    def add_claim(self, support: int, refute: int) -> None:
        number = len(self.claims)
        claim = Claim(f"claim-{number}", f"Treating subject-{number} raises the measured value.")
        self.claims.append(claim)
        self.golds.append(Verdict.from_counts(support, refute))
        used: set[int] = set()
        for side in (_Side(Stance.SUPPORT, support), _Side(Stance.REFUTE, refute)):
            for _ in range(side.num_sources):
                self._add_atom(claim, side.stance, number, used)

    def _add_atom(self, claim: Claim, stance: Stance, number: int, used: set[int]) -> None:
        source = self._pick_source(used)
        used.add(source)
        atom_id = f"atom-{len(self.atoms)}"
        text = _TEXT[stance].format(subject=f"subject-{number}")
        self.atoms.append(Atom(atom_id, f"source-{source}", stance, text))
        for k in range(int(self._rng.integers(1, MAX_ROUTES_PER_ATOM + 1))):
            kind = REPRESENTATION_KINDS[k % len(REPRESENTATION_KINDS)]
            self.routes.append(Route(f"route-{len(self.routes)}", claim.claim_id, atom_id, kind))
            self._routes_left[source] -= 1

    def _pick_source(self, used: set[int]) -> int:
        """Return a recent source that did not yet speak of this claim, or a new one."""
        if self._routes_left and self._rng.random() < self._shared_share:
            newest = len(self._routes_left) - 1
            source = newest - int(self._rng.integers(min(_RECENT_SOURCES, newest + 1)))
            if source not in used and self._routes_left[source] >= MAX_ROUTES_PER_ATOM:
                return source
        self._routes_left.append(MAX_NEIGHBOURS)
        return len(self._routes_left) - 1


def merged_instances(
    num_nodes: int, *, seed: int = 0, shared_share: float = 0.2, largest_claim: int = 0
) -> tuple[Instance, ...]:
    """Build one graph of many claims and return an instance for each of them, all over that graph.

    Claims have 0 to 5 supporting and 0 to 5 refuting sources (one at least) with 1 to 5 routes each; some sources
    serve several claims, so that a walk can cross from one claim's evidence to another's.

    Args:
        num_nodes: Nodes wanted, >= 1; claims are added until the graph has at least as many (at most 111 more).
        seed: The same seed and sizes give the same graph.
        shared_share: Share of atoms, in [0, 1], whose source is tried among the most recent 50.
        largest_claim: Supporting sources of an extra first claim, none if 0; from 64 routes on its observations
            form a ring.

    Returns:
        One instance per claim, in order; they share their ``graph``.

    Raises:
        ValueError: If an argument is out of range.
    """
    if num_nodes < 1:
        raise ValueError(f"num_nodes={num_nodes} must be >= 1")
    if not 0.0 <= shared_share <= 1.0:
        raise ValueError(f"shared_share={shared_share} must lie in [0, 1]")
    if largest_claim < 0:
        raise ValueError(f"largest_claim={largest_claim} must be >= 0")
    rng = np.random.default_rng([seed, num_nodes])
    builder = _Builder(rng, shared_share)
    if largest_claim:
        builder.add_claim(largest_claim, 0)
    while builder.num_nodes < num_nodes:
        support, refute = rng.integers(0, 6, size=2).tolist()
        if support + refute:
            builder.add_claim(support, refute)
    graph = EvidenceGraph(tuple(builder.claims), tuple(builder.atoms), tuple(builder.routes))
    return tuple(
        Instance(f"scale-{claim}", graph, "scale", gold, claim=claim) for claim, gold in enumerate(builder.golds)
    )
