"""All contact with TRL: GRPOTrainer fed by our roll-out and our advantages.

TRL 1.16 calls ``rollout_func(prompts, trainer)`` with this process's slice of prompts (each repeated ``group_size``
times) and expects prompt ids, completion ids, log-probabilities and ``env_mask``. The prompt of a row is its row
number. TRL's own advantages are replaced by :func:`provgym.rewards.advantages.group_advantages`, which is exact for
equal, missing and non-finite rewards.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from datasets import Dataset
from numpy.typing import NDArray
from peft import LoraConfig
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback

from provgym.generators.episode import Episode, EpisodeTask
from provgym.rewards.advantages import group_advantages
from provgym.rewards.credit import step_advantages
from provgym.rewards.outcome import Ending
from provgym.trainers.micro_batches import split_by_length
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.step_credit import episode_step_rewards, spread_over_tokens
from provgym.trainers.step_record import RunStopped, StepRecord, check_step, record_episode
from provgym.trainers.training_rows import TrainingRows

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from trl import GRPOConfig, GRPOTrainer  # noqa: E402 - the variable above must be set first

Play = Callable[[PreTrainedModel, Sequence[EpisodeTask]], list[Episode]]


MAX_LOG_RATIO = 10.0
"""Largest log-ratio of reference to policy that the KL term sees (ours): exp of more overflows, even under a mask."""

MAX_SAMPLING_GAP = 0.1
"""Largest mean difference, in nats a token, between sampled log-probabilities and the trainer's (ours)."""


class PaptTrainer(GRPOTrainer):
    """GRPO whose roll-out walks evidence graphs.

    Some of TRL's and transformers' own methods are overridden; ``Any`` stands where those lack types.

    Args:
        config: The run.
        model: A causal LM.
        tokenizer: Its tokenizer.
        rows: The run's groups.
        play: Plays tasks with the model as it is now; returns episodes in order, with tokens.
        lora: Adapter settings, or None to train all weights (or an adapter the model already has).
        callbacks: Further callbacks.

    Raises:
        ValueError: If no weight of the model is trainable.
    """

    def __init__(
        self,
        config: PaptConfig,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        rows: TrainingRows,
        play: Play,
        *,
        lora: LoraConfig | None,
        output_dir: Path,
        callbacks: Sequence[TrainerCallback] = (),
    ) -> None:
        if lora is None and not any(p.requires_grad for p in model.parameters()):
            raise ValueError("the model has no trainable parameter; set lora, or leave its weights unfrozen")
        self._papt, self._training_rows, self._play = config, rows, play
        self._loss_inputs: dict[str, Any] | None = None
        self._micro_batches: list[dict[str, Any]] = []
        self._grpo_args: Any = grpo_config(config, output_dir)
        self.last_step = StepRecord()
        super().__init__(
            model=model,
            reward_funcs=self._reward,
            args=self._grpo_args,
            train_dataset=Dataset.from_dict({"prompt": [str(row) for row in range(len(rows))]}),
            processing_class=tokenizer,
            rollout_func=self._rollout,
            peft_config=lora,
            callbacks=list(callbacks),
        )

    def _rollout(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """Play this process's slice of the step's groups."""
        group_size = self._papt.optim.group_size
        first = self.accelerator.process_index * len(prompts)
        rows = [int(prompt) for prompt in prompts]
        tasks = [self._training_rows.task(row, (first + i) % group_size) for i, row in enumerate(rows)]
        model = self.accelerator.unwrap_model(self.model)
        started = time.perf_counter()
        was_training = model.training
        model.eval()  # gradient checkpointing would switch the cache off in training mode
        try:
            episodes = self._play(model, tasks)
        finally:
            model.train(was_training)
        self.last_step = StepRecord(rows=rows, episodes=episodes, rollout_s=time.perf_counter() - started)
        tokens = [_tokens_of(episode, tokenizer_eos=self._tokenizer.eos_token_id) for episode in episodes]
        return {
            "prompt_ids": [list(t[0]) for t in tokens],
            "completion_ids": [list(t[1]) for t in tokens],
            "env_mask": [list(t[2]) for t in tokens],
            "logprobs": [list(t[3]) for t in tokens],
        }

    def _reward(self, prompts: list[str], **_: Any) -> list[float | None]:
        """Score the episodes just played; None = not scored."""
        step = self.last_step
        by_step = self._papt.optim.credit == "step"
        local = []
        for row, episode in zip(step.rows, step.episodes, strict=True):
            rubric = self._papt.phase_of_step(self._training_rows.step_of(row)).rubric()
            score = rubric.score(episode.outcome)
            earned = episode_step_rewards(episode, rubric).tolist() if by_step and score.is_scored else ()
            local.append(record_episode(episode, score, earned))
        step.records = gather_object(local)
        check_step(
            self.state.global_step + 1,
            step.records,
            max_length=self._papt.generation.max_length,
            warns=self.accelerator.is_main_process,
        )
        return [None if math.isnan(record.total) else record.total for record in local]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        step = self.last_step
        result = group_advantages(
            step.totals,
            self._papt.optim.group_size,
            scale_by_std=self._papt.optim.scale_advantages,
            epsilon=1e-4,
        )
        step.zero_spread_groups = result.zero_spread_groups
        start = self.accelerator.process_index * len(inputs)
        local = result.values[start : start + len(inputs)]
        if self._papt.optim.credit == "step":
            local = self._step_advantages(slice(start, start + len(inputs)), output["completion_ids"].shape[1])
        device = output["prompt_ids"].device
        output["advantages"] = torch.tensor(local, dtype=torch.float32, device=device)  # (B,) or (B, T)
        output["row_weight"] = torch.tensor(step.row_weight, device=device)
        self._micro_batches = split_by_length(output, self._grpo_args.steps_per_generation)
        return output

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """Return the next micro-batch: TRL's rows, ordered by length instead of shuffled."""
        inputs: dict[str, Any] = super()._prepare_inputs(generation_batch)
        model: Any = self.model
        if not model.training:
            return inputs
        number: int = self._step % self._grpo_args.steps_per_generation
        return self._micro_batches[number]

    def _step_advantages(self, own: slice, width: int) -> NDArray[np.float64]:
        """Return the advantages of this process's tokens, (B, T)."""
        step, optim = self.last_step, self._papt.optim
        earned = [None if math.isnan(r.total) else np.array(r.step_rewards) for r in step.records]
        found = step_advantages(earned, optim.group_size, scale_by_std=optim.scale_advantages, epsilon=1e-4)
        rows = [
            np.zeros(width) if e.tokens is None or not len(a) else spread_over_tokens(e.tokens.mask, a, width)
            for e, a in zip(step.episodes, found[own], strict=True)
        ]
        return np.stack(rows)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """Return TRL's loss of a micro-batch, such that what is left out doesn't count in its normaliser.

        ``dapo`` divides by the trained tokens of the whole step. ``grpo`` and ``dr_grpo`` divide by rows: without the
        weight, a row whose every token is masked would shrink the others.
        """
        self._loss_inputs = inputs
        try:
            loss: Tensor = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        finally:
            self._loss_inputs = None
        return loss * inputs["row_weight"] if self.loss_type in ("grpo", "dr_grpo") else loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None, Any]:
        found: tuple[Tensor, Tensor | None, Any] = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._loss_inputs is not None:
            self._look_at_logprobs(found[0].detach(), self._loss_inputs)
        return found

    def _look_at_logprobs(self, logprobs: Tensor, inputs: dict[str, Any]) -> None:
        """Bound the reference against the policy's log-probabilities, (B, T), and compare these with the sampled ones.

        Raises:
            RunStopped: If the policy that sampled is not the one that is trained.
        """
        if "ref_per_token_logps" in inputs:
            # Masked tokens too: TRL multiplies by the mask after exp, and inf times 0 is NaN.
            inputs["ref_per_token_logps"] = torch.minimum(inputs["ref_per_token_logps"], logprobs + MAX_LOG_RATIO)
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        # vLLM may lack some; these are not compared.
        differences = (logprobs - inputs["sampling_per_token_logps"]).abs().nan_to_num(0.0)  # (B, T)
        gap = (differences * mask).sum() / mask.sum().clamp(min=1)
        self._metrics["train"]["sampling_gap"].append(gap.item())
        if gap > MAX_SAMPLING_GAP:
            raise RunStopped(
                f"step {self.state.global_step + 1}: the log-probabilities of the sampled tokens differ from the "
                f"trainer's by {gap.item():.3f} nats a token, at most {MAX_SAMPLING_GAP} is expected: the engine does "
                "not sample from the weights that are trained (an adapter that never reached it, or another "
                "temperature or precision)"
            )

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Clip; a gradient whose norm is not finite is dropped, so that the optimiser changes nothing in this step."""
        base: Any = super()
        norm = base._clip_grad_norm(model)
        if isinstance(norm, Tensor) and not bool(torch.isfinite(norm)):
            for parameter in model.parameters():
                parameter.grad = None
            self.last_step.is_skipped = True
        return norm

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        base: Any = super()
        try:
            base._save_checkpoint(model, trial)
        except (OSError, RuntimeError, SafetensorError) as error:  # of a full disk, each library in its own way
            raise OSError(
                f"checkpoint {self.state.global_step} could not be written to {self.args.output_dir}: {error}; free "
                "space there, then give the same command again: it goes on from the checkpoint before"
            ) from error


def _tokens_of(
    episode: Episode, *, tokenizer_eos: int
) -> tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[float]]:
    """Return prompt, completion, mask and log-probabilities.

    An episode that ended in ``error`` is masked throughout: its tokens must count neither in the loss nor in what the
    loss is divided by. One that failed before its first token gets one masked end token: TRL needs a completion.
    """
    tokens = episode.tokens
    if tokens is None:
        raise ValueError(f"episode of {episode.instance_id!r} has no token ids; a scripted policy cannot be trained")
    if not tokens.completion_ids:
        return tokens.prompt_ids, (tokenizer_eos,), (0,), (0.0,)
    is_scored = episode.outcome.ending is not Ending.ERROR
    mask = tokens.mask if is_scored else (0,) * len(tokens.mask)
    return tokens.prompt_ids, tokens.completion_ids, mask, tokens.logprobs


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


def grpo_config(config: PaptConfig, output_dir: Path) -> GRPOConfig:
    """Translate our configuration into TRL's.

    Raises:
        ValueError: If the step's trajectories do not divide among processes and micro-batches.
    """
    optim, generation = config.optim, config.generation
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
    on_gpu = torch.cuda.is_available()
    bf16 = on_gpu and config.model.dtype != "float32" and torch.cuda.is_bf16_supported()
    vllm: dict[str, Any] = {}
    if generation.engine == "vllm":
        vllm = {
            "use_vllm": True,
            "vllm_mode": generation.vllm_mode,
            "vllm_gpu_memory_utilization": generation.vllm_gpu_memory,
            "vllm_importance_sampling_mode": "token_truncate",  # the sequence mask drops long episodes
        }
    return GRPOConfig(
        output_dir=str(output_dir),
        seed=config.seed,
        max_steps=config.total_steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=share // micro_batch,
        num_generations=optim.group_size,
        max_completion_length=generation.max_length,
        learning_rate=optim.learning_rate,
        lr_scheduler_type=optim.schedule,
        warmup_steps=optim.warmup_steps,
        weight_decay=optim.weight_decay,
        max_grad_norm=optim.max_grad_norm,
        temperature=optim.temperature,
        beta=optim.kl_weight,
        epsilon=optim.clip,
        loss_type=optim.loss_type,
        scale_rewards="group" if optim.scale_advantages else "none",
        shuffle_dataset=False,
        logging_steps=1,
        save_strategy="steps",
        save_steps=config.checkpoints.every,
        save_total_limit=None,  # ours deletes by step number, and only once the newest is whole
        save_only_model=False,
        report_to=[],
        bf16=bf16,
        use_cpu=not on_gpu,
        gradient_checkpointing=on_gpu,
        disable_tqdm=True,
        remove_unused_columns=False,
        log_completions=False,
        dataloader_pin_memory=on_gpu,
        disable_dropout=True,
        **vllm,
    )
