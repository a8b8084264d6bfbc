"""What each step of a walk earned, term by term, under every objective that a page offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from provgym.envs.walk import StepKind
from provgym.envs.walk_text import TraceEntry
from provgym.generators.episode import Episode
from provgym.rewards.credit import step_rewards
from provgym.rewards.rubric import Rubric, papt_rubric

EVALUATION = "evaluation (full PAPT)"
_PHASE_KEYS = ("variant", "weights", "count_basis", "coverage_basis")
_CHARGED = (StepKind.NEW, StepKind.ECHO, StepKind.CONNECTOR, StepKind.ILLEGAL, StepKind.UNPARSED)
_DID_NOTHING = (StepKind.ILLEGAL, StepKind.UNPARSED)


class Objective(NamedTuple):
    """A rubric under the name that a page gives it."""

    name: str
    rubric: Rubric


class EarnedByStep(NamedTuple):
    """A walk's reward, split.

    Attributes:
        total: Weighted sum; equal to the sum of ``credit``.
        terms: Term to its unweighted value.
        credit: (A, T) weighted reward of each action from each term, terms in the rubric's order.
    """

    total: float
    terms: Mapping[str, float]
    credit: NDArray[np.float64]


def objectives_of(phases: Sequence[Mapping[str, Any]]) -> tuple[list[Objective], list[str]]:
    """Return the evaluation's objective and those of a run's training phases.

    Args:
        phases: As in a training run's configuration.

    Returns:
        Objectives, the evaluation's first, equal ones once; and what could not be offered, as lines for a reader.
    """
    found = [Objective(EVALUATION, papt_rubric())]
    notes = []
    first = 1
    for number, phase in enumerate(phases, start=1):
        steps = int(phase.get("steps", 0))
        name = f"training phase {number}, steps {first}–{first + steps - 1}"
        first += steps
        unknown = sorted(key for key in phase if key not in (*_PHASE_KEYS, "steps") and phase[key] not in (None, {}))
        if unknown:
            notes.append(f"{name}: its objective is not offered, since it depends on {', '.join(unknown)}")
            continue
        try:
            rubric = papt_rubric(**{key: phase[key] for key in _PHASE_KEYS if key in phase})
        except (ValueError, TypeError) as error:
            notes.append(f"{name}: its objective is not offered ({error})")
            continue
        found.append(Objective(name, rubric))
    return found, notes


def earned_by_step(episode: Episode, rubric: Rubric) -> EarnedByStep | None:
    """Split an episode's reward over its actions and terms; None if it is not scored or has no action.

    The split is :func:`~provgym.rewards.credit.step_rewards`', taken for one term at a time.
    """
    score = rubric.score(episode.outcome)
    if not score.is_scored or not episode.trace:
        return None
    flags = _flags(episode.trace)
    columns = []
    for name in rubric.terms:
        alone = replace(rubric, weights={t: w if t == name else 0.0 for t, w in rubric.weights.items()})
        columns.append(step_rewards(episode.outcome, alone, **flags))
    return EarnedByStep(score.total, score.terms, np.stack(columns, axis=1))  # (A, T)


def _flags(trace: Sequence[TraceEntry]) -> dict[str, list[bool]]:
    kinds = [StepKind(entry["kind"]) for entry in trace]
    seen: set[str | None] = set()
    is_new = []
    for kind, entry in zip(kinds, trace, strict=True):
        is_new.append(kind is StepKind.NEW and entry["source"] not in seen)
        seen.add(entry["source"])
    return {
        "is_new": is_new,
        "is_echo": [kind is StepKind.ECHO for kind in kinds],
        "is_charged": [kind in _CHARGED for kind in kinds],
        "is_illegal": [kind in _DID_NOTHING for kind in kinds],
    }
