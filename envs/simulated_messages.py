"""What simulated agents say to each other: plain sentences, written from findings and read back into them.

A reasoner's message::

    Unit 1 supports the claim.
    Unit 2 refutes the claim.
    Unit 3 is about something else.
    Counted by unit: 1 for, 1 against.
    Answer: MIXED

A verifier's begins with "Checked against the quoted spans." and says which units repeat the source of another. Units
are called by their number in the evidence, never by their text, so that no text of the world can pose as a statement.
Whatever else a message holds (a language model's prose) is passed over.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from provgym.envs.evidence_units import EvidenceUnit
from provgym.envs.simulated_reading import Side
from provgym.rewards.outcome import Verdict

CHECKED = "Checked against the quoted spans."
NOTHING_TO_CHECK = "These messages make no claim that could be checked."
NOTHING_FOUND = "No unit speaks of the question."

Finding = Side | None
"""What an agent says of a unit: a side, or None for "is about something else"."""


class Basis(StrEnum):
    """What is counted."""

    UNIT = "unit"  # every unit once: echoes count again
    SOURCE = "source"  # every distinct source once


class PlanStep(StrEnum):
    """What a planner may ask for."""

    RELEVANCE = "Keep only the units that speak of the question."
    SOURCES = "Count each source once, however many units repeat it."


@dataclass(frozen=True, slots=True)
class Report:
    """A message, as findings.

    Attributes:
        findings: Unit number, from 1, to what is said of it.
        basis: What was counted, or None if nothing was.
        answer: The verdict given, or None.
        is_checked: Whether it comes from a verifier that had something to check.
        steps: What a plan asks for.
    """

    findings: Mapping[int, Finding] = field(default_factory=dict)
    basis: Basis | None = None
    answer: Verdict | None = None
    is_checked: bool = False
    steps: frozenset[PlanStep] = frozenset()


_STATEMENT = re.compile(
    r"^Unit (?P<number>\d{1,6}) (?:(?P<side>supports|refutes) the claim|is about something else)\.$", re.MULTILINE
)
_ANSWER = re.compile(r"^Answer: (SUPPORT|REFUTE|MIXED)$", re.MULTILINE)
_COUNTED = re.compile(r"^Counted by (?P<basis>unit|source): ", re.MULTILINE)


def statement(number: int, finding: Finding) -> str:
    """Return the sentence that says what was found in a unit.

    Example:
        >>> statement(2, Side.AGAINST), statement(3, None)
        ('Unit 2 refutes the claim.', 'Unit 3 is about something else.')
    """
    return f"Unit {number} {'is about something else' if finding is None else f'{finding.value} the claim'}."


def write_report(report: Report, evidence: Sequence[EvidenceUnit], extra: Iterable[str] = ()) -> str:
    """Return a message; :func:`read_report` reads it back.

    Args:
        report: What is said.
        evidence: Whose sources are counted.
        extra: Sentences between findings and count.
    """
    lines = [CHECKED] if report.is_checked else []
    lines += [step.value for step in PlanStep if step in report.steps]
    lines += [statement(number, finding) for number, finding in sorted(report.findings.items())]
    lines += extra
    if report.basis is not None:
        support, refute = count_findings(report.findings, evidence, report.basis)
        lines.append(f"Counted by {report.basis.value}: {support} for, {refute} against.")
    if report.answer is not None:
        lines.append(f"Answer: {report.answer.value}")
    return "\n".join(lines)


@lru_cache(maxsize=65_536)
def read_report(text: str) -> Report:
    """Read a message of any kind; what is said of one unit twice, the last time counts."""
    found = {int(m["number"]): None if m["side"] is None else Side(m["side"]) for m in _STATEMENT.finditer(text)}
    bases = [Basis(match["basis"]) for match in _COUNTED.finditer(text)]
    answers = _ANSWER.findall(text)
    lines = set(text.splitlines())
    return Report(
        findings=found,
        basis=bases[-1] if bases else None,
        answer=Verdict(answers[-1]) if answers else None,
        is_checked=CHECKED in lines,
        steps=frozenset(step for step in PlanStep if step.value in lines),
    )


def count_findings(findings: Mapping[int, Finding], evidence: Sequence[EvidenceUnit], basis: Basis) -> tuple[int, int]:
    """Return what speaks for and against.

    By source, each source has one voice, that of most of its units; one whose units are divided equally has none.

    Args:
        findings: Unit number, from 1, to what was found; numbers of no unit are passed over.
        evidence: The units.
        basis: What is counted.
    """
    sides = [
        (evidence[number - 1].source_id, finding)
        for number, finding in findings.items()
        if finding is not None and 1 <= number <= len(evidence)
    ]
    if basis is Basis.UNIT:
        counts = Counter(side for _, side in sides)
        return counts[Side.FOR], counts[Side.AGAINST]
    voices: Counter[str] = Counter()
    for source, side in sides:
        voices[source] += 1 if side is Side.FOR else -1
    return sum(voice > 0 for voice in voices.values()), sum(voice < 0 for voice in voices.values())


def repeats_sentence(numbers: Sequence[int], evidence: Sequence[EvidenceUnit]) -> list[str]:
    """Return a sentence for each source that several of these units go back to."""
    of_source: dict[str, list[int]] = {}
    for number in sorted(numbers):
        of_source.setdefault(evidence[number - 1].source_id, []).append(number)
    return [
        f"Units {', '.join(map(str, found[1:]))} repeat the source of unit {found[0]}."
        for found in of_source.values()
        if len(found) > 1
    ]
