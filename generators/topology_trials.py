"""Executing one task's topologies, each replicate of each at most once, with an account of what that cost.

A variant that pruning makes differs from its parent in one node or edge. The runtime's message cache answers every node
whose inputs did not change; what is kept here answers whole topologies that come up again, and stops replicates that
can't change a decision any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Literal, NamedTuple, Protocol

from provgym.envs.event_loop import all_of
from provgym.envs.evidence_units import EvidenceContext
from provgym.envs.topology import Topology
from provgym.envs.topology_executor import outcome_of_runs
from provgym.envs.topology_tasks import TopologyTask
from provgym.envs.workflow_records import CallRecord, RunRequest, TopologyRun
from provgym.rewards.outcome import Ending
from provgym.rewards.topology_score import SuccessEstimator, TopologyOutcome, success_rate


class TopologyRunner(Protocol):
    """Runs a topology on a task; the workflow runtime is one."""

    async def run(self, request: RunRequest) -> TopologyRun:
        """Return what came of one execution."""
        ...


@dataclass(frozen=True, slots=True)
class TrialAccount:
    """What executions cost.

    Attributes:
        runs: Executions that were asked for, those answered from memory included.
        executed: Executions that really took place.
        errors: Of these, those that ended in ``error``; they are in no success rate.
        calls: Node calls of all runs asked for: what is paid without message cache and memory.
        paid_calls: Node calls that an agent really answered.
        cached_calls: Node calls that the message cache answered.
        prompt_tokens: Of paid calls.
        completion_tokens: Of paid calls.
    """

    runs: int = 0
    executed: int = 0
    errors: int = 0
    calls: int = 0
    paid_calls: int = 0
    cached_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: TrialAccount) -> TrialAccount:
        return TrialAccount(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def to_json(self) -> dict[str, int]:
        """Return every count by name."""
        return asdict(self)


class PaidCall(NamedTuple):
    """Tokens of one call that was paid for."""

    prompt_tokens: int
    completion_tokens: int


def total_account(accounts: Iterable[TrialAccount]) -> TrialAccount:
    """Add accounts up.

    Example:
        >>> total_account([TrialAccount(runs=2, calls=5), TrialAccount(runs=1, calls=2)]).calls
        7
    """
    return sum(accounts, start=TrialAccount())


class TopologyTrials:
    """The executions of one task.

    Args:
        task: What is answered.
        evidence: What the agents are given.
        runner: Runs topologies.
        phase: What the ledger books calls under.
        is_incremental: False executes everything that is asked for, every time and to the last replicate: the
            comparison that tells what memory is worth. The outcomes are the same.
        was_paid: Whether a stored reply, by its key, was paid for by an earlier process that was killed before it could
            account for it: it counts as paid here. None: there was no such process.

    Attributes:
        account: What these executions have cost so far. Replicates that were not needed are in no count, so that the
            saving over :attr:`TrialAccount.calls` is never overstated.
        paid: Key of each call that the account counts as paid, to its tokens.
    """

    def __init__(
        self,
        task: TopologyTask,
        evidence: EvidenceContext,
        runner: TopologyRunner,
        *,
        phase: Literal["train", "eval"] = "train",
        is_incremental: bool = True,
        was_paid: Callable[[str], bool] | None = None,
    ) -> None:
        self.task = task
        self.paid: dict[str, PaidCall] = {}
        self._failures: dict[tuple[str, int], str] = {}
        self._evidence, self._runner, self._phase = evidence, runner, phase
        self._is_incremental, self._was_paid = is_incremental, was_paid
        self._known: dict[tuple[str, int], TopologyRun] = {}
        self.account = TrialAccount()

    @property
    def first_failure(self) -> str | None:
        """Why an execution that ended in ``error`` did so, the same one in any order of ending; None if none did."""
        return self._failures[min(self._failures)] if self._failures else None

    async def outcome(self, topology: Topology, replicates: Sequence[int]) -> TopologyOutcome:
        """Execute replicates that were not executed yet, at the same time, and count successes over all of them.

        Args:
            topology: Any valid one.
            replicates: Numbers of the replicates, distinct.
        """
        runs = await all_of(self._run(topology, replicate) for replicate in replicates)
        return outcome_of_runs(topology, runs)

    async def outcome_if(
        self, topology: Topology, replicates: Sequence[int], *, at_least: float, estimator: SuccessEstimator
    ) -> TopologyOutcome | None:
        """Return the outcome if its success rate reaches a bar, else None.

        Replicates stop once even successes in all the rest would not reach it.

        Args:
            topology: Any valid one.
            replicates: Numbers of the replicates, distinct, in the order of execution.
            at_least: The bar, in [0, 1].
            estimator: How the rate is read from the replicates.
        """
        runs: list[TopologyRun] = []
        for done, replicate in enumerate(replicates, start=1):
            runs.append(await self._run(topology, replicate))
            if not self._is_incremental:
                continue
            found, left = outcome_of_runs(topology, runs), len(replicates) - done
            best = (found.successes + left, found.replicates + left)
            if best[1] == 0 or success_rate(*best, estimator) < at_least:
                return None
        found = outcome_of_runs(topology, runs)
        if found.replicates == 0 or success_rate(found.successes, found.replicates, estimator) < at_least:
            return None
        return found

    async def _run(self, topology: Topology, replicate: int) -> TopologyRun:
        topology = topology.canonical()
        key = (topology.key, replicate)
        run = self._known.get(key) if self._is_incremental else None
        is_new = run is None
        if run is None:
            run = await self._runner.run(RunRequest(topology, self.task, self._evidence, replicate, self._phase))
            self._known[key] = run
            if run.ending is Ending.ERROR:
                self._failures[key] = failure_text(run)
        paid = [call for call in run.calls if is_new and self._is_paid(call)]
        self.paid |= {call.key: PaidCall(call.prompt_tokens, call.completion_tokens) for call in paid}
        self.account += account_of(run, paid, is_new=is_new)
        return run

    def _is_paid(self, call: CallRecord) -> bool:
        """Whether a call of a run that took place was paid for, now or by a process that was killed."""
        if self._was_paid is None:
            return not call.is_cached
        # A run that shared a call with one under way may end first, and has counted it by then.
        return call.key not in self.paid and (not call.is_cached or self._was_paid(call.key))


def account_of(run: TopologyRun, paid: Sequence[CallRecord], *, is_new: bool) -> TrialAccount:
    """Count one run that was asked for.

    Args:
        run: What came of it.
        paid: Those of its calls that were paid for.
        is_new: False if it was answered from memory, so that it cost nothing.
    """
    return TrialAccount(
        runs=1,
        executed=int(is_new),
        errors=int(is_new and run.ending is Ending.ERROR),
        calls=len(run.calls),
        paid_calls=len(paid),
        cached_calls=len(run.calls) - len(paid) if is_new else 0,
        prompt_tokens=sum(call.prompt_tokens for call in paid),
        completion_tokens=sum(call.completion_tokens for call in paid),
    )


def failure_text(run: TopologyRun) -> str:
    """Say why a run ended in ``error``, for a message."""
    causes = [failure for failure in run.failures if failure.cause is None] or list(run.failures)
    told = f"{causes[0].role}: {causes[0].kind}: {causes[0].detail}" if causes else "no reason given"
    return f"task {run.task_id!r}, {told}"
