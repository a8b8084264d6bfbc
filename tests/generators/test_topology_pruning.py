"""Minimal-sufficiency pruning: what may go, by brute force; what is accepted, by hand."""

from __future__ import annotations

import asyncio
from itertools import combinations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.generators.topology_worlds import NO_EVIDENCE, RuledRunner, Succeeds, draw, make_task

from provgym.envs.topology import Topology
from provgym.envs.topology_rules import TopologyRules, enumerate_topologies
from provgym.generators.topology_pruning import Pruned, PruningRule, prune, reductions
from provgym.generators.topology_targets import ScoreRule
from provgym.generators.topology_trials import TopologyTrials, TrialAccount
from provgym.rewards.topology_score import CostWeights, TopologyOutcome, structural_cost

RULES = TopologyRules(("Planner", "Verifier", "Answerer"), max_nodes=4)
ALL = list(enumerate_topologies(RULES))
WEIGHTS = CostWeights(0.04, 0.01)
RAW = ScoreRule(WEIGHTS, 1.0, "raw")
FULL = Topology(("Planner", "Verifier", "Planner", "Answerer"), ((0, 1), (0, 3), (1, 3), (2, 3)))


def run_prune(
    topology: Topology,
    succeeds: Succeeds,
    pruning: PruningRule,
    *,
    replicates: int = 4,
    score: ScoreRule = RAW,
    incremental: bool = True,
) -> tuple[Pruned, TrialAccount, RuledRunner]:
    runner = RuledRunner(succeeds)
    trials = TopologyTrials(make_task(), NO_EVIDENCE, runner, is_incremental=incremental)

    async def work() -> Pruned:
        outcome = await trials.outcome(topology, range(replicates))
        return await prune(
            topology,
            outcome,
            trials=trials,
            replicates=range(replicates),
            rules=RULES,
            score=score,
            pruning=pruning,
        )

    return asyncio.run(work()), trials.account, runner


def by_brute_force(topology: Topology) -> set[str]:
    """Delete each edge and each node with networkx; keep what the written conditions allow."""
    found = set()
    graph = topology.to_networkx()
    smaller = [nx.restricted_view(graph, [], [edge]) for edge in graph.edges]
    smaller += [nx.restricted_view(graph, [node], []) for node in graph if graph.nodes[node]["role"] != "Answerer"]
    for view in smaller:
        copy = nx.DiGraph(view)
        sinks = [node for node in copy if copy.out_degree(node) == 0]
        if [copy.nodes[node]["role"] for node in sinks] == ["Answerer"]:
            found.add(Topology.from_networkx(copy).key)
    return found


@pytest.mark.parametrize("topology", ALL[::7], ids=lambda t: t.key)
def test_reductions_are_all_single_deletions_that_stay_valid(topology: Topology) -> None:
    found = reductions(topology, RULES, WEIGHTS)
    assert {t.key for t in found} == by_brute_force(topology)
    assert len({t.key for t in found}) == len(found)
    costs = [structural_cost(t.num_nodes, t.num_edges, WEIGHTS) for t in found]
    assert costs == sorted(costs)
    assert all(cost < structural_cost(topology.num_nodes, topology.num_edges, WEIGHTS) for cost in costs)


def test_reductions_do_not_depend_on_the_numbering() -> None:
    order = [3, 1, 0, 2]
    place = {node: number for number, node in enumerate(order)}
    permuted = Topology(tuple(FULL.roles[n] for n in order), tuple((place[a], place[b]) for a, b in FULL.edges))
    assert reductions(permuted, RULES, WEIGHTS) == reductions(FULL, RULES, WEIGHTS)


def test_nothing_is_cheaper_without_costs() -> None:
    assert reductions(FULL, RULES, CostWeights(0.0, 0.0)) == []
    assert reductions(Topology(("Answerer",), ()), RULES, WEIGHTS) == []


def needs_verifier(task: str, topology: Topology, replicate: int) -> bool:
    return "Verifier" in topology.roles


def test_what_is_needed_stays_and_the_rest_goes() -> None:
    found, _, _ = run_prune(FULL, needs_verifier, PruningRule(0.5))
    assert found.topology.key == "Verifier+Answerer:0>1"
    assert (found.outcome.successes, found.outcome.replicates) == (4, 4)
    assert found.accepted == 2, "two Planners, each with its edges"


def test_everything_goes_if_anybody_can_answer() -> None:
    found, _, _ = run_prune(FULL, lambda *_: True, PruningRule(1.0))
    assert found.topology.key == "Answerer:"


def test_the_sources_rule_accepts_a_fall_to_p_min_and_ours_does_not() -> None:
    """A single Answerer is right in half of the replicates, any larger team always: by hand."""

    def world(task: str, topology: Topology, replicate: int) -> bool:
        return topology.num_nodes > 1 or replicate % 2 == 0

    source, _, _ = run_prune(FULL, world, PruningRule(0.5))
    ours, _, _ = run_prune(FULL, world, PruningRule(0.5, keeps_score=True))
    assert source.topology.num_nodes == 1
    assert ours.topology.num_nodes == 2
    strict, _, _ = run_prune(FULL, world, PruningRule(0.75))
    assert strict.topology.num_nodes == 2


def test_score_may_fall_in_success_if_cost_falls_more() -> None:
    dear = ScoreRule(CostWeights(0.4, 0.1), 1.0, "raw")

    def world(task: str, topology: Topology, replicate: int) -> bool:
        return topology.num_nodes > 1 or replicate % 2 == 0

    found, _, _ = run_prune(FULL, world, PruningRule(0.5, keeps_score=True), score=dear)
    assert found.topology.num_nodes == 1


@settings(max_examples=30)
@given(
    topology=st.sampled_from([t for t in ALL if t.num_nodes == 4]),
    seed=st.integers(0, 10**6),
    p_min=st.sampled_from([0.25, 0.5, 1.0]),
    keeps=st.booleans(),
    estimator=st.sampled_from(["raw", "posterior_mean"]),
)
def test_saving_changes_no_result_and_nothing_more_can_go(
    topology: Topology, seed: int, p_min: float, keeps: bool, estimator: str
) -> None:
    """Incremental or not: the same topology and outcome. What is left is minimal: checked by trying every deletion."""

    def world(task: str, found: Topology, replicate: int) -> bool:
        return draw(seed, found.key, replicate) < 0.3 + 0.15 * found.num_nodes

    score = ScoreRule(WEIGHTS, 1.0, "raw" if estimator == "raw" else "posterior_mean")
    rule = PruningRule(p_min, keeps)
    saved, account, runner = run_prune(topology, world, rule, score=score)
    plain, full_account, _ = run_prune(topology, world, rule, score=score, incremental=False)
    assert saved == plain
    assert account.paid_calls <= full_account.paid_calls == full_account.calls
    assert len(set(runner.requests)) == len(runner.requests), "no execution twice"
    for reduced in reductions(saved.topology, RULES, WEIGHTS):
        successes = sum(world("t0", reduced, r) for r in range(4))
        outcome = TopologyOutcome(successes, 4, reduced.num_nodes, reduced.num_edges)
        rate = successes / 4 if estimator == "raw" else (successes + 1) / 6
        enough = successes > 0 and rate >= p_min
        assert not (enough and (not keeps or score.score(outcome) >= score.score(saved.outcome)))


def test_replicates_stop_once_the_bar_is_out_of_reach() -> None:
    """p_min 1: the first wrong answer decides, three replicates are spared for each refused deletion."""
    found, account, runner = run_prune(FULL, needs_verifier, PruningRule(1.0))
    refused = [r for _, key, r in runner.requests if "Verifier" not in key]
    assert set(refused) == {0}
    assert found.topology.key == "Verifier+Answerer:0>1"
    assert account.executed == len(runner.requests)


def test_errors_neither_help_nor_hurt() -> None:
    """Kind: endpoint failure scored as wrong. Replicate 1 always times out: three of three count."""

    def world(task: str, topology: Topology, replicate: int) -> bool | None:
        return None if replicate == 1 else "Verifier" in topology.roles

    found, account, _ = run_prune(FULL, world, PruningRule(1.0))
    assert found.topology.key == "Verifier+Answerer:0>1"
    assert (found.outcome.successes, found.outcome.replicates) == (3, 3)
    assert account.errors > 0


def test_all_errors_are_no_success() -> None:
    def world(task: str, topology: Topology, replicate: int) -> bool | None:
        return True if topology.key == FULL.key else None

    found, _, _ = run_prune(FULL, world, PruningRule(0.0))
    assert found.topology.key == FULL.key


@pytest.mark.parametrize("p_min", [-0.1, 1.1])
def test_p_min_is_a_rate(p_min: float) -> None:
    with pytest.raises(ValueError, match="p_min="):
        PruningRule(p_min)


def _wrong_in(wrong: tuple[int, ...]) -> Succeeds:
    return lambda task, topology, replicate: replicate not in wrong


def test_every_pair_of_replicates_counts_once() -> None:
    for size in range(1, 4):
        for wrong in combinations(range(4), size):
            found, _, _ = run_prune(FULL, _wrong_in(wrong), PruningRule(0.25))
            assert found.outcome.successes == 4 - size
