"""The building environment over the workflow runtime: simulated agents really run what was built."""

from typing import Any

import pytest
from tests.envs.workflow_worlds import agreement, conflict, irrelevance

from provgym.envs.evidence_units import EvidenceContext
from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.simulated_agents import DEFAULT_ERROR_MODEL, SimulatedAgent
from provgym.envs.topology import Topology
from provgym.envs.topology_build import TopologyBuildEnv
from provgym.envs.topology_executor import RuntimeExecutor
from provgym.envs.topology_tasks import TopologyTask
from provgym.envs.workflow import AgentFailure, AgentReply, MemoryMessageCache, NodeCall, WorkflowRuntime
from provgym.rewards.topology_score import TopologyOutcome

TASKS: tuple[TopologyTask, ...] = (agreement(), conflict(), irrelevance())
SINGLE = Topology(("Answerer",), ())
TEAM = Topology(("Reasoner", "Verifier", "Answerer"), ((0, 1), (1, 2)))


class Silent:
    """An agent that is never reached, or only for some replicates."""

    fingerprint = "silent"

    def __init__(self, fails_every: int) -> None:
        self._fails_every = fails_every

    async def reply(self, call: NodeCall) -> AgentReply:
        if call.replicate % self._fails_every == 0:
            raise AgentFailure("timeout")
        return AgentReply("Answer: SUPPORT", 5, 3)


def executor(agent: Any = None, **options: Any) -> tuple[RuntimeExecutor, WorkflowRuntime]:
    runtime = WorkflowRuntime(
        agent or SimulatedAgent(DEFAULT_ERROR_MODEL), roles=DEFAULT_ROLES, cache=MemoryMessageCache()
    )
    contexts = {t.task_id: EvidenceContext(t.graph.units, (0.0,) * len(t.graph.units)) for t in TASKS}
    return RuntimeExecutor(runtime, contexts, **options), runtime


def test_what_was_built_is_run_and_paid_for() -> None:
    run, runtime = executor(replicates=8)
    outcome = run.execute(TASKS[1], TEAM, 7)
    assert (outcome.replicates, outcome.nodes, outcome.edges) == (8, 3, 2)
    assert outcome == run.execute(TASKS[1], TEAM, 7)
    assert outcome == executor(replicates=8)[0].execute(TASKS[1], TEAM, 7)
    assert runtime.ledger.totals("train").paid_calls == 24


def test_echoes_make_a_single_agent_wrong_and_a_team_right() -> None:
    run, _ = executor(replicates=60)
    single, team = (run.execute(TASKS[1], topology, 3) for topology in (SINGLE, TEAM))
    assert single.successes < team.successes


def test_errors_are_in_no_number() -> None:
    """Fault "endpoint failure scored as wrong": all timed out is no replicate; some timed out leaves the others."""
    run, _ = executor(Silent(fails_every=1), replicates=4)
    assert run.execute(TASKS[0], SINGLE, 0) == TopologyOutcome(0, 0, 1, 0)
    run, _ = executor(Silent(fails_every=2), replicates=10, pool=10)
    assert run.execute(TASKS[0], SINGLE, 0) == TopologyOutcome(5, 5, 1, 0)


def test_a_small_pool_reuses_replies() -> None:
    run, runtime = executor(replicates=2, pool=3)
    for seed in range(20):
        run.execute(TASKS[0], SINGLE, seed)
    assert runtime.ledger.totals("train").paid_calls == 3


def test_an_episode_ends_with_the_runs_score() -> None:
    run, _ = executor(replicates=4)
    env = TopologyBuildEnv(TASKS, executor=run, cost_weight=0.5)
    env.reset(seed=0, options={"task": 0})
    env.step(3)
    _, reward, terminated, _, info = env.step(4)
    assert terminated
    assert info["outcome"].replicates == 4
    assert reward == pytest.approx(info["outcome"].successes / 4 - 0.5 * 0.05)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="found replicates=0"):
        executor(replicates=0)
    with pytest.raises(ValueError, match="found replicates=3, pool=2"):
        executor(replicates=3, pool=2)
    runtime = WorkflowRuntime(SimulatedAgent(DEFAULT_ERROR_MODEL), roles=DEFAULT_ROLES)
    with pytest.raises(ValueError, match="has no evidence context; give one per task, empty if need be"):
        RuntimeExecutor(runtime, {}).execute(TASKS[0], SINGLE, 0)
