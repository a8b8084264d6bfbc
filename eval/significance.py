"""Is a difference between two policies more than chance: tests on base claims, corrected when there are several.

Two tests of "no difference", both with the base claim as the unit, because a claim's episodes are not independent:

* the **sign test** asks on how many claims the first policy is better; it is exact, and blind to how much better;
* the **bootstrap test** asks how often a resample of claims turns the difference around; it looks at the very
  resamples that give the 95 % interval, so that its p falls below 0.05 where that interval begins to leave zero out.

With few claims trust the sign test: resampling claims that all agree never turns a difference around.

Shapes: C base claims, R resamples, P tests of one family.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

TIE = 1e-12
"""Differences up to this size are ties: sums of the same numbers in another order differ by less."""


@dataclass(frozen=True, slots=True)
class SignTest:
    """An exact two-sided sign test over base claims.

    Attributes:
        wins: Claims on which the first policy's figure is the higher one.
        losses: Claims on which it is the lower one.
        ties: Claims on which both are the same; they do not enter the test.
        p: Chance of a split at least as uneven if both sides were equally likely; 1 if every claim is a tie, NaN
            without any claim.
    """

    wins: int = 0
    losses: int = 0
    ties: int = 0
    p: float = math.nan

    @property
    def n(self) -> int:
        """Claims that entered the test."""
        return self.wins + self.losses


def sign_test(differences: NDArray[np.float64]) -> SignTest:
    """Test whether differences have a median of zero, exactly.

    Args:
        differences: (C,) first minus second of each base claim; NaN where a claim was not scored on either side.

    Returns:
        The counts and the two-sided p.

    Source:
        Conover 1999, "Practical Nonparametric Statistics", section 3.4; the binomial is SciPy's.

    Example:
        >>> sign_test(np.array([0.5, 1.0, 1.0, 1.0, 0.0, math.nan]))
        SignTest(wins=4, losses=0, ties=1, p=0.125)
    """
    kept = differences[~np.isnan(differences)]
    wins, losses = int((kept > TIE).sum()), int((kept < -TIE).sum())
    ties = len(kept) - wins - losses
    if not len(kept):
        return SignTest()
    p = float(binomtest(wins, wins + losses, 0.5).pvalue) if wins + losses else 1.0
    return SignTest(wins, losses, ties, p)


def bootstrap_p(resampled: NDArray[np.float64]) -> float:
    """Return the two-sided p of "the difference is zero" from resampled differences.

    ``min(1, 2 (1 + min(#{d <= 0}, #{d >= 0})) / (R + 1))``: the percentile interval turned round. Its smallest value
    is 2 / (R + 1), 0.001 with 2,000 resamples.

    Args:
        resampled: (R,) differences of resamples; NaN where a resample had nothing to score.

    Returns:
        p in (0, 1]; NaN when nothing is left.

    Source:
        Efron and Tibshirani 1993, "An Introduction to the Bootstrap", section 15.4 (achieved significance level by
        inverting an interval); one is added to both counts as in Davison and Hinkley 1997, equation 4.11.

    Example:
        >>> bootstrap_p(np.array([0.2, 0.1, -0.1, 0.3]))
        0.8
    """
    kept = resampled[~np.isnan(resampled)]
    if not len(kept):
        return math.nan
    below, above = int((kept <= TIE).sum()), int((kept >= -TIE).sum())
    return min(1.0, 2.0 * (1 + min(below, above)) / (len(kept) + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct the p of several tests so that the chance of any false alarm among them stays below the level.

    Args:
        p_values: P values in [0, 1]; NaN is no test and does not count.

    Returns:
        P adjusted values in the given order, NaN where there was no test.

    Raises:
        ValueError: If a value lies outside [0, 1].

    Source:
        Holm 1979, Scandinavian Journal of Statistics 6(2), 65-70.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    wrong = [p for p in p_values if p < 0.0 or p > 1.0]
    if wrong:
        raise ValueError(f"p values {wrong} must lie in [0, 1]")
    family = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    adjusted = [math.nan] * len(p_values)
    highest = 0.0
    for rank, (p, place) in enumerate(family):
        highest = max(highest, min(1.0, (len(family) - rank) * p))
        adjusted[place] = highest
    return adjusted
