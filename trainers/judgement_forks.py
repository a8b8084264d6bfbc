"""Several judgements of one walk: groups in which a walk is played once and judged more than once.

A walk costs many tokens, a judgement few; and the more judgements stand beside each other, the likelier one of them
says what the policy seldom says. With ``optim.judgements_per_walk`` = K, a group of G trajectories has G / K walks; the
members behind each of them state another judgement of it, sampled from where it decided to stop. Judgements are
compared within the whole group, those of one walk and those of others alike; walking is compared between walks, of
which each counts once (:class:`~provgym.rewards.credit.Branch`).

Source: ours; rows that branch off a shared trajectory are what TreeRL, arXiv:2506.11902, does at uncertain tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    is_fork = [bool(place % per_walk and kept[place // per_walk]) for place in range(len(tasks))]
    alone = [place for place in range(len(tasks)) if place % per_walk and not is_fork[place]]
    forked = [place for place in range(len(tasks)) if is_fork[place]]
    forks = [Fork(tasks[place], walked[place // per_walk], kept[place // per_walk]) for place in forked]
    found = dict(zip(range(0, len(tasks), per_walk), walked, strict=True))
    found |= zip(alone, play([tasks[place] for place in alone]) if alone else [], strict=True)
    found |= zip(forked, judge_again(forks) if forks else [], strict=True)
    return PlayedGroups([found[place] for place in range(len(tasks))], is_fork)


def _kept(episode: Episode, decided: int) -> int:
    """Return the tokens of the last action that its forks keep; 0 where the decision is all of it."""
    return decided if episode.tokens is not None and decided < len(last_action(episode.tokens.mask)) else 0
