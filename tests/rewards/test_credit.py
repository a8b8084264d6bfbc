"""Step credit: the split is exact, and an action is judged by what came from it onwards."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from provgym.rewards.advantages import AdvantageScale, group_advantages
from provgym.rewards.credit import shaping_rewards, step_advantages, step_rewards
from provgym.rewards.outcome import Ending, Judgement, Verdict, WalkOutcome
from provgym.rewards.rubric import Rubric, papt_rubric

Rewards = NDArray[np.float64]
SCALES: tuple[AdvantageScale, ...] = get_args(AdvantageScale)
WALKED = WalkOutcome(
    gold=Verdict.MIXED,
    judgement=Judgement(Verdict.MIXED, 1, 1),
    ending=Ending.ANSWERED,
    budget=6,
    walks=3,
    invalid_actions=1,
    echoes=1,
    connector_moves=0,
    available_support=1,
    available_refute=1,
    acquired_support=1,
    acquired_refute=1,
)
"""New source, echo, illegal move, new source, stop: five actions."""

FLAGS = {
    "is_new": [True, False, False, True, False],
    "is_echo": [False, True, False, False, False],
    "is_charged": [True, True, True, True, False],
    "is_illegal": [False, False, True, False, False],
}


def split(outcome: WalkOutcome, rubric: Rubric, flags: dict[str, list[bool]]) -> Rewards:
    return step_rewards(outcome, rubric, **flags)


# ---------------------------------------------------------------- who earned what


def test_each_term_goes_to_the_actions_that_earned_it() -> None:
    found = split(WALKED, papt_rubric(weights={"illegal": -0.5}), FLAGS)
    cost = -0.05 * (4 / 6) / 4
    expected = [
        0.4 / 2 + cost,  # one of two new sources
        -0.4 / 3 + cost,  # the one echo of three walks
        -0.5 / 6 + cost,  # the one illegal action of a budget of six
        0.4 / 2 + cost,
        1.0 + 0.4,  # verdict and count; stopping costs no walk
    ]
    assert found.tolist() == pytest.approx(expected)
    assert found.sum() == pytest.approx(1.0 + 0.4 + 0.4 - 0.4 / 3 - 0.05 * 4 / 6 - 0.5 / 6)


def test_dropped_terms_are_split_as_nothing() -> None:
    assert split(WALKED, papt_rubric("verdict_only"), FLAGS).tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]
    no_coverage = split(WALKED, papt_rubric("no_coverage", weights={"cost": 0.0}), FLAGS)
    assert no_coverage.tolist() == pytest.approx([0.0, -0.4 / 3, 0.0, 0.0, 1.4])


def test_an_episode_of_one_action_gets_it_all() -> None:
    """A stop at once: the whole total, whatever the terms are."""
    at_once = replace(WALKED, walks=0, invalid_actions=0, echoes=0, acquired_support=0, acquired_refute=0)
    rubric = papt_rubric()
    found = split(at_once, rubric, dict.fromkeys(FLAGS, [False]))
    assert found.tolist() == [rubric.score(at_once).total]
    # A late illegal action, too: charged, illegal, and last.
    lost = replace(at_once, ending=Ending.TRUNCATED, judgement=None, budget=1, invalid_actions=1)
    flags = {"is_new": [False], "is_echo": [False], "is_charged": [True], "is_illegal": [True]}
    assert split(lost, rubric, flags).tolist() == pytest.approx([-1.0 - 0.05])


def test_what_no_action_earned_goes_to_the_last_one() -> None:
    """Nothing of the total is lost if an outcome says more than the flags do."""
    found = split(WALKED, papt_rubric(), dict.fromkeys(FLAGS, [False, False]))
    assert found[0] == 0.0
    assert found[1] == pytest.approx(papt_rubric().score(WALKED).total)


def test_terms_of_another_rubric_go_to_the_last_action() -> None:
    rubric = Rubric(
        {"walks": lambda o: float(o.walks), "echo": lambda o: float(o.echoes)}, {"walks": 2.0, "echo": -3.0}
    )
    assert split(WALKED, rubric, FLAGS).tolist() == [0.0, -3.0, 0.0, 0.0, 6.0]


@pytest.mark.parametrize("flags", [dict.fromkeys(FLAGS, []), {**FLAGS, "is_echo": [True]}])
def test_flags_must_be_there_and_of_one_length(flags: dict[str, list[bool]]) -> None:
    with pytest.raises(ValueError, match="need one flag per action in each sequence, found"):
        split(WALKED, papt_rubric(), flags)


def test_an_error_is_not_scored() -> None:
    """Fault kind "endpoint failure scored as wrong": NaN, never a number that could enter a baseline."""
    failed = replace(WALKED, ending=Ending.ERROR, judgement=None)
    assert np.isnan(split(failed, papt_rubric(), FLAGS)).any()


@st.composite
def outcomes_with_flags(draw: st.DrawFn) -> tuple[WalkOutcome, dict[str, list[bool]]]:
    """Any outcome, and any flags: the split must be exact even where they contradict each other."""
    count = draw(st.integers(1, 9))
    budget = draw(st.integers(1, 8))
    walks = draw(st.integers(0, budget))
    available = (draw(st.integers(0, 5)), draw(st.integers(0, 5)))
    ending = draw(st.sampled_from([Ending.ANSWERED, Ending.INVALID, Ending.TRUNCATED]))
    stated = Judgement(draw(st.sampled_from(list(Verdict))), draw(st.integers(0, 9)), draw(st.integers(0, 9)))
    outcome = WalkOutcome(
        gold=draw(st.sampled_from(list(Verdict))),
        judgement=stated if ending is Ending.ANSWERED else None,
        ending=ending,
        budget=budget,
        walks=walks,
        invalid_actions=draw(st.integers(0, budget - walks)),
        echoes=draw(st.integers(0, walks)),
        connector_moves=0,
        available_support=available[0],
        available_refute=available[1],
        acquired_support=draw(st.integers(0, available[0])),
        acquired_refute=draw(st.integers(0, available[1])),
    )
    flags = {name: draw(st.lists(st.booleans(), min_size=count, max_size=count)) for name in FLAGS}
    return outcome, flags


WEIGHTS = st.dictionaries(
    st.sampled_from(["verdict", "count", "coverage", "echo", "cost", "illegal"]), st.floats(-3, 3, allow_nan=False)
)


@given(outcomes_with_flags(), WEIGHTS)
def test_the_steps_sum_to_the_total(case: tuple[WalkOutcome, dict[str, list[bool]]], weights: dict[str, float]) -> None:
    outcome, flags = case
    for count_basis in ("acquired", "available"):
        rubric = papt_rubric(weights=weights, count_basis=count_basis)
        found = split(outcome, rubric, flags)
        assert found.shape == (len(flags["is_new"]),)
        assert math.fsum(found) == pytest.approx(rubric.score(outcome).total, abs=1e-12)


# ---------------------------------------------------------------- advantages of actions


def test_the_carried_baseline_by_hand() -> None:
    """A member that has ended counts with its last return: what stopping was worth.

    Returns-to-go: A 2 1 1; B 0.5, carried on as 0.5 0.5; baselines 1.25, .75, .75.
    """
    a, b = np.array([1.0, 0.0, 1.0]), np.array([0.5])
    found = step_advantages([a, b], 2, scale="none")
    assert found[0].tolist() == [0.75, 0.25, 0.25]
    assert found[1].tolist() == [-0.75]
    scaled = step_advantages([a, b], 2)
    std = math.sqrt(0.75**2 + 0.75**2)  # of the totals 2 and .5, with one degree of freedom less
    assert scaled[0].tolist() == pytest.approx([0.75 / std, 0.25 / std, 0.25 / std])
    assert scaled[1].tolist() == pytest.approx([-0.75 / std])
    damped = step_advantages([a, b], 2, epsilon=1.0)
    assert damped[0].tolist() == pytest.approx([0.75 / (std + 1), 0.25 / (std + 1), 0.25 / (std + 1)])


def test_an_action_is_not_praised_for_what_came_before_it() -> None:
    """Two walks that found the same source first: the first action of both is as good as the total, but the later
    actions are told apart by what they earned, an echo against a new source.
    """
    first, second = np.array([0.2, 0.2, 1.0]), np.array([0.2, -0.2, 1.0])
    found = step_advantages([first, second], 2, scale="none")
    assert found[0].tolist() == pytest.approx([0.2, 0.2, 0.0])
    assert found[1].tolist() == pytest.approx([-0.2, -0.2, 0.0])


def test_groups_do_not_meet() -> None:
    group = [np.array([1.0, 0.0]), np.array([0.0])]
    other = [np.array([9.0]), np.array([5.0, -2.0, 1.0])]
    together = step_advantages([*group, *other], 2)
    apart = step_advantages(group, 2) + step_advantages(other, 2)
    assert all(np.array_equal(one, two) for one, two in zip(together, apart, strict=True))


@pytest.mark.parametrize("scale", SCALES)
def test_equal_totals_give_exactly_zero(scale: AdvantageScale) -> None:
    """Fault kind "identical rewards": one total, split in different ways, teaches nothing and is no NaN."""
    rows = [np.array([0.35]), np.array([0.1, 0.25]), np.array([0.35, 0.0, 0.0]), np.array([-1.0, 1.35])]
    found = step_advantages(rows, 4, scale=scale)
    assert [a.tolist() for a in found] == [[0.0], [0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0]]
    seven = step_advantages([np.full(3, 0.1 * 3.5 / 3)] * 7, 7, scale=scale)
    assert all(not a.any() for a in seven)


def test_rows_that_are_not_scored() -> None:
    """Fault kind "unscored reward": group 1, None, 0, 1: baseline over the three; the sample std, as for totals."""
    rows = [np.array([1.0]), None, np.array([0.0]), np.array([0.0, 1.0])]
    found = step_advantages(rows, 4)
    assert [a.size for a in found] == [1, 0, 1, 2]
    assert found[0].tolist() == pytest.approx([0.577], abs=1e-3)
    assert found[2].tolist() == pytest.approx([-1.155], abs=1e-3)
    assert found[3][0] == pytest.approx(0.577, abs=1e-3)
    # Second step: 1 and 0 carried on, and 1.
    assert found[3][1] == pytest.approx(0.577, abs=1e-3)


@pytest.mark.parametrize("scored", [0, 1])
def test_a_baseline_needs_two_scored_rows(scored: int) -> None:
    """Fault kind "unscored reward": all None, or one left: zeros."""
    rows = [np.array([1.0, 2.0]) if i < scored else None for i in range(4)]
    found = step_advantages(rows, 4)
    assert [a.tolist() for a in found] == [[0.0, 0.0]] * scored + [[]] * (4 - scored)


@pytest.mark.parametrize(("count", "group_size"), [(4, 1), (4, 0), (4, -2), (5, 2), (3, 4)])
def test_impossible_groups_are_refused(count: int, group_size: int) -> None:
    """Fault kind "identical rewards": a group of one has no baseline."""
    with pytest.raises(ValueError, match=f"{count} trajectories do not split into groups of group_size={group_size}"):
        step_advantages([np.zeros(1)] * count, group_size)


# Eighths: sums and differences are exact, so that properties can be asked for closely.
ROWS = st.lists(st.integers(-16, 16).map(lambda k: k / 8), min_size=1, max_size=5).map(np.array)
GROUPS = st.integers(2, 5).flatmap(
    lambda size: st.tuples(st.just(size), st.lists(st.one_of(ROWS, st.none()), min_size=size, max_size=size))
)


def totals_of(rows: list[Rewards | None]) -> Rewards:
    return np.array([math.nan if r is None else r.sum() for r in rows])


@given(GROUPS, st.sampled_from(SCALES))
def test_the_first_action_gets_the_trajectory_s_advantage(
    case: tuple[int, list[Rewards | None]], scale: AdvantageScale
) -> None:
    """What came from the first action onwards is the whole episode."""
    size, rows = case
    found = step_advantages(rows, size, scale=scale, epsilon=1e-4)
    expected = group_advantages(totals_of(rows), size, scale=scale, epsilon=1e-4).values
    for row, own, value in zip(rows, found, expected.tolist(), strict=True):
        assert own.size == (0 if row is None else row.size)
        if row is not None:
            assert own[0] == pytest.approx(value, abs=1e-9)


@given(GROUPS, st.integers(-8, 8))
def test_what_every_end_earns_alike_changes_nothing(case: tuple[int, list[Rewards | None]], shift: int) -> None:
    size, rows = case
    moved = [None if r is None else np.append(r[:-1], r[-1] + shift) for r in rows]
    for before, after in zip(step_advantages(rows, size), step_advantages(moved, size), strict=True):
        assert after.tolist() == pytest.approx(before.tolist(), abs=1e-9)


@given(GROUPS, st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_matter(case: tuple[int, list[Rewards | None]], random: Random) -> None:
    size, rows = case
    order = list(range(size))
    random.shuffle(order)
    plain, mixed = step_advantages(rows, size), step_advantages([rows[i] for i in order], size)
    for place, member in enumerate(order):
        assert mixed[place].tolist() == pytest.approx(plain[member].tolist(), abs=1e-9)


@given(GROUPS)
def test_at_every_step_the_group_s_advantages_cancel_out(case: tuple[int, list[Rewards | None]]) -> None:
    """With ended members carried on: what one gains the others lose, so no step is praised as such."""
    size, rows = case
    found = [a for a in step_advantages(rows, size) if a.size]
    longest = max((a.size for a in found), default=0)
    for step in range(longest):
        # A carried member's share is its last return against this step's baseline; it has no action here, so only
        # steps that all reach can be summed from outside.
        if all(step < a.size for a in found):
            assert sum(a[step] for a in found) == pytest.approx(0.0, abs=1e-9)


def test_the_spread_of_the_batch_by_hand() -> None:
    """Totals 1 and 0, 0 and 4 (mean 1.25): both groups are divided by one number, so the second counts for more."""
    rows = [np.array([0.5, 0.5]), np.array([0.0]), np.array([0.0]), np.array([4.0])]
    std = math.sqrt((0.25**2 + 1.25**2 + 1.25**2 + 2.75**2) / 3)
    found = step_advantages(rows, 2, scale="batch")
    assert found[0].tolist() == pytest.approx([0.5 / std, 0.25 / std])  # second step: 0.5 against 0.25
    assert [a.tolist() for a in found[1:]] == [pytest.approx([x / std]) for x in (-0.5, -2.0, 2.0)]


def test_discounted_returns_by_hand() -> None:
    """Half of what comes one action later, a quarter of what comes two later; the divisor knows no discount."""
    rows = [np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.0, 0.0])]
    found = step_advantages(rows, 2, scale="none", discount=0.5)
    assert found[0].tolist() == [(1.0 - 1.0) / 2, (2.0 - 0.0) / 2, (2.0 - 0.0) / 2]
    assert found[1].tolist() == [0.0, -1.0, -1.0]
    std = math.sqrt(2.0)  # totals 3 and 1
    assert step_advantages(rows, 2, discount=0.5)[0].tolist() == pytest.approx([0.0, 1.0 / std, 1.0 / std])


def test_without_sight_an_action_answers_for_itself_alone() -> None:
    rows = [np.array([0.0, 1.0]), np.array([0.5, -1.0])]
    assert [a.tolist() for a in step_advantages(rows, 2, scale="none", discount=0.0)] == [[-0.25, 1.0], [0.25, -1.0]]


@given(GROUPS)
def test_a_discount_of_nearly_one_is_nearly_none(case: tuple[int, list[Rewards | None]]) -> None:
    """Two ways of summing must agree: the plain sum, and the one that a discount takes."""
    size, rows = case
    nearly = step_advantages(rows, size, scale="none", discount=1 - 1e-12)
    for found, other in zip(step_advantages(rows, size, scale="none"), nearly, strict=True):
        assert found.tolist() == pytest.approx(other.tolist(), abs=1e-9)


# ---------------------------------------------------------------- a potential over the way


def test_shaping_by_hand() -> None:
    """New source (of 4), nothing, new source, stop."""
    potentials = [0.0, 0.25, 0.25, 0.5, 0.5]
    assert shaping_rewards(potentials).tolist() == [0.25, 0.0, 0.25, 0.0]
    assert shaping_rewards(potentials, is_repaid=True).tolist() == [0.25, 0.0, 0.25, -0.5]
    assert shaping_rewards([0.0, 0.5], is_repaid=True).tolist() == [0.0], "one action: what it gains it pays back"


@pytest.mark.parametrize("potentials", [[], [1.0]])
def test_shaping_needs_an_action(potentials: list[float]) -> None:
    with pytest.raises(ValueError, match=f"found {len(potentials)} potentials"):
        shaping_rewards(potentials)


# Eighths again, so that sums are exact.
POTENTIALS = st.lists(st.integers(0, 8).map(lambda k: k / 8), min_size=2, max_size=6)


@given(POTENTIALS)
def test_undiscounted_shaping_telescopes(potentials: list[float]) -> None:
    """Whatever lies between: the sum is the gain from start to end, or nothing if the end pays it back."""
    assert shaping_rewards(potentials).sum() == potentials[-1] - potentials[0]
    assert shaping_rewards(potentials, is_repaid=True).sum() == 0.0


@given(st.integers(2, 5), st.data())
def test_shaping_under_trajectory_advantages_is_a_term_at_the_end(size: int, data: st.DataObject) -> None:
    """Repaid: the advantages are the very same. Not repaid: those of a total with the end's potential added."""
    rows = [data.draw(ROWS) for _ in range(size)]
    states = [data.draw(st.lists(st.integers(0, 8), min_size=len(r), max_size=len(r))) for r in rows]
    potentials = [[0.0, *(k / 8 for k in own)] for own in states]
    plain = np.array([r.sum() for r in rows])

    def shaped(is_repaid: bool) -> Rewards:
        pairs = zip(rows, potentials, strict=True)
        return np.array([(r + shaping_rewards(p, is_repaid=is_repaid)).sum() for r, p in pairs])

    assert group_advantages(shaped(True), size).values.tolist() == group_advantages(plain, size).values.tolist()
    at_the_end = plain + np.array([p[-1] for p in potentials])
    assert group_advantages(shaped(False), size).values.tolist() == group_advantages(at_the_end, size).values.tolist()


def test_shaping_under_step_advantages_tells_when_the_gain_came() -> None:
    """Two walks with one total: the early gain is no credit of later actions, so step advantages do differ."""
    early, late = shaping_rewards([0.0, 1.0, 1.0]), shaping_rewards([0.0, 0.0, 1.0])
    rest = [np.array([0.0, 1.0]), np.array([0.0, 0.0])]
    found = step_advantages([rest[0] + early, rest[1] + late], 2, scale="none")
    assert [a.tolist() for a in found] == [[0.5, 0.0], [-0.5, 0.0]]
    plain = step_advantages(rest, 2, scale="none")
    assert [a.tolist() for a in plain] == [[0.5, 0.5], [-0.5, -0.5]]
