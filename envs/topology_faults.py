"""What can be wrong with a topology, by name."""

from __future__ import annotations

from enum import StrEnum


class TopologyFault(StrEnum):
    """Why a topology was refused."""

    EMPTY = "empty"  # no node at all
    BAD_EDGE = "bad_edge"  # an edge of a node that is not there, or the same edge twice
    CYCLE = "cycle"  # a self-loop included
    TOO_MANY_NODES = "too_many_nodes"
    UNKNOWN_ROLE = "unknown_role"
    NO_ANSWERER = "no_answerer"
    SECOND_ANSWERER = "second_answerer"
    ANSWERER_NOT_SINK = "answerer_not_sink"  # the Answerer sends to somebody
    DEAD_END = "dead_end"  # a node that does not reach the Answerer
    IN_DEGREE = "in_degree"


class TopologyError(ValueError):
    """A topology that was refused.

    Args:
        fault: Why.
        message: The same in words, with what was found.

    Attributes:
        fault: As given.
    """

    def __init__(self, fault: TopologyFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault

    def __reduce__(self) -> tuple[type[TopologyError], tuple[TopologyFault, str]]:
        return type(self), (self.fault, str(self))  # so that it crosses between processes
