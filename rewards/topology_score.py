"""What a topology is worth: how often it succeeds, less what its structure costs.

Source: K-GAT, arXiv:2608.27984: ``C(G) = lambda_V |V| + lambda_E |E|`` and ``Score(G) = p - lambda_C C(G)``. The
posterior mean is ours: with two replicates the raw rate is 0, 0.5 or 1, and a choice by it keeps the luckiest.

Example:
    >>> outcome = TopologyOutcome(successes=2, replicates=2, nodes=2, edges=1)
    >>> weights = CostWeights(node=0.05, edge=0.02)
    >>> round(topology_score(outcome, weights=weights, cost_weight=1.0, estimator="raw"), 4)
    0.88
    >>> round(topology_score(outcome, weights=weights, cost_weight=1.0, estimator="posterior_mean"), 4)
    0.63
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

SuccessEstimator = Literal["raw", "posterior_mean"]
"""How a success rate is read from a few replicates: as it is, or as the mean of its Beta(1, 1) posterior."""


@dataclass(frozen=True, slots=True)
class TopologyOutcome:
    """What the replicates of one topology on one task came to.

    Attributes:
        successes: Replicates that answered correctly, in [0, replicates].
        replicates: Replicates that were scored; one that ended in ``error`` is in neither number.
        nodes: |V|, >= 1.
        edges: |E|, in [0, nodes (nodes - 1) / 2].

    Raises:
        ValueError: If a number is out of its range.
    """

    successes: int
    replicates: int
    nodes: int
    edges: int

    def __post_init__(self) -> None:
        _check_successes(self.successes, self.replicates)
        _check_size(self.nodes, self.edges)

    def joined(self, other: TopologyOutcome) -> TopologyOutcome:
        """Return what two sets of distinct replicates of the same topology came to together.

        Raises:
            ValueError: If the sizes differ: that is another topology.

        Example:
            >>> TopologyOutcome(1, 2, 3, 2).joined(TopologyOutcome(3, 4, 3, 2))
            TopologyOutcome(successes=4, replicates=6, nodes=3, edges=2)
        """
        if (self.nodes, self.edges) != (other.nodes, other.edges):
            raise ValueError(
                f"outcomes of teams of {self.nodes} nodes, {self.edges} edges and of {other.nodes} nodes, "
                f"{other.edges} edges can't be joined; give outcomes of one topology"
            )
        replicates = self.replicates + other.replicates
        return TopologyOutcome(self.successes + other.successes, replicates, self.nodes, self.edges)


@dataclass(frozen=True, slots=True)
class CostWeights:
    """The weights of the structural cost, lambda_V for a node and lambda_E for an edge, both >= 0 and finite.

    Raises:
        ValueError: If a weight is negative, infinite or NaN.
    """

    node: float
    edge: float

    def __post_init__(self) -> None:
        for name, weight in (("node", self.node), ("edge", self.edge)):
            if not (math.isfinite(weight) and weight >= 0.0):
                raise ValueError(f"cost weight {name}={weight} must be finite and >= 0")


def structural_cost(nodes: int, edges: int, weights: CostWeights) -> float:
    """Return ``lambda_V |V| + lambda_E |E|``, >= 0.

    Args:
        nodes: |V|, >= 1.
        edges: |E|, >= 0.
        weights: lambda_V and lambda_E.

    Raises:
        ValueError: If no acyclic graph has so many nodes and edges.
    """
    _check_size(nodes, edges)
    return weights.node * nodes + weights.edge * edges


def success_rate(successes: int, replicates: int, estimator: SuccessEstimator) -> float:
    """Estimate the probability that a topology succeeds, in [0, 1].

    Args:
        successes: In [0, replicates].
        replicates: Scored replicates, >= 0.
        estimator: ``raw`` is successes / replicates; ``posterior_mean`` is (successes + 1) / (replicates + 2).

    Returns:
        The rate; NaN without a scored replicate, under both estimators. The posterior mean would be 0.5 there, which
        would rank a topology that was never scored above one that failed.

    Raises:
        ValueError: If ``successes`` exceeds ``replicates``, or the estimator is unknown.

    Example:
        >>> success_rate(2, 2, "raw"), success_rate(2, 2, "posterior_mean")
        (1.0, 0.75)
    """
    _check_successes(successes, replicates)
    if estimator not in get_args(SuccessEstimator):
        raise ValueError(f"estimator {estimator!r} is unknown; choose one of {list(get_args(SuccessEstimator))}")
    if replicates == 0:
        return math.nan
    return successes / replicates if estimator == "raw" else (successes + 1) / (replicates + 2)


def topology_score(
    outcome: TopologyOutcome, *, weights: CostWeights, cost_weight: float, estimator: SuccessEstimator
) -> float:
    """Return ``p - lambda_C C(G)``; NaN if no replicate was scored.

    Args:
        outcome: What the replicates came to.
        weights: lambda_V and lambda_E.
        cost_weight: lambda_C, finite and >= 0.
        estimator: See :func:`success_rate`.

    Raises:
        ValueError: If ``cost_weight`` is negative or not finite, or the estimator is unknown.
    """
    if not (math.isfinite(cost_weight) and cost_weight >= 0.0):
        raise ValueError(f"cost_weight={cost_weight} must be finite and >= 0")
    rate = success_rate(outcome.successes, outcome.replicates, estimator)
    return rate - cost_weight * structural_cost(outcome.nodes, outcome.edges, weights)


def _check_successes(successes: int, replicates: int) -> None:
    if not 0 <= successes <= replicates:
        raise ValueError(f"successes={successes} must lie in [0, replicates={replicates}]")


def _check_size(nodes: int, edges: int) -> None:
    if nodes < 1:
        raise ValueError(f"nodes={nodes} must be >= 1")
    if not 0 <= edges <= nodes * (nodes - 1) // 2:
        raise ValueError(
            f"edges={edges} must lie in [0, {nodes * (nodes - 1) // 2}] for an acyclic graph of nodes={nodes}"
        )
