"""The workflow runtime: a topology is executed on a task, and a run comes back.

Three things are kept apart: the order of the nodes (:mod:`~provgym.envs.workflow_schedule`), one call of one node
(:mod:`~provgym.envs.workflow_nodes`: stored replies, bound, ledger), and, here, what nodes are told and what the run
came to. A node that fails makes those that hear it fail, with the cause named; all others run on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import lru_cache

from provgym.envs.answer_judge import JUDGE_FAILURE, AnswerJudge, AnswerJudgement, JudgeFailure, check_judge
from provgym.envs.event_loop import run_to_end
from provgym.envs.roles import RoleLibrary
from provgym.envs.topology import MAX_NODES, Topology
from provgym.envs.topology_rules import TopologyRules
from provgym.envs.topology_tasks import TopologyTask
from provgym.envs.verifier import VerifierAccount
from provgym.envs.workflow_cache import MemoryMessageCache, MessageCache, ReplyStore
from provgym.envs.workflow_key import sibling_numbers
from provgym.envs.workflow_ledger import TokenLedger, TokenTotals
from provgym.envs.workflow_nodes import NodeExecutor
from provgym.envs.workflow_records import (
    PREDECESSOR,
    Agent,
    AgentFailure,
    AgentMessage,
    AgentReply,
    CallRecord,
    NodeAccount,
    NodeCall,
    NodeFailure,
    Phase,
    RunRequest,
    SessionAgent,
    TopologyRun,
    ordered_messages,
)
from provgym.envs.workflow_result import NodeResult, NodeSpared, answers_to_judge, run_of
from provgym.envs.workflow_schedule import run_in_order

__all__ = [
    "Agent",
    "AgentFailure",
    "AgentMessage",
    "AgentReply",
    "CallRecord",
    "MemoryMessageCache",
    "MessageCache",
    "NodeAccount",
    "NodeCall",
    "NodeFailure",
    "Phase",
    "RunRequest",
    "SessionAgent",
    "TokenLedger",
    "TokenTotals",
    "TopologyRun",
    "VerifierAccount",
    "WorkflowRuntime",
]

_RUNS_PER_SLOT = 2  # runs under way per call in flight: enough that a free slot always finds a node that is ready


class WorkflowRuntime:
    """Executes topologies.

    Equal graphs have equal runs: a run is numbered by the canonical form of its topology. Within a run every node is a
    draw of its own; over runs, nodes that are told the same share one reply.

    A Verifier's stop spares all nodes that hear it, directly or through others, and no node besides: which nodes run
    never depends on which reply came first. Of several stops the one with the lowest node that gives an answer counts.

    Args:
        agent: Plays the roles.
        roles: Every role that topologies name.
        cache: Replies that were had before; None asks the agent every time.
        max_concurrency: Calls that the agent works on at once, over all runs.
        judge: Runs answers in code; without one, tasks that ask for code are refused.

    Attributes:
        ledger: What calls cost so far, training and evaluation apart.
        cache: As given.

    Raises:
        ValueError: If ``max_concurrency`` < 1.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        roles: RoleLibrary,
        cache: ReplyStore | None = None,
        max_concurrency: int = 16,
        judge: AnswerJudge | None = None,
    ) -> None:
        self.ledger = TokenLedger()
        self.cache = cache
        self._opens = agent if isinstance(agent, SessionAgent) else None
        self._roles, self._judge = roles, judge
        self._execute = NodeExecutor(agent, cache, self.ledger, max_concurrency)
        self._most_runs = _RUNS_PER_SLOT * max_concurrency

    async def run(self, request: RunRequest) -> TopologyRun:
        """Execute one topology; may be called many times at once.

        Raises:
            TopologyError: If it is no team: an unknown role, not one Answerer, or a node that does not reach it. No
                other limit is checked, since baselines may exceed those of a generator.
            ValueError: If the task asks for code and there is no judge.
        """
        topology = self._checked(request)
        step = _Steps(request, topology, self._roles, self._execute)
        async with self.session():
            results = await run_in_order(topology, step)
        answers = answers_to_judge(request.task, topology, results)
        try:
            judgements = await self._judged(request.task, answers)
        except JudgeFailure as failure:
            last = topology.num_nodes - 1
            results = (*results[:last], NodeFailure(last, topology.roles[last], JUDGE_FAILURE, str(failure)))
            judgements = []
        return run_of(request, topology, results, judgements)

    async def run_many(
        self, requests: Sequence[RunRequest], on_done: Callable[[int, TopologyRun], None] | None = None
    ) -> list[TopologyRun]:
        """Execute many topologies at once, within the bound on calls in flight.

        Args:
            requests: In any order.
            on_done: Called with a request's number and its run, in the order in which runs end.

        Returns:
            The runs, in the order of the requests.

        Raises:
            TopologyError: As for :meth:`run`, before the first call.
            ValueError: As for :meth:`run`, before the first call.
        """
        for request in requests:
            self._checked(request)
        runs: dict[int, TopologyRun] = {}
        waiting = iter(enumerate(requests))

        async def work() -> None:
            for number, request in waiting:  # shared: each request is taken once
                runs[number] = await self.run(request)
                if on_done is not None:
                    on_done(number, runs[number])

        async with self.session():
            workers = [asyncio.ensure_future(work()) for _ in range(min(self._most_runs, len(requests)))]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
        return [runs[number] for number in range(len(requests))]

    def run_many_sync(
        self, requests: Sequence[RunRequest], on_done: Callable[[int, TopologyRun], None] | None = None
    ) -> list[TopologyRun]:
        """Do the same from code that is not asynchronous, any number of times, also inside a running event loop."""
        return run_to_end(self.run_many(requests, on_done))

    def _checked(self, request: RunRequest) -> Topology:
        check_judge(request.task.task_id, request.task.answer_kind, self._judge)
        return _canonical_team(request.topology, self._roles)

    async def _judged(self, task: TopologyTask, answers: Sequence[str]) -> list[AnswerJudgement]:
        return [] if self._judge is None else [await self._judge.judge(task.gold, answer) for answer in answers]

    def session(self) -> AbstractAsyncContextManager[object]:
        """Keep open what the agent holds open while it answers, such as connections, over many single runs."""
        return nullcontext() if self._opens is None else self._opens.session()


class _Steps:
    """What each node of one run does once all that it hears have run."""

    def __init__(self, request: RunRequest, topology: Topology, roles: RoleLibrary, execute: NodeExecutor) -> None:
        self._request, self._topology, self._roles, self._execute = request, topology, roles, execute
        self._siblings = sibling_numbers(topology)

    async def __call__(self, node: int, heard: Mapping[int, NodeResult]) -> NodeResult:
        """Return what became of a node, given what became of those that it hears."""
        replies: dict[int, AgentReply] = {}
        is_spared = False
        for sender, result in heard.items():
            if isinstance(result, NodeFailure):
                return self._never_asked(node, result)
            if isinstance(result, NodeSpared) or result.reply.stops:
                is_spared = True
            else:
                replies[sender] = result.reply
        if is_spared:
            return NodeSpared()
        try:
            return await self._execute(self._call(node, replies), node)
        except AgentFailure as failure:
            return NodeFailure(node, self._topology.roles[node], failure.kind, failure.detail)

    def _call(self, node: int, replies: Mapping[int, AgentReply]) -> NodeCall:
        request, task = self._request, self._request.task
        return NodeCall(
            task_id=task.task_id,
            role=self._roles[self._topology.roles[node]],
            question=task.question,
            answer_kind=task.answer_kind,
            choices=task.choices,
            evidence=request.evidence.units,
            messages=ordered_messages(
                AgentMessage(self._topology.roles[sender], sender, reply.text) for sender, reply in replies.items()
            ),
            replicate=request.replicate,
            sibling=self._siblings[node],
            phase=request.phase,
        )

    def _never_asked(self, node: int, failed: NodeFailure) -> NodeFailure:
        cause = failed.node if failed.cause is None else failed.cause
        detail = f"never asked, because {self._topology.roles[cause]} ({cause}) failed"
        return NodeFailure(node, self._topology.roles[node], PREDECESSOR, detail, cause)


@lru_cache(maxsize=65_536)
def _canonical_team(topology: Topology, roles: RoleLibrary) -> Topology:
    """Return the canonical form of a topology that is a team.

    Raises:
        TopologyError: If it is none.
    """
    TopologyRules(roles.names, max_nodes=MAX_NODES, max_in_degree=None).check(topology)
    return topology.canonical()
