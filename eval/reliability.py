"""Is a stated confidence worth its number: accuracy by bins of confidence, with counts.

Only valid judgements have a confidence; n says how many there were. The bins are those of the ``ece`` metric.

Source:
    Murphy and Winkler 1977, "Reliability of subjective probability forecasts", Applied Statistics 26(1); bins as in
    Naeini et al. 2015, AAAI.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from provgym.eval.bootstrap import DEFAULT_RESAMPLES, DEFAULT_SEED, estimates
from provgym.eval.estimate import Estimate
from provgym.eval.metric_kinds import CalibrationMetric, MeanMetric
from provgym.eval.metrics import METRICS, split_by_prefix
from provgym.generators.episode import Episode

BINS = CalibrationMetric("ece").bins


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Valid judgements whose confidence lies in [low, high); the last bin holds its upper end too.

    Attributes:
        low: Lower end, in [0, 1].
        high: Upper end.
        confidence: Mean confidence; NaN for an empty bin.
        accuracy: Share right, with a 95 % cluster-bootstrap interval over base claims; n = judgements in the bin.
    """

    low: float
    high: float
    confidence: float
    accuracy: Estimate

    @property
    def n(self) -> int:
        """Judgements in the bin."""
        return self.accuracy.n

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data; an empty bin has null figures and n = 0."""
        mean = None if math.isnan(self.confidence) else self.confidence
        return {"low": self.low, "high": self.high, "confidence": mean, "accuracy": self.accuracy.to_json()}


@dataclass(frozen=True, slots=True)
class Reliability:
    """How well confidence and accuracy agree.

    Attributes:
        bins: Of equal width, from 0 to 1, empty ones included.
        brier: Mean squared distance of confidence and correctness, in [0, 1].
        ece: Mean distance of confidence and accuracy over bins, weighted by judgements, in [0, 1].
    """

    bins: tuple[ReliabilityBin, ...]
    brier: Estimate
    ece: Estimate

    @property
    def n(self) -> int:
        """Valid judgements."""
        return sum(part.n for part in self.bins)

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "n": self.n,
            "brier": self.brier.to_json(),
            "ece": self.ece.to_json(),
            "bins": [part.to_json() for part in self.bins],
        }


def bin_of(confidence: float, bins: int = BINS) -> int:
    """Return the number of a confidence's bin, as the ``ece`` metric has it.

    Example:
        >>> bin_of(0.0), bin_of(0.3), bin_of(1.0)
        (0, 3, 9)
    """
    return min(int(confidence * bins), bins - 1)


def reliability_of(
    episodes: Sequence[Episode], *, seed: int = DEFAULT_SEED, resamples: int = DEFAULT_RESAMPLES
) -> dict[str, Reliability]:
    """Return the reliability of each group of conditions, by metric prefix; ``error`` endings are left out.

    Args:
        episodes: In any order.
        seed: Run seed of the resampling.
        resamples: Bootstrap resamples.

    Example:
        >>> reliability_of([])
        {}
    """
    metrics = [METRICS["brier"], METRICS["ece"], *(_in_bin(place) for place in range(BINS))]
    found = {}
    for prefix, chosen in split_by_prefix(episodes).items():
        figures = estimates(chosen, metrics, seed=seed, resamples=resamples)
        stated = [e.outcome.judgement.confidence for e in chosen if e.outcome.judgement is not None]
        parts = []
        for place in range(BINS):
            inside = [confidence for confidence in stated if bin_of(confidence) == place]
            mean = math.fsum(inside) / len(inside) if inside else math.nan
            parts.append(ReliabilityBin(place / BINS, (place + 1) / BINS, mean, figures[f"bin_{place}"]))
        found[prefix] = Reliability(tuple(parts), figures["brier"], figures["ece"])
    return found


def _in_bin(place: int) -> MeanMetric:
    """Return the accuracy of the judgements in one bin as a metric."""

    def right(episode: Episode) -> float:
        judgement = episode.outcome.judgement
        if judgement is None or bin_of(judgement.confidence) != place:
            return math.nan
        return float(episode.outcome.is_correct)

    return MeanMetric(f"bin_{place}", right)
