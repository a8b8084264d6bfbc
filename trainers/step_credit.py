"""Step credit for episodes: which action earned what, at which state, and advantages spread over its tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from provgym.envs.provenance import NodeKind
from provgym.envs.trace import step_flags
from provgym.generators.episode import Episode
from provgym.rewards.credit import shaping_rewards, step_advantages, step_rewards
from provgym.rewards.rubric import Rubric
from provgym.rewards.shared_states import state_advantages
from provgym.trainers.papt_config import OptimConfig, ShapingConfig
from provgym.trainers.step_record import EpisodeRecord


def episode_step_rewards(episode: Episode, rubric: Rubric, shaping: ShapingConfig | None = None) -> NDArray[np.float64]:
    """Return what each action of an episode earned, (A,); empty if it has no action (cut before its first token).

    Args:
        episode: A scored episode.
        rubric: Its total is split over the actions.
        shaping: Reward for new sources beside the total, or None.
    """
    if not episode.trace:
        return np.zeros(0)
    flags = step_flags(episode.trace)
    earned = step_rewards(episode.outcome, rubric, **flags)
    if shaping is None:
        return earned
    whole = max(1, episode.outcome.available) if shaping.per == "available" else shaping.per
    potentials = [0.0, *(np.cumsum(flags["is_new"]) / whole)]
    return earned + shaping.weight * shaping_rewards(potentials, is_repaid=shaping.is_repaid)


class WalkState(NamedTuple):
    """The whole state of a walk: what is acquired, and all that can still happen, follows from it.

    Attributes:
        node: Id of the node stood on.
        visited: Ids of all nodes stood on so far.
        budget_left: Walks left.
    """

    node: str
    visited: frozenset[str]
    budget_left: int


def episode_states(episode: Episode) -> tuple[WalkState, ...]:
    """Return the state that each action of an episode was taken at, (A,)."""
    start = f"{NodeKind.CLAIM.name.lower()}:{episode.claim_id}"
    state = WalkState(start, frozenset((start,)), episode.outcome.budget)
    states = []
    for entry in episode.trace:
        states.append(state)
        state = WalkState(entry["node"], state.visited | {entry["node"]}, entry["budget_left"])
    return tuple(states)


def action_advantages(
    records: Sequence[EpisodeRecord], trajectory: NDArray[np.float64], optim: OptimConfig, *, epsilon: float
) -> list[NDArray[np.float64]]:
    """Return one advantage per action, under ``optim.credit`` ``step`` or ``group_step``.

    Shapes: B prompts, G trajectories per prompt, A_i actions of trajectory i.

    Args:
        records: (B*G,) of all processes, group members adjacent.
        trajectory: (B*G,) advantages of whole trajectories.
        optim: Group size, kind of credit, weight of the step part, scale.
        epsilon: Added to the scale.

    Returns:
        (A_i,) advantages per trajectory; empty for one that is not scored.

    Raises:
        ValueError: If ``optim.credit`` judges whole trajectories.
    """
    earned = [None if math.isnan(r.total) else np.array(r.step_rewards) for r in records]
    size, scale = optim.group_size, optim.scale_advantages
    if optim.credit == "step":
        return step_advantages(earned, size, scale=scale, epsilon=epsilon, discount=optim.discount)
    if optim.credit != "group_step":
        raise ValueError(f"credit {optim.credit!r} has no advantages of actions; expected 'step' or 'group_step'")
    by_state = state_advantages(
        earned, [r.states for r in records], size, scale=scale, epsilon=epsilon, discount=optim.discount
    )
    return [whole + optim.step_weight * own for whole, own in zip(trajectory, by_state, strict=True)]


def spread_over_tokens(mask: Sequence[int], advantages: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Give every sampled token its action's advantage, and the world's tokens 0.

    Shapes: C completion tokens, A actions, T columns of the padded batch.

    Args:
        mask: (C,) 1 for a sampled token; each run of ones is one action.
        advantages: (A,) one per action.
        width: T >= C.

    Returns:
        (T,) advantages.

    Raises:
        ValueError: If the mask has another number of runs than there are advantages.

    Example:
        >>> spread_over_tokens([1, 1, 0, 1], np.array([0.5, -1.0]), 5).tolist()
        [0.5, 0.5, 0.0, -1.0, 0.0]
    """
    sampled = np.asarray(mask, dtype=np.int64)
    action = np.cumsum(np.diff(sampled, prepend=0) == 1) - 1  # (C,)
    runs = int(action[-1]) + 1 if len(action) else 0
    if runs != len(advantages):
        raise ValueError(f"the mask has {runs} actions, found {len(advantages)} advantages")
    spread = np.zeros(width)
    if runs:
        spread[: len(sampled)] = np.where(sampled == 1, advantages[np.maximum(action, 0)], 0.0)
    return spread


def token_advantages(
    episodes: Sequence[Episode], advantages: Sequence[NDArray[np.float64]], width: int
) -> NDArray[np.float64]:
    """Return the advantages of each episode's tokens.

    Shapes: B episodes, A_i actions of episode i, T columns of the padded batch.

    Args:
        episodes: (B,) with tokens.
        advantages: (A_i,) per episode; empty for one that is not scored.
        width: T.

    Returns:
        (B, T); 0 throughout for an episode without advantages.

    Raises:
        ValueError: If an episode's sampled tokens are another number of actions than it has advantages.
    """
    return np.stack(
        [
            np.zeros(width) if e.tokens is None or not len(own) else spread_over_tokens(e.tokens.mask, own, width)
            for e, own in zip(episodes, advantages, strict=True)
        ]
    )
