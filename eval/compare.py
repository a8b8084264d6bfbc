"""Policies against each other on the same claims: differences with paired intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from provgym.eval.bootstrap import DEFAULT_RESAMPLES, DEFAULT_SEED, PairedDifference, paired_difference
from provgym.eval.metrics import HEADLINE, metrics_named, split_by_prefix
from provgym.generators.episode import Episode


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of two policies.

    Attributes:
        first: Policy whose figure is the minuend.
        second: Policy whose figure is subtracted.
        metric: Name, with the prefix of its group of conditions.
        paired: The difference and what it was computed from.
    """

    first: str
    second: str
    metric: str
    paired: PairedDifference


def compare_policies(
    episodes: Mapping[str, Sequence[Episode]],
    *,
    metrics: Sequence[str] = HEADLINE,
    baseline: str | None = None,
    seed: int = DEFAULT_SEED,
    resamples: int = DEFAULT_RESAMPLES,
) -> tuple[Comparison, ...]:
    """Compare policies pairwise, each group of conditions apart.

    Intervals are not corrected for the number of comparisons.

    Args:
        episodes: Policy name to its episodes; all on the same instances, budgets and members.
        metrics: Names without prefix.
        baseline: Compare every other policy with this one (other minus baseline). None compares every pair,
            later name minus earlier one.
        seed: Run seed of the resampling.
        resamples: Bootstrap resamples.

    Raises:
        ValueError: If there are fewer than two policies, the baseline or a metric is unknown, or the episodes
            cannot be paired; the message names the two policies.
    """
    if len(episodes) < 2:
        raise ValueError(f"found the policies {list(episodes)}; a comparison needs at least two")
    if baseline is not None and baseline not in episodes:
        raise ValueError(f"baseline {baseline!r} is none of the policies {list(episodes)}")
    chosen = metrics_named(metrics)
    if baseline is None:
        pairs = [(later, earlier) for earlier, later in combinations(episodes, 2)]
    else:
        pairs = [(name, baseline) for name in episodes if name != baseline]
    found: list[Comparison] = []
    for first, second in pairs:
        groups_a, groups_b = split_by_prefix(episodes[first]), split_by_prefix(episodes[second])
        for prefix in dict.fromkeys((*groups_a, *groups_b)):
            for metric in chosen:
                try:
                    paired = paired_difference(
                        groups_a.get(prefix, []),
                        groups_b.get(prefix, []),
                        metric,
                        seed=seed,
                        resamples=resamples,
                    )
                except ValueError as error:
                    raise ValueError(f"{first!r} against {second!r}: {error}") from error
                found.append(Comparison(first, second, prefix + metric.name, paired))
    return tuple(found)
