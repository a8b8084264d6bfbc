"""Route counts that make a claim's evidence agree, or conflict by echoes, with the number of units fixed.

All conditions of a kind with a verdict are listed; one is drawn. In the conflicting ones both sides speak, and who
counts units instead of sources answers wrongly: the majority over units *contradicts* the one over sources (``4|1+1``)
or *blurs* it to a tie (``3|1+1+1``). In the agreeing ones two to five sources speak on one side, each at most twice.
"""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np

from provgym.generators.conditions import MAX_ROUTES, MAX_SOURCES, Condition
from provgym.rewards.outcome import Verdict

MIN_UNITS, MAX_UNITS = 4, 10
"""Fewer can't conflict by echoes under a clear majority; more can't agree without repeating a source thrice."""

MAX_AGREEING_ROUTES = 2


def draw_agreeing(verdict: Verdict, num_units: int, rng: np.random.Generator) -> Condition:
    """Draw a condition in which all sources say the same, little repeated.

    Args:
        verdict: SUPPORT or REFUTE.
        num_units: Routes in all, from :data:`MIN_UNITS` to :data:`MAX_UNITS`.
        rng: Random source.

    Raises:
        ValueError: If there is no such condition.
    """
    _check(num_units)
    if verdict is Verdict.MIXED:
        raise ValueError("agreeing evidence is never MIXED; ask for SUPPORT or REFUTE")
    sides = [side for side in _sides(num_units) if len(side) > 1 and max(side) <= MAX_AGREEING_ROUTES]
    side = _shuffled(sides[rng.integers(len(sides))], rng)
    return _condition(side, ()) if verdict is Verdict.SUPPORT else _condition((), side)


def draw_conflicting(verdict: Verdict, num_units: int, rng: np.random.Generator) -> Condition:
    """Draw a condition that misleads who counts units: half of them contradict, half blur, where both are possible.

    With the verdict MIXED (as many sources on either side), the majority over units names one side.

    Args:
        verdict: Of the distinct sources.
        num_units: Routes in all, from :data:`MIN_UNITS` to :data:`MAX_UNITS`.
        rng: Random source.

    Raises:
        ValueError: If there is no such condition.
    """
    _check(num_units)
    groups = [group for group in conflicting_conditions(verdict, num_units) if group]
    group = groups[rng.integers(len(groups))]
    drawn = group[rng.integers(len(group))]
    return _condition(_shuffled(drawn.supporting, rng), _shuffled(drawn.refuting, rng))


@cache
def conflicting_conditions(verdict: Verdict, num_units: int) -> tuple[tuple[Condition, ...], tuple[Condition, ...]]:
    """Return all conditions under which units mislead: those that contradict, and those that blur.

    Example:
        >>> contradict, blur = conflicting_conditions(Verdict.REFUTE, 5)
        >>> [c.name for c in contradict], [c.name for c in blur]
        (['3|1+1'], [])
    """
    contradict: list[Condition] = []
    blur: list[Condition] = []
    for number in range(1, num_units):
        for supporting, refuting in itertools.product(_sides(number), _sides(num_units - number)):
            condition = _condition(supporting, refuting)
            if condition.gold is verdict and condition.is_adversarial:
                is_tie = Verdict.from_counts(sum(supporting), sum(refuting)) is Verdict.MIXED
                (blur if is_tie else contradict).append(condition)
    return tuple(contradict), tuple(blur)


def _sides(num_routes: int) -> list[tuple[int, ...]]:
    """Return all ways to share routes among one to five sources, highest first."""
    return [
        side[::-1]
        for sources in range(1, MAX_SOURCES + 1)
        for side in itertools.combinations_with_replacement(range(1, MAX_ROUTES + 1), sources)
        if sum(side) == num_routes
    ]


def _condition(supporting: tuple[int, ...], refuting: tuple[int, ...]) -> Condition:
    name = "|".join("+".join(map(str, side)) for side in (supporting, refuting))
    return Condition(name, supporting, refuting)


def _shuffled(side: tuple[int, ...], rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(rng.permutation(side).tolist()) if side else ()


def _check(num_units: int) -> None:
    if not MIN_UNITS <= num_units <= MAX_UNITS:
        raise ValueError(f"num_units={num_units} must lie in {MIN_UNITS} to {MAX_UNITS}")
