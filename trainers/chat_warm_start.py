"""Warm start of any chat model: a LoRA adapter that plays like the naive walker, as valid actions in the model's words.

A chat model that never wrote an action gives PAPT groups of equal rewards, and nothing to learn from. Here it is
taught the scripted naive walker's episodes on train claims, rendered by the model's own chat template. The walker
counts paths, not sources: what PAPT is there to teach is not taught here.

``provgym warm-start --config configs/papt/smollm2-warm-start.yaml``. An interrupted run goes on from its last
checkpoint when the same command is given again, and ends with the same adapter as without interruption.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from pydantic import BaseModel, Field, model_validator
from safetensors import SafetensorError
from transformers import PreTrainedModel

from provgym.eval.run_files import write_atomic, write_json_atomic
from provgym.eval.walk_config import config_hash
from provgym.generators.chat_actions import instructions_of
from provgym.generators.conditions import GENERAL
from provgym.generators.engine import WritingDialogue
from provgym.generators.episode import EpisodeTask
from provgym.generators.scripted import naive_walker, start_episode
from provgym.generators.seeds import Purpose, derive_rng, derive_seed
from provgym.generators.writable_folder import check_writable
from provgym.trainers.checkpoints import Checkpoint, Origin, find_resume_point, mark_complete, prune_checkpoints
from provgym.trainers.cloning import (
    ClonedRow,
    RowsLoss,
    SharedLoss,
    check_head,
    cloning_step,
    cosine_scale,
    separate_loss,
    walked_turns,
    write_row,
)
from provgym.trainers.config_file import changed_keys, dump_config
from provgym.trainers.papt_config import DataConfig, LoraSettings, ModelConfig, Strict, WalkConfig
from provgym.trainers.policy_loading import TrainablePolicy, load_trainable
from provgym.trainers.saved_policy import save_policy
from provgym.trainers.training_rows import ClaimPool, load_pool

MOST_DRAWS = 50
"""Episodes drawn for one row, at most, until one is short enough."""

_FIRST_DRAW = 10_000  # draws of general conditions below are PAPT's and the evaluations'
_STATE = "cloning_state.pt"
_DONE = "warm_start.json"

OnStep = Callable[[int, int, float], None]


class WarmStartKind(BaseModel):
    """The one key of a warm-start file that says how the rest is to be read.

    Attributes:
        kind: ``tiny`` or ``chat``.
    """

    kind: Literal["tiny", "chat"] = "tiny"


class ChatWarmStartConfig(Strict):
    """A warm start of a chat model.

    Attributes:
        kind: ``chat``.
        out: Folder of the result; the adapter is in its ``policy/``.
        seed: Of the adapter's initialisation and the episodes.
        model: Which model, as in a PAPT run; ``smollm2`` or ``hf``.
        data: Which claims, as in a PAPT run; only those of the train split are used.
        walk: How claims are walked, as in the PAPT run that is to follow.
        lora: Of the adapter; the PAPT run goes on with it.
        steps: Optimiser steps.
        rows_per_step: Episodes per step.
        micro_batch: Episodes per forward and backward pass; it changes memory and speed, never the result.
        shared_prefix: Compute what the episodes of a pass begin with once, for speed alone; false for models whose
            attention cannot.
        learning_rate: Peak of a cosine schedule; ours.
        warmup_steps: Linear warm-up.
        stop_probability: Of the naive walker, before each walk but the first: stopping early can be sampled then.
        confirm_probability: Of the naive walker: of walking on to a source already read.
        stumble_probability: Chance before each action of an illegal move that is shown but not cloned.
        max_length: Longest episode in tokens; a longer one is drawn again.
        checkpoint_every: Steps between checkpoints.
    """

    kind: Literal["chat"] = "chat"
    out: Path = Path("runs/chat-warm-start")
    seed: int = Field(default=0, ge=0)
    model: ModelConfig = ModelConfig(kind="smollm2")
    data: DataConfig = DataConfig(general_share=0.5)
    walk: WalkConfig = WalkConfig(budgets=(1, 2, 3))
    lora: LoraSettings = LoraSettings()
    steps: int = Field(default=120, ge=1)
    rows_per_step: int = Field(default=4, ge=1)
    micro_batch: int = Field(default=4, ge=1)
    shared_prefix: bool = True
    learning_rate: float = Field(default=1e-3, gt=0.0)
    warmup_steps: int = Field(default=3, ge=0)
    stop_probability: float = Field(default=0.1, ge=0.0, le=1.0)
    confirm_probability: float = Field(default=0.0, ge=0.0, le=1.0)
    stumble_probability: float = Field(default=0.05, ge=0.0, lt=1.0)
    max_length: int = Field(default=1024, ge=64)
    checkpoint_every: int = Field(default=8, ge=1)

    @model_validator(mode="after")
    def _model_is_a_chat_model_without_adapter(self) -> Self:
        if self.model.kind == "tiny":
            raise ValueError("model.kind 'tiny' has a warm start of its own (kind: tiny); choose smollm2 or hf")
        if self.model.adapter is not None:
            raise ValueError(f"model.adapter {self.model.adapter} must be left out: a warm start makes a new adapter")
        return self


def cloned_row(
    config: ChatWarmStartConfig, pool: ClaimPool, dialogue: WritingDialogue, rng: np.random.Generator
) -> ClonedRow:
    """Draw a train claim, let the naive walker play it, and write the episode as ids.

    Raises:
        ValueError: If none of :data:`MOST_DRAWS` episodes fits into ``max_length``.
    """
    shortest = None
    for _ in range(MOST_DRAWS):
        task = _draw_task(config, pool, rng)
        row = _play(config, task, dialogue, rng)
        if row.length <= config.max_length:
            return row
        shortest = row.length if shortest is None else min(shortest, row.length)
    raise ValueError(
        f"max_length={config.max_length} is too short: the shortest of {MOST_DRAWS} episodes has {shortest} tokens; "
        "raise it, or lower walk.budgets"
    )


def _draw_task(config: ChatWarmStartConfig, pool: ClaimPool, rng: np.random.Generator) -> EpisodeTask:
    data, budgets, presentations = config.data, config.walk.budgets, config.walk.training_presentations()
    is_general = not data.conditions or rng.random() < data.general_share
    condition = GENERAL if is_general else data.conditions[rng.integers(len(data.conditions))]
    draw = int(rng.integers(_FIRST_DRAW, 2 * _FIRST_DRAW))
    return EpisodeTask(
        instance=pool.draw(int(rng.integers(pool.num_train)), condition, draw),
        budget=budgets[rng.integers(len(budgets))],
        presentation=presentations[rng.integers(len(presentations))],
        presentation_seed=int(rng.integers(2**62)),
        sampling_seed=0,  # the walker draws from rng
    )


def _play(
    config: ChatWarmStartConfig, task: EpisodeTask, dialogue: WritingDialogue, rng: np.random.Generator
) -> ClonedRow:
    walker = naive_walker(config.stop_probability, config.confirm_probability)
    turns = walked_turns(start_episode(task), walker, rng, config.stumble_probability)
    instructions = instructions_of(config.model.grammar) or task.presentation.instructions
    said = ((turn.lines, dialogue.encode_action(turn.action), turn.is_cloned) for turn in turns)
    return write_row(dialogue, said, instructions)


class _Learner(NamedTuple):
    """What is taught, how far it has come, and what teaches it."""

    policy: TrainablePolicy
    model: PreTrainedModel
    optimizer: torch.optim.Optimizer
    history: list[float]


def chat_warm_start(config: ChatWarmStartConfig, on_step: OnStep | None = None) -> Path:
    """Clone the naive walker into a new LoRA adapter, or go on where an interrupted call stopped.

    Args:
        config: What to do.
        on_step: Called with (step, steps in all, loss in nats a token).

    Returns:
        The adapter's folder, ``config.out / "policy"``.

    Raises:
        FileNotFoundError: If the model is missing.
        ValueError: If ``out`` holds a warm start of another configuration, the model's chat template can't be
            continued, it scales or caps its logits, or episodes don't fit into ``max_length``.
        RunStopped: If a gradient is not finite.
        OSError: If ``out`` cannot be written; it is asked about first.
    """
    check_writable(config.out, "--out")
    changes = changed_keys(config.out / "config.yaml", config, except_for=("out",))
    if changes:
        raise ValueError(
            f"{config.out} holds a warm start of another configuration; changed: {', '.join(changes)}. Choose another "
            "folder with --out, or remove that one"
        )
    target = config.out / "policy"
    if (config.out / _DONE).is_file():
        return target
    folder = config.out / "checkpoints"
    hash_ = config_hash(config.model_copy(update={"out": Path("out")}))
    resume = find_resume_point(folder, hash_)
    learner = _begin(config) if resume is None else _go_on(config, resume)
    write_atomic(config.out / "config.yaml", [dump_config(config).encode()])
    last = _teach(config, learner, folder, hash_, on_step)
    save_policy(target, last, learner.policy)
    write_json_atomic(config.out / "loss.json", learner.history)
    write_json_atomic(config.out / _DONE, {"config_hash": hash_, "steps": config.steps, "seed": config.seed})
    shutil.rmtree(folder)
    return target


def _begin(config: ChatWarmStartConfig) -> _Learner:
    policy = load_trainable(config.model)
    lora = config.lora
    targets = lora.target_modules
    settings = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(config.seed, Purpose.INITIALISATION) % 2**31)
        model: Any = get_peft_model(policy.model, settings)
    return _Learner(policy, model.eval(), _optimizer(config, model), [])


def _go_on(config: ChatWarmStartConfig, checkpoint: Checkpoint) -> _Learner:
    policy = load_trainable(config.model.model_copy(update={"adapter": str(checkpoint.path)}))
    state = torch.load(checkpoint.path / _STATE, map_location=policy.model.device, weights_only=True)
    optimizer = _optimizer(config, policy.model)
    optimizer.load_state_dict(state["optimizer"])
    return _Learner(policy, policy.model, optimizer, list(state["history"]))


def _optimizer(config: ChatWarmStartConfig, model: PreTrainedModel) -> torch.optim.Optimizer:
    """Return AdamW on what is trainable, all of it LoRA's.

    Raises:
        ValueError: If nothing is.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError(f"no weight is trainable: lora.target_modules={config.lora.target_modules!r} names no layer")
    return torch.optim.AdamW(parameters, lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.0)


def _teach(config: ChatWarmStartConfig, learner: _Learner, folder: Path, hash_: str, on_step: OnStep | None) -> Path:
    """Take the steps that are missing; returns the last checkpoint."""
    dialogue = learner.policy.dialogue
    if not isinstance(dialogue, WritingDialogue):
        raise TypeError(f"{type(dialogue).__name__} can't write actions; cloning needs encode_action")
    check_head(learner.model)
    pool, history = load_pool(config.data), learner.history
    shared = SharedLoss(learner.model) if config.shared_prefix else None
    loss_of: RowsLoss = shared or (lambda rows: separate_loss(learner.model, rows))
    try:
        for step in range(len(history), config.steps):
            rows = [
                cloned_row(config, pool, dialogue, derive_rng(config.seed, Purpose.CLONING, step, number))
                for number in range(config.rows_per_step)
            ]
            scale = cosine_scale(step, config.steps, config.warmup_steps)
            for group in learner.optimizer.param_groups:
                group["lr"] = config.learning_rate * scale
            history.append(cloning_step(learner.optimizer, loss_of, rows, micro_batch=config.micro_batch))
            if on_step is not None:
                on_step(step + 1, config.steps, history[-1])
            if (step + 1) % config.checkpoint_every == 0 or step + 1 == config.steps:
                _save(learner, folder, hash_)
    finally:
        if shared is not None:
            shared.close()
    return folder / f"checkpoint-{config.steps}"


def _save(learner: _Learner, folder: Path, hash_: str) -> None:
    """Write a checkpoint; it counts once it is whole."""
    step = len(learner.history)
    place = folder / f"checkpoint-{step}"
    try:
        learner.model.save_pretrained(place)
        torch.save({"optimizer": learner.optimizer.state_dict(), "history": learner.history}, place / _STATE)
        mark_complete(place, step, Origin(hash_, "", 1))
        prune_checkpoints(folder, keep=1)
    except (OSError, RuntimeError, SafetensorError) as error:  # of a full disk, each library in its own way
        raise OSError(
            f"checkpoint {step} could not be written to {folder}: {error}; free space there, then give the same "
            "command again: it goes on from the checkpoint before"
        ) from error
