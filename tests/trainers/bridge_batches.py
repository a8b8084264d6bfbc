"""Batches, roll-outs and losses that the tests of the seam with TRL share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, TrainerCallback

from provgym.generators.engine import Sampling
from provgym.generators.episode import Episode, EpisodeTask
from provgym.generators.hf_engine import HFEngine
from provgym.generators.rollout import LanguageModelPolicy
from provgym.rewards.outcome import Ending
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.policy_loading import load_trainable

MakeConfig = Callable[..., PaptConfig]

MakeTrainer = Callable[..., Any]  # a PaptTrainer, whose own base class lacks types

MakeBatch = Callable[..., dict[str, Any]]

LOSS_TYPES = ("dapo", "grpo", "dr_grpo")


def as_error(episode: Episode) -> Episode:
    """Return the episode as if its server had gone away at its end."""
    outcome = replace(episode.outcome, ending=Ending.ERROR, judgement=None)
    return replace(episode, outcome=outcome, error="the server went away")


def changed(play: Callable[..., list[Episode]], change: Callable[[list[Episode]], list[Episode]]) -> Any:
    """Return a roll-out whose episodes are changed before the trainer sees them."""
    return lambda model, tasks: change(play(model, tasks))


def plain_play(config: PaptConfig) -> Callable[..., list[Episode]]:
    """Return the roll-out that training uses."""
    dialogue = load_trainable(config.model).dialogue

    def play(model: PreTrainedModel, tasks: Sequence[EpisodeTask]) -> list[Episode]:
        engine = HFEngine(model, max_rows=16, max_length=config.generation.max_length)
        return LanguageModelPolicy("t", engine, dialogue, Sampling(config.optim.temperature)).play(tasks)

    return play


def hand_batch(trainer: Any, lengths: Sequence[int], losses: Sequence[float], kept: Sequence[int]) -> Any:
    """Return rows of equal prompts whose every completion token has the given loss (ratio 1: loss = -advantage)."""
    rows, width = len(lengths), max(lengths)
    mask = torch.tensor([[1] * n + [0] * (width - n) for n in lengths])
    trained = mask * torch.tensor(kept)[:, None]
    total = int(trained.sum())
    return {
        "prompt_ids": torch.full((rows, 2), 7),
        "prompt_mask": torch.ones(rows, 2, dtype=torch.long),
        "completion_ids": torch.arange(10, 10 + width).repeat(rows, 1),
        "completion_mask": mask,
        "tool_mask": trained.clone(),
        "advantages": -torch.tensor(losses),
        "num_items_in_batch": torch.tensor(total),
        "row_weight": torch.tensor(rows / max(1, sum(kept)) if any(kept) else 1.0),
        "sampling_per_token_logps": torch.zeros(rows, width),
    }


def parts(batch: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Cut a batch into micro-batches, as TRL does."""
    size = len(batch["advantages"]) // count
    return [{k: v if v.ndim == 0 else v[i * size : (i + 1) * size] for k, v in batch.items()} for i in range(count)]


def total_loss(trainer: Any, batch: dict[str, Any], count: int) -> tuple[float, Tensor]:
    """Return the summed loss of ``count`` micro-batches, and the gradient that they add up to."""
    trainer.current_gradient_accumulation_steps = count
    trainer.args.gradient_accumulation_steps = trainer.args.steps_per_generation = count
    trainer.model.zero_grad()
    total = 0.0
    for part in parts(batch, count):
        loss = trainer.compute_loss(trainer.model, part)
        loss.backward()
        total += loss.item()
    return total, gradient_of(trainer.model)


def gradient_of(model: Any) -> Tensor:
    """Return all gradients as one vector."""
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone()


def without_gap_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches by hand have no sampled log-probabilities to compare with."""
    monkeypatch.setattr("provgym.trainers.trl_bridge.MAX_SAMPLING_GAP", math.inf)


class GradientKeeper(TrainerCallback):
    """Keeps the gradient and the loss of every step."""

    def __init__(self) -> None:
        self.gradients: list[Tensor] = []
        self.losses: list[float] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.gradients.append(gradient_of(kwargs["model"]))

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if "loss" in kwargs["logs"]:
            self.losses.append(kwargs["logs"]["loss"])
