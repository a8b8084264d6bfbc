"""Our configuration in TRL's and PEFT's words: the arguments of ``GRPOConfig``, as of TRL 1.16, and ``LoraConfig``."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig

from provgym.trainers.papt_config import GenerationConfig, OptimConfig, PaptConfig


def grpo_arguments(config: PaptConfig, output_dir: Path) -> dict[str, Any]:
    """Return the arguments of TRL's ``GRPOConfig``.

    Args:
        config: The run.
        output_dir: Where checkpoints go.

    Raises:
        ValueError: If the step's trajectories do not divide among processes and micro-batches.
    """
    optim = config.optim
    micro_batch, accumulation = _micro_batches(optim)
    return {
        "output_dir": str(output_dir),
        "seed": config.seed,
        "max_steps": config.total_steps,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "num_generations": optim.group_size,
        "num_iterations": optim.epochs_per_rollout,
        "max_completion_length": config.generation.max_length,
        "learning_rate": optim.learning_rate,
        "lr_scheduler_type": optim.schedule,
        "warmup_steps": optim.warmup_steps,
        "weight_decay": optim.weight_decay,
        "max_grad_norm": optim.max_grad_norm,
        "temperature": optim.temperature,
        "beta": optim.kl_weight,
        "epsilon": optim.clip,
        "loss_type": optim.loss_type,
        "scale_rewards": optim.scale_advantages,
        "shuffle_dataset": False,
        "save_strategy": "steps",
        "save_steps": config.checkpoints.every,
        "save_total_limit": None,  # ours deletes by step number, and only once the newest is whole
        "save_only_model": False,
        "remove_unused_columns": False,
        "disable_dropout": True,
        **_QUIET,
        **_device_arguments(config),
        **_vllm_arguments(config.generation),
    }


_QUIET = {"logging_steps": 1, "report_to": [], "disable_tqdm": True, "log_completions": False}
"""Our own callbacks log and show progress."""


def _micro_batches(optim: OptimConfig) -> tuple[int, int]:
    """Return the rows of a micro-batch, and how many of them a process's share of a step has."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    trajectories = optim.group_size * optim.groups_per_step
    share, rest = divmod(trajectories, processes)
    micro_batch = min(optim.micro_batch, share)  # with more processes, a process's share may be smaller
    if rest or share % micro_batch:
        hint = f"micro_batch={math.gcd(share, micro_batch)}" if not rest else f"groups_per_step={processes}"
        raise ValueError(
            f"optim: group_size={optim.group_size} x groups_per_step={optim.groups_per_step} = {trajectories} "
            f"trajectories must split evenly over {processes} processes and micro_batch={optim.micro_batch}; try {hint}"
        )
    if share % optim.judgements_per_walk:
        raise ValueError(
            f"optim: a process's share of {share} trajectories must be a multiple of judgements_per_walk="
            f"{optim.judgements_per_walk}, so that a walk and its judgements are on one process; try fewer "
            f"processes than {processes}, or a larger groups_per_step"
        )
    return micro_batch, share // micro_batch


def _device_arguments(config: PaptConfig) -> dict[str, Any]:
    on_gpu = torch.cuda.is_available()
    return {
        "bf16": on_gpu and config.model.dtype != "float32" and torch.cuda.is_bf16_supported(),
        "use_cpu": not on_gpu,
        "gradient_checkpointing": on_gpu,
        "dataloader_pin_memory": on_gpu,
    }


def _vllm_arguments(generation: GenerationConfig) -> dict[str, Any]:
    if generation.engine != "vllm":
        return {}
    return {
        "use_vllm": True,
        "vllm_mode": generation.vllm_mode,
        "vllm_gpu_memory_utilization": generation.vllm_gpu_memory,
        "vllm_importance_sampling_mode": "token_truncate",  # the sequence mask drops long episodes
    }


def lora_config(config: PaptConfig) -> LoraConfig | None:
    """Return PEFT's settings of a new adapter; None to train all weights, or an adapter that the model brings."""
    lora = config.lora
    if lora is None or config.model.adapter is not None:
        return None
    targets = lora.target_modules
    return LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
