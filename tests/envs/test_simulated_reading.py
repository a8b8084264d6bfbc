"""What a careful simulated reader finds in a unit: by its text, never by a label that it could not see."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.envs.workflow_worlds import QUESTION, unit

from provgym.envs.evidence_units import EvidenceUnit, Span
from provgym.envs.simulated_reading import Reading, Side, read_unit

FALLS = QUESTION.replace("raises", "lowers")


@pytest.mark.parametrize(
    ("verb", "question", "side"),
    [
        ("raised", QUESTION, Side.FOR),
        ("boosted", QUESTION, Side.FOR),
        ("cut", QUESTION, Side.AGAINST),
        ("weakened", QUESTION, Side.AGAINST),
        ("raised", FALLS, Side.AGAINST),
        ("reduced", FALLS, Side.FOR),
        ("did not raise", QUESTION, Side.AGAINST),
        ("never lowered", QUESTION, Side.FOR),
        ("watched", QUESTION, None),
        ("raised and lowered", QUESTION, None),
    ],
)
def test_a_verb_of_direction_tells_the_side(verb: str, question: str, side: Side | None) -> None:
    text = f"bolnan {verb} the yield of dalkon by 7 percent."
    found = replace(unit(1, "related to", "s"), span=Span("d", 0, len(text), text))
    assert read_unit(question, found) == Reading(True, side)


@pytest.mark.parametrize("names", [("karden", "mevtor"), ("bolnan", "mevtor"), ("karden", "dalkon")])
def test_a_unit_about_other_things_is_told_by_its_names(names: tuple[str, str]) -> None:
    assert read_unit(QUESTION, unit(1, "lowered", "s", names)) == Reading(False, Side.AGAINST)


@pytest.mark.parametrize(("relation", "side"), [("supports", Side.FOR), ("refutes", Side.AGAINST)])
def test_a_relation_may_say_it_outright(relation: str, side: Side) -> None:
    claim = "Green tea lowers blood pressure in adults."
    text = "Blood pressure was 4 mmHg below that of the control group."
    found = EvidenceUnit("u1", "Okada 2011", relation, claim, Span("d", 0, len(text), text), "Okada 2011")
    assert read_unit(f"{claim} Do the sources support this claim?", found) == Reading(True, side)
    assert not read_unit("Coffee lowers blood pressure in adults. Do they?", found).is_about


def test_ids_and_sources_play_no_part() -> None:
    plain = unit(1, "raised", "s1")
    assert read_unit(QUESTION, replace(plain, unit_id="refutes", source_id="lowered")) == read_unit(QUESTION, plain)


def test_a_unit_about_nothing_is_about_nothing() -> None:
    assert read_unit(QUESTION, EvidenceUnit("u", "", "", "the", Span("d", 0, 0, ""), "s")) == Reading(False, None)
