"""Stored runs whose answers are code: judged once, kept with the run, never judged from text alone."""

from __future__ import annotations

import pytest
from tests.eval.topology_records import RULE, make_run

from provgym.envs.answer_judge import AnswerJudgement
from provgym.eval.topology_code import code_outcomes
from provgym.eval.topology_runs import MethodRun, VerifierCheck, checked_again
from provgym.eval.topology_summary import summarise_methods
from provgym.eval.topology_verifier import verifier_figures
from provgym.rewards.answer_code import CodeGold
from provgym.rewards.outcome import Ending

GOLD = CodeGold("def f(x):\n    '''x'''\n", "f", "def check(candidate):\n    assert candidate(1) == 2\n").to_text()
GOOD, BAD = AnswerJudgement("return x + 1", True, "passed"), AnswerJudgement("return x", False, "failed", "no")


def code_run(answer: str | None = GOOD.answer, **fields: object) -> MethodRun:
    ending = Ending.INVALID if answer is None else Ending.ANSWERED
    given = {"answer_kind": "code", "gold": GOLD, "answer": answer, "ending": ending, "judgements": (GOOD, BAD)}
    return make_run(**given | fields)  # type: ignore[arg-type]


def test_a_run_keeps_what_was_judged() -> None:
    run = code_run()
    assert MethodRun.from_json(run.to_json()) == run
    assert "judgements" not in make_run().to_json()  # files of other kinds stay as they were
    assert MethodRun.from_json(make_run().to_json()).judgements == ()
    assert (code_run().is_correct, code_run(BAD.answer).is_correct, code_run(None).is_correct) == (True, False, False)


def test_what_was_not_run_is_never_called_wrong() -> None:
    with pytest.raises(ValueError, match="has not been run"):
        code_run("return 7").is_correct  # noqa: B018
    assert checked_again(code_run()) == code_run()


def test_verifiers_are_accounted_for_by_judgements() -> None:
    run = code_run(checks=(VerifierCheck(0, BAD.answer, GOOD.answer), VerifierCheck(1, GOOD.answer, BAD.answer)))
    changes = verifier_figures([run]).changes
    assert (changes["wrong_to_right"], changes["right_to_wrong"]) == (1, 1)


def test_outcomes_are_counted_for_each_method() -> None:
    runs = [code_run(), code_run(BAD.answer), code_run(None)]
    assert code_outcomes(runs) == {"passed": 1, "failed": 1, "timeout": 0, "crashed": 0}
    assert code_outcomes([make_run()]) == {}


def test_a_summary_says_what_became_of_code() -> None:
    runs = [code_run(task_id="t0"), code_run(BAD.answer, task_id="t1")]
    summary = summarise_methods({"kgat": runs}, RULE)
    assert "code of kgat: 1 passed, 1 failed, 0 timeout, 0 crashed" in summary.notes
    assert summary.to_json()["methods"]["kgat"]["code"] == {"passed": 1, "failed": 1, "timeout": 0, "crashed": 0}
    plain = summarise_methods({"kgat": [make_run()]}, RULE)
    assert "code" not in plain.to_json()["methods"]["kgat"]
    assert not any("code of" in note for note in plain.notes)
