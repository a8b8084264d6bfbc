"""What became of the nodes of a run, and what the run came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from provgym.envs.answer_judge import AnswerJudgement, is_judged_right, needs_judge
from provgym.envs.topology import Topology
from provgym.envs.topology_tasks import TopologyTask
from provgym.envs.workflow_nodes import NodeReply
from provgym.envs.workflow_records import (
    STOPPED_BY_VERIFIER,
    TOO_LONG,
    AgentMessage,
    NodeAccount,
    NodeFailure,
    RunRequest,
    TopologyRun,
)
from provgym.rewards.answers import AnswerKind, extract_answer, is_correct
from provgym.rewards.outcome import Ending


@dataclass(frozen=True, slots=True)
class NodeSpared:
    """A node that was not asked, because a Verifier that it hears stopped the topology."""


NodeResult = NodeReply | NodeFailure | NodeSpared


class _Verdict(NamedTuple):
    """How a run ended."""

    ending: Ending
    reason: str | None
    answer: str | None


def run_of(
    request: RunRequest,
    topology: Topology,
    results: Sequence[NodeResult],
    judgements: Sequence[AnswerJudgement] = (),
) -> TopologyRun:
    """Put together what a run came to.

    Args:
        request: What was asked for.
        topology: Its canonical form.
        results: (N,) what became of each node.
        judgements: Of :func:`answers_to_judge`.
    """
    task = request.task
    replied, failures = _replied(results), _failures(results)
    ending, reason, answer = _verdict(task, replied, failures, topology)
    right = None if ending is Ending.ERROR else answer is not None and _is_right(task, answer, judgements)
    return TopologyRun(
        task_id=task.task_id,
        topology_key=topology.key,
        replicate=request.replicate,
        phase=request.phase,
        topology=topology,
        ending=ending,
        reason=reason,
        answer=answer,
        is_correct=right,
        messages=tuple(AgentMessage(topology.roles[n], n, result.reply.text) for n, result in replied.items()),
        calls=tuple(result.record for result in replied.values()),
        failures=failures,
        accounts=tuple(NodeAccount(n, r.reply.account) for n, r in replied.items() if r.reply.account is not None),
        latency_s=_slowest_chain(topology, results),
        judgements=tuple(judgements),
    )


def answers_to_judge(task: TopologyTask, topology: Topology, results: Sequence[NodeResult]) -> tuple[str, ...]:
    """Return the answers of a run that have to be run: its own, and those that reached Verifiers or left them.

    Args:
        task: What was asked.
        topology: The canonical form of the run's.
        results: (N,) what became of each node.

    Returns:
        Distinct answers; none for a kind that is compared with the gold answer.
    """
    if not needs_judge(task.answer_kind):
        return ()
    replied = _replied(results)
    verdict = _verdict(task, replied, _failures(results), topology)
    accounts = [result.reply.account for result in replied.values() if result.reply.account is not None]
    met = [answer for account in accounts for answer in (account.answer_before, account.answer_after)]
    return tuple(dict.fromkeys(answer for answer in (verdict.answer, *met) if answer is not None))


def _replied(results: Sequence[NodeResult]) -> dict[int, NodeReply]:
    return {node: result for node, result in enumerate(results) if isinstance(result, NodeReply)}


def _failures(results: Sequence[NodeResult]) -> tuple[NodeFailure, ...]:
    return tuple(result for result in results if isinstance(result, NodeFailure))


def _verdict(
    task: TopologyTask, replied: dict[int, NodeReply], failures: Sequence[NodeFailure], topology: Topology
) -> _Verdict:
    """Say how a run ended; a failure outweighs everything, since nobody knows what the failed node would have said."""
    if failures:
        first_causes = {failure.kind for failure in failures if failure.cause is None}
        return _Verdict(Ending.TRUNCATED if first_causes == {TOO_LONG} else Ending.ERROR, None, None)
    stops = [node for node, result in replied.items() if result.reply.stops]
    last = topology.num_nodes - 1  # the Answerer: every other node reaches it
    for node in stops or [last]:
        answer = _answer_in(task.answer_kind, replied[node].reply.text, task.choices)
        if answer is not None:
            return _Verdict(Ending.ANSWERED, STOPPED_BY_VERIFIER if stops else None, answer)
    return _Verdict(Ending.INVALID, STOPPED_BY_VERIFIER if stops else None, None)


@lru_cache(maxsize=65_536)
def _answer_in(kind: AnswerKind, text: str, choices: tuple[str, ...]) -> str | None:
    return extract_answer(kind, text, choices=choices)


def _is_right(task: TopologyTask, answer: str, judgements: Sequence[AnswerJudgement]) -> bool:
    if needs_judge(task.answer_kind):
        return is_judged_right(judgements, answer)
    return _equals_gold(task.answer_kind, answer, task.gold, task.choices)


@lru_cache(maxsize=65_536)
def _equals_gold(kind: AnswerKind, answer: str, gold: str, choices: tuple[str, ...]) -> bool:
    return is_correct(kind, answer, gold, choices=choices)


def _slowest_chain(topology: Topology, results: Sequence[NodeResult]) -> float:
    """Return the seconds of the slowest chain of calls; failed nodes count as nothing."""
    ends = [0.0] * topology.num_nodes
    for node, result in enumerate(results):  # canonical: senders stand before receivers
        took = result.record.seconds if isinstance(result, NodeReply) else 0.0
        ends[node] = took + max((ends[sender] for sender in topology.predecessors(node)), default=0.0)
    return max(ends)
