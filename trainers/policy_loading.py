"""The policy that a run trains: model, tokenizer and dialogue format, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from provgym.generators.engine import Dialogue
from provgym.generators.tiny import SHIPPED_TINY, TinyDialogue, load_tiny
from provgym.trainers.papt_config import ModelConfig


@dataclass(frozen=True)
class TrainablePolicy:
    """What training needs of a policy."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    dialogue: Dialogue


def load_trainable(config: ModelConfig) -> TrainablePolicy:
    """Load the policy of a run.

    Raises:
        FileNotFoundError: If a model or adapter is missing; the message says how to get it.
        ValueError: If an adapter was made for another base model, or the chat template drops history.
    """
    from provgym.generators.hf import load_causal_lm

    if config.kind == "tiny":
        folder = Path(config.path) if config.path else SHIPPED_TINY
        model: PreTrainedModel
        model, tokenizer = load_tiny(folder)
        if config.adapter is not None:
            adapted = load_causal_lm(folder, adapter=config.adapter, dtype="float32", device="cpu", is_trainable=True)
            model = adapted.model
        return TrainablePolicy("tiny", model, tokenizer, TinyDialogue(tokenizer))
    from provgym.generators.chat import ChatDialogue
    from provgym.generators.model_policies import end_ids_of
    from provgym.generators.smollm2 import convert_smollm2

    path = str(convert_smollm2()) if config.kind == "smollm2" else str(config.path)
    model, tokenizer = load_causal_lm(path, adapter=config.adapter, dtype=config.dtype, is_trainable=True)
    dialogue = ChatDialogue(
        tokenizer,
        grammar=config.grammar,
        enable_thinking=config.enable_thinking,
        max_action_tokens=config.max_action_tokens,
        extra_end_ids=end_ids_of(model),
    )
    name = "smollm2-135m" if config.kind == "smollm2" else Path(path).name
    return TrainablePolicy(name, model, tokenizer, dialogue)
