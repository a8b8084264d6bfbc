"""What mining cost, interrupted or not: every call that was paid for is accounted for once."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tests.trainers.kgat_runs import CountingAgent, make_config, shared_world

from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.simulated_agents import SimulatedAgent
from provgym.envs.workflow import AgentReply, MemoryMessageCache, MessageCache, NodeCall, WorkflowRuntime
from provgym.envs.workflow_cache import StoredReply
from provgym.eval.processes import SingleProcess
from provgym.generators.candidate_mining import Proposal, Proposals
from provgym.generators.topology_templates import templates
from provgym.generators.topology_trials import TrialAccount
from provgym.trainers.kgat_costs import account_figures, mining_totals
from provgym.trainers.kgat_rounds import MiningSetup, TaskSet, mine_round
from provgym.trainers.kgat_state import RoundFolder

pytestmark = pytest.mark.filterwarnings("ignore:.*every candidate of.*failed")


class Killed(BaseException):
    """Stands for a kill inside one process: nothing may catch it."""


class DyingAgent:
    """Counts the calls that were answered, and dies at the n-th."""

    def __init__(self, agent: CountingAgent, limit: int) -> None:
        self._agent, self._limit = agent, limit

    @property
    def fingerprint(self) -> str:
        return self._agent.fingerprint

    async def reply(self, call: NodeCall) -> AgentReply:
        await asyncio.sleep(0)
        if self._agent.calls >= self._limit:
            raise Killed
        return await self._agent.reply(call)


def twins(number: int) -> TaskSet:
    """Every task twice under two ids, the copies at the end: all their calls are the same."""
    seen = shared_world().splits["train"].seen
    tasks, evidence = seen.tasks[:number], seen.evidence[:number]
    copies = tuple(dataclasses.replace(task, task_id=f"{task.task_id}-again") for task in tasks)
    return TaskSet((*tasks, *copies), (*evidence, *evidence))


def mine(folder: Path, agent: Any, tasks: TaskSet, cache_folder: Path | None = None) -> dict[str, Any]:
    config = make_config(folder)
    rules = config.generator.rules()
    proposals = tuple(Proposal(t.canonical(), "template") for t in templates(rules).values() if rules.is_valid(t))
    cache = MessageCache(cache_folder or folder / "messages")
    runtime = WorkflowRuntime(agent, roles=DEFAULT_ROLES, cache=cache, max_concurrency=2)
    plan = config.mining.plan(config.score.rule())
    setup = MiningSetup(tasks, plan, rules, runtime, tasks_at_once=2, replies=cache)
    round_folder = RoundFolder(folder, 0)
    try:
        mine_round(round_folder, setup, lambda: Proposals((proposals,) * len(tasks)), SingleProcess())
    finally:
        cache.close()
    return round_folder.read_figures()


def test_a_killed_round_costs_what_a_whole_one_does(tmp_path: Path) -> None:
    """Kind: one failure loses its siblings (kill -9 and resume): also where tasks share calls.

    The account, and what an agent that counts was really asked, are the same however often the round was killed.
    """
    tasks, plain = twins(3), CountingAgent(SimulatedAgent())
    whole = mine(tmp_path / "whole", plain, tasks)
    assert whole["mining/paid_calls"] == plain.calls < whole["mining/calls"]
    counting = CountingAgent(SimulatedAgent())
    for limit in (1, 40, 41, plain.calls - 3):
        with pytest.raises(Killed):
            mine(tmp_path / "cut", DyingAgent(counting, limit), tasks)
    assert RoundFolder(tmp_path / "cut", 0).read_parts()
    assert mine(tmp_path / "cut", counting, tasks) == whole
    assert counting.calls == plain.calls
    same = [(tmp_path / name / "rounds" / "round-00" / "targets.jsonl").read_bytes() for name in ("whole", "cut")]
    assert same[0] == same[1]


def test_replies_of_before_the_round_stay_stored_ones(tmp_path: Path) -> None:
    """A cache that another run has filled: its replies cost this run nothing, killed or not."""
    tasks, shared = twins(2), tmp_path / "shared"
    first = TaskSet(tasks.tasks[:1], tasks.evidence[:1])
    before = mine(tmp_path / "other", SimulatedAgent(), first, shared)
    alone = mine(tmp_path / "alone", SimulatedAgent(), tasks)
    left = alone["mining/paid_calls"] - before["mining/paid_calls"]
    counting = CountingAgent(SimulatedAgent())
    for limit in (2, left - 2):
        with pytest.raises(Killed):
            mine(tmp_path / "cut", DyingAgent(counting, limit), tasks, shared)
    found = mine(tmp_path / "cut", counting, tasks, shared)
    assert found["mining/paid_calls"] == counting.calls == left > 4
    for name in ("prompt_tokens", "completion_tokens"):
        assert found[f"mining/{name}"] == alone[f"mining/{name}"] - before[f"mining/{name}"]


def test_rows_that_tell_no_keys_are_read(tmp_path: Path) -> None:
    """A part that an earlier version left: its tasks are kept."""
    whole = mine(tmp_path / "whole", SimulatedAgent(), twins(2))
    with pytest.raises(Killed):
        mine(tmp_path, DyingAgent(CountingAgent(SimulatedAgent()), whole["mining/paid_calls"] - 2), twins(2))
    folder = RoundFolder(tmp_path, 0)
    rows = [json.loads(line) for line in folder.part_file(0).read_text().splitlines()]
    bare = [{name: value for name, value in row.items() if name != "paid"} for row in rows]
    folder.part_file(0).write_text("".join(json.dumps(row) + "\n" for row in bare))
    assert len(folder.read_parts()) == len(rows) > 0
    assert {row.paid == {} for row in folder.read_parts().values()} == {True}


def test_what_was_paid_since(tmp_path: Path) -> None:
    """A reply from an agent's own store was paid for by somebody else."""
    cache = MessageCache(tmp_path)
    assert cache.newest() == 0.0
    cache.put("a" * 64, StoredReply(AgentReply("x", 1, 1), 0.1))
    began = cache.newest()
    cache.put("b" * 64, StoredReply(AgentReply("x", 1, 1), 0.1))
    cache.put("c" * 64, StoredReply(AgentReply("x", 1, 1, is_cached=True), 0.1))
    cache.put("a" * 64, StoredReply(AgentReply("y", 1, 1), 0.1))  # the first reply stays, and so does its moment
    assert [cache.was_paid_after(letter * 64, began) for letter in "abcd"] == [False, True, False, False]
    cache.close()


@pytest.mark.parametrize("cache", ["none", "memory"])
def test_without_a_store_what_is_paid_twice_counts_twice(tmp_path: Path, cache: str) -> None:
    """Tasks that ask the same (closed book, say) pay each for itself where no reply is kept; nothing is taken out.

    In memory it is paid once, and a kill loses it: what is paid again counts again.
    """
    config, tasks, counting = make_config(tmp_path), twins(3), CountingAgent(SimulatedAgent())
    rules = config.generator.rules()
    proposals = tuple(Proposal(t.canonical(), "template") for t in templates(rules).values() if rules.is_valid(t))
    plan = config.mining.plan(config.score.rule())

    def mine_with(agent: Any, name: str = "cut") -> dict[str, Any]:
        kept = MemoryMessageCache() if cache == "memory" else None
        runtime = WorkflowRuntime(agent, roles=DEFAULT_ROLES, cache=kept, max_concurrency=2)
        folder = RoundFolder(tmp_path / name, 0)
        setup = MiningSetup(tasks, plan, rules, runtime, tasks_at_once=2)
        mine_round(folder, setup, lambda: Proposals((proposals,) * len(tasks)), SingleProcess())
        return folder.read_figures()

    whole = CountingAgent(SimulatedAgent())
    assert mine_with(whole, "whole")["mining/paid_calls"] == whole.calls
    with pytest.raises(Killed):
        mine_with(DyingAgent(counting, whole.calls - 8))
    stored = list(RoundFolder(tmp_path / "cut", 0).read_parts().values())
    before, kept = counting.calls, sum(row.account.paid_calls for row in stored)
    assert stored
    found = mine_with(counting)
    assert found["mining/paid_calls"] == counting.calls - before + kept
    if cache == "none":
        assert found["mining/cached_calls"] == 0


def test_the_paid_share_is_resampled_by_claim_over_all_rounds(tmp_path: Path) -> None:
    """Two claims, so a resample is one of three: their own shares are the ends of the interval."""
    config = make_config(tmp_path)
    assert config.curriculum.rounds == 2
    calls = [{"a/1": (10, 6), "a/2": (10, 4), "b/1": (20, 4)}, {"a/1": (10, 2), "a/2": (10, 0), "b/1": (20, 0)}]
    for number, of_round in enumerate(calls):
        summed = account_figures(TrialAccount(calls=40, paid_calls=sum(paid for _, paid in of_round.values())))
        RoundFolder(config.run_dir, number).finish([], {"mining/tasks": 3, **summed}, of_round)
    bases = {"a/1": "a", "a/2": "a", "b/1": "b"}
    found = mining_totals(config, bases)["calls_ratio_cached"]
    assert found == {"value": 16 / 80, "low": 4 / 40, "high": 12 / 40, "n": 3}
    RoundFolder(config.run_dir, 1).calls_file.unlink()  # a run of before it was stored
    assert mining_totals(config, bases)["calls_ratio_cached"] == {"value": 16 / 80, "low": None, "high": None, "n": 3}
