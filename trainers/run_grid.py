"""A grid of training runs: each a process of its own, finished ones skipped, one failure never the others'.

What is finished is told by ``summary.json`` and its ``training_hash``; an interrupted run goes on from its last whole
checkpoint by itself. So the same plan given again does what is missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO

from provgym.eval.run_files import write_atomic
from provgym.trainers.config_file import ConfigError, dump_config
from provgym.trainers.papt_config import PaptConfig

POLL_S = 0.2


@dataclass(frozen=True)
class PlannedRun:
    """One run of the plan.

    Attributes:
        label: What it shares with the runs of other seeds: its objective, or its arm of a study.
        config: Its configuration, seed and name included.
    """

    label: str
    config: PaptConfig

    @property
    def seed(self) -> int:
        """Its training seed."""
        return self.config.seed

    @property
    def run_dir(self) -> Path:
        """Its folder."""
        return self.config.run_dir


def is_finished(run: PlannedRun) -> bool:
    """Whether a run's ``summary.json`` stands and is of this very training.

    Raises:
        ConfigError: If it is of another training.
    """
    from provgym.trainers.papt import training_hash  # here, because it imports TRL

    path = run.run_dir / "summary.json"
    if not path.is_file():
        return False
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("training_hash")
    except (json.JSONDecodeError, AttributeError) as error:
        raise ConfigError(f"{path} is no summary of a run ({error}); remove it") from error
    wanted = training_hash(run.config)
    if found != wanted:
        raise ConfigError(
            f"{path} was trained under configuration {found}, this plan has {wanted}; remove {run.run_dir}, or give "
            "this plan another name"
        )
    return True


def command_of(config_file: Path, accelerate: Path | None) -> list[str]:
    """Return the command of one run."""
    module = ["-m", "provgym.trainers.papt", "--config", str(config_file)]
    if accelerate is None:
        return [sys.executable, *module]
    return [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(accelerate), *module]


def run_missing(runs: Sequence[PlannedRun], folder: Path, *, jobs: int, accelerate: Path | None) -> list[PlannedRun]:
    """Run what is not finished, at most ``jobs`` at a time; return those that failed.

    One failure does not stop the others. With one job the run's own progress is shown; with more, each run writes to
    ``folder/logs``. A line after each run says how far the whole grid is, and how long the rest may take.
    """
    waiting = deque(run for run in runs if not is_finished(run))
    finished = len(runs) - len(waiting)
    print(f"{len(runs)} runs: {finished} finished, {len(waiting)} to do", flush=True)
    running: dict[subprocess.Popen[bytes], _Running] = {}
    failed: list[PlannedRun] = []
    seconds: list[float] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                started = _start(waiting.popleft(), folder, accelerate, shows=jobs == 1)
                running[started.process] = started
            time.sleep(POLL_S)
            for process in [p for p in running if p.poll() is not None]:
                ended = running.pop(process)
                seconds.append(ended.close())
                if process.returncode:
                    failed.append(ended.run)
                else:
                    finished += 1
                left = len(waiting) + len(running)
                print(f"== {ended.run.config.name}: {ended.outcome} after {seconds[-1]:.0f} s", end="; ")
                print(_how_far(finished, len(failed), left, seconds, jobs), flush=True)
    finally:
        for process in running:
            process.terminate()
            process.wait()
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


@dataclass(frozen=True)
class _Running:
    """A process at work."""

    run: PlannedRun
    process: subprocess.Popen[bytes]
    began: float
    log: IO[bytes] | None

    @property
    def outcome(self) -> str:
        status = self.process.returncode
        return "done" if status == 0 else f"failed with exit status {status}"

    def close(self) -> float:
        """Close the log and return the seconds since the start."""
        if self.log is not None:
            self.log.close()
        return time.monotonic() - self.began


def _how_far(finished: int, failed: int, left: int, seconds: Sequence[float], jobs: int) -> str:
    text = f"{finished} of {finished + failed + left} finished"
    text += f", {failed} failed" if failed else ""
    if not left:
        return text
    # The middle one: a run that failed at once says nothing of the others.
    return f"{text}, {left} to go, about {duration(median(seconds) * left / jobs)}"


def _start(run: PlannedRun, folder: Path, accelerate: Path | None, *, shows: bool) -> _Running:
    """Start one run under its resolved configuration; its output goes to the terminal or to a log."""
    file = folder / "configs" / f"{run.config.name}.yaml"
    write_atomic(file, [dump_config(run.config).encode()])
    command = command_of(file, accelerate)
    if shows:
        print(f"== {run.config.name}: started", flush=True)
        return _Running(run, subprocess.Popen(command), time.monotonic(), None)
    log_path = folder / "logs" / f"{run.config.name}.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    print(f"== {run.config.name}: started, see {log_path}", flush=True)
    log = log_path.open("ab")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ)
    return _Running(run, process, time.monotonic(), log)
