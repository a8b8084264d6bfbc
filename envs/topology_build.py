"""``provgym/TopologyBuild-v0``: build a team of agents by discrete actions, then see what it comes to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, Literal, Protocol, get_args

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from provgym.envs.reset_options import choose_item, refuse_unknown_options
from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.topology import Topology
from provgym.envs.topology_actions import BuildActions
from provgym.envs.topology_builtin import DemoExecutor, demo_features, demo_topology_tasks
from provgym.envs.topology_draft import TopologyDraft
from provgym.envs.topology_observation import (
    BuildInfo,
    BuildPhase,
    Observation,
    check_features,
    observation_space,
    observe,
)
from provgym.envs.topology_rules import TopologyRules
from provgym.envs.topology_tasks import TopologyTask
from provgym.envs.vector import WalkAsyncVectorEnv, WalkSyncVectorEnv, make_walk_vec
from provgym.rewards.outcome import Ending
from provgym.rewards.topology_score import (
    CostWeights,
    SuccessEstimator,
    TopologyOutcome,
    structural_cost,
    success_rate,
    topology_score,
)

WhenUnscored = Literal["raise", "nan"]
DEFAULT_WEIGHTS = CostWeights(node=0.05, edge=0.02)
"""Of the built-in tasks: the largest topology of six nodes costs less than a success brings."""

ENV_ID = "provgym/TopologyBuild-v0"


class TopologyExecutor(Protocol):
    """Runs a finished topology; the environment knows nothing of agents."""

    def execute(self, task: TopologyTask, topology: Topology, seed: int) -> TopologyOutcome:
        """Run the topology on the task, as often as the executor sees fit.

        Args:
            task: What to answer.
            topology: Valid under the environment's rules.
            seed: 63-bit; equal seeds may give equal runs, different ones must be fresh draws.

        Returns:
            The outcome, with the topology's own numbers of nodes and edges. ``replicates`` is 0 if every run ended in
            an error.
        """
        ...


class TopologyBuildEnv(gym.Env[Observation, np.int64]):
    """Build a topology for a task, node by node and edge by edge; END runs it.

    With R roles, N nodes at most and F context features:

    | | |
    |---|---|
    | Action | ``Discrete(R + 3)``: 0 to R-1 place a role, R is END, R+1 "no edge", R+2 "edge" |
    | Observation | ``Dict`` of float32 arrays (below) |
    | Mask | ``info["action_mask"]`` and :meth:`action_masks`; masked play never ends invalid |
    | Reward | 0 until END, then ``success - cost_weight * cost`` (at most 1) |
    | Terminated | by END (``answered``) |
    | Truncated | by an illegal action when none is left (``truncated``), or a run without a score (``error``) |
    | Start | nothing built; task drawn by the seed, or given in ``options`` |
    | Info | :class:`BuildInfo` |

    Actions come in a fixed order: a role, then for each earlier node, from the first on, whether it sends to the new
    one. END is legal once the Answerer is placed and its edges are decided. The look-ahead of
    :class:`~provgym.envs.topology_draft.TopologyDraft` allows no step that could not be completed. An illegal action
    uses one of ``illegal_budget`` and changes nothing else. When none is left, the next one truncates the episode; that
    counts as success -1 at the cost of the largest topology, so that no finished one is worth less.

    The observation:

    | key | shape | |
    |---|---|---|
    | ``roles`` | (N * R,) | one-hot role of each node placed, node by node |
    | ``adjacency`` | (N * N,) | 1 at sender * N + receiver for an edge |
    | ``pending`` | (N * N,) | 1 at the edge to decide next, as above |
    | ``phase`` | (3,) | one-hot :class:`BuildPhase` |
    | ``illegal_left`` | (1,) | share of the illegal actions left |
    | ``context`` | (F,) | the task's row of ``features`` |

    Args:
        tasks: What to build for; three hand-written tasks if None.
        executor: What END calls; the built-in one goes with the built-in tasks only.
        features: (tasks, F) finite numbers, one row per task: what the builder sees of question and evidence. If None,
            those of the built-in tasks; for other tasks one constant 0, so that the builder sees nothing of them.
        rules: Constraints; the default roles, 6 nodes and in-degree 3 if None.
        weights: lambda_V and lambda_E.
        cost_weight: lambda_C.
        estimator: How the success rate is read from the replicates.
        illegal_budget: Illegal actions that an episode allows, >= 0.
        unscored: What a run without a scored replicate does: ``raise`` an error, for learners that know of no gaps; or
            ``nan``, a reward that is not a number and ending ``error``.

    Raises:
        ValueError: If there is no task, a value is unknown or out of range, or the features do not fit the tasks.

    Version history:
        v0: first version.

    Source:
        K-GAT, arXiv:2608.27984, for grammar and score; the environment is ours.
    """

    metadata = {"render_modes": [], "render_fps": 1}  # noqa: RUF012 - Gymnasium's name and type

    def __init__(
        self,
        tasks: Sequence[TopologyTask] | None = None,
        *,
        executor: TopologyExecutor | None = None,
        features: NDArray[np.floating[Any]] | None = None,
        rules: TopologyRules | None = None,
        weights: CostWeights = DEFAULT_WEIGHTS,
        cost_weight: float = 1.0,
        estimator: SuccessEstimator = "raw",
        illegal_budget: int = 8,
        unscored: WhenUnscored = "raise",
    ) -> None:
        if tasks is not None and executor is None:
            raise ValueError("tasks were given without an executor; pass executor=, which runs topologies on them")
        self.tasks: Sequence[TopologyTask] = demo_topology_tasks() if tasks is None else tasks
        if not self.tasks:
            raise ValueError("tasks is empty; there is nothing to build for")
        if illegal_budget < 0:
            raise ValueError(f"illegal_budget={illegal_budget} must be >= 0")
        if unscored not in get_args(WhenUnscored):
            raise ValueError(f"unscored={unscored!r} is unknown; choose one of {list(get_args(WhenUnscored))}")
        self.executor: TopologyExecutor = executor or DemoExecutor()
        self.rules = rules or TopologyRules(DEFAULT_ROLES.names)
        self.weights, self.cost_weight, self.estimator = weights, cost_weight, estimator
        self.illegal_budget, self._unscored = illegal_budget, unscored
        self._features = check_features(self.tasks, demo_features(self.tasks) if tasks is None else features)
        self._worst_cost = structural_cost(self.rules.max_nodes, self.rules.most_edges, weights)
        self._score(TopologyOutcome(0, 1, 1, 0))  # a wrong weight or estimator is found now, not at the first END
        self.observation_space = observation_space(self.rules, self._features)
        self._actions = BuildActions(self.rules)
        self.action_space = spaces.Discrete(len(self._actions))
        self._task: TopologyTask | None = None
        self._context = np.zeros(self._features.shape[1], dtype=np.float32)
        self._draft = TopologyDraft(self.rules)
        self._illegal_actions = 0
        self._ending: Ending | None = None

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Seeds this environment's own generator; None draws on from it.
            options: ``task``, an index or a task id; it holds for this episode only.

        Raises:
            ValueError: If an option is unknown or names no task.
        """
        super().reset(seed=seed)
        refuse_unknown_options(options or {}, ("task",))
        place = choose_item(
            "task", (options or {}).get("task"), range(len(self.tasks)), self._task_id_of, self.np_random
        )
        self._task, self._context = self.tasks[place], self._features[place]
        self._draft = TopologyDraft(self.rules)
        self._illegal_actions = 0
        self._ending = None
        return self._observation(), self._info(self._task, None)

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one action.

        Raises:
            RuntimeError: If the episode has ended or never began, or a run has no score and ``unscored`` is ``raise``.
            ValueError: If the action is not in the action space.
        """
        task = self._running()
        choice = index(action)
        mask = self._mask()
        if not 0 <= choice < len(mask):
            raise ValueError(f"action {choice} must lie in [0, {len(mask)})")
        if not mask[choice]:
            return self._reject(task)
        kind = self._actions.kind_of(choice)
        if kind == "end":
            return self._finish(task)
        self._draft = self._actions.apply(self._draft, choice)
        return self._observation(), 0.0, False, False, self._info(task, kind)

    def action_masks(self) -> NDArray[np.bool_]:
        """Return (actions,) bool, True for a legal action; sb3-contrib's MaskablePPO asks for this name."""
        return self._mask().astype(np.bool_)

    @property
    def draft(self) -> TopologyDraft:
        """What is built so far; it can't be changed."""
        return self._draft

    def _task_id_of(self, place: int) -> str:
        return self.tasks[place].task_id

    def _running(self) -> TopologyTask:
        if self._task is None:
            raise RuntimeError("no episode was started; call reset before step")
        if self._ending is not None:
            raise RuntimeError(f"the episode ended ({self._ending.value}); call reset before the next step")
        return self._task

    def _reject(self, task: TopologyTask) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        is_late = self._illegal_actions == self.illegal_budget
        if not is_late:
            self._illegal_actions += 1
            return self._observation(), 0.0, False, False, self._info(task, "illegal")
        self._ending = Ending.TRUNCATED
        terms = {"success": -1.0, "cost": self._worst_cost}
        info = self._info(task, "late") | {"ending": self._ending.value, "terms": terms}
        return self._observation(), -1.0 - self.cost_weight * self._worst_cost, False, True, info

    def _finish(self, task: TopologyTask) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        topology = self._draft.topology()
        outcome = self.executor.execute(task, topology, int(self.np_random.integers(2**63)))
        if (outcome.nodes, outcome.edges) != (topology.num_nodes, topology.num_edges):
            raise RuntimeError(f"the executor was given {topology.key} and returned the size of another one: {outcome}")
        reward = self._score(outcome)
        is_scored = not math.isnan(reward)
        if not is_scored and self._unscored == "raise":
            raise RuntimeError(
                f"no run of {topology.key} on task {task.task_id!r} could be scored; see what the executor's agents "
                "report, or pass unscored='nan' and leave such episodes out"
            )
        self._ending = Ending.ANSWERED if is_scored else Ending.ERROR
        terms = {
            "success": success_rate(outcome.successes, outcome.replicates, self.estimator),
            "cost": structural_cost(outcome.nodes, outcome.edges, self.weights),
        }
        end = {"ending": self._ending.value, "terms": terms, "topology": topology, "outcome": outcome}
        return self._observation(), reward, is_scored, not is_scored, self._info(task, "end") | end

    def _score(self, outcome: TopologyOutcome) -> float:
        return topology_score(outcome, weights=self.weights, cost_weight=self.cost_weight, estimator=self.estimator)

    def _phase(self) -> BuildPhase:
        if self._ending is not None:
            return BuildPhase.OVER
        return BuildPhase.ROLE if self._draft.pending is None else BuildPhase.EDGE

    def _mask(self) -> NDArray[np.int8]:
        if self._ending is not None:
            return np.zeros(len(self._actions), dtype=np.int8)
        return self._actions.mask(self._draft)

    def _observation(self) -> Observation:
        illegal_left = (self.illegal_budget - self._illegal_actions) / max(1, self.illegal_budget)
        return observe(self._draft, self._phase(), illegal_left, self._context)

    def _info(self, task: TopologyTask, last_step: str | None) -> dict[str, Any]:
        info: BuildInfo = {
            "task_id": task.task_id,
            "evidence_kind": task.evidence_kind,
            "phase": self._phase().value,
            "last_step": last_step,
            "illegal_actions": self._illegal_actions,
            "illegal_left": self.illegal_budget - self._illegal_actions,
            "topology": None,
            "ending": None,
            "terms": {},
            "outcome": None,
            "action_mask": self._mask(),
        }
        return info  # type: ignore[return-value]  # a TypedDict is a dict


def make_build_vec(num_envs: int = 1, **env_kwargs: Any) -> WalkSyncVectorEnv | WalkAsyncVectorEnv:
    """Make several builders in this process; what ``gymnasium.make_vec`` calls for ``provgym/TopologyBuild-v0``.

    Args:
        num_envs: Sub-environments, >= 1.
        env_kwargs: Arguments of the environment, passed on as Gymnasium does.
    """
    return make_walk_vec(num_envs, env_id=ENV_ID, env_kwargs=env_kwargs)
