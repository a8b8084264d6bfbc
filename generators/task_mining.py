"""From a task's proposals to its target: execution by successive halving, pruning, and a second look.

The candidate that looks best of several was also the luckiest. So what is kept is scored again on replicates that had
no part in the choice, and calls are spent where the choice is close.

Sources: Execution and pruning: K-GAT, arXiv:2608.27984, section 3.2. Successive halving: Jamieson and Talwalkar 2016,
arXiv:1502.07943. Fresh replicates are ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from provgym.envs.event_loop import all_of
from provgym.envs.topology_rules import TopologyRules
from provgym.generators.candidate_mining import Proposal
from provgym.generators.topology_pruning import PruningRule, is_successful, prune
from provgym.generators.topology_targets import Candidate, ScoreRule, TaskTarget, target_of
from provgym.generators.topology_trials import TopologyTrials
from provgym.rewards.topology_score import structural_cost


@dataclass(frozen=True, slots=True)
class MiningPlan:
    """How a task's candidates are executed, pruned and scored.

    Attributes:
        replicates: R, executions of a candidate that is not dropped early, >= 1.
        rungs: Of successive halving, >= 1. The last rung has R replicates, each before it half as many as the next;
            after each but the last, the better half of the candidates goes on. 1 executes every candidate R times.
        rescore_replicates: Fresh executions of every kept candidate, whose successes alone make its score; 0 keeps the
            score that it was chosen by.
        keeps_unpruned: Whether a candidate stays beside what pruning left of it.
        score: How outcomes are scored.
        pruning: When a deletion is accepted; None prunes nothing.
        temperature: beta_q of the target, in units of score.

    Raises:
        ValueError: If a number is out of range, or ``replicates`` can't be halved as often as ``rungs`` asks for.
    """

    replicates: int
    score: ScoreRule
    temperature: float
    rungs: int = 1
    rescore_replicates: int = 0
    keeps_unpruned: bool = False
    pruning: PruningRule | None = None

    def __post_init__(self) -> None:
        for name, least in (("replicates", 1), ("rungs", 1), ("rescore_replicates", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} must be >= {least}")
        if self.replicates < 2 ** (self.rungs - 1):
            raise ValueError(
                f"replicates={self.replicates} can't be halved {self.rungs - 1} times (rungs={self.rungs}); raise "
                f"replicates to {2 ** (self.rungs - 1)} or lower rungs"
            )

    def replicates_of_rung(self, rung: int) -> int:
        """Return how many replicates a candidate has after a rung counted from 0, in all."""
        halvings: int = 2 ** (self.rungs - 1 - rung)
        return math.ceil(self.replicates / halvings)


class PruningCount(NamedTuple):
    """What pruning did.

    Attributes:
        pruned: Teams that it began with.
        accepted: Deletions accepted.
        tried: Smaller teams executed, accepted or not.
    """

    pruned: int = 0
    accepted: int = 0
    tried: int = 0


class MinedTask(NamedTuple):
    """A task's target and what pruning did on the way."""

    target: TaskTarget
    pruning: PruningCount


async def mine_task(
    proposals: Sequence[Proposal],
    trials: TopologyTrials,
    plan: MiningPlan,
    rules: TopologyRules,
    round_number: int = 0,
) -> MinedTask:
    """Execute a task's candidates and make its target.

    Fresh replicates have numbers of their own in every round: from the second round on the generator proposes what the
    earlier ones taught it, and what was learned from must not decide again.

    Args:
        proposals: Distinct valid candidates.
        trials: Executes them on the task.
        plan: How.
        rules: What pruning may leave.
        round_number: From 0.
    """
    candidates, survivors = await _execute(proposals, trials, plan)
    failing = not any(c.outcome.successes for c in candidates.values())
    is_scored = any(c.outcome.replicates for c in candidates.values())
    kept = {key for key in survivors if _is_worth_keeping(candidates[key], plan)} or set(survivors)
    count = PruningCount()
    if plan.pruning is not None and not failing:
        count = await _prune_all(candidates, kept, trials, plan, rules)
    if plan.rescore_replicates and not failing:
        first = plan.replicates + round_number * plan.rescore_replicates
        fresh = range(first, first + plan.rescore_replicates)
        keys = sorted(kept)
        outcomes = await all_of(trials.outcome(candidates[key].topology, fresh) for key in keys)
        candidates |= {key: replace(candidates[key], outcome=o) for key, o in zip(keys, outcomes, strict=True)}
    target = target_of(
        trials.task.task_id,
        list(candidates.values()),
        rule=plan.score,
        temperature=plan.temperature,
        keeps=kept,
        is_all_failing=failing and is_scored,
    )
    return MinedTask(target, count)


def _is_worth_keeping(candidate: Candidate, plan: MiningPlan) -> bool:
    p_min = 0.0 if plan.pruning is None else plan.pruning.p_min
    return is_successful(candidate.outcome, plan.score, p_min)


async def _execute(
    proposals: Sequence[Proposal], trials: TopologyTrials, plan: MiningPlan
) -> tuple[dict[str, Candidate], list[str]]:
    """Run the rungs; returns every candidate by key, and the keys of those that reached the last rung."""
    candidates: dict[str, Candidate] = {}
    survivors = list(proposals)
    done = 0
    for rung in range(plan.rungs):
        replicates = range(done, plan.replicates_of_rung(rung))
        done = plan.replicates_of_rung(rung)
        outcomes = await all_of(trials.outcome(p.topology, replicates) for p in survivors)
        for proposal, found in zip(survivors, outcomes, strict=True):
            key = proposal.topology.key
            outcome = candidates[key].outcome.joined(found) if key in candidates else found
            candidates[key] = Candidate(proposal.topology, proposal.origin, outcome, plan.score.score(outcome))
        if rung < plan.rungs - 1:
            survivors.sort(key=lambda proposal: _rank(candidates[proposal.topology.key], plan))
            survivors = survivors[: math.ceil(len(survivors) / 2)]
    return candidates, [proposal.topology.key for proposal in survivors]


def _rank(candidate: Candidate, plan: MiningPlan) -> tuple[float, float, str]:
    """Order candidates: the highest score first, what was not scored last, ties by cost and then by key."""
    score = -math.inf if math.isnan(candidate.score) else candidate.score
    cost = structural_cost(candidate.outcome.nodes, candidate.outcome.edges, plan.score.weights)
    return -score, cost, candidate.topology.key


async def _prune_all(
    candidates: dict[str, Candidate], kept: set[str], trials: TopologyTrials, plan: MiningPlan, rules: TopologyRules
) -> PruningCount:
    """Prune every kept candidate that succeeds; changes ``candidates`` and ``kept``."""
    assert plan.pruning is not None
    began = accepted = tried = 0
    for key in sorted(kept):
        before = candidates[key]
        if not _is_worth_keeping(before, plan):
            continue
        result = await prune(
            before.topology,
            before.outcome,
            trials=trials,
            replicates=range(plan.replicates),
            rules=rules,
            score=plan.score,
            pruning=plan.pruning,
        )
        began, accepted, tried = began + 1, accepted + result.accepted, tried + result.tried
        if result.topology.key == key:
            continue
        if not plan.keeps_unpruned:
            kept.discard(key)
        there = candidates.get(result.topology.key)
        origin = "pruned" if there is None else there.origin
        score = plan.score.score(result.outcome)
        candidates[result.topology.key] = Candidate(result.topology, origin, result.outcome, score)
        kept.add(result.topology.key)
    return PruningCount(began, accepted, tried)
