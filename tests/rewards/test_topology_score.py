"""Success, structural cost and score, worked out by hand and against scipy."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from provgym.rewards.topology_score import (
    CostWeights,
    TopologyOutcome,
    structural_cost,
    success_rate,
    topology_score,
)

WEIGHTS = CostWeights(node=0.05, edge=0.02)


def test_a_score_by_hand() -> None:
    """Three of four, three nodes, two edges: 0.75 - 2 (0.15 + 0.04)."""
    outcome = TopologyOutcome(successes=3, replicates=4, nodes=3, edges=2)
    score = topology_score(outcome, weights=WEIGHTS, cost_weight=2.0, estimator="raw")
    assert score == pytest.approx(0.75 - 0.38)
    posterior = topology_score(outcome, weights=WEIGHTS, cost_weight=2.0, estimator="posterior_mean")
    assert posterior == pytest.approx(4 / 6 - 0.38)


def test_cost_by_hand() -> None:
    assert structural_cost(1, 0, WEIGHTS) == 0.05
    assert structural_cost(6, 15, WEIGHTS) == pytest.approx(0.3 + 0.3)
    assert structural_cost(3, 3, CostWeights(0.0, 0.0)) == 0.0


@given(replicates=st.integers(1, 50), data=st.data())
def test_the_posterior_mean_is_that_of_scipy(replicates: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, replicates))
    expected = beta(1 + successes, 1 + replicates - successes).mean()
    assert success_rate(successes, replicates, "posterior_mean") == pytest.approx(expected)
    assert success_rate(successes, replicates, "raw") == successes / replicates


@pytest.mark.parametrize("estimator", ["raw", "posterior_mean"])
def test_no_scored_replicate_is_not_a_number(estimator: str) -> None:
    """Faults "unscored reward" and "endpoint failure scored as wrong": neither 0 nor the prior's 0.5."""
    outcome = TopologyOutcome(0, 0, nodes=2, edges=1)
    assert math.isnan(success_rate(0, 0, estimator))  # type: ignore[arg-type]
    assert math.isnan(topology_score(outcome, weights=WEIGHTS, cost_weight=1.0, estimator=estimator))  # type: ignore[arg-type]


def test_failed_replicates_are_left_out() -> None:
    """Fault "endpoint failure scored as wrong": 8 right, 2 timed out is 8 of 8."""
    assert success_rate(8, 8, "raw") == 1.0


@given(
    nodes=st.integers(1, 8),
    extra=st.integers(0, 3),
    cost_weight=st.floats(0.0, 10.0),
    rate=st.integers(0, 5),
)
def test_more_structure_never_scores_more(nodes: int, extra: int, cost_weight: float, rate: int) -> None:
    def score(size: int) -> float:
        outcome = TopologyOutcome(rate, 5, size, size - 1)
        return topology_score(outcome, weights=WEIGHTS, cost_weight=cost_weight, estimator="raw")

    assert score(nodes + extra) <= score(nodes) <= 1.0


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((3, 2, 1, 0), r"successes=3 must lie in \[0, replicates=2\]"),
        ((-1, 2, 1, 0), "successes=-1"),
        ((0, -1, 1, 0), r"successes=0 must lie in \[0, replicates=-1\]"),
        ((1, 1, 0, 0), "nodes=0 must be >= 1"),
        ((1, 1, 2, 2), r"edges=2 must lie in \[0, 1\] for an acyclic graph of nodes=2"),
        ((1, 1, 2, -1), "edges=-1"),
    ],
)
def test_impossible_outcomes_are_named(numbers: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TopologyOutcome(*numbers)


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf])
def test_impossible_weights_are_named(bad: float) -> None:
    with pytest.raises(ValueError, match="cost weight node="):
        CostWeights(bad, 0.0)
    with pytest.raises(ValueError, match="cost weight edge="):
        CostWeights(0.0, bad)
    with pytest.raises(ValueError, match="cost_weight="):
        topology_score(TopologyOutcome(1, 1, 1, 0), weights=WEIGHTS, cost_weight=bad, estimator="raw")


def test_an_unknown_estimator_is_named() -> None:
    with pytest.raises(ValueError, match=r"estimator 'mean' is unknown; choose one of \['raw', 'posterior_mean'\]"):
        success_rate(1, 1, "mean")  # type: ignore[arg-type]
