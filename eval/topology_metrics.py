"""Every figure of one run of a method, by name; a figure of many runs is the mean over those that are scored.

``docs/topology_evaluation.md`` lists definition, range and n of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from provgym.envs.workflow_records import STOPPED_BY_VERIFIER
from provgym.eval.estimate import Estimate
from provgym.eval.topology_estimates import Resampling, mean_estimate
from provgym.eval.topology_runs import MethodRun
from provgym.generators.topology_targets import ScoreRule
from provgym.rewards.outcome import Ending
from provgym.rewards.topology_score import TopologyOutcome

HEADLINE = ("accuracy", "score", "tokens", "calls", "nodes", "edges")
"""What every summary holds of every method."""

COMPARED = ("accuracy", "score", "tokens", "calls")
"""What methods are compared on, pair by pair."""


def score_of(run: MethodRun, rule: ScoreRule) -> float:
    """Return success minus structural cost of one scored run, ``is_correct - lambda_C (lambda_V |V| + lambda_E |E|)``.

    The rule's estimator is not used: a posterior mean would shrink a single run's 0 or 1 towards 1/2.
    """
    outcome = TopologyOutcome(int(bool(run.is_correct)), 1, nodes=len(run.roles), edges=len(run.edges))
    return replace(rule, estimator="raw").score(outcome)


RunFigure = Callable[[MethodRun, ScoreRule], float]
"""The figure of one scored run; NaN where it does not apply."""

METRICS: Mapping[str, RunFigure] = MappingProxyType(
    {
        "accuracy": lambda run, rule: float(bool(run.is_correct)),
        "score": lambda run, rule: score_of(run, rule),
        "tokens": lambda run, rule: _counted(run, run.tokens),
        "calls": lambda run, rule: float(run.calls),
        "nodes": lambda run, rule: float(len(run.roles)),
        "edges": lambda run, rule: float(len(run.edges)),
        "latency_s": lambda run, rule: run.latency_s,
        "prompt_tokens": lambda run, rule: _counted(run, run.prompt_tokens),
        "completion_tokens": lambda run, rule: _counted(run, run.completion_tokens),
        "paid_tokens": lambda run, rule: _counted(run, run.paid_tokens),
        "paid_calls": lambda run, rule: float(run.calls - run.cached_calls),
        "samples": lambda run, rule: float(run.samples),
        "unanswered_rate": lambda run, rule: float(run.ending in (Ending.INVALID, Ending.TRUNCATED)),
        "stopped_by_verifier": lambda run, rule: float(run.reason == STOPPED_BY_VERIFIER),
    }
)


def _counted(run: MethodRun, tokens: int) -> float:
    """Return a number of tokens; NaN where a server did not count those of some call."""
    return float(tokens) if run.is_counted else math.nan


def values_of(runs: Sequence[MethodRun], metric: str, rule: ScoreRule) -> list[float]:
    """Return a metric of every run.

    Args:
        runs: N runs.
        metric: Name in :data:`METRICS`.
        rule: How runs are scored.

    Returns:
        N values; NaN for an ``error`` and where the metric does not apply.

    Raises:
        ValueError: If the metric is unknown.
    """
    if metric not in METRICS:
        raise ValueError(f"metric {metric!r} is unknown, expected one of {', '.join(METRICS)}")
    of = METRICS[metric]
    return [of(run, rule) if run.is_scored else math.nan for run in runs]


def estimate_runs(
    runs: Sequence[MethodRun], rule: ScoreRule, resampling: Resampling | None = None
) -> dict[str, Estimate]:
    """Return every metric of one method's runs with its interval; the order of the runs does not matter.

    Args:
        runs: Of one method.
        rule: How runs are scored.
        resampling: Of the intervals; the default one if None.
    """
    claims = [run.base_id for run in runs]
    return {name: mean_estimate(values_of(runs, name, rule), claims, resampling) for name in METRICS}
