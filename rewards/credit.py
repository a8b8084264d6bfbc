"""Step credit: the rubric's total split over the actions that earned it, and advantages for each action.

Splitting is exact: the step rewards of an episode sum to the rubric's total. An action is then judged by what came
from it onwards, as in GRPO's process supervision, instead of by the whole episode.

Source: DeepSeekMath, arXiv:2402.03300, section 4.1.3; the split of the PAPT terms is ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from provgym.rewards.advantages import AdvantageScale
from provgym.rewards.outcome import WalkOutcome
from provgym.rewards.rubric import Rubric


def step_rewards(
    outcome: WalkOutcome,
    rubric: Rubric,
    *,
    is_new: Sequence[bool],
    is_echo: Sequence[bool],
    is_charged: Sequence[bool],
    is_illegal: Sequence[bool],
) -> NDArray[np.float64]:
    """Split an episode's total over its actions.

    Coverage goes to the walks that reached a new source (evenly), echo to the walks that repeated one, cost to the
    actions that used budget, illegality to the actions that did nothing; verdict and count, and any term that
    nothing earned, go to the last action.

    Shapes: A actions.

    Args:
        outcome: A finished, scored walk.
        rubric: The objective.
        is_new: (A,) whether the action reached a source not acquired before.
        is_echo: (A,) whether it repeated an acquired atom.
        is_charged: (A,) whether it used a walk of the budget.
        is_illegal: (A,) whether it followed no edge or could not be parsed.

    Returns:
        (A,) rewards that sum to ``rubric.score(outcome).total``.

    Raises:
        ValueError: If there is no action, or the sequences differ in length.
    """
    lengths = [len(flags) for flags in (is_new, is_echo, is_charged, is_illegal)]
    if not lengths[0] or len(set(lengths)) > 1:
        raise ValueError(f"need one flag per action in each sequence, found {lengths}")
    earned = {"coverage": is_new, "echo": is_echo, "cost": is_charged, "illegal": is_illegal}
    rewards = np.zeros(len(is_new))
    for name, value in rubric.score(outcome).terms.items():
        amount = rubric.weights[name] * value
        flags = np.asarray(earned.get(name, ()), dtype=np.float64)
        if flags.size and flags.sum() > 0:
            rewards += amount * flags / flags.sum()
        else:
            rewards[-1] += amount
    return rewards


def shaping_rewards(potentials: Sequence[float], *, is_repaid: bool = False) -> NDArray[np.float64]:
    """Return what each action adds to a potential of the state: ``phi(after) - phi(before)``, discount 1.

    Shapes: A actions, A + 1 states.

    Args:
        potentials: (A + 1,) phi before the first action and after each action.
        is_repaid: Let the last action pay everything back, as if the end's potential were that of the start. Only so
            does shaping leave the best policy as it was. Without, the sum is what the walk gained.

    Returns:
        (A,) rewards. They telescope: their sum is ``phi(end) - phi(start)``, or 0 if repaid, whatever was done in
        between. So under advantages of whole trajectories they say no more than a term at the end would.

    Raises:
        ValueError: If there is no action.

    Source:
        Ng, Harada and Russell, Policy invariance under reward transformations, ICML 1999.

    Example:
        >>> shaping_rewards([0.0, 0.5, 0.5, 1.0]).tolist(), shaping_rewards([0.0, 0.5, 1.0], is_repaid=True).tolist()
        ([0.5, 0.0, 0.5], [0.5, -0.5])
    """
    if len(potentials) < 2:
        raise ValueError(f"need the potential before and after one action at least, found {len(potentials)} potentials")
    ends = np.array(potentials, dtype=np.float64)
    if is_repaid:
        ends[-1] = ends[0]
    return np.diff(ends)


class Branch(NamedTuple):
    """A trajectory that takes another one's actions over, up to its last, and goes on in its own way.

    Attributes:
        trunk: Row of the other one, in the same group; no branch itself.
        taken: Actions taken over, all of the trunk's but its last.
    """

    trunk: int
    taken: int


def step_advantages(
    rewards: Sequence[NDArray[np.float64] | None],
    group_size: int,
    *,
    scale: AdvantageScale = "group",
    epsilon: float = 0.0,
    discount: float = 1.0,
    branches: Mapping[int, Branch] | None = None,
) -> list[NDArray[np.float64]]:
    """Return each action's return-to-go, centred on the group's at the same step.

    A member that has ended counts at later steps with its last action's return: what stopping was worth.

    A branch is in no mean and no spread, so that every walk counts once. Its own actions are compared with what its
    trunk's last action came to, in the very state that it branches off at: one that earns the same gets 0.

    Shapes: B prompts, G trajectories per prompt, A_i actions of trajectory i.

    Args:
        rewards: (B*G,) step rewards, the G trajectories of a prompt adjacent; None = not scored.
        group_size: G, at least 2.
        scale: Divide by the sample standard deviation of the group's totals, by that of all totals, or not.
        epsilon: Added to it.
        discount: Of later rewards, per action; see :func:`groups_to_go`.
        branches: Row to where it branches off.

    Returns:
        (A_i,) advantages per trajectory, of a branch those of its own actions alone; empty for one that is not scored,
        and 0 where totals have no spread.

    Raises:
        ValueError: If ``group_size`` < 2 or does not divide the number of trajectories.
    """
    branches = branches or {}
    trunks = [None if row in branches else earned for row, earned in enumerate(rewards)]
    groups = groups_to_go(trunks, group_size, scale=scale, epsilon=epsilon, discount=discount)
    advantages = [own for group, divisor in groups for own in _same_step(group, divisor)]
    for row, (trunk, taken) in branches.items():
        earned, (group, divisor) = rewards[row], groups[trunk // group_size]
        if earned is not None:
            own = _returns_to_go(earned, discount)[taken:]
            stopped = group[trunk % group_size]
            advantages[row] = np.zeros_like(own) if divisor is None else (own - stopped[-1]) / divisor
    return advantages


def groups_to_go(
    rewards: Sequence[NDArray[np.float64] | None],
    group_size: int,
    *,
    scale: AdvantageScale,
    epsilon: float,
    discount: float = 1.0,
) -> list[tuple[list[NDArray[np.float64]], float | None]]:
    """Return the returns-to-go of each group, and what its advantages are divided by.

    Shapes: as in :func:`step_advantages`.

    Args:
        rewards: As in :func:`step_advantages`.
        group_size: G.
        scale: What the divisor is.
        epsilon: Added to it.
        discount: A reward n actions later counts ``discount ** n`` of itself, in [0, 1]. Below 1 an action answers less
            for what others did after it: less noise, and less sight. The divisor is of undiscounted totals.

    Returns:
        Per group: (A_i,) returns-to-go, empty for a trajectory that is not scored or has no action; and the divisor,
        None for a group that teaches nothing because its totals have no spread.

    Raises:
        ValueError: If ``group_size`` < 2 or does not divide the number of trajectories.
    """
    if group_size < 2 or len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} trajectories do not split into groups of group_size={group_size} >= 2")
    to_go = [np.zeros(0) if r is None else _returns_to_go(r, discount) for r in rewards]
    totals_by_row = [_returns_to_go(r, 1.0)[0] if r is not None and r.size else math.nan for r in rewards]
    totals_of_all = [total for total in totals_by_row if not math.isnan(total)]
    spread_of_all = float(np.std(totals_of_all, ddof=1)) if scale == "batch" and len(totals_of_all) > 1 else 0.0
    found: list[tuple[list[NDArray[np.float64]], float | None]] = []
    for start in range(0, len(to_go), group_size):
        group = to_go[start : start + group_size]
        totals = np.array([t for t in totals_by_row[start : start + group_size] if not math.isnan(t)])
        if len(totals) < 2 or np.ptp(totals) <= 1e-9:
            found.append((group, None))
        elif scale == "group":
            found.append((group, float(totals.std(ddof=1)) + epsilon))
        else:
            found.append((group, spread_of_all + epsilon if scale == "batch" else 1.0))
    return found


def _returns_to_go(rewards: NDArray[np.float64], discount: float) -> NDArray[np.float64]:
    """Return what came from each action on, (A,)."""
    if discount == 1.0:
        return np.cumsum(rewards[::-1])[::-1]
    returns = rewards.astype(np.float64)
    for action in range(len(returns) - 2, -1, -1):
        returns[action] += discount * returns[action + 1]
    return returns


def _same_step(to_go: Sequence[NDArray[np.float64]], divisor: float | None) -> list[NDArray[np.float64]]:
    """Centre returns-to-go on the mean of the group at the same step."""
    if divisor is None:
        return [np.zeros_like(g) for g in to_go]
    scored = [g for g in to_go if g.size]
    longest = max(g.size for g in scored)
    # A member that has ended carries its last return on.
    table = np.array([np.concatenate([g, np.full(longest - g.size, g[-1])]) for g in scored])  # (scored, A)
    baseline = table.mean(axis=0)  # (A,)
    return [(g - baseline[: g.size]) / divisor for g in to_go]
