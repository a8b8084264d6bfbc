"""Seeds are derived from a key, never shared and never ``seed + index``."""

from __future__ import annotations

import hashlib
from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a random stream is for. Numbers are part of the data format: never renumber."""

    CLAIMS = 1
    CONDITION = 2
    PRESENTATION = 3
    SAMPLING = 4
    TRAINING_MIX = 5
    BOOTSTRAP = 6
    SCRIPTED = 7
    INITIALISATION = 8
    CLONING = 9
    RETRIEVAL = 10
    EVIDENCE = 11
    BENCHMARK = 12
    CANDIDATES = 14
    TOPOLOGY_BATCHES = 15


SPLIT_NUMBERS = {"train": 0, "dev": 1, "test": 2}


def derive_seed(run_seed: int, purpose: Purpose, *key: int) -> int:
    """Return a 63-bit seed for (run seed, purpose, key...), from numpy's ``SeedSequence``.

    Raises:
        ValueError: If a part of the key is negative.

    Example:
        >>> derive_seed(5, Purpose.SAMPLING, 1) == derive_seed(6, Purpose.SAMPLING, 0)
        False
    """
    parts = [run_seed, int(purpose), *key]
    if any(part < 0 for part in parts):
        raise ValueError(f"seed key {parts} must hold integers >= 0")
    # Lengths are part of the key: SeedSequence pads with zeros, so [1] and [1, 0] would be one stream.
    state = np.random.SeedSequence([len(parts), *parts]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def derive_rng(run_seed: int, purpose: Purpose, *key: int) -> np.random.Generator:
    """Return a generator seeded by :func:`derive_seed`."""
    return np.random.default_rng(derive_seed(run_seed, purpose, *key))


def text_key(text: str) -> int:
    """Return a stable 64-bit part of a key for a text, whatever process or machine asks.

    Example:
        >>> text_key("a") == text_key("a"), 0 <= text_key("") < 2**64
        (True, True)
    """
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest())
