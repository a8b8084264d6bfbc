"""The simulated world rewards teams that fit the evidence: measured by running them, never asserted of a formula.

Costs are 0.03 a node and 0.015 an edge (lambda_C = 1), the defaults of the K-GAT configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from tests.envs.workflow_worlds import CHAIN, PAIR, SINGLE, STAR, agreement, conflict, irrelevance, request

from provgym.envs.evidence_units import EvidenceContext
from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.simulated_agents import SimulatedAgent
from provgym.envs.topology import Topology
from provgym.envs.topology_rules import TopologyRules, enumerate_topologies
from provgym.envs.topology_tasks import TopologyTask
from provgym.envs.workflow import MemoryMessageCache, RunRequest, WorkflowRuntime
from provgym.rewards.topology_score import CostWeights, TopologyOutcome, topology_score

WEIGHTS = CostWeights(node=0.03, edge=0.015)
KINDS = ("agreement", "conflict", "irrelevance")


def score(right: Sequence[bool], topology: Topology) -> float:
    """The raw score of a topology's runs."""
    outcome = TopologyOutcome(sum(right), len(right), topology.num_nodes, topology.num_edges)
    return topology_score(outcome, weights=WEIGHTS, cost_weight=1.0, estimator="raw")


@pytest.fixture(scope="module")
def measured() -> Mapping[tuple[str, Topology], float]:
    """Success rates over 120 replicates of one task per kind."""
    engine = WorkflowRuntime(SimulatedAgent(), roles=DEFAULT_ROLES, cache=MemoryMessageCache())
    rates = {}
    for task in (agreement(), conflict(), irrelevance()):
        for topology in (SINGLE, PAIR, CHAIN, STAR):
            runs = engine.run_many_sync([request(topology, task, n) for n in range(120)])
            rates[str(task.evidence_kind), topology] = sum(bool(run.is_correct) for run in runs) / 120
    return rates


def test_with_agreeing_evidence_nothing_is_worth_a_second_agent(measured: Mapping[tuple[str, Topology], float]) -> None:
    single = measured["agreement", SINGLE]
    assert single > 0.85
    for team in (PAIR, CHAIN, STAR):
        extra = WEIGHTS.node * (team.num_nodes - 1) + WEIGHTS.edge * team.num_edges
        assert measured["agreement", team] - extra < single + 0.02


def test_with_echoes_readers_agree_on_the_wrong_answer_and_a_verifier_mends_it(
    measured: Mapping[tuple[str, Topology], float],
) -> None:
    """Neither a lone Answerer nor more readers: the error is systematic."""
    assert max(measured["conflict", team] for team in (SINGLE, PAIR, STAR)) < 0.35
    assert measured["conflict", CHAIN] > 0.7


def test_with_irrelevant_units_a_reasoner_filters(measured: Mapping[tuple[str, Topology], float]) -> None:
    assert measured["irrelevance", SINGLE] < 0.5
    assert measured["irrelevance", PAIR] > 0.75
    assert measured["irrelevance", STAR] >= measured["irrelevance", PAIR]


def test_agents_that_never_err_need_no_team() -> None:
    """The far end of the error sweep."""
    from provgym.envs.simulated_agents import DEFAULT_ERROR_MODEL

    engine = WorkflowRuntime(SimulatedAgent(DEFAULT_ERROR_MODEL.scaled(0.0)), roles=DEFAULT_ROLES)
    requests = [request(team, task) for task in (agreement(), conflict(), irrelevance()) for team in (SINGLE, CHAIN)]
    assert all(run.is_correct for run in engine.run_many_sync(requests))


@pytest.mark.slow
def test_best_topologies_differ_by_kind_and_beat_random_ones() -> None:
    """Exhaustive over all 407 topologies of up to four nodes, on generated tasks: the planted optimum is there.

    S is the mean score over kinds of the best topology of each kind, of a random valid one, and of the best single one
    for all kinds (all that a generator without the evidence can find).
    """
    from provgym.generators.evidence_task_config import EvidenceTaskConfig
    from provgym.generators.evidence_tasks import make_evidence_tasks
    from provgym.generators.hashed_encoder import HashedEncoder
    from provgym.generators.retriever import retrieve_contexts

    config = EvidenceTaskConfig(train_claims=10)
    tasks = make_evidence_tasks(config, "train")
    contexts = retrieve_contexts(tasks, HashedEncoder(), config.num_units)
    topologies = list(enumerate_topologies(TopologyRules(DEFAULT_ROLES.names, max_nodes=4, max_in_degree=None)))
    assert len(topologies) == 407
    scores = exhaustive_scores(topologies, tasks, contexts, replicates=4)
    best = {kind: max(topologies, key=lambda topology: scores[kind, topology]) for kind in KINDS}
    assert best["agreement"] == SINGLE
    assert len({topology.key for topology in best.values()}) == 3
    assert "Verifier" in best["conflict"].roles
    assert "Reasoner" in best["irrelevance"].roles
    sizes = {kind: topology.num_nodes for kind, topology in best.items()}
    assert min(sizes["conflict"], sizes["irrelevance"]) > sizes["agreement"]
    s_best = sum(scores[kind, best[kind]] for kind in KINDS) / 3
    s_random = sum(scores[kind, topology] for kind in KINDS for topology in topologies) / (3 * len(topologies))
    s_one = max(sum(scores[kind, topology] for kind in KINDS) / 3 for topology in topologies)
    print({kind: topology.key for kind, topology in best.items()}, s_best, s_random, s_one)
    assert s_best - s_random >= 0.1
    assert s_best - s_one >= 0.02  # seeing the evidence is worth something


def exhaustive_scores(
    topologies: Sequence[Topology],
    tasks: Sequence[TopologyTask],
    contexts: Sequence[EvidenceContext],
    replicates: int,
) -> dict[tuple[str, Topology], float]:
    """Run every topology on every task; return raw scores by kind and topology."""
    engine = WorkflowRuntime(SimulatedAgent(), roles=DEFAULT_ROLES, cache=MemoryMessageCache())
    scores = {}
    for topology in topologies:
        requests = [
            RunRequest(topology, task, context, replicate)
            for task, context in zip(tasks, contexts, strict=True)
            for replicate in range(replicates)
        ]
        runs = engine.run_many_sync(requests)
        for kind in KINDS:
            right = [bool(r.is_correct) for q, r in zip(requests, runs, strict=True) if q.task.evidence_kind == kind]
            scores[kind, topology] = score(right, topology)
    return scores
