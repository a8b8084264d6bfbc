"""What an episode came to: the small record that every reward and metric reads.

The record holds counts only: no graph, no text, no token. So rewards stay pure functions, and a stored
episode can be scored again under another rubric without being played again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """What the distinct sources say of a claim, taken together."""

    SUPPORT = "SUPPORT"
    REFUTE = "REFUTE"
    MIXED = "MIXED"

    @classmethod
    def from_counts(cls, support: int, refute: int) -> Verdict:
        """Return the majority of two source counts; a tie is MIXED.

        Example:
            >>> Verdict.from_counts(5, 1).value, Verdict.from_counts(1, 1).value
            ('SUPPORT', 'MIXED')
        """
        if support == refute:
            return cls.MIXED
        return cls.SUPPORT if support > refute else cls.REFUTE


class Ending(StrEnum):
    """How an episode ended. The four are never merged, and ERROR is never scored as a wrong answer."""

    ANSWERED = "answered"  # a stop whose judgement parses
    INVALID = "invalid"  # a stop whose judgement does not parse
    TRUNCATED = "truncated"  # the walk budget or the length ran out before a valid stop
    ERROR = "error"  # infrastructure: an endpoint that failed, a killed worker


@dataclass(frozen=True, slots=True)
class Judgement:
    """A final answer about a claim.

    Attributes:
        verdict: What the agent concludes.
        support_count: Distinct supporting sources the agent says it acquired, >= 0.
        refute_count: Distinct refuting sources the agent says it acquired, >= 0.
        confidence: In [0, 1].
        cited_sources: Source labels or ids, as written by the agent, in order.
        rationale: Free text; never scored.
    """

    verdict: Verdict
    support_count: int
    refute_count: int
    confidence: float = 1.0
    cited_sources: tuple[str, ...] = ()
    rationale: str = ""

    def __post_init__(self) -> None:
        if self.support_count < 0 or self.refute_count < 0:
            raise ValueError(
                f"source counts must be >= 0, found support_count={self.support_count}, "
                f"refute_count={self.refute_count}"
            )
        if not (math.isfinite(self.confidence) and 0.0 <= self.confidence <= 1.0):
            raise ValueError(f"confidence={self.confidence} must lie in [0, 1]")


@dataclass(frozen=True, slots=True)
class WalkOutcome:
    """Everything that the rewards and metrics of one walk need.

    Attributes:
        gold: Verdict of the claim's distinct sources under the condition.
        judgement: The parsed answer, or None unless ``ending`` is ANSWERED.
        ending: How the episode ended.
        budget: B, the walks allowed, >= 1.
        walks: W, legal walks taken; illegal actions are not walks.
        invalid_actions: Actions that followed no edge or could not be parsed; each uses one walk of the budget.
        echoes: E, walks to an evidence-bearing node of an atom already acquired.
        connector_moves: Walks to a node that bears no evidence (claim, source).
        available_support: Distinct supporting sources in the instance.
        available_refute: Distinct refuting sources in the instance.
        acquired_support: Distinct supporting sources the agent reached.
        acquired_refute: Distinct refuting sources the agent reached.
    """

    gold: Verdict
    judgement: Judgement | None
    ending: Ending
    budget: int
    walks: int
    invalid_actions: int
    echoes: int
    connector_moves: int
    available_support: int
    available_refute: int
    acquired_support: int
    acquired_refute: int

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise ValueError(f"budget={self.budget} must be >= 1")
        if (self.judgement is not None) != (self.ending is Ending.ANSWERED):
            raise ValueError(f"a judgement goes with ending 'answered' only, found ending={self.ending.value!r}")
        if self.walks + self.invalid_actions > self.budget:
            raise ValueError(f"walks={self.walks} + invalid_actions={self.invalid_actions} exceed budget={self.budget}")

    @property
    def available(self) -> int:
        """D: distinct sources available in the instance."""
        return self.available_support + self.available_refute

    @property
    def acquired(self) -> int:
        """U: distinct useful sources the agent acquired."""
        return self.acquired_support + self.acquired_refute

    @property
    def is_correct(self) -> bool:
        """Whether a valid judgement names the gold verdict."""
        return self.judgement is not None and self.judgement.verdict is self.gold


def outcome_as_dict(outcome: WalkOutcome) -> dict[str, Any]:
    """Return an outcome as JSON-ready data; :func:`outcome_from_dict` reverses it exactly."""
    data = asdict(outcome)
    data["gold"] = outcome.gold.value
    data["ending"] = outcome.ending.value
    if outcome.judgement is not None:
        data["judgement"]["verdict"] = outcome.judgement.verdict.value
        data["judgement"]["cited_sources"] = list(outcome.judgement.cited_sources)
    return data


def outcome_from_dict(data: Mapping[str, Any]) -> WalkOutcome:
    """Rebuild an outcome from :func:`outcome_as_dict`'s data.

    Raises:
        ValueError: If a field is missing, unknown or out of range.
    """
    fields = dict(data)
    try:
        judgement = fields.pop("judgement")
        if judgement is not None:
            judgement = Judgement(
                **{
                    **judgement,
                    "verdict": Verdict(judgement["verdict"]),
                    "cited_sources": tuple(judgement["cited_sources"]),
                }
            )
        fields["gold"], fields["ending"] = Verdict(fields["gold"]), Ending(fields["ending"])
        return WalkOutcome(judgement=judgement, **fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a stored outcome: {error}") from error
