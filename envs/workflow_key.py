"""What a reply depends on, as one digest: calls with equal digests are one call.

Node numbers, task ids, phases and the rest of the topology are not in it. So candidates, and pruned variants of one
topology, share the replies of every node that is told the same.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any

from provgym.envs.evidence_units import EvidenceUnit
from provgym.envs.topology import Topology
from provgym.envs.workflow_records import NodeCall

KEY_FORMAT = 1
"""Raised when what stands in a digest changes, so that stored replies of before are not found."""


def content_digest(call: NodeCall) -> str:
    """Return the digest of all that a call tells its agent: 64 hexadecimal digits.

    Messages count as a set ordered by sender and text; whom they come from counts by role, not by node number.
    """
    role = call.role
    context = _context_digest(call.question, call.answer_kind, call.choices, call.evidence)
    messages = sorted((message.sender, message.text) for message in call.messages)
    told = [role.name, role.kind.value, role.instruction, messages, call.replicate, call.sibling]
    return _digest([KEY_FORMAT, context, *told])


def reply_key(fingerprint: str, digest: str) -> str:
    """Return what a reply is stored under: 64 hexadecimal digits.

    Args:
        fingerprint: Of the agent.
        digest: Of the call; see :func:`content_digest`.
    """
    return _digest([fingerprint, digest])


@lru_cache(maxsize=65_536)
def sibling_numbers(topology: Topology) -> tuple[int, ...]:
    """Number the nodes that could be told the same: those of one role that hear the same roles.

    Without these numbers two equal Reasoners would be one draw. They follow the node numbers; give a canonical
    topology, so that they follow the graph alone.

    Returns:
        (N,) number of each node among its like, from 0.

    Example:
        >>> sibling_numbers(Topology(("Reasoner", "Reasoner", "Answerer"), ((0, 2), (1, 2))))
        (0, 1, 0)
    """
    seen: dict[tuple[str, tuple[str, ...]], int] = {}
    numbers = []
    for node, role in enumerate(topology.roles):
        like = (role, tuple(sorted(topology.roles[sender] for sender in topology.predecessors(node))))
        numbers.append(seen.get(like, 0))
        seen[like] = numbers[-1] + 1
    return tuple(numbers)


@lru_cache(maxsize=4_096)
def _context_digest(question: str, kind: str, choices: tuple[str, ...], evidence: tuple[EvidenceUnit, ...]) -> str:
    units = [
        [unit.unit_id, unit.head, unit.relation, unit.tail, unit.source_id]
        + [unit.span.document_id, unit.span.start, unit.span.end, unit.span.text]
        for unit in evidence
    ]
    return _digest([question, kind, choices, units])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode("ascii")).hexdigest()
