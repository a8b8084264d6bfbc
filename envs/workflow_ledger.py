"""What calls cost: training and evaluation apart, and what was paid apart from what stored replies saved."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields

from provgym.envs.workflow_records import CallRecord, Phase


@dataclass(frozen=True, slots=True)
class TokenTotals:
    """Sums over calls.

    Attributes:
        paid_calls: Calls that an agent answered now.
        cached_calls: Calls that stored replies answered.
        prompt_tokens: Of paid calls.
        completion_tokens: Of paid calls.
        cached_prompt_tokens: What cached calls would have read.
        cached_completion_tokens: What cached calls would have written.
        uncounted: Paid calls whose tokens the server did not say; sums lack them.
        failed: Calls that brought no reply; what they cost is in the agent's own ledger, if it keeps one.
    """

    paid_calls: int = 0
    cached_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0
    cached_completion_tokens: int = 0
    uncounted: int = 0
    failed: int = 0

    @property
    def calls(self) -> int:
        """Answered calls, paid and cached."""
        return self.paid_calls + self.cached_calls


class TokenLedger:
    """Keeps sums; may be written from several event loops and threads at once.

    Example:
        >>> ledger = TokenLedger()
        >>> ledger.book(CallRecord(0, "Answerer", "eval", 100, 7, is_cached=False, key="ab"))
        >>> ledger.totals("eval").prompt_tokens, ledger.totals("train").calls
        (100, 0)
    """

    def __init__(self) -> None:
        self._sums: dict[Phase, Counter[str]] = {"train": Counter(), "eval": Counter()}
        self._lock = threading.Lock()

    def book(self, call: CallRecord) -> None:
        """Add an answered call."""
        with self._lock:
            self._sums[call.phase].update(_counts(call))

    def book_failure(self, phase: Phase) -> None:
        """Add a call that brought no reply."""
        with self._lock:
            self._sums[phase]["failed"] += 1

    def totals(self, phase: Phase | None = None) -> TokenTotals:
        """Return the sums of one phase, or of both."""
        with self._lock:
            chosen = [self._sums[phase]] if phase is not None else list(self._sums.values())
            return TokenTotals(**{f.name: sum(sums[f.name] for sums in chosen) for f in fields(TokenTotals)})


def totals_of(calls: Iterable[CallRecord]) -> TokenTotals:
    """Sum the calls of runs, such as stored ones.

    Example:
        >>> totals_of([CallRecord(0, "Answerer", "eval", 9, 1, is_cached=True, key="ab")]).cached_prompt_tokens
        9
    """
    sums: Counter[str] = Counter()
    for call in calls:
        sums.update(_counts(call))
    return TokenTotals(**sums)


def _counts(call: CallRecord) -> dict[str, int]:
    if call.is_cached:
        return {
            "cached_calls": 1,
            "cached_prompt_tokens": call.prompt_tokens,
            "cached_completion_tokens": call.completion_tokens,
        }
    return {
        "paid_calls": 1,
        "prompt_tokens": call.prompt_tokens,
        "completion_tokens": call.completion_tokens,
        "uncounted": int(not call.is_counted),
    }
