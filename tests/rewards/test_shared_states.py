"""Actions at shared states: compared with each other and with nobody else."""

from __future__ import annotations

import math
from random import Random
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from provgym.rewards.advantages import AdvantageScale, group_advantages
from provgym.rewards.credit import shaping_rewards, step_advantages
from provgym.rewards.shared_states import partner_share, state_advantages

Rewards = NDArray[np.float64]
SCALES: tuple[AdvantageScale, ...] = get_args(AdvantageScale)

THREE = [np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.0]), np.array([0.0, -1.0])]
AT = [["start", "a", "b"], ["start", "a"], ["start", "c"]]
"""Returns-to-go: 3 3 2; 1 0; -1 -1. At the start 3, 1, -1 (mean 1); at a 3 and 0 (mean 1.5); b and c are met once."""


def test_three_walks_by_hand() -> None:
    found = state_advantages(THREE, AT, 3, scale="none")
    assert [a.tolist() for a in found] == [[2.0, 1.5, 0.0], [0.0, -1.5], [-2.0, 0.0]]


def test_divided_by_the_spread_of_the_group_s_totals() -> None:
    """Totals 3, 1, -1: a standard deviation of 2. The pair at a is not divided by its own, which would give .71."""
    found = state_advantages(THREE, AT, 3)
    assert [a.tolist() for a in found] == [[1.0, 0.75, 0.0], [0.0, -0.75], [-1.0, 0.0]]
    damped = state_advantages(THREE, AT, 3, epsilon=2.0)
    assert [a.tolist() for a in damped] == [[0.5, 0.375, 0.0], [0.0, -0.375], [-0.5, 0.0]]


def test_divided_by_the_spread_of_the_batch() -> None:
    """Totals 3, 1, -1 and 0, 0, 9 of another group (mean 2, squares 1 1 9 4 4 49)."""
    rows, at = [*THREE, np.zeros(1), np.zeros(1), np.array([9.0])], [*AT, ["start"], ["start"], ["start"]]
    std = math.sqrt((1 + 1 + 9 + 4 + 4 + 49) / 5)
    found = state_advantages(rows, at, 3, scale="batch")
    assert found[0].tolist() == pytest.approx([2.0 / std, 1.5 / std, 0.0])
    assert found[5].tolist() == pytest.approx([6.0 / std])


def test_a_stop_is_compared_with_the_walks_at_its_state() -> None:
    """Both stand at one state: one stops and earns 1, the other walks on to an echo and then earns 1: .8 in all."""
    stops, walks_on = np.array([0.0, 1.0]), np.array([0.0, -0.2, 1.0])
    found = state_advantages([stops, walks_on], [["start", "a"], ["start", "a", "a with less"]], 2, scale="none")
    assert found[0].tolist() == pytest.approx([0.1, 0.1])
    assert found[1].tolist() == pytest.approx([-0.1, -0.1, 0.0])


def test_groups_do_not_meet_at_equal_states() -> None:
    """Two groups walk two instances, whose states may have the same name."""
    other = [np.array([5.0, 0.0]), np.array([7.0])]
    at = [["start", "a"], ["start", "a", "b"]]
    first = [np.array([1.0, 2.0]), np.array([0.0, 0.0, 1.0])]
    together = state_advantages([*first, *other], [*at, ["start", "a"], ["start"]], 2)
    apart = state_advantages(first, at, 2) + state_advantages(other, [["start", "a"], ["start"]], 2)
    assert [a.tolist() for a in together] == [a.tolist() for a in apart]


@pytest.mark.parametrize("scale", SCALES)
def test_equal_totals_teach_nothing(scale: AdvantageScale) -> None:
    """Fault kind "identical rewards": equal totals split in different ways are exactly 0, and no NaN."""
    rows = [np.array([0.35, 0.0]), np.array([0.1, 0.25]), np.array([0.35])]
    found = state_advantages(rows, [["s", "a"], ["s", "a"], ["s"]], 3, scale=scale)
    assert [a.tolist() for a in found] == [[0.0, 0.0], [0.0, 0.0], [0.0]]


def test_rows_that_are_not_scored() -> None:
    """Fault kind "unscored reward": they count in no baseline and are nobody's partner; all None gives nothing."""
    rows = [np.array([1.0]), None, np.array([0.0])]
    found = state_advantages(rows, [["s"], [], ["s"]], 3, scale="none")
    assert [a.tolist() for a in found] == [[0.5], [], [-0.5]]
    assert partner_share([["s"], [], ["s"]], 3) == 1.0
    assert [a.tolist() for a in state_advantages([None, None], [[], []], 2, scale="batch")] == [[], []]
    assert partner_share([[], []], 2) is None
    alone = state_advantages([np.array([1.0, 2.0]), None], [["s", "a"], []], 2, scale="batch")
    assert [a.tolist() for a in alone] == [[0.0, 0.0], []]


@pytest.mark.parametrize(("count", "group_size"), [(4, 1), (4, 0), (5, 2)])
def test_impossible_groups_are_refused(count: int, group_size: int) -> None:
    """Fault kind "identical rewards": a group of one has no baseline."""
    with pytest.raises(ValueError, match=f"{count} trajectories do not split into groups of group_size={group_size}"):
        state_advantages([np.zeros(1)] * count, [["s"]] * count, group_size)


def test_states_that_do_not_match_the_actions_are_refused() -> None:
    """Fault kind "off-by-one mask": an advantage never slides to the neighbouring action."""
    with pytest.raises(ValueError, match="trajectory 1 has 1 step rewards and 2 states"):
        state_advantages([np.zeros(1), np.zeros(1)], [["s"], ["s", "a"]], 2)
    with pytest.raises(ValueError, match="2 trajectories, 1 found"):
        state_advantages([np.zeros(1), np.zeros(1)], [["s"]], 2)


def test_partner_share_by_hand() -> None:
    """Of seven actions five share their state: three starts, two at a."""
    assert partner_share(AT, 3) == 5 / 7
    assert partner_share([["s", "a"], ["s", "a"], ["s", "b"], ["s", "c"]], 2) == 6 / 8
    assert partner_share([["s"], ["t"]], 2) == 0.0


# ---------------------------------------------------------------- properties, and a second implementation

# Eighths: sums and differences are exact. Few states, so that walks often meet; each at most once in a walk, as in
# walks, whose budget falls.
WALKS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.integers(-16, 16).map(lambda k: k / 8)),
    min_size=1,
    max_size=5,
    unique_by=lambda step: step[0],
)
GROUPS = st.integers(2, 5).flatmap(
    lambda size: st.tuples(
        st.just(size),
        st.lists(st.one_of(WALKS, st.none()), min_size=size, max_size=3 * size).map(
            lambda walks: walks[: len(walks) // size * size]
        ),
    )
)
Walks = list[list[tuple[str, float]] | None]


def split(walks: Walks) -> tuple[list[Rewards | None], list[list[str]]]:
    rewards = [None if w is None else np.array([r for _, r in w]) for w in walks]
    return rewards, [[] if w is None else [s for s, _ in w] for w in walks]


def brute_force(walks: Walks, size: int, scale: str) -> list[list[float]]:
    """Compare every action with every other one of its group, pair by pair, from the definition alone."""
    totals = [None if w is None else sum(r for _, r in w) for w in walks]
    scored = [t for t in totals if t is not None]
    found = []
    for number, walk in enumerate(walks):
        own = []
        first = number // size * size
        mates = [t for t in totals[first : first + size] if t is not None]
        for i, (state, _) in enumerate(walk or []):
            assert walk is not None
            met = []
            for other in walks[first : first + size]:
                for j, (other_state, _) in enumerate(other or []):
                    if other is not None and other_state == state:
                        met.append(sum(r for _, r in other[j:]))
            value = sum(r for _, r in walk[i:]) - sum(met) / len(met)
            if len(set(mates)) < 2:
                value = 0.0
            elif scale != "none":
                over = mates if scale == "group" else scored
                mean = sum(over) / len(over)
                value /= math.sqrt(sum((t - mean) ** 2 for t in over) / (len(over) - 1))
            own.append(value)
        found.append(own)
    return found


@given(GROUPS, st.sampled_from(SCALES))
def test_equal_to_the_definition_pair_by_pair(case: tuple[int, Walks], scale: AdvantageScale) -> None:
    size, walks = case
    rewards, states = split(walks)
    found = state_advantages(rewards, states, size, scale=scale)
    for own, expected in zip(found, brute_force(walks, size, scale), strict=True):
        assert own.tolist() == pytest.approx(expected, abs=1e-9)
    met = sum(
        any(state in at for k, at in enumerate(states) if k // size == n // size and k != n)
        for n, own_states in enumerate(states)
        for state in own_states
    )
    count = sum(len(own_states) for own_states in states)
    assert partner_share(states, size) == (met / count if count else None)


@given(GROUPS)
def test_at_every_state_the_advantages_cancel_out(case: tuple[int, Walks]) -> None:
    """What one action gains its partners lose: no state is praised as such."""
    size, walks = case
    rewards, states = split(walks)
    found = state_advantages(rewards, states, size)
    for first in range(0, len(walks), size):
        by_state: dict[str, float] = {}
        for at, own in zip(states[first : first + size], found[first : first + size], strict=True):
            for state, value in zip(at, own.tolist(), strict=True):
                by_state[state] = by_state.get(state, 0.0) + value
        assert all(total == pytest.approx(0.0, abs=1e-9) for total in by_state.values())


@given(GROUPS, st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_matter(case: tuple[int, Walks], random: Random) -> None:
    size, walks = case
    walks = walks[:size]
    order = list(range(size))
    random.shuffle(order)
    plain = state_advantages(*split(walks), size)
    mixed = state_advantages(*split([walks[i] for i in order]), size)
    for place, member in enumerate(order):
        assert mixed[place].tolist() == pytest.approx(plain[member].tolist(), abs=1e-9)


@given(GROUPS)
def test_states_that_are_the_step_numbers_of_equal_walks_are_step_advantages(case: tuple[int, Walks]) -> None:
    """An independent route: with the step's number for a state, and walks of one length, both credits are one."""
    size, walks = case
    rewards = [None if w is None else np.array([*(r for _, r in w), *[0.0] * (5 - len(w))]) for w in walks]
    states = [[] if r is None else list(range(5)) for r in rewards]
    for one, two in zip(state_advantages(rewards, states, size), step_advantages(rewards, size), strict=True):
        assert one.tolist() == pytest.approx(two.tolist(), abs=1e-9)


@given(GROUPS, st.lists(st.integers(0, 8).map(lambda k: k / 8), min_size=6, max_size=6))
def test_a_potential_of_the_state_that_is_repaid_changes_nothing(case: tuple[int, Walks], values: list[float]) -> None:
    """Actions at one state start from one potential: repaid shaping moves them all alike, whatever the totals are.

    Walks begin at one state here, as those of a group do.
    """
    size, walks = case
    potential = dict(zip("abcdef", values, strict=True)) | {"start": 0.0, "end": 0.5}
    rewards, states = split([None if w is None else [("start", 0.125), *w] for w in walks])
    shaped = [
        None if r is None else r + shaping_rewards([potential[s] for s in (*at, "end")], is_repaid=True)
        for r, at in zip(rewards, states, strict=True)
    ]
    plain = state_advantages(rewards, states, size)
    for before, after in zip(plain, state_advantages(shaped, states, size), strict=True):
        assert after.tolist() == pytest.approx(before.tolist(), abs=1e-9)


def test_shaping_has_a_spread_of_its_own_unless_it_is_paid_back() -> None:
    """Each part of GiGPO's sum is divided by the spread of the totals it is centred on, and these differ by shaping.

    By hand: the first two of three reach a source (potential 0.5) and stand at one state; the first then earns 1. The
    objective's totals 1, 0, 0 deviate by sqrt(1/3). Shaped they are 1.5, 0.5, 0 and deviate by sqrt(21)/6, which
    divides the step part alone. Paid back they are 1, 0, 0 again, and partners start from one potential: nothing is
    added.
    """
    plain = [np.array([0.0, 1.0]), np.array([0.0, 0.0]), np.array([0.0, 0.0])]
    at = [["start", "a"], ["start", "a"], ["start", "b"]]
    potentials = [[0.0, 0.5, 0.5], [0.0, 0.5, 0.5], [0.0, 0.0, 0.0]]

    def shaped(*, is_repaid: bool) -> list[Rewards]:
        return [r + shaping_rewards(p, is_repaid=is_repaid) for r, p in zip(plain, potentials, strict=True)]

    third, own = math.sqrt(1 / 3), math.sqrt(21) / 6
    whole = group_advantages(np.array([1.0, 0.0, 0.0]), 3).values
    assert whole.tolist() == pytest.approx([2 / 3 / third, -1 / 3 / third, -1 / 3 / third])
    without, unpaid, paid = (
        state_advantages(rows, at, 3) for rows in (plain, shaped(is_repaid=False), shaped(is_repaid=True))
    )
    assert without[0].tolist() == pytest.approx([whole[0], 0.5 / third])
    assert unpaid[0].tolist() == pytest.approx([5 / 6 / own, 0.5 / own])
    assert unpaid[1].tolist() == pytest.approx([-1 / 6 / own, -0.5 / own])
    assert np.concatenate(paid).tolist() == pytest.approx(np.concatenate(without).tolist())
    # No spread in the objective: its part is 0, and shaping still tells the two apart.
    pair = [shaping_rewards([0.0, 0.5]), shaping_rewards([0.0, 0.0])]
    assert state_advantages(pair, [["start"], ["start"]], 2)[0].tolist() == pytest.approx([math.sqrt(0.5)])
