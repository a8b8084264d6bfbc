"""Small random models, byte-level tokenizers made in memory, and tasks of the demo instances."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from provgym.envs.builtin import demo_instances
from provgym.envs.presentation import INSTRUCTIONS, PresentationConfig
from provgym.generators.episode import EpisodeTask

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = [
    INSTRUCTIONS,
    "Claim: In materials science, orvelin raises the hardness of tamrite.\nn1 result S2\nn2 table entry S1\n",
    "Left 6. Moves n0-n3.\nn3 source S1.\nNo such move.\nNot an action.\n\n\tvalue:\n\n# Tools\n" * 3,
]
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


@pytest.fixture(scope="session")
def chatml() -> str:
    """A plain ChatML template."""
    return CHATML


@pytest.fixture(scope="session")
def trl_template() -> Callable[[str], str]:
    """Reads one of the chat templates that TRL ships."""
    import trl

    folder = Path(trl.__file__).parent / "chat_templates"
    return lambda name: (folder / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def build_bpe() -> Callable[..., PreTrainedTokenizerFast]:
    """Builds a byte-level BPE tokenizer: GPT-2's way of splitting text, or Qwen's with its added markup tokens."""

    def build(*, style: str = "gpt2", chat_template: str | None = CHATML) -> PreTrainedTokenizerFast:
        tokenizer = Tokenizer(models.BPE())
        if style == "gpt2":
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            )
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=420,
            special_tokens=list(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(CORPUS, trainer)
        if style == "qwen":
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in MARKUP])
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            eos_token="<|im_end|>",
            pad_token="<|im_end|>",
            additional_special_tokens=["<|im_start|>", "<|endoftext|>"],
            chat_template=chat_template,
        )

    return build


@pytest.fixture(scope="session")
def build_model() -> Callable[..., PreTrainedModel]:
    """Builds a small random Llama or Qwen3 whose next-token distributions are far from uniform."""

    def build(kind: str, vocab_size: int, *, max_length: int = 4_096, seed: int = 0) -> PreTrainedModel:
        shape: dict[str, Any] = {
            "vocab_size": vocab_size,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": max_length,
            "initializer_range": 0.3,
            "eos_token_id": None,
            "pad_token_id": None,
            "bos_token_id": None,
        }
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if kind == "qwen3":
                model: PreTrainedModel = Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=8))
            else:
                model = LlamaForCausalLM(LlamaConfig(**shape))
        model.eval()
        return model

    return build


@pytest.fixture(scope="session")
def build_tasks() -> Callable[..., list[EpisodeTask]]:
    """Builds tasks over the demo instances; the members of a group share everything but the sampling seed."""

    def build(
        *,
        conditions: Sequence[int] = range(6),
        members: int = 1,
        budget: int = 3,
        presentation: PresentationConfig | None = None,
    ) -> list[EpisodeTask]:
        return [
            EpisodeTask(
                instance=demo_instances()[index],
                budget=budget,
                presentation=presentation or PresentationConfig(),
                presentation_seed=100 + index,
                sampling_seed=1_000 * index + member,
                member=member,
            )
            for index, member in itertools.product(conditions, range(members))
        ]

    return build
