"""What a Verifier does to a message: atomic claims, each checked against the evidence through its provenance.

A Verifier's reply is read line by line, white space and case aside::

    CHECK: folmom raised the yield | contradicted | 2, 5 | folmom lowered the yield
    REVISED: The yield was lowered. Verdict: REFUTE
    STOP

A check names a claim, what became of it, the units that decide it (by id, or as the evidence is numbered in the
prompt, from 1) and, if the claim was wrong, its correction. What is called supported or contradicted by no unit that
exists counts as not found: a Verifier has to show where it looked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from provgym.envs.evidence_units import EvidenceUnit, Span

VERIFIER_FORMAT = (
    "Write one line for each claim: CHECK: claim | supported, contradicted or not found | numbers of the units that "
    "decide it | correction, if it was wrong. Then write REVISED: and the corrected message. If no claim can stand and "
    "nobody should answer, end with a line STOP."
)
"""What a language model is told about the form of its reply."""

Change = Literal["kept_right", "kept_wrong", "right_to_wrong", "wrong_to_right", "no_answer_before"]

_CHECK = re.compile(r"^\W*CHECK\W*:\s*(?P<rest>.+)$", re.IGNORECASE)
_REVISED = re.compile(r"^\W*REVISED\W*:", re.IGNORECASE | re.MULTILINE)
_STOP = re.compile(r"^\W*STOP\W*$", re.IGNORECASE | re.MULTILINE)
_UNIT_NAME = re.compile(r"[^\s,;()\[\]]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+|;\s+")
_MOST_CHECKS = 1_000


class ClaimStatus(StrEnum):
    """What the evidence says of one claim."""

    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    NOT_FOUND = "not found"


@dataclass(frozen=True, slots=True)
class ClaimCheck:
    """One atomic claim, checked.

    Attributes:
        claim: As the message made it.
        status: What became of it.
        spans: Where the Verifier looked; none if nothing was found.
        correction: What should have been said, or None.
    """

    claim: str
    status: ClaimStatus
    spans: tuple[Span, ...] = ()
    correction: str | None = None


@dataclass(frozen=True, slots=True)
class VerifierAccount:
    """What one Verifier checked and changed.

    Attributes:
        checks: In the order of the claims.
        answer_before: The answer that the incoming messages gave, in canonical form; None if they gave none or were
            divided equally.
        answer_after: The same of the Verifier's own message.
    """

    checks: tuple[ClaimCheck, ...]
    answer_before: str | None
    answer_after: str | None

    @property
    def corrections(self) -> int:
        """Claims that were corrected."""
        return sum(check.correction is not None for check in self.checks)

    def counts(self) -> dict[str, int]:
        """Return how many claims were supported, contradicted and not found."""
        return {status.value: sum(check.status is status for check in self.checks) for status in ClaimStatus}

    def change(self, is_right: Callable[[str], bool]) -> Change:
        """Return what the check did to the answer; an answer that was taken away counts as wrong.

        Args:
            is_right: Whether an answer is right.

        Example:
            >>> VerifierAccount((), "SUPPORT", "REFUTE").change(lambda answer: answer == "REFUTE")
            'wrong_to_right'
        """
        if self.answer_before is None:
            return "no_answer_before"
        after = self.answer_after is not None and is_right(self.answer_after)
        if is_right(self.answer_before):
            return "kept_right" if after else "right_to_wrong"
        return "wrong_to_right" if after else "kept_wrong"


@dataclass(frozen=True, slots=True)
class Verification:
    """A Verifier's reply, read.

    Attributes:
        checks: Its checks, in order; none if the reply holds none that can be read.
        message: What it passes on: the revised message, or all of the reply where it marked none.
        stops: Whether it asks that nobody answers.
    """

    checks: tuple[ClaimCheck, ...]
    message: str
    stops: bool


def atomic_claims(message: str) -> tuple[str, ...]:
    r"""Split a message into its statements, one a sentence, line or clause behind a semicolon; none holds a line end.

    Example:
        >>> atomic_claims("Unit 1 supports it. Unit 2 refutes it;  it is older\nVerdict: MIXED")
        ('Unit 1 supports it.', 'Unit 2 refutes it', 'it is older', 'Verdict: MIXED')
    """
    parts = (" ".join(part.split()).strip("; ") for part in _SENTENCE_END.split(message))
    return tuple(part for part in parts if any(character.isalnum() for character in part))


def read_verification(reply: str, evidence: Sequence[EvidenceUnit]) -> Verification:
    """Read a Verifier's reply; whatever it holds, nothing is raised.

    Args:
        reply: As written by the agent.
        evidence: What the agent was shown, in the order in which it was numbered.
    """
    lines = [match for line in reply.splitlines() if (match := _CHECK.match(line))]
    checks = tuple(_check(match["rest"], evidence) for match in lines[:_MOST_CHECKS])
    stops = _STOP.search(reply) is not None
    revised = _REVISED.search(reply)
    message = reply if revised is None else reply[revised.end() :]
    return Verification(checks, _STOP.sub("", message).strip() if stops else message.strip(), stops)


def common_answer(answers: Sequence[str | None]) -> str | None:
    """Return the answer that most give, None if none is given or the first two are given equally often.

    Example:
        >>> common_answer(["A", None, "B", "A"]), common_answer(["A", "B"]), common_answer([None])
        ('A', None, None)
    """
    given = [answer for answer in answers if answer is not None]
    ranked = sorted(set(given), key=lambda answer: -given.count(answer))
    if not ranked or (len(ranked) > 1 and given.count(ranked[0]) == given.count(ranked[1])):
        return None
    return ranked[0]


def _check(text: str, evidence: Sequence[EvidenceUnit]) -> ClaimCheck:
    claim, status_text, numbers, correction = (*(part.strip() for part in text.split("|", 3)), "", "", "")[:4]
    spans = _spans(numbers, evidence)
    status = _status(status_text) if spans else ClaimStatus.NOT_FOUND
    has_correction = any(character.isalnum() for character in correction) and correction.lower() != "none"
    return ClaimCheck(claim, status, spans, correction if has_correction else None)


def _spans(names: str, evidence: Sequence[EvidenceUnit]) -> tuple[Span, ...]:
    """Return the spans of the units that are named, by id or, where that is no unit's id, by number."""
    words = set(_UNIT_NAME.findall(names))
    by_id = {unit.unit_id for unit in evidence} & words
    return tuple(
        unit.span
        for number, unit in enumerate(evidence, start=1)
        if unit.unit_id in by_id or (str(number) in words and str(number) not in by_id)
    )


def _status(text: str) -> ClaimStatus:
    """Read a status; "unsupported", and whatever is negated, shows nothing."""
    plain = " ".join(text.lower().replace("_", " ").split())
    if plain.startswith(("not ", "un", "no ")):
        return ClaimStatus.NOT_FOUND
    if "contradict" in plain:
        return ClaimStatus.CONTRADICTED
    return ClaimStatus.SUPPORTED if "support" in plain else ClaimStatus.NOT_FOUND
