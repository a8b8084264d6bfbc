"""Playing what an evaluation still lacks: each process its share, every episode stored as it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from provgym.eval.episode_store import EpisodeWriter, merge_episodes, read_episodes
from provgym.eval.metric_kinds import is_scored
from provgym.eval.processes import Processes, share_of
from provgym.eval.walk_config import TaskKey, episode_key, task_key
from provgym.generators.episode import Episode, EpisodeTask, Policy

EPISODES_FILE = "episodes.jsonl"
PARTS_PATTERN = "episodes.part-*.jsonl"
Progress = Callable[[int, int], None]
"""Called with (episodes this process has played, episodes it has to play)."""

T = TypeVar("T")


def play_missing(
    policy: Policy,
    tasks: Sequence[EpisodeTask],
    out_dir: Path,
    processes: Processes,
    *,
    retry_errors: bool,
    on_progress: Progress | None,
) -> dict[int, Episode]:
    """Play every task that no earlier call has finished.

    Args:
        policy: Who plays.
        tasks: All tasks of the evaluation, the same on every process.
        out_dir: Where earlier calls left episodes, and where this one leaves them.
        processes: Who plays together.
        retry_errors: Play tasks again whose stored episode ended in ``error``.
        on_progress: Told after each episode.

    Returns:
        Task number to episode, for all tasks, on rank 0; other processes may lack what only rank 0 can read.

    Raises:
        ValueError: If stored episodes cannot be read or belong to another evaluation, or the policy returns
            an episode of another task.
        RuntimeError: If another process failed.
    """
    found = together(processes, lambda: merge_episodes(_read_stored(out_dir, tasks)))
    # Gathering also makes everyone wait: nobody appends before all have read.
    seen = processes.gather([(processes.rank, i, is_scored(e) or not retry_errors) for i, e in found.items()])
    done = {index for _, index, is_final in seen if is_final}
    missing = [index for index in range(len(tasks)) if index not in done]
    mine = share_of(tasks, missing, rank=processes.rank, world_size=processes.world_size)
    part = out_dir / PARTS_PATTERN.replace("*", f"{processes.rank:05d}")
    played = together(processes, lambda: _play(policy, tasks, mine, part, on_progress))
    # Without a shared disk another process may hold episodes that rank 0 never saw.
    on_first = {index for rank, index, _ in seen if rank == 0}
    kept = [(i, e) for i, e in found.items() if processes.rank == 0 or i not in on_first]
    return merge_episodes(processes.gather([*kept, *played.items()]))


def together(processes: Processes, work: Callable[[], T]) -> T:
    """Do a process's work; if any process failed, all stop here instead of waiting for it."""
    try:
        done, failure = [work()], None
    except Exception as error:  # raised again below, once the others know
        done, failure = [], error
    messages = [] if failure is None else [f"process {processes.rank}: {type(failure).__name__}: {failure}"]
    failed = processes.gather(messages)
    if failure is not None:
        raise failure
    if failed:
        raise RuntimeError(f"another process of this launch failed, so this one stops too: {'; '.join(failed)}")
    return done[0]


def _read_stored(out_dir: Path, tasks: Sequence[EpisodeTask]) -> Iterator[tuple[int, Episode]]:
    """Yield (task number, episode) of every episode that earlier calls left behind."""
    number_of: dict[TaskKey, int] = {task_key(task): number for number, task in enumerate(tasks)}
    finished = out_dir / EPISODES_FILE
    parts = sorted(out_dir.glob(PARTS_PATTERN))
    for path in [finished, *parts] if finished.is_file() else parts:
        for episode in read_episodes(path, allow_half_line=path != finished):
            key = episode_key(episode)
            if key not in number_of:
                raise ValueError(
                    f"{path} holds an episode (instance, mitigation, budget, member) = {key} that this "
                    "evaluation does not ask for; choose another folder, or remove that file"
                )
            yield number_of[key], episode


def _play(
    policy: Policy,
    tasks: Sequence[EpisodeTask],
    mine: Sequence[int],
    part: Path,
    on_progress: Progress | None,
) -> dict[int, Episode]:
    """Play this process's tasks, storing each episode as it ends; return them by task number."""
    played: dict[int, Episode] = {}
    if not mine:
        return played
    with EpisodeWriter(part) as writer:

        def keep(index: int, episode: Episode) -> None:
            number = mine[index]
            if number in played:
                return
            if episode_key(episode) != task_key(tasks[number]):
                raise ValueError(
                    f"policy {policy.name!r} returned episode {episode_key(episode)} for task "
                    f"{task_key(tasks[number])}; play must keep the order of its tasks"
                )
            writer.append(episode)
            played[number] = episode
            if on_progress is not None:
                on_progress(len(played), len(mine))

        try:
            episodes = policy.play([tasks[number] for number in mine], keep)
        except Exception as error:
            error.add_note(
                f"{len(played)} of {len(mine)} episodes are kept in {part}; the same call again goes on from there"
            )
            raise
        if len(episodes) != len(mine):
            raise ValueError(f"policy {policy.name!r} returned {len(episodes)} episodes for {len(mine)} tasks")
        for index, episode in enumerate(episodes):
            keep(index, episode)
    return played
