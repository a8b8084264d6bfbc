"""Every metric of a walk evaluation, by name.

All figures leave out ``error`` endings; a metric that does not apply to an episode leaves that episode out
too, and its n says how many remained. ``docs/metrics.md`` lists definition, range and n of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from provgym.eval.metric_kinds import (
    CalibrationMetric,
    ClassMetric,
    ConfusionMetric,
    MeanMetric,
    Metric,
    RatioMetric,
    ShiftMetric,
    is_scored,
)
from provgym.generators.conditions import GENERAL
from provgym.generators.episode import Episode
from provgym.rewards.outcome import Ending, Verdict, WalkOutcome
from provgym.rewards.papt import CountBasis, echo_term
from provgym.rewards.rubric import Rubric

GENERAL_PREFIX = "general_"
"""Prefix of the metrics over general conditions; those over all other conditions have none."""

HEADLINE = (
    "accuracy",
    "balanced_accuracy",
    "echo_rate",
    "source_recall",
    "count_mae",
    "invalid_rate",
    "walks",
)
"""What a table shows unless asked for more."""


def recall_of(episode: Episode, verdict: Verdict) -> float:
    """Return 1 or 0 where ``verdict`` is gold, NaN elsewhere."""
    return float(episode.outcome.is_correct) if episode.outcome.gold is verdict else math.nan


def source_recall(outcome: WalkOutcome) -> float:
    """Return acquired over available distinct sources, in [0, 1]; NaN without any source."""
    return outcome.acquired / outcome.available if outcome.available else math.nan


def source_recall_budget(outcome: WalkOutcome) -> float:
    """Return acquired sources over those that the budget could reach, min(B, D); NaN without any source."""
    return outcome.acquired / min(outcome.budget, outcome.available) if outcome.available else math.nan


def count_error(outcome: WalkOutcome, basis: CountBasis) -> float:
    """Return |s' - s| + |r' - r| against acquired or available sources; NaN without a valid judgement."""
    judgement = outcome.judgement
    if judgement is None:
        return math.nan
    if basis == "acquired":
        support, refute = outcome.acquired_support, outcome.acquired_refute
    else:
        support, refute = outcome.available_support, outcome.available_refute
    return float(abs(judgement.support_count - support) + abs(judgement.refute_count - refute))


def brier(outcome: WalkOutcome) -> float:
    """Return (confidence - correctness) squared, in [0, 1]; NaN without a valid judgement.

    Source:
        Brier 1950, Monthly Weather Review 78(1), for the binary event "the verdict is right".
    """
    if outcome.judgement is None:
        return math.nan
    return (outcome.judgement.confidence - float(outcome.is_correct)) ** 2


def sampled_tokens(episode: Episode) -> float:
    """Return the tokens the policy wrote; NaN for policies without tokens.

    Policies behind an endpoint have no ids; their server's ``completion_tokens`` is used, if it counted every answer.
    """
    if episode.tokens is not None:
        return float(episode.tokens.sampled)
    if episode.usage.get("usage_missing"):
        return math.nan
    return float(episode.usage.get("completion_tokens", math.nan))


def context_tokens(episode: Episode) -> float:
    """Return the length of the whole episode in tokens, prompt and world included; NaN without ids."""
    if episode.tokens is None:
        return math.nan
    return float(len(episode.tokens.prompt_ids) + len(episode.tokens.completion_ids))


def unknown_tokens(episode: Episode) -> tuple[float, float] | None:
    """Return (world tokens that the tokenizer does not know, world tokens); None without ids."""
    tokens = episode.tokens
    if tokens is None:
        return None
    world = len(tokens.prompt_ids) + len(tokens.completion_ids) - tokens.sampled
    return float(episode.unknown_tokens), float(world)


_ALL: tuple[Metric, ...] = (
    MeanMetric("accuracy", lambda e: float(e.outcome.is_correct)),
    ConfusionMetric("balanced_accuracy", "recall"),
    ConfusionMetric("macro_f1", "f1"),
    MeanMetric("recall_support", partial(recall_of, verdict=Verdict.SUPPORT)),
    MeanMetric("recall_refute", partial(recall_of, verdict=Verdict.REFUTE)),
    MeanMetric("recall_mixed", partial(recall_of, verdict=Verdict.MIXED)),
    *(ClassMetric(f"precision_{v.value.lower()}", v, "precision") for v in Verdict),
    *(ClassMetric(f"f1_{v.value.lower()}", v, "f1") for v in Verdict),
    MeanMetric("echo_rate", lambda e: echo_term(e.outcome)),
    MeanMetric("echo_share", lambda e: float(e.outcome.echoes > 0)),
    MeanMetric("source_recall", lambda e: source_recall(e.outcome)),
    MeanMetric("source_recall_budget", lambda e: source_recall_budget(e.outcome)),
    MeanMetric("walks", lambda e: float(e.outcome.walks)),
    MeanMetric("connector_moves", lambda e: float(e.outcome.connector_moves)),
    MeanMetric("invalid_actions", lambda e: float(e.outcome.invalid_actions)),
    MeanMetric("count_mae", lambda e: count_error(e.outcome, "acquired")),
    MeanMetric("count_mae_available", lambda e: count_error(e.outcome, "available")),
    MeanMetric("invalid_rate", lambda e: float(e.outcome.ending in (Ending.INVALID, Ending.TRUNCATED))),
    MeanMetric("brier", lambda e: brier(e.outcome)),
    CalibrationMetric("ece"),
    MeanMetric("sampled_tokens", sampled_tokens),
    MeanMetric("context_tokens", context_tokens),
    RatioMetric("unknown_token_rate", unknown_tokens),
    ShiftMetric("support_shift_c1_c2", Verdict.SUPPORT, "C1", "C2"),
    ShiftMetric("refute_shift_c1_c2r", Verdict.REFUTE, "C1", "C2R"),
)

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _ALL}
"""Name to metric; reward terms come from :func:`reward_metrics`."""


def metrics_named(names: Sequence[str]) -> tuple[Metric, ...]:
    """Return metrics by name.

    Raises:
        ValueError: If a name is unknown; the message lists the known ones.
    """
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise ValueError(f"metrics {unknown} do not exist; there are {sorted(METRICS)}")
    return tuple(METRICS[name] for name in names)


def reward_metrics(rubric: Rubric) -> tuple[Metric, ...]:
    """Return ``reward`` (the weighted total) and ``reward_TERM`` (unweighted) for every term of a rubric."""

    def term(episode: Episode, name: str) -> float:
        return rubric.score(episode.outcome).terms[name]

    total = MeanMetric("reward", lambda e: rubric.score(e.outcome).total)
    return (total, *(MeanMetric(f"reward_{name}", partial(term, name=name)) for name in rubric.terms))


def compute(metric: Metric, episodes: Sequence[Episode]) -> tuple[float, int]:
    """Return a metric's figure and n without an interval; (NaN, 0) when nothing was scored.

    Example:
        >>> compute(METRICS["accuracy"], [])
        (nan, 0)
    """
    sums = metric.statistics(episodes).sum(axis=0)
    count = round(float(metric.count(sums)))
    return (float(metric.value(sums)) if count else math.nan), count


def mean_of_finite(values: Sequence[float]) -> tuple[float, int]:
    """Return the mean of the values that are not NaN, and how many there were.

    Example:
        >>> mean_of_finite([0.5, math.nan, 0.8])
        (0.65, 2)
    """
    kept = [value for value in values if not math.isnan(value)]
    return (math.fsum(kept) / len(kept) if kept else math.nan), len(kept)


def split_by_prefix(episodes: Sequence[Episode]) -> dict[str, list[Episode]]:
    """Group episodes by their metrics' prefix: general conditions apart, every other condition together."""
    groups: dict[str, list[Episode]] = {}
    for prefix, wanted in (("", False), (GENERAL_PREFIX, True)):
        chosen = [episode for episode in episodes if (episode.condition == GENERAL) is wanted]
        if chosen:
            groups[prefix] = chosen
    return groups


def count_endings(episodes: Sequence[Episode]) -> dict[str, int]:
    """Return how many episodes ended in each of the four ways; all four are always named."""
    counts = dict.fromkeys((ending.value for ending in Ending), 0)
    for episode in episodes:
        counts[episode.outcome.ending.value] += 1
    return counts


def scored_share(episodes: Sequence[Episode]) -> float:
    """Return the share of episodes that were scored (the *coverage* of an evaluation); NaN for none."""
    return float(np.mean([is_scored(episode) for episode in episodes])) if episodes else math.nan
