"""Intervals over several training seeds: seeds and base claims are resampled independently of each other.

With few seeds this interval is rough (three seeds have ten distinct resamples), so every seed's own figure is
returned beside it, and whether they agree in sign.

Shapes: C base claims, R resamples, K columns of a metric, S training seeds.

Source:
    Owen 2007, "The pigeonhole bootstrap", doi:10.1214/07-AOAS122; Owen and Eckles 2012, arXiv:1106.2125.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp

from provgym.eval.bootstrap import (
    DEFAULT_RESAMPLES,
    DEFAULT_SEED,
    pair_episodes,
    percentile_interval,
    resample_counts,
    sum_by_cluster,
)
from provgym.eval.estimate import Estimate
from provgym.eval.metric_kinds import Floats, Metric, is_scored
from provgym.eval.significance import bootstrap_p
from provgym.generators.episode import Episode

SEED_FACTOR = 1
"""Part of the random key that resamples training seeds."""


@dataclass(frozen=True, slots=True)
class CrossedEstimate:
    """A figure over several training seeds.

    Attributes:
        overall: Mean of the seeds' figures, with the crossed interval; n = episodes over all seeds, of a difference the
            smaller side's in each seed, as in :class:`~provgym.eval.bootstrap.PairedDifference`.
        by_seed: Each seed's own figure, in the order given; never hidden behind the mean.
        p: Of "no difference", for a difference that has an interval: the larger one of the crossed bootstrap's and of a
            paired t test over seeds; NaN for a plain figure.
    """

    overall: Estimate
    by_seed: tuple[float, ...]
    p: float = math.nan

    @property
    def agrees_in_sign(self) -> bool:
        """Whether every seed's figure lies on the same side of zero (what a claim from three seeds needs)."""
        return all(value > 0 for value in self.by_seed) or all(value < 0 for value in self.by_seed)

    @property
    def seeds_with_sign(self) -> int:
        """How many seeds' figures lie on the mean's side of zero; none if the mean is zero or not available."""
        mean = self.overall.value
        return sum(value * mean > 0 for value in self.by_seed)

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data; NaN becomes null, and p is left out where there is none."""
        return {
            **self.overall.to_json(),
            "by_seed": [None if math.isnan(value) else value for value in self.by_seed],
            "agrees_in_sign": self.agrees_in_sign,
            **({} if math.isnan(self.p) else {"p": self.p}),
        }


def crossed_estimate(
    runs: Sequence[Sequence[Episode]],
    metric: Metric,
    *,
    seed: int = DEFAULT_SEED,
    resamples: int = DEFAULT_RESAMPLES,
) -> CrossedEstimate:
    """Return the mean over training seeds, resampling seeds and base claims independently.

    Args:
        runs: One list of episodes per training seed, at least two, on the same claims.
        metric: What to measure.
        seed: Run seed of the resampling.
        resamples: R.

    Raises:
        ValueError: If there are fewer than two runs.
    """
    scored = [[e for e in run if is_scored(e)] for run in runs]
    return _crossed(scored, None, metric, seed, resamples)


def crossed_difference(
    runs_a: Sequence[Sequence[Episode]],
    runs_b: Sequence[Sequence[Episode]],
    metric: Metric,
    *,
    seed: int = DEFAULT_SEED,
    resamples: int = DEFAULT_RESAMPLES,
) -> CrossedEstimate:
    """Return the mean over training seeds of the paired difference ``a`` minus ``b``.

    Args:
        runs_a: One list of episodes per training seed, at least two.
        runs_b: As many lists, or a single one that every seed is compared with (a shared start).
        metric: What to compare.
        seed: Run seed of the resampling.
        resamples: R.

    Raises:
        ValueError: If there are fewer than two runs, the numbers do not match, or two runs cannot be paired.
    """
    if len(runs_b) not in (1, len(runs_a)):
        raise ValueError(f"found {len(runs_a)} runs against {len(runs_b)}; give as many, or a single one")
    others = list(runs_b) * (len(runs_a) if len(runs_b) == 1 else 1)
    pairs = [pair_episodes(a, b)[:2] for a, b in zip(runs_a, others, strict=True)]
    return _crossed([a for a, _ in pairs], [b for _, b in pairs], metric, seed, resamples)


def _crossed(
    runs: list[list[Episode]],
    minus: list[list[Episode]] | None,
    metric: Metric,
    seed: int,
    resamples: int,
) -> CrossedEstimate:
    if len(runs) < 2:
        raise ValueError(f"found {len(runs)} run(s); a crossed interval needs at least two training seeds")
    names = sorted({episode.claim_id for run in runs for episode in run})
    if not names:
        return CrossedEstimate(Estimate.missing(), tuple(math.nan for _ in runs))
    place = {name: i for i, name in enumerate(names)}
    claims = resample_counts(len(names), resamples=resamples, seed=seed)  # (R, C)
    seeds = resample_counts(len(runs), resamples=resamples, seed=seed, factor=SEED_FACTOR)  # (R, S)
    point, resampled, n = _values_by_run(runs, metric, place, claims)
    if minus is not None:
        point_b, resampled_b, n_b = _values_by_run(minus, metric, place, claims)
        point, resampled, n = point - point_b, resampled - resampled_b, np.minimum(n, n_b)
    weights = np.where(np.isnan(resampled), 0.0, seeds)  # (R, S)
    total = weights.sum(axis=1)
    means = (weights * np.nan_to_num(resampled)).sum(axis=1) / np.where(total > 0, total, 1.0)  # (R,)
    means = np.where(total > 0, means, math.nan)
    low, high = percentile_interval(means) if len(names) > 1 else (math.nan, math.nan)
    by_seed = tuple(float(v) for v in point)
    if np.isnan(point).any():  # a mean over fewer seeds than were trained would pass for one over all
        return CrossedEstimate(Estimate.missing(), by_seed)
    p = math.nan if minus is None or math.isnan(low) else max(bootstrap_p(means), p_of_seeds(point))
    return CrossedEstimate(Estimate(float(point.mean()), low, high, round(float(n.sum()))), by_seed, p)


def over_seeds(values: Sequence[float]) -> CrossedEstimate:
    """Return the mean of a figure that each training seed has one of, with the t interval over seeds.

    For figures that are not made of claims, such as what a run cost. Seeds are all that this interval is over.

    Args:
        values: (S,) one figure per seed, at least two; NaN = not measured.

    Returns:
        The mean, its 95 % interval, n = S. Not available if a seed has no figure.

    Raises:
        ValueError: If there are fewer than two seeds.

    Example:
        >>> str(over_seeds([0.5, 0.6, 0.7]).overall)
        '0.600 [0.352, 0.848] n=3'
    """
    if len(values) < 2:
        raise ValueError(f"found {len(values)} training seed(s); an interval over seeds needs at least two")
    point = np.array(values, dtype=np.float64)  # (S,)
    by_seed = tuple(float(value) for value in point)
    if np.isnan(point).any():
        return CrossedEstimate(Estimate.missing(), by_seed)
    mean = float(point.mean())
    low = high = mean
    if np.ptp(point) > 0.0:
        found = ttest_1samp(point, 0.0).confidence_interval(0.95)
        low, high = float(found.low), float(found.high)
    return CrossedEstimate(Estimate(mean, low, high, len(point)), by_seed)


def p_of_seeds(point: Floats) -> float:
    """Return the two-sided p of a paired t test over the seeds' own differences (S,).

    Resampling seeds that all agree never turns a difference around: with few seeds the bootstrap finds too much.
    """
    if np.ptp(point) == 0.0:
        return 1.0 if point[0] == 0.0 else 0.0
    return float(ttest_1samp(point, 0.0).pvalue)


def _values_by_run(
    runs: list[list[Episode]], metric: Metric, place: dict[str, int], claims: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return each run's figure (S,), resampled figures (R, S) and n (S,)."""
    point, resampled, n = [], [], []
    for run in runs:
        index = np.array([place[episode.claim_id] for episode in run], dtype=np.int64)
        sums = sum_by_cluster(metric.statistics(run), index, len(place))  # (C, K)
        total = sums.sum(axis=0)
        point.append(float(metric.value(total)))
        n.append(float(metric.count(total)))
        resampled.append(metric.value(claims @ sums))
    return np.array(point), np.stack(resampled, axis=1), np.array(n)
