"""Step credit for episodes: which action earned what, and advantages spread over each action's tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from provgym.envs.walk import StepKind
from provgym.generators.episode import Episode
from provgym.rewards.credit import step_rewards
from provgym.rewards.rubric import Rubric

_CHARGED = (StepKind.NEW, StepKind.ECHO, StepKind.CONNECTOR, StepKind.ILLEGAL, StepKind.UNPARSED)
_ILLEGAL = (StepKind.ILLEGAL, StepKind.UNPARSED)


def episode_step_rewards(episode: Episode, rubric: Rubric) -> NDArray[np.float64]:
    """Return what each action of an episode earned, (A,); empty if it has no action (cut before its first token)."""
    kinds = [StepKind(entry["kind"]) for entry in episode.trace]
    if not kinds:
        return np.zeros(0)
    seen: set[str | None] = set()
    is_new = []
    for kind, entry in zip(kinds, episode.trace, strict=True):
        is_new.append(kind is StepKind.NEW and entry["source"] not in seen)
        seen.add(entry["source"])
    return step_rewards(
        episode.outcome,
        rubric,
        is_new=is_new,
        is_echo=[kind is StepKind.ECHO for kind in kinds],
        is_charged=[kind in _CHARGED for kind in kinds],
        is_illegal=[kind in _ILLEGAL for kind in kinds],
    )


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
