"""Training runs as processes: started without a keyboard, watched for signs of life, and ended for certain.

A run has no time limit of its own, since nobody knows beforehand how long it takes. But one that has left no trace for
hours hangs: a rank waits for one that is gone, a network disk does not answer. And a process that is told to end may
not: it ignores the signal, or waits where no signal reaches it. So nothing here waits without a bound.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil

GRACE_S = 30.0
"""Seconds that a run has to end by itself once it is told to."""
KILLED_S = 10.0
"""Seconds to wait for a process that was killed; one that is still there hangs in the system, and is left alone."""
LOOK_EVERY_S = 60.0
"""Seconds between two looks at the files that a run writes."""


class RunProcess:
    """A command at work.

    Args:
        command: Program and arguments. It gets no keyboard: one that asks a question would wait for ever, unseen.
        log: File that its output is appended to; None shows it.
        traces: Files and folders whose changes are signs of life, beside the log.

    Attributes:
        traces: What signs of life are looked for in, the log included.

    Raises:
        OSError: If the command cannot be started, or the log cannot be written.
    """

    def __init__(self, command: Sequence[str], *, log: Path | None, traces: Sequence[Path]) -> None:
        self._log: IO[bytes] | None = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            self._log = log.open("ab")
        self.traces = (*traces, *(() if log is None else (log,)))
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=None if self._log is None else subprocess.STDOUT,
        )
        self._began = self._looked = self._alive = time.monotonic()
        self._seen = _newest(self.traces)

    @property
    def pid(self) -> int:
        """Number of its process."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs."""
        return self._process.poll()

    @property
    def seconds(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._began

    def silent_s(self) -> float:
        """Return the seconds since a trace of it changed, to :data:`LOOK_EVERY_S`."""
        now = time.monotonic()
        if now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            newest = _newest(self.traces)
            if newest != self._seen:
                self._seen, self._alive = newest, now
        return now - self._alive

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()

    def tell_to_end(self) -> list[psutil.Process]:
        """Ask it, and what it started, to end; returns what it started."""
        started = _descendants(self._process.pid) if self.status is None else []
        for process in started:
            with _may_be_gone():
                process.terminate()
        self._process.terminate()
        return started

    def kill(self, started: Sequence[psutil.Process]) -> bool:
        """Kill what is left of it and of what it started; returns whether it is gone."""
        for process in started:
            with _may_be_gone():
                process.kill()
        self._process.kill()
        return self.wait(KILLED_S)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end, no longer than so many seconds; returns whether it came."""
        try:
            self._process.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            return False
        return True


def end_all(runs: Sequence[RunProcess], *, grace_s: float | None = None) -> list[RunProcess]:
    """End runs: all are told first, then waited for together, then killed.

    An interrupt while they are waited for kills at once.

    Args:
        runs: What is to end.
        grace_s: Seconds for all of them together; :data:`GRACE_S` if None.

    Returns:
        Those that are still there although they were killed.
    """
    until = time.monotonic() + (GRACE_S if grace_s is None else grace_s)
    told = [(run, run.tell_to_end()) for run in runs]
    try:
        for run, started in told:
            run.wait(until - time.monotonic())
            psutil.wait_procs(started, timeout=max(0.0, until - time.monotonic()))
    finally:
        left = [run for run, started in told if not run.kill(started)]
        for run, _ in told:
            run.close()
    return left


def _descendants(pid: int) -> list[psutil.Process]:
    """Return what a process started, and what that started: a launcher's end does not end its ranks."""
    try:
        found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


@contextmanager
def _may_be_gone() -> Iterator[None]:
    """Let a process be gone that was there a moment ago."""
    try:
        yield
    except psutil.NoSuchProcess:
        return


def _newest(places: Sequence[Path]) -> tuple[int, int]:
    """Return (number of files, latest change in nanoseconds) over files and everything in folders."""
    count, latest = 0, 0
    for place in places:
        for folder, _, names in os.walk(place) if place.is_dir() else [(str(place.parent), [], [place.name])]:
            for name in names:
                try:
                    latest = max(latest, os.stat(os.path.join(folder, name)).st_mtime_ns)
                except OSError:  # it went away between being listed and being looked at
                    continue
                count += 1
    return count, latest
