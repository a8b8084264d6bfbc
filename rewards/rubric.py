"""A rubric: named terms, their weights, and a score that always shows every term.

Example:
    >>> from provgym.rewards.outcome import Ending, Judgement, Verdict, WalkOutcome
    >>> outcome = WalkOutcome(Verdict.MIXED, Judgement(Verdict.MIXED, 1, 1), Ending.ANSWERED, budget=6, walks=2,
    ...     invalid_actions=0, echoes=0, connector_moves=0, available_support=1, available_refute=1,
    ...     acquired_support=1, acquired_refute=1)
    >>> score = papt_rubric("full").score(outcome)
    >>> round(score.total, 4), score.terms["coverage"]
    (1.7833, 1.0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Literal, get_args

from provgym.rewards.outcome import Ending, WalkOutcome
from provgym.rewards.papt import (
    CountBasis,
    CoverageBasis,
    cost_term,
    count_term,
    coverage_term,
    echo_term,
    illegal_term,
    verdict_term,
)

Term = Callable[[WalkOutcome], float]
Variant = Literal["full", "no_echo", "no_coverage", "verdict_only"]

PAPT_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {"verdict": 1.0, "count": 0.4, "coverage": 0.4, "echo": -0.4, "cost": -0.05, "illegal": 0.0}
)
"""Weights of GraphEcho, arXiv:2609.17695, equation 3; penalties carry their sign here. ``illegal`` is ours."""


@dataclass(frozen=True, slots=True)
class Score:
    """A weighted total and the unweighted value of every term; all NaN when the episode is not scored."""

    total: float
    terms: Mapping[str, float]

    @property
    def is_scored(self) -> bool:
        """Whether the episode counts (an ``error`` ending does not)."""
        return not math.isnan(self.total)


@dataclass(frozen=True)
class Rubric:
    """Named terms with weights.

    Attributes:
        terms: Name to pure function. A term of weight 0 is still computed and reported.
        weights: Name to weight, the same names as ``terms``.

    Raises:
        ValueError: If the names of ``terms`` and ``weights`` differ, or a weight is not finite.
    """

    terms: Mapping[str, Term]
    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        if set(self.terms) != set(self.weights):
            raise ValueError(f"terms {sorted(self.terms)} and weights {sorted(self.weights)} must have the same names")
        for name, weight in self.weights.items():
            if not math.isfinite(weight):
                raise ValueError(f"weights[{name!r}]={weight} must be finite")

    def without(self, names: Collection[str]) -> Rubric:
        """Return the rubric with the weights of these terms set to 0.

        Raises:
            ValueError: If a name is not among the terms.
        """
        unknown = sorted(set(names) - set(self.terms))
        if unknown:
            raise ValueError(f"terms {unknown} are unknown; the rubric has {sorted(self.terms)}")
        return replace(self, weights={k: 0.0 if k in names else w for k, w in self.weights.items()})

    def score(self, outcome: WalkOutcome) -> Score:
        """Score one outcome; an ``error`` ending gives NaN everywhere (not scored is not zero)."""
        if outcome.ending is Ending.ERROR:
            return Score(math.nan, MappingProxyType(dict.fromkeys(self.terms, math.nan)))
        values = {name: term(outcome) for name, term in self.terms.items()}
        total = math.fsum(self.weights[name] * value for name, value in values.items())
        return Score(total, MappingProxyType(values))


def papt_rubric(
    variant: Variant = "full",
    *,
    weights: Mapping[str, float] | None = None,
    count_basis: CountBasis = "acquired",
    coverage_basis: CoverageBasis = "budget",
) -> Rubric:
    """Build the PAPT rubric or one of its ablations.

    Args:
        variant: ``full``; ``no_echo`` and ``no_coverage`` set that weight to 0; ``verdict_only`` keeps the verdict.
        weights: Overrides for single weights of :data:`PAPT_WEIGHTS`, before the variant is applied.
        count_basis: See :func:`~provgym.rewards.papt.count_term`.
        coverage_basis: See :func:`~provgym.rewards.papt.coverage_term`.

    Raises:
        ValueError: If ``variant`` or a weight's name is unknown.
    """
    if variant not in get_args(Variant):
        raise ValueError(f"reward variant {variant!r} is unknown; choose one of {list(get_args(Variant))}")
    unknown = sorted(set(weights or {}) - set(PAPT_WEIGHTS))
    if unknown:
        raise ValueError(f"reward weights {unknown} are unknown; the terms are {sorted(PAPT_WEIGHTS)}")
    chosen = {**PAPT_WEIGHTS, **(weights or {})}
    dropped = {"full": (), "no_echo": ("echo",), "no_coverage": ("coverage",), "verdict_only": ()}[variant]
    if variant == "verdict_only":
        dropped = tuple(name for name in chosen if name != "verdict")
    terms: dict[str, Term] = {
        "verdict": verdict_term,
        "count": partial(count_term, basis=count_basis),
        "coverage": partial(coverage_term, basis=coverage_basis),
        "echo": echo_term,
        "cost": cost_term,
        "illegal": illegal_term,
    }
    return Rubric(terms, {name: 0.0 if name in dropped else weight for name, weight in chosen.items()})
