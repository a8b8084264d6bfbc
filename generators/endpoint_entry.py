"""What a ledger of requests holds: one entry per request, and sums over entries."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from provgym.generators.endpoint_reply import Completion, EndpointFailure, FailureKind

LEDGER_VERSION = 1
Phase = Literal["train", "eval"]
Outcome = Literal["unfinished", "answered", "cancelled", FailureKind]


@dataclass(frozen=True, slots=True)
class CallTag:
    """What a completion is asked for.

    Attributes:
        phase: Whether training or evaluation pays for it.
        replicate: Number of the repeat; repeats of one request are different completions.
        item: What needs it, such as an instance and turn, or a run and node.
    """

    phase: Phase = "eval"
    replicate: int = 0
    item: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One request.

    Attributes:
        attempt_id: Unique.
        call: Beginning of the digest that the completion is cached under; attempts of one completion share it.
        attempt: Number within its completion, from 1.
        phase: See :class:`CallTag`.
        replicate: See there.
        item: See there.
        model: Name that the server knows.
        url: Where the request went.
        started: When it left, ISO 8601 in UTC.
        outcome: ``answered``, a failure's kind, ``cancelled`` (by a deadline or an interrupt), or ``unfinished``:
            no outcome was recorded, so the process was killed, or is still waiting.
        seconds: Until the outcome, or None.
        status: HTTP status, or None without a reply.
        prompt_tokens: As the server counted them, or None if it did not say.
        completion_tokens: The same of the answer.
        finish_reason: As the server named it, or None.
        detail: Of a failure, else None.
        version: Of the format.
    """

    attempt_id: str
    call: str
    attempt: int
    phase: Phase
    replicate: int
    item: str
    model: str
    url: str
    started: str
    outcome: Outcome = "unfinished"
    seconds: float | None = None
    status: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    detail: str | None = None
    version: int = LEDGER_VERSION

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True)
class LedgerTotals:
    """Sums over entries.

    Attributes:
        requests: All of them.
        answered: Those that brought a completion.
        failed: Those that failed or were cancelled.
        unfinished: Those without a recorded outcome.
        prompt_tokens: Sum of what servers counted.
        completion_tokens: The same of answers.
        uncounted: Answered requests whose tokens the server did not say; sums lack them.
    """

    requests: int
    answered: int
    failed: int
    unfinished: int
    prompt_tokens: int
    completion_tokens: int
    uncounted: int


def new_entry(call: str, attempt: int, tag: CallTag, model: str, url: str) -> LedgerEntry:
    """Return the entry of a request that is about to leave."""
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    return LedgerEntry(
        attempt_id=uuid.uuid4().hex,
        call=call[:16],
        attempt=attempt,
        phase=tag.phase,
        replicate=tag.replicate,
        item=tag.item.encode("utf-8", "replace").decode("utf-8"),
        model=model,
        url=url,
        started=started,
    )


def finished(entry: LedgerEntry, seconds: float, result: Completion | EndpointFailure | None) -> LedgerEntry:
    """Return an entry with its outcome; None as the result means that this side cancelled the request."""
    common: dict[str, Any] = {"seconds": round(seconds, 3)}
    if result is None:
        return dataclasses.replace(entry, outcome="cancelled", **common)
    if isinstance(result, EndpointFailure):
        detail = result.detail.encode("utf-8", "replace").decode("utf-8")
        return dataclasses.replace(entry, outcome=result.kind, status=result.status, detail=detail, **common)
    return dataclasses.replace(
        entry,
        outcome="answered",
        status=200,
        prompt_tokens=result.prompt_tokens,
        completion_tokens=result.completion_tokens,
        finish_reason=result.finish_reason,
        **common,
    )


def ledger_totals(entries: Iterable[LedgerEntry], phase: Phase | None = None) -> LedgerTotals:
    """Sum entries, of one phase or of both.

    Example:
        >>> ledger_totals([]).requests
        0
    """
    chosen = [entry for entry in entries if phase in (None, entry.phase)]
    answered = [entry for entry in chosen if entry.outcome == "answered"]
    unfinished = sum(entry.outcome == "unfinished" for entry in chosen)
    return LedgerTotals(
        requests=len(chosen),
        answered=len(answered),
        failed=len(chosen) - len(answered) - unfinished,
        unfinished=unfinished,
        prompt_tokens=sum(entry.prompt_tokens or 0 for entry in answered),
        completion_tokens=sum(entry.completion_tokens or 0 for entry in answered),
        uncounted=sum(entry.prompt_tokens is None or entry.completion_tokens is None for entry in answered),
    )
