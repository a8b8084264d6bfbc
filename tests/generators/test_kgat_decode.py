"""Decoding: never invalid, distributed as the exact probabilities say, and each row by its own seed alone."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
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
from provgym.envs.topology_rules import TopologyRules, enumerate_topologies
from provgym.generators.kgat_context import ContextBatch
from provgym.generators.kgat_decode import DecodeMode
from provgym.generators.kgat_model import KgatModel, KgatSettings
from provgym.generators.seeds import Purpose, derive_seed


def repeated(contexts: ContextBatch, count: int) -> ContextBatch:
    return contexts.select([0] * count)


def seeds_of(count: int, run_seed: int = 42) -> list[int]:
    return [derive_seed(run_seed, Purpose.CANDIDATES, number) for number in range(count)]


def exact_shares(model: KgatModel, contexts: ContextBatch, temperature: float) -> dict[str, float]:
    """Each graph's probability at a temperature, by the chain rule over all its sequences."""
    context = model.scores.pooling(contexts)
    shares = {}
    with torch.no_grad():
        for graph in enumerate_topologies(model.rules):
            parts = [sequence_log_prob(model, context, one, temperature) for one in sequences_of(graph)]
            shares[graph.key] = float(np.exp(np.logaddexp.reduce(parts)))
    return shares


def fits(drawn: Counter[str], shares: dict[str, float]) -> float:
    """Return the p value of a chi-square test; rare graphs are pooled so that every class expects 5 or more."""
    count = sum(drawn.values())
    assert set(drawn) <= set(shares)
    common = [key for key, share in shares.items() if share * count >= 5]
    observed = [drawn[key] for key in common]
    expected = [shares[key] * count for key in common]
    rest = count - sum(expected)
    if rest >= 5:
        observed.append(count - sum(observed))
        expected.append(rest)
    else:
        total = sum(observed)
        expected = [value * total / sum(expected) for value in expected]
    return float(stats.chisquare(observed, expected, sum_check=False).pvalue)


@pytest.mark.parametrize("rules", [rules_of(THREE, 3, 3), rules_of(FOUR, 4, 2), rules_of(TWO, 5, 2)], ids=str)
def test_graphs_are_drawn_as_often_as_their_probability_says(rules: TopologyRules) -> None:
    model, contexts = model_of(rules, seed=1, sharpness=2.0), contexts_of(1)
    graphs = list(enumerate_topologies(rules))
    with torch.no_grad():
        shares = model.log_prob(contexts, [graphs]).double().exp().tolist()
    count = 3000
    drawn = Counter(t.key for t in model.decode(repeated(contexts, count), mode="sample", seeds=seeds_of(count)))
    assert len(drawn) > 5
    assert fits(drawn, dict(zip([graph.key for graph in graphs], shares, strict=True))) > 1e-3


def test_temperature_flattens_every_choice() -> None:
    """Fault kind "temperature in the ratio": at another temperature draws follow that temperature's chances."""
    rules = rules_of(THREE, 3, 3)
    model, contexts = model_of(rules, seed=1, sharpness=2.0), contexts_of(1)
    shares, count = exact_shares(model, contexts, 2.5), 3000
    drawn = Counter(
        t.key for t in model.decode(repeated(contexts, count), mode="sample", temperature=2.5, seeds=seeds_of(count))
    )
    assert fits(drawn, shares) > 1e-3
    assert fits(drawn, exact_shares(model, contexts, 1.0)) < 1e-6


def test_a_cold_sample_is_the_greedy_choice() -> None:
    model, contexts = model_of(rules_of(FOUR, 6, 3), seed=2), contexts_of(5)
    cold = model.decode(contexts, mode="sample", temperature=1e-4, seeds=seeds_of(5))
    assert cold == model.decode(contexts, mode="greedy")


@settings(max_examples=25)
@given(
    st.integers(0, 2**16),
    st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e4, 1e12]),
    st.integers(1, 7),
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from([TWO, FOUR, (ANSWERER,)]),
    st.integers(0, 3),
)
def test_no_weights_make_an_invalid_topology(
    seed: int, scale: float, max_nodes: int, max_in_degree: int | None, roles: tuple[str, ...], num_units: int
) -> None:
    rules = rules_of(roles, max_nodes, max_in_degree)
    model = model_of(rules)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    contexts = contexts_of(6, num_units, seed)
    decoded = model.decode(contexts) + model.decode(contexts, mode="sample", seeds=range(6))
    decoded += model.decode(contexts, mode="sample", temperature=50.0, seeds=range(6))
    for topology in decoded:
        rules.check(topology)
        assert all(sender < receiver for sender, receiver in topology.edges)
        assert topology.roles[-1] == ANSWERER
    for topology, logprob in model.beam(contexts.select([0, 1]), 3)[1]:
        rules.check(topology)
        assert logprob <= 1e-4


def test_a_row_decodes_the_same_alone_in_a_batch_and_in_another_order() -> None:
    """Fault kinds "padding side" and "correlated workers": a row's draws come from its own seed."""
    model, contexts, count = model_of(rules_of(FOUR, 6, 3)), contexts_of(40), 40
    seeds = seeds_of(count)
    sampled = model.decode(contexts, mode="sample", seeds=seeds)
    greedy = model.decode(contexts)
    order = np.random.default_rng(0).permutation(count).tolist()
    turned = model.decode(contexts.select(order), mode="sample", seeds=[seeds[row] for row in order])
    assert turned == [sampled[row] for row in order]
    for row in range(0, count, 5):
        one = contexts.select([row])
        assert model.decode(one, mode="sample", seeds=[seeds[row]]) == [sampled[row]]
        assert model.decode(one) == [greedy[row]]


def test_seeds_that_are_neighbours_are_unrelated() -> None:
    """Fault kinds "correlated workers" and "global RNG": no seed is a shifted other one, and 0 is a seed."""
    model = model_of(rules_of(FOUR, 6, 3), sharpness=1.0)
    contexts = repeated(contexts_of(1), 30)
    five = model.decode(contexts, mode="sample", seeds=range(30))
    six = model.decode(contexts, mode="sample", seeds=range(1, 31))
    assert five[1:] == six[:-1]  # the same seeds
    other = model.decode(contexts, mode="sample", seeds=seeds_of(30))
    assert sum(a == b for a, b in zip(five, other, strict=True)) < 15
    assert len({t.key for t in five}) > 10


def test_global_generators_are_left_alone() -> None:
    """Fault kind "global RNG"."""

    def states() -> tuple[object, object, list[int]]:
        numbers = np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
        return random.getstate(), numbers, torch.get_rng_state().tolist()

    before = states()
    model = model_of(rules_of(FOUR, 4, 3))
    model.decode(contexts_of(3), mode="sample", seeds=[1, 2, 3])
    assert states() == before
    torch.manual_seed(3)
    pairs = zip(model.parameters(), model_of(rules_of(FOUR, 4, 3)).parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_with_one_node_there_is_nothing_to_choose() -> None:
    model, contexts = model_of(rules_of(FOUR, 1, 3)), contexts_of(3)
    single = Topology((ANSWERER,), ())
    assert model.decode(contexts) == [single] * 3
    assert model.decode(contexts, mode="sample", seeds=[1, 2, 3]) == [single] * 3
    assert model.beam(contexts, 4) == [[(single, 0.0)]] * 3
    assert model.decode(contexts_of(2, num_units=0)) == [single] * 2


def test_no_contexts_no_topologies() -> None:
    model, none = model_of(rules_of(FOUR, 4, 3)), contexts_of(1).select([])
    assert model.decode(none) == []
    assert model.decode(none, mode="sample", seeds=[]) == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"mode": "sample"}, "one seed each, found none"),
        ({"mode": "sample", "seeds": [1]}, "sampling 2 topologies needs one seed each, found 1"),
        ({"mode": "sample", "seeds": [1, 2], "temperature": 0.0}, "temperature=0.0 must be a positive number"),
        ({"mode": "sample", "seeds": [1, 2], "temperature": math.nan}, "temperature=nan must be"),
        ({"mode": "sample", "seeds": [1, -2]}, "integers >= 0"),
        ({"mode": "beam"}, "mode='beam' is unknown"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, object], complaint: str) -> None:
    model = model_of(rules_of(FOUR, 4, 3))
    with pytest.raises(ValueError, match=complaint):
        model.decode(contexts_of(2), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["greedy", "sample"])
def test_damaged_weights_are_named(mode: DecodeMode) -> None:
    model = model_of(rules_of(FOUR, 4, 3))
    with torch.no_grad():
        model.scores.edge.weight.fill_(math.nan)
        model.scores.roles.weight.fill_(math.nan)
    with pytest.raises(ValueError, match="weights are damaged"):
        model.decode(contexts_of(2), mode=mode, seeds=[1, 2])


def test_settings_are_strict() -> None:
    """Fault kind "config typing"."""
    with pytest.raises(ValueError, match="max_node"):
        KgatSettings(max_node=3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="heads=3 must divide hidden_size=64"):
        KgatSettings(heads=3)
    with pytest.raises(ValueError, match="must hold 'Answerer'"):
        KgatSettings(role_names=("Reasoner",))
    with pytest.raises(ValueError, match="less than or equal to 10"):
        KgatSettings(max_nodes=11)
    for wrong in (True, "6", 6.5):
        with pytest.raises(ValueError, match="max_nodes"):
            KgatSettings.model_validate({"max_nodes": wrong})
    stored = KgatSettings(max_nodes=4, max_in_degree=None)
    assert KgatSettings.model_validate_json(stored.model_dump_json()) == stored


def test_weights_serve_other_limits() -> None:
    """No weight depends on N_max or d_max, so a generator trained under 6 nodes can be asked for up to 8."""
    small, large = model_of(rules_of(FOUR, 6, 3)), model_of(rules_of(FOUR, 8, None), seed=5)
    large.load_state_dict(small.state_dict())
    for topology in large.decode(contexts_of(20), mode="sample", seeds=range(20)):
        large.rules.check(topology)
    # Far from both limits nothing is masked, and the two agree.
    pair = [Topology((ANSWERER,), ()), Topology(("Reasoner", ANSWERER), ((0, 1),))]
    with torch.no_grad():
        one, other = (model.log_prob(contexts_of(1), [pair]) for model in (small, large))
    torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def test_the_seed_decides_the_initial_weights() -> None:
    one, same, other = (KgatModel(KgatSettings(), seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["scores.roles.weight"], other["scores.roles.weight"])
    assert not any("masks" in name for name in one), "tables of the constraints are no weights"
