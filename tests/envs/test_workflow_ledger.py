"""The token ledger: exact under concurrency, phases apart, stored replies apart from paid ones."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor

from tests.envs.workflow_worlds import CHAIN, SINGLE, STAR, A, R, ScriptedAgent, conflict, fails, request

from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.simulated_agents import SimulatedAgent
from provgym.envs.workflow import (
    AgentReply,
    CallRecord,
    MemoryMessageCache,
    NodeCall,
    TokenLedger,
    TokenTotals,
    WorkflowRuntime,
)
from provgym.envs.workflow_ledger import totals_of


class Jittery(SimulatedAgent):
    """Answers after a nap of another length each time."""

    def __init__(self) -> None:
        super().__init__()
        self._naps = random.Random(7)

    async def reply(self, call: NodeCall) -> AgentReply:
        for _ in range(self._naps.randrange(5)):
            await asyncio.sleep(0)
        return await super().reply(call)


def test_it_says_what_the_records_say_whatever_ran_at_once() -> None:
    requests = [
        request(topology, conflict(), n % 5, "train" if n % 3 else "eval")
        for n in range(20)
        for topology in (CHAIN, STAR, SINGLE)
    ]
    engine = WorkflowRuntime(Jittery(), roles=DEFAULT_ROLES, cache=MemoryMessageCache(), max_concurrency=7)
    runs = engine.run_many_sync(requests)
    for phase in ("train", "eval"):
        records = [call for run in runs for call in run.calls if call.phase == phase]
        totals = engine.ledger.totals(phase)
        assert totals == totals_of(records)
        paid = [call for call in records if not call.is_cached]
        assert totals.paid_calls == len(paid) > 0
        assert totals.prompt_tokens == sum(call.prompt_tokens for call in paid)
        assert totals.cached_completion_tokens == sum(c.completion_tokens for c in records if c.is_cached)
    # Each distinct call was paid once, over both phases.
    keys = {call.key for run in runs for call in run.calls}
    assert engine.ledger.totals().paid_calls == len(keys)


def test_threads_may_book_at_once() -> None:
    ledger = TokenLedger()

    def book(number: int) -> None:
        for _ in range(500):
            ledger.book(CallRecord(0, A, "train", 3, 2, is_cached=number % 2 == 0, key="k"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(book, range(4)))
    assert ledger.totals("train") == TokenTotals(1000, 1000, 3000, 2000, 3000, 2000)


def test_tokens_that_nobody_counted_are_unknown_and_not_zero() -> None:
    agent = ScriptedAgent(default=lambda call: AgentReply("Answer: SUPPORT", 0, 0, is_counted=False))
    engine = WorkflowRuntime(agent, roles=DEFAULT_ROLES)
    (run,) = engine.run_many_sync([request(SINGLE)])
    assert not run.calls[0].is_counted
    assert engine.ledger.totals().uncounted == 1


def test_a_reply_from_the_agents_own_store_was_not_paid_for() -> None:
    agent = ScriptedAgent(default=lambda call: AgentReply("Answer: SUPPORT", 9, 1, is_cached=True))
    engine = WorkflowRuntime(agent, roles=DEFAULT_ROLES, cache=MemoryMessageCache())
    (run,) = engine.run_many_sync([request(SINGLE)])
    assert run.calls[0].is_cached
    assert engine.ledger.totals() == TokenTotals(cached_calls=1, cached_prompt_tokens=9, cached_completion_tokens=1)


def test_failed_calls_are_counted_apart() -> None:
    engine = WorkflowRuntime(ScriptedAgent({R: fails("server")}), roles=DEFAULT_ROLES)
    engine.run_many_sync([request(STAR, phase="train")])
    assert engine.ledger.totals("train") == TokenTotals(failed=3)
