"""How a K-GAT generator's weights are learned: distribution matching, REINFORCE beside it, and what is kept."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from provgym.trainers.strict_config import Strict


class KgatOptimConfig(Strict):
    """Optimisation between mining rounds: weighted cross-entropy by AdamW.

    Attributes:
        steps_per_round: Optimiser steps after each mining round.
        tasks_per_step: Tasks in a step; each brings all its kept candidates.
        learning_rate: Peak.
        restarts: Whether every round begins with new weights and a schedule of its own, on all targets so far (ours). A
            generator that goes on instead learned the first round's few and noisy targets at the highest learning rate,
            and the last round's at the lowest.
        warmup_steps: Of a round with ``restarts``, else of the whole run.
        schedule: After the warm-up: constant, or linear down to a tenth at the last step of the round, or of the run.
        weight_decay: Of AdamW.
        max_grad_norm: Gradients are clipped to this norm; a step without a finite norm is skipped and counted.
        threads: Of torch in optimisation; results are the same on every machine load only if it is fixed.
    """

    steps_per_round: int = Field(default=150, ge=1)
    restarts: bool = True
    tasks_per_step: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=4e-3, gt=0.0)
    warmup_steps: int = Field(default=20, ge=0)
    schedule: Literal["constant", "linear"] = "linear"
    weight_decay: float = Field(default=0.01, ge=0.0)
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    threads: int = Field(default=1, ge=1)


class ReinforceConfig(Strict):
    """REINFORCE on the same world, for comparison: what G-Designer and its family do.

    Attributes:
        steps: Optimiser steps.
        tasks_per_step: Tasks in a step.
        samples: Topologies sampled per task and step.
        replicates: Executions of each sample; its reward is the score of their raw success rate.
        baseline: What is taken off the reward: the mean of the task's other samples, or a running mean.
        momentum: Of the running mean.
        learning_rate: Of Adam.
        entropy_weight: Weight of the samples' surprisal, which keeps the generator from settling too early.
    """

    steps: int = Field(default=100, ge=1)
    tasks_per_step: int = Field(default=16, ge=1)
    samples: int = Field(default=4, ge=1)
    replicates: int = Field(default=1, ge=1)
    baseline: Literal["leave_one_out", "running_mean"] = "leave_one_out"
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    learning_rate: float = Field(default=2e-3, gt=0.0)
    entropy_weight: float = Field(default=0.0, ge=0.0)

    @model_validator(mode="after")
    def _others_exist(self) -> Self:
        if self.baseline == "leave_one_out" and self.samples < 2:
            raise ValueError(
                f"samples={self.samples} leaves no other sample for the baseline; set samples to 2 or more, or "
                "baseline to running_mean"
            )
        return self


class KgatCheckpointConfig(Strict):
    """Checkpoints; those at the end of a round are kept for selection, of the others the newest alone.

    Attributes:
        every: Optimiser steps between checkpoints within a round; the end of a round always has one.
        dev_replicates: Executions of each dev task's greedy topology; the mean raw score chooses the checkpoint.
    """

    every: int = Field(default=50, ge=1)
    dev_replicates: int = Field(default=4, ge=1)
