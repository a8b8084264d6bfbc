"""Several processes as one: who plays which tasks, and how results come together again.

Under ``accelerate launch`` every process runs the same program. The harness needs three things of them:
a rank, a world size, and a gather that also makes everyone wait.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from typing import Protocol, TypeVar

from provgym.generators.episode import EpisodeTask

T = TypeVar("T")


class Processes(Protocol):
    """The processes that play one evaluation together."""

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        ...

    @property
    def world_size(self) -> int:
        """How many there are."""
        ...

    def gather(self, items: list[T]) -> list[T]:
        """Return everyone's items, rank by rank, on every process; nobody returns before all have called."""
        ...


class SingleProcess:
    """One process, alone."""

    rank = 0
    world_size = 1

    def gather(self, items: list[T]) -> list[T]:
        """Return the items."""
        return list(items)


class AccelerateProcesses:
    """The processes that ``accelerate launch`` or ``torchrun`` started.

    Raises:
        RuntimeError: If Accelerate sees another number of processes than the launcher announced.
    """

    def __init__(self) -> None:
        import torch
        from accelerate import PartialState

        announced = int(os.environ.get("WORLD_SIZE", "1"))
        was_open = torch.distributed.is_available() and torch.distributed.is_initialized()
        # Without cpu=True Accelerate overlooks a CPU launch, and every process believes it is alone. Where a
        # trainer made the state before, it is shared and the argument is not looked at.
        state = PartialState(cpu=not torch.cuda.is_available())
        if state.num_processes != announced:
            raise RuntimeError(
                f"WORLD_SIZE={announced} processes were started, Accelerate sees {state.num_processes}; "
                "on CPUs launch with ACCELERATE_USE_CPU=true and configs/accelerate/cpu2.yaml"
            )
        if not was_open:
            # Who opens the group closes it: a process that exits with gloo threads running may abort.
            atexit.register(state.destroy_process_group)
        self.rank = int(state.process_index)
        self.world_size = int(state.num_processes)

    def gather(self, items: list[T]) -> list[T]:
        """Return everyone's items through ``accelerate.utils.gather_object``."""
        from accelerate.utils import gather_object

        gathered: list[T] = gather_object(list(items))
        return gathered


def current_processes() -> Processes:
    """Return the processes of this launch, from the launcher's environment; one if there was no launcher."""
    return AccelerateProcesses() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else SingleProcess()


def share_of(tasks: Sequence[EpisodeTask], wanted: Sequence[int], *, rank: int, world_size: int) -> list[int]:
    """Return the task numbers that one process plays: every ``world_size``-th group.

    Tasks that differ in ``member`` alone are a group and stay in one process, where they share a prefill.

    Args:
        tasks: All tasks.
        wanted: Numbers of the tasks to play, ascending.
        rank: Of this process.
        world_size: Number of processes.

    Raises:
        ValueError: If ``rank`` is not in [0, world_size).
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} must lie in [0, {world_size})")
    groups: dict[tuple[str, str, int], list[int]] = {}
    for number in wanted:
        task = tasks[number]
        key = (task.instance.instance_id, task.presentation.mitigation, task.budget)
        groups.setdefault(key, []).append(number)
    return [number for members in list(groups.values())[rank::world_size] for number in members]
