"""Condition names: what each means, what is refused, and that general conditions are balanced."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from provgym.generators.conditions import (
    ADVERSARIAL,
    AGREEING,
    CONFLICT_CONDITIONS,
    GENERAL,
    MAX_ROUTES,
    MAX_SOURCES,
    Condition,
    draw_condition,
    draw_general,
    parse_condition,
)
from provgym.rewards.outcome import Verdict

SIDE = st.lists(st.integers(1, MAX_ROUTES), max_size=MAX_SOURCES).map(tuple)


@pytest.mark.parametrize(
    ("name", "supporting", "refuting", "gold"),
    [
        ("C1", (1,), (1,), "MIXED"),
        ("C2", (5,), (1,), "MIXED"),
        ("C3", (1, 1, 1, 1, 1), (1,), "SUPPORT"),
        ("C4", (1,), (1, 1, 1, 1, 1), "REFUTE"),
        ("C2R", (1,), (5,), "MIXED"),
        ("1S1P", (1,), (), "SUPPORT"),
        ("1S5P", (5,), (), "SUPPORT"),
        ("5S5P", (1, 1, 1, 1, 1), (), "SUPPORT"),
        ("2S5P", (3, 2), (), "SUPPORT"),
        ("2S5PR", (), (3, 2), "REFUTE"),
        ("3+1|2", (3, 1), (2,), "SUPPORT"),
        ("1+1|2+2", (1, 1), (2, 2), "MIXED"),
        ("|4", (), (4,), "REFUTE"),
    ],
)
def test_names(name: str, supporting: tuple[int, ...], refuting: tuple[int, ...], gold: str) -> None:
    condition = parse_condition(name)
    assert condition.name == name
    assert condition.supporting == supporting
    assert condition.refuting == refuting
    assert condition.gold is Verdict(gold)


def test_the_five_are_those_of_the_paper_in_its_order() -> None:
    assert CONFLICT_CONDITIONS == ("C1", "C2", "C3", "C4", "C2R")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("C5", "'C5' is unknown; use one of C1, C2, C3, C4, C2R"),
        ("c1", "'c1' is unknown"),
        ("", "is unknown"),
        ("general", "is unknown"),  # has to be drawn
        ("5S1P", "1 routes cannot reach 5 sources"),
        ("0S0P", "0 routes cannot reach 0 sources"),
        ("1S6P", r"routes \[6\] must each be 1 to 5"),
        ("6S6P", "6 supporting sources; at most 5"),
        ("6S6PR", "6 refuting sources; at most 5"),
        ("|", "no source at all"),
        ("0|1", "must each be 1 to 5"),
        ("1+1+1+1+1+1|", "6 supporting sources"),
        ("1|-1", "is unknown"),
        ("1S5P ", "is unknown"),
    ],
)
def test_impossible_names_are_refused_with_the_reason(name: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_condition(name)


def test_a_condition_without_sources_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one is needed"):
        Condition("nothing", (), ())


@given(SIDE, SIDE)
def test_a_written_out_condition_reads_back(supporting: tuple[int, ...], refuting: tuple[int, ...]) -> None:
    if supporting or refuting:
        name = f"{'+'.join(map(str, supporting))}|{'+'.join(map(str, refuting))}"
        condition = parse_condition(name)
        assert (condition.supporting, condition.refuting) == (supporting, refuting)
        assert condition.gold is Verdict.from_counts(len(supporting), len(refuting))


@given(st.integers(1, 5).flatmap(lambda s: st.tuples(st.just(s), st.integers(s, 5 * s))))
def test_routes_are_split_evenly(case: tuple[int, int]) -> None:
    sources, routes = case
    split = parse_condition(f"{sources}S{routes}P").supporting
    assert len(split) == sources
    assert sum(split) == routes
    assert max(split) - min(split) <= 1


def test_general_verdicts_are_balanced() -> None:
    rng = np.random.default_rng(11)
    drawn = [draw_general(rng) for _ in range(3_000)]
    counts = Counter(condition.gold for condition in drawn)
    assert chisquare([counts[verdict] for verdict in Verdict]).pvalue > 0.001
    # Within a verdict every pair of counts that gives it is as likely as any other: 15 pairs for SUPPORT.
    pairs = Counter((len(c.supporting), len(c.refuting)) for c in drawn if c.gold is Verdict.SUPPORT)
    assert set(pairs) == {(s, r) for s in range(6) for r in range(6) if s > r}
    assert chisquare(list(pairs.values())).pvalue > 0.001


def test_general_routes_cover_one_to_five_on_both_sides() -> None:
    rng = np.random.default_rng(12)
    drawn = [draw_general(rng) for _ in range(1_000)]
    for side in ("supporting", "refuting"):
        routes = Counter(k for condition in drawn for k in getattr(condition, side))
        assert set(routes) == {1, 2, 3, 4, 5}
        assert chisquare(list(routes.values())).pvalue > 0.001


def test_a_general_draw_names_itself() -> None:
    rng = np.random.default_rng(13)
    for _ in range(200):
        condition = draw_general(rng)
        assert parse_condition(condition.name) == condition


def test_adversarial_by_hand() -> None:
    """Who counts routes errs on C2, C2R and 1+1|3, not on C1, C3, C4; on a tie of routes against a majority too."""
    wrong = ("C2", "C2R", "1+1|3", "1+1|2", "1+2|2+2", "5+5|1+1+1")
    right = ("C1", "C3", "C4", "1S5P", "5S5P", "3+1|2", "2|2")
    assert all(parse_condition(name).is_adversarial for name in wrong)
    assert not any(parse_condition(name).is_adversarial for name in right)


@pytest.mark.parametrize(("name", "wanted"), [(ADVERSARIAL, True), (AGREEING, False)])
def test_kinds_of_general_conditions_keep_verdicts_balanced(name: str, wanted: bool) -> None:
    """Rejecting draws would favour MIXED, which routes seldom tie for: the verdict is drawn once."""
    rng = np.random.default_rng(14)
    drawn = [draw_condition(name, rng) for _ in range(900)]
    assert {condition.is_adversarial for condition in drawn} == {wanted}
    counts = Counter(condition.gold for condition in drawn)
    assert chisquare([counts[verdict] for verdict in Verdict]).pvalue > 0.001


def test_a_plain_general_draw_is_what_it_always_was() -> None:
    """Draws are part of the data: these were made before there were kinds."""
    rng = np.random.default_rng(15)
    drawn = [draw_condition(GENERAL, rng).name for _ in range(4)]
    assert drawn == ["4+5+2+2|2+1+3+3", "5|4", "4|3+2", "4+1|5+1"]
    with pytest.raises(ValueError, match="'C1' is not drawn; those that are: general, general-adversarial"):
        draw_condition("C1", rng)
