"""Sentence vectors without weights: signed feature hashing of words and word pairs.

A stand-in where no sentence encoder is installed, and for tests: the same text gives the same vector on every machine,
in microseconds. It knows shared words, not meaning: synonyms are as far apart as strangers.

Source: feature hashing, arXiv:0902.2206; the choice of features and weights is ours.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"\w[\w-]*")
_PAIR_WEIGHT = 0.5
_NO_WORD = ""  # every text has at least this feature, so that no vector is zero


class HashedEncoder:
    """Encodes texts as unit vectors of hashed words.

    Args:
        dimension: d; the default is that of all-MiniLM-L6-v2, so that one can stand in for the other.

    Raises:
        ValueError: If ``dimension`` < 2.

    Example:
        >>> rows = HashedEncoder().encode(["Bolnan raised it.", "It raised BOLNAN", "something else"])
        >>> bool(rows[0] @ rows[1] > rows[0] @ rows[2])
        True
    """

    def __init__(self, dimension: int = 384) -> None:
        if dimension < 2:
            raise ValueError(f"dimension={dimension} must be >= 2")
        self.dimension = dimension
        self.fingerprint = f"hashed-words-1/{dimension}"

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return (n, d) float32 rows of length 1, one for each text; upper and lower case are the same."""
        rows = np.zeros((len(texts), self.dimension), dtype=np.float64)
        for row, text in zip(rows, texts, strict=True):
            for feature, weight in _features(text):
                code = int.from_bytes(hashlib.blake2b(feature.encode("utf-8", "replace"), digest_size=8).digest())
                row[(code >> 1) % self.dimension] += weight if code & 1 else -weight
            if not row.any():  # features that cancel each other out
                row[0] = 1.0
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows.astype(np.float32)  # (n, d)


def _features(text: str) -> Iterator[tuple[str, float]]:
    words = _WORD.findall(text.lower())
    yield _NO_WORD, 1e-3
    for word in words:
        yield word, 1.0
    for pair in itertools.pairwise(words):
        yield " ".join(pair), _PAIR_WEIGHT
