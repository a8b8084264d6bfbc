"""Methods against each other on the same questions: paired differences, non-inferiority, what evidence is worth.

Pairs are made by (task, replicate); a pair in which either run ended in an ``error`` is left out and counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from provgym.eval.bootstrap import PairedDifference
from provgym.eval.compare import Comparison, holm_corrected
from provgym.eval.estimate import Estimate
from provgym.eval.topology_estimates import Resampling, paired_means, paired_ratio
from provgym.eval.topology_metrics import COMPARED, values_of
from provgym.eval.topology_runs import MethodRun, by_question
from provgym.generators.topology_targets import ScoreRule

Runs = Mapping[str, Sequence[MethodRun]]
"""Method to its runs; all methods on the same questions."""

MARGIN = 0.01
"""By how much accuracy may be lower and still count as not inferior: one point."""

Conclusion = Literal["not inferior", "inferior", "undecided", "not available"]


@dataclass(frozen=True, slots=True)
class NonInferiority:
    """Whether a method that takes less is as good as another, up to a margin fixed beforehand.

    Attributes:
        first: The method that is to be no worse.
        second: What it is compared with.
        margin: In accuracy, > 0.
        accuracy: First minus second, paired, with the two-sided 95 % interval.
        tokens_ratio: Tokens of the first over those of the second on the same questions.
        calls_ratio: The same of calls.
        latency_ratio: The same of seconds along the slowest chain of calls.
    """

    first: str
    second: str
    margin: float
    accuracy: PairedDifference
    tokens_ratio: Estimate
    calls_ratio: Estimate
    latency_ratio: Estimate

    @property
    def conclusion(self) -> Conclusion:
        """``not inferior`` if the whole interval lies above -margin, ``inferior`` if all of it lies below.

        With the two-sided 95 % interval the test is one-sided at 2.5 %.

        Source:
            Piaggio et al. 2012, JAMA 308(24), "Reporting of noninferiority and equivalence randomized trials".
        """
        difference = self.accuracy.difference
        if not difference.has_interval:
            return "not available"
        if difference.low > -self.margin:
            return "not inferior"
        return "inferior" if difference.high < -self.margin else "undecided"

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "first": self.first,
            "second": self.second,
            "margin": self.margin,
            "accuracy": self.accuracy.difference.to_json(),
            "left_out": self.accuracy.left_out,
            "conclusion": self.conclusion,
            "tokens_ratio": self.tokens_ratio.to_json(),
            "calls_ratio": self.calls_ratio.to_json(),
            "latency_ratio": self.latency_ratio.to_json(),
        }


def align(first: Sequence[MethodRun], second: Sequence[MethodRun]) -> tuple[list[MethodRun], list[MethodRun]]:
    """Return two methods' runs question by question, in the first one's order.

    Raises:
        ValueError: If the sets of questions differ, one stands twice, or the two say different things of a question.
    """
    by_key = [by_question(runs) for runs in (first, second)]
    for here, there, number in ((by_key[0], by_key[1], 1), (by_key[1], by_key[0], 0)):
        absent = [key for key in here if key not in there]
        if absent:
            name = (first, second)[number][0].method if (first, second)[number] else "the other method"
            raise ValueError(
                f"{name!r} lacks {len(absent)} of {len(here)} questions, such as (task, replicate) = {absent[0]}; "
                "compare evaluations of the same tasks and replicates"
            )
    pairs = [(run, by_key[1][key]) for key, run in by_key[0].items()]
    for a, b in pairs:
        if (a.base_id, a.gold) != (b.base_id, b.gold):
            raise ValueError(
                f"task {a.task_id!r} has base {a.base_id!r} and gold {a.gold!r} for {a.method!r}, {b.base_id!r} and "
                f"{b.gold!r} for {b.method!r}; the data sets differ"
            )
    return [a for a, _ in pairs], [b for _, b in pairs]


def compare_runs(
    first: Sequence[MethodRun],
    second: Sequence[MethodRun],
    metric: str,
    rule: ScoreRule,
    resampling: Resampling | None = None,
) -> PairedDifference:
    """Return one metric of the first method minus that of the second, paired by question.

    Args:
        first: Runs of one method.
        second: Runs of the other, of the same questions in any order.
        metric: Name in :data:`~provgym.eval.topology_metrics.METRICS`.
        rule: How runs are scored.
        resampling: Of the intervals; the default one if None.

    Raises:
        ValueError: If the metric is unknown or the runs cannot be paired.
    """
    a, b = align(first, second)
    return paired_means(values_of(a, metric, rule), values_of(b, metric, rule), [r.base_id for r in a], resampling)


def compare_methods(
    runs: Runs,
    reference: str,
    rule: ScoreRule,
    *,
    metrics: Sequence[str] = COMPARED,
    resampling: Resampling | None = None,
) -> tuple[Comparison, ...]:
    """Compare the reference with every other method: reference minus other, so that above zero is the reference's.

    P values are corrected by Holm's method: the methods compared on one metric make a family. Intervals are not.

    Args:
        runs: Of every method, of the same questions.
        reference: Name of the method that the others are taken from.
        rule: How runs are scored.
        metrics: What is compared.
        resampling: Of the intervals; the default one if None.

    Raises:
        ValueError: If the reference or a metric is unknown, or the runs cannot be paired.
    """
    if reference not in runs:
        raise ValueError(f"reference {reference!r} is none of the methods {list(runs)}; name one of them")
    found = [
        Comparison(reference, other, metric, compare_runs(runs[reference], runs[other], metric, rule, resampling))
        for other in runs
        if other != reference
        for metric in metrics
    ]
    return holm_corrected(found)


def non_inferiority(
    runs: Runs,
    first: str,
    second: str,
    rule: ScoreRule,
    *,
    margin: float = MARGIN,
    resampling: Resampling | None = None,
) -> NonInferiority:
    """Ask whether ``first`` is as accurate as ``second`` up to a margin, and what it takes beside it.

    Args:
        runs: Of both methods at least, of the same questions.
        first: Name of the method that is to be no worse.
        second: Name of the one it is held against.
        rule: How runs are scored.
        margin: In units of accuracy, > 0; fixed before the runs are seen.
        resampling: Of the intervals; the default one if None.

    Raises:
        ValueError: If ``margin`` is not above 0, or the runs cannot be paired.
    """
    if not (margin > 0 and math.isfinite(margin)):
        raise ValueError(f"margin={margin} must be a number > 0, fixed before the runs are seen")
    a, b = align(runs[first], runs[second])
    claims = [run.base_id for run in a]

    def ratio(metric: str) -> Estimate:
        return paired_ratio(values_of(a, metric, rule), values_of(b, metric, rule), claims, resampling)

    return NonInferiority(
        first,
        second,
        margin,
        compare_runs(a, b, "accuracy", rule, resampling),
        ratio("tokens"),
        ratio("calls"),
        ratio("latency_s"),
    )
