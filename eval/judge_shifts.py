"""What a change of condition does to the answers on the same claims: shifts, paired over base claims.

A sound judge follows sources, not routes: where only routes are added (C1 to C2, 1S1P to 1S5P) its shift is exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from provgym.eval.bootstrap import DEFAULT_RESAMPLES, DEFAULT_SEED, percentile_interval, resample_counts
from provgym.eval.estimate import Estimate
from provgym.eval.judge_metrics import answer_rate, prompt_characters, prompt_tokens, stated_confidence, stated_support
from provgym.eval.metric_kinds import is_scored
from provgym.eval.metrics import mean_of_finite
from provgym.generators.episode import Episode
from provgym.generators.scifact import VARIANTS
from provgym.rewards.outcome import Verdict


@dataclass(frozen=True, slots=True)
class ShiftKind:
    """A figure of one episode, followed from one condition to another.

    Attributes:
        name: Key.
        before: Condition label.
        after: Condition label.
        of: The figure; NaN leaves the episode out.
        sound: What the sound judge (majority over distinct sources) shifts by on generated claims; None where that
            says nothing, as for tokens.
    """

    name: str
    before: str
    after: str
    of: Callable[[Episode], float]
    sound: float | None = None


@dataclass(frozen=True, slots=True)
class Shift:
    """A shift that was measured, after minus before.

    Attributes:
        kind: What was followed.
        estimate: Mean over claims of each claim's own shift, with its interval; n = claims.
        before: Mean figure before, over the same claims.
        after: Mean figure after.
        left_out: Claims without a figure under one of the conditions (an ``error``, or no valid judgement).
    """

    kind: ShiftKind
    estimate: Estimate
    before: float
    after: float
    left_out: int

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data; NaN becomes null."""
        means = {"before_value": self.before, "after_value": self.after}
        return {
            "before": self.kind.before,
            "after": self.kind.after,
            **self.estimate.to_json(),
            **{key: None if math.isnan(value) else value for key, value in means.items()},
            "left_out": self.left_out,
            "sound": self.kind.sound,
        }


_SUPPORT, _REFUTE = (partial(answer_rate, verdict=verdict) for verdict in (Verdict.SUPPORT, Verdict.REFUTE))
_ONE_ROUTE, _FIVE_ROUTES, _RELABELLED = VARIANTS[:3]


def _accuracy(episode: Episode) -> float:
    return float(episode.outcome.is_correct)


SHIFTS = (
    ShiftKind("support_shift_c1_c2", "C1", "C2", _SUPPORT, 0.0),
    ShiftKind("support_shift_c2_c3", "C2", "C3", _SUPPORT, 1.0),
    ShiftKind("refute_shift_c1_c2r", "C1", "C2R", _REFUTE, 0.0),
    ShiftKind("support_count_shift_1s1p_1s5p", "1S1P", "1S5P", stated_support, 0.0),
    ShiftKind("support_count_shift_1s5p_5s5p", "1S5P", "5S5P", stated_support, 4.0),
    ShiftKind("support_shift_1s5p_5s5p", "1S5P", "5S5P", _SUPPORT, 0.0),
    ShiftKind("confidence_shift_1s1p_1s5p", "1S1P", "1S5P", stated_confidence, 0.0),
    ShiftKind("confidence_shift_1s5p_5s5p", "1S5P", "5S5P", stated_confidence),
    ShiftKind("prompt_characters_shift_1s5p_5s5p", "1S5P", "5S5P", prompt_characters),
    ShiftKind("prompt_tokens_shift_1s5p_5s5p", "1S5P", "5S5P", prompt_tokens),
    ShiftKind("accuracy_shift_five_routes", _ONE_ROUTE, _FIVE_ROUTES, _accuracy, 0.0),
    ShiftKind("confidence_shift_five_routes", _ONE_ROUTE, _FIVE_ROUTES, stated_confidence, 0.0),
    ShiftKind("accuracy_shift_relabelled", _FIVE_ROUTES, _RELABELLED, _accuracy, 0.0),
)
"""Every shift; those whose two conditions were judged are reported."""


def shifts_of(
    episodes: Sequence[Episode], *, seed: int = DEFAULT_SEED, resamples: int = DEFAULT_RESAMPLES
) -> dict[str, Shift]:
    """Return the shifts whose two conditions occur among the episodes of one mitigation."""
    labels = {episode.condition for episode in episodes}
    return {
        kind.name: measure_shift(episodes, kind, seed=seed, resamples=resamples)
        for kind in SHIFTS
        if {kind.before, kind.after} <= labels
    }


def measure_shift(
    episodes: Sequence[Episode], kind: ShiftKind, *, seed: int = DEFAULT_SEED, resamples: int = DEFAULT_RESAMPLES
) -> Shift:
    """Measure one shift, each claim against itself.

    A claim's figure under a condition is the mean over its scored episodes (samples). The 95 % interval is a
    percentile interval over resampled claims; with fewer than two claims there is none.

    Args:
        episodes: Of one mitigation, in any order; other conditions are looked past.
        kind: What to follow.
        seed: Run seed of the resampling.
        resamples: R.

    Source:
        Paired differences with clustered errors: Miller 2024, arXiv:2411.00640.
    """
    before, after = _by_claim(episodes, kind.before, kind.of), _by_claim(episodes, kind.after, kind.of)
    touched = {e.claim_id for e in episodes if e.condition in (kind.before, kind.after)}
    claims = sorted(before.keys() & after.keys())
    left_out = len(touched) - len(claims)
    if not claims:
        return Shift(kind, Estimate.missing(), math.nan, math.nan, left_out)
    differences = np.array([after[claim] - before[claim] for claim in claims])  # (C,)
    low, high = math.nan, math.nan
    if len(claims) > 1:
        counts = resample_counts(len(claims), resamples=resamples, seed=seed)  # (R, C)
        low, high = percentile_interval(counts @ differences / len(claims))
    first, second = (float(np.mean([found[claim] for claim in claims])) for found in (before, after))
    return Shift(kind, Estimate(float(differences.mean()), low, high, len(claims)), first, second, left_out)


def _by_claim(episodes: Sequence[Episode], condition: str, of: Callable[[Episode], float]) -> Mapping[str, float]:
    """Return each claim's mean figure under a condition; claims without any figure are left out."""
    figures: dict[str, list[float]] = {}
    for episode in episodes:
        if episode.condition == condition and is_scored(episode):
            figures.setdefault(episode.claim_id, []).append(of(episode))
    means = {claim: mean_of_finite(found) for claim, found in figures.items()}
    return {claim: mean for claim, (mean, n) in means.items() if n}
