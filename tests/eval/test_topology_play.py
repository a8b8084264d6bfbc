"""Playing and storing: nothing twice, nothing of another evaluation, nothing half."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.eval.topology_records import (
    RULE,
    ScriptedExecutor,
    draw_of,
    make_question,
    make_questions,
    make_run,
    random_runs,
)

from provgym.envs.topology import Topology
from provgym.envs.workflow_records import RunRequest
from provgym.eval.topology import evaluate_methods, reference_of, rescore_methods
from provgym.eval.topology_estimates import Resampling
from provgym.eval.topology_methods import Method, Question, TeamMethod, same_team
from provgym.eval.topology_play import play_methods, questions_hash
from provgym.eval.topology_policies import LONE_ANSWERER, SelfConsistency
from provgym.eval.topology_runs import MethodRun, checked_again
from provgym.eval.topology_store import RunWriter, part_file, read_methods, read_runs, runs_file, to_line, write_runs
from provgym.generators.json_lines import BadFileError
from provgym.rewards.outcome import Ending

PAIR = Topology(("Reasoner", "Answerer"), ((0, 1),))
SINGLE = TeamMethod("single_agent", same_team(LONE_ANSWERER), "single")
KGAT = TeamMethod("kgat", same_team(PAIR), "weights-1")
MATCHED = SelfConsistency(num_replicates=2)
QUESTIONS = make_questions(bases=3)


def play(folder: Path, methods: Sequence[Method], executor: ScriptedExecutor | None = None, **more: Any) -> Any:
    given: dict[str, Any] = {"questions": QUESTIONS, "executor_fingerprint": "scripted"} | more
    return play_methods(methods, given.pop("questions"), executor or ScriptedExecutor(draw_of), folder, **given)


def test_a_finished_evaluation_executes_nothing_again(tmp_path: Path) -> None:
    first = play(tmp_path, [KGAT, SINGLE])
    again = ScriptedExecutor(draw_of)
    assert play(tmp_path, [KGAT, SINGLE], again) == first
    assert again.requests == []
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["kgat.jsonl", "single_agent.jsonl"]


def test_methods_may_be_added(tmp_path: Path) -> None:
    play(tmp_path, [KGAT])
    executor = ScriptedExecutor(draw_of)
    runs = play(tmp_path, [MATCHED, KGAT], executor)  # what it builds on is played first, whatever the order
    assert list(runs) == ["self_consistency_matched", "kgat"]
    assert {request.topology for request in executor.requests} == {LONE_ANSWERER}
    for matched, kgat in zip(runs["self_consistency_matched"], runs["kgat"], strict=True):
        assert matched.key == kgat.key
        assert matched.tokens >= kgat.tokens


def test_an_interrupted_evaluation_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Kind: one failure loses its siblings: what ended before the interrupt is not played again."""
    whole = play(tmp_path / "whole", [KGAT, SINGLE])

    def interrupted(request: RunRequest) -> str:
        if len(executor.requests) == 8:
            raise KeyboardInterrupt
        return draw_of(request)

    executor = ScriptedExecutor(interrupted)
    with pytest.raises(KeyboardInterrupt):
        play(tmp_path / "cut", [KGAT, SINGLE], executor)
    assert len(read_runs(part_file(tmp_path / "cut", "kgat"))) == 7
    rest = ScriptedExecutor(draw_of)
    assert play(tmp_path / "cut", [KGAT, SINGLE], rest) == whole
    assert len(rest.requests) == 2 * len(QUESTIONS) - 7
    for method in ("kgat", "single_agent"):
        assert runs_file(tmp_path / "cut", method).read_bytes() == runs_file(tmp_path / "whole", method).read_bytes()


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.eval.test_topology_play import KGAT, QUESTIONS, SINGLE
from tests.eval.topology_records import ScriptedExecutor, draw_of
from provgym.eval.topology_play import play_methods
def watch(name, done, total):
    if (name, done) == ("single_agent", 5):
        os.kill(os.getpid(), signal.SIGKILL)
play_methods([KGAT, SINGLE], QUESTIONS, ScriptedExecutor(draw_of), Path(sys.argv[1]), executor_fingerprint="scripted",
             on_progress=watch)
"""


def test_kill_9_loses_nothing_that_ended(tmp_path: Path, repository: Path) -> None:
    """Kind: one failure loses its siblings: killed for real; a line cut in half is repaired and played again."""
    environment = os.environ | {"PYTHONPATH": f"{repository / 'src'}:{repository}"}
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment, cwd=repository, check=False)
    assert done.returncode == -signal.SIGKILL
    part = part_file(tmp_path, "single_agent")
    assert len(read_runs(part)) == 5
    part.write_bytes(part.read_bytes()[:-40])
    rest = ScriptedExecutor(draw_of)
    runs = play(tmp_path, [KGAT, SINGLE], rest)
    assert len(rest.requests) == len(QUESTIONS) - 4
    assert [run.key for run in runs["single_agent"]] == [question.key for question in QUESTIONS]


def test_errors_are_played_again_unless_told_otherwise(tmp_path: Path) -> None:
    """Kind: endpoint failure scored as wrong: 2 of 18 time out; the others are scored, these two are asked again."""
    flaky = ScriptedExecutor(lambda r: None if (r.task.task_id, r.replicate) in FAILING else draw_of(r))
    first = play(tmp_path, [KGAT], flaky)["kgat"]
    assert [run.key for run in first if run.ending is Ending.ERROR] == FAILING
    assert [run.is_correct for run in first].count(None) == 2
    kept = ScriptedExecutor(draw_of)
    assert play(tmp_path, [KGAT], kept, retry_errors=False)["kgat"] == first
    assert kept.requests == []
    again = ScriptedExecutor(draw_of)
    runs = play(tmp_path, [KGAT], again)["kgat"]
    assert [(r.task.task_id, r.replicate) for r in again.requests] == FAILING
    assert all(run.is_scored for run in runs)
    assert [a for a in first if a.is_scored] == [b for a, b in zip(first, runs, strict=True) if a.is_scored]


FAILING = [("b0-conflict", 1), ("b2-agreement", 0)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": [TeamMethod("kgat", same_team(PAIR), "weights-2")]}, "other weights"),
        ({"executor_fingerprint": "another model"}, "other weights, templates, settings or agents"),
        ({"questions": QUESTIONS[:4]}, "which this evaluation does not ask"),
    ],
)
def test_runs_of_another_evaluation_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    play(tmp_path, [KGAT])
    methods = change.pop("methods", [KGAT])
    with pytest.raises(ValueError, match=message):
        play(tmp_path, methods, **change)


def test_what_cannot_be_played_is_refused_before_anything_is(tmp_path: Path) -> None:
    executor = ScriptedExecutor(draw_of)
    with pytest.raises(ValueError, match="builds on 'kgat', which is not played"):
        play(tmp_path, [MATCHED], executor)
    with pytest.raises(ValueError, match="method 'kgat' stands twice"):
        play(tmp_path, [KGAT, KGAT], executor)
    with pytest.raises(ValueError, match=r"question .* stands twice"):
        play(tmp_path, [KGAT], executor, questions=[QUESTIONS[0], QUESTIONS[0]])
    assert executor.requests == []


def test_two_evaluations_do_not_write_to_one_folder(tmp_path: Path) -> None:
    """Kind: one run per process: the second one is refused while the first still plays, and nothing is lost."""
    with RunWriter(part_file(tmp_path, "kgat")) as first:
        first.append(make_run(task_id="b0-conflict"))
        with pytest.raises(BlockingIOError, match="is being written by another evaluation"):
            play(tmp_path, [KGAT])
    assert len(read_runs(part_file(tmp_path, "kgat"))) == 1


class _Forgetful:
    """Leaves the last question out."""

    name, fingerprint, builds_on = "forgetful", "1", None

    def play(self, questions: Sequence[Question], executor: Any, earlier: Any, keep: Any) -> None:
        SINGLE.play(questions[:-1], executor, earlier, lambda n, run: keep(n, _renamed(run, self.name)))


def _renamed(run: MethodRun, name: str) -> MethodRun:
    return MethodRun.from_json(run.to_json() | {"method": name})


def test_a_method_that_leaves_a_question_out_is_caught(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="left 1 questions out, such as"):
        play(tmp_path, [_Forgetful()])
    assert not runs_file(tmp_path, "forgetful").exists()


# --- stored runs ------------------------------------------------------------------------------------------------------


def test_stored_runs_come_back_exactly(tmp_path: Path) -> None:
    """Kind: Unicode lines: U+2028 and half a surrogate pair in a message survive; one line is one run."""
    runs = random_runs("kgat", 4)
    path = runs_file(tmp_path, "kgat")
    write_runs(path, runs)
    assert path.read_bytes().count(b"\n") == len(runs)
    assert read_runs(path) == runs


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"null\n", "line 2: found null"),
        (b'{"method": "kgat"}\n', "line 2: expected a stored run"),
        (b'{"half', "line 2: .*the file ends inside this line"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: bytes, message: str) -> None:
    """Kind: Unicode lines: null, an object that is no run, half a last line: file and line are named."""
    path = runs_file(tmp_path, "kgat")
    path.parent.mkdir()
    path.write_bytes(to_line(make_run()) + line)
    with pytest.raises(BadFileError, match=message):
        read_runs(path)


def test_a_question_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """Kind: ids and duplicates: every figure would count it twice."""
    write_runs(runs_file(tmp_path, "kgat"), [make_run(), make_run()])
    with pytest.raises(ValueError, match="task 't0', replicate 0 stands twice"):
        read_methods(tmp_path)


def test_a_folder_without_finished_runs_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected the folder of a topology evaluation"):
        read_methods(tmp_path)
    part_file(tmp_path, "kgat").parent.mkdir()
    part_file(tmp_path, "kgat").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="has not finished"):
        read_methods(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ending": Ending.ANSWERED, "answer": None}, "does not go with ending"),
        ({"ending": Ending.INVALID, "error": "x"}, "does not go with ending"),
        ({"cached_calls": 2}, "must not be negative or more than the whole"),
        ({"paid_tokens": 101}, "must not be negative or more than the whole"),
        ({"latency_s": float("nan")}, "finite"),
    ],
)
def test_records_that_contradict_themselves_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_run(**fields)


def test_answers_are_read_again_from_the_last_message() -> None:
    message = {"sender": "Answerer", "node": 1, "text": "So. Verdict: REFUTE"}
    stored = MethodRun.from_json(make_run(roles=("Reasoner", "Answerer")).to_json() | {"messages": [message]})
    again = checked_again(stored)
    assert (again.answer, again.is_correct) == ("REFUTE", False)
    unread = MethodRun.from_json(stored.to_json() | {"messages": [message | {"text": "hm"}]})
    assert (checked_again(unread).ending, checked_again(unread).is_correct) == (Ending.INVALID, False)
    voted = MethodRun.from_json(stored.to_json() | {"samples": 3})
    assert checked_again(voted) == voted


# --- the whole --------------------------------------------------------------------------------------------------------


def test_an_evaluation_writes_what_it_promises_and_is_scored_again(tmp_path: Path) -> None:
    result = evaluate_methods(
        [KGAT, SINGLE, MATCHED, TeamMethod("debate", same_team(PAIR), "debate")],
        QUESTIONS,
        ScriptedExecutor(draw_of),
        tmp_path,
        executor_fingerprint="scripted",
        rule=RULE,
        config_hash="abc",
        resampling=Resampling(resamples=50),
    )
    files = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert {"config.yaml", "summary.json", "report.md", "comparison.json"} <= files
    assert {"plots/accuracy_tokens.png", "plots/score_tokens.png", "plots/adaptation.png"} <= files
    stored = json.loads((tmp_path / "summary.json").read_text())
    assert stored["details"]["reference"] == "kgat"
    assert stored["details"]["num_claims"] == 3
    assert any("times the tokens of kgat" in note for note in stored["details"]["notes"])
    again = rescore_methods(tmp_path, RULE, resampling=Resampling(resamples=50))
    assert again.to_json()["kgat"] == stored["kgat"]
    assert result.num_questions == len(QUESTIONS)
    report = (tmp_path / "report.md").read_text()
    for title in (
        "Methods on the same questions",
        "Paired differences, kgat minus",
        "Teams by kind",
        "Non-inferiority",
    ):
        assert title in report
    with pytest.raises(ValueError, match="holds an evaluation with data_hash"):
        evaluate_methods(
            [KGAT],
            QUESTIONS[:2],
            ScriptedExecutor(draw_of),
            tmp_path,
            executor_fingerprint="scripted",
            rule=RULE,
            config_hash="abc",
        )


def test_the_hash_of_questions_sees_evidence_and_gold() -> None:
    plain = questions_hash([make_question()])
    assert plain == questions_hash([make_question()])
    others = [make_question(shown=2), make_question(gold="REFUTE"), make_question(replicate=1), make_question("t1")]
    assert len({plain, *(questions_hash([question]) for question in others)}) == 5


def test_nothing_to_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found 0 methods"):
        evaluate_methods([], QUESTIONS, ScriptedExecutor(draw_of), tmp_path, executor_fingerprint="", rule=RULE)
    assert reference_of(["star", "random"]) == "star"
