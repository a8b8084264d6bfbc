"""A roll-out used for several optimiser steps: how often is played, what enters the loss, exact resume."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import PreTrainedModel, TrainerCallback

from provgym.generators.engine import Sampling
from provgym.generators.episode import Episode, EpisodeTask
from provgym.generators.hf_engine import HFEngine
from provgym.generators.rollout import LanguageModelPolicy
from provgym.trainers.callbacks import step_figures
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.policy_loading import load_trainable
from provgym.trainers.step_record import RunStopped
from provgym.trainers.training_rows import TrainingRows, load_pool

MakeConfig = Callable[..., PaptConfig]
MakeTrainer = Callable[..., Any]


def reused(make_config: MakeConfig, **overrides: Any) -> PaptConfig:
    """Four steps on two roll-outs, with steps so large that the policy moves."""
    given: dict[str, Any] = {
        "optim__epochs_per_rollout": 2,
        "optim__learning_rate": 0.02,
        "optim__credit": "group_step",
    }
    return make_config(**given | overrides)


def counting_play(config: PaptConfig, seen: list[list[str]]) -> Callable[..., list[Episode]]:
    """The roll-out that training uses; it notes what it plays."""
    dialogue = load_trainable(config.model).dialogue

    def play(model: PreTrainedModel, tasks: Sequence[EpisodeTask]) -> list[Episode]:
        seen.append([task.instance.instance_id for task in tasks[::4]])
        engine = HFEngine(model, max_rows=16, max_length=config.generation.max_length)
        return LanguageModelPolicy("t", engine, dialogue, Sampling(config.optim.temperature)).play(tasks)

    return play


class Figures(TrainerCallback):
    """Keeps what each step logged, and whether it was skipped."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.logs: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if "loss" in kwargs["logs"]:
            self.logs.append(dict(kwargs["logs"]))
            self.steps.append(step_figures(self.trainer.last_step))


def test_each_rollout_is_used_for_as_many_steps_as_asked(make_config: MakeConfig, make_trainer: MakeTrainer) -> None:
    """Two steps a roll-out: the second is off-policy, its gap to the sampling policy is no fault, and is logged."""
    config = reused(make_config)
    assert (config.total_steps, config.total_rollouts) == (4, 2)
    rows = TrainingRows(config, load_pool(config.data))
    assert [rows.step_of(row) for row in range(len(rows))] == [0, 0, 2, 2]
    seen: list[list[str]] = []
    figures = Figures()
    trainer = make_trainer(config, play=counting_play(config, seen), callbacks=[figures])
    figures.trainer = trainer
    trainer.train()
    assert seen == [[rows.instance(row).instance_id for row in pair] for pair in ((0, 1), (2, 3))]
    assert [step["rollout/epoch"] for step in figures.steps] == [0, 1, 0, 1]
    gaps = [log["sampling_gap"] for log in figures.logs]
    assert max(gaps[0], gaps[2]) < 1e-4, "a fresh roll-out is the policy's own"
    assert min(gaps[1], gaps[3]) > 1e-3, "the policy has moved by then"
    assert [log["clip_ratio/region_mean"] > 0 for log in figures.logs] == [False, True, False, True]


def test_the_second_use_is_clipped_against_the_policy_that_sampled(
    make_config: MakeConfig, make_trainer: MakeTrainer
) -> None:
    """An independent route: the clipped objective written out with the log-probabilities that were sampled."""
    config = reused(make_config, phases=[{"steps": 2}], optim__micro_batch=4, optim__credit="step")
    expected: list[float] = []

    class Watch(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                expected.append(written_out_loss(trainer, kwargs["model"]))

    figures = Figures()
    trainer = make_trainer(config, callbacks=[Watch(), figures])
    figures.trainer = trainer
    trainer.train()
    assert figures.logs[1]["loss"] == pytest.approx(expected[0], abs=2e-4)
    assert abs(expected[0]) > 1e-3


def written_out_loss(trainer: Any, model: Any) -> float:
    """Return the token mean of -min(ratio A, clipped ratio A) over the roll-out, row by row and without padding."""
    total, count = 0.0, 0
    rows = {tuple(e.tokens.completion_ids): e.tokens for e in trainer.last_step.episodes}
    for part in trainer._micro_batches:
        for ids, mask, advantages in zip(
            part["completion_ids"], part["completion_mask"], part["advantages"], strict=True
        ):
            tokens = rows[tuple(ids[mask.bool()].tolist())]
            whole = torch.tensor([[*tokens.prompt_ids, *tokens.completion_ids]])
            first = len(tokens.prompt_ids)
            with torch.no_grad():
                logprobs = model(input_ids=whole).logits[0].log_softmax(-1)
            for place, (is_sampled, old) in enumerate(zip(tokens.mask, tokens.logprobs, strict=True)):
                if is_sampled:
                    now = float(logprobs[first + place - 1, whole[0, first + place]])
                    ratio, advantage = math.exp(now - old), float(advantages[place])
                    total -= min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
                    count += 1
    return total / count


def test_resume_is_exact_between_rollouts(make_config: MakeConfig, make_trainer: MakeTrainer) -> None:
    """Kind: resume makes a new run: from the checkpoint after the first roll-out to the very same weights."""
    config = reused(make_config)
    seen: list[list[str]] = []
    whole = make_trainer(config, play=counting_play(config, seen))
    whole.train()
    resumed_seen: list[list[str]] = []
    resumed = make_trainer(config, play=counting_play(config, resumed_seen))
    resumed.train(resume_from_checkpoint=str(Path(whole.args.output_dir) / "checkpoint-2"))
    assert resumed_seen == seen[1:]
    pairs = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)


def test_one_curve_for_any_micro_batch(make_config: MakeConfig, make_trainer: MakeTrainer) -> None:
    """Kind: gradient accumulation: 1 x 8 and 4 x 2 rows give the same losses over both uses of a roll-out."""
    curves = []
    for micro_batch in (8, 2):
        config = reused(make_config, optim__micro_batch=micro_batch, optim__learning_rate=3e-3, phases=[{"steps": 2}])
        figures = Figures()
        trainer = make_trainer(config, callbacks=[figures])
        figures.trainer = trainer
        trainer.train()
        curves.append([log["loss"] for log in figures.logs])
    assert curves[0] == pytest.approx(curves[1], rel=1e-3, abs=2e-4)


def test_a_skipped_step_does_not_mark_the_next(make_config: MakeConfig, make_trainer: MakeTrainer) -> None:
    """Kind: exp overflow in KL: a step without finite gradient is counted once, though its roll-out is used again."""
    config = reused(make_config, phases=[{"steps": 2}])
    figures = Figures()
    trainer = make_trainer(config, callbacks=[figures])
    figures.trainer = trainer
    plain = trainer.compute_loss

    def broken(*args: Any, **kwargs: Any) -> torch.Tensor:
        loss: torch.Tensor = plain(*args, **kwargs)
        return loss * math.nan if trainer.state.global_step == 0 else loss

    trainer.compute_loss = broken
    trainer.train()
    assert [step["train/skipped_steps"] for step in figures.steps] == [1, 0]


def test_engine_with_other_weights_still_stops_the_run(make_config: MakeConfig, make_trainer: MakeTrainer) -> None:
    """Kind: adapter never reaches the engine: noticed on the first use of a roll-out, where a gap is a fault."""
    config = reused(make_config, optim__learning_rate=0.1, phases=[{"steps": 6}])
    stale = load_trainable(config.model).model
    play = counting_play(config, [])
    trainer = make_trainer(config, play=lambda model, tasks: play(stale, tasks))
    with pytest.raises(RunStopped, match=r"step (3|5): .*does not sample from the weights that are trained"):
        trainer.train()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"phases": [{"steps": 4}, {"steps": 3}]}, r"phases.1.steps=3 must be a multiple of .*=2; try 2"),
        ({"phases": [{"steps": 1}, {"steps": 3}]}, r"phases.0.steps=1 must be a multiple of .*=2; try 2"),
        ({"checkpoints": {"every": 3}}, r"checkpoints.every=3 must be a multiple of .*=2; try 2"),
        ({"optim__epochs_per_rollout": 0}, "greater than or equal to 1"),
    ],
)
def test_parts_of_rollouts_are_refused(make_config: MakeConfig, overrides: dict[str, Any], said: str) -> None:
    """Kind: resume makes a new run: a checkpoint amid a roll-out could not be resumed exactly, so there is none."""
    with pytest.raises(ValidationError, match=said):
        reused(make_config, **overrides)
