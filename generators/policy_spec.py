"""From what a user types to a policy description: a walker's name, a run folder, a checkpoint, a model, an endpoint.

Run folders are read by the files that training leaves (``docs/files.md``); nothing of the trainers is imported.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml

from provgym.generators.backends import (
    EndpointSpec,
    HFSpec,
    PolicySpec,
    ScriptedSpec,
    SmolLM2Spec,
    TinySpec,
    WalkerName,
)
from provgym.generators.endpoint_client import EndpointConfig
from provgym.generators.tiny import ACT, SHIPPED_TINY

ADAPTER_FILE = "adapter_config.json"
MODEL_FILE = "config.json"
NAMED = (*get_args(WalkerName), "tiny", "smollm2", "endpoint")
_CHAT_KEYS = ("dtype", "grammar", "enable_thinking", "max_action_tokens")
_NOT_IDENTITY = {"name", "max_rows", "device", "endpoint"}


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """What goes with a policy's name on the command line.

    Attributes:
        adapter: LoRA adapter for ``smollm2`` or a Hugging Face model.
        base_url: Of ``endpoint``, version included.
        model: Model name that the endpoint knows.
        temperature: 0 is greedy.
        max_rows: Episodes played at once, or requests in flight at an endpoint.
        max_length: Longest episode in tokens; None is the run's, or the model's own limit.
        grammar: ``json`` or ``tool_call``; None is the run's, or ``json``.
    """

    adapter: Path | None = None
    base_url: str | None = None
    model: str | None = None
    temperature: float = 0.0
    max_rows: int = 32
    max_length: int | None = None
    grammar: str | None = None


def policy_spec(text: str, options: PolicyOptions | None = None) -> PolicySpec:
    """Return the description of a policy.

    Args:
        text: ``naive``, ``oracle``, ``random`` or ``bfs`` (scripted walkers), ``tiny`` (the shipped start),
            ``smollm2``, ``endpoint``, a run's folder, a checkpoint's or saved policy's folder, or a Hugging Face
            model's folder or hub id.
        options: What goes with it.

    Raises:
        FileNotFoundError: If a folder does not exist, or holds no policy; the message names near ones.
        ValueError: If options and policy do not go together.
    """
    options = options or PolicyOptions()
    _check_options(text, options)
    if text in get_args(WalkerName):
        return ScriptedSpec.model_validate({"walker": text})
    if text == "endpoint":
        return _endpoint(options)
    engine: dict[str, Any] = {"temperature": options.temperature, "max_rows": options.max_rows}
    if options.max_length is not None:
        engine["max_length"] = options.max_length
    if text == "tiny":
        return TinySpec.model_validate(engine)
    chat = engine | ({"grammar": options.grammar} if options.grammar else {})
    if options.adapter is not None:
        chat["adapter"] = options.adapter
    if text == "smollm2":
        return SmolLM2Spec.model_validate(chat)
    if Path(text).is_dir():
        return _from_folder(Path(text), chat)
    _check_hub_id(text)
    return HFSpec.model_validate({"path": text, **chat})


def run_config_of(text: str) -> Mapping[str, Any] | None:
    """Return the configuration of the run that a policy's folder belongs to; None for every other policy."""
    folder = Path(text)
    if text in NAMED or not folder.is_dir():
        return None
    return _run_config(folder if _holds_policy(folder) else folder / "policy")


def fingerprint_of(spec: PolicySpec) -> str:
    """Return 12 hexadecimal digits that tell a policy from others of its name: its settings, and its weight files.

    Weights behind a hub id or an endpoint cannot be read; they count by name.
    """
    settings = {k: str(v) for k, v in spec.model_dump(exclude=_NOT_IDENTITY).items() if k not in ("path", "adapter")}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    if isinstance(spec, EndpointSpec):
        digest.update(f"{spec.endpoint.base_url} {spec.endpoint.model}".encode())
    else:
        places = [getattr(spec, "path", None), getattr(spec, "adapter", None)]
        if isinstance(spec, TinySpec) and spec.path is None:
            places[0] = SHIPPED_TINY
        for place in places:
            folder = None if place is None else Path(place)
            if folder is None or not folder.is_dir():
                digest.update(str(place).encode())
                continue
            for file in sorted(p for pattern in ("*.safetensors", "*.bin") for p in folder.glob(pattern)):
                with file.open("rb") as stream:
                    digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:12]


def _check_options(text: str, options: PolicyOptions) -> None:
    """Refuse options that the policy would silently ignore."""
    wanted = {"--base-url": options.base_url, "--model": options.model}
    for name, value in wanted.items():
        if value is not None and text != "endpoint":
            raise ValueError(f"{name} {value} belongs to the policy 'endpoint', found policy {text!r}")
    if options.adapter is not None and text in (*get_args(WalkerName), "tiny", "endpoint"):
        raise ValueError(f"--adapter {options.adapter} needs a Hugging Face model, found policy {text!r}")
    if options.temperature > 0 and text in get_args(WalkerName):
        raise ValueError(f"--temperature {options.temperature} does nothing for the scripted walker {text!r}")


def _endpoint(options: PolicyOptions) -> EndpointSpec:
    missing = [n for n, v in (("--base-url", options.base_url), ("--model", options.model)) if v is None]
    if missing:
        raise ValueError(f"policy 'endpoint' lacks {' and '.join(missing)}, such as http://localhost:8000/v1")
    reached = {"base_url": options.base_url, "model": options.model, "max_concurrency": options.max_rows}
    return EndpointSpec(endpoint=EndpointConfig.model_validate(reached), temperature=options.temperature)


def _from_folder(folder: Path, settings: dict[str, Any]) -> PolicySpec:
    """Describe the policy in a folder: of a run, a checkpoint, or a saved model or adapter."""
    name = folder.resolve().name
    weights = folder
    if not _holds_policy(folder):
        weights = folder / "policy"
        if not _holds_policy(weights):
            raise FileNotFoundError(_no_policy(folder))
    run = _run_config(weights)
    if run is not None and weights is folder:
        run_name = str(run.get("name") or "run")
        name = run_name if name == "policy" else f"{run_name}@{name.removeprefix('checkpoint-')}"
    is_adapter = (weights / ADAPTER_FILE).is_file()
    base = _base_of(weights, run) if is_adapter else str(weights)
    common = {"name": name, **_run_settings(run), **settings}
    if _is_tiny(Path(base)):
        for key in (*_CHAT_KEYS, "adapter"):
            common.pop(key, None)
        return TinySpec.model_validate(common | {"path": base} | ({"adapter": weights} if is_adapter else {}))
    if is_adapter:
        if "adapter" in settings:
            raise ValueError(f"{folder} is an adapter already, found --adapter {settings['adapter']} beside it")
        common["adapter"] = weights
    return HFSpec.model_validate(common | {"path": base})


def _holds_policy(folder: Path) -> bool:
    return (folder / ADAPTER_FILE).is_file() or (folder / MODEL_FILE).is_file()


def _no_policy(folder: Path) -> str:
    whole = [p for p in folder.glob("checkpoints/checkpoint-*") if p.name.removeprefix("checkpoint-").isdecimal()]
    checkpoints = sorted(whole, key=lambda p: int(p.name.removeprefix("checkpoint-")))
    if checkpoints:
        return f"{folder} is a run that has not finished; name a checkpoint, such as {checkpoints[-1]}"
    return f"{folder} holds no policy: neither {MODEL_FILE}, {ADAPTER_FILE} nor a folder 'policy' with one of them"


def _run_config(weights: Path) -> Mapping[str, Any] | None:
    """Return the configuration of the run that a folder of weights lies in (one or two levels up)."""
    for parent in (weights.resolve().parent, weights.resolve().parent.parent):
        path = parent / "config.yaml"
        if path.is_file():
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
            if isinstance(data, dict) and "phases" in data and isinstance(data.get("model"), dict):
                return data
    return None


def _run_settings(run: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return how a run's policy was trained to write and how long its episodes may be."""
    if run is None:
        return {}
    found = {key: run["model"][key] for key in _CHAT_KEYS if key in run["model"]}
    length = (run.get("generation") or {}).get("max_length")
    return found | ({} if length is None else {"max_length": length})


def _base_of(weights: Path, run: Mapping[str, Any] | None) -> str:
    """Return the base model of an adapter: the run's, else the one that the adapter names."""
    if run is not None:
        model = run["model"]
        if model.get("kind") == "smollm2":
            return "smollm2-135m"
        if model.get("kind") == "tiny":
            return str(model.get("path") or SHIPPED_TINY)
        return str(model["path"])
    stored = json.loads((weights / ADAPTER_FILE).read_text(encoding="utf-8"))
    base = stored.get("base_model_name_or_path")
    if not base:
        raise ValueError(f"{weights} does not say which model it adapts; name that model and give --adapter {weights}")
    return str(base)


def _is_tiny(folder: Path) -> bool:
    """Whether a folder's tokenizer is the tiny policy's, which alone has its action mark."""
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        return False
    added = json.loads(tokenizer.read_text(encoding="utf-8")).get("added_tokens") or []
    return ACT in {token.get("content") for token in added}


def _check_hub_id(text: str) -> None:
    """Let ``owner/name`` pass; what looks like a path that is missing fails here, with near names."""
    path = Path(text)
    looks_like_path = text.startswith((".", "/", "~")) or text.count("/") != 1 or path.parent.is_dir()
    if not looks_like_path:
        return
    around = [str(p) for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(text, [*NAMED, *around], n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"names are {', '.join(NAMED)}"
    raise FileNotFoundError(f"policy {text!r} is no folder, no name and no hub id (owner/name); {hint}")
