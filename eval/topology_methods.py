"""Methods that answer questions with teams of agents: what one is, and those that set up one team per question.

All methods get the same questions, evidence and executor; what each changes stands in
:data:`~provgym.eval.topology_names.WHAT_CHANGES`. A method knows neither trainer nor model: it is handed a function
that proposes teams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from provgym.envs.evidence_units import EvidenceContext
from provgym.envs.topology import Topology
from provgym.envs.topology_tasks import TopologyTask
from provgym.envs.workflow_records import PREDECESSOR, NodeAccount, RunRequest, TopologyRun
from provgym.eval.topology_runs import MethodRun, VerifierCheck
from provgym.rewards.outcome import Ending

NO_EVIDENCE = EvidenceContext((), ())


@dataclass(frozen=True, slots=True)
class Question:
    """One question to answer.

    Attributes:
        task: What is asked; its gold answer reaches no agent.
        evidence: What was retrieved for it, the same for all methods.
        replicate: Repetition, from 0; repetitions are independent draws.
    """

    task: TopologyTask
    evidence: EvidenceContext
    replicate: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """(task id, replicate)."""
        return self.task.task_id, self.replicate


class Executor(Protocol):
    """Runs teams; :class:`~provgym.envs.workflow.WorkflowRuntime` is one."""

    def run_many_sync(
        self, requests: Sequence[RunRequest], on_done: Callable[[int, TopologyRun], None] | None = None
    ) -> list[TopologyRun]:
        """Run requests at the same time, as far as the executor's limit allows.

        Args:
            requests: What to run.
            on_done: Called with (number of the request, its run) as each one ends.

        Returns:
            The runs in the order of ``requests``.
        """
        ...


Keep = Callable[[int, MethodRun], None]
"""Called with (number of the question, its run) as each one ends: for storing and for progress."""

Propose = Callable[[Sequence[Question]], Sequence[Topology]]
"""Returns one team per question; must not depend on which other questions stand beside it."""

Show = Callable[[Sequence[Question]], Sequence[EvidenceContext]]
"""Returns what the agents of each question are shown."""


class Method(Protocol):
    """A way of answering questions."""

    @property
    def name(self) -> str:
        """Key in files and tables."""
        ...

    @property
    def fingerprint(self) -> str:
        """What decides its runs beside questions and executor: weights, template, settings."""
        ...

    @property
    def builds_on(self) -> str | None:
        """The method whose runs it needs, which is played before it; None for most."""
        ...

    def play(
        self,
        questions: Sequence[Question],
        executor: Executor,
        earlier: Mapping[tuple[str, int], MethodRun],
        keep: Keep,
    ) -> None:
        """Answer every question.

        Args:
            questions: What to answer.
            executor: Who runs teams.
            earlier: Runs of the method that this one builds on, by question; empty without one.
            keep: Told of every run as it ends.
        """
        ...


def shown_as_is(questions: Sequence[Question]) -> list[EvidenceContext]:
    """Show agents what was retrieved."""
    return [question.evidence for question in questions]


def shown_nothing(questions: Sequence[Question]) -> list[EvidenceContext]:
    """Show agents no evidence: closed book."""
    return [NO_EVIDENCE for _ in questions]


@dataclass(frozen=True, slots=True)
class TeamMethod:
    """One team per question, run once.

    Attributes:
        name: Key.
        propose: Who takes part.
        fingerprint: What decides the proposals.
        show: What the agents see.
    """

    name: str
    propose: Propose
    fingerprint: str
    show: Show = shown_as_is

    @property
    def builds_on(self) -> str | None:
        """Nothing."""
        return None

    def play(
        self,
        questions: Sequence[Question],
        executor: Executor,
        earlier: Mapping[tuple[str, int], MethodRun],
        keep: Keep,
    ) -> None:
        """Propose all teams, then run them.

        Args:
            questions: In the order in which runs are numbered.
            executor: Runs teams.
            earlier: Runs of other methods by task and replicate; not looked at.
            keep: Called with each question's number and run as it ends.

        Raises:
            ValueError: If the proposals are not one per question.
        """
        teams, shown = self.propose(questions), self.show(questions)
        if len(teams) != len(questions) or len(shown) != len(questions):
            raise ValueError(
                f"method {self.name!r}: {len(teams)} teams and {len(shown)} contexts for {len(questions)} questions; "
                "expected one each"
            )
        requests = [
            RunRequest(team, question.task, evidence, question.replicate, "eval")
            for team, question, evidence in zip(teams, questions, shown, strict=True)
        ]
        executor.run_many_sync(
            requests, lambda number, run: keep(number, record_of(self.name, questions[number], [run]))
        )


def same_team(topology: Topology) -> Propose:
    """Return what proposes one team for every question."""
    return lambda questions: [topology] * len(questions)


def record_of(
    method: str,
    question: Question,
    runs: Sequence[TopologyRun],
    *,
    latency_s: float | None = None,
) -> MethodRun:
    """Return the record of a question that took one or several team runs; ending and answer are the last run's.

    Args:
        method: Name of the method.
        question: What was asked.
        runs: In order, at least one.
        latency_s: Of all runs together; their sum if None.
    """
    task, last = question.task, runs[-1]
    starts = [sum(run.topology.num_nodes for run in runs[:number]) for number in range(len(runs))]
    calls = [call for run in runs for call in run.calls]
    edges = [(s + start, r + start) for start, run in zip(starts, runs, strict=True) for s, r in run.topology.edges]
    return MethodRun(
        method=method,
        setup="",
        task_id=task.task_id,
        base_id=task.base_id,
        split=task.split,
        evidence_kind=task.evidence_kind,
        replicate=question.replicate,
        answer_kind=task.answer_kind,
        choices=task.choices,
        gold=task.gold,
        ending=last.ending,
        reason=last.reason,
        answer=last.answer,
        roles=tuple(role for run in runs for role in run.topology.roles),
        edges=tuple(sorted(edges)),
        messages=tuple(
            type(m)(m.sender, m.node + start, m.text)
            for start, run in zip(starts, runs, strict=True)
            for m in run.messages
        ),
        prompt_tokens=sum(call.prompt_tokens for call in calls),
        completion_tokens=sum(call.completion_tokens for call in calls),
        calls=len(calls),
        cached_calls=sum(call.is_cached for call in calls),
        paid_tokens=sum(call.prompt_tokens + call.completion_tokens for call in calls if not call.is_cached),
        is_counted=all(call.is_counted for call in calls),
        latency_s=sum(run.latency_s for run in runs) if latency_s is None else latency_s,
        samples=len(runs),
        checks=tuple(
            _check(account, start) for start, run in zip(starts, runs, strict=True) for account in run.accounts
        ),
        error=failure_text(last) if last.ending is Ending.ERROR else None,
        judgements=tuple(dict.fromkeys(judgement for run in runs for judgement in run.judgements)),
    )


def failure_text(run: TopologyRun) -> str:
    """Say which node failed first and why."""
    first = next((failure for failure in run.failures if failure.kind != PREDECESSOR), None)
    if first is None:
        return run.reason or "no reason given"
    return (
        f"{first.role} ({first.node}): {first.kind}: {first.detail}" if first.detail else f"{first.role}: {first.kind}"
    )


def _check(found: NodeAccount, start: int) -> VerifierCheck:
    account, counts = found.account, found.account.counts()
    return VerifierCheck(
        node=found.node + start,
        before=account.answer_before,
        after=account.answer_after,
        supported=counts["supported"],
        contradicted=counts["contradicted"],
        not_found=counts["not found"],
        corrected=account.corrections,
    )
