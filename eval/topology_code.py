"""What became of answers in code, counted for each method: passed, failed, timed out, crashed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import get_args

from provgym.envs.code_sandbox import CodeOutcome
from provgym.eval.topology_runs import MethodRun

OUTCOMES: tuple[CodeOutcome, ...] = get_args(CodeOutcome)


def code_outcomes(runs: Sequence[MethodRun]) -> dict[CodeOutcome, int]:
    """Return how many of a method's own answers came to what; runs without an answer are not counted."""
    found = Counter(judgement.outcome for run in runs for judgement in run.judgements if judgement.answer == run.answer)
    return {outcome: found[outcome] for outcome in OUTCOMES}


def code_outcome_lines(runs: Mapping[str, Sequence[MethodRun]]) -> list[str]:
    """Return a line for each method whose answers were run; none where none was."""
    counted = {method: code_outcomes(of_method) for method, of_method in runs.items()}
    return [
        f"code of {method}: " + ", ".join(f"{number} {outcome}" for outcome, number in found.items())
        for method, found in counted.items()
        if any(found.values())
    ]
