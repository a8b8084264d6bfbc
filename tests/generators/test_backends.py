"""Every kind of policy from its description."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from transformers import PreTrainedModel

from provgym.generators.backends import WALKERS, load_policy
from provgym.generators.chat_actions import TOOL_INSTRUCTIONS
from provgym.generators.endpoint import EndpointPolicy
from provgym.generators.endpoint_config import EndpointConfig
from provgym.generators.model_policies import end_ids_of, resolve_model_path
from provgym.generators.policy_kinds import EndpointSpec, HFSpec, PolicySpec, ScriptedSpec, SmolLM2Spec, TinySpec
from provgym.generators.tiny import build_model as build_tiny
from provgym.generators.tiny import build_tokenizer
from provgym.rewards.outcome import Ending


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    build_tiny(num_layers=1, hidden_size=32).save_pretrained(tmp_path / "tiny")
    build_tokenizer().save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def chat_folder(tmp_path: Path, build_bpe: Any, build_model: Callable[..., PreTrainedModel]) -> Path:
    tokenizer = build_bpe()
    model = build_model("qwen3", len(tokenizer), max_length=16_384)
    model.generation_config.eos_token_id = [2, 0]
    model.save_pretrained(tmp_path / "chat-model")
    tokenizer.save_pretrained(tmp_path / "chat-model")
    return tmp_path / "chat-model"


@pytest.mark.parametrize("walker", sorted(WALKERS))
def test_scripted_walkers_play(build_tasks: Any, walker: Any) -> None:
    policy = load_policy(ScriptedSpec(walker=walker))
    assert policy.name == walker
    episodes = policy.play(build_tasks())
    assert {e.outcome.ending for e in episodes} == {Ending.ANSWERED}
    assert {e.outcome.invalid_actions for e in episodes} == {0}


def test_breadth_first_walks_in_order_of_discovery(build_tasks: Any) -> None:
    (episode,) = load_policy(ScriptedSpec(walker="bfs")).play(build_tasks(conditions=[2], budget=5))
    walked = [int(turn.action.removeprefix("walk n")) for turn in episode.turns[:-1]]
    assert walked == sorted(set(walked))


@pytest.mark.parametrize("constrained", [False, True])
def test_tiny_policies_play(tiny_folder: Path, build_tasks: Any, constrained: bool) -> None:
    spec = TinySpec(path=tiny_folder, constrained=constrained, temperature=1.0, max_rows=3)
    episodes = load_policy(spec).play(build_tasks())
    answered = {e.outcome.ending for e in episodes} == {Ending.ANSWERED}
    assert answered == constrained


def test_chat_policies_play(chat_folder: Path, build_tasks: Any) -> None:
    policy = load_policy(HFSpec(path=str(chat_folder), max_action_tokens=8))
    assert policy.name == "chat-model"
    (episode,) = policy.play(build_tasks(conditions=[0]))
    assert episode.tokens is not None
    named = load_policy(HFSpec(path=str(chat_folder), name="mine"))
    assert named.name == "mine"


def test_tool_call_policies_get_tool_instructions(
    chat_folder: Path, build_bpe: Any, build_tasks: Any, trl_template: Callable[[str], str]
) -> None:
    tokenizer = build_bpe(chat_template=trl_template("qwen2_5"))
    tokenizer.save_pretrained(chat_folder)
    policy = load_policy(HFSpec(path=str(chat_folder), grammar="tool_call", max_action_tokens=4))
    (episode,) = policy.play(build_tasks(conditions=[0]))
    assert episode.tokens is not None
    prompt = tokenizer.decode(list(episode.tokens.prompt_ids))
    assert TOOL_INSTRUCTIONS in prompt
    assert '"name": "walk"' in prompt


def test_end_ids_come_from_the_generation_config(chat_folder: Path) -> None:
    from provgym.generators.hf import load_causal_lm

    assert end_ids_of(load_causal_lm(chat_folder).model) == (2, 0)
    for found, expected in ((None, ()), (7, (7,))):
        stub: Any = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=found))
        assert end_ids_of(stub) == expected
    bare: Any = SimpleNamespace()
    assert end_ids_of(bare) == ()


def test_endpoints_are_built_without_asking_them() -> None:
    policy = load_policy(EndpointSpec(endpoint=EndpointConfig(base_url="http://a.test/v1", model="m")))
    assert isinstance(policy, EndpointPolicy)
    assert policy.name == "m"


def test_vllm_needs_a_length_and_no_constraint(chat_folder: Path) -> None:
    with pytest.raises(ValueError, match="needs max_length"):
        load_policy(HFSpec(path=str(chat_folder), engine="vllm"))
    with pytest.raises(ValueError, match="can't be constrained"):
        load_policy(HFSpec(path=str(chat_folder), engine="vllm", max_length=64, constrained=True))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ({"kind": "scripted", "walker": "oracle"}, ScriptedSpec),
        ({"kind": "tiny"}, TinySpec),
        ({"kind": "smollm2", "adapter": "runs/x"}, SmolLM2Spec),
        ({"kind": "hf", "path": "Qwen/Qwen3-4B", "temperature": 0.7}, HFSpec),
        ({"kind": "endpoint", "endpoint": {"base_url": "https://a.test/v1", "model": "m"}}, EndpointSpec),
    ],
)
def test_specs_are_read_from_plain_data(data: dict[str, Any], kind: type) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(PolicySpec)
    spec = adapter.validate_python(data)
    assert type(spec) is kind
    assert adapter.validate_json(adapter.dump_json(spec)) == spec


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "oracle"},
        {"kind": "scripted", "walker": "best"},
        {"kind": "hf"},
        {"kind": "tiny", "max_rows": 0},
        {"kind": "tiny", "max_rows": 99_999_999},
        {"kind": "tiny", "temprature": 1},
        {"kind": "tiny", "temperature": float("inf")},
    ],
)
def test_bad_specs_are_refused(data: dict[str, Any]) -> None:
    """Fault kind: config typing; unknown keys and bad values stop at load."""
    adapter: TypeAdapter[Any] = TypeAdapter(PolicySpec)
    with pytest.raises(ValidationError):
        adapter.validate_python(data)


def test_model_names_resolve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from provgym.generators import model_policies

    monkeypatch.setattr(model_policies, "convert_smollm2", lambda: tmp_path)
    assert resolve_model_path("smollm2-135m") == str(tmp_path)
    assert resolve_model_path("Qwen/Qwen3-4B") == "Qwen/Qwen3-4B"


@pytest.mark.llm
@pytest.mark.parametrize("constrained", [False, True])
def test_smollm2_plays(build_tasks: Any, constrained: bool) -> None:
    policy = load_policy(SmolLM2Spec(max_rows=2, constrained=constrained))
    assert policy.name == "smollm2-135m"
    (episode,) = policy.play(build_tasks(conditions=[0], budget=1))
    assert episode.unknown_tokens == 0
    assert not constrained or episode.outcome.ending is Ending.ANSWERED
