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
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from provgym.generators.rollout import Fork
from provgym.rewards.advantages import group_advantages
from provgym.rewards.shared_states import partner_share
from provgym.trainers.judgement_forks import play_groups
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.prefix_sharing import PrefixSharing
from provgym.trainers.split_credit import JUDGEMENT_TERMS, decision_tokens, split_advantages, split_token_advantages
from provgym.trainers.step_credit import action_advantages, episode_states, episode_step_rewards, token_advantages
from provgym.trainers.step_record import RunStopped, StepRecord, check_step, record_episode, row_tokens
from provgym.trainers.training_rows import TrainingRows
from provgym.trainers.trl_arguments import grpo_arguments

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from trl import GRPOConfig, GRPOTrainer  # noqa: E402 - the variable above must be set first

Play = Callable[[PreTrainedModel, Sequence[EpisodeTask]], list[Episode]]
JudgeAgain = Callable[[PreTrainedModel, Sequence[Fork]], list[Episode]]

_SCALE_EPSILON = 1e-4
"""Added to the standard deviation of advantages, as TRL does."""

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
        judge_again: Samples further judgements of walks with it; needed for ``optim.judgements_per_walk`` > 1.
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
        judge_again: JudgeAgain | None = None,
        callbacks: Sequence[TrainerCallback] = (),
    ) -> None:
        if lora is None and not any(p.requires_grad for p in model.parameters()):
            raise ValueError("the model has no trainable parameter; set lora, or leave its weights unfrozen")
        self._papt, self._training_rows, self._play = config, rows, play
        if judge_again is None and config.optim.judgements_per_walk > 1:
            raise ValueError("optim.judgements_per_walk > 1 needs judge_again: who samples further judgements")
        self._judge_again: Any = judge_again
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
        self._sharing = PrefixSharing(self.accelerator.unwrap_model(self.model), config.optim.shared_prefix)

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
            played = play_groups(
                tasks,
                self._papt.optim.judgements_per_walk,
                lambda chosen: self._play(model, chosen),
                lambda forks: self._judge_again(model, forks),
                lambda episode: decision_tokens(episode, self._tokenizer),
            )
        finally:
            model.train(was_training)
        seconds, episodes = time.perf_counter() - started, played.episodes
        self.last_step = StepRecord(rows=rows, episodes=episodes, is_fork=played.is_fork, rollout_s=seconds)
        tokens = [row_tokens(episode, tokenizer_eos=self._tokenizer.eos_token_id) for episode in episodes]
        return {
            "prompt_ids": [list(t[0]) for t in tokens],
            "completion_ids": [list(t[1]) for t in tokens],
            "env_mask": [list(t[2]) for t in tokens],
            "logprobs": [list(t[3]) for t in tokens],
        }

    def _reward(self, prompts: list[str], **_: Any) -> list[float | None]:
        """Score the episodes just played; None = not scored."""
        step = self.last_step
        credit = self._papt.optim.credit
        local = []
        for row, episode, is_fork in zip(step.rows, step.episodes, step.is_fork, strict=True):
            number = self._training_rows.step_of(row)
            rubric, shaping = self._papt.rubric_of_step(number), self._papt.phase_of_step(number).shaping
            score = rubric.score(episode.outcome)
            if credit == "trajectory" or not score.is_scored:
                local.append(record_episode(episode, score, is_fork=is_fork))
                continue
            states = episode_states(episode) if credit == "group_step" else ()
            walked = rubric.without(JUDGEMENT_TERMS) if credit == "split" else rubric
            earned = episode_step_rewards(episode, walked, shaping).tolist()
            judged = score.total - walked.score(episode.outcome).total
            local.append(record_episode(episode, score, earned, states, judged, is_fork=is_fork))
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
            scale=self._papt.optim.scale_advantages,
            epsilon=_SCALE_EPSILON,
        )
        step.zero_spread_groups = result.zero_spread_groups
        start = self.accelerator.process_index * len(inputs)
        own = slice(start, start + len(inputs))
        local = result.values[own]
        if self._papt.optim.credit != "trajectory":
            local = self._action_advantages(result.values, own, output["completion_ids"].shape[1])
        device = output["prompt_ids"].device
        output["advantages"] = torch.tensor(local, dtype=torch.float32, device=device)  # (B,) or (B, T)
        output["row_weight"] = torch.tensor(step.row_weight, device=device)
        self._micro_batches = self._sharing.micro_batches(output, self._grpo_args.steps_per_generation)
        return output

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """Return the next micro-batch: TRL's rows, together by length or by prompt instead of shuffled."""
        inputs: dict[str, Any] = super()._prepare_inputs(generation_batch)
        model: Any = self.model
        if not model.training:
            return inputs
        number: int = self._step % self._grpo_args.steps_per_generation
        if number == 0:
            self.last_step.epoch = self._step // self._grpo_args.steps_per_generation % self.num_iterations
            self.last_step.is_skipped = False
        return dict(self._micro_batches[number])  # a roll-out may be used again: what the loss bounds is bounded anew

    def _action_advantages(self, trajectory: NDArray[np.float64], own: slice, width: int) -> NDArray[np.float64]:
        """Return the advantages of this process's tokens, (B, T), and note how many actions have a partner."""
        step, optim = self.last_step, self._papt.optim
        if optim.credit == "split":
            walking, judging = split_advantages(step.records, optim, epsilon=_SCALE_EPSILON)
            decisions = [
                decision_tokens(episode, self._tokenizer, is_fork=is_fork)
                for episode, is_fork in zip(step.episodes, step.is_fork, strict=True)
            ]
            return split_token_advantages(step.episodes, walking[own], judging[own], decisions, width)
        found = action_advantages(step.records, trajectory, optim, epsilon=_SCALE_EPSILON)
        if optim.credit == "group_step":
            step.step_partner_share = partner_share([r.states for r in step.records], optim.group_size)
        return token_advantages(step.episodes, found[own], width)

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
        found: tuple[Tensor, Tensor | None, Any]
        inputs = self._loss_inputs
        if inputs is not None and self._sharing.is_shared(inputs):
            model: nn.Module = kwargs["model"] if "model" in kwargs else args[0]
            with self.accelerator.autocast():
                found = (*self._sharing.logprobs(model, inputs), None)
        else:
            found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if inputs is not None:
            self._look_at_logprobs(found[0].detach(), inputs)
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
        # Used again, a roll-out is that of an older policy: then the clip bounds the ratio, and a gap is no fault.
        if gap > MAX_SAMPLING_GAP and self.last_step.epoch == 0:
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


@contextmanager
def without_trl_deprecations() -> Iterator[None]:
    """Leave out transformers' warnings of arguments that TRL itself passes on: no user can do anything about them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*gradient_checkpointing.* is deprecated", category=FutureWarning)
        yield


def grpo_config(config: PaptConfig, output_dir: Path) -> GRPOConfig:
    """Translate our configuration into TRL's; see :func:`provgym.trainers.trl_arguments.grpo_arguments`."""
    return GRPOConfig(**grpo_arguments(config, output_dir))
