"""The typed result of a walk evaluation, and what ``summary.json`` says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provgym.eval.estimate import Estimate
from provgym.eval.walk_config import WalkEvalConfig
from provgym.eval.walk_summary import WalkSummary, total_endings
from provgym.generators.episode import Episode

UNKNOWN_TOKEN_LIMIT = 0.05
"""Share of world tokens unknown to the tokenizer above which figures are called not meaningful (ours)."""


@dataclass(frozen=True)
class WalkEvalResult:
    """A finished evaluation.

    Attributes:
        policy: Name of the policy.
        fingerprint: What tells this policy's weights from others of its name; empty if not given.
        config: What was asked for.
        config_hash: 12 hexadecimal digits of the config.
        data_hash: 12 hexadecimal digits of the instances.
        episodes: In task order.
        summary: Every figure.
        num_claims: Base claims played.
        world_size: Processes that played.
        data_report: A loader's account as lines for a terminal; empty for generated claims.
        left_out: Reason to number of claims or lines that the loader left out.
        out_dir: Where the files lie.
    """

    policy: str
    fingerprint: str
    config: WalkEvalConfig
    config_hash: str
    data_hash: str
    episodes: tuple[Episode, ...]
    summary: WalkSummary
    num_claims: int
    world_size: int
    out_dir: Path
    data_report: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)

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
        for name, rate in self.metrics.items():
            if name.endswith("unknown_token_rate") and rate.is_available and rate.value > UNKNOWN_TOKEN_LIMIT:
                notes.append(f"{name} {rate.value:.3f}: the policy cannot read this text; figures are not meaningful")
        return tuple(notes) + usage_notes(self.episodes)

    def to_json(self) -> dict[str, Any]:
        """Return what ``summary.json`` holds."""
        return {
            "policy": self.policy,
            "fingerprint": self.fingerprint,
            "config_hash": self.config_hash,
            "data_hash": self.data_hash,
            "seed": self.config.seed,
            "split": self.config.split,
            "conditions": list(self.summary.by_condition),
            "mitigations": list(self.config.mitigations),
            "budgets": list(self.config.budgets),
            "decoding": self.config.decoding,
            "num_claims": self.num_claims,
            "num_episodes": len(self.episodes),
            "world_size": self.world_size,
            "total_endings": total_endings(self.summary),
            **self.summary.to_json(),
            "left_out": dict(self.left_out),
            "notes": list(self.notes),
            "config": self.config.model_dump(mode="json"),
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
