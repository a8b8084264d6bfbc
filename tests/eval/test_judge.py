"""The judgement harness end to end: files, resuming, errors, probes that play, SciFact, the command."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from provgym.cli import app
from provgym.envs.provenance import Atom, EvidenceGraph, Instance
from provgym.eval.episode_store import read_episodes, to_line
from provgym.eval.judge import JudgeResult, evaluate_judge
from provgym.eval.judge_config import JUDGE_CONDITIONS, JudgeEvalConfig, build_judge_tasks, judge_eval_config
from provgym.eval.judge_policies import Judge, evaluate_judges, judge_named
from provgym.eval.judge_probes import group_probes, structure_judge
from provgym.eval.judge_report import report_on_judges, write_judge_report
from provgym.eval.walk_config import GraphEchoClaims, LoadedInstances, ScifactClaims
from provgym.generators.episode import EpisodeTask
from provgym.generators.graphecho import GraphEcho
from provgym.generators.policy_spec import PolicyOptions
from provgym.generators.scripted import ScriptedPolicy, echo_avoiding_oracle, naive_path_counter
from provgym.rewards.outcome import Verdict

CONFIG = JudgeEvalConfig(claims=GraphEchoClaims(seed=1, splits={"test": 5}), resamples=50)
NAIVE = ScriptedPolicy("naive", naive_path_counter)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> JudgeResult:
    """An evaluation that nothing interrupted."""
    return evaluate_judge(CONFIG, NAIVE, tmp_path_factory.mktemp("whole"), parquet=True)


# --- files


def test_files_that_are_left_behind(whole: JudgeResult) -> None:
    names = sorted(str(p.relative_to(whole.out_dir)) for p in whole.out_dir.rglob("*") if p.is_file())
    assert names == ["config.yaml", "episodes.jsonl", "episodes.parquet", "plots/conditions.png", "summary.json"]
    assert read_episodes(whole.out_dir / "episodes.jsonl") == list(whole.episodes)
    assert read_episodes(whole.out_dir / "episodes.parquet") == list(whole.episodes)
    stored = yaml.safe_load((whole.out_dir / "config.yaml").read_text())
    assert JudgeEvalConfig.model_validate(stored["judge_eval"]) == CONFIG


def test_summary_holds_what_a_script_looks_for(whole: JudgeResult) -> None:
    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not strict JSON")

    summary = json.loads((whole.out_dir / "summary.json").read_text(), parse_constant=refuse)
    assert (summary["kind"], summary["policy"], summary["num_claims"]) == ("judge", "naive", 5)
    assert summary["conditions"] == [*JUDGE_CONDITIONS, "general"]
    assert summary["metrics"]["accuracy"] == {"value": 0.6, "low": 0.6, "high": 0.6, "n": 25}  # right on C1, C3, C4
    assert summary["metrics"]["source_count_count_mae"]["value"] == pytest.approx(4 / 3)  # 0, 4 and 0 too many
    assert summary["metrics"]["general_accuracy"]["n"] == 5
    assert summary["metrics"]["prompt_tokens"] == {"value": None, "low": None, "high": None, "n": 0}
    assert summary["metrics"] == summary["by_mitigation"]["M1"]["metrics"]
    assert summary["shifts"]["support_shift_c1_c2"]["value"] == 1.0
    assert summary["by_mitigation"]["M1"]["endings"] == {"answered": 45, "invalid": 0, "truncated": 0, "error": 0}
    assert summary["coverage"]["share"] == 1.0
    probes = {p["name"]: p["accuracy"] for p in summary["probes"]["conflict"]}
    assert probes == pytest.approx({"constant MIXED": 0.6, "structure": 0.8, "structure + 1 node": 0.93333333})
    # C1: a claim, two routes of two nodes, two sources.
    assert summary["nodes"]["C1"] == 7.0
    assert summary["nodes"]["5S5P"] - summary["nodes"]["1S5P"] == 4.0  # source nodes alone


# --- interrupted, failed, changed


def test_an_interrupted_evaluation_goes_on(whole: JudgeResult, flaky: Any, tmp_path: Path) -> None:
    first = flaky(NAIVE, dies_after=20)
    with pytest.raises(ConnectionError, match="went away"):
        evaluate_judge(CONFIG, first, tmp_path)
    part = tmp_path / "episodes.part-00000.jsonl"
    part.write_bytes(part.read_bytes() + to_line(whole.episodes[0])[:30])  # killed in the middle of a line
    second = flaky(NAIVE)
    result = evaluate_judge(CONFIG, second, tmp_path)
    assert len(first.played) + len(second.played) == 45
    assert not set(first.played) & set(second.played)
    assert result.episodes == whole.episodes
    assert result.summary == whole.summary
    third = flaky(NAIVE)
    evaluate_judge(CONFIG, third, tmp_path)
    assert third.played == []


def test_an_error_is_never_a_wrong_answer(flaky: Any, tmp_path: Path) -> None:
    """Fault kind: endpoint failure scored as wrong."""
    config = CONFIG.model_copy(update={"conditions": ("C1", "C3"), "general_draws": 0})
    policy = flaky(ScriptedPolicy("oracle", echo_avoiding_oracle), errors=[0, 1])
    result = evaluate_judge(config, policy, tmp_path)
    found = result.summary.by_mitigation["M1"]
    assert (found.metrics["accuracy"].value, found.metrics["accuracy"].n) == (1.0, 8)
    assert (result.summary.coverage.share, found.endings["error"]) == (0.8, 2)
    assert "2 of 10 judgements ended in error" in result.notes[0]
    again = evaluate_judge(config, ScriptedPolicy("oracle", echo_avoiding_oracle), tmp_path)
    assert again.summary.coverage.share == 1.0


def test_a_judge_without_a_single_judgement_is_named(tmp_path: Path) -> None:
    """Under each mitigation apart."""
    config = CONFIG.model_copy(update={"conditions": ("C1",), "general_draws": 0, "mitigations": ("M0", "M1")})
    result = evaluate_judge(config, ScriptedPolicy("silent", lambda env, rng: "no idea"), tmp_path)
    assert [note[:44] for note in result.notes] == [
        f"{name}: not one of 5 scored episodes ends with a "[:44] for name in ("M0", "M1")
    ]


def test_a_folder_belongs_to_one_evaluation(whole: JudgeResult) -> None:
    other = CONFIG.model_copy(update={"seed": 43})
    with pytest.raises(ValueError, match=r"config_hash .* choose another folder"):
        evaluate_judge(other, NAIVE, whole.out_dir)
    changed = LoadedInstances(GraphEcho.generate(2, {"test": 5}).instances("test", ["C1"]))
    with pytest.raises(ValueError, match="data_hash"):
        evaluate_judge(CONFIG, NAIVE, whole.out_dir, loaded=changed)


def test_nothing_to_judge_is_not_available(tmp_path: Path) -> None:
    result = evaluate_judge(CONFIG, NAIVE, tmp_path, loaded=LoadedInstances([]))
    assert result.notes == ("n = 0, not available: there was nothing to judge",)
    assert json.loads((tmp_path / "summary.json").read_text())["metrics"] == {}
    report = report_on_judges({"naive": result})
    write_judge_report({"naive": result}, report, tmp_path)


# --- configuration


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"conditions": ["C9"]}, "condition 'C9' is unknown"),
        ({"conditions": [], "general_draws": 0}, "there is nothing to play"),
        ({"samples": 3}, "samples=3 with greedy decoding"),
        ({"mitigations": ["M1", "M1"]}, "names something twice"),
        ({"budgets": [3]}, "budgets: Extra inputs are not permitted"),
        ({"max_prompt_characters": 10}, "max_prompt_characters: Input should be greater than or equal to 1000"),
        ({"seed": "no"}, "seed: Input should be a valid integer"),
    ],
)
def test_bad_configuration_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    """Fault kind: config typing."""
    with pytest.raises(ValueError, match=message):
        judge_eval_config([], None, given)


def test_a_run_brings_its_claims_and_how_they_are_shown() -> None:
    run = {
        "name": "r",
        "data": {"seed": 5, "train_claims": 1, "dev_claims": 1, "test_claims": 3},
        "walk": {"mitigation": "M2", "source_labels": "shuffled", "moves": "aliases"},
        "evaluation": {"conditions": ["C1"], "general_draws": 2, "budget": 3},
    }
    config = judge_eval_config([run], None, {})
    assert config.claims == GraphEchoClaims(seed=5, splits={"train": 1, "dev": 1, "test": 3})
    assert (config.mitigations, config.source_labels, config.general_draws) == (("M2",), "shuffled", 2)
    assert config.conditions is None  # a judgement asks for all of its own
    assert judge_eval_config([run], None, {"mitigations": ["M0"]}).mitigations == ("M0",)


def test_tasks_are_keyed_by_claim_instance_and_mitigation() -> None:
    config = CONFIG.model_copy(update={"mitigations": ("M0", "M1"), "decoding": "sampled", "samples": 2})
    tasks = build_judge_tasks(config, GraphEcho.generate(1, {"test": 2}).instances("test", ["C1", "C2"]))
    assert len(tasks) == 2 * 2 * 2 * 2
    by_claim: dict[str, set[int]] = {}
    for task in tasks:
        by_claim.setdefault(task.instance.base_claim.claim_id, set()).add(task.presentation_seed)
    assert all(len(seeds) == 1 for seeds in by_claim.values())  # one order of routes per claim
    assert len({task.presentation_seed for task in tasks}) == 2
    assert len({task.sampling_seed for task in tasks}) == len(tasks)
    assert [task.budget for task in tasks[:2]] == [2, 2]


# --- who judges


def play_structure(instances: list[Instance], *, reads_node: bool) -> list[tuple[str, Verdict]]:
    tasks = build_judge_tasks(CONFIG, instances)
    judge = structure_judge(instances, reads_node=reads_node)
    episodes = ScriptedPolicy("structure", judge).play(tasks)
    return [(e.condition, e.outcome.judgement.verdict) for e in episodes if e.outcome.judgement is not None]


def test_structure_judges_answer_as_their_probes_expect() -> None:
    """On the five conditions: two sources are always MIXED; six are a coin without a node, and 5 to 1 with one."""
    instances = GraphEcho.generate(3, {"test": 60}).instances("test", ["C1", "C2", "C3", "C4", "C2R"])
    plain, one_node = (play_structure(instances, reads_node=r) for r in (False, True))
    for answers in (plain, one_node):
        assert {v for c, v in answers if c in ("C1", "C2", "C2R")} == {Verdict.MIXED}
        assert {v for c, v in answers if c in ("C3", "C4")} == {Verdict.SUPPORT, Verdict.REFUTE}
    gold = {"C3": Verdict.SUPPORT, "C4": Verdict.REFUTE}
    for answers, chance in ((plain, 1 / 2), (one_node, 5 / 6)):
        right = Counter(v is gold[c] for c, v in answers if c in gold)
        spread = 4 * (120 * chance * (1 - chance)) ** 0.5  # four standard deviations
        assert right[True] == pytest.approx(120 * chance, abs=spread)
    assert group_probes(instances)["conflict"][1].accuracy == pytest.approx(0.8)


def test_the_structure_judge_reads_no_text_and_no_stance() -> None:
    instances = GraphEcho.generate(3, {"test": 5}).instances("test", ["C1", "C3", "C4", "general"])
    judge = structure_judge(instances, reads_node=False)

    def answers(tasks: list[EpisodeTask]) -> list[str]:
        return [episode.turns[0].action for episode in ScriptedPolicy("s", judge).play(tasks)]

    tasks = build_judge_tasks(CONFIG, instances)
    blind = build_judge_tasks(CONFIG, [_with_texts(i, "The text is gone.") for i in instances])
    assert answers(tasks) == answers(blind)
    by_condition = Counter((t.instance.condition, a) for t, a in zip(tasks, answers(tasks), strict=True))
    assert {a.split()[3] for (c, a) in by_condition if c == "C1"} == {"MIXED"}


def _with_texts(instance: Instance, text: str) -> Instance:
    graph = instance.graph
    atoms = tuple(Atom(a.atom_id, a.source_id, a.stance, text) for a in graph.atoms)
    changed = EvidenceGraph(graph.claims, atoms, graph.routes)
    return Instance(instance.instance_id, changed, instance.condition, instance.gold, instance.split)


def test_a_structure_judge_knows_its_own_instances_alone() -> None:
    source = GraphEcho.generate(3, {"test": 1})
    judge = structure_judge(source.instances("test", ["C1"]), reads_node=False)
    for condition in ("C3", "1S5P"):
        tasks = build_judge_tasks(CONFIG, source.instances("test", [condition]))
        with pytest.raises(ValueError, match="structure judge"):
            ScriptedPolicy("s", judge).play(tasks)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("constant-suport", {}, "did you mean 'constant-support'"),
        ("random", {}, "nothing is walked; scripted judges: oracle, naive"),
        ("bfs", {}, "nothing is walked"),
        ("structure", {"temperature": 0.5}, "temperature does nothing for scripted judges, found structure"),
        ("smollm2", {"grammar": "tool_call"}, "add --grammar json"),
        ("endpoint", {}, "lacks --base-url and --model"),
        ("nowhere", {}, "nowhere"),
    ],
)
def test_who_cannot_judge_is_refused_by_name(text: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        judge_named(text, PolicyOptions(**options))


def test_judges_have_fingerprints() -> None:
    names = ("oracle", "naive", "structure", "tiny")
    judges = [judge_named(name) for name in names]
    assert [judge.spec is None for judge in judges] == [False, False, True, False]
    assert len({judge.fingerprint for judge in judges}) == 4
    with pytest.raises(ValueError, match="two judges are called 'oracle'"):
        evaluate_judges(CONFIG.model_copy(update={"limit": 1}), [judges[0], judges[0]], Path("unused-by-a-twin"))


def test_the_shipped_tiny_policy_judges_by_paths(tmp_path: Path) -> None:
    """It was made to count paths, and reads a prompt of all routes as it reads a walk."""
    config = CONFIG.model_copy(update={"conditions": ("C1", "C2"), "general_draws": 0, "limit": 3})
    result = evaluate_judges(config, [judge_named("tiny")], tmp_path)["tiny"]
    found = result.summary.by_mitigation["M1"]
    assert found.endings["answered"] == 6
    assert found.shifts["support_shift_c1_c2"].estimate.value == 1.0
    assert found.metrics["prompt_tokens"].value > 40
    assert found.metrics["unknown_token_rate"].value == 0.0
    assert all(e.tokens is not None and set(e.tokens.mask) == {1} for e in result.episodes)


# --- SciFact


def write_scifact(folder: Path, claims: list[dict[str, Any]]) -> ScifactClaims:
    corpus = [{"doc_id": n, "title": "T", "abstract": ["It rose.", "It fell."], "structured": False} for n in (1, 2)]
    for name, rows in (("claims_dev.jsonl", claims), ("corpus.jsonl", corpus)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return ScifactClaims(folder=folder)


def scifact_claim(number: int, label: str, documents: tuple[int, ...]) -> dict[str, Any]:
    evidence = {str(d): [{"sentences": [0], "label": label}] for d in documents}
    return {"id": number, "claim": f"Claim {number}.", "evidence": evidence, "cited_doc_ids": list(documents)}


def test_scifact_by_hand(tmp_path: Path) -> None:
    claims = [
        scifact_claim(1, "SUPPORT", (1, 2)),
        scifact_claim(2, "CONTRADICT", (1,)),
        scifact_claim(3, "SUPPORT", ()),
    ]
    config = JudgeEvalConfig(claims=write_scifact(tmp_path, claims), resamples=50)
    results = evaluate_judges(config, [judge_named("oracle"), judge_named("constant-support")], tmp_path / "out")
    sound, constant = (results[name].summary.by_mitigation["M1"] for name in ("oracle", "constant-support"))
    assert (sound.metrics["accuracy"].value, sound.metrics["accuracy"].n) == (1.0, 8)  # 5 variants and 3
    assert (constant.metrics["accuracy"].value, constant.metrics["first_document_accuracy"].value) == (5 / 8, 0.5)
    assert constant.metrics["f1_support"].value == pytest.approx(10 / 13)  # 2 x 5 / (5 + 8)
    assert constant.metrics["f1_refute"].value == 0.0
    assert constant.metrics["macro_f1"].value == pytest.approx(5 / 13)
    assert constant.metrics["f1_mixed"].n == 0  # gold lacks it
    assert sound.shifts["accuracy_shift_five_routes"].estimate.value == 0.0
    assert results["oracle"].left_out == {"without gold evidence": 1}
    text = report_on_judges(results).to_markdown()
    assert "left out 1 claims: 1 without gold evidence" in text
    assert "probe: constant SUPPORT" in text
    assert "first document only (one route), by class" in text


def test_scifact_without_evidence_is_not_available(tmp_path: Path) -> None:
    """Fault kind: SciFact without evidence."""
    rows = [{"id": 1, "claim": "A."}, {"id": 2, "claim": "B.", "evidence": {}}, scifact_claim(3, "SUPPORT", ())]
    config = JudgeEvalConfig(claims=write_scifact(tmp_path, rows), resamples=50)
    results = evaluate_judges(config, [judge_named("constant-support")], tmp_path / "out")
    report = report_on_judges(results)
    assert "SciFact: n = 0, not available: no claim with usable gold evidence" in report.before
    assert results["constant-support"].summary.by_mitigation == {}


@pytest.mark.slow
def test_the_official_dev_file(shared_data: Path, tmp_path: Path) -> None:
    config = JudgeEvalConfig(claims=ScifactClaims(folder=shared_data / "scifact"), resamples=50)
    results = evaluate_judges(config, [judge_named("oracle"), judge_named("constant-support")], tmp_path)
    assert {r.num_claims for r in results.values()} == {188}
    constant = results["constant-support"].summary.by_mitigation["M1"].metrics
    assert (constant["accuracy"].n, constant["first_document_accuracy"].n) == (584, 188)
    assert constant["first_document_accuracy"].value == pytest.approx(124 / 188)
    assert constant["first_document_macro_f1"].value == pytest.approx(124 / (124 + 188))
    assert results["oracle"].summary.by_mitigation["M1"].metrics["accuracy"].value == 1.0


# --- report and command


def test_report_compares_policies_and_mitigations(tmp_path: Path) -> None:
    asked = {"mitigations": ("M0", "M3"), "limit": 2, "conditions": ("C1", "C2", "C3", "1S1P"), "resamples": 20}
    config = CONFIG.model_copy(update=asked)
    results = evaluate_judges(config, [Judge("constant-mixed", None), judge_named("oracle")], tmp_path)
    report = report_on_judges(results)
    write_judge_report(results, report, tmp_path)
    pairs = {(c.first, c.second, c.metric) for c in report.comparisons}
    assert ("oracle", "constant-mixed", "M0 accuracy") in pairs
    assert ("oracle", "constant-mixed", "M3 general_macro_f1") in pairs
    assert ("oracle", "constant-mixed", "M3 source_count_count_mae") in pairs
    assert ("oracle M3", "oracle M0", "accuracy") in pairs
    (gain,) = (c for c in report.comparisons if (c.first, c.metric) == ("oracle", "M0 accuracy"))
    assert gain.paired.difference.n == 6
    assert gain.paired.difference.value == pytest.approx(1 / 3)  # right on C3 too
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    for title in ("C1-C4 and C2R", "one side only (sSkP)", "general conditions", "Shifts between conditions"):
        assert title in text
    assert "| by sources alone | 0 | 1 |" in text
    plots = sorted(p.name for p in (tmp_path / "plots").iterdir())
    assert plots == ["policies-M0.png", "policies-M3.png", "reliability-M0.png", "reliability-M3.png"]
    stored = json.loads((tmp_path / "comparison.json").read_text())["comparisons"]
    assert len(stored) == len(report.comparisons)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    words = "eval judge -p oracle -p naive --limit 2 --conditions C1,C2 --general-draws 0 --mitigation M1".split()
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "4 judgements of 2 claims, split test, M1, all routes shown at once, greedy, seed 42" in done.stdout
    assert "support_shift_c1_c2" in done.stdout
    (folder,) = (tmp_path / "runs" / "judge").iterdir()
    assert {p.name for p in folder.iterdir()} >= {"oracle", "naive", "report.md", "comparison.json", "plots"}
    help_text = CliRunner().invoke(app, ["eval", "judge", "--help"]).stdout
    assert "Example: provgym eval judge" in help_text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-p naive --temperature 0.5", "add --sampled"),
        ("-p naive --conditions C9", "condition 'C9' is unknown"),
        ("-p naive --claims a.jsonl --scifact b", "exclude each other"),
        ("-p naive --scifact nowhere", "claims_dev.jsonl does not exist"),
        ("-p constant-suport", "did you mean 'constant-support'"),
    ],
)
def test_mistakes_are_one_line(words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["eval", "judge", *words.split()])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
