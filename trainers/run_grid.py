"""A grid of training runs: each a process of its own, finished ones skipped, one failure never the others'.

What is finished is told by ``summary.json`` and its ``training_hash``; an interrupted run goes on from its last whole
checkpoint by itself. So the same plan given again does what is missing.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Generic, TypeVar

from provgym.eval.run_files import write_atomic
from provgym.trainers.config_file import ConfigError, dump_config
from provgym.trainers.run_config import RunConfig
from provgym.trainers.run_process import RunProcess, end_all

ConfigT = TypeVar("ConfigT", bound=RunConfig, covariant=True)

POLL_S = 0.2
STALL_S = 6 * 3600.0
"""Seconds without a trace after which a run hangs (ours): far more than a step, a checkpoint or an episode takes."""


@dataclass(frozen=True)
class PlannedRun(Generic[ConfigT]):
    """One run of the plan.

    Attributes:
        label: What it shares with the runs of other seeds: its objective, or its arm of a study.
        config: Its configuration, seed and name included.
    """

    label: str
    config: ConfigT

    @property
    def seed(self) -> int:
        """Its training seed."""
        return self.config.seed

    @property
    def run_dir(self) -> Path:
        """Its folder."""
        return self.config.run_dir


def training_hash_of(config: RunConfig) -> str:
    """Return the hash of what decides the weights of a run, as its trainer makes it."""
    return str(importlib.import_module(config.trainer).training_hash(config))  # here, because it may import TRL


def is_finished(run: PlannedRun[RunConfig]) -> bool:
    """Whether a run's ``summary.json`` stands and is of this very training.

    Raises:
        ConfigError: If it is of another training.
    """
    path = run.run_dir / "summary.json"
    if not path.is_file():
        return False
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("training_hash")
    except (json.JSONDecodeError, AttributeError) as error:
        raise ConfigError(f"{path} is no summary of a run ({error}); remove it") from error
    wanted = training_hash_of(run.config)
    if found != wanted:
        raise ConfigError(
            f"{path} was trained under configuration {found}, this plan has {wanted}; remove {run.run_dir}, or give "
            "this plan another name"
        )
    return True


def command_of(trainer: str, config_file: Path, accelerate: Path | None) -> list[str]:
    """Return the command of one run.

    Args:
        trainer: Module that trains it.
        config_file: Its configuration.
        accelerate: File to launch it with; None starts it plainly.
    """
    module = ["-m", trainer, "--config", str(config_file)]
    if accelerate is None:
        return [sys.executable, *module]
    return [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(accelerate), *module]


def run_missing(
    runs: Sequence[PlannedRun[RunConfig]],
    folder: Path,
    *,
    jobs: int,
    accelerate: Path | None,
    stall_s: float = STALL_S,
) -> list[PlannedRun[RunConfig]]:
    """Run what is not finished, at most ``jobs`` at a time; return those that failed.

    One failure does not stop the others. With one job the run's own progress is shown; with more, each run writes to
    ``folder/logs``. A line after each run says how far the whole grid is, and how long the rest may take.

    Args:
        runs: The plan.
        folder: Of the grid's own files.
        jobs: Runs at a time, at least 1.
        accelerate: File to launch each run with; None starts it plainly.
        stall_s: A run that leaves no trace (its log, or a file in its folder) for so many seconds hangs: it is ended,
            and counts as failed. The same plan given again goes on from its last checkpoint.

    Raises:
        ValueError: If ``jobs`` or ``stall_s`` is impossible.
        ConfigError: If a finished run is of another training.
    """
    if jobs < 1 or not stall_s > 0:
        raise ValueError(f"jobs={jobs} must be >= 1, and stall_s={stall_s} > 0")
    waiting = deque(run for run in runs if not is_finished(run))
    finished = len(runs) - len(waiting)
    print(f"{len(runs)} runs: {finished} finished, {len(waiting)} to do", flush=True)
    running: list[_Running] = []
    failed: list[PlannedRun[RunConfig]] = []
    seconds: list[float] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_start(waiting.popleft(), folder, accelerate, shows=jobs == 1))
            time.sleep(POLL_S)
            for ended in [r for r in running if r.has_ended(stall_s)]:
                running.remove(ended)
                ended.process.close()
                seconds.append(ended.process.seconds)
                if ended.is_failed:
                    failed.append(ended.run)
                else:
                    finished += 1
                left = len(waiting) + len(running)
                print(f"== {ended.run.config.name}: {ended.outcome} after {duration(seconds[-1])}", end="; ")
                print(_how_far(finished, len(failed), left, seconds, jobs), flush=True)
    finally:
        _end(running)
    return failed


def duration(seconds: float) -> str:
    """Return a duration in the unit that a reader thinks in.

    Example:
        >>> duration(45), duration(600), duration(9000)
        ('45 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass
class _Running:
    """A run at work."""

    run: PlannedRun[RunConfig]
    process: RunProcess
    stalled_s: float | None = None

    def has_ended(self, stall_s: float) -> bool:
        """Whether it is over; one that shows no sign of life for too long is ended here."""
        if self.process.status is None and self.process.silent_s() >= stall_s:
            self.stalled_s = self.process.silent_s()
            _end([self])
        return self.stalled_s is not None or self.process.status is not None

    @property
    def is_failed(self) -> bool:
        return self.stalled_s is not None or self.process.status != 0

    @property
    def outcome(self) -> str:
        if self.stalled_s is not None:
            return f"ended, for it left no trace for {duration(self.stalled_s)} (--stall-hours)"
        return "done" if not self.is_failed else f"failed with exit status {self.process.status}"


def _end(running: Sequence[_Running]) -> None:
    """End runs, and name what not even that ends."""
    for process in end_all([r.process for r in running]):
        print(f"process {process.pid} was killed and is still there: the system holds it", file=sys.stderr)


def _how_far(finished: int, failed: int, left: int, seconds: Sequence[float], jobs: int) -> str:
    text = f"{finished} of {finished + failed + left} finished"
    text += f", {failed} failed" if failed else ""
    if not left:
        return text
    # The middle one: a run that failed at once says nothing of the others.
    return f"{text}, {left} to go, about {duration(median(seconds) * left / jobs)}"


def _start(run: PlannedRun[RunConfig], folder: Path, accelerate: Path | None, *, shows: bool) -> _Running:
    """Start one run under its resolved configuration; its output goes to the terminal or to a log."""
    file = folder / "configs" / f"{run.config.name}.yaml"
    write_atomic(file, [dump_config(run.config).encode()])
    log = None if shows else folder / "logs" / f"{run.config.name}.log"
    print(f"== {run.config.name}: started{'' if log is None else f', see {log}'}", flush=True)
    command = command_of(run.config.trainer, file, accelerate)
    return _Running(run, RunProcess(command, log=log, traces=[run.run_dir]))
