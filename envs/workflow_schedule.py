"""The order in which the nodes of a topology run: each as soon as all that it hears have run, ready ones at once.

The scheduler knows no agents, no messages and no failures: what a node does, and what it makes of its predecessors'
results, is a function that it is given. Whatever stands between (a gate that checks a result, a region that is executed
otherwise, a node that is run again) wraps that function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from provgym.envs.topology import Topology

R = TypeVar("R")


async def run_in_order(topology: Topology, step: Callable[[int, Mapping[int, R]], Awaitable[R]]) -> tuple[R, ...]:
    """Run every node once, from a ready queue: no node waits for one that it does not hear.

    Args:
        topology: Who hears whom.
        step: Called with a node and the results of its predecessors, by node.

    Returns:
        (N,) result of each node.

    Raises:
        BaseException: Whatever a step raises; steps that run meanwhile are cancelled and awaited first.
    """
    senders = [topology.predecessors(node) for node in range(topology.num_nodes)]
    receivers = [topology.successors(node) for node in range(topology.num_nodes)]
    waiting = [len(heard) for heard in senders]
    ready = [node for node, count in enumerate(waiting) if count == 0]
    results: dict[int, R] = {}
    running: dict[asyncio.Future[R], int] = {}

    def begin(node: int) -> Awaitable[R]:
        return step(node, {sender: results[sender] for sender in senders[node]})

    try:
        while ready or running:
            if len(ready) == 1 and not running:  # most nodes of most topologies: no task is needed
                node = ready.pop()
                finished = [(node, await begin(node))]
            else:
                running.update((asyncio.ensure_future(begin(node)), node) for node in ready)
                ready.clear()
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                finished = sorted(((running.pop(future), future.result()) for future in done), key=lambda pair: pair[0])
            for node, result in finished:
                results[node] = result
                for receiver in receivers[node]:
                    waiting[receiver] -= 1
                    if waiting[receiver] == 0:
                        ready.append(receiver)
    finally:
        for future in running:
            future.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return tuple(results[node] for node in range(topology.num_nodes))
