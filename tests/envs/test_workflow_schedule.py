"""The ready queue: every node after those that it hears, none later than it has to, nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.envs.workflow_worlds import A, R, V

from provgym.envs.topology import Topology
from provgym.envs.workflow_schedule import run_in_order


@st.composite
def graphs(draw: st.DrawFn) -> Topology:
    """Any acyclic graph of up to seven nodes, numbered at random."""
    size = draw(st.integers(1, 7))
    order = draw(st.permutations(range(size)))
    pairs = [(order[i], order[j]) for i in range(size) for j in range(i + 1, size)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return Topology((R,) * size, tuple(edges))


@settings(max_examples=60, deadline=None)
@given(graph=graphs(), naps=st.lists(st.integers(0, 3), min_size=7, max_size=7))
def test_every_node_runs_once_with_the_results_of_all_that_it_hears(graph: Topology, naps: list[int]) -> None:
    ended: list[int] = []

    async def step(node: int, heard: Mapping[int, str]) -> str:
        assert set(heard) == set(graph.predecessors(node)) <= set(ended)
        assert all(text == f"from {sender}" for sender, text in heard.items())
        for _ in range(naps[node]):
            await asyncio.sleep(0)
        ended.append(node)
        return f"from {node}"

    results = asyncio.run(run_in_order(graph, step))
    assert sorted(ended) == list(range(graph.num_nodes))
    assert results == tuple(f"from {node}" for node in range(graph.num_nodes))


def test_no_node_waits_for_one_that_it_does_not_hear() -> None:
    """Not a barrier per level: the short branch goes on while the slow worker works."""
    graph = Topology((R, R, V, A), ((0, 3), (1, 2), (2, 3)))
    behind = asyncio.Event()

    async def step(node: int, heard: Mapping[int, int]) -> int:
        if node == 0:
            await behind.wait()  # ends only once the second node of the other branch has run
        if node == 2:
            behind.set()
        return node

    async def bounded() -> tuple[int, ...]:
        async with asyncio.timeout(20):
            return await run_in_order(graph, step)

    assert asyncio.run(bounded()) == (0, 1, 2, 3)


def test_a_step_that_raises_ends_the_others() -> None:
    ended: list[str] = []

    async def step(node: int, heard: Mapping[int, None]) -> None:
        if node == 1:
            raise RuntimeError("stop")
        try:
            await asyncio.sleep(30)
        finally:
            ended.append("cancelled")

    graph = Topology((R, R, R, A), ((0, 3), (1, 3), (2, 3)))
    with pytest.raises(RuntimeError, match="stop"):
        asyncio.run(run_in_order(graph, step))
    assert ended == ["cancelled", "cancelled"]


def test_a_step_can_be_wrapped_by_a_gate() -> None:
    """What a later gate does: it looks at a result, and runs the node again if need be, unknown to the scheduler."""
    tries: list[int] = []

    async def step(node: int, heard: Mapping[int, str]) -> str:
        tries.append(node)
        return "good" if tries.count(node) > 1 or node != 1 else "bad"

    async def gate(node: int, heard: Mapping[int, str]) -> str:
        result = await step(node, heard)
        return result if result == "good" else await step(node, heard)

    results = asyncio.run(run_in_order(Topology((R, V, A), ((0, 1), (1, 2))), gate))
    assert results == ("good", "good", "good")
    assert tries == [0, 1, 1, 2]
