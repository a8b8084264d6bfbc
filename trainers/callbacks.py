"""What happens around training steps: checks, logging, progress, and marking checkpoints whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from provgym.eval.metrics import mean_of_finite
from provgym.trainers.checkpoints import Origin, mark_complete, prune_checkpoints
from provgym.trainers.step_record import RunStopped, StepRecord
from provgym.trainers.tracking import Tracker

STEPS_UNTIL_CHANGE = 5
"""A trainable weight must have changed after this many steps that had something to teach."""


class StepGuard(TrainerCallback):
    """Stops a run whose weights do not move."""

    def __init__(self, record: Callable[[], StepRecord], group_size: int) -> None:
        self._record, self._group_size = record, group_size
        self._start: list[torch.Tensor] | None = None
        self._teaching_steps = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Remember where the trainable weights start."""
        self._start = [p.detach().clone() for p in kwargs["model"].parameters() if p.requires_grad]

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop the run if nothing has changed after several steps that had a gradient."""
        if self._start is None:
            return
        record = self._record()
        groups = len(record.records) // self._group_size
        self._teaching_steps += record.zero_spread_groups < groups and not record.is_skipped
        if self._teaching_steps < STEPS_UNTIL_CHANGE:
            return
        now = [p for p in kwargs["model"].parameters() if p.requires_grad]
        if all(torch.equal(a, b.detach()) for a, b in zip(self._start, now, strict=True)):
            raise RunStopped(
                f"no trainable weight changed in {self._teaching_steps} steps that had something to learn; check "
                "lora.target_modules and optim.learning_rate"
            )
        self._start = None


class Recorder(TrainerCallback):
    """Logs every step's figures and now and then whole episodes; shows progress."""

    def __init__(
        self,
        tracker: Tracker,
        record: Callable[[], StepRecord],
        *,
        group_size: int,
        episodes_every: int,
        shows: bool,
    ) -> None:
        self._tracker, self._record, self._group_size = tracker, record, group_size
        self._episodes_every, self._shows = episodes_every, shows
        self._bar: tqdm[Any] | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin the progress bar."""
        if self._shows:
            self._bar = tqdm(total=state.max_steps, initial=state.global_step, desc="papt", unit="step", mininterval=2)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log what the trainer and the roll-out of this step came to."""
        logs: Mapping[str, Any] = kwargs["logs"]
        if "loss" not in logs:
            return
        record = self._record()
        values: dict[str, float | int | None] = {
            f"train/{k}": v for k, v in logs.items() if isinstance(v, int | float) and k != "epoch"
        }
        values |= step_figures(record)
        self._tracker.log(state.global_step, values, instances=record.instances(self._group_size))
        if state.global_step % self._episodes_every == 0:
            # This process is the first one, so its records come first.
            own = zip(record.episodes, record.records[: len(record.episodes)], strict=True)
            shown = [(episode, found) for episode, found in own if found.taken_over is None][:8]
            rewards = [found.facts["reward"] for _, found in shown]
            self._tracker.log_episodes(state.global_step, [episode for episode, _ in shown], rewards)
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)
            keys = ("reward", "accuracy", "echo_rate", "source_recall")
            known = {k: values.get(f"rollout/{k}") for k in keys}
            self._bar.set_postfix({k: f"{v:.2f}" for k, v in known.items() if v is not None})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the progress bar."""
        if self._bar is not None:
            self._bar.close()


class CheckpointMarker(TrainerCallback):
    """Marks a checkpoint whole once everything in it is written, then deletes those that are no longer kept."""

    def __init__(self, folder: Path, origin: Origin, *, keep: int, is_main: bool) -> None:
        self._folder, self._origin, self._keep, self._is_main = folder, origin, keep, is_main

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write the marker; other processes have written their random state by now."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.barrier()
        if self._is_main:
            mark_complete(self._folder / f"checkpoint-{state.global_step}", state.global_step, self._origin)
            prune_checkpoints(self._folder, self._keep)


def step_figures(record: StepRecord) -> dict[str, float | int | None]:
    """Average the facts of a step's whole episodes; a figure without a scored episode is None, never 0.

    Where walks are judged again, the further judgements are counted, and in no average: they would weigh a walk by how
    often it was judged.
    """
    facts_of_whole = [found.facts for found in record.whole]
    figures: dict[str, float | int | None] = {}
    for name in dict.fromkeys(name for facts in facts_of_whole for name in facts):
        mean, count = mean_of_finite([facts.get(name, math.nan) for facts in facts_of_whole])
        figures[f"rollout/{name}"] = mean if count else None
    figures["rollout/episodes"] = len(facts_of_whole)
    figures["rollout/forks"] = len(record.records) - len(facts_of_whole)
    figures["rollout/unscored"] = int(sum(math.isnan(t) for t in record.totals))
    figures["rollout/zero_spread_groups"] = record.zero_spread_groups
    if record.step_partner_share is not None:
        figures["rollout/step_partner_share"] = record.step_partner_share
    figures["rollout/epoch"] = record.epoch
    figures["train/skipped_steps"] = int(record.is_skipped)
    figures["time/rollout_s"] = record.rollout_s
    return figures
