"""Policies that write tool calls, made for the roll-out benchmark only.

A small Llama with a byte-level tokenizer of its own (or SmolLM2 with a LoRA adapter) is cloned from the naive walker,
with TRL's own Qwen2.5 chat template around every message, so that TRL's tool loop and our roll-out can play the very
same episodes. It also learns to say one word after its stop: TRL generates once more there, and should be able to do
so cheaply.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from trl.chat_template_utils import qwen2_5_chat_template

from provgym.envs.presentation import PresentationConfig
from provgym.envs.walk_text import GraphWalkTextEnv
from provgym.eval.run_files import write_json_atomic
from provgym.generators.chat import WALK_TOOLS, ChatDialogue
from provgym.generators.chat_actions import TOOL_INSTRUCTIONS, ActionGrammar, rewrite_action
from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL
from provgym.generators.episode import EpisodeTask
from provgym.generators.graphecho import GraphEcho
from provgym.generators.scripted import naive_path_counter, start_episode
from provgym.generators.seeds import Purpose, derive_rng
from provgym.generators.smollm2 import load_smollm2
from provgym.trainers.cloning import ClonedRow, cloning_step, cosine_scale, separate_loss, walked_turns, write_row

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
LAST_WORD = "Done."
GRAMMAR: ActionGrammar = "tool_call"


@dataclass(frozen=True)
class CloneConfig:
    """How the policy is made; ``steps=0`` leaves it untrained.

    Attributes:
        seed: Of weights and episodes.
        budget: B of the cloned episodes.
        steps: Optimiser steps.
        rows: Episodes per step.
        learning_rate: Peak of a cosine schedule.
        warmup_steps: Before it.
        vocabulary_size: Tokens of the byte-level tokenizer.
        hidden_size: Width of the decoder.
        num_layers: Its depth.
    """

    seed: int = 0
    budget: int = 6
    steps: int = 90
    rows: int = 8
    learning_rate: float = 3e-3
    warmup_steps: int = 10
    vocabulary_size: int = 1024
    hidden_size: int = 128
    num_layers: int = 4


TINY = CloneConfig()
SMOLLM2 = CloneConfig(budget=3, steps=16, rows=1, learning_rate=1e-3, warmup_steps=3)
OnStep = Callable[[int, float], None]
_DONE = "clone.json"
_RECIPE = 1  # raise when what is taught changes


class ToolCallPolicy(NamedTuple):
    """What both sides of the benchmark play with."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def dialogue_of(tokenizer: PreTrainedTokenizerBase) -> ChatDialogue:
    """Return the dialogue whose ids equal those of TRL's loop.

    The action limit is that of the grammar's longest stop; nothing else differs from the default.
    """
    return ChatDialogue(tokenizer, GRAMMAR)


def draw_tasks(seed: int, budget: int, count: int, group_size: int, split: str = "test") -> list[EpisodeTask]:
    """Return ``count`` instances under the six kinds of condition, ``group_size`` equal episodes of each."""
    claims = GraphEcho.generate(42)
    bases = claims.of_split(split)
    conditions = (*CONFLICT_CONDITIONS, GENERAL)
    tasks = []
    for number in range(count):
        instance = claims.instance(bases[number % len(bases)], conditions[number % len(conditions)])
        presentation_seed = int(derive_rng(seed, Purpose.PRESENTATION, number).integers(2**62))
        tasks += [
            EpisodeTask(instance, budget, PresentationConfig(), presentation_seed, member, member)
            for member in range(group_size)
        ]
    return tasks


def build_tokenizer(texts: Sequence[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer with ChatML's control tokens and Qwen's tool markup."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size - len(MARKUP),
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, padding_side="left")
    fast.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKUP])
    fast.chat_template = qwen2_5_chat_template
    return fast


def first_fresh_walker(env: GraphWalkTextEnv, rng: np.random.Generator) -> str:
    """Walk to the fresh neighbour with the lowest alias, and answer as the naive walker: by the majority over paths.

    The naive walker's own choice is random; a fixed one is cloned in fewer steps, and greedy decoding of the clone
    stays clear of ties.
    """
    walk, presentation = env.walk, env.presentation
    if walk is None or presentation is None:
        raise RuntimeError("no episode was started")
    aliases = [presentation.alias_of(int(n)) for n in walk.neighbours() if int(n) not in walk.visited]
    fresh = [alias for alias in aliases if alias is not None]
    if walk.budget_left > 0 and fresh:
        return f"walk {min(fresh, key=lambda alias: int(alias[1:]))}"
    return naive_path_counter(env, rng)


Conversation = list[tuple[tuple[str, ...], str]]
"""An episode: (observation lines, action in the short grammar), and at last what is said after the stop."""


def conversation_of(task: EpisodeTask) -> Conversation:
    """Play a task by :func:`first_fresh_walker`."""
    env = start_episode(task)
    rng = np.random.default_rng(0)  # the walker makes no choice
    turns = [(turn.lines, turn.action) for turn in walked_turns(env, first_fresh_walker, rng)]
    return [*turns, (env.observation_lines, LAST_WORD)]


def train_conversations(config: CloneConfig) -> Iterator[Conversation]:
    """Yield conversations about train claims, without end."""
    claims = GraphEcho.generate(42)
    bases = claims.of_split("train")
    conditions = (*CONFLICT_CONDITIONS, GENERAL)
    for number in itertools.count():
        rng = derive_rng(config.seed, Purpose.CLONING, number)
        condition = conditions[int(rng.integers(len(conditions)))]
        instance = claims.instance(bases[int(rng.integers(len(bases)))], condition, draw=number)
        yield conversation_of(EpisodeTask(instance, config.budget, PresentationConfig(), int(rng.integers(2**62)), 0))


def clone_row(dialogue: ChatDialogue, tokenizer: PreTrainedTokenizerBase, turns: Conversation) -> ClonedRow:
    """Write an episode as ids, as the roll-out would have left it."""
    last_word = [*tokenizer.encode(LAST_WORD, add_special_tokens=False), dialogue.turn_end]
    said = ((lines, last_word if text == LAST_WORD else dialogue.encode_action(text), True) for lines, text in turns)
    return write_row(dialogue, said, TOOL_INSTRUCTIONS)


def untrained(config: CloneConfig) -> ToolCallPolicy:
    """Build tokenizer and weights, seeded; nothing is learned yet."""
    blank = build_tokenizer([], 300)
    system = blank.apply_chat_template(
        [{"role": "system", "content": TOOL_INSTRUCTIONS}], tools=list(WALK_TOOLS), tokenize=False
    )
    texts = [str(system)] * 8
    for turns in itertools.islice(train_conversations(config), 100):
        texts += ["\n".join(lines) for lines, _ in turns]
        texts += [rewrite_action(action, GRAMMAR) for _, action in turns[:-1]]
    tokenizer = build_tokenizer(texts, config.vocabulary_size)
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=2 * config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        initializer_range=0.06,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return ToolCallPolicy(LlamaForCausalLM(shape), tokenizer)


def clone(
    policy: ToolCallPolicy,
    config: CloneConfig,
    conversations: Iterator[Conversation],
    on_step: OnStep | None = None,
) -> None:
    """Teach a policy what is said in conversations, in place; frozen weights stay as they are."""
    dialogue = dialogue_of(policy.tokenizer)
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    policy.model.train()
    for step in range(config.steps):
        scale = cosine_scale(step, config.steps, config.warmup_steps)
        optimizer.param_groups[0]["lr"] = config.learning_rate * scale
        rows = [clone_row(dialogue, policy.tokenizer, next(conversations)) for _ in range(config.rows)]
        loss = cloning_step(optimizer, partial(separate_loss, policy.model), rows, micro_batch=config.rows)
        if on_step is not None:
            on_step(step + 1, loss)
    policy.model.eval()


def cloned_tiny(folder: Path, config: CloneConfig = TINY, on_step: OnStep | None = None) -> ToolCallPolicy:
    """Return the tiny policy, made once and then kept in ``folder``."""
    place = folder / f"tiny-{_key(config)}"
    if not (place / _DONE).is_file():
        policy = untrained(config)
        clone(policy, config, train_conversations(config), on_step)
        policy.model.save_pretrained(place)
        policy.tokenizer.save_pretrained(place)
        write_json_atomic(place / _DONE, asdict(config))
    model = LlamaForCausalLM.from_pretrained(place, local_files_only=True, dtype=torch.float32)
    return ToolCallPolicy(model.eval(), AutoTokenizer.from_pretrained(place, local_files_only=True))


def cloned_smollm2(folder: Path, config: CloneConfig | None = None, on_step: OnStep | None = None) -> ToolCallPolicy:
    """Return SmolLM2-135M with a LoRA adapter for this grammar merged in; the adapter is made once and kept.

    As it is published, the model does not write tool calls, and TRL's loop ends at the first text without one.

    Raises:
        ModuleNotFoundError: If the package with the model is not installed.
    """
    config = config or SMOLLM2
    model, tokenizer = load_smollm2(dtype="float32", device="cpu")
    tokenizer.chat_template = qwen2_5_chat_template
    place = folder / f"smollm2-{_key(config)}"
    if not (place / _DONE).is_file():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            adapted = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
        base: Any = adapted.get_base_model()
        clone(ToolCallPolicy(base, tokenizer), config, train_conversations(config), on_step)
        adapted.save_pretrained(str(place))
        write_json_atomic(place / _DONE, asdict(config))
        model = load_smollm2(dtype="float32", device="cpu").model
    merged: Any = PeftModel.from_pretrained(model, str(place)).merge_and_unload()
    return ToolCallPolicy(merged.eval(), tokenizer)


def _key(config: CloneConfig) -> str:
    """Return a short hash of what decides the weights: the recipe, and how an episode reads today."""
    episodes = list(itertools.islice(train_conversations(config), 3))
    return hashlib.sha256(f"{_RECIPE} {config!r} {episodes!r}".encode()).hexdigest()[:10]
