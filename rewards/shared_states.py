"""Step advantages at shared states: actions taken at one and the same state of a group are compared with each other.

The members of a group walk the same instance, so several of them often stand at the same whole state: the same node,
the same nodes visited, the same budget left. What they did there is compared by its return-to-go. Less than the whole
state (the node alone) would compare actions with different pasts, and call the past's merit the action's.

Source: GiGPO, arXiv:2505.10978 (anchor states, step relative advantages). Ours: no discount by default; exact anchors,
never similar observations; both parts are divided by the spread of the group's totals, because a pair of actions
divided by its own spread comes out as 0.7 and -0.7 however little the two differ.

Each part is divided by the spread of the very totals that it is centred on. The step rewards hold shaping and a
trajectory's total does not, so under shaping that is not paid back the two spreads differ, and that is meant: each part
then has the scale of what it compares, and where the objective alone has no spread the step part still has one. With
shaping that is paid back, or without, both spreads are one number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from provgym.rewards.advantages import AdvantageScale
from provgym.rewards.credit import groups_to_go

States = Sequence[Sequence[Hashable]]
"""The state each action of each trajectory was taken at; states compare equal if and only if they are the same."""


def state_advantages(
    rewards: Sequence[NDArray[np.float64] | None],
    states: States,
    group_size: int,
    *,
    scale: AdvantageScale = "group",
    epsilon: float = 0.0,
    discount: float = 1.0,
) -> list[NDArray[np.float64]]:
    """Return each action's return-to-go, centred on those of all actions of its group at the same state.

    Shapes: B prompts, G trajectories per prompt, A_i actions of trajectory i.

    Args:
        rewards: (B*G,) step rewards, the G trajectories of a prompt adjacent; None = not scored.
        states: (B*G,) the A_i states before each action.
        group_size: G, at least 2.
        scale: Divide by the sample standard deviation of the group's totals, by that of all totals, or not.
        epsilon: Added to it.
        discount: Of later rewards, per action; see :func:`provgym.rewards.credit.groups_to_go`.

    Returns:
        (A_i,) advantages per trajectory: 0 for an action without a partner and where totals have no spread; empty for
        a trajectory that is not scored.

    Raises:
        ValueError: If ``group_size`` < 2 or does not divide the number of trajectories, or a scored trajectory has
            another number of states than of rewards.

    Source:
        GiGPO, arXiv:2505.10978, step relative advantages.

    Example:
        >>> first, second = np.array([0.0, 1.0]), np.array([0.0, 0.5])
        >>> [a.tolist() for a in state_advantages([first, second], [["s", "x"], ["s", "y"]], 2, scale="none")]
        [[0.25, 0.0], [-0.25, 0.0]]
    """
    _check_states(rewards, states)
    advantages: list[NDArray[np.float64]] = []
    groups = groups_to_go(rewards, group_size, scale=scale, epsilon=epsilon, discount=discount)
    for number, (to_go, divisor) in enumerate(groups):
        own = states[number * group_size : (number + 1) * group_size]
        if divisor is None:
            advantages += [np.zeros_like(g) for g in to_go]
            continue
        met: defaultdict[Hashable, list[float]] = defaultdict(list)
        for returns, at in zip(to_go, own, strict=True):
            for value, state in zip(returns.tolist(), at[: returns.size], strict=True):
                met[state].append(value)
        # An action alone is its own mean: exactly 0.
        baseline = {state: float(np.mean(values)) for state, values in met.items()}
        for returns, at in zip(to_go, own, strict=True):
            centred = returns - np.array([baseline[state] for state in at[: returns.size]], dtype=np.float64)
            advantages.append(centred / divisor)
    return advantages


def partner_share(states: States, group_size: int) -> float | None:
    """Return the share of actions that share their state with another action of their group.

    Args:
        states: (B*G,) the states before each action, group members adjacent; empty for one that is not scored.
        group_size: G, at least 2.

    Returns:
        In [0, 1]; None if there is no action.

    Example:
        >>> partner_share([["s", "x"], ["s", "y"]], 2)
        0.5
    """
    actions = with_partner = 0
    for start in range(0, len(states), group_size):
        counts: defaultdict[Hashable, int] = defaultdict(int)
        for state in (state for at in states[start : start + group_size] for state in at):
            counts[state] += 1
        actions += sum(counts.values())
        with_partner += sum(count for count in counts.values() if count > 1)
    return with_partner / actions if actions else None


def _check_states(rewards: Sequence[NDArray[np.float64] | None], states: States) -> None:
    if len(rewards) != len(states):
        raise ValueError(f"need the states of every trajectory: {len(rewards)} trajectories, {len(states)} found")
    for number, (earned, at) in enumerate(zip(rewards, states, strict=True)):
        if earned is not None and len(earned) != len(at):
            raise ValueError(
                f"trajectory {number} has {len(earned)} step rewards and {len(at)} states, expected as many"
            )
