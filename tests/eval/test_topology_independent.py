"""Every figure of the topology harness a second time, from the stored JSON lines alone: plain loops, by definition.

Nothing of the evaluation floor computes here; rows are dictionaries. Runs are drawn at random, of every ending.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.eval.topology_records import RULE, random_runs

from provgym.eval.estimate import Estimate
from provgym.eval.topology import rescore_methods
from provgym.eval.topology_estimates import Resampling
from provgym.eval.topology_metrics import COMPARED, HEADLINE, METRICS
from provgym.eval.topology_result import TopologyEvalResult
from provgym.eval.topology_seeds import pool_methods
from provgym.eval.topology_store import runs_file, write_runs

Row = dict[str, Any]
Figure = tuple[float, int]
EXACT = 1e-9
METHODS = ("kgat", "single_agent", "debate", "no_evidence_at_inference", "self_consistency_matched")
FEW = Resampling(resamples=5)


def write_seed(folder: Path, seed: int) -> Path:
    for method in METHODS:
        write_runs(runs_file(folder, method), random_runs(method, seed))
    return folder


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[Row]], TopologyEvalResult]:
    folder = write_seed(tmp_path_factory.mktemp("evaluation"), 1)
    rows = {
        method: [json.loads(line) for line in runs_file(folder, method).read_text("ascii").split("\n")[:-1]]
        for method in METHODS
    }
    return rows, rescore_methods(folder, RULE, resampling=FEW)


# --- the second computation -------------------------------------------------------------------------------------------


def mean(values: Iterable[float]) -> Figure:
    kept = list(values)
    return (sum(kept) / len(kept) if kept else math.nan), len(kept)


def is_right(row: Row) -> bool:
    return bool(row["ending"] == "answered" and row["answer"] == row["gold"])


def tokens(row: Row) -> int:
    return int(row["prompt_tokens"] + row["completion_tokens"])


def score(row: Row) -> float:
    return float(is_right(row)) - 1.0 * (0.04 * len(row["roles"]) + 0.01 * len(row["edges"]))


def value_of(row: Row, name: str) -> float:
    """The value of one run; NaN where it is not scored."""
    if row["ending"] == "error":
        return math.nan
    counted = {
        "tokens": tokens(row),
        "prompt_tokens": row["prompt_tokens"],
        "completion_tokens": row["completion_tokens"],
        "paid_tokens": row["paid_tokens"],
    }
    if name in counted:
        return float(counted[name]) if row["is_counted"] else math.nan
    plain = {
        "accuracy": 1.0 if is_right(row) else 0.0,
        "score": score(row),
        "calls": row["calls"],
        "nodes": len(row["roles"]),
        "edges": len(row["edges"]),
        "latency_s": row["latency_s"],
        "paid_calls": row["calls"] - row["cached_calls"],
        "samples": row["samples"],
        "unanswered_rate": 1.0 if row["ending"] in ("invalid", "truncated") else 0.0,
        "stopped_by_verifier": 1.0 if row["reason"] == "stopped_by_verifier" else 0.0,
    }
    return float(plain[name])


def plain_metrics(rows: Sequence[Row]) -> dict[str, Figure]:
    return {name: mean(v for row in rows if not math.isnan(v := value_of(row, name))) for name in METRICS}


def plain_teams(rows: Sequence[Row]) -> dict[str, Any]:
    roles = sorted({role for row in rows for role in row["roles"]})
    found: dict[str, Any] = {}
    for kind in ("agreement", "conflict", "irrelevance"):
        chosen = [row for row in rows if row["evidence_kind"] == kind]
        sizes = sorted({len(row["roles"]) for row in chosen})
        found[kind] = {
            "nodes": mean(len(row["roles"]) for row in chosen),
            "edges": mean(len(row["edges"]) for row in chosen),
            "roles": {role: mean(row["roles"].count(role) for row in chosen) for role in roles},
            "sizes": {str(s): sum(len(row["roles"]) == s for row in chosen) / len(chosen) for s in sizes},
        }
    return found


def plain_changes(rows: Sequence[Row]) -> dict[str, int]:
    found = dict.fromkeys(("kept_right", "kept_wrong", "right_to_wrong", "wrong_to_right", "no_answer_before"), 0)
    for row in rows:
        if row["ending"] == "error":
            continue
        for check in row["checks"]:
            before, after = check["before"], check["after"]
            if before is None:
                found["no_answer_before"] += 1
            elif before == row["gold"]:
                found["kept_right" if after == row["gold"] else "right_to_wrong"] += 1
            else:
                found["wrong_to_right" if after == row["gold"] else "kept_wrong"] += 1
    return found


def paired(first: Sequence[Row], second: Sequence[Row], name: str) -> list[tuple[float, float]]:
    found = []
    for a in first:
        (b,) = [r for r in second if (r["task_id"], r["replicate"]) == (a["task_id"], a["replicate"])]
        values = value_of(a, name), value_of(b, name)
        if not any(map(math.isnan, values)):
            found.append(values)
    return found


def same(found: Estimate, expected: Figure, where: str) -> None:
    assert found.n == expected[1], where
    assert found.value == pytest.approx(expected[0], abs=EXACT, rel=0, nan_ok=True), where


# --- the comparison ---------------------------------------------------------------------------------------------------

Stored = tuple[dict[str, list[Row]], TopologyEvalResult]


def test_the_runs_are_of_every_kind(stored: Stored) -> None:
    rows = [row for found in stored[0].values() for row in found]
    assert {row["ending"] for row in rows} == {"answered", "invalid", "truncated", "error"}
    assert {row["is_counted"] for row in rows} == {True, False}
    assert any(row["reason"] for row in rows)
    assert len(rows) == len(METHODS) * 6 * 3 * 2


@pytest.mark.parametrize("method", METHODS)
def test_every_metric_of_every_method_and_kind(stored: Stored, method: str) -> None:
    rows, found = stored[0][method], stored[1].summary.methods[method]
    assert set(found.metrics) == set(METRICS)
    for name, expected in plain_metrics(rows).items():
        same(found.metrics[name], expected, name)
    for kind, metrics in found.by_kind.items():
        for name, expected in plain_metrics([r for r in rows if r["evidence_kind"] == kind]).items():
            same(metrics[name], expected, f"{kind}: {name}")


@pytest.mark.parametrize("method", METHODS)
def test_teams_verifiers_and_endings(stored: Stored, method: str) -> None:
    rows, found = stored[0][method], stored[1].summary.methods[method]
    for kind, expected in plain_teams(rows).items():
        teams = found.adaptation.to_json()[kind]
        for name in ("nodes", "edges"):
            same(Estimate.from_json(teams[name]), expected[name], f"{kind}: {name}")
        assert set(teams["roles"]) == set(expected["roles"])
        for role, figure in expected["roles"].items():
            same(Estimate.from_json(teams["roles"][role]), figure, f"{kind}: {role}")
        assert teams["sizes"] == pytest.approx(expected["sizes"], abs=EXACT)
    hard = [r for r in rows if r["evidence_kind"] != "agreement"]
    easy = [r for r in rows if r["evidence_kind"] == "agreement"]
    gap = mean(len(r["roles"]) for r in hard)[0] - mean(len(r["roles"]) for r in easy)[0]
    same(found.adaptation.difference["nodes"], (gap, len(rows)), "nodes, hard minus easy")
    changes = plain_changes(rows)
    assert found.verifier.changes == changes
    right = changes["kept_right"] + changes["right_to_wrong"]
    wrong = changes["kept_wrong"] + changes["wrong_to_right"]
    same(found.verifier.spoiled, (changes["right_to_wrong"] / right if right else math.nan, right), "spoiled")
    same(found.verifier.repaired, (changes["wrong_to_right"] / wrong if wrong else math.nan, wrong), "repaired")
    stopped = [r for r in rows if r["reason"] == "stopped_by_verifier"]
    assert (found.verifier.stopped, found.verifier.stopped_answered) == (
        len(stopped),
        sum(r["ending"] == "answered" for r in stopped),
    )
    assert found.endings == {
        e: sum(r["ending"] == e for r in rows) for e in ("answered", "invalid", "truncated", "error")
    }
    assert found.coverage.scored == sum(r["ending"] != "error" for r in rows)


def test_every_comparison(stored: Stored) -> None:
    rows, summary = stored[0], stored[1].summary
    assert len(summary.comparisons) == (len(METHODS) - 1) * len(COMPARED)
    for comparison in summary.comparisons:
        pairs = paired(rows["kgat"], rows[comparison.second], comparison.metric)
        expected = (sum(a for a, _ in pairs) / len(pairs) - sum(b for _, b in pairs) / len(pairs), len(pairs))
        same(comparison.paired.difference, expected, f"{comparison.second} {comparison.metric}")
        assert comparison.paired.left_out == len(rows["kgat"]) - len(pairs)
    assert summary.non_inferiority is not None
    for name, ratio in (("tokens", "tokens_ratio"), ("calls", "calls_ratio"), ("latency_s", "latency_ratio")):
        pairs = paired(rows["kgat"], rows["debate"], name)
        expected = (sum(a for a, _ in pairs) / sum(b for _, b in pairs), len(pairs))
        same(getattr(summary.non_inferiority, ratio), expected, ratio)
    pairs = paired(rows["kgat"], rows["no_evidence_at_inference"], "accuracy")
    gain = (sum(a - b for a, b in pairs) / len(pairs), len(pairs))
    same(summary.evidence_gains["kgat"], gain, "open against closed book")
    assert set(summary.evidence_gains) == {"kgat"}


def test_the_summary_map_holds_what_a_run_promises(stored: Stored) -> None:
    rows, result = stored
    found = json.loads(json.dumps(result.to_json(), allow_nan=False))
    for method in METHODS:
        expected = plain_metrics(rows[method])
        assert tuple(found[method]) == HEADLINE
        for name in HEADLINE:
            assert set(found[method][name]) == {"value", "low", "high", "n"}
            assert found[method][name]["value"] == pytest.approx(expected[name][0], abs=EXACT)
            assert found[method][name]["n"] == expected[name][1]
    assert set(found["adaptation"]) == {"agreement", "conflict", "irrelevance", "difference"}
    assert set(found) == {*METHODS, "adaptation", "details"}


def test_pooled_seeds(stored: Stored) -> None:
    seeds = [{m: random_runs(m, seed) for m in METHODS} for seed in (1, 2, 3)]
    rows = [{m: [run.to_json() for run in runs] for m, runs in seed.items()} for seed in seeds]
    pooled = pool_methods(seeds, RULE, reference="kgat", resampling=FEW)
    for method in METHODS:
        for name in HEADLINE:
            by_seed = [plain_metrics(seed[method])[name] for seed in rows]
            found = pooled.methods[method][name]
            assert found.by_seed == pytest.approx([value for value, _ in by_seed], abs=EXACT)
            same(found.overall, (sum(v for v, _ in by_seed) / 3, sum(n for _, n in by_seed)), f"{method} {name}")
            if method == "kgat" or name not in COMPARED:
                continue
            pairs = [paired(seed["kgat"], seed[method], name) for seed in rows]
            expected = [sum(a - b for a, b in p) / len(p) for p in pairs]
            assert pooled.differences[method][name].by_seed == pytest.approx(expected, abs=EXACT)
    pairs = [paired(seed["kgat"], seed["debate"], "tokens") for seed in rows]
    ratios = [sum(a for a, _ in p) / sum(b for _, b in p) for p in pairs]
    assert pooled.tokens_ratio is not None
    assert pooled.tokens_ratio.by_seed == pytest.approx(ratios, abs=EXACT)
    gaps = []
    for seed in rows:
        hard = [len(r["roles"]) for r in seed["kgat"] if r["evidence_kind"] != "agreement"]
        easy = [len(r["roles"]) for r in seed["kgat"] if r["evidence_kind"] == "agreement"]
        gaps.append(mean(hard)[0] - mean(easy)[0])
    assert pooled.adaptation["nodes"].by_seed == pytest.approx(gaps, abs=EXACT)
    for kind, figures in pooled.teams.kinds.items():
        rows_of_kind = [[r for r in seed["kgat"] if r["evidence_kind"] == kind] for seed in rows]
        sizes = [[len(r["roles"]) for r in chosen] for chosen in rows_of_kind]
        assert figures["nodes"].by_seed == pytest.approx([mean(s)[0] for s in sizes], abs=EXACT)
        shares = [sum(s.count(4) / len(s) for s in sizes) / 3]
        assert [pooled.teams.sizes[kind].get(4, 0.0)] == pytest.approx(shares, abs=EXACT)


def test_rescoring_under_other_prices_executes_nothing(stored: Stored, tmp_path: Path) -> None:
    folder = write_seed(tmp_path, 1)
    free = rescore_methods(folder, type(RULE)(type(RULE.weights)(0.0, 0.0), 1.0, "raw"), resampling=FEW)
    for method, found in free.summary.methods.items():
        assert found.metrics["score"].value == found.metrics["accuracy"].value, method
    again = rescore_methods(folder, RULE, resampling=FEW)
    assert json.dumps(again.to_json()) == json.dumps(stored[1].to_json())
