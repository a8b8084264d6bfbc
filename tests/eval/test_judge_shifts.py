"""Shifts between conditions: by hand, by plain loops, and the judges whose shifts are known exactly."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provgym.eval.judge_config import JudgeEvalConfig, build_judge_tasks
from provgym.eval.judge_metrics import JUDGE_METRICS, groups_of, split_by_group
from provgym.eval.judge_shifts import SHIFTS, Shift, ShiftKind, measure_shift, shifts_of
from provgym.eval.metrics import compute
from provgym.eval.walk_config import GraphEchoClaims, load_instances
from provgym.generators.episode import Episode, Tokens
from provgym.generators.judge_scripted import constant_judge
from provgym.generators.scripted import ScriptedPolicy, Walker, echo_avoiding_oracle, naive_path_counter
from provgym.rewards.outcome import Verdict

CONFIG = JudgeEvalConfig(
    claims=GraphEchoClaims(seed=3, splits={"test": 5}), mitigations=("M0", "M1", "M2", "M3"), resamples=50
)
SUPPORT = next(kind for kind in SHIFTS if kind.name == "support_shift_c1_c2")
COUNT = next(kind for kind in SHIFTS if kind.name == "support_count_shift_1s5p_5s5p")


def shifts_by_mitigation(walker: Walker) -> dict[str, dict[str, Shift]]:
    tasks = build_judge_tasks(CONFIG, load_instances(CONFIG).instances)
    episodes = ScriptedPolicy("judge", walker).play(tasks)
    return {m: shifts_of([e for e in episodes if e.mitigation == m], resamples=50) for m in CONFIG.mitigations}


# Worked by hand. By paths: C1 is 1 against 1, C2 and C3 are 5 against 1, C2R is 1 against 5; 1S1P has one supporting
# path, 1S5P and 5S5P have five. By sources: C1, C2 and C2R are 1 against 1, C3 is 5 against 1.
BY_HAND = {
    "oracle": {
        "support_shift_c1_c2": 0.0,  # MIXED, MIXED
        "support_shift_c2_c3": 1.0,  # MIXED, SUPPORT
        "refute_shift_c1_c2r": 0.0,  # MIXED, MIXED
        "support_count_shift_1s1p_1s5p": 0.0,  # 1, 1
        "support_count_shift_1s5p_5s5p": 4.0,  # 1, 5
        "support_shift_1s5p_5s5p": 0.0,
        "confidence_shift_1s1p_1s5p": 0.0,
    },
    "naive": {
        "support_shift_c1_c2": 1.0,  # MIXED, SUPPORT
        "support_shift_c2_c3": 0.0,  # SUPPORT, SUPPORT
        "refute_shift_c1_c2r": 1.0,  # MIXED, REFUTE
        "support_count_shift_1s1p_1s5p": 4.0,  # 1, 5
        "support_count_shift_1s5p_5s5p": 0.0,  # 5, 5
        "support_shift_1s5p_5s5p": 0.0,
        "confidence_shift_1s1p_1s5p": 0.0,
    },
    "constant": dict.fromkeys(
        ("support_shift_c1_c2", "support_shift_c2_c3", "refute_shift_c1_c2r", "support_count_shift_1s5p_5s5p"), 0.0
    ),
}
JUDGES = {
    "oracle": echo_avoiding_oracle,
    "naive": naive_path_counter,
    "constant": constant_judge(Verdict.SUPPORT),
}


@pytest.mark.parametrize("name", JUDGES)
def test_known_judges_shift_exactly_as_worked_by_hand(name: str) -> None:
    for found in shifts_by_mitigation(JUDGES[name]).values():
        for shift, expected in BY_HAND[name].items():
            estimate = found[shift].estimate
            assert (estimate.value, estimate.low, estimate.high, estimate.n) == (expected, expected, expected, 5)
            assert found[shift].left_out == 0


def test_what_a_sound_judge_does_is_what_the_table_says_it_does() -> None:
    shifts = shifts_by_mitigation(echo_avoiding_oracle)["M1"]
    assert {name for name, shift in shifts.items() if shift.kind.sound is not None} >= set(BY_HAND["oracle"])
    for shift in shifts.values():
        if shift.kind.sound is not None:
            assert shift.estimate.value == shift.kind.sound


def test_the_source_count_intervention_holds_the_prompt_length() -> None:
    shifts = shifts_by_mitigation(naive_path_counter)
    assert shifts["M1"]["prompt_characters_shift_1s5p_5s5p"].estimate.value == 0.0
    assert shifts["M3"]["prompt_characters_shift_1s5p_5s5p"].estimate.value > 0.0  # groups hide repetition


# --- one shift by hand


def test_a_shift_by_hand(make_episode: Callable[..., Episode]) -> None:
    """Claims a: MIXED to SUPPORT; b: stays MIXED; c: error after, left out; d: invalid before counts as no SUPPORT."""
    episodes = [
        make_episode("a", condition="C1", answer="MIXED"),
        make_episode("a", condition="C2", answer="SUPPORT"),
        make_episode("b", condition="C1", answer="MIXED"),
        make_episode("b", condition="C2", answer="MIXED"),
        make_episode("c", condition="C1", answer="SUPPORT"),
        make_episode("c", condition="C2", ending="error"),
        make_episode("d", condition="C1", answer=None),
        make_episode("d", condition="C2", answer="SUPPORT"),
        make_episode("e", condition="C3", answer="SUPPORT"),
    ]
    shift = measure_shift(episodes, SUPPORT)
    assert (shift.estimate.n, shift.left_out, shift.before) == (3, 1, 0.0)
    assert shift.estimate.value == shift.after == pytest.approx(2 / 3)
    assert 0.0 <= shift.estimate.low <= 2 / 3 <= shift.estimate.high <= 1.0
    stored = shift.to_json()
    assert (stored["before"], stored["after"], stored["n"], stored["sound"]) == ("C1", "C2", 3, 0.0)


def test_counts_without_a_judgement_are_left_out(make_episode: Callable[..., Episode]) -> None:
    """Fault kind: NaN in a mean."""
    episodes = [
        make_episode("a", condition="1S5P", answer="SUPPORT", counts=(5, 0)),
        make_episode("a", condition="5S5P", answer="SUPPORT", counts=(4, 0)),
        make_episode("b", condition="1S5P", answer=None),
        make_episode("b", condition="5S5P", answer="SUPPORT", counts=(5, 0)),
    ]
    shift = measure_shift(episodes, COUNT)
    assert (shift.estimate.value, shift.estimate.n, shift.left_out) == (-1.0, 1, 1)
    assert not shift.estimate.has_interval  # one claim says nothing of how claims differ


def test_samples_of_a_claim_count_as_one(make_episode: Callable[..., Episode]) -> None:
    episodes = [make_episode("a", condition="C1", member=m, answer="MIXED") for m in range(4)]
    episodes += [make_episode("a", condition="C2", member=m, answer="SUPPORT" if m else "MIXED") for m in range(4)]
    episodes += [make_episode("b", condition=c, answer="MIXED") for c in ("C1", "C2")]
    shift = measure_shift(episodes, SUPPORT)
    assert (shift.estimate.value, shift.estimate.n) == (0.375, 2)


def test_nothing_in_common_is_not_available(make_episode: Callable[..., Episode]) -> None:
    episodes = [make_episode("a", condition="C1"), make_episode("b", condition="C2")]
    shift = measure_shift(episodes, SUPPORT)
    assert (shift.estimate.n, shift.left_out) == (0, 2)
    assert shift.to_json()["value"] is None
    assert shifts_of([]) == {}
    assert set(shifts_of(episodes)) == {"support_shift_c1_c2"}


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_shifts_agree_with_plain_loops_in_any_order(make_random: Callable[..., list[Episode]], seed: int) -> None:
    episodes = make_random(seed)
    kind = ShiftKind("x", "C1", "C2R", lambda e: float(e.outcome.budget - e.outcome.walks))
    differences = []
    for claim in {e.claim_id for e in episodes}:
        means = []
        for condition in ("C1", "C2R"):
            values = [
                6.0 - e.outcome.walks
                for e in episodes
                if e.claim_id == claim and e.condition == condition and e.outcome.ending.value != "error"
            ]
            means.append(sum(values) / len(values) if values else math.nan)
        if not any(math.isnan(mean) for mean in means):
            differences.append(means[1] - means[0])
    found = measure_shift(episodes, kind, resamples=20)
    assert found.estimate.n == len(differences)
    if differences:
        assert found.estimate.value == pytest.approx(sum(differences) / len(differences), abs=1e-9)
    shuffled = [episodes[i] for i in np.random.default_rng(seed).permutation(len(episodes))]
    again = measure_shift(shuffled, kind, resamples=20)
    assert again.estimate == found.estimate or not differences


# --- metrics and groups


def test_judge_metrics_agree_with_plain_loops(make_episode: Callable[..., Episode]) -> None:
    tokens = Tokens((1, 2, 3), (4, 5), (1, 1), (0.0, 0.0))
    episodes = [
        make_episode("a", gold="SUPPORT", answer="SUPPORT", tokens=tokens),
        make_episode("b", gold="SUPPORT", answer="REFUTE", usage={"prompt_tokens": 7, "completion_tokens": 4}),
        make_episode("c", gold="REFUTE", answer=None, cut_characters=3),
        make_episode("d", gold="REFUTE", answer="REFUTE", ending="error"),
    ]
    figures = {name: compute(metric, episodes) for name, metric in JUDGE_METRICS.items()}
    expected = {
        "support_rate": (1 / 3, 3),
        "refute_rate": (1 / 3, 3),
        "mixed_rate": (0.0, 3),
        "prompt_tokens": (5.0, 2),  # (3 + 7) / 2
        "sampled_tokens": (3.0, 2),
        "cut_share": (1 / 3, 3),
        "invalid_rate": (1 / 3, 3),
        "f1_support": (2 / 3, 3),  # 2 hits / (2 gold + 1 answer)
        "f1_refute": (0.0, 3),
        "macro_f1": (1 / 3, 3),
    }
    assert {k: figures[k][0] for k in expected} == pytest.approx({k: v for k, (v, _) in expected.items()}, abs=1e-9)
    assert {k: figures[k][1] for k in expected} == {k: n for k, (_, n) in expected.items()}
    assert figures["prompt_characters"][1] == 0  # nothing was shown in these


def test_every_condition_has_its_groups(make_episode: Callable[..., Episode]) -> None:
    assert groups_of("general") == ("general",)
    assert groups_of("2S6PR") == ("source_count",)
    assert groups_of("3+1|2") == groups_of("own") == ("other",)
    assert groups_of("all_docs_one_route") == ("scifact",)
    episodes = [make_episode(condition=c) for c in ("general", "C1", "one_doc_one_route", "C4")]
    assert {k: len(v) for k, v in split_by_group(episodes).items()} == {
        "conflict": 2,
        "scifact": 1,
        "first_document": 1,
        "general": 1,
    }
