"""Runs of teams whose answers are code: refused without a judge, judged by one, never wrong by the sandbox's fault."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from tests.envs.workflow_worlds import CHAIN, SINGLE, A, ScriptedAgent, V, plain

from provgym.envs import code_judge
from provgym.envs.answer_judge import AnswerJudgement, JudgeFailure, is_judged_right
from provgym.envs.code_judge import CodeJudge
from provgym.envs.code_sandbox import CodeLimits, CodeResult
from provgym.envs.evidence_units import EvidenceContext, KnowledgeGraph
from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.topology import Topology
from provgym.envs.topology_tasks import TopologyTask
from provgym.envs.verifier import VerifierAccount
from provgym.envs.workflow import AgentReply, RunRequest, WorkflowRuntime
from provgym.rewards.answer_code import CodeGold
from provgym.rewards.outcome import Ending

GOLD = CodeGold('def add(x):\n    """Add one."""\n', "add", "def check(candidate):\n    assert candidate(1) == 2\n")
TASK = TopologyTask("code/1", "b", "test", GOLD.prompt, GOLD.to_text(), "code", (), KnowledgeGraph((), {}), None)
RIGHT, WRONG = "return x + 1", "return x"


class FakeJudge:
    """Says that an answer with a plus is right, and keeps what it was asked."""

    fingerprint = "fake"

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.asked: list[str] = []

    async def judge(self, gold: str, answer: str) -> AnswerJudgement:
        assert gold == TASK.gold
        self.asked.append(answer)
        if self.fails:
            raise JudgeFailure("no process can be started")
        return AnswerJudgement(answer, "+" in answer, "passed" if "+" in answer else "failed")


def request(topology: Topology = SINGLE) -> RunRequest:
    return RunRequest(topology, TASK, EvidenceContext((), ()))


def test_without_a_judge_code_is_refused_before_anybody_is_asked() -> None:
    agent = ScriptedAgent(default=plain(RIGHT))
    runtime = WorkflowRuntime(agent, roles=DEFAULT_ROLES)
    with pytest.raises(ValueError, match=r"task 'code/1' is answered in code.*off by default.*--run-code"):
        runtime.run_many_sync([request()])
    with pytest.raises(ValueError, match="off by default"):
        asyncio.run(runtime.run(request()))
    assert agent.calls == []


@pytest.mark.parametrize(
    ("said", "ending", "is_right"),
    [
        (f"```\n    {RIGHT}\n```", Ending.ANSWERED, True),
        (WRONG, Ending.ANSWERED, False),
        ("I'd rather not.", Ending.INVALID, False),
    ],
)
def test_a_run_is_judged(said: str, ending: Ending, is_right: bool) -> None:
    judge = FakeJudge()
    agent = ScriptedAgent(default=plain(said))
    (run,) = WorkflowRuntime(agent, roles=DEFAULT_ROLES, judge=judge).run_many_sync([request()])
    assert (run.ending, run.is_correct) == (ending, is_right)
    assert [judgement.answer for judgement in run.judgements] == judge.asked == ([run.answer] if run.answer else [])


def test_what_verifiers_met_is_judged_too() -> None:
    """Right to wrong and wrong to right can be told of code only if both were run."""
    judge = FakeJudge()
    reply = AgentReply("```\ndef add(x): return x\n```", 1, 1, account=VerifierAccount((), RIGHT, WRONG))
    agent = ScriptedAgent({V: lambda call: reply}, default=plain(RIGHT))
    (run,) = WorkflowRuntime(agent, roles=DEFAULT_ROLES, judge=judge).run_many_sync([request(CHAIN)])
    assert judge.asked == [RIGHT, WRONG]  # the run's own answer is the one that the Verifier was told
    assert (is_judged_right(run.judgements, RIGHT), is_judged_right(run.judgements, WRONG)) == (True, False)
    with pytest.raises(ValueError, match="has not been run"):
        is_judged_right(run.judgements, "return 7")


def test_a_judge_that_fails_makes_an_error_and_no_wrong_answer() -> None:
    """Fault kind: endpoint failure scored as wrong."""
    runtime = WorkflowRuntime(ScriptedAgent(default=plain(RIGHT)), roles=DEFAULT_ROLES, judge=FakeJudge(fails=True))
    (run,) = runtime.run_many_sync([request()])
    assert (run.ending, run.is_correct, run.judgements) == (Ending.ERROR, None, ())
    assert [str(failure) for failure in run.failures] == [f"{A} (0): judge: no process can be started"]


def test_other_kinds_ask_no_judge() -> None:
    judge = FakeJudge()
    task = replace(TASK, answer_kind="yes_no", gold="yes")
    runtime = WorkflowRuntime(ScriptedAgent(default=plain("Answer: yes")), roles=DEFAULT_ROLES, judge=judge)
    (run,) = runtime.run_many_sync([RunRequest(SINGLE, task, EvidenceContext((), ()))])
    assert (run.is_correct, judge.asked) == (True, [])


def test_the_real_judge_runs_code_and_runs_it_once() -> None:
    """Fault kind: closed event loop (the judge serves two)."""
    judge = CodeJudge(max_checks=2)
    answers = [RIGHT, WRONG, "import os\ndef add(x):\n    os._exit(0)", RIGHT]

    async def ask() -> list[AnswerJudgement]:
        return await asyncio.gather(*(judge.judge(TASK.gold, answer) for answer in answers))

    found = asyncio.run(ask())
    assert [(each.is_right, each.outcome) for each in found] == [
        (True, "passed"),
        (False, "failed"),
        (False, "crashed"),
        (True, "passed"),
    ]
    again = asyncio.run(ask())
    assert again == found
    assert all(new is old for new, old in zip(again[1:3], found[1:3], strict=True))


def test_a_judge_that_is_cancelled_lets_go() -> None:
    judge = CodeJudge(CodeLimits(wall_s=600.0))

    async def give_up() -> None:
        waiting = asyncio.ensure_future(judge.judge(TASK.gold, "import time\ntime.sleep(600)\ndef add(x): return 2"))
        await asyncio.sleep(0.3)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(give_up())  # which waits for the judge's threads


def test_limits_are_part_of_what_stored_runs_depend_on() -> None:
    assert CodeJudge().fingerprint == CodeJudge().fingerprint
    assert CodeJudge().fingerprint != CodeJudge(CodeLimits(cpu_s=5)).fingerprint
    with pytest.raises(ValueError, match="max_checks=0 must be >= 1"):
        CodeJudge(max_checks=0)


def test_a_task_with_a_gold_answer_that_tests_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="task 'code/1': gold 'yes' is none of kind 'code'"):
        replace(TASK, gold="yes")


def test_equal_answers_at_once_are_run_once_and_told_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of one answer near its time limit could end differently, and so could a run of the evaluation."""
    ran = []

    def slow(gold: CodeGold, answer: str, *_: object) -> CodeResult:
        ran.append(answer)
        time.sleep(0.1)
        return CodeResult("timeout" if len(ran) > 1 else "passed", "", True)

    monkeypatch.setattr(code_judge, "check_code", slow)
    judge = CodeJudge(max_checks=4)

    async def ask() -> list[AnswerJudgement]:
        return await asyncio.gather(*(judge.judge(TASK.gold, RIGHT) for _ in range(4)))

    assert {each.outcome for each in asyncio.run(ask())} == {"passed"}
    assert ran == [RIGHT]
