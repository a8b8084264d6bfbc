"""Every metric against a second computation: a plain loop, written from the definitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provgym.eval.bootstrap import estimate
from provgym.eval.metric_kinds import MeanMetric, ShiftMetric
from provgym.eval.metrics import (
    METRICS,
    compute,
    count_endings,
    mean_of_finite,
    metrics_named,
    reward_metrics,
    scored_share,
    split_by_prefix,
)
from provgym.generators.episode import Episode, Tokens
from provgym.rewards.outcome import Ending, Verdict
from provgym.rewards.rubric import papt_rubric

Make = Callable[..., Episode]
MakeRandom = Callable[..., list[Episode]]


def plain(episodes: Sequence[Episode]) -> dict[str, tuple[float, int]]:
    """Return name to (value, n), computed with loops over lists and nothing else."""
    scored = [e.outcome for e in episodes if e.outcome.ending is not Ending.ERROR]
    valid = [(o, o.judgement) for o in scored if o.judgement is not None]

    def mean(values: list[float]) -> tuple[float, int]:
        return (sum(values) / len(values) if values else math.nan), len(values)

    found: dict[str, tuple[float, int]] = {}
    right = [o for o, j in valid if j.verdict is o.gold]
    found["accuracy"] = (len(right) / len(scored) if scored else math.nan), len(scored)
    recalls, f1s = [], []
    for verdict in Verdict:
        gold = [o for o in scored if o.gold is verdict]
        hits = sum(o in right for o in gold)
        answered = sum(j.verdict is verdict for _, j in valid)
        found[f"recall_{verdict.value.lower()}"] = (hits / len(gold) if gold else math.nan), len(gold)
        if gold:
            recall = hits / len(gold)
            precision = hits / answered if answered else 0.0
            recalls.append(recall)
            f1s.append(2 * precision * recall / (precision + recall) if precision + recall else 0.0)
    found["balanced_accuracy"] = mean(recalls)[0], len(scored)
    found["macro_f1"] = mean(f1s)[0], len(scored)
    found["echo_rate"] = mean([o.echoes / max(1, o.walks) for o in scored])
    found["echo_share"] = mean([1.0 if o.echoes else 0.0 for o in scored])
    some = [o for o in scored if o.available_support + o.available_refute]
    found["source_recall"] = mean([o.acquired / o.available for o in some])
    found["source_recall_budget"] = mean([o.acquired / min(o.budget, o.available) for o in some])
    found["walks"] = mean([float(o.walks) for o in scored])
    found["connector_moves"] = mean([float(o.connector_moves) for o in scored])
    found["invalid_actions"] = mean([float(o.invalid_actions) for o in scored])
    found["invalid_rate"] = mean([float(o.ending.value in ("invalid", "truncated")) for o in scored])
    found["count_mae"] = mean(
        [float(abs(j.support_count - o.acquired_support) + abs(j.refute_count - o.acquired_refute)) for o, j in valid]
    )
    found["count_mae_available"] = mean(
        [float(abs(j.support_count - o.available_support) + abs(j.refute_count - o.available_refute)) for o, j in valid]
    )
    found["brier"] = mean([(j.confidence - (1.0 if j.verdict is o.gold else 0.0)) ** 2 for o, j in valid])
    gap = 0.0
    for low in range(10):
        members = [(o, j) for o, j in valid if low <= j.confidence * 10 < low + 1 or (low == 9 and j.confidence == 1)]
        if members:
            confidence = sum(j.confidence for _, j in members) / len(members)
            accuracy = sum(j.verdict is o.gold for o, j in members) / len(members)
            gap += len(members) / len(valid) * abs(confidence - accuracy)
    found["ece"] = (gap if valid else math.nan), len(valid)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_metrics_equal_a_plain_loop(make_random: MakeRandom, seed: int) -> None:
    episodes = make_random(seed)
    for name, (value, n) in plain(episodes).items():
        found, count = compute(METRICS[name], episodes)
        assert count == n, name
        assert found == pytest.approx(value, abs=1e-9, nan_ok=True), name


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 40), order=st.randoms(use_true_random=False))
def test_metrics_keep_their_range_whatever_the_order(
    make_random: MakeRandom, seed: int, count: int, order: Random
) -> None:
    episodes = make_random(seed, count)
    shuffled = list(episodes)
    order.shuffle(shuffled)
    unbounded = {"walks", "connector_moves", "invalid_actions", "count_mae", "count_mae_available"}
    for name, metric in METRICS.items():
        value, n = compute(metric, episodes)
        assert compute(metric, shuffled) == pytest.approx((value, n), abs=1e-9, nan_ok=True)
        assert math.isnan(value) == (n == 0)
        assert n <= count
        if n and name not in unbounded and "shift" not in name:
            assert 0.0 <= value <= 1.0, name


def test_values_by_hand(make_episode: Make) -> None:
    episodes = [
        make_episode("a", gold="MIXED", answer="MIXED", confidence=0.9, walks=4, echoes=1, counts=(2, 1)),
        make_episode("b", gold="SUPPORT", answer="MIXED", confidence=0.6, available=(5, 1), acquired=(1, 0)),
        make_episode("c", gold="SUPPORT", answer=None, walks=0, available=(5, 1), acquired=(0, 0)),
        make_episode("d", gold="MIXED", ending="truncated", walks=6, echoes=3),
    ]
    expected = {
        "accuracy": (0.25, 4),
        "balanced_accuracy": ((0.5 + 0.0) / 2, 4),
        # MIXED: 1 hit, 2 answers, 2 gold -> F1 = 2 / 4; SUPPORT: never answered -> 0
        "macro_f1": (0.25, 4),
        "echo_rate": ((0.25 + 0 + 0 + 0.5) / 4, 4),
        "echo_share": (0.5, 4),
        "source_recall": ((1 + 1 / 6 + 0 + 1) / 4, 4),
        "count_mae": ((1 + 1) / 2, 2),  # 2+1 against 1+1; 1+1 against 1+0
        "count_mae_available": ((1 + 4) / 2, 2),
        "invalid_rate": (0.5, 4),
        "brier": ((0.01 + 0.36) / 2, 2),
        "ece": ((0.1 + 0.6) / 2, 2),
        "recall_refute": (math.nan, 0),
    }
    for name, (value, n) in expected.items():
        assert compute(METRICS[name], episodes) == pytest.approx((value, n), abs=1e-9, nan_ok=True), name


def test_recall_against_the_budget_uses_the_smaller_of_budget_and_sources(make_episode: Make) -> None:
    episode = make_episode(budget=3, walks=3, available=(5, 1), acquired=(2, 1))
    assert compute(METRICS["source_recall"], [episode])[0] == pytest.approx(0.5)
    assert compute(METRICS["source_recall_budget"], [episode])[0] == pytest.approx(1.0)


def test_no_walk_has_echo_rate_zero_and_no_source_has_no_recall(make_episode: Make) -> None:
    episode = make_episode(walks=0, available=(0, 0), acquired=(0, 0))
    assert compute(METRICS["echo_rate"], [episode]) == (0.0, 1)
    assert compute(METRICS["source_recall"], [episode]) == pytest.approx((math.nan, 0), nan_ok=True)


def test_errors_are_never_scored(make_episode: Make) -> None:
    """Kind: endpoint failure scored as wrong. 10 claims, 2 time out, 8 right: 8 of 8, coverage 80 %."""
    episodes = [make_episode(f"c{i}") for i in range(8)]
    episodes += [make_episode(f"c{i}", ending="error") for i in (8, 9)]
    found = estimate(episodes, METRICS["accuracy"])
    assert (found.value, found.low, found.high, found.n) == (1.0, 1.0, 1.0, 8)
    assert scored_share(episodes) == 0.8
    assert count_endings(episodes) == {"answered": 8, "invalid": 0, "truncated": 0, "error": 2}
    for metric in (*METRICS.values(), *reward_metrics(papt_rubric())):
        assert compute(metric, episodes[8:]) == pytest.approx((math.nan, 0), nan_ok=True), metric.name


def test_nan_in_a_mean() -> None:
    """Kind: NaN in a mean. 0.5, NaN, 0.8 gives 0.65 with n = 2."""
    assert mean_of_finite([0.5, math.nan, 0.8]) == pytest.approx((0.65, 2))
    assert mean_of_finite([math.nan]) == pytest.approx((math.nan, 0), nan_ok=True)


def test_nan_of_an_episode_leaves_it_out(make_episode: Make) -> None:
    """Kind: NaN in a mean, through the metric that every figure uses."""
    values = {"a": 0.5, "b": math.nan, "c": 0.8}
    metric = MeanMetric("logged", lambda e: values[e.claim_id])
    assert compute(metric, [make_episode(c) for c in values]) == pytest.approx((0.65, 2))


def test_infinite_value_is_refused_by_name(make_episode: Make) -> None:
    with pytest.raises(ValueError, match="'broken'.*'c0/C1'"):
        compute(MeanMetric("broken", lambda e: math.inf), [make_episode()])


def test_nothing_played_gives_nan_and_n_zero() -> None:
    """Kind: SciFact without evidence (an empty file: n = 0, not available)."""
    for metric in METRICS.values():
        value, n = compute(metric, [])
        assert n == 0
        assert math.isnan(value)
    assert math.isnan(scored_share([]))


def test_mixed_answer_on_two_class_gold_is_wrong_and_averages_two_classes(make_episode: Make) -> None:
    episodes = [
        make_episode("a", gold="SUPPORT", answer="SUPPORT"),
        make_episode("b", gold="REFUTE", answer="MIXED"),
    ]
    assert compute(METRICS["macro_f1"], episodes)[0] == pytest.approx(0.5)
    assert compute(METRICS["balanced_accuracy"], episodes)[0] == pytest.approx(0.5)


def test_constant_support_on_scifact_shares(make_episode: Make) -> None:
    episodes = [make_episode(f"c{i}", gold="SUPPORT" if i < 124 else "REFUTE", answer="SUPPORT") for i in range(188)]
    assert compute(METRICS["accuracy"], episodes)[0] == pytest.approx(0.6596, abs=1e-4)
    assert compute(METRICS["macro_f1"], episodes)[0] == pytest.approx(248 / 312 / 2)


def test_confidence_of_one_falls_in_the_last_bin(make_episode: Make) -> None:
    episodes = [make_episode("a", confidence=1.0), make_episode("b", confidence=0.9, answer="SUPPORT")]
    # One bin holds both: mean confidence 0.95, accuracy 0.5.
    assert compute(METRICS["ece"], episodes) == pytest.approx((0.45, 2))


def test_verdict_shift_between_conditions(make_episode: Make) -> None:
    episodes = [
        make_episode("a", condition="C1", answer="MIXED"),
        make_episode("b", condition="C1", answer="SUPPORT"),
        make_episode("a", condition="C2", answer="SUPPORT"),
        make_episode("b", condition="C2", answer="SUPPORT"),
        make_episode("b", condition="C3", answer="REFUTE"),
    ]
    assert compute(METRICS["support_shift_c1_c2"], episodes) == pytest.approx((0.5, 4))
    shift = ShiftMetric("shift", Verdict.REFUTE, "C1", "C2R")
    assert compute(shift, episodes) == pytest.approx((math.nan, 0), nan_ok=True)


def test_tokens_and_unknown_rate(make_episode: Make) -> None:
    tokens = Tokens((1, 2, 3), (10, 11, 20, 21), (1, 1, 0, 1), (-0.1, -0.2, 0.0, -0.3))
    with_ids = make_episode("a", tokens=tokens, unknown_tokens=1)
    remote = make_episode("b", usage={"completion_tokens": 7})
    scripted = make_episode("c")
    assert compute(METRICS["sampled_tokens"], [with_ids, remote, scripted]) == pytest.approx((5.0, 2))
    assert compute(METRICS["context_tokens"], [with_ids, remote, scripted]) == pytest.approx((7.0, 1))
    # 1 of the 4 world tokens (three of the prompt, one of the reply) is unknown
    assert compute(METRICS["unknown_token_rate"], [with_ids, scripted]) == pytest.approx((0.25, 1))


def test_reward_terms_are_those_of_the_rubric(make_random: MakeRandom) -> None:
    episodes, rubric = make_random(1), papt_rubric("no_echo")
    scores = [rubric.score(e.outcome) for e in episodes]
    found = {m.name: compute(m, episodes) for m in reward_metrics(rubric)}
    assert set(found) == {"reward", *(f"reward_{t}" for t in rubric.terms)}
    assert found["reward"] == pytest.approx(mean_of_finite([s.total for s in scores]), abs=1e-9)
    for term in rubric.terms:
        expected = mean_of_finite([s.terms[term] for s in scores])
        assert found[f"reward_{term}"] == pytest.approx(expected, abs=1e-9)


def test_unknown_metric_is_named() -> None:
    with pytest.raises(ValueError, match="acuracy"):
        metrics_named(["acuracy"])


def test_general_conditions_stand_apart(make_episode: Make) -> None:
    groups = split_by_prefix([make_episode(condition="C1"), make_episode(condition="general")])
    assert {p: [e.condition for e in g] for p, g in groups.items()} == {"": ["C1"], "general_": ["general"]}
    assert split_by_prefix([]) == {}
