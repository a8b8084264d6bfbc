"""Judging answers that no text comparison can judge: what a runtime asks, and what it is told.

Most kinds of answer are compared with the gold answer by a pure function
(:func:`~provgym.rewards.answers.is_correct`). Answers in code are right if they pass their tests, so they have to be
run. Nothing here runs anything: a runtime does so only if it is given a judge, such as
:class:`~provgym.envs.code_judge.CodeJudge`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from provgym.rewards.answers import AnswerKind

JUDGE_FAILURE = "judge"
"""Kind of the failure of a run whose answer could not be judged: an ``error``, never a wrong answer."""


@dataclass(frozen=True, slots=True)
class AnswerJudgement:
    """What became of one answer.

    Attributes:
        answer: In its normal form.
        is_right: Whether it is.
        outcome: ``passed``, ``failed``, ``timeout`` or ``crashed``.
        detail: Why, in short; empty if right.
    """

    answer: str
    is_right: bool
    outcome: str
    detail: str = ""


class JudgeFailure(Exception):
    """An answer could not be judged, because of the infrastructure."""


class AnswerJudge(Protocol):
    """Whoever judges answers that have to be run."""

    @property
    def fingerprint(self) -> str:
        """What a judgement depends on beside gold and answer, as text: limits, versions."""
        ...

    async def judge(self, gold: str, answer: str) -> AnswerJudgement:
        """Judge one answer; may be called many times at once.

        Raises:
            JudgeFailure: If it can't be said whether the answer is right.
        """
        ...


def needs_judge(kind: AnswerKind) -> bool:
    """Whether answers of a kind have to be run."""
    return kind == "code"


def check_judge(task_id: str, kind: AnswerKind, judge: AnswerJudge | None) -> None:
    """Refuse a task that can't be judged.

    Raises:
        ValueError: If its answers have to be run and nobody was asked to.
    """
    if needs_judge(kind) and judge is None:
        raise ValueError(
            f"task {task_id!r} is answered in {kind}, and to judge such an answer is to run what a language model "
            "wrote, which is off by default; allow it by run_code: true (--run-code; in Python, "
            "WorkflowRuntime(judge=CodeJudge())), best inside a container without keys and network"
        )


def is_judged_right(judgements: Sequence[AnswerJudgement], answer: str) -> bool:
    """Return what was said of an answer.

    Raises:
        ValueError: If nothing was.
    """
    for judgement in judgements:
        if judgement.answer == answer:
            return judgement.is_right
    raise ValueError(f"answer {answer[:60]!r} has not been run, so nobody knows whether it is right; play it again")
