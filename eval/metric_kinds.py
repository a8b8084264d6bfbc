"""Kinds of metrics, written so that resampling is a matrix product.

A metric turns each episode into a row of numbers that may be *added* (sums, weights, cells of a confusion
matrix, bins of a calibration curve), and computes its figure from added rows. So the figure of any resample
of episodes follows from a weighted sum of rows, and 2,000 bootstrap resamples cost one matrix product.

Shapes: N episodes, K columns of the metric, ``...`` any leading axes (resamples, seeds).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from provgym.generators.episode import Episode
from provgym.rewards.outcome import Ending, Verdict

Floats = NDArray[np.float64]
VERDICTS = tuple(Verdict)
NO_ANSWER = len(VERDICTS)
"""Column of the confusion matrix for endings without a verdict (``invalid``, ``truncated``)."""


class Metric(Protocol):
    """A named figure over episodes."""

    @property
    def name(self) -> str:
        """Key in summaries and tables."""
        ...

    def statistics(self, episodes: Sequence[Episode]) -> Floats:
        """Return one addable row per episode, (N, K); a row of zeros where the metric does not score it."""
        ...

    def value(self, sums: Floats) -> Floats:
        """Return the figure of each added row: (..., K) to (...); NaN where nothing was scored."""
        ...

    def count(self, sums: Floats) -> Floats:
        """Return n of each added row: (..., K) to (...)."""
        ...


def is_scored(episode: Episode) -> bool:
    """Whether an episode counts at all: an ``error`` is the infrastructure's, never a wrong answer."""
    return episode.outcome.ending is not Ending.ERROR


@dataclass(frozen=True, slots=True)
class MeanMetric:
    """Mean of a per-episode value.

    Attributes:
        name: Key.
        of: The value of one episode; NaN leaves it out (not scored is not 0).
    """

    name: str
    of: Callable[[Episode], float]

    def statistics(self, episodes: Sequence[Episode]) -> Floats:
        """Return (N, 2): value and weight.

        Raises:
            ValueError: If a value is infinite; the message names the episode.
        """
        rows = np.zeros((len(episodes), 2))  # (N, 2)
        for row, episode in zip(rows, episodes, strict=True):
            value = self.of(episode) if is_scored(episode) else math.nan
            if math.isinf(value):
                raise ValueError(f"metric {self.name!r} of episode {episode.instance_id!r} is {value}")
            if not math.isnan(value):
                row[:] = value, 1.0
        return rows

    def value(self, sums: Floats) -> Floats:
        """Return the mean."""
        return _divide(sums[..., 0], sums[..., 1])

    def count(self, sums: Floats) -> Floats:
        """Return the number of episodes with a value."""
        return sums[..., 1]


@dataclass(frozen=True, slots=True)
class RatioMetric:
    """Sum of a part over the sum of a whole, over all episodes together.

    Attributes:
        name: Key.
        of: (part, whole) of one episode; None leaves it out.
    """

    name: str
    of: Callable[[Episode], tuple[float, float] | None]

    def statistics(self, episodes: Sequence[Episode]) -> Floats:
        """Return (N, 3): part, whole, weight."""
        rows = np.zeros((len(episodes), 3))  # (N, 3)
        for row, episode in zip(rows, episodes, strict=True):
            pair = self.of(episode) if is_scored(episode) else None
            if pair is not None:
                row[:] = pair[0], pair[1], 1.0
        return rows

    def value(self, sums: Floats) -> Floats:
        """Return part over whole."""
        return _divide(sums[..., 0], sums[..., 1])

    def count(self, sums: Floats) -> Floats:
        """Return the number of episodes that have a whole; 0 where the whole is nothing."""
        return np.where(sums[..., 1] > 0, sums[..., 2], 0.0)


@dataclass(frozen=True, slots=True)
class ConfusionMetric:
    """A figure of the confusion matrix, averaged over the verdict classes that occur in gold.

    An ending without a verdict is a missed one of its gold class. A class that gold lacks is not averaged in,
    and answering it is simply wrong.

    Attributes:
        name: Key.
        average: ``recall`` gives balanced accuracy, ``f1`` macro-F1.
    """

    name: str
    average: Literal["recall", "f1"]

    def statistics(self, episodes: Sequence[Episode]) -> Floats:
        """Return (N, 12): the flattened 3 x 4 confusion matrix (gold x verdict or none) of each episode."""
        return confusion_rows(episodes)

    def value(self, sums: Floats) -> Floats:
        """Return the average over the classes present in gold."""
        gold, answered, hits = _by_class(sums)  # each (..., 3)
        per_class = _divide(hits, gold) if self.average == "recall" else _divide(2 * hits, gold + answered)
        present = gold > 0
        total = np.where(present, per_class, 0.0).sum(axis=-1)
        return _divide(total, present.sum(axis=-1).astype(np.float64))

    def count(self, sums: Floats) -> Floats:
        """Return the number of scored episodes."""
        total: Floats = sums.sum(axis=-1)
        return total


@dataclass(frozen=True, slots=True)
class ClassMetric:
    """Precision or F1 of one verdict; not available unless gold has that verdict.

    Attributes:
        name: Key.
        verdict: The class.
        figure: ``precision`` = right among the answers of that verdict; ``f1`` = the harmonic mean of precision and
            recall, 2 hits / (gold + answers), 0 where the verdict was never answered.
    """

    name: str
    verdict: Verdict
    figure: Literal["precision", "f1"]

    def statistics(self, episodes: Sequence[Episode]) -> Floats:
        """Return (N, 12), as :class:`ConfusionMetric` does."""
        return confusion_rows(episodes)

    def value(self, sums: Floats) -> Floats:
        """Return the figure; precision is NaN where the verdict was never answered."""
        gold, answered, hits = (part[..., VERDICTS.index(self.verdict)] for part in _by_class(sums))
        found = _divide(hits, answered) if self.figure == "precision" else _divide(2 * hits, gold + answered)
        return np.where(gold > 0, found, math.nan)

    def count(self, sums: Floats) -> Floats:
        """Return the answers of that verdict for precision, the scored episodes for F1; 0 without it in gold."""
        gold, answered, _ = (part[..., VERDICTS.index(self.verdict)] for part in _by_class(sums))
        return np.where(gold > 0, answered if self.figure == "precision" else sums.sum(axis=-1), 0.0)


@dataclass(frozen=True, slots=True)
class CalibrationMetric:
    """Expected calibration error of the confidence, over equal-width bins [0, .1), [.1, .2) ... [.9, 1].

    Attributes:
        name: Key.
        bins: Number of bins.

    Source:
        Naeini et al. 2015, AAAI, "Obtaining well calibrated probabilities using Bayesian binning".
    """

    name: str
    bins: int = 10

    def statistics(self, episodes: Sequence[Episode]) -> Floats:
        """Return (N, 3 * bins): confidence, correctness and weight of valid judgements, in their bins."""
        rows = np.zeros((len(episodes), 3, self.bins))  # (N, 3, bins)
        for row, episode in zip(rows, episodes, strict=True):
            judgement = episode.outcome.judgement
            if judgement is not None and is_scored(episode):
                place = min(int(judgement.confidence * self.bins), self.bins - 1)
                row[:, place] = judgement.confidence, float(episode.outcome.is_correct), 1.0
        return rows.reshape(len(episodes), 3 * self.bins)

    def value(self, sums: Floats) -> Floats:
        """Return the mean gap between confidence and accuracy, each bin weighted by its episodes."""
        cells = sums.reshape(*sums.shape[:-1], 3, self.bins)  # (..., 3, bins)
        gap = np.abs(cells[..., 0, :] - cells[..., 1, :]).sum(axis=-1)
        return _divide(gap, self.count(sums))

    def count(self, sums: Floats) -> Floats:
        """Return the number of valid judgements."""
        total: Floats = sums.reshape(*sums.shape[:-1], 3, self.bins)[..., 2, :].sum(axis=-1)
        return total


@dataclass(frozen=True, slots=True)
class ShiftMetric:
    """Change in the rate of one verdict between two conditions, ``after`` minus ``before``.

    Attributes:
        name: Key.
        verdict: Whose rate.
        before: Condition label.
        after: Condition label.
    """

    name: str
    verdict: Verdict
    before: str
    after: str

    def statistics(self, episodes: Sequence[Episode]) -> Floats:
        """Return (N, 4): (answers of the verdict, episodes) before, and the same after."""
        rows = np.zeros((len(episodes), 4))  # (N, 4)
        for row, episode in zip(rows, episodes, strict=True):
            judgement = episode.outcome.judgement
            if is_scored(episode) and episode.condition in (self.before, self.after):
                start = 0 if episode.condition == self.before else 2
                row[start] = float(judgement is not None and judgement.verdict is self.verdict)
                row[start + 1] = 1.0
        return rows

    def value(self, sums: Floats) -> Floats:
        """Return the difference of the two rates; NaN unless both conditions were scored."""
        return _divide(sums[..., 2], sums[..., 3]) - _divide(sums[..., 0], sums[..., 1])

    def count(self, sums: Floats) -> Floats:
        """Return the episodes of both conditions; 0 unless both have some."""
        both = (sums[..., 1] > 0) & (sums[..., 3] > 0)
        return np.where(both, sums[..., 1] + sums[..., 3], 0.0)


def confusion_rows(episodes: Sequence[Episode]) -> Floats:
    """Return (N, 12): the flattened 3 x 4 confusion matrix (gold x verdict or none) of each scored episode."""
    rows = np.zeros((len(episodes), len(VERDICTS), NO_ANSWER + 1))  # (N, 3, 4)
    for row, episode in zip(rows, episodes, strict=True):
        if is_scored(episode):
            judgement = episode.outcome.judgement
            answer = NO_ANSWER if judgement is None else VERDICTS.index(judgement.verdict)
            row[VERDICTS.index(episode.outcome.gold), answer] = 1.0
    return rows.reshape(len(episodes), len(VERDICTS) * (NO_ANSWER + 1))


def _by_class(sums: Floats) -> tuple[Floats, Floats, Floats]:
    """Split added confusion rows (..., 12) into gold, answers and hits of each verdict, each (..., 3)."""
    confusion = sums.reshape(*sums.shape[:-1], len(VERDICTS), NO_ANSWER + 1)  # (..., 3, 4)
    gold: Floats = confusion.sum(axis=-1)
    answered: Floats = confusion[..., :NO_ANSWER].sum(axis=-2)
    return gold, answered, np.diagonal(confusion, axis1=-2, axis2=-1)


def _divide(part: Floats, whole: Floats) -> Floats:
    """Divide; NaN where the whole is 0."""
    positive = whole > 0
    result: Floats = np.where(positive, part / np.where(positive, whole, 1.0), math.nan)
    return result
