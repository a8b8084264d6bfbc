"""Intervals against a slow second route: resample lists of episodes and compute the metric anew each time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from provgym.eval.bootstrap import (
    DEFAULT_RESAMPLES,
    estimate,
    estimates,
    pair_episodes,
    paired_difference,
    resample_counts,
)
from provgym.eval.crossed import SEED_FACTOR, crossed_difference, crossed_estimate
from provgym.eval.metric_kinds import MeanMetric, Metric
from provgym.eval.metrics import METRICS, compute
from provgym.generators.episode import Episode

Make = Callable[..., Episode]
MakeRandom = Callable[..., list[Episode]]
SLOW_METRICS = ["accuracy", "balanced_accuracy", "macro_f1", "count_mae", "ece", "support_shift_c1_c2"]


def of_claims(episodes: Sequence[Episode], names: Sequence[str], counts: Sequence[float]) -> list[Episode]:
    """Return the episodes of a resample, claims repeated as often as drawn."""
    return [
        e for name, k in zip(names, counts, strict=True) for _ in range(int(k)) for e in episodes if e.claim_id == name
    ]


def plain_interval(values: list[float]) -> tuple[float, float]:
    """Return the 2.5 % and 97.5 % points by linear interpolation between sorted values."""
    kept = sorted(v for v in values if not math.isnan(v))

    def point(share: float) -> float:
        place = share * (len(kept) - 1)
        low = math.floor(place)
        return kept[low] + (place - low) * (kept[min(low + 1, len(kept) - 1)] - kept[low])

    return point(0.025), point(0.975)


@pytest.mark.parametrize("name", SLOW_METRICS)
def test_interval_equals_resampled_lists(make_random: MakeRandom, name: str) -> None:
    episodes = make_random(5, 40, 8)
    scored = [e for e in episodes if e.error is None]
    names = sorted({e.claim_id for e in scored})
    counts = resample_counts(len(names), resamples=200, seed=9)
    metric = METRICS[name]
    low, high = plain_interval([compute(metric, of_claims(scored, names, row))[0] for row in counts])
    found = estimate(episodes, metric, seed=9, resamples=200)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-9)
    assert (found.value, found.n) == pytest.approx(compute(metric, episodes), abs=1e-9)


@pytest.mark.parametrize("name", SLOW_METRICS[:4])
def test_paired_interval_equals_resampled_lists(make_random: MakeRandom, name: str) -> None:
    a = make_random(5, 40, 8)
    b = [replace_judgement(e, other) for e, other in zip(a, make_random(6, 40, 8), strict=True)]
    metric = METRICS[name]
    kept_a, kept_b, left_out = pair_episodes(a, b)
    names = sorted({e.claim_id for e in kept_a})
    counts = resample_counts(len(names), resamples=200, seed=3)
    values = [
        compute(metric, of_claims(kept_a, names, row))[0] - compute(metric, of_claims(kept_b, names, row))[0]
        for row in counts
    ]
    found = paired_difference(a, b, metric, seed=3, resamples=200)
    assert (found.difference.low, found.difference.high) == pytest.approx(plain_interval(values), abs=1e-9)
    assert found.difference.value == pytest.approx(found.a - found.b)
    assert found.left_out == left_out > 0


def replace_judgement(episode: Episode, other: Episode) -> Episode:
    """Return ``episode`` with the ending and judgement of ``other``."""
    from dataclasses import replace

    outcome = replace(episode.outcome, ending=other.outcome.ending, judgement=other.outcome.judgement)
    return replace(episode, outcome=outcome, error=other.error)


def test_rows_of_counts_add_up_and_follow_the_seed() -> None:
    """Kinds: correlated workers (seed 6 is no shifted seed 5), global RNG (untouched; seed 0 is a seed)."""
    np.random.seed(1)  # noqa: NPY002 - the point is that it is not touched
    random.seed(1)
    before = np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]  # noqa: NPY002
    first = resample_counts(7, resamples=50, seed=5)
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before  # type: ignore[index]  # noqa: NPY002
    assert first.shape == (50, 7)
    assert (first.sum(axis=1) == 7).all()
    assert np.array_equal(first, resample_counts(7, resamples=50, seed=5))
    other = resample_counts(7, resamples=50, seed=6)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[1:], other[:-1])
    assert not np.array_equal(first, resample_counts(7, resamples=50, seed=5, factor=SEED_FACTOR))
    assert resample_counts(7, resamples=50, seed=0).sum() == 350
    with pytest.raises(ValueError, match="num_clusters=0"):
        resample_counts(0, resamples=5, seed=1)


def test_order_of_episodes_does_not_matter(make_random: MakeRandom) -> None:
    episodes = make_random(2)
    there = estimates(episodes, list(METRICS.values()), resamples=100)
    back = estimates(episodes[::-1], list(METRICS.values()), resamples=100)
    for name in METRICS:
        for part in ("value", "low", "high", "n"):
            assert getattr(there[name], part) == pytest.approx(getattr(back[name], part), abs=1e-9, nan_ok=True)


def test_one_claim_has_a_value_and_no_interval(make_episode: Make) -> None:
    found = estimate([make_episode("a"), make_episode("a", condition="C2", answer="SUPPORT")], METRICS["accuracy"])
    assert found.value == 0.5
    assert not found.has_interval
    # Two claims, but only one of them has a valid judgement to measure.
    found = estimate([make_episode("a"), make_episode("b", answer=None)], METRICS["count_mae"])
    assert (found.value, found.n, found.has_interval) == (0.0, 1, False)


def test_nothing_scored_is_not_available(make_episode: Make) -> None:
    found = estimate([make_episode(ending="error")], METRICS["accuracy"])
    assert (found.is_available, found.n) == (False, 0)
    paired = paired_difference([make_episode(ending="error")], [make_episode()], METRICS["accuracy"])
    assert (paired.difference.n, paired.left_out, paired.is_above_zero) == (0, 1, False)


def test_pairing_is_tighter_than_two_separate_intervals(make_episode: Make) -> None:
    """Claims differ much, policies little: the paired interval must see through the claims."""
    a, b = [], []
    for i in range(60):
        easy = i % 2 == 0
        a.append(make_episode(f"c{i}", answer="MIXED" if easy or i % 10 == 1 else "SUPPORT"))
        b.append(make_episode(f"c{i}", answer="MIXED" if easy else "SUPPORT"))
    metric = METRICS["accuracy"]
    paired = paired_difference(a, b, metric)
    apart_a, apart_b = estimate(a, metric), estimate(b, metric)
    width = paired.difference.high - paired.difference.low
    assert width < (apart_a.high - apart_a.low + apart_b.high - apart_b.low) / 2
    assert apart_a.low < apart_b.high, "apart, the two intervals overlap"
    assert paired.is_above_zero
    assert paired_difference(b, a, metric).is_below_zero
    assert paired_difference(a, a, metric).difference.high == 0.0


def test_clusters_widen_the_interval_when_episodes_of_a_claim_agree(make_episode: Make) -> None:
    apart = [make_episode(f"c{i}", answer="MIXED" if i % 2 else "SUPPORT") for i in range(100)]
    together = [
        make_episode(f"c{i // 5}", answer="MIXED" if i // 5 % 2 else "SUPPORT", instance=f"i{i}") for i in range(100)
    ]
    loose, tight = (estimate(e, METRICS["accuracy"]) for e in (together, apart))
    # Design effect of five equal episodes a claim: about sqrt(5).
    assert (loose.high - loose.low) / (tight.high - tight.low) == pytest.approx(5**0.5, rel=0.25)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Simulation with a known truth: 60 claims with a random effect each, five episodes a claim."""
    from types import SimpleNamespace

    rng = np.random.default_rng(8)
    metric: Metric = MeanMetric("x", lambda e: e.x)  # type: ignore[attr-defined]
    hits, runs = 0, 200
    alive = SimpleNamespace(ending=None)
    for run in range(runs):
        effect = rng.normal(0.3, 1.0, size=60)
        rows = [
            SimpleNamespace(claim_id=f"c{i}", x=float(effect[i] + rng.normal()), outcome=alive)
            for i in range(60)
            for _ in range(5)
        ]
        found = estimate(rows, metric, seed=run, resamples=300)  # type: ignore[arg-type]
        hits += found.low <= 0.3 <= found.high
    # 95 % nominal; percentile intervals of 60 clusters run a little under it. Noise of 200 runs: 0.015.
    assert 0.89 <= hits / runs <= 0.99


def test_sets_that_differ_are_refused_by_name(make_episode: Make) -> None:
    a, b = [make_episode("a"), make_episode("b")], [make_episode("a")]
    with pytest.raises(ValueError, match=r"second set lacks 1 of 2 .*b/C1"):
        paired_difference(a, b, METRICS["accuracy"])
    with pytest.raises(ValueError, match="first set lacks"):
        paired_difference(b, a, METRICS["accuracy"])
    with pytest.raises(ValueError, match="first set lacks"):
        paired_difference([], b, METRICS["accuracy"])
    with pytest.raises(ValueError, match="second set lacks"):  # another budget is another episode
        paired_difference(b, [make_episode("a", budget=8)], METRICS["accuracy"])
    with pytest.raises(ValueError, match="twice; compare one mitigation"):
        paired_difference([*b, make_episode("a", mitigation="M0")], b, METRICS["accuracy"])
    with pytest.raises(ValueError, match="the data sets differ"):
        paired_difference(b, [make_episode("a", gold="SUPPORT")], METRICS["accuracy"])


def test_mitigations_can_be_compared_and_errors_are_left_out(make_episode: Make) -> None:
    a = [make_episode(f"c{i}", mitigation="M0") for i in range(4)]
    b = [make_episode(f"c{i}", ending="error" if i == 0 else None, mitigation="M1") for i in range(4)]
    found = paired_difference(a, b[::-1], METRICS["accuracy"])
    assert (found.difference.value, found.difference.n, found.left_out) == (0.0, 3, 1)


def test_n_of_a_difference_by_hand(make_episode: Make) -> None:
    """Six pairs, one with an error. Accuracy scores all five others; the Brier score those with a judgement.

    First policy: judgements on c1 to c3. Second: on c3 to c5 and c2. So n is 5, and 3 for Brier, the smaller side's
    own, though only c2 and c3 are judged by both.
    """
    a = [make_episode(f"c{i}", answer="MIXED" if i in (1, 2, 3) else None) for i in range(6)]
    b = [make_episode(f"c{i}", answer="MIXED" if i in (2, 3, 4, 5) else None) for i in range(1, 6)]
    b.insert(0, make_episode("c0", ending="error", answer=None))
    accuracy, brier = (paired_difference(a, b, METRICS[name]).difference for name in ("accuracy", "brier"))
    assert accuracy.n == 5
    assert accuracy.value == pytest.approx(3 / 5 - 4 / 5)
    assert brier.n == 3
    crossed = crossed_difference([a, a], [b, b], METRICS["brier"])
    assert crossed.overall.n == 6, "over two seeds"


def test_default_number_of_resamples() -> None:
    assert DEFAULT_RESAMPLES == 2_000


def crossed_by_hand(runs: list[list[Episode]], metric: Metric, seed: int, resamples: int) -> tuple[float, float]:
    names = sorted({e.claim_id for run in runs for e in run})
    claims = resample_counts(len(names), resamples=resamples, seed=seed)
    seeds = resample_counts(len(runs), resamples=resamples, seed=seed, factor=SEED_FACTOR)
    means = []
    for claim_row, seed_row in zip(claims, seeds, strict=True):
        per_run = [compute(metric, of_claims(run, names, claim_row))[0] for run in runs]
        drawn = [v for v, k in zip(per_run, seed_row, strict=True) for _ in range(int(k)) if not math.isnan(v)]
        means.append(sum(drawn) / len(drawn) if drawn else math.nan)
    return plain_interval(means)


@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy"])
def test_crossed_interval_equals_resampled_lists(make_random: MakeRandom, name: str) -> None:
    runs = [[e for e in make_random(s, 24, 6) if e.error is None] for s in (1, 2, 3)]
    found = crossed_estimate(runs, METRICS[name], seed=4, resamples=60)
    assert (found.overall.low, found.overall.high) == pytest.approx(
        crossed_by_hand(runs, METRICS[name], 4, 60), abs=1e-9
    )
    assert found.by_seed == pytest.approx([compute(METRICS[name], run)[0] for run in runs])
    assert found.overall.value == pytest.approx(sum(found.by_seed) / 3)
    assert found.overall.n == sum(len(run) for run in runs)


def test_crossed_interval_sees_seeds_that_claims_alone_do_not(make_episode: Make) -> None:
    good = [make_episode(f"c{i}") for i in range(30)]
    bad = [make_episode(f"c{i}", answer="SUPPORT") for i in range(30)]
    found = crossed_estimate([good, bad, good], METRICS["accuracy"])
    assert (found.overall.low, found.overall.high) == (0.0, 1.0)
    assert found.overall.value == pytest.approx(2 / 3)


def test_crossed_difference_against_one_start(make_episode: Make) -> None:
    start = [make_episode(f"c{i}", answer="SUPPORT") for i in range(20)]
    trained = [
        [make_episode(f"c{i}", answer="MIXED" if i % 4 >= s else "SUPPORT") for i in range(20)] for s in (0, 1, 2)
    ]
    found = crossed_difference(trained, [start], METRICS["accuracy"])
    assert found.by_seed == pytest.approx([1.0, 0.75, 0.5])
    assert found.agrees_in_sign
    assert found.overall.low > 0
    worse = crossed_difference([start, trained[0]], [trained[1], start], METRICS["accuracy"])
    assert worse.by_seed == pytest.approx([-0.75, 1.0])
    assert not worse.agrees_in_sign
    with pytest.raises(ValueError, match="3 runs against 2"):
        crossed_difference(trained, [start, start], METRICS["accuracy"])
    with pytest.raises(ValueError, match="at least two training seeds"):
        crossed_estimate(trained[:1], METRICS["accuracy"])


def test_a_seed_without_figure_leaves_no_mean_over_the_others(make_episode: Make) -> None:
    """Kind: NaN in a mean: a mean over two seeds must not pass for one over three."""
    run = [make_episode(f"c{i}") for i in range(3)]
    dead = [make_episode(f"c{i}", ending="error") for i in range(3)]
    found = crossed_estimate([run, dead, run], METRICS["accuracy"])
    assert not found.overall.is_available
    assert found.by_seed == pytest.approx((1.0, math.nan, 1.0), nan_ok=True)


def test_paired_difference_on_one_claim_has_no_interval(make_episode: Make) -> None:
    found = paired_difference([make_episode()], [make_episode(answer="SUPPORT")], METRICS["accuracy"])
    assert (found.difference.value, found.difference.n) == (1.0, 1)
    assert not found.difference.has_interval
    assert not found.is_above_zero


def test_crossed_interval_leaves_out_seeds_that_a_resample_cannot_score(make_episode: Make) -> None:
    """Kind: NaN in a mean: a resample without any valid judgement of a seed is left out, never a 0."""
    full = [make_episode(f"c{i}", counts=(i, 3)) for i in range(5)]
    sparse = [make_episode(f"c{i}", counts=(i, 1), answer="MIXED" if i < 2 else None) for i in range(5)]
    metric = METRICS["count_mae"]
    found = crossed_estimate([full, sparse], metric, seed=2, resamples=120)
    expected = crossed_by_hand([full, sparse], metric, 2, 120)
    assert (found.overall.low, found.overall.high) == pytest.approx(expected, abs=1e-9)
