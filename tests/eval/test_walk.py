"""The harness end to end with scripted policies: files, resuming, errors, re-scoring."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from provgym.eval.episode_store import read_episodes, to_line
from provgym.eval.estimate import Estimate
from provgym.eval.finished import unanswered_note
from provgym.eval.metrics import HEADLINE
from provgym.eval.walk import evaluate, rescore
from provgym.eval.walk_config import GraphEchoClaims, ScifactClaims, WalkEvalConfig, episode_key
from provgym.eval.walk_result import WalkEvalResult
from provgym.eval.walk_summary import summarise
from provgym.generators.episode import Episode, EpisodeTask, Tokens
from provgym.generators.scripted import ScriptedPolicy, echo_avoiding_oracle, naive_path_counter
from provgym.rewards.rubric import papt_rubric

CONFIG = WalkEvalConfig(claims=GraphEchoClaims(seed=1, splits={"test": 6}), resamples=100)
NAIVE = ScriptedPolicy("naive", naive_path_counter)


def same_figures(one: WalkEvalResult, other: WalkEvalResult) -> None:
    assert one.summary.to_json() == other.summary.to_json()
    assert one.episodes == other.episodes


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> WalkEvalResult:
    """An evaluation that nothing interrupted."""
    return evaluate(CONFIG, NAIVE, tmp_path_factory.mktemp("whole"), parquet=True)


def test_files_that_are_left_behind(whole: WalkEvalResult) -> None:
    names = sorted(str(p.relative_to(whole.out_dir)) for p in whole.out_dir.rglob("*") if p.is_file())
    assert names == [
        "config.yaml",
        "episodes.jsonl",
        "episodes.parquet",
        "plots/conditions.png",
        "plots/metrics.png",
        "plots/reliability.png",
        "summary.json",
    ]
    assert read_episodes(whole.out_dir / "episodes.jsonl") == list(whole.episodes)
    assert read_episodes(whole.out_dir / "episodes.parquet") == list(whole.episodes)
    stored = yaml.safe_load((whole.out_dir / "config.yaml").read_text())
    assert WalkEvalConfig.model_validate(stored["walk_eval"]) == CONFIG
    assert stored["config_hash"] == whole.config_hash


def test_summary_holds_what_a_script_looks_for(whole: WalkEvalResult) -> None:
    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not strict JSON")

    summary = json.loads((whole.out_dir / "summary.json").read_text(), parse_constant=refuse)
    for name in HEADLINE:
        for prefix in ("", "general_"):
            assert set(summary["metrics"][prefix + name]) == {"value", "low", "high", "n"}
    assert summary["metrics"]["accuracy"]["n"] == 30
    assert summary["metrics"]["general_accuracy"]["n"] == 6
    assert summary["conditions"] == ["C1", "C2", "C3", "C4", "C2R", "general"]
    assert (summary["seed"], summary["split"], summary["world_size"]) == (42, "test", 1)
    assert summary["by_condition"]["C3"]["accuracy"]["n"] == 6
    assert summary["by_setting"]["M1/B6"] == summary["metrics"]
    assert summary["total_endings"] == {"answered": 36, "invalid": 0, "truncated": 0, "error": 0}
    assert summary["coverage"] == {"episodes": 36, "scored": 36, "errors": 0, "share": 1.0}
    probes = {p["name"]: p["accuracy"] for p in summary["probes"]["conditions"]}
    assert probes == pytest.approx({"constant MIXED": 0.6, "structure": 0.8, "structure + 1 node": 0.93333333})
    assert summary["metrics"]["sampled_tokens"] == {"value": None, "low": None, "high": None, "n": 0}
    assert Estimate.from_json(summary["metrics"]["accuracy"]) == whole.metrics["accuracy"]


def test_episodes_stand_in_task_order_whatever_order_they_ended_in(
    whole: WalkEvalResult, flaky: Any, tmp_path: Path
) -> None:
    backwards = evaluate(CONFIG, flaky(NAIVE), tmp_path, plots=False)
    same_figures(whole, backwards)


@pytest.mark.parametrize("dies_after", [0, 1, 17, 35])
def test_interrupted_evaluation_goes_on_with_what_is_missing(
    whole: WalkEvalResult, flaky: Any, tmp_path: Path, dies_after: int
) -> None:
    """Kind: one failure loses its siblings (kill, resume: nothing is played twice)."""
    dying = flaky(NAIVE, dies_after=dies_after)
    with pytest.raises(ConnectionError) as caught:
        evaluate(CONFIG, dying, tmp_path, plots=False)
    assert f"{dies_after} of 36 episodes are kept" in caught.value.__notes__[0]
    assert not (tmp_path / "summary.json").exists()
    second = flaky(NAIVE)
    resumed = evaluate(CONFIG, second, tmp_path, plots=False)
    same_figures(whole, resumed)
    assert len(second.played) == 36 - dies_after
    assert not set(second.played) & set(dying.played)
    assert not list(tmp_path.glob("*part*"))


def test_half_written_line_is_played_again(whole: WalkEvalResult, flaky: Any, tmp_path: Path) -> None:
    """Kind: one failure loses its siblings (half-written last line repaired)."""
    with pytest.raises(ConnectionError):
        evaluate(CONFIG, flaky(NAIVE, dies_after=5), tmp_path, plots=False)
    (part,) = tmp_path.glob("*part*")
    part.write_bytes(part.read_bytes()[:-30])
    second = flaky(NAIVE)
    same_figures(whole, evaluate(CONFIG, second, tmp_path, plots=False))
    assert len(second.played) == 36 - 4


def test_finished_evaluation_is_not_played_again(whole: WalkEvalResult, flaky: Any, tmp_path: Path) -> None:
    evaluate(CONFIG, NAIVE, tmp_path, plots=False)
    again = flaky(NAIVE)
    same_figures(whole, evaluate(CONFIG, again, tmp_path, plots=False))
    assert again.played == []


def test_cut_between_episodes_and_summary(whole: WalkEvalResult, flaky: Any, tmp_path: Path) -> None:
    """A kill after ``episodes.jsonl`` and before the parts were removed: both hold every episode."""
    evaluate(CONFIG, NAIVE, tmp_path, plots=False)
    (tmp_path / "summary.json").unlink()
    part = b"".join(to_line(e) for e in whole.episodes[:9])
    (tmp_path / "episodes.part-00003.jsonl").write_bytes(part)
    again = flaky(NAIVE)
    same_figures(whole, evaluate(CONFIG, again, tmp_path, plots=False))
    assert again.played == []
    assert (tmp_path / "summary.json").exists()


def test_folder_of_another_evaluation_is_refused_by_name(tmp_path: Path) -> None:
    evaluate(CONFIG, NAIVE, tmp_path, plots=False, fingerprint="aa")
    with pytest.raises(ValueError, match=r"config\.yaml holds an evaluation with config_hash"):
        evaluate(CONFIG.model_copy(update={"seed": 1}), NAIVE, tmp_path, fingerprint="aa")
    with pytest.raises(ValueError, match="with policy 'naive', this one has 'oracle'"):
        evaluate(CONFIG, ScriptedPolicy("oracle", echo_avoiding_oracle), tmp_path, fingerprint="aa")
    with pytest.raises(ValueError, match="with fingerprint 'aa', this one has 'bb'"):
        evaluate(CONFIG, NAIVE, tmp_path, fingerprint="bb")
    other = GraphEchoClaims(seed=9, splits={"test": 6})
    from provgym.eval.walk_config import load_instances

    changed = load_instances(CONFIG.model_copy(update={"claims": other})).instances
    with pytest.raises(ValueError, match="with data_hash"):
        evaluate(CONFIG, NAIVE, tmp_path, fingerprint="aa", instances=changed)


def test_stored_episode_of_another_task_is_named(whole: WalkEvalResult, tmp_path: Path) -> None:
    small = CONFIG.model_copy(update={"conditions": ("C1",), "general_draws": 0})
    (tmp_path / "episodes.part-00000.jsonl").write_bytes(to_line(whole.episodes[1]))
    with pytest.raises(ValueError, match=r"part-00000\.jsonl holds an episode .*/C2"):
        evaluate(small, NAIVE, tmp_path, plots=False)


def test_errors_are_counted_never_scored_and_played_again(flaky: Any, tmp_path: Path) -> None:
    """Kind: endpoint failure scored as wrong. 10 claims, 2 time out, 8 right: 8 of 8, coverage 80 %."""
    config = CONFIG.model_copy(
        update={
            "claims": GraphEchoClaims(seed=1, splits={"test": 10}),
            "conditions": ("C1",),
            "general_draws": 0,
        }
    )
    oracle = ScriptedPolicy("oracle", echo_avoiding_oracle)
    result = evaluate(config, flaky(oracle, errors=[3, 7]), tmp_path, plots=False)
    accuracy = result.metrics["accuracy"]
    assert (accuracy.value, accuracy.n) == (1.0, 8)
    assert result.summary.coverage.share == 0.8
    assert result.summary.endings["C1"]["error"] == 2
    (note,) = result.notes
    assert note.startswith("2 of 10 episodes ended in error and are not scored: coverage 80%; ")
    kept = evaluate(config, flaky(oracle), tmp_path, plots=False, retry_errors=False)
    assert kept.summary.coverage.errors == 2
    retry = flaky(oracle)
    healed = evaluate(config, retry, tmp_path, plots=False)
    assert len(retry.played) == 2
    assert (healed.metrics["accuracy"].n, healed.summary.coverage.errors) == (10, 0)


def silent(env: Any, rng: Any) -> str:
    """A policy that stops with something that is no judgement."""
    return "stop, I think"


def test_a_policy_without_a_single_judgement_is_named(tmp_path: Path, make_episode: Any) -> None:
    """Accuracy 0 of a policy that writes what nobody can read says nothing of how it judges."""
    result = evaluate(CONFIG, ScriptedPolicy("silent", silent), tmp_path)
    scored = len(result.episodes)
    (note,) = result.notes
    assert note.startswith(f"not one of {scored} scored episodes ends with a judgement (")
    assert note in json.loads((tmp_path / "summary.json").read_text())["notes"]
    answered, invalid = make_episode(), make_episode("c1", answer=None)
    truncated, error = make_episode("c2", answer=None, ending="truncated"), make_episode(answer=None, ending="error")
    assert unanswered_note([answered, invalid]) == unanswered_note([error]) == unanswered_note([]) == ()
    (mixed,) = unanswered_note([invalid, truncated, truncated, error])
    assert "not one of 3 scored episodes ends with a judgement (1 invalid, 2 truncated)" in mixed


def test_nothing_to_play_is_not_available(tmp_path: Path) -> None:
    """Kind: SciFact without evidence (a file of only such lines: n = 0, no crash, no invented 0 or 1)."""
    folder = tmp_path / "scifact"
    folder.mkdir()
    (folder / "claims_dev.jsonl").write_text('{"id": 1, "claim": "x", "evidence": {}, "cited_doc_ids": []}\n')
    (folder / "corpus.jsonl").write_text('{"doc_id": 1, "title": "t", "abstract": ["a"], "structured": false}\n')
    config = WalkEvalConfig(claims=ScifactClaims(folder=folder))
    result = evaluate(config, NAIVE, tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["metrics"]["accuracy"] == {"value": None, "low": None, "high": None, "n": 0}
    assert summary["coverage"]["share"] is None
    assert summary["notes"] == ["n = 0, not available: there was nothing to play"]
    assert summary["left_out"] == {"without gold evidence": 1}
    assert "n = 0" in result.data_report


def test_rescoring_equals_replaying(tmp_path: Path) -> None:
    rubric = papt_rubric("no_echo", weights={"verdict": 2.0}, count_basis="available")
    first = evaluate(CONFIG, NAIVE, tmp_path / "a", plots=False, parquet=True)
    replayed = evaluate(CONFIG, NAIVE, tmp_path / "b", plots=False, rubric=rubric)
    for path in (tmp_path / "a", tmp_path / "a" / "episodes.jsonl", tmp_path / "a" / "episodes.parquet"):
        again = rescore(path, rubric, seed=CONFIG.seed, resamples=CONFIG.resamples)
        assert _same(again.metrics, replayed.metrics)
    assert first.metrics["reward"].value != replayed.metrics["reward"].value
    by_hand = [rubric.score(e.outcome).total for e in first.episodes if e.condition != "general"]
    assert replayed.metrics["reward"].value == pytest.approx(sum(by_hand) / len(by_hand), abs=1e-12)


def _same(one: Any, other: Any) -> bool:
    return {k: v.to_json() for k, v in one.items()} == {k: v.to_json() for k, v in other.items()}


def test_settings_are_reported_apart(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"budgets": (1, 6), "mitigations": ("M0", "M3")})
    result = evaluate(config, NAIVE, tmp_path, plots=False)
    assert set(result.summary.by_setting) == {"M0/B1", "M0/B6", "M3/B1", "M3/B6"}
    assert result.summary.by_setting["M0/B1"]["walks"].value == 1.0
    one = [e for e in result.episodes if (e.mitigation, e.outcome.budget) == ("M3", 6)]
    alone = summarise(one, seed=config.seed, resamples=config.resamples)
    assert _same(alone.metrics, result.summary.by_setting["M3/B6"])


class Wrong:
    """A policy that returns something else than asked."""

    name = "wrong"

    def __init__(self, change: Callable[[list[Episode]], list[Episode]]) -> None:
        self.change = change

    def play(self, tasks: list[EpisodeTask], on_episode: Callable[[int, Episode], None] | None = None) -> list[Episode]:
        """Play without reporting, then spoil the list."""
        return self.change(NAIVE.play(tasks))


def test_policy_that_mixes_up_its_tasks_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'wrong' returned episode"):
        evaluate(CONFIG, Wrong(lambda e: e[::-1]), tmp_path / "a", plots=False)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="returned 35 episodes for 36 tasks"):
        evaluate(CONFIG, Wrong(lambda e: e[1:]), tmp_path / "b", plots=False)  # type: ignore[arg-type]


def test_policy_that_reports_nothing_is_stored_all_the_same(whole: WalkEvalResult, tmp_path: Path) -> None:
    quiet = Wrong(lambda e: e)
    assert evaluate(CONFIG, quiet, tmp_path, plots=False).episodes == whole.episodes  # type: ignore[arg-type]


def test_progress_counts_up(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    evaluate(CONFIG, NAIVE, tmp_path, plots=False, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(n, 36) for n in range(1, 37)]


def test_text_the_policy_cannot_read_is_called_not_meaningful(tmp_path: Path) -> None:
    from dataclasses import replace

    def with_unknown(episodes: list[Episode]) -> list[Episode]:
        tokens = Tokens((1,) * 8, (2, 3), (1, 0), (-1.0, 0.0))
        return [replace(e, tokens=tokens, unknown_tokens=4) for e in episodes]

    result = evaluate(CONFIG, Wrong(with_unknown), tmp_path, plots=False)  # type: ignore[arg-type]
    rate = result.metrics["unknown_token_rate"]
    assert rate.value == pytest.approx(4 / 9)
    assert rate.n == 30
    assert any("unknown_token_rate 0.444" in note and "not meaningful" in note for note in result.notes)


def test_keys_of_episodes_are_unique(whole: WalkEvalResult) -> None:
    assert len({episode_key(e) for e in whole.episodes}) == len(whole.episodes)
    assert not math.isnan(whole.metrics["accuracy"].low)


KILLED = """
import os, signal, sys
from pathlib import Path
from provgym.eval.walk import evaluate
from provgym.eval.walk_config import WalkEvalConfig
from provgym.generators.scripted import ScriptedPolicy, naive_path_counter

calls = 0

def walker(env, rng):
    global calls
    calls += 1
    if calls == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    return naive_path_counter(env, rng)

config = WalkEvalConfig.model_validate_json(sys.argv[1])
evaluate(config, ScriptedPolicy("naive", walker), Path(sys.argv[2]), plots=False)
"""


@pytest.mark.slow
def test_killed_three_times_equals_never_killed(whole: WalkEvalResult, tmp_path: Path) -> None:
    """Kind: one failure loses its siblings (kill -9 between any two actions)."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for calls, code in ((23, -9), (40, -9), (57, -9), (0, 0)):
        command = [sys.executable, "-c", KILLED, CONFIG.model_dump_json(), str(tmp_path / "out"), str(calls)]
        assert subprocess.run(command, env=environment, timeout=120).returncode == code
    for name in ("summary.json", "episodes.jsonl"):
        assert (tmp_path / "out" / name).read_bytes() == (whole.out_dir / name).read_bytes()
