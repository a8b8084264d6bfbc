"""Group advantages: exact where rewards are equal or missing, an independent formula elsewhere."""

from random import Random
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from provgym.rewards.advantages import AdvantageScale, group_advantages

GROUPS = st.integers(2, 6).flatmap(
    lambda size: st.tuples(
        st.just(size),
        st.integers(1, 4).flatmap(
            # Quarters: sums and differences are exact, so that invariances can be asked for closely.
            lambda rows: hnp.arrays(np.float64, rows * size, elements=st.integers(-8, 8).map(lambda k: k / 4))
        ),
    )
)


def nan_at(rewards: list[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if r is None else r for r in rewards])


@pytest.mark.parametrize("value", [0.35, 0.0, 1.0, -0.1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", get_args(AdvantageScale))
def test_equal_rewards_give_exactly_zero(value: float, dtype: type[np.floating], scale: AdvantageScale) -> None:
    """Fault kind "identical rewards": seven of 0.35, all 0, all 1."""
    found = group_advantages(np.full(7, value, dtype=dtype), 7, scale=scale)
    assert (found.values == 0.0).all()
    assert found.zero_spread_groups == 1
    assert len(found.unscored_rows) == 0


@pytest.mark.parametrize("group_size", [1, 0, -3])
def test_a_group_of_one_is_refused(group_size: int) -> None:
    """Fault kind "identical rewards": a group of one has no baseline."""
    with pytest.raises(ValueError, match=f"group_size={group_size} must be >= 2"):
        group_advantages(np.zeros(4), group_size)


@pytest.mark.parametrize("shape", [(5,), (2, 4)])
def test_rewards_that_do_not_split_into_groups_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="do not split into groups of 4"):
        group_advantages(np.zeros(shape), 4)


def test_an_unscored_reward_is_left_out_of_the_baseline() -> None:
    """Fault kind "unscored reward": the baseline is over the three, 0.667, with the sample std."""
    rewards = nan_at([1.0, None, 0.0, 1.0])
    found = group_advantages(rewards, 4)
    std = np.sqrt(((1 / 3) ** 2 * 2 + (2 / 3) ** 2) / 2)
    assert found.values == pytest.approx([1 / 3 / std, 0.0, -2 / 3 / std, 1 / 3 / std])
    assert found.values.round(3).tolist() == [0.577, 0.0, -1.155, 0.577]
    assert found.values[1] == 0.0
    assert found.unscored_rows.tolist() == [1]
    assert found.zero_spread_groups == 0
    centred = group_advantages(rewards, 4, scale="none")
    assert centred.values == pytest.approx([1 / 3, 0.0, -2 / 3, 1 / 3])


def test_a_group_without_any_score_gives_zeros_and_names_its_rows() -> None:
    """Fault kind "unscored reward": all None."""
    found = group_advantages(nan_at([1.0, 0.0, None, None, 2.0, 2.0]), 2)
    assert found.values.tolist() == pytest.approx([0.5**0.5, -(0.5**0.5), 0.0, 0.0, 0.0, 0.0])
    assert found.unscored_rows.tolist() == [2, 3]
    assert found.zero_spread_groups == 2


def test_one_scored_row_alone_teaches_nothing() -> None:
    found = group_advantages(nan_at([None, 3.0, None]), 3)
    assert found.values.tolist() == [0.0, 0.0, 0.0]
    assert found.zero_spread_groups == 1


@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_an_infinite_reward_counts_as_unscored(bad: float) -> None:
    found = group_advantages(np.array([bad, 0.0, 1.0]), 3)
    assert np.isfinite(found.values).all()
    assert found.unscored_rows.tolist() == [0]
    assert found.values[1:].tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5])


def test_a_tiny_spread_is_a_spread() -> None:
    found = group_advantages(np.array([0.5, 0.5 + 1e-12]), 2)
    assert found.zero_spread_groups == 0
    assert found.values == pytest.approx([-(0.5**0.5), 0.5**0.5], rel=1e-3)


def test_epsilon_is_added_to_the_deviation() -> None:
    assert group_advantages(np.array([0.0, 2.0]), 2, epsilon=1.0).values == pytest.approx(
        [-1 / (2**0.5 + 1), 1 / (2**0.5 + 1)]
    )


def test_the_spread_of_the_batch_by_hand() -> None:
    """Groups 0 1 and 0 9, one row unscored beside each: one standard deviation for all four scored rewards."""
    rewards = nan_at([0.0, 1.0, None, 0.0, None, 9.0])
    std = np.std([0.0, 1.0, 0.0, 9.0], ddof=1)
    found = group_advantages(rewards, 3, scale="batch")
    assert found.values == pytest.approx(np.array([-0.5, 0.5, 0.0, -4.5, 0.0, 4.5]) / std)
    assert found.zero_spread_groups == 0
    damped = group_advantages(rewards, 3, scale="batch", epsilon=1.0)
    assert damped.values == pytest.approx(np.array([-0.5, 0.5, 0.0, -4.5, 0.0, 4.5]) / (std + 1.0))


def test_a_group_without_spread_stays_zero_whatever_the_batch() -> None:
    """Fault kind "identical rewards": its neighbours' spread makes nothing of it."""
    found = group_advantages(np.array([0.35, 0.35, 1.0, 0.0]), 2, scale="batch")
    assert found.values[:2].tolist() == [0.0, 0.0]
    assert found.values[2:].any()
    assert found.zero_spread_groups == 1


@given(GROUPS)
def test_scales_differ_by_a_factor_alone(case: tuple[int, NDArray[np.float64]]) -> None:
    """Batch: one positive factor for all; independent of TRL's formula, torch's standard deviation of all rewards."""
    size, rewards = case
    centred = group_advantages(rewards, size, scale="none").values
    found = group_advantages(rewards, size, scale="batch").values
    assert found * float(torch.tensor(rewards).std()) == pytest.approx(centred, abs=1e-9)


@given(GROUPS)
def test_equal_to_torch(case: tuple[int, NDArray[np.float64]]) -> None:
    size, rewards = case
    grouped = torch.tensor(rewards).reshape(-1, size)
    centred = grouped - grouped.mean(dim=1, keepdim=True)
    expected = centred / grouped.std(dim=1, keepdim=True)
    expected[grouped.amax(1) == grouped.amin(1)] = 0.0
    found = group_advantages(rewards, size)
    assert found.values == pytest.approx(expected.reshape(-1).numpy(), abs=1e-9)
    assert found.zero_spread_groups == int((grouped.amax(1) == grouped.amin(1)).sum())


@given(GROUPS, st.integers(-5, 5), st.sampled_from([0.5, 2.0, 4.0]))
def test_neither_a_shift_nor_a_positive_scale_matters(
    case: tuple[int, NDArray[np.float64]], shift: int, scale: float
) -> None:
    size, rewards = case
    plain = group_advantages(rewards, size).values
    assert group_advantages(rewards * scale + shift, size).values == pytest.approx(plain, abs=1e-9)
    assert group_advantages(-rewards, size).values == pytest.approx(-plain, abs=1e-9)


@given(GROUPS, st.randoms(use_true_random=False))
def test_order_within_a_group_and_other_groups_do_not_matter(
    case: tuple[int, NDArray[np.float64]], random: Random
) -> None:
    size, rewards = case
    plain = group_advantages(rewards, size).values
    order = list(range(size))
    random.shuffle(order)
    shuffled = rewards.reshape(-1, size)[:, order].reshape(-1)
    expected = plain.reshape(-1, size)[:, order].reshape(-1)
    assert group_advantages(shuffled, size).values == pytest.approx(expected, abs=1e-9)
    assert group_advantages(rewards[:size], size).values == pytest.approx(plain[:size], abs=1e-12)


@given(GROUPS, st.data())
def test_scored_rows_are_as_if_the_others_were_not_there(
    case: tuple[int, NDArray[np.float64]], data: st.DataObject
) -> None:
    size, rewards = case
    group = rewards[:size]
    hidden = data.draw(hnp.arrays(np.bool_, size))
    found = group_advantages(np.where(hidden, np.nan, group), size).values
    assert (found[hidden] == 0.0).all()
    if (~hidden).sum() >= 2:
        assert found[~hidden] == pytest.approx(group_advantages(group[~hidden], int((~hidden).sum())).values)
    else:
        assert (found == 0.0).all()
    assert found.sum() == pytest.approx(0.0, abs=1e-9)


def test_the_rewards_are_not_changed() -> None:
    rewards = nan_at([1.0, None, 0.0, 1.0])
    before = rewards.copy()
    group_advantages(rewards, 4)
    assert np.array_equal(rewards, before, equal_nan=True)
