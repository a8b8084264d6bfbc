"""Answers in code, judged by running them against their tests in the sandbox."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import threading
import warnings
import weakref
from dataclasses import asdict

from provgym.envs.answer_judge import AnswerJudgement, JudgeFailure
from provgym.envs.code_sandbox import CodeLimits, CodeResult, SandboxFailure, check_code
from provgym.rewards.answer_code import CodeGold

JUDGE_FORMAT = 2
"""Raised when how code is judged changes: it is part of what stored runs depend on."""


class _Turn:
    """Held by the thread that runs an answer."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class CodeJudge:
    """Runs answers, so many at once; an answer that stands twice is run once.

    Args:
        limits: Of each run; the default ones if None.
        max_checks: Answers under test at once; None takes the number of CPUs.

    Raises:
        ValueError: If ``max_checks`` < 1.
    """

    def __init__(self, limits: CodeLimits | None = None, max_checks: int | None = None) -> None:
        count = (os.cpu_count() or 1) if max_checks is None else max_checks
        if count < 1:
            raise ValueError(f"max_checks={count} must be >= 1")
        self._limits = limits or CodeLimits()
        self._slots = threading.BoundedSemaphore(count)  # of threads: a judge may serve several event loops
        self._known: dict[tuple[str, str], AnswerJudgement] = {}
        self._turns: weakref.WeakValueDictionary[tuple[str, str], _Turn] = weakref.WeakValueDictionary()
        self._guard = threading.Lock()
        self._has_warned = False

    @property
    def fingerprint(self) -> str:
        """Format, limits and version of Python."""
        return f"code/{JUDGE_FORMAT}/{json.dumps(asdict(self._limits))}/python {platform.python_version()}"

    async def judge(self, gold: str, answer: str) -> AnswerJudgement:
        """Run one answer on a thread.

        Raises:
            JudgeFailure: If the sandbox failed.
            ValueError: If the gold answer is none of kind ``code``.
        """
        cancelled = threading.Event()
        try:
            return await asyncio.to_thread(self._judged, gold, answer, cancelled)
        except asyncio.CancelledError:
            cancelled.set()  # the thread can't be stopped; so it ends by itself, soon
            raise

    def _judged(self, gold: str, answer: str, cancelled: threading.Event) -> AnswerJudgement:
        with self._guard:
            turn = self._turns.setdefault((gold, answer), _Turn())
        with turn.lock:  # who asks the same meanwhile waits and is told the same, also where time is nearly up
            known = self._known.get((gold, answer))
            return self._run(gold, answer, cancelled) if known is None else known

    def _run(self, gold: str, answer: str, cancelled: threading.Event) -> AnswerJudgement:
        with self._slots:
            if cancelled.is_set():
                raise JudgeFailure("the check was cancelled")
            try:
                found = check_code(CodeGold.from_text(gold), answer, self._limits, cancelled)
            except SandboxFailure as failure:
                raise JudgeFailure(str(failure)) from failure
        self._warn_once(found)
        judgement = AnswerJudgement(answer, found.outcome == "passed", found.outcome, found.detail)
        self._known[gold, answer] = judgement
        return judgement

    def _warn_once(self, found: CodeResult) -> None:
        if found.is_apart is False and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "this system grants no namespaces, so code under test can see other processes and write where you "
                "can; sockets are only hidden from it. Run the evaluation in a container",
                RuntimeWarning,
                stacklevel=2,
            )
