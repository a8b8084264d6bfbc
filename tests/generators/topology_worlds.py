"""Small worlds for tests of mining: tasks without text, and a runner whose successes are a written rule."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from provgym.envs.evidence_units import EvidenceContext, KnowledgeGraph
from provgym.envs.topology import Topology
from provgym.envs.topology_tasks import TopologyTask
from provgym.envs.workflow_records import CallRecord, NodeFailure, RunRequest, TopologyRun
from provgym.rewards.outcome import Ending

NO_EVIDENCE = EvidenceContext((), ())
Succeeds = Callable[[str, Topology, int], bool | None]
"""(task id, canonical topology, replicate) to right, wrong, or None for an infrastructure error."""


def make_task(task_id: str = "t0", split: str = "train") -> TopologyTask:
    """A task with nothing in it; its runs are decided by the runner."""
    return TopologyTask(
        task_id=task_id,
        base_id=task_id,
        split=split,
        question=f"Does {task_id} hold?",
        gold="SUPPORT",
        answer_kind="verdict",
        choices=(),
        graph=KnowledgeGraph((), {}),
        evidence_kind=None,
    )


def draw(*key: object) -> float:
    """A number in [0, 1) that depends on the key alone."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64


class RuledRunner:
    """Decides runs by a rule; every node is one call of 10 + 2 tokens.

    Attributes:
        requests: (task id, topology key, replicate) of every execution, in order.
    """

    def __init__(self, succeeds: Succeeds) -> None:
        self.requests: list[tuple[str, str, int]] = []
        self._succeeds = succeeds

    async def run(self, request: RunRequest) -> TopologyRun:
        """Decide one run."""
        topology = request.topology.canonical()
        self.requests.append((request.task.task_id, topology.key, request.replicate))
        found = self._succeeds(request.task.task_id, topology, request.replicate)
        failure = NodeFailure(0, topology.roles[0], "timeout", "no answer in 60 s")
        return TopologyRun(
            task_id=request.task.task_id,
            topology_key=topology.key,
            replicate=request.replicate,
            phase=request.phase,
            topology=topology,
            ending=Ending.ERROR if found is None else Ending.ANSWERED,
            reason=None,
            answer=None if found is None else ("SUPPORT" if found else "REFUTE"),
            is_correct=found,
            messages=(),
            calls=tuple(
                CallRecord(node, role, request.phase, 10, 2, False, f"{node}")
                for node, role in enumerate(topology.roles)
            ),
            failures=(failure,) if found is None else (),
            accounts=(),
            latency_s=0.0,
        )
