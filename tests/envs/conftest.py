"""Small evidence graphs whose numbers can be counted by hand."""

from collections.abc import Callable, Sequence

import pytest

from provgym.envs.provenance import REPRESENTATION_KINDS, Atom, Claim, EvidenceGraph, Instance, Route, Stance
from provgym.rewards.outcome import Verdict

InstanceOf = Callable[..., Instance]


def build(supporting: Sequence[int], refuting: Sequence[int], *, swap: bool = False, name: str = "c") -> Instance:
    """One claim; each number is an atom of its own source, met by so many routes. ``swap`` turns every stance round.

    Nodes: 0 the claim; then one observation per route, one representation per route, one source per atom.
    """
    claim = Claim(f"{name}-claim", f"In tests, {name} raises yield.", "tests", (name,))
    atoms: list[Atom] = []
    routes: list[Route] = []
    for side, counts in ((0, supporting), (1, refuting)):
        for count in counts:
            stance = (Stance.SUPPORT, Stance.REFUTE)[side ^ swap]
            verb = "raised" if stance is Stance.SUPPORT else "lowered"
            number = len(atoms)
            atoms.append(
                Atom(f"{name}-a{number}", f"{name}-source{number}", stance, f"{name} {verb} yield by {number}.")
            )
            for k in range(count):
                routes.append(
                    Route(f"{name}-r{len(routes)}", claim.claim_id, f"{name}-a{number}", REPRESENTATION_KINDS[k % 5])
                )
    gold = Verdict.from_counts(*((len(supporting), len(refuting))[:: -1 if swap else 1]))
    return Instance(f"{name}-instance", EvidenceGraph((claim,), tuple(atoms), tuple(routes)), "test", gold)


@pytest.fixture(scope="session")
def instance_of() -> InstanceOf:
    """A builder: ``instance_of([2, 1], [1])`` has two supporting sources (2 routes, 1 route) and a refuting one."""
    return build


@pytest.fixture(scope="session")
def bare_instance() -> Instance:
    """A claim without any route, so a graph without edges."""
    return Instance("bare", EvidenceGraph((Claim("bare", "Nothing is known."),), (), ()), "bare", Verdict.MIXED)


@pytest.fixture(scope="session")
def merged_instance() -> Instance:
    """Two claims that share source ``both``: claim 0 has sources both and one, claim 1 has both and two.

    Nodes: 0, 1 claims; 2-5 observations; 6-9 representations; 10 both, 11 one, 12 two.
    """
    claims = (Claim("first", "The first holds."), Claim("second", "The second holds."))
    atoms = (
        Atom("a0", "both", Stance.SUPPORT, "it holds, says both."),
        Atom("a1", "one", Stance.REFUTE, "it fails, says one."),
        Atom("a2", "both", Stance.REFUTE, "the second fails, says both."),
        Atom("a3", "two", Stance.SUPPORT, "the second holds, says two."),
    )
    routes = tuple(Route(f"r{k}", "first" if k < 2 else "second", f"a{k}", REPRESENTATION_KINDS[k]) for k in range(4))
    return Instance("merged", EvidenceGraph(claims, atoms, routes), "merged", Verdict.MIXED)
