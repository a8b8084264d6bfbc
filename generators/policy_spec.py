"""From what a user types to a policy description: a walker's name, a run folder, a checkpoint, a model, an endpoint."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from provgym.generators.endpoint_config import ENDPOINT_DIR, read_endpoint_config
from provgym.generators.policy_folder import (
    ADAPTER_FILE,
    CHAT_KEYS,
    base_of,
    holds_policy,
    is_tiny,
    run_config,
    run_settings,
    shipped_tiny,
    what_is_missing,
)
from provgym.generators.policy_kinds import (
    EndpointSpec,
    HFSpec,
    PolicySpec,
    ScriptedSpec,
    SmolLM2Spec,
    TinySpec,
    WalkerName,
)

NAMED = (*get_args(WalkerName), "tiny", "smollm2", "endpoint")
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_NOT_IDENTITY = {"name", "max_rows", "device", "endpoint"}
_DEFAULT_ROWS = 32
_MODEL = "tiny, smollm2, a run, or a model's folder or id"
_LANGUAGE_MODEL = "smollm2, a language model's run, or a Hugging Face model's folder or id"
_USED_BY: Mapping[str, tuple[tuple[type, ...], str]] = MappingProxyType(
    {
        "adapter": ((SmolLM2Spec, HFSpec), _LANGUAGE_MODEL),
        "base_url": ((EndpointSpec,), "endpoint"),
        "model": ((EndpointSpec,), "endpoint"),
        "api_key_env": ((EndpointSpec,), "endpoint"),
        "timeout_s": ((EndpointSpec,), "endpoint"),
        "endpoint_dir": ((EndpointSpec,), "endpoint"),
        "endpoint_file": ((EndpointSpec,), "endpoint"),
        "temperature": ((TinySpec, SmolLM2Spec, HFSpec, EndpointSpec), f"{_MODEL}, or endpoint"),
        "max_rows": ((TinySpec, SmolLM2Spec, HFSpec, EndpointSpec), f"{_MODEL}, or endpoint"),
        "max_length": ((TinySpec, SmolLM2Spec, HFSpec), _MODEL),
        "grammar": ((SmolLM2Spec, HFSpec), _LANGUAGE_MODEL),
    }
)
"""Option to the kinds of policy that it means something to, and how a user names one."""


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """What goes with a policy's name on the command line.

    Attributes:
        adapter: LoRA adapter for ``smollm2`` or a Hugging Face model.
        base_url: Of ``endpoint``, version included.
        model: Model name that the endpoint knows.
        temperature: 0 is greedy.
        max_rows: Episodes played at once, or requests in flight at an endpoint; None is 32.
        max_length: Longest episode in tokens; None is the run's, or the model's own limit.
        grammar: ``json`` or ``tool_call``; None is the run's, or ``json``.
        api_key_env: Environment variable that holds the endpoint's key; None sends none.
        timeout_s: Seconds for one request to the endpoint; None is a minute.
        endpoint_dir: Folder of the endpoint's cache and ledger; None is ``runs/endpoint``.
        endpoint_file: YAML file with further fields of the endpoint's configuration.
    """

    adapter: Path | None = None
    base_url: str | None = None
    model: str | None = None
    temperature: float = 0.0
    max_rows: int | None = None
    max_length: int | None = None
    grammar: str | None = None
    api_key_env: str | None = None
    timeout_s: float | None = None
    endpoint_dir: Path | None = None
    endpoint_file: Path | None = None


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
    (spec,) = policy_specs([text], options)
    return spec


def policy_specs(texts: Sequence[str], options: PolicyOptions | None = None) -> list[PolicySpec]:
    """Return the descriptions of several policies that share their options.

    An option goes to the policies that it means something to, so that a scripted walker can stand beside a model.

    Args:
        texts: Each as in :func:`policy_spec`.
        options: What goes with them.

    Raises:
        FileNotFoundError: If a folder does not exist, or holds no policy; the message names near ones.
        ValueError: If an option means nothing to any of the policies, or does not go together with one.
    """
    options = options or PolicyOptions()
    if options.adapter is not None and not (options.adapter / ADAPTER_FILE).is_file():
        raise FileNotFoundError(
            f"--adapter {options.adapter} holds no adapter (no {ADAPTER_FILE}); give the folder that does"
        )
    specs = [_spec_of(text, options) for text in texts]
    found = ", ".join(repr(text) for text in texts)
    for name, (kinds, wanted) in _USED_BY.items():
        value = getattr(options, name)
        is_given = value != 0 if name == "temperature" else value is not None
        if not is_given or any(isinstance(spec, kinds) for spec in specs):
            continue
        if name == "temperature" and any(isinstance(s, ScriptedSpec) and s.walker == "random" for s in specs):
            continue  # it has no temperature, and still plays otherwise each time
        option = "--sampled, at temperature" if name == "temperature" else f"--{name.replace('_', '-')}"
        raise ValueError(
            f"{option} {value} does nothing for policy {found}; leave it out, or name a policy that it is for: {wanted}"
        )
    return specs


def _spec_of(text: str, options: PolicyOptions) -> PolicySpec:
    """Describe one policy; options that mean nothing to its kind are not looked at."""
    if text in get_args(WalkerName):
        return ScriptedSpec.model_validate({"walker": text})
    if text == "endpoint":
        return _endpoint(options)
    rows = _DEFAULT_ROWS if options.max_rows is None else options.max_rows
    engine: dict[str, Any] = {"temperature": options.temperature, "max_rows": rows}
    if options.max_length is not None:
        engine["max_length"] = options.max_length
    if text == "tiny":
        return TinySpec.model_validate(engine)
    chat = engine | ({"grammar": options.grammar} if options.grammar is not None else {})
    if options.adapter is not None:
        chat["adapter"] = options.adapter
    if text == "smollm2":
        return SmolLM2Spec.model_validate(chat)
    if text.strip() and Path(text).is_dir():
        return _from_folder(Path(text), chat)
    _check_hub_id(text)
    return HFSpec.model_validate({"path": text, **chat})


def run_config_of(text: str) -> Mapping[str, Any] | None:
    """Return the configuration of the run that a policy's folder belongs to; None for every other policy."""
    folder = Path(text)
    if text in NAMED or not folder.is_dir():
        return None
    return run_config(folder if holds_policy(folder) else folder / "policy")


def fingerprint_of(spec: PolicySpec) -> str:
    """Return 12 hexadecimal digits that tell a policy from others of its name: its settings, and its weight files.

    Weights behind a hub id or an endpoint cannot be read; they count by name.
    """
    settings = {k: str(v) for k, v in spec.model_dump(exclude=_NOT_IDENTITY).items() if k not in ("path", "adapter")}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    if isinstance(spec, EndpointSpec):
        digest.update(spec.endpoint.identity.encode())
    else:
        places = [getattr(spec, "path", None), getattr(spec, "adapter", None)]
        if isinstance(spec, TinySpec) and spec.path is None:
            places[0] = shipped_tiny()
        for place in places:
            folder = None if place is None else Path(place)
            if folder is None or not folder.is_dir():
                digest.update(str(place).encode())
                continue
            for file in sorted(p for pattern in ("*.safetensors", "*.bin") for p in folder.glob(pattern)):
                with file.open("rb") as stream:
                    digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:12]


def _endpoint(options: PolicyOptions) -> EndpointSpec:
    given = {name: getattr(options, name) for name in ("base_url", "model", "api_key_env", "timeout_s")}
    given["max_concurrency"] = options.max_rows
    config = read_endpoint_config(options.endpoint_file, options.endpoint_dir or ENDPOINT_DIR, given)
    return EndpointSpec(endpoint=config, temperature=options.temperature)


def _from_folder(folder: Path, settings: dict[str, Any]) -> PolicySpec:
    """Describe the policy in a folder: of a run, a checkpoint, or a saved model or adapter."""
    name = folder.resolve().name
    weights = folder
    if not holds_policy(folder):
        weights = folder / "policy"
        if not holds_policy(weights):
            raise FileNotFoundError(what_is_missing(folder))
    run = run_config(weights)
    if run is not None and weights is folder:
        run_name = str(run.get("name") or "run")
        name = run_name if name == "policy" else f"{run_name}@{name.removeprefix('checkpoint-')}"
    is_adapter = (weights / ADAPTER_FILE).is_file()
    base = base_of(weights, run) if is_adapter else str(weights)
    common = {"name": name, **run_settings(run), **settings}
    if is_tiny(Path(base)):
        if "adapter" in settings:
            raise ValueError(
                f"--adapter {settings['adapter']} needs a Hugging Face model, found the tiny policy in {folder}; "
                "an adapter of the tiny policy is a policy of its own: name its folder with --policy"
            )
        for key in (*CHAT_KEYS, "adapter"):
            common.pop(key, None)
        return TinySpec.model_validate(common | {"path": base} | ({"adapter": weights} if is_adapter else {}))
    if is_adapter:
        if "adapter" in settings:
            raise ValueError(f"{folder} is an adapter already, found --adapter {settings['adapter']} beside it")
        common["adapter"] = weights
    return HFSpec.model_validate(common | {"path": base})


def _check_hub_id(text: str) -> None:
    """Let ``owner/name`` pass; what looks like a path that is missing fails here, with near names."""
    path = Path(text)
    if _HUB_ID.fullmatch(text) and not path.parent.is_dir():
        return
    around = [str(p) for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(text, [*NAMED, *around], n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"names are {', '.join(NAMED)}"
    raise FileNotFoundError(f"policy {text!r} is no folder, no name and no hub id (owner/name); {hint}")
