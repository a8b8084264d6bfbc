"""What lies in a folder of weights: a model or an adapter, and the run that trained it.

Run folders are read by the files that training leaves (``docs/files.md``); nothing of the trainers is imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ADAPTER_FILE = "adapter_config.json"
MODEL_FILE = "config.json"
CHAT_KEYS = ("dtype", "grammar", "enable_thinking", "max_action_tokens")
"""How a language model was trained to write: keys of a run's ``model`` section."""


def holds_policy(folder: Path) -> bool:
    """Whether a folder holds a model or an adapter."""
    return (folder / ADAPTER_FILE).is_file() or (folder / MODEL_FILE).is_file()


def what_is_missing(folder: Path) -> str:
    """Say why a folder is no policy: its run has not finished, or there is nothing in it."""
    named = [p for p in folder.glob("checkpoints/checkpoint-*") if p.name.removeprefix("checkpoint-").isdecimal()]
    whole = [p for p in named if holds_policy(p)]  # one that is being written is none yet
    checkpoints = sorted(whole, key=lambda p: int(p.name.removeprefix("checkpoint-")))
    if checkpoints:
        return f"{folder} is a run that has not finished; name a checkpoint, such as {checkpoints[-1]}"
    return f"{folder} holds no policy: neither {MODEL_FILE}, {ADAPTER_FILE} nor a folder 'policy' with one of them"


def run_config(weights: Path) -> Mapping[str, Any] | None:
    """Return the configuration of the run that a folder of weights lies in (one or two levels up); None without one.

    Raises:
        ValueError: If it cannot be read; the message names the file.
    """
    for parent in (weights.resolve().parent, weights.resolve().parent.parent):
        path = parent / "config.yaml"
        if path.is_file():
            try:
                data = yaml.safe_load(path.read_text(encoding="utf-8"))
            except (yaml.YAMLError, UnicodeDecodeError) as error:
                raise ValueError(
                    f"{path} is not valid YAML ({error}); it says how {weights} was trained: give the run's command "
                    "again to write it anew, or copy the weights out of the run"
                ) from error
            # A PAPT run, or a warm start of a chat model: its adapter writes in the grammar that it was taught.
            is_run = isinstance(data, dict) and ("phases" in data or data.get("kind") == "chat")
            if is_run and isinstance(data.get("model"), dict):
                return {"name": parent.name, **data}
    return None


def run_settings(run: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return how a run's policy was trained to write and how long its episodes may be."""
    if run is None:
        return {}
    found = {key: run["model"][key] for key in CHAT_KEYS if key in run["model"]}
    length = (run.get("generation") or {}).get("max_length")
    return found | ({} if length is None else {"max_length": length})


def base_of(weights: Path, run: Mapping[str, Any] | None) -> str:
    """Return the base model of an adapter: the run's, else the one that the adapter names.

    Raises:
        ValueError: If neither names one, or the adapter's file is damaged.
    """
    if run is not None:
        model = run["model"]
        if model.get("kind") == "smollm2":
            return "smollm2-135m"
        if model.get("kind") == "tiny":
            return str(model.get("path") or shipped_tiny())
        if model.get("path"):
            return str(model["path"])
    base = _json_object(weights / ADAPTER_FILE).get("base_model_name_or_path")
    if not base:
        raise ValueError(f"{weights} does not say which model it adapts; name that model and give --adapter {weights}")
    return str(base)


def is_tiny(folder: Path) -> bool:
    """Whether a folder's tokenizer is the tiny policy's, which alone has its action mark."""
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        return False
    from provgym.generators.tiny import ACT  # here, because it loads torch

    added = _json_object(tokenizer).get("added_tokens") or []
    return ACT in {token.get("content") for token in added}


def shipped_tiny() -> Path:
    """Return the folder of the tiny policy that comes with the package."""
    from provgym.generators.tiny import SHIPPED_TINY  # here, because it loads torch

    return SHIPPED_TINY


def _json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that a model or adapter was saved with."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); save or download that folder again") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds {type(data).__name__}, expected an object; save or download that folder again")
    return data
