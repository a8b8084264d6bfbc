"""Route counts that make a claim's evidence agree, conflict by echoes, or be beside the point, layout held alike.

How many units go back to each source (the *layout*, such as 4+1+1) is drawn from one distribution for all kinds of
evidence: who counts source labels without reading learns nothing of the kind. What differs is what the units say.

* conflict: both sides speak, and who counts units instead of sources answers wrongly: the majority over units
  *contradicts* the one over sources (``4|1+1``) or *blurs* it to a tie (``3|1+1+1``). All such conditions are listed;
  one is drawn, half of them contradicting where both are possible.
* agreement: the layout of a drawn conflict, with all sources on one side. Echoes are there, and do no harm.
* irrelevance: the layout of a drawn conflict, some of its sources about the question, the others about something else.
"""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np

from provgym.generators.conditions import MAX_ROUTES, MAX_SOURCES, Condition
from provgym.rewards.outcome import Verdict

Layout = tuple[int, ...]
"""Units of each source."""

MIN_UNITS, MAX_UNITS = 4, 10
"""Fewer can't conflict by echoes under a clear majority; with more the layouts grow too many to list."""


def draw_conflicting(verdict: Verdict, num_units: int, relevant: int, rng: np.random.Generator) -> Condition:
    """Draw a condition that misleads who counts units: half of them contradict, half blur, where both are possible.

    With the verdict MIXED (as many sources on either side), the majority over units names one side.

    Args:
        verdict: Of the distinct sources.
        num_units: Routes in all, from :data:`MIN_UNITS` to :data:`MAX_UNITS`.
        relevant: Units about the question under irrelevance; only layouts that this kind can share are drawn.
        rng: Random source.

    Raises:
        ValueError: If there is no such condition.
    """
    _check(num_units)
    groups = _groups(verdict, num_units, relevant)
    if not groups:
        raise ValueError(
            f"no conflict of {num_units} units under {verdict.value} can be laid out alike with {relevant} relevant "
            "units; choose other num_units or relevant_units"
        )
    group = groups[rng.integers(len(groups))]
    drawn = group[rng.integers(len(group))]
    return _condition(_shuffled(drawn.supporting, rng), _shuffled(drawn.refuting, rng))


def draw_agreeing(
    verdict: Verdict, conflict: Verdict, num_units: int, relevant: int, rng: np.random.Generator
) -> Condition:
    """Draw a condition in which all sources say the same, laid out like a conflict.

    Args:
        verdict: SUPPORT or REFUTE.
        conflict: Verdict of the conflict that lends its layout.
        num_units: As of :func:`draw_conflicting`.
        relevant: As there.
        rng: Random source.

    Raises:
        ValueError: If the verdict is MIXED, or there is no such layout.
    """
    if verdict is Verdict.MIXED:
        raise ValueError("agreeing evidence is never MIXED; ask for SUPPORT or REFUTE")
    side = _layout(draw_conflicting(conflict, num_units, relevant, rng), rng)
    return _condition(side, ()) if verdict is Verdict.SUPPORT else _condition((), side)


def draw_beside(conflict: Verdict, num_units: int, relevant: int, rng: np.random.Generator) -> tuple[Layout, Layout]:
    """Draw the layout of irrelevance: units of the sources about the question, and of those about something else.

    Args:
        conflict: Verdict of the conflict that lends its layout.
        num_units: As of :func:`draw_conflicting`.
        relevant: Units about the question.
        rng: Random source.

    Returns:
        Two layouts, the first with ``relevant`` units.

    Raises:
        ValueError: If there is no such layout.
    """
    layout = _layout(draw_conflicting(conflict, num_units, relevant, rng), rng)
    own = next(chosen for chosen in _subsets(layout) if sum(layout[place] for place in chosen) == relevant)
    others = tuple(units for place, units in enumerate(layout) if place not in own)
    return tuple(layout[place] for place in own), others


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


def can_conflict(verdict: Verdict, num_units: int, relevant: int) -> bool:
    """Whether :func:`draw_conflicting` has a condition to draw.

    Example:
        >>> can_conflict(Verdict.MIXED, 4, 2), can_conflict(Verdict.MIXED, 4, 1)
        (False, True)
    """
    return bool(_groups(verdict, num_units, relevant))


def _groups(verdict: Verdict, num_units: int, relevant: int) -> list[list[Condition]]:
    return [kept for group in conflicting_conditions(verdict, num_units) if (kept := _shared(group, relevant))]


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


def _shared(conditions: tuple[Condition, ...], relevant: int) -> list[Condition]:
    """Return the conditions whose layout fits on one side, and holds sources of ``relevant`` units in all."""
    found = []
    for condition in conditions:
        layout = condition.supporting + condition.refuting
        sums = {sum(layout[place] for place in chosen) for chosen in _subsets(layout)}
        if len(layout) <= MAX_SOURCES and relevant in sums:
            found.append(condition)
    return found


def _layout(condition: Condition, rng: np.random.Generator) -> Layout:
    return _shuffled(condition.supporting + condition.refuting, rng)


def _subsets(layout: Layout) -> list[tuple[int, ...]]:
    """Return all proper choices of places, none empty."""
    places = range(len(layout))
    return [chosen for size in range(1, len(layout)) for chosen in itertools.combinations(places, size)]


def _shuffled(side: tuple[int, ...], rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(rng.permutation(side).tolist()) if side else ()


def _check(num_units: int) -> None:
    if not MIN_UNITS <= num_units <= MAX_UNITS:
        raise ValueError(f"num_units={num_units} must lie in {MIN_UNITS} to {MAX_UNITS}")
