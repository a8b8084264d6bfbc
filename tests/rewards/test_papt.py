"""The PAPT terms, each edge worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provgym.rewards.outcome import Ending, Judgement, Verdict, WalkOutcome
from provgym.rewards.papt import cost_term, count_term, coverage_term, echo_term, illegal_term, verdict_term


def outcome(
    *,
    stated: tuple[int, int] | None = (1, 1),
    verdict: Verdict = Verdict.MIXED,
    gold: Verdict = Verdict.MIXED,
    ending: Ending | None = None,
    budget: int = 6,
    walks: int = 2,
    invalid_actions: int = 0,
    echoes: int = 0,
    available: tuple[int, int] = (1, 1),
    acquired: tuple[int, int] = (1, 1),
) -> WalkOutcome:
    """An outcome of which a test states only what it is about."""
    judgement = None if stated is None else Judgement(verdict, *stated)
    return WalkOutcome(
        gold=gold,
        judgement=judgement,
        ending=ending or (Ending.INVALID if judgement is None else Ending.ANSWERED),
        budget=budget,
        walks=walks,
        invalid_actions=invalid_actions,
        echoes=echoes,
        connector_moves=0,
        available_support=available[0],
        available_refute=available[1],
        acquired_support=acquired[0],
        acquired_refute=acquired[1],
    )


@pytest.mark.parametrize(
    ("gold", "verdict", "expected"),
    [("MIXED", "MIXED", 1.0), ("SUPPORT", "MIXED", -1.0), ("REFUTE", "SUPPORT", -1.0)],
)
def test_verdict_is_plus_or_minus_one(gold: str, verdict: str, expected: float) -> None:
    assert verdict_term(outcome(gold=Verdict(gold), verdict=Verdict(verdict))) == expected


@pytest.mark.parametrize("ending", [Ending.INVALID, Ending.TRUNCATED])
def test_without_a_valid_judgement_the_verdict_is_wrong_and_the_count_is_zero(ending: Ending) -> None:
    ended = outcome(stated=None, ending=ending)
    assert verdict_term(ended) == -1.0
    assert count_term(ended) == 0.0
    assert count_term(ended, "available") == 0.0


@pytest.mark.parametrize(
    ("stated", "acquired", "expected"),
    [
        ((3, 1), (3, 1), 1.0),  # exact
        ((2, 1), (3, 1), 1 - 1 / 4),  # one below
        ((4, 1), (3, 1), 1 - 1 / 4),  # one above
        ((1, 3), (3, 1), 1 - 4 / 4),  # sides swapped: delta 4 of U 4
        ((5, 1), (1, 1), 0.0),  # C2 counted by paths: delta 4 of U 2, cut off at 0
        ((0, 0), (0, 0), 1.0),  # U = 0, honestly said
        ((1, 0), (0, 0), 0.0),  # U = 0: divided by 1, not by 0
        ((1_000_000, 0), (1, 0), 0.0),  # never below 0
    ],
)
def test_count_compares_with_the_acquired_sources(
    stated: tuple[int, int], acquired: tuple[int, int], expected: float
) -> None:
    assert count_term(outcome(stated=stated, acquired=acquired, available=(5, 5))) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("stated", "available", "expected"),
    [((1, 0), (1, 1), 0.5), ((1, 0), (5, 1), 1 / 6), ((5, 1), (5, 1), 1.0), ((0, 0), (5, 1), 0.0)],
)
def test_count_over_available_sources_does_not_pay_for_stopping_early(
    stated: tuple[int, int], available: tuple[int, int], expected: float
) -> None:
    early = outcome(stated=stated, acquired=stated, available=available, walks=1)
    assert count_term(early, "available") == pytest.approx(expected)
    assert count_term(early, "acquired") == 1.0


@pytest.mark.parametrize(
    ("budget", "available", "acquired", "by_budget", "by_available"),
    [
        (6, (1, 1), (1, 1), 1.0, 1.0),
        (6, (5, 1), (2, 1), 0.5, 0.5),  # D = B
        (3, (5, 1), (3, 0), 1.0, 0.5),  # D > B: all that the budget could reach
        (3, (5, 5), (1, 1), 2 / 3, 0.2),
        (6, (1, 1), (0, 0), 0.0, 0.0),  # U = 0
        (6, (0, 0), (0, 0), 0.0, 0.0),  # D = 0: divided by 1
    ],
)
def test_coverage(
    budget: int, available: tuple[int, int], acquired: tuple[int, int], by_budget: float, by_available: float
) -> None:
    walked = outcome(budget=budget, available=available, acquired=acquired, walks=min(budget, 3))
    assert coverage_term(walked) == pytest.approx(by_budget)
    assert coverage_term(walked, "available") == pytest.approx(by_available)


@pytest.mark.parametrize(("echoes", "walks", "expected"), [(0, 0, 0.0), (0, 5, 0.0), (3, 6, 0.5), (5, 6, 5 / 6)])
def test_echo_is_a_share_of_walks(echoes: int, walks: int, expected: float) -> None:
    assert echo_term(outcome(echoes=echoes, walks=walks)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("walks", "invalid_actions", "budget", "expected"),
    [(0, 0, 6, 0.0), (6, 0, 6, 1.0), (2, 1, 6, 0.5), (0, 3, 3, 1.0), (1, 0, 8, 0.125)],
)
def test_cost_counts_walks_and_illegal_actions(walks: int, invalid_actions: int, budget: int, expected: float) -> None:
    assert cost_term(outcome(walks=walks, invalid_actions=invalid_actions, budget=budget)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("walks", "invalid_actions", "budget", "expected"),
    [(0, 0, 6, 0.0), (6, 0, 6, 0.0), (2, 1, 6, 1 / 6), (0, 3, 3, 1.0), (1, 2, 8, 0.25)],
)
def test_illegal_is_the_share_of_the_budget_that_did_nothing(
    walks: int, invalid_actions: int, budget: int, expected: float
) -> None:
    ended = outcome(walks=walks, invalid_actions=invalid_actions, budget=budget, acquired=(0, 0))
    assert illegal_term(ended) == pytest.approx(expected)


def test_an_illegal_action_costs_but_is_no_walk_of_the_echo_rate() -> None:
    with_illegal = outcome(walks=2, echoes=1, invalid_actions=2)
    assert echo_term(with_illegal) == 0.5
    assert cost_term(with_illegal) == pytest.approx(4 / 6)
    assert illegal_term(with_illegal) == pytest.approx(2 / 6)


@given(
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_count_is_symmetric_in_the_two_stances(
    stated: tuple[int, int], acquired: tuple[int, int], extra: tuple[int, int]
) -> None:
    available = (acquired[0] + extra[0], acquired[1] + extra[1])
    plain = outcome(stated=stated, acquired=acquired, available=available)
    mirrored = outcome(stated=stated[::-1], acquired=acquired[::-1], available=available[::-1])
    for basis in ("acquired", "available"):
        value = count_term(plain, basis)
        assert value == count_term(mirrored, basis)
        assert 0.0 <= value <= 1.0
