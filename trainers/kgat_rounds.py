"""One mining round: proposals to targets, split across processes, stored task by task, resumed where it stopped.

What a task's target is depends on its proposals and on seeds made of content alone: not on the process that mines it,
nor on what is mined beside it. So one process and several, an interrupted round and a whole one, end with the same
``targets.jsonl``, byte for byte.
"""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from provgym.envs.event_loop import all_of, run_to_end
from provgym.envs.evidence_units import EvidenceContext
from provgym.envs.topology_rules import TopologyRules
from provgym.envs.topology_tasks import TopologyTask
from provgym.envs.workflow_cache import MessageCache
from provgym.eval.processes import Processes
from provgym.eval.walk_play import together
from provgym.generators.candidate_mining import Proposal, Proposals
from provgym.generators.task_mining import MiningPlan, mine_task
from provgym.generators.topology_targets import TaskTarget
from provgym.generators.topology_trials import TopologyRunner, TopologyTrials
from provgym.trainers.kgat_costs import account_figures, calls_of_tasks, round_account
from provgym.trainers.kgat_state import MinedRow, RoundFolder
from provgym.trainers.step_record import RunStopped

_NAMED_IDS = 8


@dataclass(frozen=True, slots=True)
class TaskSet:
    """Tasks and what was retrieved for each of them.

    Attributes:
        tasks: Of one split.
        evidence: One context per task; what the agents are given.

    Raises:
        ValueError: If there is not one context per task.
    """

    tasks: tuple[TopologyTask, ...]
    evidence: tuple[EvidenceContext, ...]

    def __post_init__(self) -> None:
        if len(self.tasks) != len(self.evidence):
            raise ValueError(f"{len(self.evidence)} evidence contexts for {len(self.tasks)} tasks; expected one each")

    @property
    def task_ids(self) -> tuple[str, ...]:
        """The tasks' ids, in order."""
        return tuple(task.task_id for task in self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)


@dataclass(frozen=True, slots=True)
class MiningSetup:
    """What is common to all rounds of a run.

    Attributes:
        train: What is mined.
        plan: How.
        rules: What is valid.
        runner: Executes topologies.
        tasks_at_once: Tasks whose executions are under way at one time, >= 1.
        is_incremental: See :class:`~provgym.generators.topology_trials.TopologyTrials`.
        session: Opens what the runner's agent keeps open while it answers, for the whole round.
        replies: The runner's replies on disk: what a process that was killed had paid for is accounted for by them.
            None if they are kept nowhere, or in memory: what a kill loses is paid again.
    """

    train: TaskSet
    plan: MiningPlan
    rules: TopologyRules
    runner: TopologyRunner
    tasks_at_once: int = 32
    is_incremental: bool = True
    session: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    replies: MessageCache | None = None


class _Begun(NamedTuple):
    """What earlier processes left of a round: mined tasks by number, and when the first of them began.

    ``since`` is the moment after which stored replies are the round's own, None for a round that begins now.
    """

    done: dict[int, MinedRow]
    since: float | None


def mine_round(
    folder: RoundFolder,
    setup: MiningSetup,
    propose: Callable[[], Proposals],
    processes: Processes,
    on_task: Callable[[int, int], None] | None = None,
) -> list[TaskTarget]:
    """Return a round's targets, in the order of the tasks; a finished round is read, not mined again.

    Every process of the launch must call this; all return the same.

    Args:
        folder: Where the round's files lie.
        setup: What is mined, and how.
        propose: Draws the candidates; called by the first process alone, and not if they are on file.
        processes: Who mines together.
        on_task: Told (tasks mined, tasks to mine) of this process.

    Raises:
        RunStopped: If not one execution could be scored; nothing is written then, so that the same command tries again.
        BadFileError: If a file of the round is damaged or of other tasks.
        RuntimeError: If another process failed.
    """
    ids = setup.train.task_ids
    is_first = processes.rank == 0
    finished = processes.gather(together(processes, lambda: [folder.read_targets(ids)] if is_first else []))[0]
    if finished is not None:
        return finished
    proposals = processes.gather(
        together(processes, lambda: [_stored_proposals(folder, ids, propose)] if is_first else [])
    )[0]
    begun = processes.gather(together(processes, lambda: [_begin(folder, setup)] if is_first else []))[0]
    missing = [number for number in range(len(ids)) if number not in begun.done]
    share = missing[processes.rank :: processes.world_size]
    together(processes, lambda: folder.repair_part(processes.rank))
    store = _Store(folder, processes.rank, len(share), on_task)
    mined = together(
        processes, lambda: run_to_end(_mine_share(setup, proposals.by_task, folder.number, share, store, begun.since))
    )
    rows = sorted([*begun.done.values(), *processes.gather(mined)], key=lambda row: row.number)
    together(processes, lambda: _finish(folder, rows, proposals) if is_first else None)
    return [row.target for row in rows]


def _stored_proposals(folder: RoundFolder, ids: Sequence[str], propose: Callable[[], Proposals]) -> Proposals:
    stored = folder.read_proposals(ids)
    if stored is None:
        stored = propose()
        folder.write_proposals(stored, ids)
    return stored


def _begin(folder: RoundFolder, setup: MiningSetup) -> _Begun:
    done = folder.read_parts()
    return _Begun(done, None if setup.replies is None else folder.begin(setup.replies.newest()))


class _Store:
    """Stores each mined task and reports progress."""

    def __init__(self, folder: RoundFolder, rank: int, total: int, on_task: Callable[[int, int], None] | None) -> None:
        self._folder, self._rank, self._total, self._on_task = folder, rank, total, on_task
        self._done = 0

    def add(self, row: MinedRow) -> None:
        self._folder.append(self._rank, row)
        self._done += 1
        if self._on_task is not None:
            self._on_task(self._done, self._total)


async def _mine_share(
    setup: MiningSetup,
    proposals: Sequence[Sequence[Proposal]],
    round_number: int,
    share: Sequence[int],
    store: _Store,
    since: float | None,
) -> list[MinedRow]:
    """Mine one process's tasks, some at a time, each stored as soon as it is done."""
    slots = asyncio.Semaphore(setup.tasks_at_once)
    was_paid = None
    if since is not None and setup.replies is not None:
        was_paid = partial(setup.replies.was_paid_after, moment=since)

    async def mine(number: int) -> MinedRow:
        async with slots:
            trials = TopologyTrials(
                setup.train.tasks[number],
                setup.train.evidence[number],
                setup.runner,
                is_incremental=setup.is_incremental,
                was_paid=was_paid,
            )
            target, pruning = await mine_task(proposals[number], trials, setup.plan, setup.rules, round_number)
        # Where no other task or process finds a reply, one that is paid for again was paid for twice.
        paid = trials.paid if setup.replies is not None else {}
        row = MinedRow(number, target, pruning, trials.account, trials.first_failure, paid)
        store.add(row)
        return row

    async with setup.session():
        return await all_of(mine(number) for number in share)


def _finish(folder: RoundFolder, rows: Sequence[MinedRow], proposals: Proposals) -> None:
    account = round_account(rows)
    if account.executed and account.errors == account.executed:
        failure = next(row.failure for row in rows if row.failure is not None)
        raise RunStopped(
            f"all {account.errors} executions of the round ended in error, so that there is nothing to learn from; the "
            f"first: {failure}. Check the agents' section of the configuration, then give the same command again"
        )
    folder.finish(rows, round_figures(rows, proposals), calls_of_tasks(rows))
    _warn_of_targets(folder, rows)


def _warn_of_targets(folder: RoundFolder, rows: Sequence[MinedRow]) -> None:
    """Say what a reader of the targets has to know."""
    best = [max(candidate.score for candidate in row.target.kept) for row in rows if row.target.kept]
    if best and max(best) < 0:
        warnings.warn(
            f"{folder.path}: the best team of every task costs more than it brings (highest score {max(best):.3g}): "
            "asking nobody would score 0. The cheapest teams win; lower score.node, score.edge or score.cost_weight",
            stacklevel=3,
        )
    failing = [row.target.task_id for row in rows if row.target.is_all_failing]
    if len(failing) == len(rows):
        warnings.warn(
            f"{folder.path}: no candidate of any task succeeded, so that cost alone made the targets (the cheapest "
            "team weighs most). Check gold answers, answer kinds and agents: this teaches nothing about success",
            stacklevel=3,
        )
    elif failing:
        warnings.warn(
            f"{folder.path}: no candidate succeeded on {len(failing)} of {len(rows)} tasks "
            f"({', '.join(failing[:_NAMED_IDS])}{' ...' if len(failing) > _NAMED_IDS else ''}). Their targets favour "
            "the cheapest team; the others teach success. A few are usual; many point to gold answers, answer kinds or "
            "agents, or to too few candidates (curriculum.candidates)",
            stacklevel=3,
        )


def round_figures(rows: Sequence[MinedRow], proposals: Proposals) -> dict[str, float | int | None]:
    """Return what a round is logged by; a figure that nothing was measured for is None, never 0."""
    account = round_account(rows)
    kept = [candidate for row in rows for candidate in row.target.kept]
    best = [max(c.score for c in row.target.kept) for row in rows if row.target.kept]
    figures: dict[str, float | int | None] = {
        "mining/tasks": len(rows),
        "mining/candidates": sum(len(row) for row in proposals.by_task),
        "mining/kept": len(kept),
        "mining/all_failing": sum(row.target.is_all_failing for row in rows),
        "mining/unscored": sum(not row.target.kept for row in rows),
        "mining/pruned": sum(row.pruning.pruned for row in rows),
        "mining/deletions": sum(row.pruning.accepted for row in rows),
        "mining/deletions_tried": sum(row.pruning.tried for row in rows),
        "mining/best_score": _mean(best),
        # An empty team would score 0: below that, calling nobody is worth more than the best team.
        "mining/best_below_zero": sum(score < 0 for score in best),
        "mining/target_nodes": _target_mean(rows, lambda c: c.outcome.nodes),
        "mining/target_edges": _target_mean(rows, lambda c: c.outcome.edges),
        "mining/target_entropy": _mean([_entropy(row.target) for row in rows if row.target.kept]),
        "mining/cache_hit_rate": account.cached_calls / max(1, account.cached_calls + account.paid_calls),
    }
    for name in ("drawn", "refused", "repeated"):
        for origin in ("template", "random", "generator"):
            figures[f"mining/{name}/{origin}"] = int(getattr(proposals, name).get(origin, 0))
    return figures | account_figures(account)


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _target_mean(rows: Sequence[MinedRow], value: Callable[[Any], float]) -> float | None:
    return _mean([math.fsum(c.target * value(c) for c in row.target.kept) for row in rows if row.target.kept])


def _entropy(target: TaskTarget) -> float:
    """Return the entropy of a target, in nats."""
    return -math.fsum(c.target * math.log(c.target) for c in target.kept)
