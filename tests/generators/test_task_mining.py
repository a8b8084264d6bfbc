"""A task's way from proposals to target: successive halving and fresh replicates by hand, failures of every kind."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.generators.topology_worlds import NO_EVIDENCE, RuledRunner, Succeeds, draw, make_task

from provgym.envs.topology import Topology
from provgym.envs.topology_rules import TopologyRules, enumerate_topologies
from provgym.generators.candidate_mining import Proposal
from provgym.generators.task_mining import MinedTask, MiningPlan, mine_task
from provgym.generators.topology_pruning import PruningRule
from provgym.generators.topology_targets import ScoreRule
from provgym.generators.topology_trials import TopologyTrials, TrialAccount, total_account
from provgym.rewards.topology_score import CostWeights

RULES = TopologyRules(("Planner", "Verifier", "Answerer"), max_nodes=4)
ALL = [topology.canonical() for topology in enumerate_topologies(RULES)]
SINGLE, CHECKED = Topology(("Answerer",), ()), Topology(("Verifier", "Answerer"), ((0, 1),))
PLANNED = Topology(("Planner", "Answerer"), ((0, 1),))
LONG = Topology(("Planner", "Verifier", "Answerer"), ((0, 1), (1, 2)))
RAW = ScoreRule(CostWeights(0.04, 0.01), 1.0, "raw")


def mine(
    topologies: list[Topology], succeeds: Succeeds, plan: MiningPlan, *, incremental: bool = True
) -> tuple[MinedTask, TopologyTrials, RuledRunner]:
    runner = RuledRunner(succeeds)
    trials = TopologyTrials(make_task(), NO_EVIDENCE, runner, is_incremental=incremental)
    proposals = [Proposal(topology.canonical(), "template") for topology in topologies]
    return asyncio.run(mine_task(proposals, trials, plan, RULES)), trials, runner


def test_the_sources_plan_executes_everything_r_times() -> None:
    plan = MiningPlan(replicates=2, score=RAW, temperature=0.1)
    found, _, runner = mine([SINGLE, CHECKED, LONG], lambda *_: True, plan)
    assert sorted(runner.requests) == sorted(("t0", t.key, r) for t in (SINGLE, CHECKED, LONG) for r in (0, 1))
    assert {c.topology.key for c in found.target.kept} == {SINGLE.key, CHECKED.key, LONG.key}


def test_halving_by_hand() -> None:
    """Four candidates, R = 4, three rungs: 1 replicate for 4, then up to 2 for 2, then up to 4 for 1: 4 + 2 + 2."""

    def world(task: str, topology: Topology, replicate: int) -> bool:
        return "Verifier" in topology.roles

    plan = MiningPlan(replicates=4, score=RAW, temperature=0.1, rungs=3)
    assert [plan.replicates_of_rung(rung) for rung in range(3)] == [1, 2, 4]
    found, _, runner = mine([SINGLE, PLANNED, LONG, CHECKED], world, plan)
    assert len(runner.requests) == 4 + 1 + 1 + 2 == 8
    counts = {c.topology.key: c.outcome.replicates for c in found.target.candidates}
    assert counts == {SINGLE.key: 1, PLANNED.key: 1, LONG.key: 2, CHECKED.key: 4}
    assert [c.topology.key for c in found.target.kept] == [CHECKED.key]


def test_ties_go_to_the_cheaper_and_unscored_comes_last() -> None:
    def world(task: str, topology: Topology, replicate: int) -> bool | None:
        return None if topology.key == SINGLE.key else True

    plan = MiningPlan(replicates=2, score=ScoreRule(CostWeights(0.0, 0.0), 1.0, "raw"), temperature=0.1, rungs=2)
    found, _, _ = mine([LONG, SINGLE, CHECKED], world, plan)
    assert {c.topology.key for c in found.target.kept} == {LONG.key, CHECKED.key}


def test_kept_ones_are_scored_on_fresh_replicates_alone() -> None:
    """Lucky on the replicates that chose it, wrong on all fresh ones: the fresh ones count."""

    def world(task: str, topology: Topology, replicate: int) -> bool:
        return replicate < 2 if topology.key == CHECKED.key else replicate % 2 == 0

    plan = MiningPlan(replicates=2, score=RAW, temperature=0.1, rescore_replicates=4)
    found, _, runner = mine([SINGLE, CHECKED], world, plan)
    by_key = {c.topology.key: c for c in found.target.candidates}
    assert (by_key[CHECKED.key].outcome.successes, by_key[CHECKED.key].outcome.replicates) == (0, 4)
    assert (by_key[SINGLE.key].outcome.successes, by_key[SINGLE.key].outcome.replicates) == (2, 4)
    assert by_key[SINGLE.key].target > by_key[CHECKED.key].target > 0
    assert not found.target.is_all_failing
    assert {r for _, _, r in runner.requests} == set(range(6))


def test_pruned_form_takes_the_candidates_place_or_stands_beside_it() -> None:
    def world(task: str, topology: Topology, replicate: int) -> bool:
        return "Verifier" in topology.roles

    settings_ = {"replicates": 2, "score": RAW, "temperature": 0.1, "pruning": PruningRule(1.0)}
    alone, _, _ = mine([LONG], world, MiningPlan(**settings_))  # type: ignore[arg-type]
    assert [(c.topology.key, c.origin) for c in alone.target.kept] == [(CHECKED.key, "pruned")]
    both, _, _ = mine([LONG], world, MiningPlan(**settings_, keeps_unpruned=True))  # type: ignore[arg-type]
    assert {c.topology.key for c in both.target.kept} == {LONG.key, CHECKED.key}
    assert (both.pruning.pruned, both.pruning.accepted) == (1, 1)


def test_candidate_that_another_prunes_to_keeps_its_origin() -> None:
    plan = MiningPlan(replicates=2, score=RAW, temperature=0.1, pruning=PruningRule(1.0))
    found, _, _ = mine([LONG, SINGLE], lambda *_: True, plan)
    assert [(c.topology.key, c.origin) for c in found.target.kept] == [(SINGLE.key, "template")]


def test_all_failing_spreads_by_cost_over_everything_executed() -> None:
    """All candidates failing: no pruning, no fresh replicates, the cheapest weighs most; documented in target_of."""
    plan = MiningPlan(
        replicates=2, score=RAW, temperature=0.05, rescore_replicates=4, pruning=PruningRule(0.5), rungs=2
    )
    found, _, runner = mine([LONG, SINGLE, CHECKED, PLANNED], lambda *_: False, plan)
    assert found.target.is_all_failing
    shares = {c.topology.key: c.target for c in found.target.kept}
    assert len(shares) == 4
    assert max(shares, key=lambda key: shares[key]) == SINGLE.key
    assert shares[SINGLE.key] / shares[CHECKED.key] == pytest.approx(math.exp(0.05 / 0.05))
    assert max(r for _, _, r in runner.requests) < 2


def test_only_errors_make_no_target_and_no_failure() -> None:
    """Kind: endpoint failure scored as wrong."""
    plan = MiningPlan(replicates=2, score=RAW, temperature=0.1, rescore_replicates=2, pruning=PruningRule(0.5))
    found, trials, _ = mine([LONG, SINGLE], lambda *_: None, plan)
    assert found.target.kept == ()
    assert not found.target.is_all_failing
    assert trials.account.errors == trials.account.executed == 4
    assert trials.first_failure == "task 't0', Answerer: timeout: no answer in 60 s"


def test_no_candidate_is_no_target() -> None:
    found, _, _ = mine([], lambda *_: True, MiningPlan(replicates=2, score=RAW, temperature=0.1))
    assert found.target.candidates == ()


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    chosen=st.lists(st.sampled_from(ALL), min_size=1, max_size=5, unique_by=lambda t: t.key),
    rungs=st.integers(1, 2),
    rescore=st.integers(0, 3),
    keeps=st.booleans(),
    error_rate=st.sampled_from([0.0, 0.2]),
)
def test_saving_changes_no_target(
    seed: int, chosen: list[Topology], rungs: int, rescore: int, keeps: bool, error_rate: float
) -> None:
    """Same proposals, same target, bit for bit, with and without memory; each execution at most once with it."""

    def world(task: str, topology: Topology, replicate: int) -> bool | None:
        if draw("error", seed, topology.key, replicate) < error_rate:
            return None
        return draw(seed, topology.key, replicate) < 0.2 + 0.2 * topology.num_nodes

    plan = MiningPlan(
        replicates=2,
        score=ScoreRule(CostWeights(0.04, 0.01), 1.0, "posterior_mean"),
        temperature=0.1,
        rungs=rungs,
        rescore_replicates=rescore,
        keeps_unpruned=keeps,
        pruning=PruningRule(0.5, keeps_score=keeps),
    )
    saved, trials, runner = mine(chosen, world, plan)
    plain, full, _ = mine(chosen, world, plan, incremental=False)
    assert saved.target.to_json() == plain.target.to_json()
    assert len(set(runner.requests)) == len(runner.requests)
    assert trials.account.paid_calls <= trials.account.calls <= full.account.calls == full.account.paid_calls
    total = math.fsum(c.target for c in saved.target.candidates)
    assert total == pytest.approx(1.0) or saved.target.kept == ()


def test_account_adds_up() -> None:
    plan = MiningPlan(replicates=2, score=RAW, temperature=0.1)
    _, trials, _ = mine([SINGLE, LONG], lambda *_: True, plan)
    expected = TrialAccount(4, 4, 0, 8, 8, 0, 80, 16)
    assert trials.account == expected
    assert total_account([expected, expected]).prompt_tokens == 160


@pytest.mark.parametrize(
    ("change", "message"),
    [({"replicates": 0}, "replicates=0"), ({"rungs": 0}, "rungs=0"), ({"rungs": 3}, "can't be halved")],
)
def test_bad_plans_name_the_value(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MiningPlan(**{"replicates": 2, "score": RAW, "temperature": 0.1, **change})  # type: ignore[arg-type]
