"""Merged graphs of any size: the same shape at every size, and nothing in a step that grows with it."""

from typing import Any

import networkx as nx
import numpy as np
import pytest
from numpy.typing import NDArray

from provgym.envs.graph_arrays import MAX_NEIGHBOURS
from provgym.envs.scale import merged_instances
from provgym.envs.walk_discrete import GraphWalkEnv
from provgym.rewards.outcome import Verdict


@pytest.mark.parametrize("num_nodes", [1, 100, 5_000])
def test_sizes_counts_and_degrees(num_nodes: int) -> None:
    instances = merged_instances(num_nodes, seed=3)
    graph = instances[0].graph
    assert num_nodes <= graph.num_nodes <= num_nodes + 111
    assert np.diff(graph.indptr).max() <= MAX_NEIGHBOURS
    assert len(instances) == len(graph.claims)
    for claim, instance in enumerate(instances):
        assert (instance.claim, instance.graph) == (claim, graph)
        assert instance.gold is Verdict.from_counts(*instance.source_counts)
        assert sum(instance.source_counts) >= 1


def test_the_same_seed_gives_the_same_graph() -> None:
    first, second, other = (merged_instances(500, seed=seed)[0].graph for seed in (1, 1, 2))
    assert (first.claims, first.atoms, first.routes) == (second.claims, second.atoms, second.routes)
    assert first.routes != other.routes


def test_walks_can_cross_between_claims() -> None:
    shared, apart = (merged_instances(2_000, shared_share=share)[0].graph for share in (0.3, 0.0))
    assert nx.number_connected_components(apart.to_networkx()) == len(apart.claims)
    assert nx.number_connected_components(shared.to_networkx()) < len(shared.claims) / 4


def test_a_large_claim_forms_a_ring() -> None:
    (instance, *_) = merged_instances(1, largest_claim=500)
    assert instance.source_counts == (500, 0)
    assert np.diff(instance.graph.indptr).max() == MAX_NEIGHBOURS


class CountedArray(np.ndarray[Any, Any]):
    """An array that adds up the entries which its ``take`` and slices hand out."""

    touched = 0

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        CountedArray.touched += int(np.size(value))
        return value

    def take(self, *args: Any, **kwargs: Any) -> Any:
        value = super().take(*args, **kwargs)
        CountedArray.touched += int(np.size(value))
        return value


def counted(array: NDArray[Any]) -> NDArray[Any]:
    return array.view(CountedArray)


@pytest.mark.parametrize("num_nodes", [100, 20_000])
def test_a_step_touches_no_more_of_a_larger_graph(num_nodes: int) -> None:
    """Counts entries read from the graph's arrays instead of timing; the bound holds at every size."""
    instances = merged_instances(num_nodes, seed=5, shared_share=0.0)
    graph = instances[0].graph
    env = GraphWalkEnv(instances)
    env.reset(seed=0)  # builds what is built once per graph
    for name in ("node_kind", "node_atom", "node_source", "node_claim", "indptr", "indices"):
        object.__setattr__(graph, name, counted(getattr(graph, name)))
    rng = np.random.default_rng(0)
    for episode in range(20):
        CountedArray.touched = 0
        env.reset(seed=episode)
        assert CountedArray.touched <= 4 * MAX_NEIGHBOURS
        for _ in range(6):
            CountedArray.touched = 0
            env.step(int(rng.integers(3)))
            assert CountedArray.touched <= 4 * MAX_NEIGHBOURS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_nodes": 0}, "num_nodes=0 must be >= 1"),
        ({"num_nodes": 10, "shared_share": 1.5}, r"shared_share=1.5 must lie in \[0, 1\]"),
        ({"num_nodes": 10, "largest_claim": -1}, "largest_claim=-1 must be >= 0"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        merged_instances(**arguments)


@pytest.mark.slow
def test_a_million_nodes() -> None:
    instances = merged_instances(1_000_000)
    env = GraphWalkEnv(instances)
    for seed in range(50):
        observation, _ = env.reset(seed=seed)
        for _ in range(6):
            observation, *_ = env.step(0)
        assert observation in env.observation_space
