"""Self-consistency at matched tokens, step-by-step retrieval, and single teams, on scripted executors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.eval.topology_records import Script, ScriptedExecutor, draw_of, make_question, make_run

from provgym.envs.evidence_units import EvidenceContext
from provgym.envs.topology import Topology
from provgym.envs.topology_tasks import TopologyTask
from provgym.envs.workflow_records import RunRequest
from provgym.eval.topology_methods import Question, TeamMethod, same_team, shown_nothing
from provgym.eval.topology_policies import LONE_ANSWERER, ReAct, SelfConsistency, majority
from provgym.eval.topology_runs import MethodRun
from provgym.rewards.outcome import Ending

Earlier = Mapping[tuple[str, int], MethodRun]
TEAM = Topology(("Reasoner", "Verifier", "Answerer"), ((0, 1), (1, 2)))


def play(method: object, questions: list[Question], script: Script, earlier: Earlier | None = None) -> list[MethodRun]:
    """Play a method; every question must be answered once."""
    found: dict[int, MethodRun] = {}

    def keep(number: int, run: MethodRun) -> None:
        assert number not in found
        found[number] = run

    method.play(questions, ScriptedExecutor(script), earlier or {}, keep)  # type: ignore[attr-defined]
    return [found[number] for number in range(len(questions))]


def budget(question: Question, tokens: int, **fields: Any) -> MethodRun:
    """What kgat took on a question."""
    task = question.task
    given: dict[str, Any] = {
        "task_id": task.task_id,
        "base_id": task.base_id,
        "replicate": question.replicate,
        "gold": task.gold,
    }
    return make_run(prompt_tokens=tokens, completion_tokens=0, **(given | fields))


def vote(answers: list[str | None], tokens: int, **settings: Any) -> MethodRun:
    """Let the samples give these answers in turn (None fails, "?" cannot be read); each takes 12 tokens."""
    question = make_question()
    said = iter(answers)
    method = SelfConsistency(num_replicates=1, **settings)
    (run,) = play(method, [question], lambda request: next(said), {question.key: budget(question, tokens)})
    return run


# --- self-consistency -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "samples"), [(0, 1), (1, 1), (12, 1), (13, 2), (24, 2), (25, 3), (60, 5)])
def test_samples_are_drawn_until_the_tokens_are_matched(tokens: int, samples: int) -> None:
    run = vote(["SUPPORT"] * 9, tokens)
    assert (run.samples, run.tokens, run.calls) == (samples, 12 * samples, samples)
    assert run.tokens >= tokens
    assert len(run.roles) == samples
    assert run.edges == ()
    assert run.latency_s == pytest.approx(0.1)  # samples do not wait for each other


@pytest.mark.parametrize(
    ("answers", "winner"),
    [
        (["REFUTE", "SUPPORT", "SUPPORT"], "SUPPORT"),
        (["REFUTE", "SUPPORT"], "REFUTE"),  # a tie goes to what was given first
        (["SUPPORT", "REFUTE"], "SUPPORT"),
        (["?", "REFUTE", "?"], "REFUTE"),  # what cannot be read is no vote
        (["MIXED", "SUPPORT", "REFUTE", "REFUTE", "SUPPORT"], "SUPPORT"),
    ],
)
def test_the_majority_answers_and_ties_go_to_the_first(answers: list[str | None], winner: str) -> None:
    run = vote(answers, 12 * len(answers))
    assert (run.ending, run.answer, run.samples) == (Ending.ANSWERED, winner, len(answers))


@given(st.lists(st.sampled_from(["SUPPORT", "REFUTE", "MIXED", None]), max_size=12))
def test_majority_is_most_frequent_then_first(answers: list[str | None]) -> None:
    given_answers = [answer for answer in answers if answer is not None]
    best = max(given_answers, key=lambda a: (given_answers.count(a), -given_answers.index(a)), default=None)
    assert majority(answers) == best
    assert best is None or Counter(given_answers)[best] == max(Counter(given_answers).values())


def test_without_a_vote_the_question_is_invalid_not_an_error() -> None:
    run = vote(["?", "?"], 24)
    assert (run.ending, run.answer, run.is_correct, run.error) == (Ending.INVALID, None, False, None)


def test_a_failed_sample_makes_the_question_an_error() -> None:
    """Kind: endpoint failure scored as wrong: never a vote, never a wrong answer; what was drawn is in the account."""
    run = vote(["SUPPORT", None], 36)
    assert (run.ending, run.is_correct, run.samples) == (Ending.ERROR, None, 2)
    assert run.error == "Answerer (0): timeout: no reply"
    assert run.tokens == 12


def test_there_is_a_limit_of_samples() -> None:
    assert vote(["SUPPORT"] * 9, 10_000, max_samples=4).samples == 4


@pytest.mark.parametrize(
    ("fields", "why"), [({"ending": Ending.ERROR}, "ended in error"), ({"is_counted": False}, "was not counted")]
)
def test_without_a_budget_there_is_nothing_to_match(fields: dict[str, Any], why: str) -> None:
    question = make_question()
    executor = ScriptedExecutor(lambda request: "SUPPORT")
    found: list[MethodRun] = []
    earlier = {question.key: budget(question, 50, **fields)}
    SelfConsistency(1).play([question], executor, earlier, lambda number, run: found.append(run))
    assert executor.requests == []
    assert found[0].ending is Ending.ERROR
    assert found[0].method == "self_consistency_matched"
    assert why in str(found[0].error)
    assert (found[0].tokens, found[0].samples, found[0].roles) == (0, 0, ())


def test_a_constant_budget_is_the_other_methods_mean_on_every_question() -> None:
    """24 and 48 tokens: 36 on each, so three samples of 12 on both; an uncounted run is in no mean, and is answered."""
    questions = [make_question(f"t{number}") for number in range(3)]
    earlier = {
        questions[0].key: budget(questions[0], 24),
        questions[1].key: budget(questions[1], 48),
        questions[2].key: budget(questions[2], 900, is_counted=False),
    }
    method = SelfConsistency(1, is_constant=True)
    runs = play(method, questions, lambda request: "SUPPORT", earlier)
    assert [run.samples for run in runs] == [3, 3, 3]
    assert {run.method for run in runs} == {method.name} == {"self_consistency_constant"}
    last = play(method, questions[1:2], lambda request: "SUPPORT", earlier)  # as an interrupted evaluation goes on
    assert last == runs[1:2]
    nothing = {questions[2].key: earlier[questions[2].key]}
    (unmatched,) = play(method, questions[2:], lambda request: "SUPPORT", nothing)
    assert (unmatched.ending, unmatched.samples) == (Ending.ERROR, 0)
    assert method.fingerprint != SelfConsistency(1).fingerprint


def test_no_two_samples_share_a_draw() -> None:
    """Kind: correlated workers: repetitions draw apart, and sample 0 is the plain single agent's own draw."""
    questions = [make_question(replicate=replicate) for replicate in range(3)]
    executor = ScriptedExecutor(lambda request: "SUPPORT")
    earlier = {question.key: budget(question, 48) for question in questions}
    SelfConsistency(3).play(questions, executor, earlier, lambda number, run: None)
    drawn = [request.replicate for request in executor.requests]
    assert sorted(drawn) == list(range(12))
    assert drawn[:3] == [0, 1, 2]


# --- retrieving and answering step by step ----------------------------------------------------------------------------


def in_order(task: TopologyTask, text: str, count: int) -> EvidenceContext:
    """Return the first units of the graph; what the agent said does not matter."""
    units = task.graph.units[:count]
    return EvidenceContext(units, tuple(1.0 for _ in units))


def test_react_stops_when_its_answer_holds() -> None:
    said = iter(["SUPPORT", "REFUTE", "REFUTE", "SUPPORT"])
    seen: list[int] = []

    def script(request: RunRequest) -> str:
        seen.append(len(request.evidence.units))
        return next(said)

    (run,) = play(ReAct(in_order), [make_question(units=6, shown=5)], script)
    assert seen == [1, 2, 3]
    assert (run.answer, run.samples, run.calls, run.tokens) == ("REFUTE", 3, 3, 36)
    assert run.roles == ("Answerer",) * 3
    assert run.edges == ()  # a step sees more evidence, not what was said before
    assert run.latency_s == pytest.approx(0.3)


def test_react_never_sees_more_than_the_others() -> None:
    seen: list[int] = []

    def script(request: RunRequest) -> str:
        seen.append(len(request.evidence.units))
        return ("SUPPORT", "REFUTE")[len(seen) % 2]

    (run,) = play(ReAct(in_order, step_units=2), [make_question(units=8, shown=5)], script)
    assert seen == [2, 4, 5]
    assert run.samples == 3


def test_react_asks_for_what_it_said_and_adds_only_new_units() -> None:
    asked: list[str] = []

    def retrieve(task: TopologyTask, text: str, count: int) -> EvidenceContext:
        asked.append(text)
        return in_order(task, text, count)

    said = iter(["SUPPORT", "REFUTE", "SUPPORT"])
    question = make_question(shown=3)
    executor = ScriptedExecutor(lambda request: next(said))
    ReAct(retrieve).play([question], executor, {}, lambda number, run: None)
    assert asked == ["What of t0?", "What of t0? Answer: SUPPORT", "What of t0? Answer: REFUTE"]
    shown = [[unit.unit_id for unit in request.evidence.units] for request in executor.requests]
    assert shown == [["t0-u0"], ["t0-u0", "t0-u1"], ["t0-u0", "t0-u1", "t0-u2"]]


def test_react_on_no_evidence_and_on_an_index_that_finds_nothing() -> None:
    """Empty evidence is answered once; an approximate index that finds no further unit never loops."""
    (run,) = play(ReAct(in_order), [make_question(shown=0)], lambda request: "MIXED")
    assert (run.samples, run.answer) == (1, "MIXED")
    nothing = EvidenceContext((), ())
    (run,) = play(ReAct(lambda task, text, count: nothing), [make_question()], lambda request: "MIXED")
    assert run.samples == 1


def test_react_ends_with_its_failure() -> None:
    said = iter(["SUPPORT", None])
    (run,) = play(ReAct(in_order), [make_question()], lambda request: next(said))
    assert (run.ending, run.answer, run.samples, run.is_correct) == (Ending.ERROR, None, 2, None)


# --- one team ---------------------------------------------------------------------------------------------------------


def test_a_team_is_run_once_and_recorded() -> None:
    questions = [make_question("t0", gold="SUPPORT"), make_question("t1", gold="REFUTE", base="b1", replicate=2)]
    runs = play(TeamMethod("mine", same_team(TEAM), "1"), questions, lambda request: "SUPPORT")
    assert [run.is_correct for run in runs] == [True, False]
    first = runs[0]
    assert (first.roles, first.edges) == (TEAM.canonical().roles, TEAM.canonical().edges)
    assert (first.calls, first.tokens) == (3, 36)
    assert first.latency_s == pytest.approx(0.3)
    assert [(check.before, check.after) for check in first.checks] == [("REFUTE", "SUPPORT")]
    assert [message.node for message in first.messages] == [0, 1, 2]
    assert runs[1].key == ("t1", 2)


def test_closed_book_agents_see_nothing() -> None:
    executor = ScriptedExecutor(draw_of)
    method = TeamMethod("closed", same_team(LONE_ANSWERER), "1", shown_nothing)
    method.play([make_question()], executor, {}, lambda number, run: None)
    assert executor.requests[0].evidence.units == ()
    assert executor.requests[0].phase == "eval"


def test_a_failure_names_the_node_that_failed_first() -> None:
    (run,) = play(TeamMethod("mine", same_team(TEAM), "1"), [make_question()], lambda request: None)
    assert run.error == "Answerer (2): timeout: no reply"
    assert run.tokens == 24
    assert not math.isnan(run.latency_s)


def test_proposals_must_be_one_per_question() -> None:
    method = TeamMethod("mine", lambda questions: [TEAM], "1")
    with pytest.raises(ValueError, match="1 teams and 2 contexts for 2 questions"):
        play(method, [make_question(), make_question("t1")], draw_of)
