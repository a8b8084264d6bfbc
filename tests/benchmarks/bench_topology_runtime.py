"""Five workers that one Answerer hears, over an agent that takes 200 ms: the ready queue against one call at a time.

Run by hand: ``python -m tests.benchmarks.bench_topology_runtime``; ``make bench`` calls :func:`measure`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from tests.benchmarks.bench_rollout import speedup_figure

from provgym.envs.evidence_units import EvidenceContext
from provgym.envs.roles import ANSWERER, DEFAULT_ROLES
from provgym.envs.topology import Topology
from provgym.envs.topology_builtin import demo_topology_tasks
from provgym.envs.workflow import AgentReply, NodeCall, RunRequest, TopologyRun, WorkflowRuntime

WORKERS, CALL_S, REPEATS = 5, 0.2, 5
TEAM = Topology(("Reasoner",) * WORKERS + (ANSWERER,), tuple((worker, WORKERS) for worker in range(WORKERS)))
IDEAL_SHARE = 2 / (WORKERS + 1)
"""Two calls one behind the other, of six."""


class SlowAgent:
    """Answers after a fixed time, as an endpoint does.

    Args:
        call_s: Seconds for a call.
    """

    fingerprint = "slow"

    def __init__(self, call_s: float) -> None:
        self._call_s = call_s

    async def reply(self, call: NodeCall) -> AgentReply:
        """Wait, then answer; what is heard comes back, so that both ways can be compared."""
        await asyncio.sleep(self._call_s)
        heard = ", ".join(message.text for message in call.messages)
        return AgentReply(f"{call.role.name} {call.sibling} heard [{heard}]\nAnswer: SUPPORT", 10, 5)


def run_once(max_concurrency: int, call_s: float) -> tuple[float, TopologyRun]:
    """Run the team once; return the seconds and what was said."""
    task = demo_topology_tasks()[0]
    context = EvidenceContext(task.graph.units, (0.0,) * len(task.graph.units))
    runtime = WorkflowRuntime(SlowAgent(call_s), roles=DEFAULT_ROLES, max_concurrency=max_concurrency)
    start = time.perf_counter()
    (run,) = runtime.run_many_sync([RunRequest(TEAM, task, context)])
    return time.perf_counter() - start, run


def measure(
    *, call_s: float = CALL_S, repeats: int = REPEATS, on_run: Callable[[str, float], None] | None = None
) -> dict[str, Any]:
    """Run both ways in turns; both must say the same.

    Args:
        call_s: Seconds for a call.
        repeats: Of both ways.
        on_run: Called with the way and its seconds.

    Returns:
        ``share_of_serial`` with median, smallest and largest of the paired ratios, ``ideal_share`` and ``seconds``.

    Raises:
        AssertionError: If the ready queue came to another run.
    """
    seconds: dict[str, list[float]] = {"ready_queue": [], "one_by_one": []}
    said: Any = None
    for _ in range(repeats):
        for name, max_concurrency in (("ready_queue", WORKERS), ("one_by_one", 1)):
            took, run = run_once(max_concurrency, call_s)
            said = said or run.messages
            assert run.messages == said, "the runs differ between ready queue and one by one"
            seconds[name].append(took)
            if on_run is not None:
                on_run(name, took)
    share = speedup_figure(seconds["one_by_one"], seconds["ready_queue"])  # the other way round: what is left
    return {"share_of_serial": share, "ideal_share": IDEAL_SHARE, "seconds": seconds}


if __name__ == "__main__":
    print(json.dumps(measure(on_run=print), indent=2))
