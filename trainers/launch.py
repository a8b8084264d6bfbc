"""What every training run does around its training: count processes, keep others out of its folder, start over."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from accelerate import PartialState
from filelock import FileLock, Timeout

from provgym.trainers.step_record import RunStopped


class RunSettings(Protocol):
    """What is common to the configurations of all trainers."""

    @property
    def name(self) -> str:
        """Folder below ``runs_dir``."""
        ...

    @property
    def runs_dir(self) -> Path:
        """Where runs lie."""
        ...

    @property
    def run_dir(self) -> Path:
        """Where the run's files go."""
        ...

    @property
    def num_processes(self) -> int | None:
        """World size the run is meant for; None takes what it is launched with."""
        ...


@dataclass(frozen=True)
class World:
    """The processes of this launch."""

    size: int
    rank: int

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0


def join_world(config: RunSettings) -> World:
    """Start the processes' state and check that there are as many as asked for.

    Raises:
        RunStopped: If the launcher announced, or the configuration asks for, another number.
    """
    announced = int(os.environ.get("WORLD_SIZE", "1"))
    on_cpu = not torch.cuda.is_available()
    # The first state made decides for accelerate and TRL: without cpu=True each CPU process believes it is alone.
    state = PartialState(cpu=on_cpu)
    if on_cpu and announced > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // announced))
    for wanted, who in (
        (announced, "the launcher announced"),
        (config.num_processes, "num_processes asks for"),
    ):
        if wanted is not None and state.num_processes != wanted:
            raise RunStopped(
                f"{who} {wanted} processes, but {state.num_processes} take part; on CPUs launch with "
                "`accelerate launch --config_file configs/accelerate/cpu2.yaml` (plain --num_processes starts one)"
            )
    return World(state.num_processes, state.process_index)


def throw_away(folder: Path) -> None:
    """Remove an earlier run's folder, if there is one.

    Raises:
        ValueError: If it holds something else than a run; nothing is removed.
    """
    if not folder.exists():
        return
    is_run = (folder / "config.yaml").is_file() or (folder / "checkpoints").is_dir()
    if not is_run and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"{folder} is no run: found neither config.yaml nor checkpoints/ in it, expected one of them; --fresh "
            "leaves it alone: choose another name or runs_dir"
        )
    shutil.rmtree(folder)


@contextmanager
def sole_trainer(config: RunSettings, world: World) -> Iterator[None]:
    """Keep other launches out of a run's folder, such as one after its study was killed and this run was not.

    Raises:
        BlockingIOError: If another process trains that run.
    """
    if not world.is_main:
        yield
        return
    path = config.runs_dir / f".{config.name}.lock"  # beside the run: --fresh throws away what lies in it
    path.parent.mkdir(parents=True, exist_ok=True)
    # The system lets go of the lock when a process dies, however it dies.
    lock = FileLock(path, blocking=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise BlockingIOError(
            f"{config.run_dir} is being trained by another process that is still running; wait for it or end it, or "
            "choose another name"
        ) from error
    try:
        yield
    finally:
        lock.release()
        path.unlink(missing_ok=True)
