"""The runtime: who is told what, how failures and stops travel, and what a run comes to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.envs.workflow_worlds import (
    CHAIN,
    PAIR,
    SINGLE,
    STAR,
    A,
    P,
    R,
    ScriptedAgent,
    V,
    agreement,
    conflict,
    fails,
    plain,
    request,
)

from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.simulated_agents import SimulatedAgent
from provgym.envs.topology import Topology
from provgym.envs.topology_rules import TopologyError, TopologyFault
from provgym.envs.workflow import (
    AgentReply,
    MemoryMessageCache,
    NodeCall,
    TopologyRun,
    WorkflowRuntime,
)
from provgym.rewards.outcome import Ending


def runtime(agent: object, **options: object) -> WorkflowRuntime:
    return WorkflowRuntime(agent, roles=DEFAULT_ROLES, **options)  # type: ignore[arg-type]


def run(agent: object, topology: Topology, **options: object) -> TopologyRun:
    return runtime(agent, **options).run_many_sync([request(topology)])[0]


def test_a_node_is_told_its_role_the_task_and_what_it_hears_and_nothing_else() -> None:
    agent = ScriptedAgent({R: plain("it does"), V: plain("checked: it does")})
    result = run(agent, CHAIN)
    assert [call.role.name for call in agent.calls] == [R, V, A]
    assert [[(m.sender, m.text) for m in call.messages] for call in agent.calls] == [
        [],
        [(R, "it does")],
        [(V, "checked: it does")],
    ]
    task = agreement()
    for call in agent.calls:
        assert (call.question, call.evidence, call.choices) == (task.question, task.graph.units, ())
    assert (result.ending, result.answer, result.is_correct) == (Ending.ANSWERED, "SUPPORT", True)
    assert [(m.sender, m.node, m.text) for m in result.messages] == [
        (R, 0, "it does"),
        (V, 1, "checked: it does"),
        (A, 2, "Answer: SUPPORT"),
    ]
    assert (result.tokens, result.failures, result.reason) == (36, (), None)


def test_a_wrong_answer_is_wrong_and_one_that_cannot_be_read_is_invalid() -> None:
    wrong = run(ScriptedAgent(default=plain("Answer: REFUTE")), SINGLE)
    assert (wrong.ending, wrong.answer, wrong.is_correct) == (Ending.ANSWERED, "REFUTE", False)
    unread = run(ScriptedAgent(default=plain("Who knows?")), SINGLE)
    assert (unread.ending, unread.answer, unread.is_correct) == (Ending.INVALID, None, False)


def test_one_failure_leaves_its_siblings_and_names_itself_to_those_that_hear_it() -> None:
    """Fault kinds: one failure loses its siblings; endpoint failure scored as wrong."""

    def second_fails(call: NodeCall) -> AgentReply:
        return fails("timeout")(call) if call.sibling == 1 else AgentReply("fine", 10, 2)

    agent = ScriptedAgent({R: second_fails})
    topology = Topology((R, R, R, V, A), ((0, 3), (1, 3), (2, 4), (3, 4)))
    result = run(agent, topology)
    roles = result.topology.roles
    assert result.ending is Ending.ERROR
    assert (result.answer, result.is_correct) == (None, None)
    first = next(f for f in result.failures if f.cause is None)
    assert (first.role, first.kind, first.detail) == (R, "timeout", "as told")
    behind = [f for f in result.failures if f.cause is not None]
    assert {(f.role, f.kind, f.cause) for f in behind} >= {(A, "predecessor", first.node)}
    assert all(f"{R} ({first.node}) failed" in f.detail for f in behind)
    assert len(result.messages) == 2  # the siblings are kept
    assert {roles[m.node] for m in result.messages} == {R}
    assert len(agent.calls) == 3  # nobody who hears a failure was asked
    assert str(first) == f"{R} ({first.node}): timeout: as told"


@pytest.mark.parametrize(
    ("kind", "ending", "right"), [("too_long", Ending.TRUNCATED, False), ("server", Ending.ERROR, None)]
)
def test_what_does_not_fit_is_truncated_and_other_failures_are_errors(
    kind: str, ending: Ending, right: bool | None
) -> None:
    """Fault kind: truncation eats the question (what can't fit ends truncated)."""
    result = run(ScriptedAgent({R: fails(kind)}), PAIR)
    assert (result.ending, result.is_correct) == (ending, right)


def test_an_error_of_one_run_is_no_other_runs_affair() -> None:
    """Fault kind: endpoint failure scored as wrong: 10 questions, 2 time out, 8 of 8 are right."""

    def two_fail(call: NodeCall) -> AgentReply:
        return fails("timeout")(call) if call.replicate in (3, 7) else AgentReply("Answer: SUPPORT", 10, 2)

    engine = runtime(ScriptedAgent(default=two_fail))
    runs = engine.run_many_sync([request(SINGLE, replicate=n) for n in range(10)])
    assert [r.replicate for r in runs if r.ending is Ending.ERROR] == [3, 7]
    scored = [r.is_correct for r in runs if r.is_correct is not None]
    assert scored == [True] * 8
    assert (engine.ledger.totals().paid_calls, engine.ledger.totals().failed) == (8, 2)


@pytest.mark.parametrize(
    ("text", "ending", "right"), [("Answer: SUPPORT", Ending.ANSWERED, True), ("Nothing holds.", Ending.INVALID, False)]
)
def test_a_verifiers_stop_spares_those_that_hear_it_and_nobody_else(text: str, ending: Ending, right: bool) -> None:
    agent = ScriptedAgent({V: lambda call: AgentReply(text, 10, 2, stops=True)})
    result = run(agent, Topology((R, V, R, A), ((0, 1), (1, 3), (2, 3))))
    assert sorted(call.role.name for call in agent.calls) == [R, R, V]
    assert (result.ending, result.reason, result.is_correct) == (ending, "stopped_by_verifier", right)
    assert result.failures == ()
    assert len(result.calls) == 3


def test_of_two_stops_the_first_in_canonical_order_that_answers_counts_however_slow_it_is() -> None:
    def stop(call: NodeCall) -> AgentReply:
        return AgentReply("nothing holds" if call.sibling == 0 else "Answer: REFUTE", 1, 1, stops=True)

    topology = Topology((V, V, V, A), ((0, 3), (1, 3), (2, 3)))
    for pause in (0.0, 0.01):
        result = run(ScriptedAgent({V: stop}, pauses={V: pause}), topology)
        assert (result.answer, len(result.calls)) == ("REFUTE", 3)


def test_equal_graphs_have_equal_runs_however_they_are_numbered() -> None:
    topology = Topology((P, R, V, A), ((0, 1), (0, 2), (1, 2), (2, 3)))
    cache = MemoryMessageCache()
    engine = runtime(SimulatedAgent(), cache=cache)
    (first,) = engine.run_many_sync([request(topology, conflict())])
    asked = len(cache)
    for order in permutations(range(4)):
        place = {node: number for number, node in enumerate(order)}
        renumbered = Topology(
            tuple(topology.roles[node] for node in order),
            tuple((place[sender], place[receiver]) for sender, receiver in topology.edges),
        )
        (again,) = engine.run_many_sync([request(renumbered, conflict())])
        assert again.messages == first.messages
        assert (again.topology_key, again.answer, again.topology) == (first.topology_key, first.answer, first.topology)
    assert len(cache) == asked


def test_two_equal_reasoners_are_two_draws_and_replicates_are_others() -> None:
    engine = runtime(SimulatedAgent(), cache=MemoryMessageCache())
    runs = engine.run_many_sync([request(STAR, conflict(), replicate) for replicate in range(12)])
    keys = [call.key for r in runs for call in r.calls]
    assert len(set(keys)) == len(keys) == 48
    texts = [{m.text for m in r.messages if m.sender == R} for r in runs]
    assert max(map(len, texts)) > 1


def test_variants_share_every_node_that_is_told_the_same() -> None:
    """A pruned variant asks only what changed."""
    engine = runtime(ScriptedAgent({R: plain("same")}), cache=MemoryMessageCache())
    engine.run_many_sync([request(STAR)])
    assert engine.ledger.totals().paid_calls == 4
    (pruned,) = engine.run_many_sync([request(Topology((R, R, A), ((0, 2), (1, 2))))])
    assert [call.is_cached for call in pruned.calls] == [True, True, False]
    (again,) = engine.run_many_sync([request(STAR)])
    assert all(call.is_cached for call in again.calls)


def test_equal_calls_at_once_are_asked_once() -> None:
    agent = ScriptedAgent(pauses={A: 0.005})
    engine = runtime(agent, cache=MemoryMessageCache())
    runs = engine.run_many_sync([request(SINGLE) for _ in range(5)])
    assert len(agent.calls) == 1
    assert sorted(r.calls[0].is_cached for r in runs) == [False, True, True, True, True]


def test_without_a_store_every_run_asks() -> None:
    agent = ScriptedAgent()
    runtime(agent).run_many_sync([request(SINGLE), request(SINGLE)])
    assert len(agent.calls) == 2


def test_the_bound_holds_over_all_runs_and_is_used() -> None:
    agent = ScriptedAgent(pauses={R: 0.002, A: 0.002})
    runtime(agent, max_concurrency=4).run_many_sync([request(STAR, replicate=n) for n in range(6)])
    assert agent.most_live == 4
    assert len(agent.calls) == 24


def test_it_runs_twice_in_one_process_and_inside_a_running_loop() -> None:
    """Fault kind: closed event loop."""
    engine = runtime(ScriptedAgent(pauses={A: 0.001}), cache=MemoryMessageCache(), max_concurrency=1)
    for replicate in range(2):
        runs = engine.run_many_sync([request(STAR, replicate=replicate)] * 2)
        assert [r.ending for r in runs] == [Ending.ANSWERED] * 2

    async def inside() -> list[TopologyRun]:
        return engine.run_many_sync([request(STAR, replicate=7)])

    assert asyncio.run(inside())[0].ending is Ending.ANSWERED
    assert asyncio.run(engine.run(request(STAR, replicate=8))).ending is Ending.ANSWERED


def test_runs_come_back_in_order_and_are_told_of_as_they_end() -> None:
    seen: list[tuple[int, int]] = []
    engine = runtime(SimulatedAgent())
    requests = [request(topology, replicate=n) for n, topology in enumerate([STAR, SINGLE, CHAIN, PAIR])]
    runs = engine.run_many_sync(requests, lambda number, done: seen.append((number, done.replicate)))
    assert [r.replicate for r in runs] == [0, 1, 2, 3]
    assert sorted(seen) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert engine.run_many_sync([]) == []


@pytest.mark.parametrize(
    ("topology", "fault"),
    [
        (Topology((R,), ()), TopologyFault.NO_ANSWERER),
        (Topology((R, A), ()), TopologyFault.DEAD_END),
        (Topology((A, A), ((0, 1),)), TopologyFault.SECOND_ANSWERER),
        (Topology(("Poet", A), ((0, 1),)), TopologyFault.UNKNOWN_ROLE),
    ],
)
def test_what_is_no_team_is_refused_before_anybody_is_asked(topology: Topology, fault: TopologyFault) -> None:
    """Fault kind: cyclic graph (unknown agent; a cycle can't even be written down as a topology)."""
    agent = ScriptedAgent()
    with pytest.raises(TopologyError) as caught:
        runtime(agent).run_many_sync([request(SINGLE), request(topology)])
    assert caught.value.fault is fault
    assert agent.calls == []


def test_a_bug_of_an_agent_is_no_failure_and_ends_everything() -> None:
    def bug(call: NodeCall) -> AgentReply:
        raise ZeroDivisionError("a bug")

    agent = ScriptedAgent({R: bug}, pauses={A: 0.001})
    with pytest.raises(ZeroDivisionError, match="a bug"):
        runtime(agent).run_many_sync([request(SINGLE, replicate=n) for n in range(3)] + [request(PAIR)])
    assert agent.live == 0


def test_a_session_is_open_while_an_agent_answers_and_closed_afterwards() -> None:
    class Session(ScriptedAgent):
        holders = 0
        seen: set[int] = set()

        @asynccontextmanager
        async def session(self) -> AsyncIterator[None]:
            self.holders += 1
            try:
                yield
            finally:
                self.holders -= 1

        async def reply(self, call: NodeCall) -> AgentReply:
            self.seen.add(self.holders)
            return await super().reply(call)

    agent = Session()
    runtime(agent).run_many_sync([request(PAIR)])
    assert agent.holders == 0
    assert min(agent.seen) >= 1


def test_latency_is_that_of_the_slowest_chain() -> None:
    agent = ScriptedAgent(pauses={R: 0.02, A: 0.01})
    cache = MemoryMessageCache()
    engine = runtime(agent, cache=cache)
    (first,) = engine.run_many_sync([request(STAR)])
    seconds = {call.node: call.seconds for call in first.calls}
    assert first.latency_s == max(seconds[0], seconds[1], seconds[2]) + seconds[3]
    (again,) = engine.run_many_sync([request(STAR)])
    assert again.latency_s == first.latency_s  # a stored reply counts with what it took


@settings(max_examples=25, deadline=None)
@given(
    words=st.integers(1, 40),
    extra=st.integers(0, 3),
)
def test_tokens_stay_within_the_documented_bound(words: int, extra: int) -> None:
    """N (L_Q + L_K + d_max L_M) + N L_gen, with verifiers' replies within L_gen; source: K-GAT, arXiv:2608.27984."""
    workers = 1 + extra
    topology = Topology((R,) * workers + (A,), tuple((n, workers) for n in range(workers)))
    message = " ".join(["word"] * words)

    def count(call: NodeCall) -> AgentReply:
        heard = sum(len(m.text.split()) for m in call.messages)
        return AgentReply(f"{message}\nAnswer: SUPPORT", 50 + heard, words + 2)

    result = run(ScriptedAgent(default=count), topology)
    nodes, longest = topology.num_nodes, words + 2
    assert result.tokens <= nodes * (50 + workers * longest) + nodes * longest
