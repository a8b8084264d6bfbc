"""Figures over several training seeds: seeds and base claims are resampled independently of each other.

The same estimator as :mod:`provgym.eval.crossed`, over arrays of per-run values. Every seed's own figure is kept.

Shapes: N runs, C base claims, R resamples, S training seeds.

Source:
    Owen 2007, "The pigeonhole bootstrap", doi:10.1214/07-AOAS122.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from provgym.eval.bootstrap import resample_counts
from provgym.eval.crossed import SEED_FACTOR, CrossedEstimate, p_of_seeds
from provgym.eval.estimate import Estimate
from provgym.eval.metric_kinds import Floats
from provgym.eval.significance import bootstrap_p
from provgym.eval.topology_estimates import ClaimSums, Resampling, interval_of, ratio_of, scored_pairs


class SeedColumn(NamedTuple):
    """What one training seed's method came to, question by question.

    Attributes:
        claims: (N,) base claim of each run.
        first: (N,) values; NaN = not scored.
        second: (N,) values that ``first`` is compared with, run by run; None for a plain mean.
    """

    claims: Sequence[str]
    first: Sequence[float]
    second: Sequence[float] | None = None


def crossed_mean(columns: Sequence[SeedColumn], resampling: Resampling | None = None) -> CrossedEstimate:
    """Return the mean over training seeds of each seed's mean, or mean paired difference (first minus second).

    Args:
        columns: S >= 2 seeds; all with a second column or all without.
        resampling: Seed and number of resamples.

    Returns:
        The figure; for a difference also p: the larger one of the crossed bootstrap's and of a paired t test over
        seeds. Pairs of which either is not scored are left out. Not available if a seed has nothing scored.

    Raises:
        ValueError: If there are fewer than two seeds, lengths differ, or a value is infinite.
    """
    is_difference = columns[0].second is not None if columns else False

    def figure(column: SeedColumn, names: Sequence[str], counts: Floats) -> tuple[float, Floats, int]:
        other = column.first if column.second is None else column.second
        a, b, claims, _ = scored_pairs(column.first, other, column.claims)
        own, against = ClaimSums.of(a, claims, names), ClaimSums.of(b, claims, names)
        if column.second is None:
            return own.mean, own.resampled(counts), len(claims)
        return own.mean - against.mean, own.resampled(counts) - against.resampled(counts), len(claims)

    return _crossed(columns, figure, resampling or Resampling(), is_difference=is_difference)


def crossed_ratio(columns: Sequence[SeedColumn], resampling: Resampling | None = None) -> CrossedEstimate:
    """Return the mean over training seeds of the first column's total over the second's.

    Args:
        columns: S >= 2 seeds, values >= 0.
        resampling: Seed and number of resamples.

    Raises:
        ValueError: As in :func:`crossed_mean`, or if a seed has no second column.
    """

    def figure(column: SeedColumn, names: Sequence[str], counts: Floats) -> tuple[float, Floats, int]:
        if column.second is None:
            raise ValueError("a ratio needs a second column for every seed")
        a, b, claims, _ = scored_pairs(column.first, column.second, column.claims)
        own, against = ClaimSums.of(a, claims, names), ClaimSums.of(b, claims, names)
        point = float(ratio_of(own.totals.sum(), against.totals.sum()))
        return point, ratio_of(counts @ own.totals, counts @ against.totals), len(claims)

    return _crossed(columns, figure, resampling or Resampling(), is_difference=False)


def crossed_groups(columns: Sequence[SeedColumn], resampling: Resampling | None = None) -> CrossedEstimate:
    """Return the mean over training seeds of one group's mean minus the others'.

    Args:
        columns: S >= 2 seeds; ``second`` is 1 for a run of the first group and 0 for one of the others.
        resampling: Seed and number of resamples.

    Raises:
        ValueError: As in :func:`crossed_mean`, or if a seed has no second column.
    """

    def figure(column: SeedColumn, names: Sequence[str], counts: Floats) -> tuple[float, Floats, int]:
        if column.second is None:
            raise ValueError("a comparison of groups needs a second column for every seed")
        rows = list(zip(column.first, column.second, strict=True))
        inside = ClaimSums.of([v if g else math.nan for v, g in rows], column.claims, names)
        outside = ClaimSums.of([math.nan if g else v for v, g in rows], column.claims, names)
        difference = inside.resampled(counts) - outside.resampled(counts)
        return inside.mean - outside.mean, difference, inside.n + outside.n

    return _crossed(columns, figure, resampling or Resampling(), is_difference=True)


def _crossed(
    columns: Sequence[SeedColumn],
    figure: Callable[[SeedColumn, Sequence[str], Floats], tuple[float, Floats, int]],
    resampling: Resampling,
    *,
    is_difference: bool,
) -> CrossedEstimate:
    """Join the seeds' figures, each made from the same resamples of base claims."""
    if len(columns) < 2:
        raise ValueError(f"found {len(columns)} training seed(s); a crossed interval needs at least two")
    names = sorted({name for column in columns for name in column.claims})
    if not names:
        return CrossedEstimate(Estimate.missing(), tuple(math.nan for _ in columns))
    counts = resampling.counts(len(names))  # (R, C)
    found = [figure(column, names, counts) for column in columns]
    points = np.array([point for point, _, _ in found])  # (S,)
    by_seed = tuple(float(point) for point in points)
    if np.isnan(points).any():  # a mean over fewer seeds than were trained would pass for one over all
        return CrossedEstimate(Estimate.missing(), by_seed)
    resampled = np.stack([values for _, values, _ in found], axis=1)  # (R, S)
    drawn = resample_counts(len(points), resamples=resampling.resamples, seed=resampling.seed, factor=SEED_FACTOR)
    weights = np.where(np.isnan(resampled), 0.0, drawn)  # (R, S)
    means = ratio_of((weights * np.nan_to_num(resampled)).sum(axis=1), weights.sum(axis=1))  # (R,)
    low, high = interval_of(means, len(names))
    p = max(bootstrap_p(means), p_of_seeds(points)) if is_difference and not math.isnan(low) else math.nan
    return CrossedEstimate(Estimate(float(points.mean()), low, high, sum(n for _, _, n in found)), by_seed, p)
