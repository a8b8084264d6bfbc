"""A Gymnasium space of any text: empty, multi-line, Greek, emoji, up to a length."""

from __future__ import annotations

import string
from typing import Any

import numpy as np
from gymnasium import spaces


class AnyText(spaces.Text):
    """All strings of at most ``max_length`` characters; samples are short and printable.

    ``gymnasium.spaces.Text`` lists its characters one by one, which no list of evidence or model output can satisfy.
    """

    def __init__(self, max_length: int, *, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(max_length=max_length, min_length=0, charset=string.printable, seed=seed)

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a string within the length."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return up to 64 printable characters."""
        length = int(self.np_random.integers(0, min(64, self.max_length) + 1))
        return "".join(self.np_random.choice(list(string.printable), size=length)) if length else ""

    def __repr__(self) -> str:
        return f"AnyText(max_length={self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText) and other.max_length == self.max_length
