"""Walk dynamics: one set of rules behind the text face and the array face.

A walker stands on a node of an evidence graph. ``walk`` moves along an edge and acquires the atom of an
evidence-bearing node; reaching an acquired atom again is an echo; reaching a claim or a source is a connector move.
``reject`` charges one walk of the budget for an action that follows no edge or cannot be parsed. ``stop`` ends the
episode. After the budget's last walk exactly one more action is allowed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from provgym.envs.provenance import Instance, Stance
from provgym.rewards.outcome import Ending, Judgement, WalkOutcome

MAX_BUDGET = 10_000


class StepKind(StrEnum):
    """What an action turned out to be."""

    NEW = "new"  # first visit to an atom
    ECHO = "echo"  # an atom already acquired
    CONNECTOR = "connector"  # a claim or a source
    ILLEGAL = "illegal"  # a walk that follows no edge
    UNPARSED = "unparsed"  # not an action at all
    STOP = "stop"
    LATE = "late"  # anything but a valid stop after the budget ran out


# Looking a member up in its enum class costs more than the comparison it is for.
_NEW, _ECHO, _CONNECTOR = StepKind.NEW, StepKind.ECHO, StepKind.CONNECTOR
_SUPPORT = Stance.SUPPORT


class Step(NamedTuple):
    """One entry of a trace.

    Attributes:
        kind: What the action was.
        node: Where the walker stands afterwards.
        budget_left: Walks left afterwards.
        atom: Index of the atom at ``node`` for NEW and ECHO, else None.
    """

    kind: StepKind
    node: int
    budget_left: int
    atom: int | None = None


class Walk:
    """One walk over one instance, from the claim node to an ending.

    Args:
        instance: What to walk.
        budget: B >= 1, the walks allowed; the stop is not counted.

    Attributes:
        budget_left: Walks left, >= 0.
        visited: Nodes stood on, in order of the first visit, the claim first.
        acquired_atoms: Atoms acquired, in order.
        trace: Every step so far; it only grows.

    Raises:
        ValueError: If the budget is not in [1, 10000].
    """

    __slots__ = (
        "_acquired_sources",
        "acquired_atoms",
        "budget",
        "budget_left",
        "connector_moves",
        "echoes",
        "ending",
        "instance",
        "invalid_actions",
        "judgement",
        "position",
        "trace",
        "visited",
        "walks",
    )

    def __init__(self, instance: Instance, budget: int) -> None:
        if not 1 <= budget <= MAX_BUDGET:
            raise ValueError(f"budget={budget} must lie in [1, {MAX_BUDGET}] walks")
        self.instance = instance
        self.budget = self.budget_left = budget
        self.position = instance.claim
        self.visited: dict[int, None] = {instance.claim: None}  # ordered
        self.acquired_atoms: dict[int, None] = {}  # ordered
        self._acquired_sources: tuple[set[int], set[int]] = (set(), set())
        self.walks = 0
        self.invalid_actions = 0
        self.echoes = 0
        self.connector_moves = 0
        self.trace: list[Step] = []
        self.ending: Ending | None = None
        self.judgement: Judgement | None = None

    @property
    def is_over(self) -> bool:
        """Whether the episode has ended."""
        return self.ending is not None

    def neighbours(self) -> NDArray[np.int64]:
        """Nodes one walk away, ascending, at most ``MAX_NEIGHBOURS``."""
        return self.instance.graph.neighbours(self.position)

    @property
    def acquired_sources(self) -> tuple[int, int]:
        """Distinct supporting and refuting sources acquired so far."""
        return len(self._acquired_sources[0]), len(self._acquired_sources[1])

    def can_walk(self, node: int) -> bool:
        """Whether ``node`` is a neighbour."""
        around = self.neighbours()
        place = int(np.searchsorted(around, node))
        return place < len(around) and int(around[place]) == node

    def walk(self, node: int) -> Step:
        """Move to ``node``; anything that is no neighbour is charged as an illegal action."""
        return self.follow(node) if self.can_walk(node) else self.reject(StepKind.ILLEGAL)

    def follow(self, node: int) -> Step:
        """Move to ``node``, which the caller took from :meth:`neighbours` of the present position, unchecked."""
        if (self.ending is not None or self.budget_left == 0) and self._is_late():
            return self._record(StepKind.LATE)
        graph = self.instance.graph
        self.walks += 1
        self.budget_left -= 1
        self.position = node
        self.visited.setdefault(node)
        atom = graph.node_atom.item(node)
        # A source may serve several claims of a merged graph; what it says of another claim is no evidence here.
        if atom < 0 or graph.node_claim.item(node) != self.instance.claim:
            self.connector_moves += 1
            return self._record(_CONNECTOR)
        if atom in self.acquired_atoms:
            self.echoes += 1
            return self._record(_ECHO, atom)
        self.acquired_atoms[atom] = None
        side = 0 if graph.atoms[atom].stance is _SUPPORT else 1
        self._acquired_sources[side].add(graph.node_source.item(node))
        return self._record(_NEW, atom)

    def reject(self, kind: StepKind = StepKind.UNPARSED) -> Step:
        """Charge one walk for an action that did nothing; reveals nothing and cannot end the episode in budget."""
        if self._is_late():
            return self._record(StepKind.LATE)
        self.invalid_actions += 1
        self.budget_left -= 1
        return self._record(kind)

    def stop(self, judgement: Judgement | None) -> Step:
        """End the episode; None is a stop whose judgement does not parse.

        A late malformed stop is ``truncated``, as any late action but a valid stop.
        """
        self._check_running()
        if judgement is None and self.budget_left == 0:
            self.ending = Ending.TRUNCATED
        else:
            self.ending = Ending.INVALID if judgement is None else Ending.ANSWERED
        self.judgement = judgement
        return self._record(StepKind.STOP)

    def abort(self, ending: Ending) -> None:
        """End the episode from outside: ``truncated`` by length, or ``error`` of the infrastructure."""
        self._check_running()
        if ending not in (Ending.TRUNCATED, Ending.ERROR):
            raise ValueError(f"abort takes 'truncated' or 'error', found {ending.value!r}")
        self.ending = ending

    def outcome(self) -> WalkOutcome:
        """Return the counts that rewards and metrics read.

        Raises:
            RuntimeError: If the episode is not over.
        """
        if self.ending is None:
            raise RuntimeError("the episode is not over; there is no outcome yet")
        support, refute = self.instance.source_counts
        return WalkOutcome(
            gold=self.instance.gold,
            judgement=self.judgement,
            ending=self.ending,
            budget=self.budget,
            walks=self.walks,
            invalid_actions=self.invalid_actions,
            echoes=self.echoes,
            connector_moves=self.connector_moves,
            available_support=support,
            available_refute=refute,
            acquired_support=len(self._acquired_sources[0]),
            acquired_refute=len(self._acquired_sources[1]),
        )

    def _check_running(self) -> None:
        if self.ending is not None:
            raise RuntimeError(f"the episode ended ({self.ending.value}); call reset before the next step")

    def _is_late(self) -> bool:
        self._check_running()
        if self.budget_left > 0:
            return False
        self.ending = Ending.TRUNCATED
        return True

    def _record(self, kind: StepKind, atom: int | None = None) -> Step:
        step = Step(kind, self.position, self.budget_left, atom)
        self.trace.append(step)
        return step
