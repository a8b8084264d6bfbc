"""Everything a warm start of the tiny policy can be told."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from provgym.trainers.strict_config import Strict


class WarmStartConfig(Strict):
    """A warm start.

    Attributes:
        kind: ``tiny``; a chat model's is :class:`~provgym.trainers.chat_warm_start.ChatWarmStartConfig`.
        out: Folder for weights and tokenizer.
        seed: Of initialisation and data.
        data_seed: GraphEcho-Syn's seed; only train claims are used.
        drill_steps: Steps on evidence lists without walking.
        clone_steps: Steps on the naive walker's episodes (a quarter of them drill).
        confirm_steps: Further steps, with a schedule and an optimiser of their own, on a naive walker that seeks
            confirmation: it likes to return to sources it has already read.
        drill_rows: Sequences per drill step.
        clone_rows: Episodes per cloning step.
        learning_rate: Peak of the cosine schedule of drill and cloning.
        confirm_learning_rate: Peak of the last stage's.
        confirm_probability: Of the naive walker in the last stage.
        stop_probability: Of the naive walker, before each walk but the first.
        take_probability: Of the naive walker, which reads the list of moves from its top: chance of taking each.
        shuffle_probability: Chance of an episode whose aliases are in random order; only copying helps there.
        stumble_probability: Chance before each action of an illegal move that is shown but not cloned, so that the
            policy goes on after a mistake of its own instead of repeating it.
        budgets: Drawn per episode.
        stance_loss_weight: Weight of an auxiliary linear read-out of each evidence line's stance; the read-out is
            thrown away. Without it, comparing the verbs of claim and evidence is learned many times more slowly.
        familiar_loss_weight: Weight of another such read-out, in the last stage: whether a source among the moves was
            read before, from the middle layer. The policy learns to see repetition, which it goes on to count.
    """

    kind: Literal["tiny"] = "tiny"
    out: Path = Path("runs/warm-start")
    seed: int = Field(default=0, ge=0)
    data_seed: int = Field(default=42, ge=0)
    drill_steps: int = Field(default=150, ge=0)
    clone_steps: int = Field(default=1000, ge=0)
    confirm_steps: int = Field(default=700, ge=0)
    drill_rows: int = Field(default=64, ge=1)
    clone_rows: int = Field(default=48, ge=1)
    learning_rate: float = Field(default=3e-3, gt=0.0)
    confirm_learning_rate: float = Field(default=2e-3, gt=0.0)
    confirm_probability: float = Field(default=0.4, ge=0.0, le=1.0)
    stop_probability: float = Field(default=0.1, ge=0.0, le=1.0)
    take_probability: float = Field(default=0.5, ge=0.0, le=1.0)
    shuffle_probability: float = Field(default=0.5, ge=0.0, le=1.0)
    stumble_probability: float = Field(default=0.05, ge=0.0, lt=1.0)
    budgets: tuple[int, ...] = (3, 4, 5, 6, 7, 8)
    stance_loss_weight: float = Field(default=1.0, ge=0.0)
    familiar_loss_weight: float = Field(default=1.0, ge=0.0)
    hidden_size: int = 128
    num_layers: int = 4
    initializer_range: float = 0.1
