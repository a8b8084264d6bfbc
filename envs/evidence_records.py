"""The records that an evidence graph is made of: claims, atoms, routes, and the kinds of its nodes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

REPRESENTATION_KINDS = ("result", "table", "conclusion", "figure", "abstract")
"""The representation kinds of GraphEcho-Syn; other data may name others."""


class Stance(StrEnum):
    """What an atom reports of the claim's direction."""

    SUPPORT = "SUPPORT"
    REFUTE = "REFUTE"


class NodeKind(IntEnum):
    """Kinds of nodes; observations and representations bear evidence, claims and sources connect."""

    CLAIM = 0
    OBSERVATION = 1
    REPRESENTATION = 2
    SOURCE = 3

    @property
    def bears_evidence(self) -> bool:
        """Whether a visit to such a node acquires (or repeats) an atom."""
        return self in (NodeKind.OBSERVATION, NodeKind.REPRESENTATION)


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement to judge; ``entities`` are the names that splits keep apart."""

    claim_id: str
    text: str
    domain: str = ""
    entities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Atom:
    """One observation of one source; ``weight`` is its relative reliability (1.0 throughout the benchmark)."""

    atom_id: str
    source_id: str
    stance: Stance
    text: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Route:
    """One path that carries ``atom_id`` to ``claim_id`` through a representation of ``kind``."""

    route_id: str
    claim_id: str
    atom_id: str
    kind: str
