"""What became of a method's answers in code: passed, failed, timed out, crashed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import get_args

from provgym.envs.code_sandbox import CodeOutcome
from provgym.eval.topology_runs import MethodRun

OUTCOMES: tuple[CodeOutcome, ...] = get_args(CodeOutcome)


def code_outcomes(runs: Sequence[MethodRun]) -> dict[CodeOutcome, int]:
    """Return how many of a method's own answers came to what; empty where none was run."""
    found = Counter(judgement.outcome for run in runs for judgement in run.judgements if judgement.answer == run.answer)
    return {outcome: found[outcome] for outcome in OUTCOMES} if found else {}
