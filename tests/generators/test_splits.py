"""Splits do not leak: shared claims, entities and sources are refused by name."""

import pytest

from provgym.envs.provenance import Atom, Claim, EvidenceGraph, Instance, Route, Stance
from provgym.generators.splits import check_instances, check_splits
from provgym.rewards.outcome import Verdict

CLEAN = [
    ("train", "c1", ["ruxor"], ["study-1", "study-2"]),
    ("train", "c1", ["ruxor"], ["study-1"]),  # another condition of the same claim
    ("train", "c2", ["ruxor", "belmak"], ["study-2"]),  # shares within its split
    ("dev", "c3", ["tavor"], ["study-3"]),
    ("test", "c4", [], []),
]


def test_sharing_within_a_split_is_allowed() -> None:
    check_splits(CLEAN)
    check_splits([])


@pytest.mark.parametrize(
    ("row", "leak"),
    [
        (("test", "c1", [], []), "claim 'c1'"),
        (("test", "c9", ["belmak"], []), "entity 'belmak'"),
        (("test", "c9", [], ["study-2"]), "source 'study-2'"),
    ],
)
def test_a_leak_is_refused_by_name(row: tuple[str, str, list[str], list[str]], leak: str) -> None:
    with pytest.raises(ValueError, match=f"{leak} stands in split 'train' and in split 'test'; move"):
        check_splits([*CLEAN, row])


def test_order_does_not_matter() -> None:
    rows = [*CLEAN, ("test", "c9", ["belmak"], [])]
    with pytest.raises(ValueError, match="entity 'belmak'"):
        check_splits(reversed(rows))


def test_one_name_may_be_a_claim_an_entity_and_a_source() -> None:
    check_splits([("train", "same", ["x"], ["y"]), ("dev", "x", ["y"], ["same"])])


def instance(split: str, claim_id: str, entity: str, source: str) -> Instance:
    claim = Claim(claim_id, "It rises.", "", (entity,))
    atom = Atom(f"{claim_id}-e1", source, Stance.SUPPORT, "It rose.")
    graph = EvidenceGraph((claim,), (atom,), (Route(f"{claim_id}-r", claim_id, atom.atom_id, "result"),))
    return Instance(f"{claim_id}/own", graph, "own", Verdict.SUPPORT, split)


def test_instances_are_checked_by_claim_entity_and_source() -> None:
    first = instance("train", "c1", "ruxor", "study-1")
    check_instances([first, instance("dev", "c2", "tavor", "study-2")])
    for other, leak in (
        (instance("dev", "c1", "tavor", "study-2"), "claim 'c1'"),
        (instance("dev", "c2", "ruxor", "study-2"), "entity 'ruxor'"),
        (instance("dev", "c2", "tavor", "study-1"), "source 'study-1'"),
    ):
        with pytest.raises(ValueError, match=leak):
            check_instances([first, other])
