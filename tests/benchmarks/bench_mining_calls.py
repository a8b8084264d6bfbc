"""Node calls that mining spends: message cache and incremental pruning against executing all that is asked for.

Run by hand: ``python -m tests.benchmarks.bench_mining_calls``; ``make bench`` calls :func:`measure`. Calls are counted,
not timed: other work on the machine changes no figure.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tests.trainers.kgat_runs import CountingAgent, plain_runtime

from provgym.envs.topology import Topology
from provgym.eval.bootstrap import (
    DEFAULT_RESAMPLES,
    DEFAULT_SEED,
    percentile_interval,
    resample_counts,
    sum_by_cluster,
)
from provgym.eval.topology_data import load_encoder
from provgym.generators.candidate_mining import Mixture, Proposals, propose
from provgym.generators.json_lines import dump_json_line
from provgym.generators.retriever import retrieve_contexts
from provgym.generators.task_mining import mine_task
from provgym.generators.topology_sampler import random_topology
from provgym.generators.topology_templates import templates
from provgym.generators.topology_trials import TopologyTrials, TrialAccount, total_account
from provgym.rewards.topology_score import SuccessEstimator, TopologyOutcome
from provgym.trainers.config_file import load_config
from provgym.trainers.kgat_config import KgatConfig
from provgym.trainers.kgat_rounds import TaskSet
from provgym.trainers.kgat_world import eval_config_of, load_agent, load_tasks

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "kgat"
TASKS = 40
G_DESIGNER_CALLS = (200, 280)
"""LLM calls that G-Designer (arXiv:2410.11782) trains with, in all, for one task set."""

Budget = Literal["source", "default"]
BUDGETS: dict[Budget, str] = {"source": "source.yaml", "default": "simulated.yaml"}
_PARTS = ("sampling", "pruning", "rescoring")


@dataclass(frozen=True)
class MiningLoad:
    """What both ways mine: the same tasks, evidence, proposals and plan.

    Attributes:
        config: Whose mining section and prices count.
        tasks: With their evidence.
        proposals: Of the first round.
    """

    config: KgatConfig
    tasks: TaskSet
    proposals: Proposals


class PartedTrials(TopologyTrials):
    """Trials that also say which part of mining asked for what.

    Attributes:
        parts: Part to its account.
    """

    def __init__(self, *args: Any, replicates: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parts = dict.fromkeys(_PARTS, TrialAccount())
        self._chosen_by = replicates
        self._turn = asyncio.Lock()  # one candidate at a time: what an account grows by meanwhile is that one's

    async def outcome(self, topology: Topology, replicates: Sequence[int]) -> TopologyOutcome:
        """Book under sampling, or under rescoring where the replicates are fresh."""
        part = "rescoring" if min(replicates) >= self._chosen_by else "sampling"
        async with self._turn:
            before = self.account
            found = await super().outcome(topology, replicates)
            self.parts[part] += _difference(self.account, before)
        return found

    async def outcome_if(
        self, topology: Topology, replicates: Sequence[int], *, at_least: float, estimator: SuccessEstimator
    ) -> TopologyOutcome | None:
        """Book under pruning."""
        async with self._turn:
            before = self.account
            found = await super().outcome_if(topology, replicates, at_least=at_least, estimator=estimator)
            self.parts["pruning"] += _difference(self.account, before)
        return found


def _difference(after: TrialAccount, before: TrialAccount) -> TrialAccount:
    counts = before.to_json()
    return TrialAccount(**{name: count - counts[name] for name, count in after.to_json().items()})


def make_load(config: KgatConfig, num_tasks: int) -> MiningLoad:
    """Return the first round of a run on its first tasks.

    Args:
        config: The run. Its first round draws no candidate from the generator (``pi_first`` is 0).
        num_tasks: How many of its training tasks, as they come: an equal number of each kind of evidence, about.

    Raises:
        ValueError: If there are fewer tasks, or the generator would be asked for candidates.
    """
    tasks = load_tasks(config.tasks, "train")[:num_tasks]
    if len(tasks) < num_tasks:
        raise ValueError(f"{config.name} has {len(tasks)} training tasks, expected {num_tasks}; raise train_claims")
    if config.curriculum.pi_first:
        raise ValueError(f"{config.name}: curriculum.pi_first={config.curriculum.pi_first}, expected 0: no generator")
    retrieval = config.retrieval
    evidence = retrieve_contexts(
        tasks,
        load_encoder(eval_config_of(config)),
        retrieval.depth,
        choice=retrieval.choice,
        seed=config.tasks.evidence.seed,
    )
    rules = config.generator.rules()
    proposals = propose(
        num_tasks,
        Mixture(config.curriculum.candidates, 0.0, config.curriculum.template_share),
        rules=rules,
        templates=templates(rules),
        random_topology=random_topology,
        sample=lambda numbers, seeds: [],
        run_seed=config.seed,
        round_number=0,
    )
    return MiningLoad(config, TaskSet(tasks, tuple(evidence)), proposals)


@dataclass(frozen=True)
class Mined:
    """What one way of mining came to.

    Attributes:
        targets: One line of ``targets.jsonl`` per task.
        account: What the executions cost, by mining's own account.
        parts: The same by part of mining.
        reached_agent: Calls that the agent was really asked, counted by itself.
        per_task: Calls that it was asked for each task.
    """

    targets: tuple[bytes, ...]
    account: TrialAccount
    parts: dict[str, TrialAccount]
    reached_agent: int
    per_task: tuple[int, ...]


def mine(load: MiningLoad, *, saves: bool) -> Mined:
    """Mine a load one task after the other.

    Args:
        load: What is mined.
        saves: With message cache, memory of executions, and an end to trials that are decided; or with none of them.

    Raises:
        AssertionError: If the agent was asked more or less often than mining's account or the token ledger says.
    """
    config = load.config
    agent = CountingAgent(load_agent(config.agents))
    runtime = plain_runtime(agent, cached=saves)
    plan, rules = config.mining.plan(config.score.rule()), config.generator.rules()
    targets, accounts, per_task = [], [], []
    parts: dict[str, TrialAccount] = dict.fromkeys(_PARTS, TrialAccount())
    for task, evidence, proposals in zip(load.tasks.tasks, load.tasks.evidence, load.proposals.by_task, strict=True):
        before = agent.calls
        trials = PartedTrials(task, evidence, runtime, is_incremental=saves, replicates=plan.replicates)
        mined = asyncio.run(mine_task(proposals, trials, plan, rules))
        targets.append(dump_json_line(mined.target.to_json()))
        accounts.append(trials.account)
        per_task.append(agent.calls - before)
        parts = {part: parts[part] + trials.parts[part] for part in _PARTS}
    account = total_account(accounts)
    assert total_account(parts.values()) == account, "the parts of mining do not add up to its account"
    assert agent.calls == account.paid_calls, f"the agent was asked {agent.calls} calls, mining counts {account}"
    booked = runtime.ledger.totals("train").paid_calls
    assert agent.calls == booked, f"the agent was asked {agent.calls} calls, the token ledger books {booked}"
    return Mined(tuple(targets), account, parts, agent.calls, tuple(per_task))


def measure(
    *,
    budgets: Sequence[Budget] = ("source", "default"),
    num_tasks: int = TASKS,
    changes: Mapping[str, Any] | None = None,
    on_mined: Callable[[str, int], None] | None = None,
) -> dict[str, Any]:
    """Mine one round's proposals with and without savings, at each budget; targets must be the same, byte for byte.

    Args:
        budgets: ``source``: 5 candidates, 2 replicates, one rung, no rescoring (K-GAT, arXiv:2608.27984);
            ``default``: the mining section of ``configs/kgat/simulated.yaml``.
        num_tasks: Training tasks, >= 1.
        changes: Sections of the configurations to change, such as ``{"retrieval": {"encoder": "hashed"}}``.
        on_mined: Called with what was mined and its calls.

    Returns:
        For each budget ``ratio``, calls with savings over calls without, and the account behind it:
        ``docs/benchmarks.md`` says what each figure counts.

    Raises:
        AssertionError: If a target differs, or the agent's own count differs from mining's account or the ledger.
    """
    found: dict[str, Any] = {}
    for budget in budgets:
        config = load_config(KgatConfig, CONFIGS / BUDGETS[budget])
        load = make_load(config.model_copy(update=dict(_changed(config, changes or {}))), num_tasks)
        ways = {}
        for name, saves in (("incremental", True), ("naive", False)):
            ways[name] = mine(load, saves=saves)
            if on_mined is not None:
                on_mined(f"{budget}_{name}", ways[name].reached_agent)
        assert ways["incremental"].targets == ways["naive"].targets, f"{budget}: the two ways come to other targets"
        found[budget] = _compare(load, ways["incremental"], ways["naive"])
    return found


def _changed(config: KgatConfig, changes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for section, fields in changes.items():
        yield section, getattr(config, section).model_copy(update=fields)


def _compare(load: MiningLoad, saved: Mined, naive: Mined) -> dict[str, Any]:
    """Return the account of one budget."""
    paid, full = saved.reached_agent, naive.reached_agent
    bases = [task.base_id for task in load.tasks.tasks]
    asked, account = saved.account.calls, saved.account
    return {
        "ratio": _ratio(saved.per_task, naive.per_task, bases),
        "tasks": len(load.tasks),
        "candidates": sum(len(row) for row in load.proposals.by_task),  # without refused and repeated draws
        "calls": {"incremental": paid, "naive": full},
        "executions": {"incremental": account.executed, "naive": naive.account.executed},
        "calls_per_task": {"incremental": paid / len(load.tasks), "naive": full / len(load.tasks)},
        "parts": {
            part: {"incremental": saved.parts[part].paid_calls, "naive": naive.parts[part].paid_calls}
            for part in _PARTS
        },
        # Where the calls went that were not paid; they add up to the difference.
        "spared_by": {
            "message_cache": account.cached_calls,
            "memory_of_executions": asked - account.cached_calls - paid,
            "ends_of_decided_trials": full - asked,
        },
        "beyond_g_designer": [paid - calls for calls in reversed(G_DESIGNER_CALLS)],
    }


def _ratio(saved: Sequence[int], naive: Sequence[int], bases: Sequence[str]) -> dict[str, float]:
    """Return the ratio of sums as ``{value, low, high, n}``: a 95 % bootstrap interval over n base claims."""
    names = sorted(set(bases))
    index = np.array([names.index(base) for base in bases])
    sums = sum_by_cluster(np.array([saved, naive], dtype=np.float64).T, index, len(names))  # (claims, 2)
    drawn = resample_counts(len(names), resamples=DEFAULT_RESAMPLES, seed=DEFAULT_SEED) @ sums  # (resamples, 2)
    low, high = percentile_interval((drawn[:, 0] / drawn[:, 1])[:, None])
    return {"value": sum(saved) / sum(naive), "low": low, "high": high, "n": len(names)}


if __name__ == "__main__":
    print(json.dumps(measure(on_mined=print), indent=2))
