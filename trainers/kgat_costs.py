"""What mining costs: accounts added up over tasks and rounds, and the share of node calls that was really paid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from provgym.eval.estimate import Estimate
from provgym.eval.topology_estimates import paired_ratio
from provgym.generators.topology_trials import TrialAccount, total_account
from provgym.trainers.kgat_config import KgatConfig
from provgym.trainers.kgat_state import MinedRow, RoundFolder

_SUMMED = ("runs", "executed", "errors", "calls", "paid_calls", "cached_calls", "prompt_tokens", "completion_tokens")


def task_accounts(rows: Iterable[MinedRow]) -> dict[str, TrialAccount]:
    """Return task id to what its executions cost, in the order given.

    A call that several tasks have in common is paid once, by the first. A task that is mined again after a kill can't
    know that another one has accounted for it already; so repeats are taken out here.
    """
    found, seen = dict[str, TrialAccount](), set[str]()
    for row in rows:
        account = row.account
        for key in sorted(seen & row.paid.keys()):
            call = row.paid[key]
            account = replace(
                account,
                paid_calls=account.paid_calls - 1,
                cached_calls=account.cached_calls + 1,
                prompt_tokens=account.prompt_tokens - call.prompt_tokens,
                completion_tokens=account.completion_tokens - call.completion_tokens,
            )
        seen |= row.paid.keys()
        found[row.target.task_id] = account
    return found


def round_account(rows: Iterable[MinedRow]) -> TrialAccount:
    """Add the accounts of a round's tasks up; see :func:`task_accounts`."""
    return total_account(task_accounts(rows).values())


def account_figures(account: TrialAccount) -> dict[str, int]:
    """Return an account's counts under the names that they are logged by."""
    return {f"mining/{name}": count for name, count in asdict(account).items()}


def calls_of_tasks(rows: Sequence[MinedRow]) -> dict[str, tuple[int, int]]:
    """Return task id to (node calls asked for, of them paid)."""
    return {task_id: (account.calls, account.paid_calls) for task_id, account in task_accounts(rows).items()}


def mining_totals(config: KgatConfig, bases: Mapping[str, str]) -> dict[str, Any]:
    """Return what all rounds' executions cost, and the share of node calls that were really paid.

    Args:
        config: A run that mined all its rounds.
        bases: Task id to base claim: what is resampled for the share's interval, all rounds of a claim together.
    """
    folders = [RoundFolder(config.run_dir, number) for number in range(config.curriculum.rounds)]
    rounds = [folder.read_figures() for folder in folders]
    totals = {name: sum(int(figures[f"mining/{name}"]) for figures in rounds) for name in _SUMMED}
    tasks = int(rounds[0]["mining/tasks"])
    return {
        "calls_ratio_cached": _paid_share(folders, totals, tasks, bases).to_json(),
        "mining": totals | {"tasks": tasks, "rounds": len(rounds)},
    }


def _paid_share(
    folders: Sequence[RoundFolder], totals: Mapping[str, int], tasks: int, bases: Mapping[str, str]
) -> Estimate:
    """Return paid over asked, n = tasks; without an interval where a round of before did not store its tasks' calls."""
    if not totals["calls"]:
        return Estimate.missing()
    share = totals["paid_calls"] / totals["calls"]
    by_task = [folder.read_calls() for folder in folders]
    if not all(by_task):
        return Estimate(share, math.nan, math.nan, tasks)
    rows = [(asked, paid, bases[task_id]) for found in by_task for task_id, (asked, paid) in found.items()]
    interval = paired_ratio([paid for _, paid, _ in rows], [asked for asked, _, _ in rows], [base for *_, base in rows])
    return replace(interval, value=share, n=tasks)
