"""Soft targets: by hand, against SciPy, and what becomes of candidates that fail or were not scored."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from provgym.envs.topology import Topology
from provgym.generators.topology_targets import (
    Candidate,
    ScoreRule,
    TaskTarget,
    pool_targets,
    soft_targets,
    target_of,
)
from provgym.rewards.topology_score import CostWeights, TopologyOutcome

SINGLE = Topology(("Answerer",), ())
PAIR = Topology(("Reasoner", "Answerer"), ((0, 1),))
CHECKED = Topology(("Reasoner", "Verifier", "Answerer"), ((0, 1), (1, 2)))
RULE = ScoreRule(CostWeights(0.05, 0.02), 1.0, "raw")


def candidate(topology: Topology, successes: int, replicates: int) -> Candidate:
    outcome = TopologyOutcome(successes, replicates, topology.num_nodes, topology.num_edges)
    return Candidate(topology, "template", outcome, math.nan)


def make(*candidates: Candidate, rule: ScoreRule = RULE, beta: float = 0.1, failing: bool = False) -> TaskTarget:
    keys = {c.topology.key for c in candidates}
    return target_of("t", candidates, rule=rule, temperature=beta, keeps=keys, is_all_failing=failing)


def test_by_hand() -> None:
    """Two candidates: scores 1 - 0.05 and 1 - 0.12, beta 0.07: odds e."""
    target = make(candidate(SINGLE, 2, 2), candidate(PAIR, 2, 2), beta=0.07)
    assert [round(c.score, 6) for c in target.candidates] == [0.95, 0.88]
    assert target.candidates[0].target / target.candidates[1].target == pytest.approx(math.e)
    assert sum(c.target for c in target.candidates) == pytest.approx(1.0)


@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=8),
    st.floats(1e-3, 100),
)
def test_is_the_softmax_and_shifts_change_nothing(scores: list[float], beta: float) -> None:
    found = soft_targets(scores, beta)
    assert np.allclose(found, softmax(np.array(scores) / beta), atol=1e-12)
    assert np.allclose(found, soft_targets([s + 7 for s in scores], beta), atol=1e-9)


def test_smallest_temperature_takes_the_best_and_overflows_nowhere() -> None:
    """Kind: exp overflow."""
    assert soft_targets([-1e6, 0.3, 0.2], 1e-300) == [0.0, 1.0, 0.0]
    assert soft_targets([1e300, 1e300], 1e-3) == [0.5, 0.5]


@pytest.mark.parametrize("beta", [0.0, -1.0, math.nan, math.inf])
def test_temperature_must_be_a_positive_number(beta: float) -> None:
    with pytest.raises(ValueError, match="temperature="):
        soft_targets([1.0], beta)


def test_unscored_is_not_zero() -> None:
    """Kinds: unscored reward, NaN in a mean, endpoint failure scored as wrong: left out, never a wrong answer."""
    target = make(candidate(SINGLE, 0, 0), candidate(PAIR, 1, 2))
    assert [c.target for c in target.candidates] == [0.0, 1.0]
    assert math.isnan(target.candidates[0].score)
    nothing = make(candidate(SINGLE, 0, 0), candidate(PAIR, 0, 0))
    assert nothing.kept == ()


def test_all_failing_is_decided_by_cost_alone() -> None:
    """Equal success, so cost ranks: whatever the estimator, and however many replicates each had."""
    posterior = ScoreRule(RULE.weights, 1.0, "posterior_mean")
    target = make(candidate(CHECKED, 0, 2), candidate(SINGLE, 0, 8), rule=posterior, failing=True)
    costs = [3 * 0.05 + 2 * 0.02, 0.05]
    assert [c.score for c in target.candidates] == pytest.approx([-cost for cost in costs])
    assert target.candidates[1].target > target.candidates[0].target
    assert target.is_all_failing


@given(st.integers(0, 8))
def test_huge_cost_weight_makes_the_single_node_win(successes: int) -> None:
    """Bad input: lambda so large that every score lies below that of an empty team."""
    rule = ScoreRule(CostWeights(50.0, 10.0), 100.0, "posterior_mean")
    target = make(candidate(SINGLE, successes, 8), candidate(CHECKED, 8, 8), rule=rule)
    assert target.candidates[0].target == 1.0
    assert target.candidates[0].score < 0


def test_stored_and_read_again_bit_for_bit() -> None:
    target = make(candidate(SINGLE, 1, 3), candidate(PAIR, 0, 0), candidate(CHECKED, 3, 3), beta=0.13)
    again = TaskTarget.from_json(json.loads(json.dumps(target.to_json(), allow_nan=False)))
    assert json.dumps(again.to_json()) == json.dumps(target.to_json())
    assert again.kept == target.kept


@pytest.mark.parametrize(
    "change",
    [{"origin": "luck"}, {"outcome": {"successes": 3, "replicates": 2, "nodes": 1, "edges": 0}}, {"target": 0.4}],
)
def test_damaged_records_are_refused(change: dict[str, object]) -> None:
    data = make(candidate(SINGLE, 1, 1)).to_json()
    data["candidates"][0] |= change
    with pytest.raises(ValueError, match=r"origin|successes|add up"):
        TaskTarget.from_json(data)


def test_pool_keeps_what_any_round_kept() -> None:
    first = make(candidate(SINGLE, 1, 4), candidate(PAIR, 2, 4))
    second = make(candidate(PAIR, 4, 4), candidate(CHECKED, 3, 4))
    pooled = pool_targets([first, second], rule=RULE, temperature=0.1)
    assert {c.topology.key for c in pooled.kept} == {SINGLE.key, PAIR.key, CHECKED.key}
    by_key = {c.topology.key: c for c in pooled.candidates}
    assert by_key[PAIR.key].outcome.successes == 4, "the last round's score"
    assert sum(c.target for c in pooled.candidates) == pytest.approx(1.0)


def test_pool_forgets_failing_rounds_once_something_works() -> None:
    failing = make(candidate(SINGLE, 0, 4), failing=True)
    working = make(candidate(PAIR, 4, 4))
    assert [c.topology.key for c in pool_targets([failing, working], rule=RULE, temperature=0.1).kept] == [PAIR.key]
    alone = pool_targets([failing, failing], rule=RULE, temperature=0.1)
    assert alone.is_all_failing
    assert [c.topology.key for c in alone.kept] == [SINGLE.key]
    with pytest.raises(ValueError, match="one task"):
        pool_targets([], rule=RULE, temperature=0.1)
