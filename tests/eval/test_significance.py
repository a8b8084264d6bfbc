"""Tests of differences against enumeration, scipy and simulation; Holm's correction by hand and by its definition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, wilcoxon

from provgym.eval.bootstrap import paired_difference, percentile_interval
from provgym.eval.compare import compare_policies
from provgym.eval.crossed import crossed_difference
from provgym.eval.metrics import METRICS
from provgym.eval.significance import SignTest, bootstrap_p, holm, sign_test
from provgym.eval.table import comparison_table, p_cell
from provgym.generators.episode import Episode

Make = Callable[..., Episode]
NAN = math.nan


def enumerated_p(wins: int, losses: int) -> float:
    """The two-sided p by writing out every assignment of signs."""
    n, here = wins + losses, abs(wins - losses)
    splits = [abs(2 * sum(signs) - n) for signs in itertools.product((0, 1), repeat=n)]
    return sum(split >= here for split in splits) / len(splits)


@pytest.mark.parametrize(("wins", "losses"), [(w, k) for w in range(7) for k in range(7) if w + k])
def test_sign_test_equals_every_assignment_of_signs(wins: int, losses: int) -> None:
    found = sign_test(np.array([0.5] * wins + [-0.1] * losses + [0.0, NAN]))
    assert (found.wins, found.losses, found.ties, found.n) == (wins, losses, 1, wins + losses)
    assert found.p == pytest.approx(enumerated_p(wins, losses), abs=1e-12)


def test_sign_test_on_many_claims_is_scipy_s_binomial_test() -> None:
    differences = np.array([1.0] * 130 + [-1.0] * 70)
    assert sign_test(differences).p == pytest.approx(binomtest(130, 200, 0.5).pvalue)
    # Among ranks of equal size Wilcoxon's test sees the signs alone, in its normal approximation.
    assert sign_test(differences).p == pytest.approx(wilcoxon(differences, method="approx").pvalue, abs=1e-4)


def test_sign_test_of_nothing_and_of_ties() -> None:
    """Kind: SciFact without evidence (no claim: not available); all ties are no evidence of a difference."""
    nothing = sign_test(np.array([NAN, NAN]))
    assert (nothing.wins, nothing.losses, nothing.ties) == (0, 0, 0)
    assert math.isnan(nothing.p)
    assert sign_test(np.array([0.0, 1e-15, -1e-15])) == SignTest(0, 0, 3, 1.0)


@given(st.lists(st.floats(-1, 1) | st.just(NAN), max_size=40))
def test_sign_test_is_symmetric_and_in_range(values: list[float]) -> None:
    there, back = sign_test(np.array(values)), sign_test(-np.array(values))
    assert (there.wins, there.losses, there.ties) == (back.losses, back.wins, back.ties)
    assert there.p == pytest.approx(back.p, nan_ok=True)
    assert math.isnan(there.p) or 0.0 < there.p <= 1.0


def test_bootstrap_p_against_every_resample(make_episode: Make) -> None:
    """Four claims have 4^4 resamples; the sampled p must be their enumerated share, twice the smaller tail."""
    right = {"a": (1, 0), "b": (1, 0), "c": (1, 1), "d": (0, 1)}
    episodes = [
        [make_episode(claim, answer="MIXED" if hits[side] else "SUPPORT") for claim, hits in right.items()]
        for side in (0, 1)
    ]
    differences = [hits[0] - hits[1] for hits in right.values()]
    sums = [sum(drawn) for drawn in itertools.product(differences, repeat=4)]
    exact = 2 * min(sum(s <= 0 for s in sums), sum(s >= 0 for s in sums)) / len(sums)
    found = paired_difference(episodes[0], episodes[1], METRICS["accuracy"], resamples=20_000)
    assert found.p == pytest.approx(exact, abs=0.02)
    assert (found.sign.wins, found.sign.losses, found.sign.ties) == (2, 1, 1)
    assert found.sign.p == pytest.approx(1.0)


@given(st.lists(st.floats(-1, 1), min_size=40, max_size=400), st.floats(-1, 1))
def test_bootstrap_p_agrees_with_the_interval(values: list[float], shift: float) -> None:
    """Where the interval lies well off zero p is below 0.05, and where it holds zero well inside p is not."""
    resampled = np.round(np.array(values) + shift, 6)
    p, (low, high) = bootstrap_p(resampled), percentile_interval(resampled)
    assert 0.0 < p <= 1.0
    inside = min((resampled <= 0).mean(), (resampled >= 0).mean())
    if low > 0 or high < 0:
        assert p <= 0.05 + 4 / len(values)
    if inside > 0.025:
        assert p > 0.05
        assert low <= 0 <= high or inside < 0.025 + 2 / len(values)


def test_bootstrap_p_by_hand() -> None:
    assert bootstrap_p(np.array([0.1] * 2_000)) == pytest.approx(2 / 2_001)  # never zero: 2,000 resamples cannot say
    assert bootstrap_p(np.zeros(2_000)) == 1.0
    assert bootstrap_p(np.array([0.1, NAN, -0.2, 0.3])) == pytest.approx(2 * 2 / 4)  # NaN in a mean: left out
    assert math.isnan(bootstrap_p(np.array([NAN])))
    assert math.isnan(bootstrap_p(np.array([])))


def test_both_tests_raise_as_many_false_alarms_as_they_say(make_episode: Make) -> None:
    """Two equal policies on 40 claims, 200 times: p below 0.05 in about one of twenty (the sign test in fewer)."""
    rng = np.random.default_rng(4)
    alarms = np.zeros(2)
    runs = 200
    for _ in range(runs):
        differences = rng.choice([-0.4, -0.2, 0.2, 0.4], size=40)
        counts = rng.multinomial(40, np.full(40, 1 / 40), size=200)
        alarms += [bootstrap_p(counts @ differences / 40) < 0.05, sign_test(differences).p < 0.05]
    share = alarms / runs
    # Noise of 200 runs: 0.015. Percentile intervals of 40 clusters run a little under their level.
    assert 0.02 <= share[0] <= 0.10
    assert share[1] <= 0.08


def test_holm_by_hand() -> None:
    # Sorted .005 .01 .03 .04, times 4 3 2 1: .02 .03 .06 .04, and no value below the one before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.7, 0.9]) == [1.0, 1.0]
    assert holm([0.04, NAN, 0.02]) == pytest.approx([0.04, NAN, 0.04], nan_ok=True)
    with pytest.raises(ValueError, match=r"p values \[1.2\] must lie in"):
        holm([0.5, 1.2])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_holm_rejects_what_the_step_down_procedure_rejects(p_values: list[float], random: Any) -> None:
    """Reject while the k-th smallest p is at most level / (m - k + 1), stop at the first that is not."""
    adjusted = holm(p_values)
    for level in (0.01, 0.05, 0.3):
        rejected: set[int] = set()
        for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
            if p_values[place] * (len(p_values) - rank) > level:
                break
            rejected.add(place)
        assert {i for i, p in enumerate(adjusted) if p <= level} == rejected
    assert all(p >= q for p, q in zip(adjusted, p_values, strict=True))
    order = list(range(len(p_values)))
    random.shuffle(order)
    assert holm([p_values[i] for i in order]) == [adjusted[i] for i in order]


def test_comparisons_are_corrected_within_a_metric(make_episode: Make) -> None:
    """Three policies make three pairs a metric; the family is one metric of one group, never all rows together."""

    def play(right: int) -> list[Episode]:
        return [
            make_episode(f"c{i}", condition=c, answer="MIXED" if i < right else "SUPPORT")
            for i in range(12)
            for c in ("C1", "general")
        ]

    policies = {"start": play(3), "middle": play(6), "best": play(12)}
    found = compare_policies(policies, metrics=["accuracy", "walks"], resamples=300)
    for metric in ("accuracy", "general_accuracy", "walks"):
        rows = [c for c in found if c.metric == metric]
        assert len(rows) == 3
        assert [c.holm_p for c in rows] == holm([c.paired.p for c in rows])
        assert [c.holm_sign_p for c in rows] == holm([c.paired.sign.p for c in rows])
    best = next(c for c in found if (c.first, c.second, c.metric) == ("best", "start", "accuracy"))
    assert best.paired.sign == SignTest(9, 0, 3, 2 / 2**9)
    assert best.holm_sign_p == pytest.approx(3 * 2 / 2**9)
    (single,) = [
        c
        for c in compare_policies({k: policies[k] for k in ("start", "best")}, metrics=["accuracy"])
        if c.metric == "accuracy"
    ]
    assert single.holm_p == single.paired.p  # one pair needs no correction

    table = comparison_table(found)
    row = table.rows[[(c.first, c.second, c.metric) for c in found].index(("best", "start", "accuracy"))]
    assert dict(zip(table.header, row, strict=True))["claims"] == "9:0:3"
    assert dict(zip(table.header, row, strict=True))["sign p"] == "0.004"
    stored = best.to_json()
    assert stored["sign_test"] == {
        "p": pytest.approx(2 / 512),
        "holm_p": pytest.approx(6 / 512),
        "wins": 9,
        "losses": 0,
        "ties": 3,
    }


def test_no_interval_is_no_test(make_episode: Make) -> None:
    """One base claim tells nothing of how claims differ: p is not available, null in files, a dash in tables."""
    pair = {"a": [make_episode("c")], "b": [make_episode("c", answer="SUPPORT")]}
    (found,) = compare_policies(pair, metrics=["accuracy"])
    assert math.isnan(found.paired.p)
    assert (found.to_json()["p"], found.to_json()["holm_p"]) == (None, None)
    assert found.paired.sign == SignTest(0, 1, 0, 1.0)
    assert comparison_table([found]).rows[0][5:7] == ("-", "-")
    assert p_cell(0.0005) == "0.001"


def test_several_mitigations_are_paired_within_each(make_episode: Make) -> None:
    def play(answers: dict[str, str]) -> list[Episode]:
        return [make_episode(f"c{i}", mitigation=m, answer=answer) for m, answer in answers.items() for i in range(3)]

    found = paired_difference(
        play({"M0": "MIXED", "M1": "SUPPORT"}), play({"M1": "SUPPORT", "M0": "SUPPORT"}), METRICS["accuracy"]
    )
    assert (found.a, found.b, found.difference.n) == (0.5, 0.0, 6)
    with pytest.raises(ValueError, match="lacks 3 of 6 episodes"):
        paired_difference(
            play({"M0": "MIXED", "M1": "SUPPORT"}), play({"M1": "SUPPORT", "M2": "SUPPORT"}), METRICS["accuracy"]
        )


def test_differences_over_seeds_have_a_p(make_episode: Make) -> None:
    def play(right: int) -> list[Episode]:
        return [make_episode(f"c{i}", answer="MIXED" if i < right else "SUPPORT") for i in range(10)]

    found = crossed_difference([play(9), play(8), play(10)], [play(3)], METRICS["accuracy"], resamples=500)
    assert found.by_seed == pytest.approx((0.6, 0.5, 0.7))
    # Three seeds: mean 0.6, standard deviation 0.1, so t^2 = 108 with two degrees of freedom.
    assert found.p == pytest.approx(1 - math.sqrt(108 / 110))
    assert found.seeds_with_sign == 3
    assert found.to_json()["p"] == found.p
    none = crossed_difference([play(3), play(3)], [play(3)], METRICS["accuracy"], resamples=50)
    assert (none.p, none.seeds_with_sign, none.agrees_in_sign) == (1.0, 0, False)


def test_two_seeds_that_agree_are_no_proof(make_episode: Make) -> None:
    """Differences of 0.6 and 0.2: no resample of them is negative, yet t = 2 with one degree of freedom."""

    def play(right: int) -> list[Episode]:
        return [make_episode(f"c{i}", answer="MIXED" if i < right else "SUPPORT") for i in range(10)]

    found = crossed_difference([play(9), play(5)], [play(3)], METRICS["accuracy"], resamples=500)
    assert found.by_seed == pytest.approx((0.6, 0.2))
    assert found.p == pytest.approx(1 - 2 * math.atan(2) / math.pi)
