"""What a simulated agent makes of evidence and messages, step by step; see :mod:`~provgym.envs.simulated_agents`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from provgym.envs.evidence_units import EvidenceUnit
from provgym.envs.simulated_errors import Draws, Skill
from provgym.envs.simulated_messages import (
    NOTHING_FOUND,
    NOTHING_TO_CHECK,
    Basis,
    Finding,
    PlanStep,
    Report,
    count_findings,
    repeats_sentence,
    statement,
    write_report,
)
from provgym.envs.simulated_reading import read_unit
from provgym.envs.verifier import ClaimCheck, ClaimStatus, VerifierAccount, common_answer
from provgym.rewards.outcome import Verdict

_STEPS = tuple(PlanStep)
_VERDICTS = tuple(Verdict)
V = TypeVar("V")


class Situation(NamedTuple):
    """What a call sees and how it errs.

    Attributes:
        question: The task's.
        evidence: Units, numbered from 1.
        reports: The messages, read.
        skill: Rates.
        draws: Luck.
    """

    question: str
    evidence: tuple[EvidenceUnit, ...]
    reports: tuple[Report, ...]
    skill: Skill
    draws: Draws

    def follows(self, step: PlanStep) -> bool:
        """Whether some plan asks for a step and this call follows it."""
        place = _STEPS.index(step)
        return self.draws.follow[place] < self.skill.follow and any(step in report.steps for report in self.reports)

    @property
    def heeds(self) -> bool:
        """Whether this call gives way to what it is told."""
        return self.draws.heed < self.skill.heed

    @property
    def own_basis(self) -> Basis:
        """What this call counts by itself."""
        return Basis.UNIT if self.draws.echo < self.skill.echo else Basis.SOURCE


class Checked(NamedTuple):
    """What a Verifier came to.

    Attributes:
        text: Its message.
        account: Its checks, and the answers before and after.
        stops: Whether it asks that nobody answers.
    """

    text: str
    account: VerifierAccount
    stops: bool


def own_findings(seen: Situation) -> dict[int, Finding]:
    """Read every unit, with the errors of the call: unit number to what is made of it; missed units are absent.

    Who follows a plan's wish for relevance looks twice: an irrelevant unit strays in only with the rate squared.
    """
    skill, draws = seen.skill, seen.draws
    stray = skill.stray**2 if seen.follows(PlanStep.RELEVANCE) else skill.stray
    found: dict[int, Finding] = {}
    for place, unit in enumerate(seen.evidence):
        reading = read_unit(seen.question, unit)
        if draws.miss[place] < skill.miss:
            continue
        if not reading.is_about:
            found[place + 1] = reading.side if draws.stray[place] < stray else None
        elif reading.side is not None:
            found[place + 1] = reading.side.other if draws.misread[place] < skill.misread else reading.side
    return found


def weighed_report(seen: Situation) -> Report:
    """Return what a Reasoner or Answerer concludes from its own reading and from what it is told."""
    own = own_findings(seen)
    numbers = sorted({*own, *(number for report in seen.reports for number in report.findings)})
    findings = {n: _weigh(n, own, seen) for n in numbers if 1 <= n <= len(seen.evidence)}
    if all(finding is None for finding in findings.values()):
        return Report(findings)
    basis = _weighed_basis(seen)
    return Report(findings, basis, Verdict.from_counts(*count_findings(findings, seen.evidence, basis)))


def reasoned_text(seen: Situation) -> str:
    """Return a Reasoner's message."""
    report = weighed_report(seen)
    return write_report(report, seen.evidence, [] if report.basis else [NOTHING_FOUND])


def answered_text(seen: Situation) -> str:
    """Return the Answerer's message: the count and the answer, a guess if nothing speaks of the question."""
    report = weighed_report(seen)
    if report.answer is None:
        guess = _VERDICTS[int(seen.draws.guess * len(_VERDICTS))]
        return f"{NOTHING_FOUND}\nAnswer: {guess.value}"
    text = write_report(report, seen.evidence)
    return text[text.index("Counted by") :]


def planned_text(seen: Situation) -> str:
    """Return a plan, of which each step may be forgotten."""
    steps = frozenset(step for place, step in enumerate(_STEPS) if seen.draws.forget[place] >= seen.skill.miss)
    return write_report(Report(steps=steps), ()) or "Read the evidence and answer the question."


def checked_message(seen: Situation) -> Checked:
    """Check the statements of the messages against the evidence; see :class:`~provgym.envs.verifier.VerifierAccount`.

    A statement that a unit speaks for a side is supported, contradicted (and turned round), or not found: dropped if
    the unit was missed, corrected if it speaks of something else. If every statement is dropped, nobody should answer.
    """
    claimed = _claimed(seen.reports)
    before = common_answer([None if report.answer is None else report.answer.value for report in seen.reports])
    if not claimed:
        return Checked(NOTHING_TO_CHECK, VerifierAccount((), before, None), False)
    own = own_findings(seen)
    checks = [_check(number, finding, own, seen) for number, finding in claimed.items() if finding is not None]
    kept: dict[int, Finding] = {}
    for number, finding in claimed.items():
        if finding is None:
            kept[number] = None  # that a unit is about something else is no claim of a fact
        elif number in own:
            kept[number] = own[number]
    sided = [number for number, finding in kept.items() if finding is not None]
    basis = seen.own_basis
    answer = Verdict.from_counts(*count_findings(kept, seen.evidence, basis)) if sided else None
    report = Report(kept, basis if sided else None, answer, is_checked=True)
    repeats = repeats_sentence(sided, seen.evidence) if basis is Basis.SOURCE else []
    stops = bool(checks) and all(c.status is ClaimStatus.NOT_FOUND and c.correction is None for c in checks)
    account = VerifierAccount(tuple(checks), before, None if answer is None else answer.value)
    return Checked(write_report(report, seen.evidence, repeats), account, stops)


def _weigh(number: int, own: dict[int, Finding], seen: Situation) -> Finding:
    """Return what is made of one unit: what a verifier checked, else the majority; ``heed`` breaks ties."""
    told = [report for report in seen.reports if number in report.findings]
    checked = [report.findings[number] for report in told if report.is_checked]
    if checked and seen.heeds:
        return _most_common(checked)[0]
    said = [report.findings[number] for report in told]
    if number not in own:
        return _most_common(said)[0]
    best = _most_common([*said, own[number]])
    if own[number] not in best or len(best) == 1:
        return best[0]
    return next(finding for finding in best if finding != own[number]) if seen.heeds else own[number]


def _weighed_basis(seen: Situation) -> Basis:
    own = Basis.SOURCE if seen.follows(PlanStep.SOURCES) else seen.own_basis
    checked = [report.basis for report in seen.reports if report.is_checked and report.basis is not None]
    if checked and seen.heeds:
        return _most_common(checked)[0]
    said = [report.basis for report in seen.reports if report.basis is not None]
    best = _most_common([*said, own])
    if len(best) == 1:
        return best[0]
    return next(basis for basis in best if basis is not own) if seen.heeds else own


def _claimed(reports: Sequence[Report]) -> dict[int, Finding]:
    """Return what the messages together say of each unit that they mention; the first wins a tie."""
    numbers = sorted({number for report in reports for number in report.findings})
    return {n: _most_common([r.findings[n] for r in reports if n in r.findings])[0] for n in numbers}


def _check(number: int, claimed: Finding, own: dict[int, Finding], seen: Situation) -> ClaimCheck:
    claim = statement(number, claimed)
    if number not in own:
        return ClaimCheck(claim, ClaimStatus.NOT_FOUND)
    spans = (seen.evidence[number - 1].span,)
    if own[number] == claimed:
        return ClaimCheck(claim, ClaimStatus.SUPPORTED, spans)
    status = ClaimStatus.NOT_FOUND if own[number] is None else ClaimStatus.CONTRADICTED
    return ClaimCheck(claim, status, spans, statement(number, own[number]))


def _most_common(values: Sequence[V]) -> list[V]:
    """Return the values that stand most often, in the order of their first place."""
    counts = {value: values.count(value) for value in values}
    most = max(counts.values())
    return [value for value, count in counts.items() if count == most]
