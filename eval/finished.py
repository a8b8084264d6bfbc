"""What every finished evaluation has, whatever was asked: who, on what, every episode, the figures, where it lies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from provgym.eval.eval_config import EvalConfig
from provgym.eval.metric_kinds import is_scored
from provgym.generators.episode import Episode
from provgym.rewards.outcome import Ending

UNKNOWN_TOKEN_LIMIT = 0.05
"""Share of world tokens unknown to the tokenizer above which figures are called not meaningful (ours)."""

ConfigT = TypeVar("ConfigT", bound=EvalConfig)
SummaryT = TypeVar("SummaryT")


@dataclass(frozen=True)
class FinishedEvaluation(ABC, Generic[ConfigT, SummaryT]):
    """A finished evaluation of one policy.

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
        out_dir: Where the files lie.
        data_report: A loader's account as lines for a terminal; empty for generated claims.
        left_out: Reason to number of claims or lines that the loader left out.
    """

    policy: str
    fingerprint: str
    config: ConfigT
    config_hash: str
    data_hash: str
    episodes: tuple[Episode, ...]
    summary: SummaryT
    num_claims: int
    world_size: int
    out_dir: Path
    data_report: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    @abstractmethod
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures has to know."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return what ``summary.json`` holds."""

    def facts(self) -> dict[str, Any]:
        """Return what ``summary.json`` says before its figures: who, and on what."""
        return {
            "policy": self.policy,
            "fingerprint": self.fingerprint,
            "config_hash": self.config_hash,
            "data_hash": self.data_hash,
            "seed": self.config.seed,
            "split": self.config.split,
            "mitigations": list(self.config.mitigations),
            "decoding": self.config.decoding,
            "num_claims": self.num_claims,
            "num_episodes": len(self.episodes),
            "world_size": self.world_size,
        }

    def ending_facts(self) -> dict[str, Any]:
        """Return what ``summary.json`` says after its figures."""
        return {
            "left_out": dict(self.left_out),
            "notes": list(self.notes),
            "config": self.config.model_dump(mode="json"),
        }


def unanswered_note(episodes: Sequence[Episode]) -> tuple[str, ...]:
    """Return a line if episodes were scored and none of them holds a judgement; nothing otherwise.

    Example:
        >>> unanswered_note([])
        ()
    """
    endings = Counter(episode.outcome.ending for episode in episodes if is_scored(episode))
    if not endings or endings[Ending.ANSWERED]:
        return ()
    found = ", ".join(f"{endings[ending]} {ending.value}" for ending in Ending if endings[ending])
    return (
        f"not one of {endings.total()} scored episodes ends with a judgement ({found}): accuracy 0 says that no "
        "judgement could be read, and nothing of how the policy judges; look at a few actions in episodes.jsonl",
    )


def unknown_token_note(name: str, rate: float) -> str:
    """Return the line on a share of unknown tokens above :data:`UNKNOWN_TOKEN_LIMIT`."""
    return f"{name} {rate:.3f}: the policy cannot read this text; figures are not meaningful"
