"""What each step of a walk earned, term by term, under every objective that a page offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from provgym.envs.trace import step_flags
from provgym.generators.episode import Episode
from provgym.rewards.credit import step_rewards
from provgym.rewards.rubric import Rubric, papt_rubric

EVALUATION = "evaluation (full PAPT)"
_PHASE_KEYS = ("variant", "weights", "count_basis", "coverage_basis")


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
        Objectives, the evaluation's first; two of a phase whose weights change: that of its first step and that of its
        last. And what could not be offered, as lines for a reader.
    """
    found = [Objective(EVALUATION, papt_rubric())]
    notes = []
    first = 1
    for number, phase in enumerate(phases, start=1):
        steps = int(phase.get("steps", 0))
        name = f"training phase {number}, steps {first}–{first + steps - 1}"
        first += steps
        known = (*_PHASE_KEYS, "steps", "weights_to")
        unknown = sorted(key for key in phase if key not in known and phase[key] not in (None, {}))
        if unknown:
            notes.append(f"{name}: its objective is not offered, since it depends on {', '.join(unknown)}")
            continue
        try:
            found += _of_phase(name, phase)
        except (ValueError, TypeError) as error:
            notes.append(f"{name}: its objective is not offered ({error})")
    return found, notes


def _of_phase(name: str, phase: Mapping[str, Any]) -> list[Objective]:
    """Return a phase's objective, or its first and its last where weights move from one to the other."""
    given = {key: phase[key] for key in _PHASE_KEYS if key in phase}
    moved = phase.get("weights_to") or {}
    if not moved:
        return [Objective(name, papt_rubric(**given))]
    last = {**given, "weights": {**(given.get("weights") or {}), **moved}}
    ends = (("weights of its first step", given), ("weights of its last step", last))
    return [Objective(f"{name}, {which}", papt_rubric(**settings)) for which, settings in ends]


def earned_by_step(episode: Episode, rubric: Rubric) -> EarnedByStep | None:
    """Split an episode's reward over its actions and terms; None if it is not scored or has no action.

    The split is :func:`~provgym.rewards.credit.step_rewards`', taken for one term at a time.
    """
    score = rubric.score(episode.outcome)
    if not score.is_scored or not episode.trace:
        return None
    flags = step_flags(episode.trace)
    columns = []
    for name in rubric.terms:
        alone = replace(rubric, weights={t: w if t == name else 0.0 for t, w in rubric.weights.items()})
        columns.append(step_rewards(episode.outcome, alone, **flags))
    return EarnedByStep(score.total, score.terms, np.stack(columns, axis=1))  # (A, T)
