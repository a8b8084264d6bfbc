"""How a simulated agent reads a unit of evidence: whether it speaks of the question, and for which side.

It reads text. What a unit is about are the content words of its triple's head and tail; which way it points is told by
a verb of direction in the quoted span ("raised", "reduced"), turned round by a negation, beside the question's own; or
by the relation itself where that says "supports" or "refutes". Nothing is looked up: no stance, no gold answer.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from provgym.envs.evidence_units import EvidenceUnit

_WORD = re.compile(r"[^\W_]+(?:[-'][^\W_]+)*")
_UP = ("rais", "increas", "improv", "boost", "enhanc", "elevat", "heighten", "strengthen")
_DOWN = ("lower", "reduc", "weaken", "decreas", "diminish", "impair", "lessen")
_DOWN_WORDS = frozenset(["cut", "cuts", "cutting"])
_NEGATIONS = frozenset(
    ["not", "no", "never", "neither", "nor", "without", "failed", "fails", "cannot", "didn't", "doesn't"]
)
_STATED = {"support": 1, "supports": 1, "supported": 1, "refute": -1, "refutes": -1, "refuted": -1, "contradicts": -1}
_EMPTY = frozenset(
    "a an and are as at by for from had has have in is it its of on or percent that the this to was were with".split()
)


class Side(StrEnum):
    """Which way a unit points."""

    FOR = "supports"
    AGAINST = "refutes"

    @property
    def other(self) -> Side:
        """The other one."""
        return Side.AGAINST if self is Side.FOR else Side.FOR


class Reading(NamedTuple):
    """What a careful reader finds in a unit.

    Attributes:
        is_about: Whether it speaks of the question.
        side: Which way it points, or would if it spoke of the question; None if it says nothing of that.
    """

    is_about: bool
    side: Side | None


@lru_cache(maxsize=65_536)
def read_unit(question: str, unit: EvidenceUnit) -> Reading:
    """Read one unit carefully.

    Args:
        question: With the claim that is asked about in it.
        unit: The unit; its id and its source play no part.
    """
    asked = frozenset(_words(question))
    stated = _STATED.get(unit.relation.strip().lower())
    subject = unit.tail if stated is not None else f"{unit.head} {unit.tail}"
    topic = {word for word in _words(subject) if word not in _EMPTY}
    is_about = bool(topic) and topic <= asked
    if stated is None:
        stated = (_direction(unit.span.text) or _direction(unit.relation)) * _direction(question)
    if stated == 0:
        return Reading(is_about, None)
    return Reading(is_about, Side.FOR if stated > 0 else Side.AGAINST)


def _words(text: str) -> list[str]:
    return [match.group().lower() for match in _WORD.finditer(text)]


def _direction(text: str) -> int:
    """Return 1 for up, -1 for down, 0 for neither or both; a negation turns it round."""
    words = _words(text)
    ups = any(word.startswith(_UP) for word in words)
    downs = any(word.startswith(_DOWN) or word in _DOWN_WORDS for word in words)
    if ups == downs:
        return 0
    sign = 1 if ups else -1
    return -sign if any(word in _NEGATIONS for word in words) else sign
