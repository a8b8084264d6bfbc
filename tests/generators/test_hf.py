"""Loading models and adapters: every way in which it can't be done has its own message."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from provgym.generators.engine import Sampling
from provgym.generators.hf import choose_dtype, load_causal_lm
from provgym.generators.hf_engine import HFEngine


@pytest.fixture
def saved_model(tmp_path: Path, build_model: Callable[..., PreTrainedModel], build_bpe: Any) -> Path:
    folder = tmp_path / "base-a"
    tokenizer: PreTrainedTokenizerFast = build_bpe()
    build_model("llama", len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_adapter(base: Path, folder: Path, *, scale: float = 0.5, targets: tuple[str, ...] = ("q_proj",)) -> Path:
    model, _ = load_causal_lm(base)
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=list(targets), task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.fill_(scale)
    adapted.save_pretrained(str(folder))
    return folder


def test_model_and_tokenizer_come_back_as_saved(saved_model: Path) -> None:
    model, tokenizer = load_causal_lm(saved_model)
    assert not model.training
    assert model.dtype == torch.float32
    assert tokenizer.chat_template


def test_missing_models_are_named_with_the_way_out(tmp_path: Path) -> None:
    for name in ("nobody/no-such-model", str(tmp_path / "nowhere")):
        with pytest.raises(FileNotFoundError, match=rf"model '{name}' can't be loaded.*hf download"):
            load_causal_lm(name)
    with pytest.raises(FileNotFoundError, match=r"holds no model \(no config.json\)"):
        load_causal_lm(tmp_path)


def test_a_config_that_is_no_language_model_is_refused(tmp_path: Path, build_bpe: Any) -> None:
    build_bpe().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}), encoding="utf-8")
    with pytest.raises(ValueError, match="can't be used as a causal language model"):
        load_causal_lm(tmp_path)


def test_bfloat16_on_a_cpu_becomes_float32_with_one_warning(saved_model: Path) -> None:
    """Fault kind: bf16 on a CPU."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, _ = load_causal_lm(saved_model, dtype="bfloat16", device="cpu")
    assert model.dtype == torch.float32
    assert [str(w.message) for w in caught if "float32 is used instead" in str(w.message)] == [
        "dtype bfloat16 on a CPU is slow and inexact; float32 is used instead"
    ]
    assert choose_dtype("bfloat16", torch.device("cuda")) is torch.bfloat16
    assert choose_dtype("auto", torch.device("cpu")) is torch.float32
    with pytest.raises(ValueError, match="dtype 'fp8' is unknown"):
        choose_dtype("fp8", torch.device("cpu"))  # type: ignore[arg-type]


def test_adapter_reaches_the_engine(saved_model: Path, tmp_path: Path) -> None:
    """Fault kind: adapter never reaches the engine; sampled log-probabilities are the adapted model's."""
    adapter = save_adapter(saved_model, tmp_path / "adapter")
    model, _ = load_causal_lm(saved_model, adapter)
    plain, _ = load_causal_lm(saved_model)
    prompt = [5, 9, 30, 7]
    logprobs = {}
    for name, loaded in (("adapted", model), ("plain", plain)):
        engine = HFEngine(loaded, max_rows=1)
        engine.open_row(0, 0, Sampling(0.0))
        engine.submit(0, prompt, 1, frozenset())
        (sampled,) = engine.poll()
        with torch.no_grad():
            direct = torch.log_softmax(loaded(input_ids=torch.tensor([prompt])).logits[0, -1], dim=-1)
        assert sampled.logprobs[0] == pytest.approx(float(direct[sampled.ids[0]]), abs=1e-5)
        logprobs[name] = direct
    assert float((logprobs["adapted"] - logprobs["plain"]).abs().max()) > 0.01
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_trainable_adapters_keep_their_gradients(saved_model: Path, tmp_path: Path) -> None:
    adapter = save_adapter(saved_model, tmp_path / "adapter")
    model, _ = load_causal_lm(saved_model, adapter, is_trainable=True)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)


def test_adapters_for_another_base_are_refused_by_both_names(saved_model: Path, tmp_path: Path) -> None:
    adapter = save_adapter(saved_model, tmp_path / "adapter")
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = "Qwen/Qwen3-4B"
    (adapter / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match=r"was made for 'Qwen/Qwen3-4B', not for '.*base-a'"):
        load_causal_lm(saved_model, adapter)
    model, _ = load_causal_lm(saved_model, adapter, check_adapter_base=False)
    assert hasattr(model, "peft_config")


def test_a_base_is_known_by_name_wherever_it_lies() -> None:
    from provgym.generators.hf import _base_name

    for place in ("Qwen/Qwen3-4B", "/models/qwen3-4b", "/hub/models--Qwen--Qwen3-4B/snapshots/0123abcd"):
        assert _base_name(place) == "qwen3-4b"


def test_adapters_of_another_shape_are_refused(
    saved_model: Path, tmp_path: Path, build_model: Callable[..., PreTrainedModel], build_bpe: Any
) -> None:
    adapter = save_adapter(saved_model, tmp_path / "adapter")
    weights = {
        key: torch.zeros(2, 99) if "lora_A" in key else value
        for key, value in load_file(adapter / "adapter_model.safetensors").items()
    }
    save_file(weights, adapter / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=r"adapter .* was made for .*base-a"):
        load_causal_lm(saved_model, adapter)


def test_adapters_that_bind_to_nothing_or_in_part_are_refused(saved_model: Path, tmp_path: Path) -> None:
    """Fault kind: adapter never reaches the engine."""
    adapter = save_adapter(saved_model, tmp_path / "adapter", targets=("q_proj", "v_proj"))
    weights = load_file(adapter / "adapter_model.safetensors")
    renamed = {key.replace("layers", "blocks"): value for key, value in weights.items()}
    save_file(renamed, adapter / "adapter_model.safetensors")
    with pytest.raises(ValueError, match="none of its 8 tensors binds to a module"):
        load_causal_lm(saved_model, adapter)
    half = {key: value for key, value in weights.items() if "v_proj" not in key}
    save_file(half, adapter / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=r"4 modules get no tensor"):
        load_causal_lm(saved_model, adapter)
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    config["target_modules"] = ["c_attn"]
    (adapter / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match="adapter .* was made for"):
        load_causal_lm(saved_model, adapter)


def test_adapters_without_effect_are_refused(saved_model: Path, tmp_path: Path) -> None:
    """Fault kind: adapter never reaches the engine; LoRA starts at zero effect."""
    adapter = save_adapter(saved_model, tmp_path / "adapter", scale=0.0)
    with pytest.raises(ValueError, match="has no effect"):
        load_causal_lm(saved_model, adapter)
    model, _ = load_causal_lm(saved_model, adapter, require_adapter_effect=False)
    assert hasattr(model, "peft_config")


def test_folders_without_an_adapter_or_its_weights_are_named(saved_model: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no adapter_config\.json"):
        load_causal_lm(saved_model, tmp_path / "nothing")
    adapter = save_adapter(saved_model, tmp_path / "adapter")
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="but no weights"):
        load_causal_lm(saved_model, adapter)
