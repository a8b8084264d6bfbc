"""One answered question of one method: the record that every figure of the topology harness is computed from.

A record holds what came out (ending, answer), what it took (team, messages, calls, tokens, seconds), and what is needed
to check the answer again (gold, kind, choices). So stored records are scored again, under other prices or a corrected
checker, without a call to any agent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, get_args

from provgym.envs.answer_judge import AnswerJudgement, is_judged_right, needs_judge
from provgym.envs.topology_tasks import EvidenceKind
from provgym.envs.workflow_records import AgentMessage
from provgym.rewards.answers import AnswerKind, extract_answer, is_correct
from provgym.rewards.outcome import Ending

RunKey = tuple[str, int]
"""(task id, replicate): what makes a record of one method unique."""


@dataclass(frozen=True, slots=True)
class VerifierCheck:
    """What one Verifier did to the answer that reached it, and to the claims behind it.

    Attributes:
        node: Number of the Verifier in its team.
        before: Answer of the messages that it checked; None = none, or they were divided.
        after: Answer of the message that it passed on; None = none.
        supported: Claims that it found supported.
        contradicted: Claims that it found contradicted.
        not_found: Claims that it found nowhere.
        corrected: Claims that it corrected.
    """

    node: int
    before: str | None
    after: str | None
    supported: int = 0
    contradicted: int = 0
    not_found: int = 0
    corrected: int = 0


@dataclass(frozen=True, slots=True)
class MethodRun:
    """A method's run on one question.

    Attributes:
        method: Name of the method.
        setup: What made the run: hexadecimal digits over method, executor and what the method builds on; empty until
            the harness stores the run.
        task_id: Of the question.
        base_id: Base claim; intervals are clustered over it.
        split: Split of the task.
        evidence_kind: ``agreement``, ``conflict``, ``irrelevance``, or None where tasks have no kind.
        replicate: Repetition of the question, from 0.
        answer_kind: How the answer is read.
        choices: Choices of a multiple-choice question, else empty.
        gold: The right answer.
        ending: How the run ended; an ``error`` is never scored.
        reason: Why it ended so, such as ``stopped_by_verifier``; None without one.
        answer: The answer as read from the last message; None unless ``ending`` is ``answered``.
        roles: Role of every node that the method set up, in the order of execution.
        edges: (sender, receiver) over these nodes.
        messages: What was said, in order of nodes.
        prompt_tokens: Over all calls, stored ones included: what the run takes by itself.
        completion_tokens: The same of what was written.
        calls: Calls of agents, stored ones included.
        cached_calls: Those of them that the message cache answered.
        paid_tokens: Prompt and completion tokens of the calls that the cache did not answer.
        is_counted: Whether the tokens of every call are known; if not, the run has no token figures.
        latency_s: Seconds along the slowest chain of calls, each with what it took when it was paid for.
        samples: Team runs joined to one answer (self-consistency, ReAct); 1 for a single team.
        checks: What Verifiers did, by node.
        error: Why the run ended in ``error``, else None.
        judgements: Of the answers in it that had to be run (code), else empty: these can't be checked again.

    Raises:
        ValueError: If answer, error and ending do not go together, or a count is out of range.
    """

    method: str
    setup: str
    task_id: str
    base_id: str
    split: str
    evidence_kind: EvidenceKind | None
    replicate: int
    answer_kind: AnswerKind
    choices: tuple[str, ...]
    gold: str
    ending: Ending
    reason: str | None
    answer: str | None
    roles: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    messages: tuple[AgentMessage, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    calls: int = 0
    cached_calls: int = 0
    paid_tokens: int = 0
    is_counted: bool = True
    latency_s: float = 0.0
    samples: int = 1
    checks: tuple[VerifierCheck, ...] = ()
    error: str | None = None
    judgements: tuple[AnswerJudgement, ...] = ()

    def __post_init__(self) -> None:
        if (self.answer is not None) != (self.ending is Ending.ANSWERED):
            raise ValueError(f"{self.where}: answer {self.answer!r} does not go with ending {self.ending.value!r}")
        if (self.error is not None) != (self.ending is Ending.ERROR):
            raise ValueError(f"{self.where}: error {self.error!r} does not go with ending {self.ending.value!r}")
        if not 0 <= self.cached_calls <= self.calls or not 0 <= self.paid_tokens <= self.tokens:
            raise ValueError(
                f"{self.where}: cached_calls={self.cached_calls} of calls={self.calls} and paid_tokens="
                f"{self.paid_tokens} of tokens={self.tokens} must not be negative or more than the whole"
            )
        if self.samples < 0 or not (math.isfinite(self.latency_s) and self.latency_s >= 0.0):
            raise ValueError(
                f"{self.where}: samples={self.samples} and latency_s={self.latency_s} must be >= 0 and finite"
            )

    @property
    def where(self) -> str:
        """How messages name this run."""
        return f"method {self.method!r}, task {self.task_id!r}, replicate {self.replicate}"

    @property
    def key(self) -> RunKey:
        """What tells this run from the others of its method."""
        return self.task_id, self.replicate

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def is_scored(self) -> bool:
        """Whether the run counts: an ``error`` is the infrastructure's, never a wrong answer."""
        return self.ending is not Ending.ERROR

    @property
    def is_correct(self) -> bool | None:
        """Whether the answer is right, checked now; None for an ``error``. Endings without an answer are wrong."""
        if not self.is_scored:
            return None
        return self.answer is not None and self.is_right(self.answer)

    def is_right(self, answer: str) -> bool:
        """Whether some answer to this run's question, in its normal form, is right.

        Raises:
            ValueError: If it is an answer in code that was never run.
        """
        if needs_judge(self.answer_kind):
            return is_judged_right(self.judgements, answer)
        return _is_right(self.answer_kind, answer, self.gold, self.choices)

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data; :meth:`from_json` reverses it exactly."""
        return {
            "method": self.method,
            "setup": self.setup,
            "task_id": self.task_id,
            "base_id": self.base_id,
            "split": self.split,
            "evidence_kind": self.evidence_kind,
            "replicate": self.replicate,
            "answer_kind": self.answer_kind,
            "choices": list(self.choices),
            "gold": self.gold,
            "ending": self.ending.value,
            "reason": self.reason,
            "answer": self.answer,
            "roles": list(self.roles),
            "edges": [list(edge) for edge in self.edges],
            "messages": [asdict(message) for message in self.messages],
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "calls": self.calls,
            "cached_calls": self.cached_calls,
            "paid_tokens": self.paid_tokens,
            "is_counted": self.is_counted,
            "latency_s": self.latency_s,
            "samples": self.samples,
            "checks": [asdict(check) for check in self.checks],
            "error": self.error,
            **({"judgements": [asdict(judgement) for judgement in self.judgements]} if self.judgements else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MethodRun:
        """Rebuild a record.

        Raises:
            ValueError: If a field is missing, unknown or out of range.
        """
        fields = dict(data)
        try:
            if fields["answer_kind"] not in get_args(AnswerKind):
                raise ValueError(f"answer_kind {fields['answer_kind']!r}, expected one of {get_args(AnswerKind)}")
            return cls(
                ending=Ending(fields.pop("ending")),
                choices=tuple(fields.pop("choices")),
                roles=tuple(fields.pop("roles")),
                edges=tuple((int(a), int(b)) for a, b in fields.pop("edges")),
                messages=tuple(AgentMessage(**message) for message in fields.pop("messages")),
                checks=tuple(VerifierCheck(**check) for check in fields.pop("checks")),
                judgements=tuple(AnswerJudgement(**judgement) for judgement in fields.pop("judgements", ())),
                **fields,
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a stored run of a method: {error!r}") from error


def checked_again(run: MethodRun) -> MethodRun:
    """Return a stored run whose answer is read anew from its last message, as after a change of the reader.

    Runs that join several teams (``samples`` other than 1) keep their answer: it was voted for, not written. So do runs
    that were cut off (``truncated``, ``error``), stopped by a verifier, or stored without messages, and answers in
    code, of which only what was run then can be judged.
    """
    was_read = run.ending in (Ending.ANSWERED, Ending.INVALID)
    if run.samples != 1 or not was_read or run.reason is not None or not run.messages or needs_judge(run.answer_kind):
        return run
    last = max(run.messages, key=lambda message: message.node)
    answer = extract_answer(run.answer_kind, last.text, choices=run.choices)
    ending = Ending.INVALID if answer is None else Ending.ANSWERED
    return replace(run, answer=answer, ending=ending)


def by_question(runs: Iterable[MethodRun]) -> dict[RunKey, MethodRun]:
    """Return the runs of one method by question, in the order given.

    Raises:
        ValueError: If a question stands twice: every figure would count it twice.
    """
    found: dict[RunKey, MethodRun] = {}
    for run in runs:
        if run.key in found:
            raise ValueError(f"{run.where} stands twice; remove one of the two")
        found[run.key] = run
    return found


@lru_cache(maxsize=65_536)
def _is_right(kind: AnswerKind, answer: str, gold: str, choices: tuple[str, ...]) -> bool:
    # Behind a mark an answer is read as it stands, whatever words it holds.
    return is_correct(kind, f"Answer: {answer}", gold, choices=choices)
