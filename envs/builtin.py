"""A small hand-written instance set, so that ``gymnasium.make`` works without a generator or a file."""

from __future__ import annotations

from functools import cache

from provgym.envs.provenance import REPRESENTATION_KINDS, Atom, Claim, EvidenceGraph, Instance, Route, Stance
from provgym.rewards.outcome import Verdict

_CLAIM = Claim(
    "demo-1",
    "In materials science, orvelin raises the hardness of tamrite.",
    "materials",
    ("orvelin", "tamrite"),
)
_TEXT = {
    Stance.SUPPORT: "adding orvelin raised the hardness of tamrite by 12 percent.",
    Stance.REFUTE: "adding orvelin lowered the hardness of tamrite by 9 percent.",
}
_CONDITIONS = {
    "C1": ([1], [1]),
    "C2": ([5], [1]),
    "C3": ([1, 1, 1, 1, 1], [1]),
    "C4": ([1], [1, 1, 1, 1, 1]),
    "C2R": ([1], [5]),
    "2+1": ([3, 1], [2]),
}


@cache
def demo_instances() -> tuple[Instance, ...]:
    """Return six hand-written instances of one fictional claim: C1, C2, C3, C4, C2R and a 2-against-1 case."""
    return tuple(_build(name, *routes) for name, routes in _CONDITIONS.items())


def _build(condition: str, supporting: list[int], refuting: list[int]) -> Instance:
    atoms: list[Atom] = []
    routes: list[Route] = []
    for stance, counts in ((Stance.SUPPORT, supporting), (Stance.REFUTE, refuting)):
        for number, count in enumerate(counts):
            atom = Atom(f"{stance.value.lower()}-{number}", f"study-{stance.value[0]}{number}", stance, _TEXT[stance])
            atoms.append(atom)
            for k in range(count):
                kind = REPRESENTATION_KINDS[(number + k) % len(REPRESENTATION_KINDS)]
                routes.append(Route(f"{atom.atom_id}-{k}", _CLAIM.claim_id, atom.atom_id, kind))
    graph = EvidenceGraph((_CLAIM,), tuple(atoms), tuple(routes))
    gold = Verdict.from_counts(len(supporting), len(refuting))
    return Instance(f"demo-1/{condition}", graph, condition, gold)
