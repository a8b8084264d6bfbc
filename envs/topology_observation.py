"""What a topology builder sees: arrays, and the record beside them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypedDict, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from provgym.envs.topology import Topology
from provgym.envs.topology_draft import TopologyDraft
from provgym.envs.topology_rules import TopologyRules
from provgym.envs.topology_tasks import TopologyTask
from provgym.rewards.topology_score import TopologyOutcome

Observation = dict[str, NDArray[np.float32]]


class BuildPhase(StrEnum):
    """What the next action decides."""

    ROLE = "role"  # place a node, or END once the topology is complete
    EDGE = "edge"  # whether the pending sender sends to the node placed last
    OVER = "over"


class BuildInfo(TypedDict):
    """What ``reset`` and ``step`` return beside the observation.

    Attributes:
        task_id: The task.
        evidence_kind: How its evidence was made, or None.
        phase: What the next action decides.
        last_step: ``role``, ``edge``, ``end``, ``illegal`` or ``late`` (illegal when none was left); None after reset.
        illegal_actions: Illegal actions so far.
        illegal_left: Illegal actions that may still follow.
        topology: What was built; None until END.
        ending: How the episode ended, or None.
        terms: ``success`` (the estimated rate) and ``cost`` (C(G)) at the end, otherwise empty.
        outcome: What the executor returned, or None.
        action_mask: (actions,) int8; 1 for a legal action, as ``action_space.sample(mask)`` takes it.
    """

    task_id: str
    evidence_kind: str | None
    phase: str
    last_step: str | None
    illegal_actions: int
    illegal_left: int
    topology: Topology | None
    ending: str | None
    terms: dict[str, float]
    outcome: TopologyOutcome | None
    action_mask: NDArray[np.int8]


def observation_space(rules: TopologyRules, features: NDArray[np.float32]) -> spaces.Space[Observation]:
    """Return the space of :func:`observe`'s arrays.

    Args:
        rules: N nodes at most, R roles.
        features: (tasks, F) context features, finite.
    """
    nodes, roles = rules.max_nodes, len(rules.role_names)
    shapes = {
        "roles": (nodes * roles,),  # rows one after the other: learners warn of what looks like an image and is none
        "adjacency": (nodes * nodes,),
        "pending": (nodes * nodes,),
        "phase": (len(BuildPhase),),
        "illegal_left": (1,),
    }
    bound = max(1.0, float(np.abs(features).max()))
    boxes: dict[str, spaces.Space[Any]] = {
        name: spaces.Box(0.0, 1.0, shape, np.float32) for name, shape in shapes.items()
    }
    boxes["context"] = spaces.Box(-bound, bound, (features.shape[1],), np.float32)
    return cast("spaces.Space[Observation]", spaces.Dict(boxes))


def observe(draft: TopologyDraft, phase: BuildPhase, illegal_left: float, context: NDArray[np.float32]) -> Observation:
    """Return what is built so far, in new arrays.

    Args:
        draft: N nodes at most, R roles.
        phase: What the next action decides.
        illegal_left: Share of the illegal actions left, in [0, 1].
        context: (F,) the task's features.

    Returns:
        ``roles`` (N * R,), ``adjacency`` (N * N,), ``pending`` (N * N,), ``phase`` (3,), ``illegal_left`` (1,) and
        ``context`` (F,), all float32.
    """
    names = draft.rules.role_names
    nodes = draft.rules.max_nodes
    roles = np.zeros((nodes, len(names)), dtype=np.float32)
    for node, role in enumerate(draft.roles):
        roles[node, names.index(role)] = 1.0
    adjacency = np.zeros((nodes, nodes), dtype=np.float32)
    for edge in draft.edges():
        adjacency[edge] = 1.0
    pending = np.zeros((nodes, nodes), dtype=np.float32)
    if phase is BuildPhase.EDGE and draft.pending is not None:
        pending[draft.pending] = 1.0
    return {
        "roles": roles.ravel(),
        "adjacency": adjacency.ravel(),
        "pending": pending.ravel(),
        "phase": np.array([phase is each for each in BuildPhase], dtype=np.float32),
        "illegal_left": np.array([illegal_left], dtype=np.float32),
        "context": context.copy(),
    }


def check_features(tasks: Sequence[TopologyTask], features: NDArray[np.floating[Any]] | None) -> NDArray[np.float32]:
    """Return one row of context features per task.

    Args:
        tasks: T of them.
        features: (T, F) finite, F >= 1; None for a constant 0, which says nothing of the tasks.

    Returns:
        (T, F) float32, a copy.

    Raises:
        ValueError: If the shape does not fit or a number is not finite; the task is named.
    """
    if features is None:
        return np.zeros((len(tasks), 1), dtype=np.float32)
    rows = np.array(features, dtype=np.float32)
    if rows.ndim != 2 or len(rows) != len(tasks) or rows.shape[1] < 1:
        raise ValueError(f"features of shape {rows.shape} must be (tasks={len(tasks)}, F >= 1)")
    if not np.isfinite(rows).all():
        bad = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise ValueError(f"features of task {tasks[bad].task_id!r} must be finite, found {rows[bad]}")
    return rows
