"""Proposals: shares of the mixture, what is refused, what repeats, and what a task's draws depend on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from provgym.envs.topology import Topology
from provgym.envs.topology_rules import TopologyRules
from provgym.generators.candidate_mining import Mixture, Proposals, SampleTopologies, pi_of_round, propose
from provgym.generators.topology_sampler import random_topology
from provgym.generators.topology_templates import templates

NAMES = ("Planner", "Reasoner", "Verifier", "Answerer")
RULES = TopologyRules(NAMES, max_nodes=5, max_in_degree=3)
CHAIN = Topology(("Planner", "Verifier", "Answerer"), ((0, 1), (1, 2)))
OUTSIDE = Topology(("Reasoner",) * 5 + ("Answerer",), tuple((node, 5) for node in range(5)))


def draw(
    num_tasks: int = 4,
    *,
    pi: float = 0.0,
    template_share: float = 0.5,
    candidates: int = 5,
    rules: TopologyRules = RULES,
    sample: SampleTopologies = lambda tasks, seeds: [CHAIN for _ in tasks],
    seed: int = 0,
    number: int = 0,
    hand_made: dict[str, Topology] | None = None,
) -> Proposals:
    return propose(
        num_tasks,
        Mixture(candidates, pi, template_share),
        rules=rules,
        templates=templates(rules) if hand_made is None else hand_made,
        random_topology=random_topology,
        sample=sample,
        run_seed=seed,
        round_number=number,
    )


def test_shares_are_those_of_the_mixture() -> None:
    """2,000 draws at pi 0.3: generator 0.3, templates 0.42, random 0.28."""
    drawn = draw(400, pi=0.3, template_share=0.6).drawn
    expected = {"generator": 600, "template": 840, "random": 560}
    assert chisquare([drawn[k] for k in expected], list(expected.values())).pvalue > 1e-3


def test_candidates_are_valid_canonical_and_distinct() -> None:
    for row in draw(50, pi=0.4, candidates=8).by_task:
        keys = [proposal.topology.key for proposal in row]
        assert len(set(keys)) == len(keys)
        assert all(RULES.is_valid(p.topology) and p.topology == p.topology.canonical() for p in row)


def test_what_the_generator_could_never_produce_is_refused_and_counted() -> None:
    """Debate exceeds the in-degree; so does a foreign sample. Random DAGs take the place of both."""
    found = draw(60, pi=0.5, template_share=1.0, sample=lambda tasks, seeds: [OUTSIDE for _ in tasks])
    assert found.refused["generator"] == found.drawn["generator"] > 0
    assert found.refused["template"] > 0
    assert found.drawn["random"] == 0
    stand_ins = sum(p.origin == "random" for row in found.by_task for p in row)
    lost = sum(found.refused.values()) + found.repeated["template"] + found.repeated["generator"]
    assert stand_ins + found.repeated["random"] == lost
    kept = sum(len(row) for row in found.by_task)
    assert kept + found.repeated["random"] == sum(found.drawn.values())
    assert OUTSIDE.key not in {p.topology.key for row in found.by_task for p in row}


def test_a_task_depends_on_seed_round_and_number_alone() -> None:
    """Kind: correlated workers. Other tasks change nothing; the next seed is not a shifted one."""
    few, many = draw(3, pi=0.2).by_task, draw(9, pi=0.2).by_task
    assert many[:3] == few
    assert draw(3, pi=0.2).by_task == few
    assert draw(3, pi=0.2, seed=1).by_task != few
    assert draw(3, pi=0.2, number=1).by_task != few
    shifted = draw(9, pi=0.2, seed=1).by_task
    assert not any(shifted[n] == many[n + 1] for n in range(8))


def test_generator_is_asked_once_for_everything_with_distinct_seeds() -> None:
    asked: list[tuple[Sequence[int], Sequence[int]]] = []

    def sample(tasks: Sequence[int], seeds: Sequence[int]) -> list[Topology]:
        asked.append((tasks, seeds))
        return [CHAIN for _ in tasks]

    found = draw(10, pi=1.0, sample=sample)
    ((tasks, seeds),) = asked
    assert len(tasks) == len(set(seeds)) == 50
    assert found.repeated["generator"] == 40  # a random DAG stands in for each
    assert [len(row) for row in found.by_task] == [5] * 10
    assert all([p.origin for p in row].count("generator") == 1 for row in found.by_task)


def test_generator_is_not_asked_in_vain() -> None:
    def sample(tasks: Sequence[int], seeds: Sequence[int]) -> list[Topology]:
        raise AssertionError("pi is 0")

    assert draw(5, pi=0.0, sample=sample).drawn["generator"] == 0


@pytest.mark.parametrize("pi", [0.0, 0.5])
def test_one_node_is_all_there_is(pi: float) -> None:
    """Bad input: N_max 1."""
    rules = TopologyRules(NAMES, max_nodes=1)
    single = Topology(("Answerer",), ())
    found = draw(4, pi=pi, rules=rules, sample=lambda tasks, seeds: [single for _ in tasks])
    assert {p.topology.key for row in found.by_task for p in row} == {"Answerer:"}
    assert all(len(row) == 1 for row in found.by_task)


@given(st.integers(1, 50), st.floats(0, 1), st.floats(0, 1))
def test_pi_grows_from_first_to_last(rounds: int, one: float, other: float) -> None:
    first, last = sorted((one, other))
    found = [pi_of_round(n, rounds, first=first, last=last) for n in range(rounds)]
    assert found == sorted(found)
    assert found[0] == first
    if rounds > 1:
        assert found[-1] == pytest.approx(last)


def test_bad_settings_name_the_value() -> None:
    with pytest.raises(ValueError, match="candidates=0"):
        Mixture(0, 0.5)
    with pytest.raises(ValueError, match=r"generator_share=1\.5"):
        Mixture(3, 1.5)
    with pytest.raises(ValueError, match="not shrink"):
        pi_of_round(0, 3, first=0.5, last=0.2)
    with pytest.raises(ValueError, match="round 3"):
        pi_of_round(3, 3, first=0.0, last=0.2)
    with pytest.raises(ValueError, match="templates is empty"):
        draw(1, hand_made={})
