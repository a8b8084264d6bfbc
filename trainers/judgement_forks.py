"""Several judgements of one walk: groups in which a walk is played once and judged more than once.

A walk costs many tokens, a judgement few; and the more judgements stand beside each other, the likelier one of them
says what the policy seldom says. With ``optim.judgements_per_walk`` = K, a group of G trajectories has G / K walks; the
members behind each of them state another judgement of it, sampled from where it decided to stop. Judgements are
compared within the whole group, those of one walk and those of others alike; walking is compared between walks. A
judged walk stands in the group K times over, one without a judgement once: in mixed groups the latter weighs less.

Known flaw: a fork without a valid judgement also gets its walker's advantage of having decided to stop, which is no
baseline there but a bonus or a penalty on being invalid.

Source: ours; rows that branch off a shared trajectory are what TreeRL, arXiv:2506.11902, does at uncertain tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from provgym.generators.episode import Episode, EpisodeTask, last_action
from provgym.generators.rollout import Fork

PlayTasks = Callable[[Sequence[EpisodeTask]], list[Episode]]
JudgeAgain = Callable[[Sequence[Fork]], list[Episode]]


@dataclass(frozen=True)
class PlayedGroups:
    """Episodes of a step.

    Attributes:
        episodes: One per task, in order.
        is_fork: Whether an episode's walk is another one's, and only what follows it was sampled.
    """

    episodes: list[Episode]
    is_fork: list[bool]


def play_groups(
    tasks: Sequence[EpisodeTask],
    per_walk: int,
    play: PlayTasks,
    judge_again: JudgeAgain,
    decided: Callable[[Episode], int],
) -> PlayedGroups:
    """Play one walk for every ``per_walk`` tasks, and let the others judge it.

    A member behind a walk that ended without a judgement plays an episode of its own: there is nothing to judge again.

    Args:
        tasks: Whole runs of ``per_walk`` members of one group, each beginning with the member that walks.
        per_walk: K >= 1; 1 plays every task.
        play: Plays tasks.
        judge_again: Samples judgements.
        decided: Returns how many leading tokens of an episode's last action decided to stop; 0 without a judgement.

    Raises:
        ValueError: If the tasks are not whole runs.
    """
    if any((place - task.member) % per_walk for place, task in enumerate(tasks)) or len(tasks) % per_walk:
        raise ValueError(
            f"a process has {len(tasks)} trajectories that begin with member {tasks[0].member if tasks else 0} of a "
            f"group; optim.judgements_per_walk={per_walk} needs each walk and its judgements on one process: choose "
            "optim.groups_per_step so that every process gets whole groups"
        )
    walked = play(tasks[::per_walk])
    if per_walk == 1:
        return PlayedGroups(walked, [False] * len(walked))
    kept = [_kept(episode, decided(episode)) for episode in walked]
    places = [place for place in range(len(tasks)) if place % per_walk]
    forked = [place for place in places if kept[place // per_walk]]
    alone = [place for place in places if not kept[place // per_walk]]
    found = dict(zip(range(0, len(tasks), per_walk), walked, strict=True))
    found |= dict(zip(alone, play([tasks[place] for place in alone]), strict=True)) if alone else {}
    forks = [Fork(tasks[place], walked[place // per_walk], kept[place // per_walk]) for place in forked]
    found |= dict(zip(forked, judge_again(forks), strict=True)) if forks else {}
    order = range(len(tasks))
    return PlayedGroups([found[place] for place in order], [place in set(forked) for place in order])


def _kept(episode: Episode, decided: int) -> int:
    """Return the tokens of the last action that its forks keep; 0 where the decision is all of it."""
    return decided if episode.tokens is not None and decided < len(last_action(episode.tokens.mask)) else 0


def credit_of_forks(
    episodes: Sequence[Episode],
    is_fork: Sequence[bool],
    walking: Sequence[NDArray[np.float64]],
    decisions: Sequence[int],
) -> tuple[list[NDArray[np.float64]], list[int]]:
    """Return what :func:`~provgym.trainers.split_credit.split_token_advantages` is to know of episodes with forks.

    A fork answers for the actions that it sampled, not for the walk that it took over. Where its first one is the
    judgement, that one gets the advantage of judging alone.

    Args:
        episodes: (B,) with tokens.
        is_fork: (B,).
        walking: (A_i,) per episode, over all its actions; empty for one that is not scored.
        decisions: (B,) leading tokens of the last action that decide to stop.

    Returns:
        Walking's advantages per sampled action, and decisions, for each episode.
    """
    own, decided = list(walking), list(decisions)
    for number, episode in enumerate(episodes):
        if not is_fork[number] or episode.tokens is None or not len(walking[number]):
            continue
        runs = int((np.diff(np.asarray(episode.tokens.mask), prepend=0) == 1).sum())
        own[number] = walking[number][len(walking[number]) - runs :]
        if runs == 1:
            decided[number] = 0
            if episode.outcome.judgement is not None:
                own[number] = np.zeros(1)
    return own, decided
