"""Group-relative advantages that stay exact where rewards are equal, missing or not finite."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

AdvantageScale = Literal["group", "batch", "none"]
"""What centred rewards are divided by: the standard deviation of their group, that of the whole step, or nothing."""


class GroupAdvantages(NamedTuple):
    """Advantages and an account of the groups.

    Attributes:
        values: (B*G,) float64.
        zero_spread_groups: Groups whose scored rewards are all equal: they teach nothing.
        unscored_rows: Indices of rows that were not scored.
    """

    values: NDArray[np.float64]
    zero_spread_groups: int
    unscored_rows: NDArray[np.int64]


def group_advantages(
    rewards: NDArray[np.floating], group_size: int, *, scale: AdvantageScale = "group", epsilon: float = 0.0
) -> GroupAdvantages:
    """Centre each reward on the mean of its group, and divide by a sample standard deviation.

    Shapes: B prompts, G trajectories per prompt.

    Args:
        rewards: (B*G,) float; the G trajectories of a prompt are adjacent. NaN = not scored, which is not 0.
        group_size: G, at least 2.
        scale: Divide by the sample standard deviation of the group (GRPO), by that of all scored rewards (Lite PPO,
            arXiv:2508.08221: a group that differs little then counts for little), or not (Dr. GRPO, arXiv:2503.20783).
        epsilon: Added to the standard deviation.

    Returns:
        Advantages; unscored rows, groups with fewer than two scored rows, and groups without spread get exactly 0.

    Raises:
        ValueError: If ``group_size`` < 2 or does not divide ``len(rewards)``.

    Source:
        GRPO, arXiv:2402.03300, section 4.1.2.

    Example:
        >>> group_advantages(np.array([1.0, np.nan, 0.0, 1.0]), 4).values.round(3).tolist()
        [0.577, 0.0, -1.155, 0.577]
    """
    if group_size < 2:
        raise ValueError(f"group_size={group_size} must be >= 2: a group of one has no baseline")
    if rewards.ndim != 1 or len(rewards) % group_size:
        raise ValueError(f"rewards of shape {rewards.shape} do not split into groups of {group_size}")
    grouped = rewards.astype(np.float64).reshape(-1, group_size)  # (B, G)
    scored = np.isfinite(grouped)  # (B, G)
    count = scored.sum(axis=1, keepdims=True)  # (B, 1)
    filled = np.where(scored, grouped, 0.0)
    mean = filled.sum(axis=1, keepdims=True) / np.maximum(count, 1)
    centred = np.where(scored, grouped - mean, 0.0)
    # Equal rewards must give exactly 0; a mean of equal floats need not equal them, so the range decides.
    low = np.where(scored, grouped, np.inf).min(axis=1, keepdims=True)
    high = np.where(scored, grouped, -np.inf).max(axis=1, keepdims=True)
    flat = (count < 2) | (high <= low)
    if scale == "group":
        std = np.sqrt((centred**2).sum(axis=1, keepdims=True) / np.maximum(count - 1, 1))
        centred = centred / np.where(flat, 1.0, std + epsilon)
    elif scale == "batch" and not flat.all():
        centred = centred / (float(grouped[scored].std(ddof=1)) + epsilon)
    values = np.where(flat, 0.0, centred)
    return GroupAdvantages(values.reshape(-1), int(flat.sum()), np.flatnonzero(~scored.reshape(-1)))
