"""Confidence against accuracy by bins, kinds of evidence, verdict classes: data, tables and pictures."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from provgym.eval import curve_plots, forest_plot
from provgym.eval.condition_groups import CONDITION_GROUPS, estimate_groups, lines_of, parse_setting
from provgym.eval.crossed import CrossedEstimate
from provgym.eval.curve_plots import plot_budgets, plot_reliability
from provgym.eval.estimate import Estimate
from provgym.eval.forest_plot import plot_forest
from provgym.eval.metrics import METRICS, compute
from provgym.eval.reliability import bin_of, reliability_of
from provgym.eval.walk_summary import summarise
from provgym.eval.walk_tables import class_table, confidence_table, group_table
from provgym.generators.conditions import CONFLICT_CONDITIONS
from provgym.generators.episode import Episode

Make = Callable[..., Episode]
MakeRandom = Callable[..., list[Episode]]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures as they are before they are written."""
    kept: list[Figure] = []
    for module in (curve_plots, forest_plot):
        monkeypatch.setattr(module, "save_figure", lambda figure, path: kept.append(figure))
    return kept


@pytest.fixture
def stated(make_episode: Make) -> list[Episode]:
    """Ten claims: four right at 0.9, two of four right at 0.55, one wrong at 1.0, one without an answer."""
    confidences = [0.9] * 4 + [0.55] * 4 + [1.0]
    right = [True] * 4 + [True, True, False, False] + [False]
    episodes = [
        make_episode(f"c{i}", confidence=c, answer="MIXED" if r else "SUPPORT")
        for i, (c, r) in enumerate(zip(confidences, right, strict=True))
    ]
    return [*episodes, make_episode("c9", answer=None)]


def test_bins_by_hand(stated: list[Episode]) -> None:
    found = reliability_of(stated, resamples=50)[""]
    assert [part.n for part in found.bins] == [0, 0, 0, 0, 0, 4, 0, 0, 0, 5]
    assert (found.bins[5].confidence, found.bins[5].accuracy.value) == pytest.approx((0.55, 0.5))
    assert (found.bins[9].confidence, found.bins[9].accuracy.value) == pytest.approx((4.6 / 5, 0.8))
    assert found.bins[5].accuracy.low < 0.5 < found.bins[5].accuracy.high
    assert math.isnan(found.bins[0].confidence)
    assert found.n == 9  # valid judgements; the invalid stop has no confidence
    assert found.ece.value == pytest.approx(4 / 9 * 0.05 + 5 / 9 * 0.12)
    assert found.brier.value == pytest.approx((4 * 0.01 + 2 * 0.45**2 + 2 * 0.55**2 + 1) / 9)
    stored = found.to_json()
    assert stored["bins"][0] == {
        "low": 0.0,
        "high": 0.1,
        "confidence": None,
        "accuracy": {"value": None, "low": None, "high": None, "n": 0},
    }
    assert (stored["n"], stored["bins"][9]["high"]) == (9, 1.0)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 40))
def test_bins_give_back_ece_and_count_every_judgement(make_random: MakeRandom, seed: int, count: int) -> None:
    episodes = make_random(seed, count)
    for prefix, found in reliability_of(episodes, resamples=2).items():
        chosen = [e for e in episodes if (e.condition == "general") == bool(prefix)]
        assert found.n == sum(e.outcome.judgement is not None for e in chosen)
        gap = sum(part.n * abs(part.confidence - part.accuracy.value) for part in found.bins if part.n)
        value, n = compute(METRICS["ece"], chosen)
        assert (gap / n if n else math.nan) == pytest.approx(value, abs=1e-9, nan_ok=True)


@given(st.floats(0, 1))
def test_every_confidence_has_one_bin_whose_ends_hold_it(confidence: float) -> None:
    place = bin_of(confidence)
    assert 0 <= place <= 9
    assert place / 10 - 1e-12 <= confidence <= (place + 1) / 10 + 1e-12


def test_groups_stand_apart(stated: list[Episode], make_episode: Make) -> None:
    found = reliability_of([*stated, make_episode("c0", condition="general", confidence=0.2)], resamples=5)
    assert {prefix: r.n for prefix, r in found.items()} == {"": 9, "general_": 1}
    table = confidence_table({"policy": found})
    assert [row[:2] + row[4:] for row in table.rows] == [("policy", "named", "9"), ("policy", "general", "1")]


def test_nothing_valid_is_not_available_and_still_draws(tmp_path: Path, make_episode: Make) -> None:
    """Kinds: endpoint failure scored as wrong, SciFact without evidence: errors and silence give n = 0."""
    found = reliability_of([make_episode(ending="error"), make_episode("b", answer=None)], resamples=5)
    assert (found[""].n, found[""].brier.n, found[""].ece.is_available) == (0, 0, False)
    plot_reliability({"silent": found}, tmp_path / "silent.png")
    assert (tmp_path / "silent.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_reliability({"none": {}}, tmp_path / "none.png")


def test_the_picture_shows_what_the_bins_hold(figures: list[Figure], stated: list[Episode], tmp_path: Path) -> None:
    plot_reliability({"policy": reliability_of(stated, resamples=50)}, tmp_path / "x.png")
    curve, counts = figures[0].axes
    points = next(line for line in curve.get_lines() if line.get_marker() == "o")
    assert np.asarray(points.get_xdata(), dtype=float) == pytest.approx([0.55, 0.92])
    assert np.asarray(points.get_ydata(), dtype=float) == pytest.approx([0.5, 0.8])
    assert [bar.get_height() for bar in counts.patches] == [4, 5]  # type: ignore[attr-defined]
    assert {text.get_text() for text in counts.texts} == {"4", "5"}
    legend = curve.get_legend()
    assert legend is not None
    assert "n=9" in legend.get_texts()[0].get_text()


def test_every_summary_holds_reliability_and_groups(stated: list[Episode], make_episode: Make) -> None:
    stored = summarise([*stated, make_episode("c0", condition="general")], resamples=5).to_json()
    assert (stored["reliability"]["conditions"]["n"], stored["reliability"]["general_"]["n"]) == (9, 1)
    assert stored["by_group"]["M1/B6"]["balanced"]["accuracy"]["value"] == pytest.approx(0.6)
    assert summarise([], resamples=5).to_json()["by_group"] == {}


def test_kinds_of_evidence_are_the_five_conditions_and_the_general_ones(make_episode: Make) -> None:
    assert [c for conditions in CONDITION_GROUPS.values() for c in conditions] == [
        "C1",
        "C2",
        "C2R",
        "C3",
        "C4",
        "general",
    ]
    assert {c for conditions in CONDITION_GROUPS.values() for c in conditions} == {*CONFLICT_CONDITIONS, "general"}
    episodes = [
        make_episode(f"c{i}", condition=c, budget=b, echoes=1 if c == "C2" else 0, mitigation=m)
        for i in range(2)
        for c in ("C1", "C2", "C2R", "C3", "C4", "1S5P", "general")
        for b in (3, 8)
        for m in ("M0", "M1")
    ]
    found = estimate_groups(episodes, resamples=5)
    assert list(found) == ["M0/B3", "M1/B3", "M0/B8", "M1/B8"]
    assert {group: cell["accuracy"].n for group, cell in found["M1/B8"].items()} == {
        "balanced": 2,
        "redundant_support": 4,
        "distinct_support": 4,
        "general": 2,
    }
    assert found["M1/B8"]["redundant_support"]["echo_rate"].value == pytest.approx(0.25)  # C2 1/2, C2R 0
    table = group_table({"p": found})
    assert [row[0] for row in table.rows[:4]] == [f"balanced: p {m}/B{b}" for m in ("M0", "M1") for b in (3, 8)]
    assert len(table.rows) == 16
    assert "redundant support: C2, C2R" in table.caption


def test_lines_run_over_budgets_and_leave_out_what_was_not_measured(
    figures: list[Figure], make_episode: Make, tmp_path: Path
) -> None:
    episodes = [
        make_episode(f"c{i}", budget=b, mitigation=m, answer="MIXED" if i < b // 3 else "SUPPORT")
        for i in range(3)
        for b in (8, 3, 6)
        for m in ("M0", "M1")
    ]
    episodes += [make_episode("c0", budget=5, mitigation="M1", ending="error")]
    found = estimate_groups(episodes, resamples=5)
    lines = lines_of(found, "balanced", "accuracy")
    assert {m: [(b, round(e.value, 3)) for b, e in line] for m, line in lines.items()} == {
        "M0": [(3, 0.333), (6, 0.667), (8, 0.667)],
        "M1": [(3, 0.333), (6, 0.667), (8, 0.667)],
    }
    assert lines_of(found, "general", "accuracy") == {}
    plot_budgets({"p": found}, tmp_path / "x.png")
    axis = figures[0].axes[0]
    assert [round(float(tick)) for tick in axis.get_xticks()] == [3, 5, 6, 8]
    drawn = [line for line in axis.get_lines() if line.get_marker() in ("o", "s")]
    assert np.asarray(drawn[0].get_ydata(), dtype=float) == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_budgets({"p": {}}, tmp_path / "x.png")
    assert parse_setting("M3/B10000") == ("M3", 10_000)


def test_class_table_lists_the_classes_of_gold(make_episode: Make) -> None:
    """Two-class gold, as on SciFact: MIXED has no row of its own, a MIXED answer is a miss."""
    answers = [("SUPPORT", "SUPPORT"), ("SUPPORT", "MIXED"), ("SUPPORT", "REFUTE"), ("REFUTE", "REFUTE")]
    episodes = [make_episode(f"c{i}", gold=gold, answer=answer) for i, (gold, answer) in enumerate(answers)]
    metrics = summarise(episodes, resamples=5).metrics
    assert metrics["precision_support"].value == 1.0
    assert (metrics["precision_refute"].value, metrics["precision_refute"].n) == (0.5, 2)
    assert metrics["f1_support"].value == pytest.approx(2 * 1 / (3 + 1))
    assert metrics["f1_refute"].value == pytest.approx(2 / 3)
    assert metrics["macro_f1"].value == pytest.approx((0.5 + 2 / 3) / 2)
    assert [metrics[f"{f}_mixed"].n for f in ("precision", "recall", "f1")] == [0, 0, 0]
    table = class_table({"p": metrics})
    assert [row[1] for row in table.rows] == ["SUPPORT", "REFUTE", "macro-F1"]
    assert table.rows[0][3].startswith("0.333\n")
    # A verdict that was never answered has no precision, and an F1 of 0.
    silent = summarise([make_episode(f"c{i}", gold="REFUTE", answer="SUPPORT") for i in range(2)], resamples=5).metrics
    assert (silent["precision_refute"].n, silent["f1_refute"].value, silent["f1_refute"].n) == (0, 0.0, 2)


def test_forest_plot_shows_interval_seeds_and_gaps(figures: list[Figure], tmp_path: Path) -> None:
    panel = {
        "full": CrossedEstimate(Estimate(0.5, 0.4, 0.6, 40), (0.45, 0.55)),
        "lost": CrossedEstimate(Estimate.missing(), (0.3, math.nan)),
    }
    plot_forest({"named": panel, "general": {"full": panel["full"]}}, tmp_path / "x.png", marks={"named": [0.2]})
    named, general = figures[0].axes
    assert [label.get_text() for label in named.get_yticklabels()] == ["full", "lost"]
    drawn = [np.asarray(line.get_xdata(), dtype=float).tolist() for line in named.get_lines()]
    assert [0.45, 0.55] in drawn
    assert [0.4, 0.6] in drawn
    assert [0.3] in drawn  # the seed that has a figure is shown, the mean is not
    assert "not available" in [text.get_text() for text in named.texts]
    assert len(general.get_lines()) == 3


def test_forest_plot_is_a_real_picture(tmp_path: Path) -> None:
    panel = {"full": CrossedEstimate(Estimate(0.5, math.nan, math.nan, 4), (0.45, 0.55))}
    plot_forest({"named": panel}, tmp_path / "forest.png", title="accuracy")
    assert (tmp_path / "forest.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_forest({}, tmp_path / "x.png")
