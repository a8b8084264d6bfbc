"""``provgym/GraphWalk-v0``: walk an evidence graph by arrays and discrete actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from operator import index
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from provgym.envs.builtin import demo_instances
from provgym.envs.presentation import MITIGATIONS, Mitigation
from provgym.envs.provenance import Instance, Stance
from provgym.envs.reset_options import check_instances_and_budget, read_reset_options
from provgym.envs.slots import NUM_SLOTS, SlotFeature, Slots
from provgym.envs.trace import TraceView
from provgym.envs.walk import Step, StepKind, Walk
from provgym.envs.walk_text import WalkInfo
from provgym.rewards.outcome import Ending, Judgement, Verdict, WalkOutcome
from provgym.rewards.rubric import Rubric, papt_rubric

MAX_COUNT = 5
"""The largest source count that a stop action can state."""

JUDGEMENTS: tuple[Judgement, ...] = tuple(
    Judgement(verdict, support, refute)
    for verdict in Verdict
    for support in range(MAX_COUNT + 1)
    for refute in range(MAX_COUNT + 1)
)
"""What the stop actions say, in the order of their numbers."""

NUM_ACTIONS = NUM_SLOTS + len(JUDGEMENTS)
SLOT_SHAPE = (NUM_SLOTS, len(SlotFeature))
SLOT_SIZE = NUM_SLOTS * len(SlotFeature)
_COUNT_LEVELS = MAX_COUNT + 2  # 0 to 5, and "more"


class Context(IntEnum):
    """Where each block of the observation's second part begins, counted from its first entry."""

    HERE = 0  # kind of the present node, one of 4
    LAST = 4  # what the last action came to, one of 4: evidence, evidence of a source read before, connector, illegal
    STANCE = 8  # what the present node says of the claim, one of 2: supports, refutes
    SOURCES = 10  # distinct sources read, supporting then refuting, each one of 7: 0-5, more; all 0 under M0
    NODES = 24  # distinct evidence nodes read, supporting then refuting, each one of 7
    LEFT = 38  # walks left / budget
    LAST_CALL = 39  # no walk is left: stop now


_CONTEXT_SIZE = 40
# Looked up once: members of an enum class are slow to reach, and slower to add to.
_ILLEGAL, _TRUNCATED, _SUPPORT = StepKind.ILLEGAL, Ending.TRUNCATED, Stance.SUPPORT
_HERE, _STANCE, _LEFT, _LAST_CALL = (int(c) for c in (Context.HERE, Context.STANCE, Context.LEFT, Context.LAST_CALL))
_LAST_EVIDENCE = int(Context.LAST)
_LAST_REPEAT, _LAST_CONNECTOR, _LAST_ILLEGAL = (_LAST_EVIDENCE + k for k in (1, 2, 3))
_SUPPORTING_SOURCES, _REFUTING_SOURCES = int(Context.SOURCES), Context.SOURCES + _COUNT_LEVELS
_SUPPORTING_NODES, _REFUTING_NODES = int(Context.NODES), Context.NODES + _COUNT_LEVELS
_MOST = _COUNT_LEVELS - 1
_FILLED = np.arange(NUM_SLOTS) < np.arange(NUM_SLOTS + 1)[:, None]  # (65, 64)
_MASKS = np.concatenate([_FILLED, np.ones((NUM_SLOTS + 1, len(JUDGEMENTS)))], axis=1).astype(np.int8)  # (65, 172)
_MASK_ROWS = list(_MASKS)


class GraphWalkInfo(WalkInfo):
    """:class:`~provgym.envs.walk_text.WalkInfo` and the action mask.

    Attributes:
        action_mask: (172,) int8; 1 for a legal action, as ``action_space.sample(mask)`` takes it.
    """

    action_mask: NDArray[np.int8]


class GraphWalkEnv(gym.Env[NDArray[np.float32], np.int64]):
    """Judge a claim by walking its evidence graph, in arrays.

    | | |
    |---|---|
    | Action | ``Discrete(172)``: 0-63 walk to the neighbour in that slot, the others stop (below) |
    | Observation | ``Box(0, 1, (616,), float32)``: 64 slots of 9 features, then 40 of what was read (below) |
    | Mask | ``info["action_mask"]`` and :meth:`action_masks`: filled slots, and every stop |
    | Reward | 0 until the end, then the rubric's total (about -1.45 to 1.8 for the PAPT rubric) |
    | Terminated | by a stop (``answered``) |
    | Truncated | by any walk after the budget's last one |
    | Start | the claim node; instance drawn by the seed, or given in ``options`` |
    | Info | :class:`GraphWalkInfo` with the full trace |

    Action 64 + 36 v + 6 s + r stops with verdict v (SUPPORT, REFUTE, MIXED), s supporting and r refuting sources
    (0-5 each) and confidence 1. A walk to an empty slot is an illegal action: it uses one walk of the budget and
    reveals nothing.

    The columns of a slot are :class:`~provgym.envs.slots.SlotFeature`; the first one is the walk part of the mask.
    The second part of the observation is :class:`Context`. Neighbours fill the slots from 0 in a shuffled order that
    holds for the episode and says nothing of stance. No entry depends on evidence that was not read. When no walk is
    left, no slot is filled.

    Args:
        instances: What to walk; a small hand-written set if None.
        budget: Walks allowed, unless ``options["budget"]`` says otherwise.
        mitigation: ``M0`` hides the sources of evidence nodes, and so what was read before; ``M1`` shows them.
            ``M2`` and ``M3`` differ from M1 in wording alone and give the same arrays.
        rubric: What the reward is.

    Raises:
        ValueError: If there is no instance, or a value is unknown or out of range.

    Version history:
        v0: first version.

    Source:
        GraphEcho, arXiv:2609.17695, section 4.1; the arrays are ours.
    """

    metadata = {"render_modes": [], "render_fps": 1}  # noqa: RUF012 - Gymnasium's name and type

    def __init__(
        self,
        instances: Sequence[Instance] | None = None,
        *,
        budget: int = 6,
        mitigation: Mitigation = "M1",
        rubric: Rubric | None = None,
    ) -> None:
        self.instances: Sequence[Instance] = demo_instances() if instances is None else instances
        check_instances_and_budget(self.instances, budget)
        if mitigation not in MITIGATIONS:
            raise ValueError(f"mitigation {mitigation!r} is unknown; choose one of {list(MITIGATIONS)}")
        self.budget = budget
        self.mitigation: Mitigation = mitigation
        self._shows_sources = mitigation != "M0"
        self.rubric = rubric or papt_rubric()
        self.action_space = spaces.Discrete(NUM_ACTIONS)
        self.observation_space = spaces.Box(0.0, 1.0, (SLOT_SIZE + _CONTEXT_SIZE,), np.float32)
        self.walk: Walk | None = None
        self._slots = Slots(mitigation)
        self._buffer = np.zeros(SLOT_SIZE + _CONTEXT_SIZE, dtype=np.float32)
        self._make_views()
        self._nodes_read = [0, 0]
        self._sources_read = (0, 0)

    def _make_views(self) -> None:
        self._slot_features = self._buffer[:SLOT_SIZE].reshape(SLOT_SHAPE)
        self._context = self._buffer[SLOT_SIZE:]
        # Writes single entries twice as fast as the array does.
        self._cells = cast("memoryview[float]", self._context.data)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the views: a copy of a view is no view of the copy."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_slot_features", "_context", "_cells")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copied or unpickled environment, in the middle of an episode if need be."""
        self.__dict__.update(state)
        self._make_views()

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Seeds this environment's own generator; None draws on from it.
            options: ``instance`` (index or instance id) and ``budget``; both hold for this episode only.

        Raises:
            ValueError: If an option is unknown or out of range.
        """
        super().reset(seed=seed)
        instance, budget = read_reset_options(options, self.instances, self.budget, self.np_random)
        self.walk = walk = Walk(instance, budget)
        self._slots.begin(instance, self.np_random)
        self._nodes_read = [0, 0]
        self._sources_read = (0, 0)
        self._write_context(walk, None, None)
        self._slots.show_around(walk.position, self._slot_features)
        return self._buffer.copy(), self._info(walk, None)

    def step(self, action: np.int64 | int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Take one action.

        Raises:
            RuntimeError: If the episode has ended or never began.
            ValueError: If the action is not in the action space.
        """
        walk = self._running()
        choice = index(action)
        if not 0 <= choice < NUM_ACTIONS:
            raise ValueError(f"action {choice} must lie in [0, {NUM_ACTIONS})")
        if choice >= NUM_SLOTS:
            step = walk.stop(JUDGEMENTS[choice - NUM_SLOTS])
        elif choice < self._slots.count:
            step = self._walk_to(walk, self._slots.nodes.item(choice))
        else:
            step = walk.reject(_ILLEGAL)
            self._write_context(walk, _LAST_ILLEGAL, None)
        if walk.ending is None and walk.budget_left > 0:
            self._slots.show_around(walk.position, self._slot_features)
        else:
            self._slots.show_nothing(self._slot_features)
        info = self._info(walk, step)
        if walk.ending is None:
            return self._buffer.copy(), 0.0, False, False, info
        outcome = walk.outcome()
        score = self.rubric.score(outcome)
        info |= {"ending": walk.ending._value_, "outcome": outcome, "terms": dict(score.terms)}
        truncated = walk.ending is _TRUNCATED
        return self._buffer.copy(), score.total, not truncated, truncated, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Return (172,) bool, True for a legal action; sb3-contrib's MaskablePPO asks for this name."""
        masks: NDArray[np.bool_] = _MASKS[self._slots.count].astype(np.bool_)
        return masks

    def slot_nodes(self) -> NDArray[np.int64]:
        """Return the graph's node numbers behind the filled slots, in the order of the slots, as a copy."""
        return self._slots.nodes[: self._slots.count].copy()

    def outcome(self) -> WalkOutcome:
        """Return the finished episode's outcome.

        Raises:
            RuntimeError: If the episode is not over or never began.
        """
        return self._running().outcome()

    def _running(self) -> Walk:
        if self.walk is None:
            raise RuntimeError("no episode was started; call reset before step")
        return self.walk

    def _walk_to(self, walk: Walk, node: int) -> Step:
        is_first_visit = node not in walk.visited
        step = walk.follow(node)
        self._slots.mark_visited(node)
        if step.atom is None:
            self._write_context(walk, _LAST_CONNECTOR, None)
            return step
        graph = walk.instance.graph
        side = 0 if graph.atoms[step.atom].stance is _SUPPORT else 1
        self._nodes_read[side] += is_first_visit
        last = _LAST_EVIDENCE
        if self._shows_sources:  # under M0 the agent can't tell a repeated source from a new one
            sources_read = walk.acquired_sources
            if sources_read == self._sources_read:
                last = _LAST_REPEAT
            else:
                self._sources_read = sources_read
                self._slots.mark_read(graph.node_source.item(node))
        self._write_context(walk, last, side)
        return step

    def _write_context(self, walk: Walk, last: int | None, side: int | None) -> None:
        self._context.fill(0.0)
        cells = self._cells
        cells[_HERE + walk.instance.graph.node_kind.item(walk.position)] = 1.0
        if last is not None:
            cells[last] = 1.0
        if side is not None:
            cells[_STANCE + side] = 1.0
        supporting, refuting = self._nodes_read
        cells[_SUPPORTING_NODES + (supporting if supporting < _MOST else _MOST)] = 1.0
        cells[_REFUTING_NODES + (refuting if refuting < _MOST else _MOST)] = 1.0
        if self._shows_sources:
            supporting, refuting = self._sources_read
            cells[_SUPPORTING_SOURCES + (supporting if supporting < _MOST else _MOST)] = 1.0
            cells[_REFUTING_SOURCES + (refuting if refuting < _MOST else _MOST)] = 1.0
        cells[_LEFT] = walk.budget_left / walk.budget
        cells[_LAST_CALL] = walk.budget_left == 0

    def _info(self, walk: Walk, step: Step | None) -> dict[str, Any]:
        info: GraphWalkInfo = {
            "instance_id": walk.instance.instance_id,
            "condition": walk.instance.condition,
            "budget": walk.budget,
            "budget_left": walk.budget_left,
            "last_step": None if step is None else step.kind._value_,
            "trace": TraceView(walk.instance, walk.trace),
            "cut_characters": 0,
            "ending": None,
            "terms": {},
            "outcome": None,
            "cited_source_ids": [],
            "action_mask": _MASK_ROWS[self._slots.count].copy(),
        }
        return info  # type: ignore[return-value]  # a TypedDict is a dict; copying it at every step is not free
