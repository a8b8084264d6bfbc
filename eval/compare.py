"""Policies against each other on the same claims: differences with paired intervals and tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from provgym.eval.bootstrap import DEFAULT_RESAMPLES, DEFAULT_SEED, PairedDifference, paired_difference
from provgym.eval.metrics import HEADLINE, metrics_named, split_by_prefix
from provgym.eval.significance import holm
from provgym.generators.episode import Episode


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of two policies.

    Attributes:
        first: Policy whose figure is the minuend.
        second: Policy whose figure is subtracted.
        metric: Name, with the prefix of its group of conditions.
        paired: The difference, its two tests, and what it was computed from.
        holm_p: The bootstrap test's p, corrected for the pairs of policies compared on this metric.
        holm_sign_p: The same of the sign test.
    """

    first: str
    second: str
    metric: str
    paired: PairedDifference
    holm_p: float = math.nan
    holm_sign_p: float = math.nan

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data; NaN becomes null."""
        sign = self.paired.sign
        return {
            "first": self.first,
            "second": self.second,
            "metric": self.metric,
            "difference": self.paired.difference.to_json(),
            "left_out": self.paired.left_out,
            "p": _number(self.paired.p),
            "holm_p": _number(self.holm_p),
            "sign_test": {
                "p": _number(sign.p),
                "holm_p": _number(self.holm_sign_p),
                "wins": sign.wins,
                "losses": sign.losses,
                "ties": sign.ties,
            },
        }


def compare_policies(
    episodes: Mapping[str, Sequence[Episode]],
    *,
    metrics: Sequence[str] = HEADLINE,
    baseline: str | None = None,
    seed: int = DEFAULT_SEED,
    resamples: int = DEFAULT_RESAMPLES,
) -> tuple[Comparison, ...]:
    """Compare policies pairwise, each group of conditions apart.

    Intervals are not corrected for the number of comparisons; p values are, by Holm's method: the pairs of policies
    compared on one metric of one group make a family.

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
    return holm_corrected(found)


def holm_corrected(found: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Fill in Holm's p: the comparisons of one metric make a family."""
    corrected = list(found)
    for metric in dict.fromkeys(c.metric for c in found):
        places = [i for i, c in enumerate(found) if c.metric == metric]
        by_bootstrap = holm([found[i].paired.p for i in places])
        by_sign = holm([found[i].paired.sign.p for i in places])
        for i, p, sign_p in zip(places, by_bootstrap, by_sign, strict=True):
            corrected[i] = replace(found[i], holm_p=p, holm_sign_p=sign_p)
    return tuple(corrected)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
