"""Sentence vectors on disk, found by what was encoded and by which encoder; several processes may share a folder.

See :mod:`provgym.envs.keyed_store` for what holds across processes and kills.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from provgym.envs.keyed_store import Column, KeyedStore, StoreFormat

STORE_FILE = "embeddings.sqlite3"
STORE_FORMAT = 2
"""Raised when what is stored changes; a file of another format is refused, never guessed at."""

_FLOAT = np.dtype("<f4")
_FORMAT = StoreFormat(
    file_name=STORE_FILE,
    contents="embeddings",
    application_id=0x50475645,
    version=STORE_FORMAT,
    columns=(Column("dimension", "INTEGER", (int,)), Column("vector", "BLOB", (bytes,))),
    locks_folder="embedding-locks",
    survives_power_cut=False,  # a lost vector costs milliseconds
)


def embedding_key(fingerprint: str, text: str) -> str:
    """Return the key of a text under an encoder."""
    content = json.dumps([STORE_FORMAT, fingerprint, text])
    return hashlib.sha256(content.encode("ascii")).hexdigest()


class EmbeddingStore(KeyedStore):
    """Vectors in one folder. The first vector of a key stays, so that every process computes with the same one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _FORMAT)

    def get(self, key: str) -> NDArray[np.float32] | None:
        """Return the (d,) float32 vector of a key, or None."""
        row = self._find(key)
        return None if row is None else np.frombuffer(row[1], dtype=_FLOAT).astype(np.float32)

    def put(self, key: str, vector: NDArray[np.float32]) -> None:
        """Store a (d,) vector; a whole one that is there stays.

        Raises:
            OSError: If it can't be stored, such as on a full disk.
        """
        self._keep(key, (len(vector), vector.astype(_FLOAT).tobytes()))

    def _is_readable(self, row: tuple[Any, ...]) -> bool:
        if not super()._is_readable(row) or len(row[1]) != row[0] * _FLOAT.itemsize:
            return False
        return bool(np.isfinite(np.frombuffer(row[1], dtype=_FLOAT)).all())
