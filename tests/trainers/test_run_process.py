"""Runs as processes: what hangs, asks, ignores signals or has started others is ended, and nobody waits for ever.

No test here waits for a time to pass: each waits for a sign that a process gives, and what would hang has a bound.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from tests.trainers.finished_runs import base_config

from provgym.trainers import run_grid, run_process
from provgym.trainers.papt_seeds import plan_runs
from provgym.trainers.run_grid import run_missing
from provgym.trainers.run_process import RunProcess, end_all

PATIENCE_S = 120.0
"""How long a sign may take on a busy machine; nothing is measured by it."""

DEAF = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(sys.argv[1]).touch()
time.sleep(600)
"""
LAUNCHER = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]])
child.wait()
"""
ASKER = """
import sys
print("Enter your choice:", flush=True)
print("answered", repr(sys.stdin.read()))
"""


def wait_for(is_so: Callable[[], object]) -> None:
    """Wait until something is so."""
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until, "no sign within the bound"
        time.sleep(0.02)


@pytest.fixture
def started() -> Iterator[list[RunProcess]]:
    """Processes of a test; whatever is left of them is killed."""
    found: list[RunProcess] = []
    yield found
    end_all(found, grace_s=0.0)


def test_a_process_that_ignores_the_signal_is_killed(tmp_path: Path, started: list[RunProcess]) -> None:
    """Kind: one failure loses its siblings (one never answers). Told to end, it would sleep on for ever."""
    sign = tmp_path / "ready"
    started.append(RunProcess([sys.executable, "-c", DEAF, str(sign)], log=tmp_path / "log", traces=[]))
    wait_for(sign.exists)
    assert end_all(started, grace_s=0.05) == []
    assert started[0].status == -9


def test_what_a_launcher_started_ends_with_it(tmp_path: Path, started: list[RunProcess]) -> None:
    """A rank that outlives its launcher would hold the run's lock, and the memory."""
    sign = tmp_path / "ready"
    command = [sys.executable, "-c", LAUNCHER, str(sign), DEAF]
    started.append(RunProcess(command, log=tmp_path / "log", traces=[]))
    wait_for(sign.exists)
    (rank,) = psutil.Process(started[0].pid).children()
    assert end_all(started, grace_s=0.05) == []
    wait_for(lambda: not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE)


def test_all_are_told_before_one_is_waited_for(tmp_path: Path, started: list[RunProcess]) -> None:
    """One deaf process does not keep the signal from the next, which ends by itself."""
    sign = tmp_path / "ready"
    started.append(RunProcess([sys.executable, "-c", DEAF, str(sign)], log=None, traces=[]))
    started.append(RunProcess([sys.executable, "-c", "import time; time.sleep(600)"], log=None, traces=[]))
    wait_for(sign.exists)
    assert end_all(started, grace_s=1.0) == []
    assert [run.status for run in started] == [-9, -15]


def test_a_question_is_not_waited_for(tmp_path: Path, started: list[RunProcess]) -> None:
    """W&B asks for an account, transformers whether code is trusted: in a log nobody would see it."""
    log = tmp_path / "logs" / "run.log"
    started.append(RunProcess([sys.executable, "-c", ASKER], log=log, traces=[]))
    assert started[0].wait(PATIENCE_S)
    started[0].close()
    assert log.read_text().splitlines() == ["Enter your choice:", "answered ''"]
    assert started[0].status == 0


def test_signs_of_life_are_changes_of_its_files(
    tmp_path: Path, started: list[RunProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of the test's own: the log, and files anywhere below the run's folder."""
    clock = [0.0]
    monkeypatch.setattr(run_process, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    folder, log = tmp_path / "run", tmp_path / "log"
    started.append(RunProcess([sys.executable, "-c", "input()"], log=log, traces=[folder]))
    run = started[0]
    wait_for(lambda: run.status is not None)  # its last words, on a question without an answer, stand in the log
    clock[0] = 59.0
    assert run.silent_s() == 59.0, "files are looked at once a minute"
    clock[0] = 61.0
    assert run.silent_s() == 0.0
    clock[0] = 200.0
    assert run.silent_s() == 139.0
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "metrics.jsonl").write_text("{}\n")
    clock[0] = 300.0
    assert run.silent_s() == 0.0
    (folder / "below" / "metrics.jsonl").unlink()
    clock[0] = 400.0
    assert run.silent_s() == 0.0, "a file that goes away is a sign too"


def test_a_run_without_a_sign_of_life_is_ended_and_its_siblings_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Kind: one failure loses its siblings. Two of three hang: they count as failed, the third is done."""

    def command(trainer: str, config_file: Path, accelerate: Path | None) -> list[str]:
        hangs = "pass" if config_file.stem.endswith("s2") else "import time; time.sleep(600)"
        return [sys.executable, "-c", hangs]

    silent = {"s1", "s3"}
    monkeypatch.setattr(run_grid, "command_of", command)
    monkeypatch.setattr(run_grid, "POLL_S", 0.01)
    monkeypatch.setattr(run_process, "GRACE_S", 5.0)
    plain = RunProcess.silent_s
    monkeypatch.setattr(RunProcess, "silent_s", lambda run: 7200.0 if run.traces[0].name[-2:] in silent else plain(run))
    runs = plan_runs(base_config(tmp_path / "runs"), [1, 2, 3])
    failed = run_missing(runs, tmp_path / "grid", jobs=2, accelerate=None, stall_s=3600.0)
    assert [run.seed for run in failed] == [1, 3]
    said = capfd.readouterr().out
    assert said.count("ended, for it left no trace for 2.0 h (--stall-hours)") == 2
    assert "== run-s2: done after" in said
    assert "1 of 3 finished, 2 failed" in said


@pytest.mark.parametrize(("jobs", "stall_s"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, float("nan"))])
def test_no_job_at_a_time_is_refused(tmp_path: Path, jobs: int, stall_s: float) -> None:
    """It would wait for ever for a run that is never started."""
    runs = plan_runs(base_config(tmp_path / "runs"), [1, 2])
    with pytest.raises(ValueError, match=f"jobs={jobs} must be >= 1, and stall_s={stall_s} > 0"):
        run_missing(runs, tmp_path, jobs=jobs, accelerate=None, stall_s=stall_s)


def test_an_interrupt_while_processes_end_kills_them(
    tmp_path: Path, started: list[RunProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second Ctrl-C is not one more wait."""
    sign = tmp_path / "ready"
    started.append(RunProcess([sys.executable, "-c", DEAF, str(sign)], log=None, traces=[]))
    wait_for(sign.exists)
    plain = RunProcess.wait
    waits: list[float] = []

    def interrupted(run: RunProcess, timeout_s: float) -> bool:
        waits.append(timeout_s)
        if len(waits) == 1:
            raise KeyboardInterrupt
        return plain(run, timeout_s)

    monkeypatch.setattr(RunProcess, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        end_all(started, grace_s=600.0)
    assert started[0].status == -9
