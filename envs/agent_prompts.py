"""What an agent is told, as text: role instruction, question, predecessors' messages, linearised evidence, form.

Messages and evidence are quoted line by line (to a Verifier, claim by claim), so that no text of theirs can pose as
another part of the prompt. The prompt says nothing of node numbers, the rest of the topology, or the gold answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from provgym.envs.evidence_units import EvidenceUnit
from provgym.envs.roles import RoleKind
from provgym.envs.verifier import VERIFIER_FORMAT, atomic_claims
from provgym.envs.workflow_records import NodeCall, ordered_messages
from provgym.rewards.answers import AnswerKind

PROMPT_FORMAT = 1
"""Raised when a prompt's wording changes: it is part of what replies depend on."""

ANSWER_FORMS: Mapping[AnswerKind, str] = {
    "verdict": "Answer: SUPPORT, Answer: REFUTE or Answer: MIXED",
    "multiple_choice": "Answer: and the letter of one choice, such as Answer: A",
    "yes_no": "Answer: yes or Answer: no",
    "number": "Answer: and a number alone, such as Answer: 42",
    "exact": "Answer: and the answer alone",
    "code": "the whole function with its imports, once, in a block that begins with ```python and ends with ```",
}
"""How an answer is written, by kind; :mod:`provgym.rewards.answers` reads all of these."""

NO_EVIDENCE = "No evidence was found."
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class AgentPrompt(NamedTuple):
    """A prompt as a system text and one user message."""

    system: str
    user: str


def agent_prompt(call: NodeCall) -> AgentPrompt:
    """Return the prompt of a call."""
    system, *parts = prompt_parts(call)
    return AgentPrompt(system, "\n\n".join(parts))


def prompt_parts(call: NodeCall) -> tuple[str, ...]:
    """Return instruction, question, evidence, messages if there are any, and how to reply."""
    messages = [messages_block(call)] if call.messages else []
    question = question_block(call.question, call.choices)
    return call.role.instruction, question, evidence_block(call.evidence), *messages, _closing(call)


def question_block(question: str, choices: tuple[str, ...]) -> str:
    """Return question and choices; choices are lettered.

    Example:
        >>> print(question_block("Which is fast?", ("a car", "a snail")))
        Question: Which is fast?
        A. a car
        B. a snail
    """
    lines = [f"{letter}. {choice}" for letter, choice in zip(_LETTERS, choices, strict=False)]
    return "\n".join([f"Question: {question}", *lines])


@lru_cache(maxsize=4_096)
def evidence_block(evidence: tuple[EvidenceUnit, ...]) -> str:
    """Return the units as numbered lines, best first, provenance included."""
    if not evidence:
        return f"Evidence: {NO_EVIDENCE}"
    lines = [f"{number}. {unit.linearised()}" for number, unit in enumerate(evidence, start=1)]
    return "\n".join(["Evidence:", *lines])


def messages_block(call: NodeCall) -> str:
    """Return the predecessors' messages, each under its role and quoted; a Verifier gets them claim by claim."""
    lines = ["Messages:"]
    numbers = itertools.count(1)
    for message in ordered_messages(call.messages):
        lines.append(f"{message.sender}:")
        if call.role.kind is RoleKind.VERIFY and call.answer_kind != "code":  # code has no sentences
            lines += [f"> Claim {next(numbers)}: {claim}" for claim in atomic_claims(message.text)]
        else:
            lines += [f"> {line}" for line in message.text.splitlines() or [""]]
    return "\n".join(lines)


def _closing(call: NodeCall) -> str:
    if call.role.kind is RoleKind.PLAN:
        return "Write the plan."
    size = "" if call.answer_kind == "code" else " one line:"
    form = f"End with{size} {ANSWER_FORMS[call.answer_kind]}."
    return f"{VERIFIER_FORMAT} {form}" if call.role.kind is RoleKind.VERIFY else form
