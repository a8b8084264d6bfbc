"""The typed result of a walk evaluation, and what ``summary.json`` says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provgym.eval.estimate import Estimate
from provgym.eval.finished import UNKNOWN_TOKEN_LIMIT, FinishedEvaluation, unanswered_note, unknown_token_note
from provgym.eval.walk_config import WalkEvalConfig
from provgym.eval.walk_summary import WalkSummary, total_endings
from provgym.generators.episode import Episode


@dataclass(frozen=True)
class WalkEvalResult(FinishedEvaluation[WalkEvalConfig, WalkSummary]):
    """A finished walk evaluation; see :class:`~provgym.eval.finished.FinishedEvaluation`."""

    @property
    def metrics(self) -> Mapping[str, Estimate]:
        """Metric name to estimate, general conditions with the prefix ``general_``."""
        return self.summary.metrics

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures has to know."""
        notes = []
        errors = self.summary.coverage.errors
        if not self.episodes:
            notes.append("n = 0, not available: there was nothing to play")
        if errors:
            played, scored = len(self.episodes), self.summary.coverage.scored
            notes.append(
                f"{errors} of {played} episodes ended in error and are not scored: coverage {scored / played:.0%}; "
                "the same command plays them again"
            )
        notes += unanswered_note(self.episodes)
        for name, rate in self.metrics.items():
            if name.endswith("unknown_token_rate") and rate.is_available and rate.value > UNKNOWN_TOKEN_LIMIT:
                notes.append(unknown_token_note(name, rate.value))
        return tuple(notes) + usage_notes(self.episodes)

    def to_json(self) -> dict[str, Any]:
        """Return what ``summary.json`` holds."""
        return {
            **self.facts(),
            "conditions": list(self.summary.by_condition),
            "budgets": list(self.config.budgets),
            "total_endings": total_endings(self.summary),
            **self.summary.to_json(),
            **self.ending_facts(),
        }


def usage_notes(episodes: Sequence[Episode]) -> tuple[str, ...]:
    """Return what an endpoint was asked for these episodes, as a line; nothing for policies without one.

    Example:
        >>> usage_notes([])
        ()
    """
    usage: Counter[str] = Counter()
    for episode in episodes:
        usage.update(episode.usage)
    if not usage:
        return ()
    missing = f", {usage['usage_missing']} answers of unknown length" if usage["usage_missing"] else ""
    return (
        f"endpoint: {usage['attempts']} requests, {usage['cached']} answers stored before; "
        f"{usage['prompt_tokens']} prompt and {usage['completion_tokens']} completion tokens in all answers{missing}",
    )
