"""What a PAPT run is told of GRPO, its optimiser and LoRA, with where each default comes from."""

from __future__ import annotations

from typing import Any, Literal, Self, get_args

from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator

from provgym.rewards.advantages import AdvantageScale
from provgym.trainers.strict_config import Strict

SharingMode = Literal["auto", "on", "off"]


class LoraSettings(Strict):
    """LoRA; r=16 and alpha=32 in the source, which names no target modules (ours: all linear layers)."""

    r: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    target_modules: str | tuple[str, ...] = "all-linear"

    @field_validator("dropout")
    @classmethod
    def _no_dropout(cls, value: float) -> float:
        if value:
            raise ValueError("dropout must be 0: sampling and training have to see the same weights")
        return value


class OptimConfig(Strict):
    """GRPO and its optimiser.

    Attributes:
        group_size: Trajectories per instance (4 in the source).
        judgements_per_walk: Trajectories of a group that share one walk and each state a judgement of it, K (ours);
            ``group_size / K`` walks are left, at least two. More than 1 needs ``credit: split``, see
            :mod:`provgym.trainers.judgement_forks`.
        groups_per_step: Instances per optimiser step, over all processes.
        micro_batch: Trajectories per forward and backward pass and process, at most; must divide the process's share if
            that is larger.
        learning_rate: Peak; ours.
        schedule: Learning-rate schedule of transformers.
        warmup_steps: Linear warm-up.
        temperature: Of sampling and of the loss; ours.
        kl_weight: beta; 0 needs no reference model; ours.
        loss_type: TRL's name; ``dr_grpo`` and ``dapo`` do not weigh tokens by episode length; ours. TRL's ``bnpo`` is
            left out: its result depends on ``micro_batch``.
        credit: ``trajectory`` judges every action by the whole episode (GRPO with outcome supervision, the source's);
            ``step`` by what came of it (process supervision), see :mod:`provgym.rewards.credit`; ``group_step`` by the
            whole episode and, beside it, by what came of it against other actions at the same state (GiGPO), see
            :mod:`provgym.rewards.shared_states`; ``split`` judges walking, step by step, by what the walk gathered, and
            the judgement by its own terms (ours), see :mod:`provgym.trainers.split_credit`.
        discount: A reward n actions later counts ``discount ** n`` of itself in the credit of single actions; 1 in the
            papers and by default. The totals that are reported and compared stay undiscounted.
        step_weight: Of the second part under ``group_step`` (GiGPO's omega, 1 there too).
        scale_advantages: ``group`` (or true) divides by the group's standard deviation (GRPO), ``batch`` by that of the
            whole step, ``none`` (or false) by nothing. Under ``split`` it holds for walking; judgements are always
            divided by their group's.
        epochs_per_rollout: Optimiser steps that each roll-out is used for (GRPO's mu); ours. The phases' steps and
            ``checkpoints.every`` must be multiples of it.
        clip: epsilon of the ratio; without effect unless a roll-out is used again.
        max_grad_norm: Gradient clipping.
        weight_decay: AdamW's.
        shared_prefix: Whether training computes what rows begin with alike (a group's prompt, first turns) once:
            ``on``, ``off``, or ``auto``: where it saves a sixth of the tokens or more and the model can, see
            :mod:`provgym.trainers.prefix_sharing`. The loss is the same up to rounding.
    """

    group_size: int = Field(default=4, ge=2)
    judgements_per_walk: int = Field(default=1, ge=1)
    groups_per_step: int = Field(default=16, ge=1)
    micro_batch: int = Field(default=64, ge=1)
    learning_rate: float = Field(default=1e-5, gt=0.0)
    schedule: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "constant_with_warmup"
    warmup_steps: int = Field(default=5, ge=0)
    temperature: float = Field(default=1.0, gt=0.0)
    kl_weight: float = Field(default=0.0, ge=0.0)
    loss_type: Literal["grpo", "dr_grpo", "dapo"] = "dapo"
    credit: Literal["trajectory", "step", "group_step", "split"] = "trajectory"
    discount: float = Field(default=1.0, ge=0.0, le=1.0)
    step_weight: float = Field(default=1.0, ge=0.0)
    scale_advantages: AdvantageScale = "group"
    epochs_per_rollout: int = Field(default=1, ge=1)
    clip: float = Field(default=0.2, gt=0.0)
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    weight_decay: float = Field(default=0.0, ge=0.0)
    shared_prefix: SharingMode = "auto"

    @model_validator(mode="after")
    def _walks_divide_the_group(self) -> Self:
        per_walk = self.judgements_per_walk
        if per_walk > 1 and self.credit != "split":
            raise ValueError(
                f"judgements_per_walk={per_walk} needs credit: split, found {self.credit!r}: else what a judgement "
                "earns would be credited to the walk, once for every judgement of it"
            )
        if self.group_size % per_walk or self.group_size == per_walk:
            raise ValueError(
                f"judgements_per_walk={per_walk} must divide group_size={self.group_size} into at least two walks; set "
                f"group_size to {2 * per_walk} or another multiple of {per_walk} above it, or judgements_per_walk to 1"
            )
        return self

    @field_validator("scale_advantages", mode="before")
    @classmethod
    def _truth_value_is_a_scale(cls, value: Any) -> Any:
        if value in get_args(AdvantageScale):
            return value
        try:
            return "group" if TypeAdapter(bool).validate_python(value) else "none"
        except ValidationError:
            return value  # refused by the field itself, which names the choices
