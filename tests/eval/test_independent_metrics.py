"""Every metric a second time, from the stored JSON lines alone: plain loops, written from the definitions.

Nothing of the evaluation floor computes here: rows are dictionaries, sums are sums, and what a walk came to is counted
anew in its trace. Episodes come from scripted and erratic walkers; some end invalid, truncated or in an error.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from provgym.envs.actions import format_stop
from provgym.envs.walk_text import GraphWalkTextEnv
from provgym.eval.bootstrap import paired_difference
from provgym.eval.compare import compare_policies
from provgym.eval.crossed import crossed_difference, crossed_estimate
from provgym.eval.episode_store import read_episodes, write_episodes
from provgym.eval.metrics import METRICS, metrics_named, split_by_prefix
from provgym.eval.walk import rescore
from provgym.eval.walk_config import GraphEchoClaims, WalkEvalConfig, build_tasks, load_instances
from provgym.eval.walk_summary import WalkSummary, summarise
from provgym.generators.baseline_walkers import breadth_first_walker, random_walker
from provgym.generators.episode import Episode, EpisodeTask
from provgym.generators.scripted import ScriptedPolicy, echo_avoiding_oracle, naive_path_counter
from provgym.rewards.outcome import Judgement, Verdict
from provgym.rewards.rubric import papt_rubric

Row = dict[str, Any]
CLASSES = ("SUPPORT", "REFUTE", "MIXED")
EXACT = 1e-9


# --- episodes ---------------------------------------------------------------------------------------------------------


def erratic_walker(env: GraphWalkTextEnv, rng: np.random.Generator) -> str:
    """Walk, stumble, answer anything with any confidence, or never come to an answer."""
    assert env.walk is not None
    assert env.presentation is not None
    luck = float(rng.random())
    if luck < 0.08:
        return "walk n999"
    if luck < 0.16:
        return "let me think"
    if luck < 0.20:
        return "stop and wonder"
    moves = [int(node) for node in env.walk.neighbours()]
    if luck < 0.75 and moves:
        return f"walk {env.presentation.alias_of(moves[rng.integers(len(moves))])}"
    verdict = list(Verdict)[rng.integers(3)]
    counts = (int(rng.integers(0, 6)), int(rng.integers(0, 6)))
    return format_stop(Judgement(verdict, *counts, confidence=round(float(rng.random()), 2)))


def with_tokens(rows: Sequence[Row], seed: int) -> list[Row]:
    """Give two thirds of the stored rows token ids or an endpoint's usage, as models and endpoints leave behind."""
    rng = Random(seed)
    found = []
    for row in rows:
        kind = rng.randrange(3)
        if kind == 0:
            length = rng.randrange(1, 30)
            mask = [rng.randrange(2) for _ in range(length)]
            tokens = {
                "prompt_ids": [rng.randrange(90) for _ in range(rng.randrange(1, 40))],
                "completion_ids": [rng.randrange(90) for _ in range(length)],
                "mask": mask,
                "logprobs": [-rng.random() * m for m in mask],
            }
            row = row | {"tokens": tokens, "unknown_tokens": rng.randrange(4)}
        elif kind == 1:
            row = row | {"usage": {"completion_tokens": rng.randrange(100)}}
        found.append(row)
    return found


Played = dict[str, tuple[Path, list[Row]]]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, flaky: Callable[..., Any]) -> Played:
    """Five policies on the same tasks: stored file and raw rows of each."""
    config = WalkEvalConfig(
        claims=GraphEchoClaims(splits={"train": 1, "dev": 1, "test": 3}),
        conditions=("C1", "C2", "C3", "C4", "C2R", "1S5P"),
        general_draws=2,
        mitigations=("M0", "M1"),
        budgets=(3, 6),
    )
    tasks: list[EpisodeTask] = build_tasks(config, load_instances(config).instances)
    walkers = {
        "naive": naive_path_counter,
        "oracle": echo_avoiding_oracle,
        "random": random_walker,
        "bfs": breadth_first_walker,
        "erratic": erratic_walker,
    }
    folder = tmp_path_factory.mktemp("stored")
    found = {}
    for number, (name, walker) in enumerate(walkers.items()):
        errors = [i for i in range(len(tasks)) if (i + number) % 13 == 0]
        episodes = flaky(ScriptedPolicy(name, walker), errors=errors).play(tasks)
        path = folder / f"{name}.jsonl"
        rows = with_tokens([json.loads(json.dumps(e.to_json())) for e in episodes], number)
        write_episodes(path, [Episode.from_json(row) for row in rows])
        found[name] = path, [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
    return found


# --- the second computation -------------------------------------------------------------------------------------------


def mean(values: Iterable[float]) -> tuple[float, int]:
    kept = list(values)
    return (sum(kept) / len(kept) if kept else math.nan), len(kept)


def verdict_of(row: Row) -> str | None:
    judgement = row["outcome"]["judgement"]
    return None if judgement is None else judgement["verdict"]


def is_right(row: Row) -> float:
    return 1.0 if verdict_of(row) == row["outcome"]["gold"] else 0.0


def count_gap(row: Row, basis: str) -> float:
    said, is_so = row["outcome"]["judgement"], row["outcome"]
    return float(
        abs(said["support_count"] - is_so[f"{basis}_support"]) + abs(said["refute_count"] - is_so[f"{basis}_refute"])
    )


def sources(row: Row, basis: str) -> int:
    return int(row["outcome"][f"{basis}_support"] + row["outcome"][f"{basis}_refute"])


def reward_terms(row: Row, count_basis: str = "acquired", coverage_basis: str = "budget") -> dict[str, float]:
    """The terms of GraphEcho's equation 3, and ours."""
    o = row["outcome"]
    reachable = sources(row, "available")
    if coverage_basis == "budget":
        reachable = min(o["budget"], reachable)
    count = 0.0
    if o["judgement"] is not None:
        count = max(0.0, 1.0 - count_gap(row, count_basis) / max(1, sources(row, count_basis)))
    return {
        "verdict": 1.0 if is_right(row) else -1.0,
        "count": count,
        "coverage": sources(row, "acquired") / max(1, reachable),
        "echo": o["echoes"] / max(1, o["walks"]),
        "cost": (o["walks"] + o["invalid_actions"]) / o["budget"],
        "illegal": o["invalid_actions"] / o["budget"],
    }


def plain_class_figures(scored: Sequence[Row]) -> dict[str, tuple[float, int]]:
    """Precision, recall and F1 of each verdict, and their means over the verdicts in gold."""
    found: dict[str, tuple[float, int]] = {}
    recalls, f1s = [], []
    for verdict in CLASSES:
        gold = [row for row in scored if row["outcome"]["gold"] == verdict]
        said = [row for row in scored if verdict_of(row) == verdict]
        hits = sum(1 for row in gold if verdict_of(row) == verdict)
        name = verdict.lower()
        found[f"recall_{name}"] = (hits / len(gold), len(gold)) if gold else (math.nan, 0)
        found[f"precision_{name}"] = (hits / len(said), len(said)) if gold and said else (math.nan, 0)
        found[f"f1_{name}"] = (math.nan, 0)
        if gold:
            recall, precision = hits / len(gold), hits / len(said) if said else 0.0
            f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
            found[f"f1_{name}"] = f1, len(scored)
            recalls.append(recall)
            f1s.append(f1)
    found["balanced_accuracy"] = mean(recalls)[0], len(scored)
    found["macro_f1"] = mean(f1s)[0], len(scored)
    return found


def plain_bins(valid: Sequence[Row]) -> list[list[Row]]:
    """Ten bins of equal width; a confidence of 1 belongs to the last."""
    bins: list[list[Row]] = [[] for _ in range(10)]
    for row in valid:
        confidence = row["outcome"]["judgement"]["confidence"]
        place = 9
        while place > 0 and confidence < place / 10:
            place -= 1
        bins[place].append(row)
    return bins


def plain_calibration(valid: Sequence[Row]) -> dict[str, tuple[float, int]]:
    gap = 0.0
    for members in plain_bins(valid):
        if members:
            stated = sum(row["outcome"]["judgement"]["confidence"] for row in members) / len(members)
            gap += len(members) / len(valid) * abs(stated - sum(map(is_right, members)) / len(members))
    squares = [(row["outcome"]["judgement"]["confidence"] - is_right(row)) ** 2 for row in valid]
    return {"ece": (gap if valid else math.nan, len(valid)), "brier": mean(squares)}


def plain_shift(scored: Sequence[Row], verdict: str, before: str, after: str) -> tuple[float, int]:
    rates, n = [], 0
    for condition in (after, before):
        rows = [row for row in scored if row["condition"] == condition]
        if not rows:
            return math.nan, 0
        rates.append(sum(verdict_of(row) == verdict for row in rows) / len(rows))
        n += len(rows)
    return rates[0] - rates[1], n


def plain_tokens(scored: Sequence[Row]) -> dict[str, tuple[float, int]]:
    sampled, contexts, unknown, world = [], [], 0, 0
    for row in scored:
        tokens = row["tokens"]
        if tokens is None:
            if "completion_tokens" in row["usage"]:
                sampled.append(row["usage"]["completion_tokens"])
            continue
        written = sum(1 for m in tokens["mask"] if m == 1)
        sampled.append(written)
        contexts.append(len(tokens["prompt_ids"]) + len(tokens["completion_ids"]))
        unknown += row["unknown_tokens"]
        world += contexts[-1] - written
    rate = (unknown / world, len(contexts)) if world else (math.nan, 0)
    return {"sampled_tokens": mean(sampled), "context_tokens": mean(contexts), "unknown_token_rate": rate}


def plain_metrics(rows: Sequence[Row]) -> dict[str, tuple[float, int]]:
    """Name to (value, n) of every metric of a walk evaluation."""
    scored = [row for row in rows if row["outcome"]["ending"] != "error"]
    valid = [row for row in scored if row["outcome"]["ending"] == "answered"]
    with_sources = [row for row in scored if sources(row, "available") > 0]
    outcomes = [row["outcome"] for row in scored]
    found = {
        "accuracy": mean(map(is_right, scored)),
        "echo_rate": mean(o["echoes"] / max(1, o["walks"]) for o in outcomes),
        "echo_share": mean(1.0 if o["echoes"] > 0 else 0.0 for o in outcomes),
        "source_recall": mean(sources(r, "acquired") / sources(r, "available") for r in with_sources),
        "source_recall_budget": mean(
            sources(r, "acquired") / min(r["outcome"]["budget"], sources(r, "available")) for r in with_sources
        ),
        "walks": mean(o["walks"] for o in outcomes),
        "connector_moves": mean(o["connector_moves"] for o in outcomes),
        "invalid_actions": mean(o["invalid_actions"] for o in outcomes),
        "invalid_rate": mean(1.0 if o["ending"] in ("invalid", "truncated") else 0.0 for o in outcomes),
        "count_mae": mean(count_gap(row, "acquired") for row in valid),
        "count_mae_available": mean(count_gap(row, "available") for row in valid),
        "support_shift_c1_c2": plain_shift(scored, "SUPPORT", "C1", "C2"),
        "refute_shift_c1_c2r": plain_shift(scored, "REFUTE", "C1", "C2R"),
        **plain_class_figures(scored),
        **plain_calibration(valid),
        **plain_tokens(scored),
    }
    weights = {"verdict": 1.0, "count": 0.4, "coverage": 0.4, "echo": -0.4, "cost": -0.05, "illegal": 0.0}
    return found | plain_rewards(scored, weights)


def plain_rewards(
    scored: Sequence[Row], weights: dict[str, float], count_basis: str = "acquired", coverage_basis: str = "budget"
) -> dict[str, tuple[float, int]]:
    terms = [reward_terms(row, count_basis, coverage_basis) for row in scored]
    found = {f"reward_{name}": mean(t[name] for t in terms) for name in weights}
    return found | {"reward": mean(sum(weights[name] * t[name] for name in weights) for t in terms)}


def groups_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    named = [row for row in rows if row["condition"] != "general"]
    general = [row for row in rows if row["condition"] == "general"]
    return {prefix: chosen for prefix, chosen in (("", named), ("general_", general)) if chosen}


def same(found: Any, expected: dict[str, tuple[float, int]], where: str) -> None:
    """Compare estimates with (value, n), every name of both."""
    assert set(found) == set(expected), where
    for name, (value, n) in expected.items():
        assert found[name].n == n, f"{where}: {name}"
        assert found[name].value == pytest.approx(value, abs=EXACT, rel=0, nan_ok=True), f"{where}: {name}"


@cache
def summary_of(path: Path) -> WalkSummary:
    return summarise(read_episodes(path), resamples=5)


# --- the comparison ---------------------------------------------------------------------------------------------------


def test_the_episodes_are_of_every_kind(played: Played) -> None:
    rows = [row for _, rows in played.values() for row in rows]
    assert len(rows) == 5 * 3 * 8 * 2 * 2
    endings = [row["outcome"]["ending"] for row in rows]
    assert {name: endings.count(name) > 10 for name in ("answered", "invalid", "truncated", "error")} == dict.fromkeys(
        ("answered", "invalid", "truncated", "error"), True
    )
    confidences = {row["outcome"]["judgement"]["confidence"] for row in rows if row["outcome"]["judgement"]}
    assert {min(9, int(c * 10)) for c in confidences} == set(range(10))


def test_outcomes_are_what_the_traces_say(played: Played) -> None:
    """The counts that metrics read, counted anew step by step."""
    for _, rows in played.values():
        for row in rows:
            kinds = [step["kind"] for step in row["trace"]]
            outcome = row["outcome"]
            assert outcome["walks"] == sum(kind in ("new", "echo", "connector") for kind in kinds)
            assert outcome["echoes"] == kinds.count("echo")
            assert outcome["connector_moves"] == kinds.count("connector")
            assert outcome["invalid_actions"] == kinds.count("illegal") + kinds.count("unparsed")
            seen: set[str] = set()
            for step in row["trace"]:
                if step["kind"] in ("new", "echo"):
                    assert (step["kind"] == "echo") == (step["atom"] in seen)
                    seen.add(step["atom"])
            acquired = {step["source"] for step in row["trace"] if step["kind"] in ("new", "echo")}
            assert sources(row, "acquired") == len(acquired)


def test_every_metric_has_a_second_computation(played: Played) -> None:
    computed = set(plain_metrics(played["naive"][1]))
    assert computed == {*METRICS, "reward", *(f"reward_{term}" for term in papt_rubric().terms)}


@pytest.mark.parametrize("name", ["naive", "oracle", "random", "bfs", "erratic"])
def test_every_figure_of_a_summary(played: Played, name: str) -> None:
    path, rows = played[name]
    summary = summary_of(path)
    expected = {p + k: v for p, chosen in groups_of(rows).items() for k, v in plain_metrics(chosen).items()}
    same(summary.metrics, expected, name)
    for condition, found in summary.by_condition.items():
        same(found, plain_metrics([row for row in rows if row["condition"] == condition]), condition)
    for setting, found in summary.by_setting.items():
        chosen = [row for row in rows if f"{row['mitigation']}/B{row['outcome']['budget']}" == setting]
        expected = {p + k: v for p, part in groups_of(chosen).items() for k, v in plain_metrics(part).items()}
        same(found, expected, setting)
    endings = [row["outcome"]["ending"] for row in rows]
    assert summary.coverage.errors == endings.count("error") > 0
    assert summary.coverage.scored == len(rows) - endings.count("error")


@pytest.mark.parametrize("name", ["random", "erratic"])
def test_every_figure_by_kind_of_evidence(played: Played, name: str) -> None:
    path, rows = played[name]
    kinds = {
        "balanced": ("C1",),
        "redundant_support": ("C2", "C2R"),
        "distinct_support": ("C3", "C4"),
        "general": ("general",),
    }
    by_group = summary_of(path).by_group
    assert set(by_group) == {"M0/B3", "M0/B6", "M1/B3", "M1/B6"}
    for setting, groups in by_group.items():
        assert list(groups) == list(kinds)
        for group, found in groups.items():
            chosen = [
                row
                for row in rows
                if row["condition"] in kinds[group] and f"{row['mitigation']}/B{row['outcome']['budget']}" == setting
            ]
            expected = plain_metrics(chosen)
            same(found, {metric: expected[metric] for metric in found}, f"{setting}, {group}")


@pytest.mark.parametrize("name", ["naive", "erratic"])
def test_every_bin_of_reliability(played: Played, name: str) -> None:
    path, rows = played[name]
    reliability = summary_of(path).reliability
    assert set(reliability) == set(groups_of(rows))
    for prefix, chosen in groups_of(rows).items():
        valid = [row for row in chosen if row["outcome"]["ending"] == "answered"]
        assert reliability[prefix].n == len(valid)
        for members, found in zip(plain_bins(valid), reliability[prefix].bins, strict=True):
            assert found.n == len(members)
            stated, _ = mean(row["outcome"]["judgement"]["confidence"] for row in members)
            assert found.confidence == pytest.approx(stated, abs=EXACT, nan_ok=True)
            assert found.accuracy.value == pytest.approx(mean(map(is_right, members))[0], abs=EXACT, nan_ok=True)


@pytest.mark.parametrize(
    ("variant", "dropped", "count_basis", "coverage_basis"),
    [
        ("no_echo", ["echo"], "acquired", "budget"),
        ("no_coverage", ["coverage"], "available", "budget"),
        ("verdict_only", ["count", "coverage", "echo", "cost", "illegal"], "acquired", "available"),
        ("full", [], "available", "available"),
    ],
)
def test_rewards_of_other_rubrics(
    played: Played, variant: Any, dropped: list[str], count_basis: Any, coverage_basis: Any
) -> None:
    """Scoring stored episodes again under another objective."""
    path, rows = played["erratic"]
    weights = {"verdict": 1.0, "count": 0.4, "coverage": 1.2, "echo": -0.4, "cost": -0.05, "illegal": -0.5}
    rubric = papt_rubric(variant, weights=weights, count_basis=count_basis, coverage_basis=coverage_basis)
    found = rescore(path, rubric, resamples=5).metrics
    for prefix, chosen in groups_of(rows).items():
        scored = [row for row in chosen if row["outcome"]["ending"] != "error"]
        left = {name: 0.0 if name in dropped else w for name, w in weights.items()}
        for name, (value, n) in plain_rewards(scored, left, count_basis, coverage_basis).items():
            assert found[prefix + name].value == pytest.approx(value, abs=EXACT)
            assert found[prefix + name].n == n


def pairs_of(first: Sequence[Row], second: Sequence[Row]) -> tuple[list[Row], list[Row], int]:
    """Rows of the same task in which neither is an error, and how many were left out."""
    kept: tuple[list[Row], list[Row]] = [], []
    left_out = 0
    for row in first:
        key = (row["instance_id"], row["outcome"]["budget"], row["member"], row["mitigation"])
        (other,) = [
            r for r in second if (r["instance_id"], r["outcome"]["budget"], r["member"], r["mitigation"]) == key
        ]
        if "error" in (row["outcome"]["ending"], other["outcome"]["ending"]):
            left_out += 1
            continue
        kept[0].append(row)
        kept[1].append(other)
    return kept[0], kept[1], left_out


def test_differences_and_sign_counts_of_policies(played: Played) -> None:
    """Pairwise differences, and on how many base claims each policy's own figure is the higher one."""
    names = ("naive", "erratic")
    episodes = {name: read_episodes(played[name][0]) for name in names}
    for comparison in compare_policies(episodes, resamples=20):
        prefix = "general_" if comparison.metric.startswith("general_") else ""
        metric = comparison.metric.removeprefix(prefix)
        first, second = (groups_of(played[n][1])[prefix] for n in (comparison.first, comparison.second))
        a, b, left_out = pairs_of(first, second)
        (value_a, n_a), (value_b, n_b) = (plain_metrics(rows)[metric] for rows in (a, b))
        assert comparison.paired.difference.value == pytest.approx(value_a - value_b, abs=EXACT)
        assert comparison.paired.difference.n == min(n_a, n_b)
        assert comparison.paired.left_out == left_out > 0
        signs = [0, 0, 0]
        for claim in {row["claim_id"] for row in a}:
            here, there = ([r for r in rows if r["claim_id"] == claim] for rows in (a, b))
            gap = plain_metrics(here)[metric][0] - plain_metrics(there)[metric][0]
            if not math.isnan(gap):
                signs[0 if gap > EXACT else 1 if gap < -EXACT else 2] += 1
        sign = comparison.paired.sign
        assert [sign.wins, sign.losses, sign.ties] == signs, comparison.metric


def test_figures_over_several_seeds_are_means_of_the_seeds(played: Played) -> None:
    names = ("naive", "random", "erratic")
    runs = [split_by_prefix(read_episodes(played[name][0]))["general_"] for name in names]
    start = split_by_prefix(read_episodes(played["bfs"][0]))["general_"]
    rows = [groups_of(played[name][1])["general_"] for name in names]
    others = groups_of(played["bfs"][1])["general_"]
    for metric in metrics_named(["accuracy", "balanced_accuracy", "echo_rate", "source_recall", "count_mae", "ece"]):
        figures = [plain_metrics(chosen)[metric.name] for chosen in rows]
        found = crossed_estimate(runs, metric, resamples=5)
        assert found.by_seed == pytest.approx([value for value, _ in figures], abs=EXACT)
        assert found.overall.value == pytest.approx(sum(value for value, _ in figures) / 3, abs=EXACT)
        assert found.overall.n == sum(n for _, n in figures)
        gaps = []
        for chosen in rows:
            a, b, _ = pairs_of(chosen, others)
            gaps.append(plain_metrics(a)[metric.name][0] - plain_metrics(b)[metric.name][0])
        difference = crossed_difference(runs, [start], metric, resamples=5)
        assert difference.by_seed == pytest.approx(gaps, abs=EXACT)
        assert difference.overall.value == pytest.approx(sum(gaps) / 3, abs=EXACT)


def test_classes_and_brier_by_scikit_learn(played: Played) -> None:
    """A third route."""
    sklearn = importlib.import_module("sklearn.metrics")  # no types come with it
    for path, rows in played.values():
        scored = [r for r in groups_of(rows)[""] if r["outcome"]["ending"] != "error"]
        gold, said = [r["outcome"]["gold"] for r in scored], [verdict_of(r) or "none" for r in scored]
        found = summary_of(path).metrics
        figures = sklearn.precision_recall_fscore_support(gold, said, labels=CLASSES, zero_division=0)
        for place, verdict in enumerate(CLASSES):
            for name, values in zip(("precision", "recall", "f1"), figures, strict=False):
                estimate = found[f"{name}_{verdict.lower()}"]
                if estimate.n:
                    assert estimate.value == pytest.approx(float(values[place]), abs=EXACT)
        valid = [r for r in scored if r["outcome"]["judgement"]]
        stated = [r["outcome"]["judgement"]["confidence"] for r in valid]
        brier = sklearn.brier_score_loss([is_right(r) for r in valid], stated, pos_label=1.0)
        assert found["brier"].value == pytest.approx(float(brier), abs=EXACT)


def test_a_pair_of_equal_policies_differs_in_nothing(played: Played) -> None:
    episodes = read_episodes(played["erratic"][0])
    for metric in METRICS.values():
        found = paired_difference(episodes, episodes, metric, resamples=20)
        assert found.sign.wins == found.sign.losses == 0
        if found.difference.has_interval:
            assert (found.difference.low, found.difference.high, found.p, found.sign.p) == (0.0, 0.0, 1.0, 1.0)
