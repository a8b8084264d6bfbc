"""Loading any Hugging Face causal language model, with or without an adapter, or saying why it can't be."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import PeftModel, get_peft_model_state_dict
from peft.utils import SAFETENSORS_WEIGHTS_NAME, WEIGHTS_NAME
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from provgym.generators.policy_kinds import DtypeName

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class LoadedModel(NamedTuple):
    """A model in evaluation mode and its tokenizer, as they were saved."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load_causal_lm(
    name_or_path: str | Path,
    adapter: str | Path | None = None,
    dtype: DtypeName = "auto",
    device: str = "auto",
    *,
    local_files_only: bool = False,
    check_adapter_base: bool = True,
    require_adapter_effect: bool = True,
    is_trainable: bool = False,
) -> LoadedModel:
    """Load a causal LM from a folder or the Hugging Face hub.

    Args:
        name_or_path: Folder, or hub id (``HF_HUB_OFFLINE=1`` or ``local_files_only`` keeps to the cache).
        adapter: Folder of a PEFT adapter (LoRA), or None.
        dtype: ``auto`` is bfloat16 on a GPU that has it and float32 elsewhere. Half precision on a CPU is
            several times slower than float32 and gives other numbers: float32 is used then, with a warning.
        device: ``auto`` is the first GPU if there is one; else any torch device.
        local_files_only: Never ask the network.
        check_adapter_base: Refuse an adapter whose recorded base has another name than ``name_or_path``.
        require_adapter_effect: Refuse an adapter that leaves every logit as it was.
        is_trainable: Whether the adapter's weights are to be trained on; otherwise they are frozen.

    Raises:
        FileNotFoundError: If the model or adapter is not there.
        ValueError: If the model is no causal LM, or the adapter was made for another base, binds to nothing,
            binds in part, or has no effect.
    """
    name = str(name_or_path)
    target = _device(device)
    model, tokenizer = _load_base(name, choose_dtype(dtype, target), local_files_only)
    if adapter is not None:
        model = _with_adapter(model, name, Path(adapter), check_adapter_base, is_trainable)
        if require_adapter_effect and not _changes_logits(model):
            raise ValueError(
                f"adapter {adapter} has no effect on {name!r}: every logit is the same without it. It was never "
                "trained, or its weights are zero; leave it out, or pass require_adapter_effect=False"
            )
        if not is_trainable:
            model.requires_grad_(False)  # PEFT leaves the base trainable, and a look without the adapter thaws it
    nn.Module.to(model, target)
    return LoadedModel(model.eval(), tokenizer)


def _load_base(name: str, dtype: torch.dtype, local_files_only: bool) -> LoadedModel:
    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        raise FileNotFoundError(f"folder {name!r} holds no model (no config.json); give the folder that does")
    kwargs = {"local_files_only": local_files_only or Path(name).is_dir()}
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **kwargs)
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **kwargs)
    except OSError as error:
        raise FileNotFoundError(
            f"model {name!r} can't be loaded: it is no folder with a saved model, and no model of that id "
            f"was found in the Hugging Face cache or on the hub ({_first_line(error)}). Check the name, "
            f"download it where there is a network (`hf download {name}`), or give the folder that holds it"
        ) from error
    except (ValueError, KeyError) as error:
        raise ValueError(f"model {name!r} can't be used as a causal language model: {_first_line(error)}") from error
    return LoadedModel(model, tokenizer)


def choose_dtype(dtype: DtypeName, device: torch.device) -> torch.dtype:
    """Return the torch type for a name on a device; half precision on a CPU becomes float32, with a warning.

    Raises:
        ValueError: If the name is unknown.
    """
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    if dtype not in _DTYPES:
        raise ValueError(f"dtype {dtype!r} is unknown; choose one of {['auto', *_DTYPES]}")
    if device.type == "cpu" and dtype != "float32":
        warnings.warn(f"dtype {dtype} on a CPU is slow and inexact; float32 is used instead", stacklevel=3)
        return torch.float32
    return _DTYPES[dtype]


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def _with_adapter(
    model: PreTrainedModel, name: str, folder: Path, check_base: bool, is_trainable: bool
) -> PreTrainedModel:
    """Bind an adapter, and prove that all of it is bound."""
    config_path = folder / "adapter_config.json"
    if not config_path.is_file():
        raise FileNotFoundError(f"{folder} holds no adapter (no adapter_config.json); give the folder that does")
    config = json.loads(config_path.read_text(encoding="utf-8"))
    base = str(config.get("base_model_name_or_path") or "")
    made_for = f"adapter {folder} was made for {base or 'an unnamed model'!r}, not for {name!r}"
    if check_base and base and _base_name(base) != _base_name(name):
        raise ValueError(
            f"{made_for}; load that base model. If both are one model, write this name as base_model_name_or_path "
            f"into {config_path}"
        )
    saved = _saved_tensors(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PEFT would warn of is checked below, as errors
        try:
            bound = PeftModel.from_pretrained(model, str(folder), is_trainable=is_trainable)
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"{made_for}: {_first_line(error)}") from error
    _check_bound(bound, saved, made_for)
    result: Any = bound  # PeftModel forwards everything that a PreTrainedModel has
    return result  # type: ignore[no-any-return]


def _base_name(name_or_path: str) -> str:
    """Return a model's name without its owner or folder, also of a path into the Hugging Face cache."""
    parts = Path(name_or_path).parts
    if len(parts) >= 3 and parts[-2] == "snapshots":
        return parts[-3].rpartition("--")[2].lower()
    return Path(name_or_path).name.lower()


def _saved_tensors(folder: Path) -> dict[str, Tensor]:
    path = folder / SAFETENSORS_WEIGHTS_NAME
    if path.is_file():
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    if (folder / WEIGHTS_NAME).is_file():
        weights: dict[str, Tensor] = torch.load(folder / WEIGHTS_NAME, map_location="cpu", weights_only=True)
        return weights
    raise FileNotFoundError(f"{folder} holds adapter_config.json but no weights ({SAFETENSORS_WEIGHTS_NAME})")


def _check_bound(bound: PeftModel, saved: dict[str, Tensor], made_for: str) -> None:
    """Compare what the file holds with what the model now holds."""
    loaded = get_peft_model_state_dict(bound)
    missing = sorted(set(saved) - set(loaded))
    fresh = sorted(set(loaded) - set(saved))
    if not saved or len(missing) == len(saved):
        raise ValueError(f"{made_for}: none of its {len(saved)} tensors binds to a module (first: {missing[:1]})")
    if missing or fresh:
        raise ValueError(
            f"{made_for}: {len(missing)} tensors bind to no module (first: {missing[:1]}) and {len(fresh)} "
            f"modules get no tensor (first: {fresh[:1]})"
        )
    wrong = [key for key, value in saved.items() if not torch.equal(loaded[key].cpu().to(value.dtype), value)]
    if wrong:
        raise ValueError(f"{made_for}: {len(wrong)} tensors did not reach the model (first: {wrong[0]})")


@torch.inference_mode()
def _changes_logits(model: PreTrainedModel) -> bool:
    """Whether any logit over a few tokens differs with and without the adapter."""
    bound: Any = model
    bound.eval()
    vocabulary = int(bound.get_input_embeddings().weight.shape[0])
    ids = torch.arange(8, device=bound.device)[None] * 37 % vocabulary  # (1, 8)
    adapted = bound(input_ids=ids).logits
    with bound.disable_adapter():
        plain = bound(input_ids=ids).logits
    return not torch.equal(adapted, plain)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
