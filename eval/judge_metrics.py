"""Metrics of static judgement: those of a walk that make sense without walking, answer rates, sizes, and groups."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from provgym.eval.metric_kinds import MeanMetric, Metric
from provgym.eval.metrics import GENERAL_PREFIX, metrics_named
from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL
from provgym.generators.episode import Episode
from provgym.generators.scifact import VARIANTS
from provgym.rewards.outcome import Verdict

GROUPS: Mapping[str, str] = MappingProxyType(
    {
        "conflict": "",
        "scifact": "",
        "first_document": "first_document_",
        "source_count": "source_count_",
        "other": "other_",
        "general": GENERAL_PREFIX,
    }
)
"""Group of conditions to the prefix of its metrics: C1-C4 and C2R; SciFact, and its claims with the first document by
one route alone; sSkP; conditions written out or named by a claim file; general ones."""

_SHARED = (
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    *(f"{figure}_{verdict.value.lower()}" for figure in ("precision", "recall", "f1") for verdict in Verdict),
    "count_mae",
    "invalid_rate",
    "brier",
    "ece",
    "sampled_tokens",
    "unknown_token_rate",
)


def groups_of(condition: str) -> tuple[str, ...]:
    """Return the groups that a condition's episodes count in.

    Example:
        >>> groups_of("C2R"), groups_of("1S5P"), groups_of("one_doc_one_route")
        (('conflict',), ('source_count',), ('scifact', 'first_document'))
    """
    if condition in CONFLICT_CONDITIONS:
        return ("conflict",)
    if condition == GENERAL:
        return ("general",)
    if condition in VARIANTS:
        return ("scifact", "first_document") if condition == VARIANTS[0] else ("scifact",)
    return ("source_count",) if re.fullmatch(r"\d+S\d+PR?", condition) else ("other",)


def split_by_group(episodes: Sequence[Episode]) -> dict[str, list[Episode]]:
    """Return the episodes of each group that has any, in the order of ``GROUPS``."""
    found = {group: [e for e in episodes if group in groups_of(e.condition)] for group in GROUPS}
    return {group: chosen for group, chosen in found.items() if chosen}


def answer_rate(episode: Episode, verdict: Verdict) -> float:
    """Return 1 where the answer is ``verdict``, else 0; an ending without a judgement answers nothing."""
    judgement = episode.outcome.judgement
    return float(judgement is not None and judgement.verdict is verdict)


def stated_support(episode: Episode) -> float:
    """Return the stated number of supporting sources; NaN without a valid judgement."""
    judgement = episode.outcome.judgement
    return math.nan if judgement is None else float(judgement.support_count)


def stated_confidence(episode: Episode) -> float:
    """Return the stated confidence, in [0, 1]; NaN without a valid judgement."""
    judgement = episode.outcome.judgement
    return math.nan if judgement is None else judgement.confidence


def prompt_tokens(episode: Episode) -> float:
    """Return the length of the prompt in tokens (an endpoint's ``prompt_tokens``); NaN without either."""
    if episode.tokens is not None:
        return float(len(episode.tokens.prompt_ids))
    return float(episode.usage.get("prompt_tokens", math.nan))


def prompt_characters(episode: Episode) -> float:
    """Return the length of what was shown in characters; NaN where nothing was answered."""
    return float(len(episode.turns[0].observation)) if episode.turns else math.nan


JUDGE_METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            *metrics_named(_SHARED),
            *(MeanMetric(f"{v.value.lower()}_rate", partial(answer_rate, verdict=v)) for v in Verdict),
            MeanMetric("prompt_tokens", prompt_tokens),
            MeanMetric("prompt_characters", prompt_characters),
            MeanMetric("cut_share", lambda e: float(e.cut_characters > 0)),
        )
    }
)
"""Name to metric; n and definitions are in ``docs/metrics.md``."""

COMPARED = ("accuracy", "macro_f1", "count_mae")
"""What policies are compared by."""
