"""Training with shared prefixes: when, in which micro-batches, and that the step is the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from provgym.generators.episode import Episode
from provgym.rewards.outcome import Ending
from provgym.trainers.papt_config import PaptConfig, SharingMode
from provgym.trainers.policy_loading import load_trainable
from provgym.trainers.prefix_sharing import SMALLEST_SAVING, PrefixSharing, saving

MakeConfig = Callable[..., PaptConfig]
MakeTrainer = Callable[..., Any]
MakeBatch = Callable[..., dict[str, Any]]


def gradient_of(model: Any) -> Tensor:
    """Return all gradients as one vector."""
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone()


def step_of(
    make_config: MakeConfig, make_trainer: MakeTrainer, make_batch: MakeBatch, *, micro_batch: int = 8, **options: Any
) -> tuple[float, Tensor, Any]:
    """Play one step and return its summed loss, its gradient and its trainer."""
    config = make_config(optim__micro_batch=micro_batch, **options)
    trainer = make_trainer(config)
    make_batch(trainer, config)
    losses = []
    for part in trainer._micro_batches:
        loss = trainer.compute_loss(trainer.model, part)
        loss.backward()
        losses.append(loss.item())
    return sum(losses), gradient_of(trainer.model), trainer


def with_optim(make_config: MakeConfig, **settings: Any) -> MakeConfig:
    """Return a builder whose configurations have these settings of ``optim`` beside its own."""

    def make(**overrides: Any) -> PaptConfig:
        config = make_config(**overrides)
        return config.model_copy(update={"optim": config.optim.model_copy(update=settings)})

    return make


@pytest.mark.parametrize(
    ("settings", "lora"),
    [
        ({"loss_type": "grpo", "credit": "step"}, None),
        ({"loss_type": "dr_grpo", "kl_weight": 0.1}, {"r": 4, "alpha": 8}),
        ({"loss_type": "dapo", "temperature": 0.6}, None),
    ],
    ids=["grpo-step", "kl-lora", "dapo-temperature"],
)
def test_the_step_is_that_of_separate_rows(
    make_config: MakeConfig,
    make_trainer: MakeTrainer,
    make_batch: MakeBatch,
    settings: dict[str, Any],
    lora: dict[str, int] | None,
) -> None:
    """Kinds: temperature in the ratio (the sampling gap is looked at here too), gradient accumulation."""
    steps = []
    for mode, micro_batch in (("off", 8), ("on", 8), ("on", 2)):
        made = with_optim(make_config, **settings, shared_prefix=mode)
        loss, gradient, trainer = step_of(made, make_trainer, make_batch, micro_batch=micro_batch, lora=lora)
        assert all(trainer._sharing.is_shared(part) == (mode == "on") for part in trainer._micro_batches)
        assert max(trainer._metrics["train"]["sampling_gap"]) < 1e-3
        steps.append((loss, gradient))
    for loss, gradient in steps[1:]:
        assert loss == pytest.approx(steps[0][0], abs=2e-6)
        scale = float(steps[0][1].abs().max())
        assert scale > 0
        torch.testing.assert_close(gradient, steps[0][1], atol=2e-4 * scale, rtol=1e-3)


def test_neighbours_stay_together(make_config: MakeConfig, make_trainer: MakeTrainer, make_batch: MakeBatch) -> None:
    """Each micro-batch of a shared step holds one group here, whose prompt stands once in its layout."""
    config = make_config(optim__micro_batch=4)
    config = config.model_copy(update={"optim": config.optim.model_copy(update={"shared_prefix": "on"})})
    trainer = make_trainer(config)
    make_batch(trainer, config)
    assert len(trainer._micro_batches) == 2
    for part in trainer._micro_batches:
        assert bool((part["prompt_ids"] == part["prompt_ids"][0]).all())
        prompt = int(part["prompt_mask"][0].sum())
        completions = int(part["completion_mask"].sum())
        assert part["packed_rows"].num_tokens <= prompt + completions - 4


def test_errors_are_left_out(make_config: MakeConfig, make_trainer: MakeTrainer, make_batch: MakeBatch) -> None:
    """Kind: masked roll-outs in the normaliser: an episode that ended in error costs and changes nothing."""
    losses = []
    for mode in ("off", "on"):
        config = make_config()
        config = config.model_copy(update={"optim": config.optim.model_copy(update={"shared_prefix": mode})})
        trainer = make_trainer(config)
        play = trainer._play

        def fail_one(model: Any, tasks: Sequence[Any], play: Any = play) -> list[Episode]:
            first, *rest = play(model, tasks)
            gone = replace(first.outcome, ending=Ending.ERROR, judgement=None)
            return [replace(first, outcome=gone, error="the server went away"), *rest]

        trainer._play = fail_one
        with pytest.warns(UserWarning, match="1 of 8 episodes ended in error"):
            make_batch(trainer, config)
        losses.append(sum(trainer.compute_loss(trainer.model, part).item() for part in trainer._micro_batches))
        if mode == "on":
            assert 0 not in torch.cat([part["packed_rows"].rows for part in trainer._micro_batches]).tolist()
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)


def test_old_logprobs_of_untrained_tokens_do_no_harm(
    make_config: MakeConfig, make_trainer: MakeTrainer, make_batch: MakeBatch
) -> None:
    """Kind: exp overflow: under vLLM the ratio is taken at world tokens too, where -200 against 0 would overflow."""
    config = make_config()
    config = config.model_copy(update={"optim": config.optim.model_copy(update={"shared_prefix": "on"})})
    trainer = make_trainer(config)
    make_batch(trainer, config)
    (part,) = trainer._micro_batches
    trained = part["completion_mask"] * part["tool_mask"]
    with torch.no_grad():
        logprobs, entropies = trainer._sharing.logprobs(trainer.model, part)
    old = torch.where(trained.bool(), logprobs, torch.full_like(logprobs, -200.0))
    loss = trainer.compute_loss(trainer.model, part | {"old_per_token_logps": old})
    loss.backward()
    assert math.isfinite(loss.item())
    assert bool(torch.isfinite(gradient_of(trainer.model)).all())
    assert bool((logprobs[trained == 0] == 0).all())
    assert bool((entropies[trained == 0] == 0).all())
    assert bool((entropies[trained == 1] > 0).any())


# ---------------------------------------------------------------- when


def plain_batch(prompts: list[list[int]], completions: list[list[int]]) -> dict[str, Any]:
    """Return TRL's inputs of unpadded rows; every completion token is trained."""
    prompt_ids, completion_ids = torch.tensor(prompts), torch.tensor(completions)
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": torch.ones_like(prompt_ids),
        "completion_ids": completion_ids,
        "completion_mask": torch.ones_like(completion_ids),
        "tool_mask": torch.ones_like(completion_ids),
        "advantages": torch.zeros(len(prompts)),
    }


@pytest.fixture
def model(make_config: MakeConfig, make_trainer: MakeTrainer) -> Any:
    """A model as TRL prepares it."""
    config = make_config()
    config = config.model_copy(update={"optim": config.optim.model_copy(update={"shared_prefix": "off"})})
    return make_trainer(config).model


def test_auto_counts_tokens(model: Any) -> None:
    """Two rows of 10 + 3: separate 26 tokens; with one prompt 10 + 2 + 2 = 14, with two 24 (26 / 24 < 1.2)."""
    assert SMALLEST_SAVING == 1.2
    prompt = list(range(5, 15))
    alike = plain_batch([prompt, prompt], [[20, 21, 22], [23, 24, 25]])
    other = plain_batch([prompt, prompt[::-1]], [[20, 21, 22], [23, 24, 25]])
    auto = PrefixSharing(model, "auto")
    (part,) = auto.micro_batches(alike, 1)
    assert saving([alike], [part["packed_rows"]]) == pytest.approx(26 / 14)
    assert auto.is_shared(part)
    assert not auto.is_shared(auto.micro_batches(other, 1)[0])
    for mode, is_shared in (("on", True), ("off", False)):
        chosen = PrefixSharing(model, mode)  # type: ignore[arg-type]
        assert chosen.is_possible == is_shared
        assert chosen.is_shared(chosen.micro_batches(other, 1)[0]) == is_shared


def test_separate_rows_are_ordered_by_length(model: Any) -> None:
    """Not shared, a step is what it was: longest rows first."""
    batch = plain_batch([[5, 6], [7, 8]], [[1, 2, 3], [1, 2, 3]])
    batch["completion_mask"][0, 1:] = 0
    found = PrefixSharing(model, "off").micro_batches(batch, 2)
    assert [part["prompt_ids"].tolist() for part in found] == [[[7, 8]], [[5, 6]]]


def test_a_model_that_cannot_is_named_at_the_start(make_config: MakeConfig, make_trainer: MakeTrainer) -> None:
    """``on`` is an error, ``auto`` one warning, ``off`` says nothing."""

    def build(mode: SharingMode) -> Any:
        config = make_config()
        config = config.model_copy(update={"optim": config.optim.model_copy(update={"shared_prefix": mode})})
        policy = load_trainable(config.model)
        policy.model.config.attention_dropout = 0.1
        return make_trainer(config, policy=policy)

    with pytest.raises(ValueError, match=r"'llama' has attention_dropout=0.1, expected 0; set optim.shared_prefix"):
        build("on")
    with pytest.warns(UserWarning, match=r"rows are trained separately: .*attention_dropout=0.1"):
        assert not build("auto")._sharing.is_possible
    assert not build("off")._sharing.is_possible
