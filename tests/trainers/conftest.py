"""A policy small enough to train inside a test, and builders for runs of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from provgym.generators.engine import Sampling
from provgym.generators.episode import Episode, EpisodeTask
from provgym.generators.hf_engine import HFEngine
from provgym.generators.rollout import LanguageModelPolicy
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.policy_loading import TrainablePolicy, load_trainable
from provgym.trainers.training_rows import ClaimPool, TrainingRows, load_pool
from provgym.trainers.trl_arguments import lora_config
from provgym.trainers.trl_bridge import PaptTrainer, Play
from provgym.trainers.warm_start import warm_start
from provgym.trainers.warm_start_config import WarmStartConfig

MakeConfig = Callable[..., PaptConfig]


@pytest.fixture(scope="session")
def start_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that knows the grammar of actions and little else: 30,000 parameters, a few seconds of cloning."""
    torch.set_num_threads(1)
    return warm_start(
        WarmStartConfig(
            out=tmp_path_factory.mktemp("warm") / "start",
            drill_steps=0,
            clone_steps=60,
            confirm_steps=0,
            drill_rows=12,
            clone_rows=12,
            learning_rate=1e-2,
            stop_probability=0.3,
            stance_loss_weight=0.0,
            hidden_size=32,
            num_layers=1,
        )
    )


@pytest.fixture
def make_config(start_folder: Path, tmp_path: Path) -> MakeConfig:
    """A function that returns a small run's configuration; keys with dots override single fields."""

    def make(**overrides: Any) -> PaptConfig:
        data: dict[str, Any] = {
            "name": "run",
            "runs_dir": str(tmp_path / "runs"),
            "model": {"path": str(start_folder)},
            "data": {"train_claims": 20, "dev_claims": 4, "test_claims": 4, "general_share": 0.5},
            "phases": [{"steps": 4}],
            "lora": None,
            "optim": {
                "group_size": 4,
                "groups_per_step": 2,
                "micro_batch": 8,
                "learning_rate": 3e-3,
                "warmup_steps": 0,
                "schedule": "constant",
            },
            "generation": {"max_rows": 16, "max_length": 512},
            "checkpoints": {"every": 2, "keep": 3, "select_last": 2},
            "evaluation": {"conditions": ["C1", "C3"], "general_draws": 1},
            "tracking": {"wandb": "disabled"},
        }
        for key, value in overrides.items():
            place, *rest = key.split("__")
            if rest:
                data[place] = {**(data[place] or {}), rest[0]: value}
            else:
                data[place] = value
        return PaptConfig.model_validate(data)

    return make


@pytest.fixture
def make_trainer(tmp_path: Path) -> Callable[..., PaptTrainer]:
    """A function that builds the trainer of a configuration, ready to step."""

    def make(
        config: PaptConfig,
        *,
        policy: TrainablePolicy | None = None,
        play: Play | None = None,
        pool: ClaimPool | None = None,
        judge_again: Any = None,
        callbacks: Sequence[Any] = (),
    ) -> PaptTrainer:
        chosen = load_trainable(config.model) if policy is None else policy

        def sample(model: PreTrainedModel, tasks: Sequence[EpisodeTask]) -> list[Episode]:
            engine = HFEngine(model, max_rows=config.generation.max_rows, max_length=config.generation.max_length)
            return LanguageModelPolicy("t", engine, chosen.dialogue, Sampling(config.optim.temperature)).play(tasks)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            trainer = PaptTrainer(
                config,
                chosen.model,
                chosen.tokenizer,
                TrainingRows(config, pool or load_pool(config.data)),
                play or sample,
                lora=lora_config(config),
                output_dir=tmp_path / "out",
                judge_again=judge_again,
                callbacks=callbacks,
            )
        assert trainer.model is not None
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        return trainer

    return make


@pytest.fixture
def make_batch() -> Callable[..., dict[str, Any]]:
    """A function that plays one step and returns TRL's generation batch, in the order of the rows."""

    def make(trainer: PaptTrainer, config: PaptConfig, step: int = 0) -> dict[str, Any]:
        groups, size = config.optim.groups_per_step, config.optim.group_size
        rows = [row for row in range(step * groups, (step + 1) * groups) for _ in range(size)]
        return trainer._generate_and_score_completions([{"prompt": str(row)} for row in rows])

    return make
