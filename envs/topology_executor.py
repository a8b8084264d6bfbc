"""Real teams behind the building environment: END runs the topology on the workflow runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from provgym.envs.evidence_units import EvidenceContext
from provgym.envs.topology import Topology
from provgym.envs.topology_tasks import TopologyTask
from provgym.envs.workflow import Phase, RunRequest, TopologyRun, WorkflowRuntime
from provgym.rewards.topology_score import TopologyOutcome

MAX_REPLICATE = 2**31


class RuntimeExecutor:
    """Runs a finished topology several times on the evidence retrieved for its task.

    Args:
        runtime: Executes; its cache and ledger serve as everywhere.
        contexts: Task id to what was retrieved for the task.
        replicates: Runs per call, >= 1.
        pool: The numbers that replicates are drawn from, without repeats within one call. With few, later calls find
            stored replies, and see less of the agents' luck; with the default hardly ever.
        phase: Who pays.

    Raises:
        ValueError: If ``replicates`` is not in [1, pool], or the pool is too large.
    """

    def __init__(
        self,
        runtime: WorkflowRuntime,
        contexts: Mapping[str, EvidenceContext],
        *,
        replicates: int = 1,
        pool: int = MAX_REPLICATE,
        phase: Phase = "train",
    ) -> None:
        if not 1 <= replicates <= pool <= MAX_REPLICATE:
            raise ValueError(f"found replicates={replicates}, pool={pool}; 1 <= replicates <= pool <= {MAX_REPLICATE}")
        self._runtime, self._contexts = runtime, dict(contexts)
        self._replicates, self._pool, self._phase = replicates, pool, phase

    def execute(self, task: TopologyTask, topology: Topology, seed: int) -> TopologyOutcome:
        """Run the topology; equal seeds run the same replicates.

        Args:
            task: One that has a context.
            topology: Valid under the runtime's roles.
            seed: Draws the replicates' numbers.

        Raises:
            ValueError: If nothing was retrieved for the task; an empty context says that nothing was found.
        """
        context = self._contexts.get(task.task_id)
        if context is None:
            raise ValueError(f"task {task.task_id!r} has no evidence context; give one per task, empty if need be")
        numbers = np.random.default_rng(seed).choice(self._pool, size=self._replicates, replace=False)
        requests = [RunRequest(topology, task, context, int(number), self._phase) for number in numbers]
        return outcome_of_runs(topology, self._runtime.run_many_sync(requests))


def outcome_of_runs(topology: Topology, runs: Sequence[TopologyRun]) -> TopologyOutcome:
    """Return what the runs of one topology on one task came to; those that ended in an error are in no number."""
    scored = [run.is_correct for run in runs if run.is_correct is not None]
    return TopologyOutcome(sum(scored), len(scored), topology.num_nodes, topology.num_edges)
