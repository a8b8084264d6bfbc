"""Minimal-sufficiency pruning: of a team that works, what is left when everything it can do without is gone.

An edge or a node is deleted; the smaller team is kept if it still succeeds often enough. This repeats until nothing can
go. What a deletion leaves untouched is answered by the runtime's message cache, so that a step costs the nodes behind
the deletion alone.

Source: K-GAT, arXiv:2608.27984, equation 8. That the score must not fall, and the order of the trials, are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from provgym.envs.topology import Topology
from provgym.envs.topology_rules import TopologyRules
from provgym.generators.topology_targets import ScoreRule
from provgym.generators.topology_trials import TopologyTrials
from provgym.rewards.topology_score import CostWeights, TopologyOutcome, structural_cost, success_rate


@dataclass(frozen=True, slots=True)
class PruningRule:
    """When a smaller team takes a larger one's place.

    Attributes:
        p_min: Least success rate of the smaller one, in [0, 1], by the score's estimator.
        keeps_score: Whether its score must not be lower either (ours). Without, a rate that falls from 1 to ``p_min``
            is accepted (the source).

    Raises:
        ValueError: If ``p_min`` lies outside [0, 1].
    """

    p_min: float
    keeps_score: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.p_min <= 1.0:
            raise ValueError(f"p_min={self.p_min} must lie in [0, 1]")


@dataclass(frozen=True, slots=True)
class Pruned:
    """What pruning came to.

    Attributes:
        topology: What is left; the topology itself if nothing could go.
        outcome: Of what is left, over the same replicates.
        accepted: Deletions accepted.
        tried: Smaller teams executed, accepted or not.
    """

    topology: Topology
    outcome: TopologyOutcome
    accepted: int
    tried: int


def is_successful(outcome: TopologyOutcome, rule: ScoreRule, p_min: float) -> bool:
    """Whether an outcome holds a real success and its success rate is high enough.

    Args:
        outcome: Of a team's executions.
        rule: Whose estimator reads the rate.
        p_min: Least rate, in [0, 1].
    """
    if outcome.successes == 0:  # the posterior mean of nothing tried is 0.5
        return False
    return success_rate(outcome.successes, outcome.replicates, rule.estimator) >= p_min


def reductions(topology: Topology, rules: TopologyRules, weights: CostWeights) -> list[Topology]:
    """Return every valid topology that deleting one edge or one node leaves, cheaper than before.

    A node goes with its edges; the Answerer never goes. Isomorphic results stand once. With costs of 0 nothing is
    cheaper, and the list is empty.

    Args:
        topology: A valid one.
        rules: What is valid.
        weights: Costs.

    Returns:
        Canonical topologies, the cheapest first, so that a team that can lose much loses it in one trial.

    Example:
        >>> rules = TopologyRules(("Reasoner", "Answerer"))
        >>> chain = Topology(("Reasoner", "Reasoner", "Answerer"), ((0, 1), (0, 2), (1, 2)))
        >>> [(r.num_nodes, r.num_edges) for r in reductions(chain, rules, CostWeights(1.0, 0.5))]
        [(2, 1), (3, 2), (3, 2)]
    """
    before = structural_cost(topology.num_nodes, topology.num_edges, weights)
    smaller = [without_edge(topology, edge) for edge in topology.edges]
    smaller += [without_node(topology, node) for node in range(topology.num_nodes) if topology.num_nodes > 1]
    found: dict[str, tuple[float, Topology]] = {}
    for reduced in smaller:
        cost = structural_cost(reduced.num_nodes, reduced.num_edges, weights)
        if cost < before and rules.is_valid(reduced):
            found.setdefault(reduced.key, (cost, reduced.canonical()))
    return [found[key][1] for key in sorted(found, key=lambda key: (found[key][0], key))]


def without_edge(topology: Topology, edge: tuple[int, int]) -> Topology:
    """Return the topology without one message edge."""
    return Topology(topology.roles, tuple(e for e in topology.edges if e != edge))


def without_node(topology: Topology, node: int) -> Topology:
    """Return the topology without one node and its edges; later nodes move up by one."""
    roles = tuple(role for place, role in enumerate(topology.roles) if place != node)
    kept = (edge for edge in topology.edges if node not in edge)
    return Topology(roles, tuple((a - (a > node), b - (b > node)) for a, b in kept))


async def prune(
    topology: Topology,
    outcome: TopologyOutcome,
    *,
    trials: TopologyTrials,
    replicates: Sequence[int],
    rules: TopologyRules,
    score: ScoreRule,
    pruning: PruningRule,
) -> Pruned:
    """Delete edges and nodes for as long as what is left is sufficient.

    Args:
        topology: A successful one.
        outcome: Its outcome on ``replicates``.
        trials: Executes.
        replicates: What every smaller team is tried on: the same as the larger one's, so that they are compared
            under the same draws.
        rules: What is valid.
        score: How outcomes are scored.
        pruning: When a deletion is accepted.
    """
    refused: set[str] = set()
    accepted = tried = 0
    now, best = topology.canonical(), outcome
    while True:
        for reduced in reductions(now, rules, score.weights):
            if reduced.key in refused:  # the bar never falls
                continue
            tried += 1
            bar = _least_rate(reduced, best, score, pruning)
            found = await trials.outcome_if(reduced, replicates, at_least=bar, estimator=score.estimator)
            if found is None or not _is_sufficient(found, best, score, pruning):
                refused.add(reduced.key)
                continue
            now, best, accepted = reduced, found, accepted + 1
            break
        else:
            return Pruned(now, best, accepted, tried)


_SLACK = 1e-9  # the bar only saves replicates; what it lets through is compared exactly


def _least_rate(reduced: Topology, best: TopologyOutcome, score: ScoreRule, pruning: PruningRule) -> float:
    """Return the success rate below which a smaller team can't be accepted."""
    if not pruning.keeps_score:
        return pruning.p_min
    cost = structural_cost(reduced.num_nodes, reduced.num_edges, score.weights)
    return max(pruning.p_min, score.score(best) + score.cost_weight * cost - _SLACK)


def _is_sufficient(found: TopologyOutcome, best: TopologyOutcome, score: ScoreRule, pruning: PruningRule) -> bool:
    if not is_successful(found, score, pruning.p_min):
        return False
    return not pruning.keeps_score or score.score(found) >= score.score(best)
