"""The probability of a graph, against the chain rule summed over its sequences, and over all graphs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.generators.kgat_worlds import (
    FOUR,
    THREE,
    TWO,
    contexts_of,
    model_of,
    rules_of,
    sequence_log_prob,
    sequences_of,
)

from provgym.envs.roles import ANSWERER
from provgym.envs.topology import Topology
from provgym.envs.topology_faults import TopologyError, TopologyFault
from provgym.envs.topology_rules import TopologyRules, enumerate_topologies
from provgym.generators.kgat_exact import pack_topologies
from provgym.generators.kgat_model import KgatModel
from provgym.generators.topology_sampler import random_topology

SMALL = [
    rules_of(FOUR, 1, 3),
    rules_of(FOUR, 2, 3),
    rules_of(THREE, 3, 3),
    rules_of(FOUR, 4, None),
    rules_of(FOUR, 4, 2),
    rules_of(TWO, 5, 2),
    rules_of(THREE, 4, 1),
    rules_of((ANSWERER,), 4, 3),
]


@pytest.mark.parametrize("sharpness", [0.0, 1.0, 6.0])
@pytest.mark.parametrize("rules", SMALL, ids=str)
def test_distinct_valid_graphs_have_probability_one_together(rules: TopologyRules, sharpness: float) -> None:
    """Graphs, not sequences; float32; several contexts at once."""
    model = model_of(rules, seed=3, sharpness=sharpness)
    graphs = list(enumerate_topologies(rules))
    with torch.no_grad():
        logprobs = model.log_prob(contexts_of(2), [graphs, graphs]).view(2, -1)
    assert logprobs.dtype == torch.float32
    assert torch.isfinite(logprobs).all()
    assert logprobs.double().exp().sum(dim=1).tolist() == pytest.approx([1.0, 1.0], abs=1e-5)


@settings(max_examples=25)
@example(1057, (FOUR, 5, 3))  # -33.7 nats, summed in float32: 2.3e-5 apart, which is rounding
@given(st.integers(0, 2**16), st.sampled_from([(FOUR, 5, 3), (FOUR, 6, 2), (THREE, 6, None), (TWO, 5, 1)]))
def test_a_graph_is_the_sum_of_its_distinct_sequences(
    seed: int, shape: tuple[tuple[str, ...], int, int | None]
) -> None:
    rules = rules_of(*shape)
    model = model_of(rules, seed=seed % 7)
    topology = random_topology(rules, np.random.default_rng(seed))
    contexts = contexts_of(1, seed=seed)
    with torch.no_grad():
        found = float(model.log_prob(contexts, [topology]))
        context = model.scores.pooling(contexts)
        parts = [sequence_log_prob(model, context, sequence) for sequence in sequences_of(topology)]
    assert found == pytest.approx(float(np.logaddexp.reduce(parts)), rel=4e-6, abs=2e-5)


@settings(max_examples=25)
@given(st.integers(0, 2**16))
def test_numbering_of_nodes_and_order_of_edges_change_nothing(seed: int) -> None:
    rules = rules_of(FOUR, 6, 3)
    rng = np.random.default_rng(seed)
    topology = random_topology(rules, rng)
    order = rng.permutation(topology.num_nodes).tolist()
    place = {node: number for number, node in enumerate(order)}
    edges = [(place[sender], place[receiver]) for sender, receiver in topology.edges]
    other = Topology(
        tuple(topology.roles[node] for node in order), tuple(edges[i] for i in rng.permutation(len(edges)))
    )
    with torch.no_grad():
        one, two = model_of(rules).log_prob(contexts_of(1), [topology, other], rows=[0, 0]).tolist()
    assert one == pytest.approx(two, rel=4e-6, abs=1e-5)


def test_batched_pairs_are_scored_as_they_are_alone() -> None:
    """Fault kind "padding side": large and small graphs of several contexts in one call."""
    rules = rules_of(FOUR, 6, 3)
    model, contexts = model_of(rules), contexts_of(3)
    rng = np.random.default_rng(5)
    groups = [[random_topology(rules, rng, num_nodes=size) for size in sizes] for sizes in ((1, 6), (3,), (6, 5, 2))]
    flat = [topology for group in groups for topology in group]
    rows = [0, 0, 1, 2, 2, 2]
    with torch.no_grad():
        nested = model.log_prob(contexts, groups)
        by_rows = model.log_prob(contexts, flat, rows=rows)
        packed = model.pack(flat, rows, num_contexts=3)
        again = [model(contexts, packed), model(contexts, packed)]
        alone = [model.log_prob(contexts.select([row]), [topology]) for row, topology in zip(rows, flat, strict=True)]
    assert nested.shape == (6,)
    for other in (by_rows, *again):
        assert torch.equal(nested, other)
    torch.testing.assert_close(nested, torch.cat(alone), atol=1e-5, rtol=0)
    assert len(packed) == 6


def test_gradients_are_those_of_the_numbers() -> None:
    """Against finite differences in double precision, along random directions in all weights at once."""
    rules = rules_of(THREE, 4, 2)
    model = model_of(rules, sharpness=1.5).double()
    contexts = contexts_of(2)
    contexts = type(contexts)(contexts.query.double(), contexts.units.double(), contexts.mask, None)
    rng = np.random.default_rng(1)
    graphs = [random_topology(rules, rng, num_nodes=size) for size in (4, 3, 4, 1)]
    packed = model.pack(graphs, [0, 1, 1, 0], num_contexts=2)
    weights = torch.tensor([0.5, 0.2, 0.2, 0.1], dtype=torch.float64)

    def loss() -> torch.Tensor:
        return -(weights * model.log_prob(contexts, packed)).sum()

    loss().backward()
    parameters = list(model.parameters())
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        direction = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
        slope = sum(float((p.grad * d).sum()) for p, d in zip(parameters, direction, strict=True) if p.grad is not None)
        values = []
        with torch.no_grad():
            for sign in (1.0, -2.0):
                for parameter, d in zip(parameters, direction, strict=True):
                    parameter.add_(sign * 1e-6 * d)
                values.append(float(loss()))
            for parameter, d in zip(parameters, direction, strict=True):
                parameter.add_(1e-6 * d)
        assert (values[0] - values[1]) / 2e-6 == pytest.approx(slope, rel=1e-5, abs=1e-7)


def test_every_weight_gets_a_gradient() -> None:
    rules = rules_of(FOUR, 4, 2)
    model = model_of(rules, sharpness=1.0)
    rng = np.random.default_rng(2)
    contexts = contexts_of(2)
    mixed = type(contexts)(contexts.query, contexts.units, contexts.mask & torch.tensor([[True], [False]]), None)
    graphs = [[random_topology(rules, rng, num_nodes=4) for _ in range(8)] for _ in range(2)]
    model.log_prob(mixed, graphs).sum().backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert without == []


def train_towards(model: KgatModel, shares: list[dict[str, float]], steps: int = 150) -> list[float]:
    """Match target shares over graphs, one target per context; returns the largest error of each context."""
    graphs = {graph.key: graph for graph in enumerate_topologies(model.rules)}
    contexts = contexts_of(len(shares))
    packed = model.pack([[graphs[key] for key in row] for row in shares], num_contexts=len(shares))
    weights = torch.tensor([share for row in shares for share in row.values()])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        (-(weights * model.log_prob(contexts, packed)).sum()).backward()
        optimizer.step()
    with torch.no_grad():
        found = model.log_prob(contexts, packed).exp()
    errors = (found - weights).abs().split([len(row) for row in shares])
    return [float(error.max()) for error in errors]


def test_a_target_distribution_that_depends_on_the_evidence_can_be_learned() -> None:
    rules = rules_of(THREE, 4, 2)
    shares = [
        {"Answerer:": 0.7, "Reasoner+Answerer:0>1": 0.3},
        {"Reasoner+Reasoner+Answerer:0>2,1>2": 0.6, "Planner+Reasoner+Reasoner+Answerer:0>1,0>2,1>3,2>3": 0.4},
    ]
    assert max(train_towards(model_of(rules, sharpness=1.0), shares)) < 0.03


def test_what_is_outside_the_support_is_refused_by_name() -> None:
    rules = rules_of(FOUR, 4, 2)
    model, contexts = model_of(rules), contexts_of(1)
    star = Topology(("Reasoner",) * 3 + (ANSWERER,), ((0, 3), (1, 3), (2, 3)))
    assert not model.supports(star)
    with pytest.raises(TopologyError, match="in-degree|in_degree") as refused:
        model.log_prob(contexts, [star])
    assert refused.value.fault is TopologyFault.IN_DEGREE
    unknown = Topology(("Critic", ANSWERER), ((0, 1),))
    with pytest.raises(TopologyError) as refused:
        model.log_prob(contexts, [unknown])
    assert refused.value.fault is TopologyFault.UNKNOWN_ROLE


def test_numbers_that_do_not_fit_are_refused() -> None:
    rules = rules_of(FOUR, 4, 2)
    model, contexts = model_of(rules), contexts_of(2)
    single = Topology((ANSWERER,), ())
    with pytest.raises(ValueError, match="1 entries of topologies for 2 contexts"):
        model.log_prob(contexts, [single])
    with pytest.raises(ValueError, match="row 2 names no context"):
        model.log_prob(contexts, [single], rows=[2])
    with pytest.raises(ValueError, match="1 topologies and 2 rows"):
        model.log_prob(contexts, [single], rows=[0, 1])
    with pytest.raises(ValueError, match="0 topologies"):
        pack_topologies([], [], rules)


def test_damaged_weights_are_named() -> None:
    model = model_of(rules_of(FOUR, 4, 2))
    with torch.no_grad():
        model.scores.roles.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match="weights are damaged"):
        model.log_prob(contexts_of(1), [Topology(("Planner", ANSWERER), ((0, 1),))])
