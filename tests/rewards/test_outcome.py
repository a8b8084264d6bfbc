"""Outcome records: what they refuse, and that they survive storage unchanged."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provgym.rewards.outcome import (
    Ending,
    Judgement,
    Verdict,
    WalkOutcome,
    outcome_as_dict,
    outcome_from_dict,
)

COUNTS = st.integers(0, 20)
JUDGEMENTS = st.builds(
    Judgement,
    st.sampled_from(Verdict),
    COUNTS,
    COUNTS,
    st.floats(0.0, 1.0),
    st.lists(st.text(max_size=8), max_size=4).map(tuple),
    st.text(max_size=30),
)
ANSWERED = WalkOutcome(
    gold=Verdict.SUPPORT,
    judgement=Judgement(Verdict.SUPPORT, 2, 1, 0.8, ("S1", "S2"), "two against one"),
    ending=Ending.ANSWERED,
    budget=6,
    walks=4,
    invalid_actions=1,
    echoes=1,
    connector_moves=0,
    available_support=3,
    available_refute=2,
    acquired_support=2,
    acquired_refute=1,
)


@st.composite
def outcomes(draw: st.DrawFn) -> WalkOutcome:
    budget = draw(st.integers(1, 50))
    walks = draw(st.integers(0, budget))
    ending = draw(st.sampled_from(Ending))
    return WalkOutcome(
        gold=draw(st.sampled_from(Verdict)),
        judgement=draw(JUDGEMENTS) if ending is Ending.ANSWERED else None,
        ending=ending,
        budget=budget,
        walks=walks,
        invalid_actions=draw(st.integers(0, budget - walks)),
        echoes=draw(st.integers(0, walks)),
        connector_moves=draw(st.integers(0, walks)),
        available_support=draw(COUNTS),
        available_refute=draw(COUNTS),
        acquired_support=draw(COUNTS),
        acquired_refute=draw(COUNTS),
    )


@given(outcomes())
def test_an_outcome_survives_json(outcome: WalkOutcome) -> None:
    stored = json.loads(json.dumps(outcome_as_dict(outcome)))
    assert outcome_from_dict(stored) == outcome


def test_stored_form_is_plain_data_with_readable_values() -> None:
    data = outcome_as_dict(ANSWERED)
    assert data["gold"] == "SUPPORT"
    assert data["ending"] == "answered"
    assert type(data["gold"]) is str
    assert type(data["ending"]) is str
    assert data["judgement"]["cited_sources"] == ["S1", "S2"]


def test_reading_does_not_change_the_stored_form() -> None:
    """Fault kind "mutable defaults": the caller's dict stays as it was."""
    data = outcome_as_dict(ANSWERED)
    before = json.dumps(data)
    outcome_from_dict(data)
    assert json.dumps(data) == before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"gold": "CONTRADICT"}, "CONTRADICT"),
        ({"ending": "crashed"}, "crashed"),
        ({"colour": 1}, "colour"),
        ({"judgement": None}, "answered"),
        ({"judgement": {"verdict": "SUPPORT"}}, "cited_sources"),
        ({"judgement": 5}, "not a stored outcome"),
        ({"budget": 0}, "budget=0"),
    ],
)
def test_a_broken_stored_outcome_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        outcome_from_dict({**outcome_as_dict(ANSWERED), **change})


def test_a_missing_field_is_named() -> None:
    data = outcome_as_dict(ANSWERED)
    del data["walks"]
    with pytest.raises(ValueError, match="walks"):
        outcome_from_dict(data)


@pytest.mark.parametrize("confidence", [-0.01, 1.01, math.nan, math.inf])
def test_confidence_outside_the_unit_interval_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence"):
        Judgement(Verdict.MIXED, 0, 0, confidence)


@pytest.mark.parametrize("counts", [(-1, 0), (0, -1)])
def test_negative_counts_are_refused(counts: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=">= 0"):
        Judgement(Verdict.MIXED, *counts)


@pytest.mark.parametrize("ending", [Ending.INVALID, Ending.TRUNCATED, Ending.ERROR])
def test_only_an_answer_has_a_judgement(ending: Ending) -> None:
    with pytest.raises(ValueError, match=ending.value):
        replace(ANSWERED, ending=ending)
    assert replace(ANSWERED, ending=ending, judgement=None).is_correct is False


def test_more_walks_than_budget_are_refused() -> None:
    with pytest.raises(ValueError, match="exceed budget=6"):
        replace(ANSWERED, walks=5, invalid_actions=2)


@pytest.mark.parametrize(
    ("support", "refute", "verdict"), [(1, 1, "MIXED"), (0, 0, "MIXED"), (5, 1, "SUPPORT"), (1, 5, "REFUTE")]
)
def test_the_verdict_is_the_majority_and_a_tie_is_mixed(support: int, refute: int, verdict: str) -> None:
    assert Verdict.from_counts(support, refute) is Verdict(verdict)


def test_sums_and_correctness() -> None:
    assert ANSWERED.available == 5
    assert ANSWERED.acquired == 3
    assert ANSWERED.is_correct
    assert not replace(ANSWERED, gold=Verdict.MIXED).is_correct
