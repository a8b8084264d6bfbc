"""A trained generator as a folder: weights, shape, and the encoder that its embeddings have to come from.

``generator.json`` holds the settings, the encoder's fingerprint and whatever else a trainer wants to be known;
``model.safetensors`` holds the weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from provgym.generators.json_lines import atomic_file
from provgym.generators.kgat_model import KgatModel, KgatSettings
from provgym.generators.weights_fingerprint import weights_fingerprint

SETTINGS_FILE = "generator.json"
WEIGHTS_FILE = "model.safetensors"
FOLDER_FORMAT = 1
"""Raised when what is stored changes; a folder of another format is refused by name."""

_WAY_OUT = "copy the whole folder again; in a run's folder, remove it, and the run's command makes it anew"


@dataclass(frozen=True)
class StoredGenerator:
    """A generator read from a folder.

    Attributes:
        model: In evaluation mode, on the CPU.
        encoder: Fingerprint of the encoder that it was trained with.
        sees_evidence: Whether its choices depend on the evidence; if not, contexts are given to it without.
        about: What its trainer noted, such as name, seed and step.
    """

    model: KgatModel
    encoder: str
    sees_evidence: bool = True
    about: Mapping[str, Any] = field(default_factory=dict)


def save_generator(folder: Path, stored: StoredGenerator) -> None:
    """Write a generator's folder; each file in one step, the settings last.

    Raises:
        OSError: If the disk is full or the folder can't be written.
    """
    save_weights(folder / WEIGHTS_FILE, stored.model)
    settings = {
        "format": FOLDER_FORMAT,
        "settings": stored.model.settings.model_dump(mode="json"),
        "encoder": stored.encoder,
        "sees_evidence": stored.sees_evidence,
        "fingerprint": weights_fingerprint(stored.model),
        "about": dict(stored.about),
    }
    with atomic_file(folder / SETTINGS_FILE) as file:
        file.write(json.dumps(settings, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def load_generator(folder: Path) -> StoredGenerator:
    """Read a generator's folder; a K-GAT run's folder stands for the generator that the run chose.

    Raises:
        FileNotFoundError: If there is no generator.
        ValueError: If the folder is of another format, or its files do not fit together.
    """
    if not (folder / SETTINGS_FILE).is_file() and (folder / "generator" / SETTINGS_FILE).is_file():
        folder = folder / "generator"
    path = folder / SETTINGS_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} holds no {SETTINGS_FILE}; name the folder of a finished K-GAT run, or its generator/ folder"
        )
    with _named(path):
        data = json.loads(path.read_text(encoding="utf-8"))
        found = data["format"]
    if found != FOLDER_FORMAT:
        raise ValueError(
            f"{path} is of format {found}, expected {FOLDER_FORMAT}; train again, or use the version that wrote it"
        )
    with _named(path):
        fingerprint = data["fingerprint"]
        model = KgatModel(KgatSettings.model_validate(data["settings"]))
        stored = StoredGenerator(model, str(data["encoder"]), bool(data["sees_evidence"]), dict(data["about"]))
    load_weights(model, folder / WEIGHTS_FILE)
    if weights_fingerprint(model) != fingerprint:
        raise ValueError(f"{folder}: {WEIGHTS_FILE} is not the file that {SETTINGS_FILE} was written with; copy both")
    model.eval()
    return stored


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file in whatever wrong data raise, such as for more weights than memory holds."""
    try:
        yield
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} describes no generator: {error!r}; {_WAY_OUT}") from error


def save_weights(path: Path, model: KgatModel) -> None:
    """Write a generator's weights in one step."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with atomic_file(path) as file:
        file.write(save(state))


def load_weights(model: KgatModel, path: Path) -> None:
    """Read weights into a generator of the same shape.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is damaged, or of a generator of another shape.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; {_WAY_OUT}")
    try:
        model.load_state_dict(load_file(path))
    except (RuntimeError, SafetensorError) as error:
        raise ValueError(f"{path} does not fit the settings beside it: {error}; {_WAY_OUT}") from error
