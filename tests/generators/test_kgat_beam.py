"""Beam search: exact probabilities, in order, and every graph if the beam is wide enough."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.generators.kgat_worlds import FOUR, THREE, TWO, contexts_of, model_of, rules_of

from provgym.envs.topology_rules import TopologyRules, enumerate_topologies
from provgym.generators.kgat_beam import search_beam

RULES = [rules_of(THREE, 3, 3), rules_of(FOUR, 4, 2), rules_of(TWO, 5, 2)]


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_a_beam_as_wide_as_all_prefixes_finds_every_graph(rules: TopologyRules) -> None:
    model = model_of(rules, seed=1)
    expected = {graph.key for graph in enumerate_topologies(rules)}
    for found in model.beam(contexts_of(2), 2000):
        assert {topology.key for topology, _ in found} == expected
        assert len(found) == len(expected)
        assert sum(np.exp(logprob) for _, logprob in found) == pytest.approx(1.0, abs=1e-5)


def test_the_first_of_a_wide_beam_is_the_likeliest_graph() -> None:
    rules = rules_of(THREE, 4, 2)
    graphs = list(enumerate_topologies(rules))
    for seed in range(4):
        model, contexts = model_of(rules, seed=seed), contexts_of(1, seed=seed)
        with torch.no_grad():
            logprobs = model.log_prob(contexts, [graphs])
        ((best, logprob), *_) = model.beam(contexts, 500)[0]
        assert best.key == graphs[int(logprobs.argmax())].key
        assert logprob == pytest.approx(float(logprobs.max()), rel=4e-6, abs=1e-5)


@pytest.mark.parametrize("width", [1, 2, 5, 20])
def test_entries_are_distinct_ordered_and_exact(width: int) -> None:
    model, contexts = model_of(rules_of(FOUR, 6, 3), seed=2), contexts_of(3)
    for row, found in enumerate(model.beam(contexts, width)):
        assert 1 <= len(found) <= width
        assert len({topology.key for topology, _ in found}) == len(found)
        logprobs = [logprob for _, logprob in found]
        assert logprobs == sorted(logprobs, reverse=True)
        with torch.no_grad():
            exact = model.log_prob(contexts.select([row]), [[topology for topology, _ in found]])
        assert logprobs == pytest.approx(exact.tolist(), rel=4e-6, abs=1e-5)


def test_beam_and_greedy_agree() -> None:
    for seed in range(4):
        model, contexts = model_of(rules_of(FOUR, 5, 2), seed=seed, sharpness=1.5), contexts_of(3, seed=seed)
        greedy = model.decode(contexts)
        with torch.no_grad():
            greedy_logprobs = model.log_prob(contexts, greedy).tolist()
        assert [row[0][0] for row in model.beam(contexts, 1)] == greedy
        for width in (2, 8):
            found = model.beam(contexts, width)
            for row, logprob in zip(found, greedy_logprobs, strict=True):
                assert row[0][1] >= logprob - 1e-5


def test_a_row_finds_the_same_alone() -> None:
    model, contexts = model_of(rules_of(FOUR, 5, 3), seed=4), contexts_of(4)
    together = model.beam(contexts, 4)
    for row in (0, 3):
        (alone,) = model.beam(contexts.select([row]), 4)
        assert [topology.key for topology, _ in alone] == [topology.key for topology, _ in together[row]]


def test_a_width_below_one_is_refused() -> None:
    model = model_of(rules_of(FOUR, 4, 3))
    with pytest.raises(ValueError, match="width=0 must be >= 1"):
        model.beam(contexts_of(1), 0)
    assert search_beam(model.scores, torch.zeros(0, 16), model.settings.role_names, 3) == []
