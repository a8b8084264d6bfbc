"""A generator's folder: written, read, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from provgym.generators.kgat_folder import StoredGenerator, load_generator, save_generator
from provgym.generators.kgat_model import KgatModel, KgatSettings
from provgym.generators.weights_fingerprint import weights_fingerprint

SETTINGS = KgatSettings(max_nodes=3, encoder_size=8, hidden_size=8, heads=2)


def stored(seed: int = 1) -> StoredGenerator:
    return StoredGenerator(KgatModel(SETTINGS, seed=seed), "hashed/8", sees_evidence=False, about={"step": 7})


def test_comes_back_as_it_was(tmp_path: Path) -> None:
    saved = stored()
    save_generator(tmp_path / "run" / "generator", saved)
    for folder in (tmp_path / "run" / "generator", tmp_path / "run"):
        found = load_generator(folder)
        assert weights_fingerprint(found.model) == weights_fingerprint(saved.model)
        assert found.model.settings == SETTINGS
        assert (found.encoder, found.sees_evidence, found.about) == ("hashed/8", False, {"step": 7})
        assert not found.model.training


def test_fingerprint_tells_weights_apart() -> None:
    model = KgatModel(SETTINGS, seed=1)
    before = weights_fingerprint(model)
    assert before != weights_fingerprint(KgatModel(SETTINGS, seed=2))
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-6
    assert weights_fingerprint(model) != before


def test_mixed_damaged_and_foreign_folders_are_refused(tmp_path: Path) -> None:
    """Kind: incomplete checkpoints."""
    with pytest.raises(FileNotFoundError, match="holds no generator.json"):
        load_generator(tmp_path)
    save_generator(tmp_path / "a", stored(1))
    save_generator(tmp_path / "b", stored(2))
    weights = (tmp_path / "a" / "model.safetensors").read_bytes()
    (tmp_path / "a" / "model.safetensors").write_bytes((tmp_path / "b" / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match="is not the file that generator.json was written with"):
        load_generator(tmp_path / "a")
    (tmp_path / "a" / "model.safetensors").write_bytes(weights[:100])
    with pytest.raises(ValueError, match="does not fit the settings"):
        load_generator(tmp_path / "a")
    (tmp_path / "a" / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors does not exist"):
        load_generator(tmp_path / "a")
    settings = json.loads((tmp_path / "b" / "generator.json").read_text())
    (tmp_path / "b" / "generator.json").write_text(json.dumps(settings | {"format": 99}))
    with pytest.raises(ValueError, match="is of format 99, expected 1"):
        load_generator(tmp_path / "b")
    del settings["encoder"]
    (tmp_path / "b" / "generator.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="describes no generator"):
        load_generator(tmp_path / "b")
