"""Code against its tests, in processes of their own: confined, limited, stopped in time, and none left behind.

Two fresh ``python -I -S`` interpreters (no packages, the standard library alone): one holds the solution, the other the
tests. The tests' process asks for values and compares them; it never runs a line of the solution
(:mod:`provgym.envs.code_sandbox_parts`). It reports with a secret that it is given after the solution was handed over.

This is **no security boundary against hostile code**. It stops accidents and cheats of language models: endless loops,
floods, fork bombs, downloads, stray deletions. Against code that attacks the kernel or this user's files, run the whole
evaluation in a container or a virtual machine without keys and network.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal, get_args

from provgym.envs import code_sandbox_child, code_sandbox_parts
from provgym.envs.code_folders import ForeignFolder
from provgym.rewards.answer_code import CodeGold, assemble_program

CodeOutcome = Literal["passed", "failed", "timeout", "crashed"]
"""``failed``: a wrong value, an exception, or no such function; ``timeout``: of wall-clock or CPU time; ``crashed``: a
process ended before it answered. All but ``passed`` are wrong answers."""

_CHILD, _PARTS = Path(code_sandbox_child.__file__).resolve(), Path(code_sandbox_parts.__file__).resolve()
_MAY_UNSHARE = True  # tests turn it off to see what a system without namespaces does
_MAX_REPORT_BYTES = 65_536
_POLL_S = 0.1
_END_S = 10.0


class SandboxFailure(Exception):
    """The check itself could not be done: nothing is known of the solution, and it is not wrong."""


@dataclass(frozen=True, slots=True)
class CodeLimits:
    """What a solution may use; the tests' process has the same limits.

    Attributes:
        wall_s: Seconds from the first test to the last.
        cpu_s: CPU seconds of a process.
        memory_bytes: Address space of a process.
        file_bytes: Longest file that is written.
        processes: Processes and threads at once.
        open_files: Of a process.
        start_s: Seconds for both interpreters to start; then the sandbox has failed, not the solution.

    Raises:
        ValueError: If a limit is not positive.
    """

    wall_s: float = 30.0
    cpu_s: int = 10
    memory_bytes: int = 512 * 2**20
    file_bytes: int = 2**20
    processes: int = 16
    open_files: int = 64
    start_s: float = 60.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise ValueError(f"{name}={value} must be > 0")


@dataclass(frozen=True, slots=True)
class CodeResult:
    """What a check came to.

    Attributes:
        outcome: See :data:`CodeOutcome`.
        detail: Why, one short text; empty if passed.
        is_apart: Whether both processes had namespaces of their own (no network, no other process in sight); if not,
            only limits held them. None if nothing had to be run.
    """

    outcome: CodeOutcome
    detail: str
    is_apart: bool | None


def check_code(
    gold: CodeGold, answer: str, limits: CodeLimits | None = None, cancelled: threading.Event | None = None
) -> CodeResult:
    """Run a solution against its tests.

    Args:
        gold: Prompt, name of the function, tests.
        answer: Code, as :func:`~provgym.rewards.answer_code.extract_code` returns it.
        limits: The default ones if None.
        cancelled: Gives up soon once it is set.

    Raises:
        SandboxFailure: If the check could not be done (no process, tests that can't be run, cancelled).
    """
    limits = limits or CodeLimits()
    try:
        program = assemble_program(gold, answer)
    except ValueError as error:
        return CodeResult("failed", str(error), None)
    try:
        with ExitStack() as stack:
            return _check(gold, program, limits, cancelled or threading.Event(), stack)
    except OSError as error:
        raise SandboxFailure(f"no sandbox can be set up: {error}") from error


def _check(
    gold: CodeGold, program: str, limits: CodeLimits, cancelled: threading.Event, stack: ExitStack
) -> CodeResult:
    asker, answerer = (stack.enter_context(closing(end)) for end in socket.socketpair())
    report, result = os.pipe()
    pipe = stack.enter_context(open(report, "rb", buffering=0))
    result_end = stack.enter_context(open(result, "wb", buffering=0))
    solver = stack.enter_context(
        _Guard("solve", limits, answerer.fileno(), None, {"program": program, "entry_point": gold.entry_point})
    )
    answerer.close()
    nonce = secrets.token_hex(16)  # the solution was handed over before it existed
    job = {"prompt": gold.prompt, "tests": gold.tests, "entry_point": gold.entry_point, "nonce": nonce}
    checker = stack.enter_context(_Guard("check", limits, asker.fileno(), result, job))
    asker.close()
    result_end.close()
    reader = _Reader(pipe, cancelled)
    if reader.line(limits.start_s) != b"begun":
        raise SandboxFailure(
            f"the sandbox did not start; {checker.end_with_complaint() or solver.end_with_complaint()}"
        )
    line = reader.line(limits.wall_s)
    if line is None:
        return CodeResult("timeout", f"no result after {limits.wall_s:g} s", None)
    return _read_report(line, nonce, _used_up_cpu(solver, checker), limits)


def _used_up_cpu(*guards: _Guard) -> bool:
    return code_sandbox_child.CPU_USED_UP in [guard.end() for guard in guards]


def _read_report(line: bytes, nonce: str, has_used_up_cpu: bool, limits: CodeLimits) -> CodeResult:
    """Read the tests' report; what does not carry the secret is none."""
    try:
        found = json.loads(line)
        is_genuine = hmac.compare_digest(str(found["nonce"]), nonce)
    except (ValueError, TypeError, KeyError):
        is_genuine = False
    if not is_genuine:
        found = {"outcome": "crashed", "detail": "the tests' process ended without a result", "is_apart": None}
    if found["outcome"] == "unusable":
        raise SandboxFailure(f"the tests can't be run: {found['detail']}")
    if found["outcome"] == "crashed" and has_used_up_cpu:
        found |= {"outcome": "timeout", "detail": f"{limits.cpu_s} s of CPU time were used up"}
    assert found["outcome"] in get_args(CodeOutcome)
    return CodeResult(found["outcome"], found["detail"], found["is_apart"])


class _Guard:
    """A process that guards one inmate; leaving the block ends both, and all that the inmate started."""

    def __init__(self, part: str, limits: CodeLimits, wire: int, result: int | None, job: Mapping[str, Any]) -> None:
        self._folder = ForeignFolder("provgym-code-")
        self._library = ForeignFolder("provgym-library-")
        self._complaint: IO[bytes] = tempfile.TemporaryFile()
        stop, self._stop = os.pipe()
        said = {
            "part": part,
            "parts": str(_PARTS),
            "may_unshare": _MAY_UNSHARE,
            "limits": asdict(limits),
            "folder": self._folder.name,
            "library": self._library.name,
        }
        said |= {"wire": wire, "result": result, "stop": stop}
        try:
            with tempfile.TemporaryFile() as file:  # a file, so that no pipe can fill up
                file.write(json.dumps(said | dict(job)).encode("ascii"))
                file.seek(0)
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-B", str(_CHILD)],
                    stdin=file,
                    stdout=subprocess.DEVNULL,
                    stderr=self._complaint,
                    cwd=self._folder.name,
                    env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": self._folder.name},
                    pass_fds=[end for end in (wire, result, stop) if end is not None],
                    start_new_session=True,
                )
        except OSError:
            self._close()
            raise
        finally:
            os.close(stop)
        self._has_ended = False

    def __enter__(self) -> _Guard:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._close()

    def end(self) -> int:
        """End the inmate and the guard; return the guard's exit status."""
        if not self._has_ended:
            self._has_ended = True
            os.close(self._stop)
            self._stop = -1
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def end_with_complaint(self) -> str:
        """End as above; return the last line of what the guard complained about, if it did."""
        self.end()
        self._complaint.seek(0)
        lines = self._complaint.read(_MAX_REPORT_BYTES).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _close(self) -> None:
        if self._stop >= 0:
            os.close(self._stop)
            self._stop = -1
        self._complaint.close()
        self._folder.cleanup()
        self._library.cleanup()


class _Reader:
    """Reads lines of the result pipe, each within its time."""

    def __init__(self, pipe: IO[bytes], cancelled: threading.Event) -> None:
        self._pipe, self._cancelled, self._found = pipe, cancelled, b""

    def line(self, seconds: float) -> bytes | None:
        """Return the next line, what stands before the end, or None if time is up.

        Raises:
            SandboxFailure: If the check was cancelled.
        """
        until = time.monotonic() + seconds
        while b"\n" not in self._found and len(self._found) < _MAX_REPORT_BYTES:
            if self._cancelled.is_set():
                raise SandboxFailure("the check was cancelled")
            if time.monotonic() >= until:
                return None
            if select.select([self._pipe], [], [], _POLL_S)[0]:
                more = self._pipe.read(_MAX_REPORT_BYTES)
                if not more:
                    break
                self._found += more
        line, _, self._found = self._found.partition(b"\n")
        return line
