"""Comparisons, non-inferiority, notes, adaptation and Verifiers by hand; sweeps and pooled seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.eval.topology_records import KINDS, RULE, ScriptedExecutor, make_questions, make_run, random_runs

from provgym.envs.topology import Topology
from provgym.envs.workflow_records import RunRequest
from provgym.eval.topology_adaptation import adaptation_of, team_text
from provgym.eval.topology_compare import align, compare_methods, compare_runs, non_inferiority
from provgym.eval.topology_estimates import Resampling
from provgym.eval.topology_methods import TeamMethod, same_team
from provgym.eval.topology_metrics import score_of, values_of
from provgym.eval.topology_plots import plot_accuracy_tokens, plot_adaptation, plot_sweep
from provgym.eval.topology_policies import LONE_ANSWERER
from provgym.eval.topology_runs import MethodRun, VerifierCheck
from provgym.eval.topology_seeds import pool_methods
from provgym.eval.topology_summary import summarise_method, summarise_methods
from provgym.eval.topology_sweeps import SweepSetting, run_sweep
from provgym.eval.topology_tables import summary_tables
from provgym.eval.topology_verifier import verifier_figures
from provgym.rewards.outcome import Ending

FEW = Resampling(resamples=300)


def many(method: str, right: list[bool], tokens: int = 100, **fields: Any) -> list[MethodRun]:
    """Return a run per base claim, right or wrong as given."""
    answers = ["SUPPORT" if is_right else "REFUTE" for is_right in right]
    return [
        make_run(
            method, task_id=f"t{n}", base_id=f"b{n}", answer=answer, prompt_tokens=tokens, completion_tokens=0, **fields
        )
        for n, answer in enumerate(answers)
    ]


# --- figures of one run -----------------------------------------------------------------------------------------------


def test_score_by_hand() -> None:
    team = make_run(roles=("Reasoner", "Verifier", "Answerer"), edges=((0, 1), (1, 2)))
    assert score_of(team, RULE) == pytest.approx(1 - (3 * 0.04 + 2 * 0.01))
    wrong = make_run(answer="REFUTE")
    assert score_of(wrong, RULE) == pytest.approx(-0.04)


@pytest.mark.parametrize("ending", [Ending.INVALID, Ending.TRUNCATED])
def test_endings_without_an_answer_are_wrong_and_errors_are_nothing(ending: Ending) -> None:
    """Kind: endpoint failure scored as wrong: 10 runs, 2 time out, 7 of 8 right: 0.875 with n = 8, coverage 80 %."""
    runs = many("kgat", [True] * 10)
    runs[0] = make_run(task_id="t0", base_id="b0", ending=ending)
    for number in (3, 7):
        runs[number] = make_run(task_id=f"t{number}", base_id=f"b{number}", ending=Ending.ERROR)
    found = summarise_method(runs, RULE, FEW)
    assert found.metrics["accuracy"].value == 0.875
    assert found.metrics["accuracy"].n == 8
    assert (found.coverage.scored, found.coverage.errors, found.coverage.share) == (8, 2, 0.8)
    assert found.endings[ending.value] == 1
    assert found.first_error == "Answerer: timeout"


def test_what_a_server_does_not_count_has_no_tokens() -> None:
    """Kind: one failure loses its siblings (no usage): tokens are not available, the rest is scored."""
    runs = many("kgat", [True, False], is_counted=False)
    found = summarise_method(runs, RULE, FEW).metrics
    assert (found["tokens"].n, found["accuracy"].n) == (0, 2)
    with pytest.raises(ValueError, match="metric 'cost' is unknown"):
        values_of(runs, "cost", RULE)


# --- comparisons ------------------------------------------------------------------------------------------------------


def test_pairs_are_made_by_question_whatever_the_order() -> None:
    first = many("kgat", [True, True, False, True])
    second = many("debate", [False, True, True, False])
    found = compare_runs(first, second[::-1], "accuracy", RULE, FEW)
    assert (found.difference.value, found.a, found.b) == (0.25, 0.75, 0.5)
    assert (found.sign.wins, found.sign.losses, found.sign.ties) == (2, 1, 1)


def test_what_cannot_be_paired_is_refused() -> None:
    """Kind: ids and duplicates: absences, repeats and other gold are named."""
    runs = many("kgat", [True, True])
    with pytest.raises(ValueError, match=r"'debate' lacks 1 of 2 questions"):
        align(runs, many("debate", [True]))
    with pytest.raises(ValueError, match=r"'kgat' lacks 1 of 2 questions"):
        align(runs[:1], many("debate", [True, True]))
    with pytest.raises(ValueError, match="stands twice"):
        align([*runs, runs[0]], runs)
    with pytest.raises(ValueError, match="the data sets differ"):
        align(runs, many("debate", [True, True], gold="MIXED"))


def test_holm_corrects_over_methods_on_one_metric() -> None:
    runs = {name: random_runs(name, 3, errors=0.0) for name in ("kgat", "chain", "star", "debate")}
    found = compare_methods(runs, "kgat", RULE, resampling=FEW)
    for metric in ("accuracy", "score", "tokens", "calls"):
        family = sorted((c.paired.p, c.holm_p) for c in found if c.metric == metric)
        assert len(family) == 3
        expected, highest = [], 0.0
        for rank, (p, _) in enumerate(family):
            highest = max(highest, min(1.0, (3 - rank) * p))
            expected.append(highest)
        assert [p for _, p in family] == pytest.approx(expected)
    with pytest.raises(ValueError, match="reference 'kgat' is none of the methods"):
        compare_methods({"star": []}, "kgat", RULE)


@pytest.mark.parametrize(
    ("first", "second", "conclusion"),
    [
        ([True] * 400, [True] * 400, "not inferior"),  # no difference, no width
        ([False] * 40 + [True] * 360, [True] * 400, "inferior"),  # -10 points, far from -1
        ([True, False] * 20, [False, True] * 20, "undecided"),
        ([True], [True], "not available"),  # one claim has no interval
    ],
)
def test_non_inferiority(first: list[bool], second: list[bool], conclusion: str) -> None:
    runs = {"kgat": many("kgat", first, 40), "debate": many("debate", second, 100)}
    found = non_inferiority(runs, "kgat", "debate", RULE, resampling=FEW)
    assert found.conclusion == conclusion
    assert found.tokens_ratio.value == pytest.approx(0.4)
    assert found.to_json()["margin"] == 0.01
    with pytest.raises(ValueError, match="margin=0"):
        non_inferiority(runs, "kgat", "debate", RULE, margin=0.0)


def test_the_text_says_where_a_simple_baseline_is_as_good() -> None:
    runs = {
        "kgat": many("kgat", [True] * 6 + [False] * 4, 100),
        "single_agent": many("single_agent", [True] * 5 + [False] * 5, 20),
        "self_consistency_matched": many("self_consistency_matched", [True] * 10, 110),
    }
    notes = summarise_methods(runs, RULE, resampling=FEW).notes
    assert any(note.startswith("self_consistency_matched is more accurate than kgat") for note in notes)
    assert "self_consistency_matched takes 1.10 times the tokens of kgat" in notes
    assert not any(note.startswith("single_agent") for note in notes)


def test_any_untrained_baseline_that_scores_no_lower_is_named() -> None:
    runs = {"kgat": many("kgat", [True] * 6 + [False] * 4, 100), "react": many("react", [True] * 10, 50)}
    notes = summarise_methods(runs, RULE, resampling=FEW).notes
    assert any(note.startswith("react is more accurate than kgat") for note in notes)
    assert any(note.startswith("react scores higher than kgat") for note in notes)
    controls = runs | {"closed_book": many("closed_book", [True] * 10, 50)}  # a control is no baseline
    assert summarise_methods(controls, RULE, resampling=FEW).notes == notes


def test_a_method_that_never_answers_is_named() -> None:
    runs = {"kgat": [make_run(task_id=f"t{n}", base_id=f"b{n}", ending=Ending.INVALID) for n in range(3)]}
    assert "kgat: none of 3 scored runs gave an answer that could be read" in summarise_methods(runs, RULE).notes
    runs = {"kgat": [make_run(ending=Ending.ERROR)]}
    (note,) = summarise_methods(runs, RULE).notes
    assert "1 of 1 runs ended in error and are not scored: coverage 0%" in note


def test_names_of_other_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="have names that summaries use for other things"):
        summarise_methods({"kgat": [make_run()], "adaptation": [make_run("adaptation")]}, RULE)


# --- teams and Verifiers ----------------------------------------------------------------------------------------------


def test_adaptation_by_hand() -> None:
    single: dict[str, Any] = {"roles": ("Answerer",)}
    pair: dict[str, Any] = {"roles": ("Verifier", "Answerer"), "edges": ((0, 1),)}
    runs = [
        make_run(
            task_id=f"{base}-{kind}", base_id=base, evidence_kind=kind, **(single if kind == "agreement" else pair)
        )
        for base in ("b0", "b1")
        for kind in KINDS
    ]
    runs.append(make_run(task_id="x", base_id="b0", evidence_kind="conflict", ending=Ending.ERROR, **pair))
    found = adaptation_of(runs, FEW)
    assert found.kinds["agreement"].nodes.value == 1.0
    assert found.kinds["conflict"].sizes == {2: 1.0}
    assert found.kinds["conflict"].nodes.n == 3  # what a team is does not depend on how its run ended
    assert found.kinds["irrelevance"].roles["Verifier"].value == 1.0
    assert found.kinds["agreement"].roles["Verifier"].value == 0.0
    assert (found.difference["nodes"].value, found.difference["edges"].value) == (1.0, 1.0)
    assert found.kinds["conflict"].teams == (("Verifier, Answerer: 0>1", 3),)
    assert team_text(make_run()) == "Answerer"


def test_one_kind_has_no_difference() -> None:
    found = adaptation_of(
        [make_run(evidence_kind="conflict"), make_run(task_id="t1", base_id="b1", evidence_kind="conflict")]
    )
    assert not found.difference["nodes"].is_available
    assert adaptation_of([make_run()]).kinds == {}


def test_verifier_account_by_hand() -> None:
    checks = (
        VerifierCheck(1, "SUPPORT", "SUPPORT", supported=2),
        VerifierCheck(1, "SUPPORT", "REFUTE", contradicted=1),
        VerifierCheck(1, "SUPPORT", None, not_found=3),
        VerifierCheck(1, "REFUTE", "SUPPORT", corrected=2),
        VerifierCheck(1, "REFUTE", "MIXED"),
        VerifierCheck(1, None, "SUPPORT"),
    )
    lost = make_run(task_id="t1", ending=Ending.ERROR, checks=checks)
    found = verifier_figures([make_run(checks=checks), lost], FEW)
    assert found.changes == {
        "kept_right": 1,
        "kept_wrong": 1,
        "right_to_wrong": 2,  # an answer that was taken away counts as wrong
        "wrong_to_right": 1,
        "no_answer_before": 1,
    }
    assert found.spoiled.value == pytest.approx(2 / 3)
    assert found.repaired.value == 0.5
    assert found.claims == {"supported": 2, "contradicted": 1, "not_found": 3, "corrected": 2}
    assert found.checked == 6


def test_tables_and_plots_say_what_was_not_measured(tmp_path: Path) -> None:
    runs = {
        "kgat": [make_run(evidence_kind="conflict", ending=Ending.ERROR)],
        "star": [make_run("star", ending=Ending.ERROR)],
    }
    summary = summarise_methods(runs, RULE)
    text = "\n".join(table.to_markdown() for table in summary_tables(summary))
    assert "not available" in text
    assert "nan" not in text.lower()
    with pytest.raises(ValueError, match="there is nothing to draw"):
        plot_accuracy_tokens({name: m.metrics for name, m in summary.methods.items()}, tmp_path / "a.png")
    with pytest.raises(ValueError, match="there is nothing to draw"):
        plot_adaptation({}, tmp_path / "b.png")
    with pytest.raises(ValueError, match="expected one each"):
        plot_sweep("depth", [1.0], [], tmp_path / "c.png")
    json.dumps(summary.to_json(), allow_nan=False)


# --- sweeps and seeds -------------------------------------------------------------------------------------------------


def test_a_sweep_says_where_one_agent_is_enough(tmp_path: Path) -> None:
    """The pair is right wherever the value is above 1; the single agent always is."""
    questions = make_questions(bases=3, replicates=1)
    pair = Topology(("Reasoner", "Answerer"), ((0, 1),))
    methods = [TeamMethod("kgat", same_team(pair), "1"), TeamMethod("single_agent", same_team(LONE_ANSWERER), "1")]

    def setting(value: float) -> SweepSetting:
        def script(request: RunRequest) -> str:
            knows = request.topology.num_nodes == 2 if value > 1 else request.topology.num_nodes == 1
            return request.task.gold if knows else "MIXED" if request.task.gold != "MIXED" else "REFUTE"

        return SweepSetting(value, methods, questions, ScriptedExecutor(script), f"script {value}")

    def play() -> Any:
        return run_sweep(
            "error factor",
            [lambda v=v: setting(v) for v in (0.0, 1.0, 2.0)],
            tmp_path,
            rule=RULE,
            reference="kgat",
            resampling=FEW,
        )

    sweep = play()
    assert sweep.without_lead("score") == (0.0, 1.0)
    assert sweep.points[2].lead("accuracy").value == 1.0
    stored = json.loads((tmp_path / "sweep.json").read_text())
    assert stored["single_agent_as_good_at"]["score"] == [0.0, 1.0]
    assert [point["value"] for point in stored["points"]] == [0.0, 1.0, 2.0]
    assert (tmp_path / "sweep.png").stat().st_size > 1000
    assert len(sweep.table().rows) == 6
    before = (tmp_path / "2" / "runs" / "kgat.jsonl").read_bytes()
    assert play().to_json() == sweep.to_json()
    assert (tmp_path / "2" / "runs" / "kgat.jsonl").read_bytes() == before
    with pytest.raises(ValueError, match="stands twice"):
        run_sweep("depth", [setting(1.0), setting(1.0)], tmp_path / "x", rule=RULE, reference="kgat", resampling=FEW)
    with pytest.raises(ValueError, match="no value of depth"):
        run_sweep("depth", [], tmp_path / "y", rule=RULE, reference="kgat")


def test_pooled_seeds_need_the_same_questions() -> None:
    seeds = [{"kgat": random_runs("kgat", s), "debate": random_runs("debate", s)} for s in (1, 2)]
    pooled = pool_methods(seeds, RULE, reference="kgat", resampling=FEW)
    assert pooled.non_inferiority in ("not inferior", "inferior", "undecided")
    assert [len(table.rows) for table in pooled.tables()] == [2, 1, 1, 4]
    assert pooled.unscored == {m: sum(not run.is_scored for seed in seeds for run in seed[m]) for m in seeds[0]}
    json.dumps(pooled.to_json(), allow_nan=False)
    with pytest.raises(ValueError, match="at least two"):
        pool_methods(seeds[:1], RULE, reference="kgat")
    with pytest.raises(ValueError, match="reference 'star' is not in every seed"):
        pool_methods(seeds, RULE, reference="star")
    with pytest.raises(ValueError, match="lacks"):
        pool_methods([seeds[0], {"kgat": seeds[1]["kgat"][:3]}], RULE, reference="kgat")
