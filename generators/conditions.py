"""Conditions: how many sources support and refute a claim, and by how many routes each is met.

Names:

* ``C1 C2 C3 C4 C2R``: the five conflict conditions of GraphEcho, arXiv:2609.17695, table 1;
* ``sSkP`` (1S5P, 5S5P ...): s supporting sources met by k routes in all; with a final ``R`` they refute;
* ``general``: drawn per instance, 0-5 supporting and 0-5 refuting sources, 1-5 routes each, verdicts balanced (ours);
* ``general-adversarial``, ``general-agreeing``: the same, but only draws in which the majority over paths contradicts
  the one over sources, or only such in which it agrees (ours; for training mixes);
* ``3+1|2``: written out, routes of each supporting source, a bar, routes of each refuting source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from provgym.rewards.outcome import Verdict

MAX_SOURCES = 5
MAX_ROUTES = 5
CONFLICT_CONDITIONS = ("C1", "C2", "C3", "C4", "C2R")
GENERAL = "general"
ADVERSARIAL = "general-adversarial"
AGREEING = "general-agreeing"
GENERAL_KINDS = (GENERAL, ADVERSARIAL, AGREEING)


@dataclass(frozen=True, slots=True)
class Condition:
    """Routes per supporting and per refuting source.

    Raises:
        ValueError: If there is no source at all, more than 5 on a side, or a source without 1 to 5 routes.
    """

    name: str
    supporting: tuple[int, ...]
    refuting: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.supporting and not self.refuting:
            raise ValueError(f"condition {self.name!r} has no source at all; at least one is needed")
        for side, routes in (("supporting", self.supporting), ("refuting", self.refuting)):
            if len(routes) > MAX_SOURCES:
                raise ValueError(f"condition {self.name!r} has {len(routes)} {side} sources; at most {MAX_SOURCES}")
            if any(not 1 <= k <= MAX_ROUTES for k in routes):
                raise ValueError(f"condition {self.name!r}: routes {list(routes)} must each be 1 to {MAX_ROUTES}")

    @property
    def gold(self) -> Verdict:
        """Majority over distinct sources."""
        return Verdict.from_counts(len(self.supporting), len(self.refuting))

    @property
    def is_adversarial(self) -> bool:
        """Whether the majority over all paths is another one: who counts paths answers wrongly.

        Example:
            >>> parse_condition("C2").is_adversarial, parse_condition("C3").is_adversarial
            (True, False)
        """
        return Verdict.from_counts(sum(self.supporting), sum(self.refuting)) is not self.gold


_CONFLICTS = {
    "C1": Condition("C1", (1,), (1,)),
    "C2": Condition("C2", (5,), (1,)),
    "C3": Condition("C3", (1,) * 5, (1,)),
    "C4": Condition("C4", (1,), (1,) * 5),
    "C2R": Condition("C2R", (1,), (5,)),
}


def parse_condition(name: str) -> Condition:
    """Read a condition's name; general ones have to be drawn, see :func:`draw_condition`.

    Raises:
        ValueError: If the name is unknown or impossible.

    Example:
        >>> parse_condition("1S5P").supporting, parse_condition("2+1|3").refuting
        ((5,), (3,))
    """
    if name in _CONFLICTS:
        return _CONFLICTS[name]
    source_count = re.fullmatch(r"(\d+)S(\d+)P(R?)", name)
    if source_count:
        routes = _split_evenly(name, int(source_count.group(1)), int(source_count.group(2)))
        return Condition(name, (), routes) if source_count.group(3) else Condition(name, routes, ())
    if re.fullmatch(r"(\d(\+\d)*)?\|(\d(\+\d)*)?", name):
        sides = [tuple(int(k) for k in side.split("+") if k) for side in name.split("|")]
        return Condition(name, sides[0], sides[1])
    raise ValueError(
        f"condition {name!r} is unknown; use one of {', '.join(CONFLICT_CONDITIONS)}, sSkP such as 1S5P, "
        f"'{GENERAL}', or routes written out such as '3+1|2'"
    )


def draw_general(rng: np.random.Generator, *, is_adversarial: bool | None = None) -> Condition:
    """Draw a general condition: the verdict first (each 1/3), then counts that give it, then 1-5 routes a source.

    Args:
        rng: Random source.
        is_adversarial: Keep drawing counts and routes until the condition is (or is not) adversarial; None takes it as
            it falls. The verdict is drawn once, so that verdicts stay balanced.
    """
    verdict = list(Verdict)[rng.integers(3)]
    pairs = [
        (s, r)
        for s in range(MAX_SOURCES + 1)
        for r in range(MAX_SOURCES + 1)
        if s + r > 0 and Verdict.from_counts(s, r) is verdict
    ]
    while True:
        support, refute = pairs[rng.integers(len(pairs))]
        routes = rng.integers(1, MAX_ROUTES + 1, size=support + refute).tolist()
        supporting, refuting = tuple(routes[:support]), tuple(routes[support:])
        name = f"{'+'.join(map(str, supporting))}|{'+'.join(map(str, refuting))}"
        condition = Condition(name, supporting, refuting)
        if is_adversarial in (None, condition.is_adversarial):
            return condition


def draw_condition(name: str, rng: np.random.Generator) -> Condition:
    """Draw one of the general kinds.

    Raises:
        ValueError: If ``name`` is not one of :data:`GENERAL_KINDS`.
    """
    if name not in GENERAL_KINDS:
        raise ValueError(f"condition {name!r} is not drawn; those that are: {', '.join(GENERAL_KINDS)}")
    return draw_general(rng, is_adversarial={GENERAL: None, ADVERSARIAL: True, AGREEING: False}[name])


def _split_evenly(name: str, sources: int, routes: int) -> tuple[int, ...]:
    if sources < 1 or routes < sources:
        raise ValueError(f"condition {name!r}: {routes} routes cannot reach {sources} sources, each needs one at least")
    return tuple(routes // sources + (1 if i < routes % sources else 0) for i in range(sources))
