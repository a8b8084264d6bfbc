"""Intervals over runs of teams: against the walk harness's own, against resampled lists, and by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from provgym.eval.bootstrap import estimate, pair_episodes, paired_difference, resample_counts
from provgym.eval.crossed import crossed_difference, crossed_estimate
from provgym.eval.metric_kinds import MeanMetric, is_scored
from provgym.eval.topology_crossed import SeedColumn, crossed_groups, crossed_mean, crossed_ratio
from provgym.eval.topology_estimates import (
    Resampling,
    group_difference,
    mean_estimate,
    paired_means,
    paired_ratio,
)
from provgym.generators.episode import Episode

MakeRandom = Callable[..., list[Episode]]
NAN = math.nan
FEW = Resampling(seed=9, resamples=200)
WALKS = MeanMetric("walks", lambda episode: float(episode.outcome.walks))


def column(episodes: Sequence[Episode]) -> list[float]:
    return [float(e.outcome.walks) if is_scored(e) else NAN for e in episodes]


def claims_of(episodes: Sequence[Episode]) -> list[str]:
    return [e.claim_id for e in episodes]


def test_means_are_those_of_the_walk_harness(make_random: MakeRandom) -> None:
    """One bootstrap for walks and teams: the same values give the same figures, interval and n."""
    episodes = make_random(5, 40, 8)
    found = mean_estimate(column(episodes), claims_of(episodes), FEW)
    expected = estimate([e for e in episodes if is_scored(e)], WALKS, seed=9, resamples=200)
    # Claims that were never scored are resampled too, where the walk harness leaves them out: none here.
    assert {e.claim_id for e in episodes if is_scored(e)} == set(claims_of(episodes))
    assert (found.value, found.low, found.high, found.n) == pytest.approx(
        (expected.value, expected.low, expected.high, expected.n), abs=1e-12
    )


def test_paired_differences_are_those_of_the_walk_harness(make_random: MakeRandom) -> None:
    a, b = make_random(5, 40, 8), make_random(6, 40, 8)
    kept_a, kept_b, left_out = pair_episodes(a, a)
    b = [e for e in b]
    values_a, values_b = column(a), column(b)
    pairs = [(x, y) for x, y in zip(values_a, values_b, strict=True)]
    found = paired_means(values_a, values_b, claims_of(a), FEW)
    assert found.left_out == sum(math.isnan(x) or math.isnan(y) for x, y in pairs) > 0
    same = paired_difference(kept_a, kept_b, WALKS, seed=9, resamples=200)
    own = paired_means(column(kept_a), column(kept_b), claims_of(kept_a), FEW)
    assert (own.difference, own.a, own.b, own.p, own.sign) == (same.difference, same.a, same.b, same.p, same.sign)
    assert left_out > 0


def of_claims(rows: Sequence[tuple[float, ...]], claims: Sequence[str], names: Sequence[str], drawn: Sequence[float]):  # type: ignore[no-untyped-def]
    """Write out a resample as a list, claims repeated as often as drawn."""
    return [
        row
        for name, k in zip(names, drawn, strict=True)
        for _ in range(int(k))
        for row, c in zip(rows, claims, strict=True)
        if c == name
    ]


def plain_mean(values: Sequence[float]) -> float:
    kept = [v for v in values if not math.isnan(v)]
    return sum(kept) / len(kept) if kept else NAN


def plain_interval(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile([v for v in values if not math.isnan(v)], [0.025, 0.975])
    return float(low), float(high)


@pytest.fixture(scope="module")
def rows() -> tuple[list[tuple[float, float, float]], list[str]]:
    """(first, second, is in the first group) and base claims; a fifth is not scored on one side."""
    rng = np.random.default_rng(3)
    claims = [f"c{i // 3}" for i in range(24)]
    values = rng.integers(1, 9, (24, 2)).astype(float)
    values[rng.random((24, 2)) < 0.1] = NAN
    return [(float(a), float(b), float(i % 3 == 0)) for i, (a, b) in enumerate(values)], claims


Rows = tuple[list[tuple[float, float, float]], list[str]]


def test_ratio_and_groups_equal_resampled_lists(rows: Rows) -> None:
    triples, claims = rows
    both = [(t, c) for t, c in zip(triples, claims, strict=True) if not math.isnan(t[0] + t[1])]
    kept, kept_claims = [t for t, _ in both], [c for _, c in both]
    names = sorted(set(kept_claims))
    counts = resample_counts(len(names), resamples=200, seed=9)
    ratios = []
    for drawn in counts:
        sample = of_claims(kept, kept_claims, names, drawn)
        ratios.append(sum(a for a, _, _ in sample) / sum(b for _, b, _ in sample))
    found = paired_ratio([a for a, _, _ in triples], [b for _, b, _ in triples], claims, FEW)
    assert (found.low, found.high) == pytest.approx(plain_interval(ratios), abs=1e-12)
    assert found.value == pytest.approx(sum(a for a, _, _ in kept) / sum(b for _, b, _ in kept))
    assert found.n == len(kept)

    names = sorted(set(claims))
    differences = []
    for drawn in resample_counts(len(names), resamples=200, seed=9):
        sample = of_claims(triples, claims, names, drawn)
        differences.append(plain_mean([a for a, _, g in sample if g]) - plain_mean([a for a, _, g in sample if not g]))
    group = group_difference([a for a, _, _ in triples], [bool(g) for _, _, g in triples], claims, FEW)
    assert (group.low, group.high) == pytest.approx(plain_interval(differences), abs=1e-12)
    assert group.n == sum(not math.isnan(a) for a, _, _ in triples)


def test_crossed_figures_are_those_of_the_walk_harness(make_random: MakeRandom) -> None:
    runs = [[e for e in make_random(seed, 40, 8) if is_scored(e)] for seed in (5, 6, 7)]
    expected = crossed_estimate(runs, WALKS, seed=9, resamples=200)
    found = crossed_mean([SeedColumn(claims_of(run), column(run)) for run in runs], FEW)
    assert found.by_seed == pytest.approx(expected.by_seed)
    assert (found.overall.low, found.overall.high) == pytest.approx((expected.overall.low, expected.overall.high))
    assert math.isnan(found.p)
    shared = [e for e in make_random(8, 40, 8) if is_scored(e)]
    pairs = [SeedColumn(claims_of(shared), column(shared), [v + s for v in column(shared)]) for s in (1.0, 2.0, 1.5)]
    difference = crossed_mean(pairs, FEW)
    assert difference.by_seed == pytest.approx((-1.0, -2.0, -1.5))
    assert difference.agrees_in_sign
    same = crossed_difference([shared] * 3, [shared] * 3, WALKS, seed=9, resamples=200)
    nothing = crossed_mean([SeedColumn(claims_of(shared), column(shared), column(shared))] * 3, FEW)
    assert (nothing.overall, nothing.p) == (same.overall, same.p)


def test_crossed_ratio_and_groups_by_hand() -> None:
    columns = [
        SeedColumn(["a", "b"], [1.0, 3.0], [2.0, 2.0]),
        SeedColumn(["a", "b"], [2.0, 2.0], [8.0, 8.0]),
    ]
    found = crossed_ratio(columns, FEW)
    assert found.by_seed == (1.0, 0.25)
    assert found.overall.value == 0.625
    groups = [
        SeedColumn(["a", "a", "b"], [3.0, 2.0, 1.0], [1.0, 1.0, 0.0]),
        SeedColumn(["a", "a", "b"], [2.0, 2.0, NAN], [1.0, 0.0, 0.0]),
    ]
    assert crossed_groups(groups, FEW).by_seed == (1.5, 0.0)
    with pytest.raises(ValueError, match="needs a second column"):
        crossed_ratio([SeedColumn(["a"], [1.0])] * 2, FEW)
    with pytest.raises(ValueError, match="at least two"):
        crossed_mean([SeedColumn(["a"], [1.0])], FEW)


def test_a_seed_without_figures_makes_none_over_all() -> None:
    """Kind: NaN in a mean: a mean over fewer seeds than were trained would pass for one over all."""
    found = crossed_mean([SeedColumn(["a"], [1.0]), SeedColumn(["a"], [NAN])], FEW)
    assert not found.overall.is_available
    assert found.by_seed[0] == 1.0


def test_nan_is_left_out_and_counted() -> None:
    """Kind: NaN in a mean: 0.5, NaN, 0.8 is 0.65 with n = 2."""
    found = mean_estimate([0.5, NAN, 0.8], ["a", "b", "c"])
    assert found.value == pytest.approx(0.65)
    assert found.n == 2


def test_what_cannot_be_measured_says_so() -> None:
    nothing = mean_estimate([], [])
    assert (nothing.n, nothing.is_available) == (0, False)
    alone = mean_estimate([1.0, 0.0], ["a", "a"])
    assert alone.value == 0.5
    assert not alone.has_interval
    assert paired_means([NAN], [1.0], ["a"]).left_out == 1
    assert not paired_ratio([1.0], [0.0], ["a"]).is_available
    assert not group_difference([1.0, 2.0], [True, True], ["a", "b"]).is_available
    with pytest.raises(ValueError, match="is inf"):
        mean_estimate([math.inf], ["a"])
    with pytest.raises(ValueError, match="2 values for 1 base claims"):
        mean_estimate([1.0, 2.0], ["a"])


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(-5, 5)), min_size=2, max_size=30), st.randoms())
def test_the_order_of_runs_makes_no_difference(rows: list[tuple[int, float]], random: object) -> None:
    few = Resampling(resamples=20)
    values, claims = [value for _, value in rows], [f"c{claim}" for claim, _ in rows]
    found = mean_estimate(values, claims, few)
    turned = mean_estimate(values[::-1], claims[::-1], few)
    assert (found.value, found.n) == pytest.approx((turned.value, turned.n), abs=1e-12)
    if found.has_interval:
        assert (found.low, found.high) == pytest.approx((turned.low, turned.high), abs=1e-12)
        assert found.low - 1e-12 <= max(values)
