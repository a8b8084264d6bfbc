"""The trace of a walk as plain data, rendered only when somebody reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypedDict, overload

from provgym.envs.provenance import Instance
from provgym.envs.walk import Step, StepKind
from provgym.envs.walk_text import TraceEntry, trace_entry


class TraceView(Sequence[TraceEntry]):
    """The first steps of a walk; later steps of the same walk do not change it.

    Every access builds new entries, so changing one changes nothing else. Pickled (as between processes), it
    becomes a plain list.

    Args:
        instance: What was walked.
        steps: The walk's own trace, which only ever grows.
    """

    __slots__ = ("_instance", "_length", "_steps")

    def __init__(self, instance: Instance, steps: list[Step]) -> None:
        self._instance = instance
        self._steps = steps
        self._length = len(steps)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[TraceEntry]:
        for step in self._steps[: self._length]:
            yield trace_entry(self._instance, step)

    @overload
    def __getitem__(self, index: int) -> TraceEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[TraceEntry]: ...
    def __getitem__(self, index: int | slice) -> TraceEntry | list[TraceEntry]:
        steps = self._steps[: self._length]
        if isinstance(index, slice):
            return [trace_entry(self._instance, step) for step in steps[index]]
        return trace_entry(self._instance, steps[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (TraceView, list, tuple)) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def __copy__(self) -> TraceView:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TraceView:
        return self  # it cannot be changed; SB3 deep-copies every info, which would render every trace

    def __reduce__(self) -> tuple[type[list[TraceEntry]], tuple[list[TraceEntry]]]:
        return list, (list(self),)


_DID_NOTHING = (StepKind.ILLEGAL, StepKind.UNPARSED)
_CHARGED = (StepKind.NEW, StepKind.ECHO, StepKind.CONNECTOR, *_DID_NOTHING)


class StepFlags(TypedDict):
    """What each action of a trace counts as, (A,) each; the flags of :func:`provgym.rewards.credit.step_rewards`.

    Attributes:
        is_new: It reached a source not acquired before.
        is_echo: It repeated an acquired atom.
        is_charged: It used a walk of the budget.
        is_illegal: It followed no edge or could not be parsed.
    """

    is_new: list[bool]
    is_echo: list[bool]
    is_charged: list[bool]
    is_illegal: list[bool]


def step_flags(trace: Sequence[TraceEntry]) -> StepFlags:
    """Return what each action of a trace, (A,), counts as."""
    kinds = [StepKind(entry["kind"]) for entry in trace]
    seen: set[str | None] = set()
    is_new = []
    for kind, entry in zip(kinds, trace, strict=True):
        is_new.append(kind is StepKind.NEW and entry["source"] not in seen)
        seen.add(entry["source"])
    return {
        "is_new": is_new,
        "is_echo": [kind is StepKind.ECHO for kind in kinds],
        "is_charged": [kind in _CHARGED for kind in kinds],
        "is_illegal": [kind in _DID_NOTHING for kind in kinds],
    }
