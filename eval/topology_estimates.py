"""Intervals over runs of teams: cluster bootstrap of means, ratios and differences.

Everything works on arrays of per-run values beside the base claim of each run, so that any record can be measured. The
resamples are those of :mod:`provgym.eval.bootstrap` (same seed, same draws), so that figures of walks and of teams are
made alike: a base claim's tasks, kinds of evidence and replicates come and go together.

Shapes: N runs, C base claims, R resamples.

Source:
    Miller 2024, arXiv:2411.00640 (clustered errors, paired differences); Davison and Hinkley 1997, section 3.8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from provgym.eval.bootstrap import (
    DEFAULT_RESAMPLES,
    DEFAULT_SEED,
    PairedDifference,
    percentile_interval,
    resample_counts,
    sum_by_cluster,
)
from provgym.eval.estimate import Estimate
from provgym.eval.metric_kinds import Floats
from provgym.eval.significance import bootstrap_p, sign_test


@dataclass(frozen=True, slots=True)
class Resampling:
    """How intervals are drawn.

    Attributes:
        seed: Run seed of the resampling.
        resamples: R >= 1.
    """

    seed: int = DEFAULT_SEED
    resamples: int = DEFAULT_RESAMPLES

    def counts(self, clusters: int) -> Floats:
        """Return how often each of C clusters stands in each resample, (R, C)."""
        return _counts(clusters, self.resamples, self.seed)


@lru_cache(maxsize=8)
def _counts(clusters: int, resamples: int, seed: int) -> Floats:
    counts = resample_counts(clusters, resamples=resamples, seed=seed)
    counts.flags.writeable = False  # shared by every figure of an evaluation
    return counts


class ClaimSums(NamedTuple):
    """What means are made of.

    Attributes:
        totals: (C,) sum of the scored values of each base claim.
        numbers: (C,) how many there are.
    """

    totals: Floats
    numbers: Floats

    @classmethod
    def of(cls, values: Sequence[float], claims: Sequence[str], names: Sequence[str]) -> ClaimSums:
        """Add values up by base claim.

        Args:
            values: (N,) NaN = not scored.
            claims: (N,) base claim of each.
            names: (C,) all base claims.

        Raises:
            ValueError: If the lengths differ or a value is infinite.
        """
        if len(values) != len(claims):
            raise ValueError(f"found {len(values)} values for {len(claims)} base claims; give one claim per value")
        column = np.array(values, dtype=np.float64)  # (N,)
        if np.isinf(column).any():
            place = int(np.isinf(column).argmax())
            raise ValueError(f"value {place} of {len(column)} is {column[place]}; NaN means not scored")
        number = {name: i for i, name in enumerate(names)}
        index = np.array([number[claim] for claim in claims], dtype=np.int64)
        rows = np.stack([np.nan_to_num(column), ~np.isnan(column)], axis=1)  # (N, 2)
        sums = sum_by_cluster(rows, index, len(names))  # (C, 2)
        return cls(sums[:, 0], sums[:, 1])

    @property
    def n(self) -> int:
        """Scored values."""
        return round(float(self.numbers.sum()))

    @property
    def mean(self) -> float:
        """Their mean; NaN without any."""
        return float(ratio_of(self.totals.sum(), self.numbers.sum()))

    @property
    def by_claim(self) -> Floats:
        """(C,) mean of each base claim."""
        return ratio_of(self.totals, self.numbers)

    def resampled(self, counts: Floats) -> Floats:
        """Return the mean of each resample, (R,), from (R, C) counts."""
        return ratio_of(counts @ self.totals, counts @ self.numbers)


def mean_estimate(values: Sequence[float], claims: Sequence[str], resampling: Resampling | None = None) -> Estimate:
    """Return the mean of what was scored, with its 95 % interval by cluster bootstrap.

    Args:
        values: (N,) one value per run; NaN = not scored (not the same as 0).
        claims: (N,) base claim of each run.
        resampling: Seed and number of resamples.

    Returns:
        The estimate; n = scored runs. No interval with fewer than two scored base claims.

    Raises:
        ValueError: If the lengths differ or a value is infinite.

    Example:
        >>> mean_estimate([1.0, 0.0, math.nan], ["a", "b", "b"]).value
        0.5
    """
    resampling = resampling or Resampling()
    names = sorted(set(claims))
    sums = ClaimSums.of(values, claims, names)
    if sums.n == 0:
        return Estimate.missing()
    low, high = interval_of(sums.resampled(resampling.counts(len(names))), int((sums.numbers > 0).sum()))
    return Estimate(sums.mean, low, high, sums.n)


def paired_means(
    first: Sequence[float], second: Sequence[float], claims: Sequence[str], resampling: Resampling | None = None
) -> PairedDifference:
    """Compare the means of two methods on the same questions: first minus second.

    Args:
        first: (N,) values of the first method; NaN = not scored.
        second: (N,) values of the second on the same questions, in the same order.
        claims: (N,) base claim of each question.
        resampling: Seed and number of resamples.

    Returns:
        The difference over the pairs in which both are scored (``left_out`` counts the others), with its paired
        interval, the bootstrap test and the sign test over base claims.

    Raises:
        ValueError: If the lengths differ or a value is infinite.
    """
    resampling = resampling or Resampling()
    kept_a, kept_b, kept_claims, left_out = scored_pairs(first, second, claims)
    if not kept_claims:
        return PairedDifference(Estimate.missing(), math.nan, math.nan, left_out)
    names = sorted(set(kept_claims))
    a, b = ClaimSums.of(kept_a, kept_claims, names), ClaimSums.of(kept_b, kept_claims, names)
    counts = resampling.counts(len(names))
    resampled = a.resampled(counts) - b.resampled(counts)  # (R,)
    low, high = interval_of(resampled, len(names))
    difference = Estimate(a.mean - b.mean, low, high, len(kept_claims))
    p = bootstrap_p(resampled) if difference.has_interval else math.nan
    return PairedDifference(difference, a.mean, b.mean, left_out, p, sign_test(a.by_claim - b.by_claim))


def paired_ratio(
    first: Sequence[float], second: Sequence[float], claims: Sequence[str], resampling: Resampling | None = None
) -> Estimate:
    """Return the first method's total over the second's, on the questions that both have scored.

    Args:
        first: (N,) values >= 0 (tokens, calls); NaN = not scored.
        second: (N,) values >= 0 on the same questions.
        claims: (N,) base claim of each question.
        resampling: Seed and number of resamples.

    Returns:
        The ratio of sums with its paired interval; n = pairs. Not available where the second's total is 0.

    Raises:
        ValueError: If the lengths differ or a value is infinite.
    """
    resampling = resampling or Resampling()
    kept_a, kept_b, kept_claims, _ = scored_pairs(first, second, claims)
    names = sorted(set(kept_claims))
    if not names or sum(kept_b) <= 0.0:
        return Estimate.missing()
    a, b = ClaimSums.of(kept_a, kept_claims, names), ClaimSums.of(kept_b, kept_claims, names)
    counts = resampling.counts(len(names))
    low, high = interval_of(ratio_of(counts @ a.totals, counts @ b.totals), len(names))
    return Estimate(float(a.totals.sum() / b.totals.sum()), low, high, len(kept_claims))


def group_difference(
    values: Sequence[float], is_first: Sequence[bool], claims: Sequence[str], resampling: Resampling | None = None
) -> Estimate:
    """Return the mean over one group of runs minus the mean over the others, e.g. team size by kind of evidence.

    A base claim that has runs in both groups is resampled with all of them, so what it adds to both cancels.

    Args:
        values: (N,) one value per run; NaN = not scored.
        is_first: (N,) whether a run belongs to the first group.
        claims: (N,) base claim of each run.
        resampling: Seed and number of resamples.

    Returns:
        The difference with its interval; n = scored runs of both groups. Not available unless both have some.

    Raises:
        ValueError: If the lengths differ or a value is infinite.
    """
    resampling = resampling or Resampling()
    names = sorted(set(claims))
    inside = [value if first else math.nan for value, first in zip(values, is_first, strict=True)]
    outside = [math.nan if first else value for value, first in zip(values, is_first, strict=True)]
    a, b = ClaimSums.of(inside, claims, names), ClaimSums.of(outside, claims, names)
    if a.n == 0 or b.n == 0:
        return Estimate.missing()
    counts = resampling.counts(len(names))
    measured = int(((a.numbers > 0) | (b.numbers > 0)).sum())
    low, high = interval_of(a.resampled(counts) - b.resampled(counts), measured)
    return Estimate(a.mean - b.mean, low, high, a.n + b.n)


def scored_pairs(
    first: Sequence[float], second: Sequence[float], claims: Sequence[str]
) -> tuple[list[float], list[float], list[str], int]:
    """Return what both sides have scored.

    Args:
        first: (N,) values of one side, NaN = not scored.
        second: (N,) of the other.
        claims: (N,) base claim of each pair.

    Returns:
        Values of the first side, of the second, and base claims, of the pairs kept; and the number of those left out.

    Raises:
        ValueError: If the three differ in length.
    """
    rows = list(zip(first, second, claims, strict=True))
    kept = [(a, b, claim) for a, b, claim in rows if not (math.isnan(a) or math.isnan(b))]
    return [a for a, _, _ in kept], [b for _, b, _ in kept], [c for _, _, c in kept], len(rows) - len(kept)


def interval_of(resampled: Floats, measured_claims: int) -> tuple[float, float]:
    """Return the 95 % percentile interval of (R,) figures; NaN with fewer than two base claims.

    One claim says nothing of how claims differ.
    """
    return percentile_interval(resampled) if measured_claims > 1 else (math.nan, math.nan)


def ratio_of(part: Floats, whole: Floats) -> Floats:
    """Divide elementwise; NaN where the whole is 0."""
    positive = np.asarray(whole) > 0
    found: Floats = np.where(positive, part / np.where(positive, whole, 1.0), math.nan)
    return found
