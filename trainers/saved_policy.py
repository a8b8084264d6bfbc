"""Reading a checkpoint's weights, and saving a run's chosen policy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import PreTrainedModel

from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.policy_loading import TrainablePolicy, load_trainable

_WEIGHTS = ("*.safetensors", "*.json")
_NOT_WEIGHTS = ("trainer_state.json", "provgym_complete.json")


def load_saved_policy(path: Path, config: PaptConfig) -> PreTrainedModel:
    """Load the model of a checkpoint: a whole model, or an adapter on the run's base model.

    Raises:
        FileNotFoundError: If the folder holds neither.
    """
    model: Any  # a PEFT model forwards everything that a PreTrainedModel has
    if (path / "adapter_config.json").is_file():
        base = load_trainable(config.model.model_copy(update={"adapter": None})).model
        model = PeftModel.from_pretrained(base, str(path), is_trainable=False)
    elif (path / "config.json").is_file():
        model = load_trainable(config.model.model_copy(update={"path": str(path), "adapter": None})).model
    else:
        raise FileNotFoundError(f"{path} holds neither a model (config.json) nor an adapter (adapter_config.json)")
    loaded: PreTrainedModel = model.eval()
    return loaded


def save_policy(target: Path, checkpoint: Path, policy: TrainablePolicy) -> None:
    """Copy a checkpoint's weights, without its optimiser, and the tokenizer into ``target``."""
    staging = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for pattern in _WEIGHTS:
        for file in checkpoint.glob(pattern):
            if file.name not in _NOT_WEIGHTS:
                shutil.copy2(file, staging / file.name)
    policy.tokenizer.save_pretrained(staging)
    shutil.rmtree(target, ignore_errors=True)
    staging.rename(target)
