"""Cluster bootstrap: intervals that know that several episodes share a base claim.

The base claim is what was drawn at random, so it is what is resampled; a claim's conditions, budgets and
samples come and go together. Intervals are percentile intervals.

Shapes: N episodes, C base claims, R resamples, K columns of a metric.

Source:
    Clustered errors and paired differences in evaluations: Miller 2024, arXiv:2411.00640. Resampling whole
    clusters: Davison and Hinkley 1997, "Bootstrap Methods and their Application", section 3.8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from provgym.eval.estimate import Estimate
from provgym.eval.metric_kinds import Floats, Metric, is_scored
from provgym.eval.significance import SignTest, bootstrap_p, sign_test
from provgym.generators.episode import Episode
from provgym.generators.seeds import Purpose, derive_rng

DEFAULT_RESAMPLES = 2_000
DEFAULT_SEED = 42
LEVEL = 0.95
CLAIM_FACTOR = 0
"""Part of the random key that resamples base claims; other factors have other numbers."""


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """A difference between two policies on the same episodes, first minus second.

    Attributes:
        difference: The figure of ``a`` minus that of ``b``, with its paired interval. Its n is the smaller one of the
            two sides' own n over the kept pairs, where a metric's n is what it scores (``docs/metrics.md``). A metric
            that scores every episode has n = kept pairs. One that leaves some out, such as the Brier score without a
            judgement, leaves them out on each side by itself: n then bounds the pairs scored on both sides from above.
        a: Figure of the first policy on those pairs.
        b: Figure of the second.
        left_out: Pairs left out because either ended in ``error``.
        p: Of "no difference", by the bootstrap that gives the interval; NaN where there is no interval.
        sign: Sign test over base claims, each by its own figure.
    """

    difference: Estimate
    a: float
    b: float
    left_out: int
    p: float = math.nan
    sign: SignTest = SignTest()

    @property
    def is_above_zero(self) -> bool:
        """Whether the whole interval lies above zero."""
        return self.difference.has_interval and self.difference.low > 0

    @property
    def is_below_zero(self) -> bool:
        """Whether the whole interval lies below zero."""
        return self.difference.has_interval and self.difference.high < 0


def resample_counts(num_clusters: int, *, resamples: int, seed: int, factor: int = CLAIM_FACTOR) -> Floats:
    """Draw how often each cluster stands in each resample.

    Args:
        num_clusters: C >= 1.
        resamples: R >= 1.
        seed: Run seed; the stream is derived from it, no global generator is read or changed.
        factor: Which factor is resampled; different factors have independent streams.

    Returns:
        (R, C) whole numbers; each row adds up to C.

    Raises:
        ValueError: If there is no cluster or no resample.
    """
    if num_clusters < 1 or resamples < 1:
        raise ValueError(f"num_clusters={num_clusters} and resamples={resamples} must be >= 1")
    rng = derive_rng(seed, Purpose.BOOTSTRAP, factor)
    counts = rng.multinomial(num_clusters, np.full(num_clusters, 1.0 / num_clusters), size=resamples)
    return counts.astype(np.float64)


def estimate(
    episodes: Sequence[Episode],
    metric: Metric,
    *,
    seed: int = DEFAULT_SEED,
    resamples: int = DEFAULT_RESAMPLES,
) -> Estimate:
    """Return a metric with its 95 % interval; see :func:`estimates`."""
    return estimates(episodes, [metric], seed=seed, resamples=resamples)[metric.name]


def estimates(
    episodes: Sequence[Episode],
    metrics: Sequence[Metric],
    *,
    seed: int = DEFAULT_SEED,
    resamples: int = DEFAULT_RESAMPLES,
) -> dict[str, Estimate]:
    """Return metrics with 95 % percentile intervals by cluster bootstrap over base claims.

    The order of the episodes does not matter. ``error`` endings are left out. With fewer than two base
    claims that a metric scores there is no interval (NaN), because nothing was measured about how claims
    differ. A resample in which a metric has nothing to score is left out of that metric's interval.
    """
    scored = [episode for episode in episodes if is_scored(episode)]
    if not scored:
        return {metric.name: Estimate.missing() for metric in metrics}
    names, index = _clusters(scored)
    counts = resample_counts(len(names), resamples=resamples, seed=seed)  # (R, C)
    found = {}
    for metric in metrics:
        sums = sum_by_cluster(metric.statistics(scored), index, len(names))  # (C, K)
        found[metric.name] = _to_estimate(metric, sums, counts)
    return found


def paired_difference(
    episodes_a: Sequence[Episode],
    episodes_b: Sequence[Episode],
    metric: Metric,
    *,
    seed: int = DEFAULT_SEED,
    resamples: int = DEFAULT_RESAMPLES,
) -> PairedDifference:
    """Compare two policies on the same episodes: the metric of ``a`` minus the metric of ``b``.

    Both sides of a resample hold the same claims, so what a claim adds to both cancels.

    Args:
        episodes_a: First policy's episodes.
        episodes_b: Second policy's, paired as :func:`pair_episodes` does.
        metric: What to compare.
        seed: Run seed of the resampling.
        resamples: R.

    Raises:
        ValueError: If the two sets differ or a key stands twice; the message names an episode.
    """
    kept_a, kept_b, left_out = pair_episodes(episodes_a, episodes_b)
    if not kept_a:
        return PairedDifference(Estimate.missing(), math.nan, math.nan, left_out)
    names, index = _clusters(kept_a)
    counts = resample_counts(len(names), resamples=resamples, seed=seed)  # (R, C)
    sums_a = sum_by_cluster(metric.statistics(kept_a), index, len(names))  # (C, K)
    sums_b = sum_by_cluster(metric.statistics(kept_b), index, len(names))  # (C, K)
    total_a, total_b = sums_a.sum(axis=0), sums_b.sum(axis=0)
    n = round(min(float(metric.count(total_a)), float(metric.count(total_b))))
    value_a, value_b = float(metric.value(total_a)), float(metric.value(total_b))
    resampled = metric.value(counts @ sums_a) - metric.value(counts @ sums_b)  # (R,)
    measured = (sums_a.any(axis=1) | sums_b.any(axis=1)).sum()
    low, high = percentile_interval(resampled) if measured > 1 else (math.nan, math.nan)
    difference = Estimate(value_a - value_b, low, high, n) if n else Estimate.missing()
    p = bootstrap_p(resampled) if difference.has_interval else math.nan
    by_claim = sign_test(metric.value(sums_a) - metric.value(sums_b))
    return PairedDifference(difference, value_a, value_b, left_out, p, by_claim)


def pair_episodes(
    episodes_a: Sequence[Episode], episodes_b: Sequence[Episode]
) -> tuple[list[Episode], list[Episode], int]:
    """Match two lists by (instance id, budget, member), in the first one's order.

    Where both hold several mitigations, episodes are matched within each; a single one may be compared with another.

    Returns:
        The pairs' first and second halves, and the number of pairs left out because either is an ``error``.

    Raises:
        ValueError: If the two sets differ, a key stands twice, or a pair's claim or gold differs.
    """
    within = all(len({e.mitigation for e in episodes}) > 1 for episodes in (episodes_a, episodes_b))
    by_key_a = _by_key(episodes_a, "first", within_mitigation=within)
    by_key_b = _by_key(episodes_b, "second", within_mitigation=within)
    for here, there, what in ((by_key_a, by_key_b, "second"), (by_key_b, by_key_a, "first")):
        absent = [key for key in here if key not in there]
        if absent:
            raise ValueError(
                f"the {what} set lacks {len(absent)} of {len(here)} episodes, such as (instance, budget, "
                f"member, mitigation) = {absent[0]}; compare evaluations of the same claims, conditions and budget"
            )
    kept_a: list[Episode] = []
    kept_b: list[Episode] = []
    for key, first in by_key_a.items():
        second = by_key_b[key]
        if (first.claim_id, first.outcome.gold) != (second.claim_id, second.outcome.gold):
            raise ValueError(
                f"episode {key} has claim {first.claim_id!r} and gold {first.outcome.gold.value} in the "
                f"first set, {second.claim_id!r} and {second.outcome.gold.value} in the second; "
                "the data sets differ"
            )
        if is_scored(first) and is_scored(second):
            kept_a.append(first)
            kept_b.append(second)
    return kept_a, kept_b, len(by_key_a) - len(kept_a)


def _clusters(episodes: Sequence[Episode]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the base claims, sorted so that order of play does not matter, and each episode's place."""
    names = sorted({episode.claim_id for episode in episodes})
    place = {name: i for i, name in enumerate(names)}
    return names, np.array([place[episode.claim_id] for episode in episodes], dtype=np.int64)


def sum_by_cluster(rows: Floats, index: NDArray[np.int64], clusters: int) -> Floats:
    """Add the rows of each cluster: (N, K) and (N,) places to (clusters, K)."""
    sums = np.zeros((clusters, rows.shape[1]))  # (C, K)
    np.add.at(sums, index, rows)
    return sums


def _to_estimate(metric: Metric, sums: Floats, counts: Floats) -> Estimate:
    total = sums.sum(axis=0)
    n = round(float(metric.count(total)))
    if n == 0:
        return Estimate.missing()
    measured = sums.any(axis=1).sum()  # claims that the metric scores at all
    low, high = percentile_interval(metric.value(counts @ sums)) if measured > 1 else (math.nan, math.nan)
    return Estimate(float(metric.value(total)), low, high, n)


def percentile_interval(resampled: Floats) -> tuple[float, float]:
    """Return the 95 % percentile interval of resampled figures, (R,), NaN left out; NaN when none is left."""
    finite = resampled[~np.isnan(resampled)]
    if len(finite) == 0:
        return math.nan, math.nan
    low, high = np.quantile(finite, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _by_key(
    episodes: Sequence[Episode], which: str, *, within_mitigation: bool
) -> dict[tuple[str, int, int, str], Episode]:
    found: dict[tuple[str, int, int, str], Episode] = {}
    for episode in episodes:
        mitigation = episode.mitigation if within_mitigation else "any"
        key = (episode.instance_id, episode.outcome.budget, episode.member, mitigation)
        if key in found:
            raise ValueError(
                f"the {which} set holds (instance, budget, member, mitigation) = {key} twice; compare one "
                "mitigation at a time, or the same several on both sides"
            )
        found[key] = episode
    return found
