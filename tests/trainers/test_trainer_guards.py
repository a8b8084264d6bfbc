"""What stops or protects a run: the sampling gap, adapters and their KL, gradients, weights that do not move."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainers.bridge_batches import (
    MakeBatch,
    MakeConfig,
    MakeTrainer,
    hand_batch,
    plain_play,
    total_loss,
    without_gap_check,
)
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOTrainer

from provgym.trainers.callbacks import StepGuard, step_figures
from provgym.trainers.policy_loading import load_trainable
from provgym.trainers.step_record import RunStopped


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_first_step_is_on_policy(
    make_config: MakeConfig, make_trainer: MakeTrainer, make_batch: MakeBatch, temperature: float
) -> None:
    """Kind: temperature in the ratio. Sampled log-probabilities are the trainer's, so the ratio is 1 everywhere."""
    config = make_config(optim__temperature=temperature)
    trainer = make_trainer(config)
    batch = make_batch(trainer, config)
    assert "old_per_token_logps" not in batch, "TRL takes the policy's own, detached: a ratio of exactly 1"
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    logprobs, _, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, ids, attention, batch["completion_ids"].shape[1]
    )
    trained = (batch["completion_mask"] * batch["tool_mask"]).bool()
    gap = (logprobs - batch["sampling_per_token_logps"])[trained].abs().max()
    assert float(gap) < 1e-4
    total_loss(trainer, batch, 1)
    metrics = trainer._metrics["train"]
    assert metrics["clip_ratio/region_mean"] == [0.0]
    assert metrics["sampling_gap"][-1] < 1e-5


def test_engine_samples_from_the_weights_that_are_trained(make_config: MakeConfig, make_trainer: MakeTrainer) -> None:
    """Kind: adapter never reaches the engine. After big steps the sampled log-probabilities are the trainer's."""
    config = make_config(
        lora={"r": 4, "alpha": 8}, optim__learning_rate=0.05, phases=[{"steps": 3}], checkpoints__every=100
    )
    keeper = LogKeeper()
    trainer = make_trainer(config, callbacks=[keeper])
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad}
    trainer.train()
    moved = max(float((p - before[n]).abs().max()) for n, p in trainer.model.named_parameters() if p.requires_grad)
    assert moved > 0.05
    assert max(keeper.values("sampling_gap")) < 1e-4


class LogKeeper(TrainerCallback):
    """Keeps what the trainer logs."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.logs.append(dict(kwargs["logs"]))

    def values(self, key: str) -> list[Any]:
        """Return every value of a key."""
        return [log[key] for log in self.logs if key in log]


def test_engine_with_other_weights_stops_the_run(make_config: MakeConfig, make_trainer: MakeTrainer) -> None:
    """Kind: adapter never reaches the engine. An engine that keeps the start's weights is noticed, by name."""
    config = make_config(optim__learning_rate=0.1, phases=[{"steps": 4}], checkpoints__every=100)
    stale = copy.deepcopy(load_trainable(config.model).model)
    play = plain_play(config)
    trainer = make_trainer(config, play=lambda model, tasks: play(stale, tasks))
    with pytest.raises(RunStopped, match="does not sample from the weights that are trained"):
        trainer.train()


def test_adapter_that_binds_to_nothing_is_refused(make_config: MakeConfig, make_trainer: MakeTrainer) -> None:
    """Kind: adapter never reaches the engine (names that match no module)."""
    with pytest.raises(ValueError, match="no_such_module"):
        make_trainer(make_config(lora={"r": 2, "target_modules": ["no_such_module"]}))


def test_dropout_is_refused(make_config: MakeConfig) -> None:
    """TRL switches dropout off, and sampling has none: a setting without effect is an error."""
    with pytest.raises(ValueError, match="dropout must be 0"):
        make_config(lora={"r": 2, "dropout": 0.1})


@pytest.fixture
def trained_adapter(make_config: MakeConfig, make_trainer: MakeTrainer, tmp_path: Path) -> Path:
    """An adapter after two steps, saved."""
    config = make_config(lora={"r": 4, "alpha": 8}, optim__learning_rate=0.02, phases=[{"steps": 2}])
    trainer = make_trainer(config)
    trainer.train()
    folder = tmp_path / "adapter"
    trainer.model.save_pretrained(str(folder))
    return folder


def kl_of(trainer: Any, batch: dict[str, Any]) -> float:
    """Return the KL that TRL logs for a batch."""
    total_loss(trainer, batch, 1)
    return float(trainer._metrics["train"]["kl"][-1])


@pytest.mark.parametrize("lora", [None, {"r": 4, "alpha": 8}], ids=["full", "lora"])
def test_kl_is_zero_before_the_first_step(
    make_config: MakeConfig, make_trainer: MakeTrainer, make_batch: MakeBatch, lora: dict[str, int] | None
) -> None:
    """Kind: wrong reference. Full weights and a new adapter, KL weight 0.1, no step: below 1e-6."""
    config = make_config(lora=lora, optim__kl_weight=0.1)
    trainer = make_trainer(config)
    assert abs(kl_of(trainer, make_batch(trainer, config))) < 1e-6


def test_kl_of_an_adapter_that_is_trained_further(
    make_config: MakeConfig, make_trainer: MakeTrainer, make_batch: MakeBatch, trained_adapter: Path
) -> None:
    """Kind: wrong reference. The reference is the adapter at the start, also after saving, resuming and loading."""
    config = make_config(
        model={"path": str(make_config().model.path), "adapter": str(trained_adapter)},
        optim__kl_weight=0.1,
        optim__learning_rate=0.02,
        phases=[{"steps": 3}],
        checkpoints__every=2,
    )
    trainer = make_trainer(config)
    batch = make_batch(trainer, config)
    assert abs(kl_of(trainer, batch)) < 1e-6
    ids = batch["prompt_ids"]
    adapted = trainer.model(input_ids=ids).logits
    with trainer.model.disable_adapter():
        assert not torch.equal(trainer.model(input_ids=ids).logits, adapted), "the test needs an adapter that acts"
    start = adapter_weights(trainer, "default")
    trainer.train()
    saved = Path(trainer.args.output_dir) / "checkpoint-2"
    assert all(torch.equal(v, start[k]) for k, v in adapter_weights(trainer, "ref").items())
    assert not all(torch.equal(v, start[k]) for k, v in adapter_weights(trainer, "default").items())

    resumed = make_trainer(config)
    resumed.train(resume_from_checkpoint=str(saved))
    assert all(torch.equal(v, start[k]) for k, v in adapter_weights(resumed, "ref").items())
    assert all(
        torch.equal(v, adapter_weights(trainer, "default")[k]) for k, v in adapter_weights(resumed, "default").items()
    )
    # A new run that starts from the adapter just saved has that one as its reference.
    again = make_config(model={"path": str(make_config().model.path), "adapter": str(saved)}, optim__kl_weight=0.1)
    trainer = make_trainer(again)
    assert abs(kl_of(trainer, make_batch(trainer, again))) < 1e-6


def adapter_weights(trainer: Any, name: str) -> dict[str, Tensor]:
    """Return the weights of one adapter, without its name in theirs."""
    return {
        n.replace(f".{name}.", "."): p.detach().clone() for n, p in trainer.model.named_parameters() if f".{name}." in n
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_middle_masked", [True, False])
def test_kl_does_not_overflow(
    make_config: MakeConfig,
    make_trainer: MakeTrainer,
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    is_middle_masked: bool,
) -> None:
    """Kind: exp overflow in KL. Policy -1 -200 -1, reference -1 0 -1, middle masked or not: finite gradients."""
    without_gap_check(monkeypatch)
    trainer = make_trainer(make_config(optim__kl_weight=0.1))
    policy = torch.tensor([[-1.0, -200.0, -1.0]], dtype=dtype, requires_grad=True)
    reference = torch.tensor([[-1.0, 0.0, -1.0]], dtype=dtype)
    assert torch.isinf(torch.exp(reference.float() - policy.float())).any(), "plain TRL overflows here"
    monkeypatch.setattr(
        GRPOTrainer, "_get_per_token_logps_and_entropies", lambda *a, **k: (policy, policy.detach(), None)
    )
    batch = hand_batch(trainer, [3], [0.0], [1])
    if is_middle_masked:
        batch["tool_mask"][0, 1] = 0
    batch["ref_per_token_logps"] = reference
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    assert policy.grad is not None
    assert bool(torch.isfinite(loss))
    assert bool(torch.isfinite(policy.grad).all())
    if is_middle_masked:
        assert policy.grad[0, 1] == 0
    elif dtype is torch.float32:  # bfloat16 has too few digits for exp(10) - 10 - 1
        assert policy.grad[0, 1] < 0, "descent still raises the token that the reference prefers"


@pytest.mark.parametrize("factor", [math.inf, math.nan, 1e36], ids=["inf", "nan", "norm overflows"])
def test_step_without_finite_gradient_is_skipped(
    make_config: MakeConfig, make_trainer: MakeTrainer, tmp_path: Path, factor: float
) -> None:
    """Kind: exp overflow in KL: a non-finite norm skips the step and is counted; what is saved is finite."""
    config = make_config(phases=[{"steps": 4}], checkpoints__every=1, optim__learning_rate=1e-2)
    states: list[dict[str, Tensor]] = []
    skipped: list[int] = []

    class Watch(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            states.append({n: p.detach().clone() for n, p in kwargs["model"].named_parameters()})
            skipped.append(int(step_figures(trainer.last_step)["train/skipped_steps"] or 0))

    trainer = make_trainer(config, callbacks=[Watch()])
    plain = trainer.compute_loss

    def broken(*args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = plain(*args, **kwargs)
        return loss * factor if trainer.state.global_step == 1 else loss

    trainer.compute_loss = broken
    trainer.train()
    assert skipped == [0, 1, 0, 0]
    assert all(torch.equal(states[1][n], states[0][n]) for n in states[0]), "the weights were left alone"
    assert not all(torch.equal(states[2][n], states[1][n]) for n in states[0]), "and training went on"
    for step in range(1, 5):
        folder = tmp_path / "out" / f"checkpoint-{step}"
        optimizer = torch.load(folder / "optimizer.pt", weights_only=True)
        moments = [t for s in optimizer["state"].values() for t in s.values()]
        weights = load_trainable(config.model.model_copy(update={"path": str(folder)})).model.state_dict().values()
        assert all(bool(torch.isfinite(t).all()) for t in (*moments, *weights))


def test_model_without_trainable_weight_is_refused(make_config: MakeConfig, make_trainer: MakeTrainer) -> None:
    config = make_config()
    policy = load_trainable(config.model)
    policy.model.requires_grad_(False)
    with pytest.raises(ValueError, match="no trainable parameter; set lora"):
        make_trainer(config, policy=policy)


@pytest.mark.parametrize("lora", [None, {"r": 4, "alpha": 8}], ids=["full", "lora"])
def test_weights_that_do_not_move_stop_the_run(
    make_config: MakeConfig, make_trainer: MakeTrainer, lora: dict[str, int] | None
) -> None:
    """An adapter that did not change is an error after a few steps, not a result after a day."""
    config = make_config(lora=lora, phases=[{"steps": 12}], checkpoints__every=100)

    class Stuck(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            for parameter in kwargs["model"].parameters():
                parameter.grad = None

    trainer = make_trainer(config, callbacks=[Stuck()])
    trainer.add_callback(StepGuard(lambda: trainer.last_step, 4))
    with pytest.raises(RunStopped, match=r"no trainable weight changed in 5 steps"):
        trainer.train()


def test_moving_weights_pass_the_guard(make_config: MakeConfig, make_trainer: MakeTrainer) -> None:
    config = make_config(phases=[{"steps": 7}], checkpoints__every=100)
    trainer = make_trainer(config)
    trainer.add_callback(StepGuard(lambda: trainer.last_step, 4))
    trainer.train()


def test_trajectories_that_do_not_divide_are_refused(make_config: MakeConfig, make_trainer: MakeTrainer) -> None:
    config = make_config(optim__micro_batch=3)
    with pytest.raises(ValueError, match=r"try micro_batch=1"):
        make_trainer(config)
