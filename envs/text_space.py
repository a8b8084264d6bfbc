"""A Gymnasium space of any text: empty, multi-line, Greek, emoji, up to a length."""

from __future__ import annotations

import multiprocessing
import string
from collections.abc import Iterator, Sequence
from ctypes import c_uint8
from typing import Any, overload

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory


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

    def __hash__(self) -> int:
        return hash((AnyText, self.max_length))


# Gymnasium's asynchronous vector environments pass observations through shared memory. Its own way for texts knows
# only the space's characters, and reads them once, before the first reset. Ours: a length and UTF-8 for each worker.
_LENGTH_BYTES = 8
_BYTES_PER_CHARACTER = 4


class SharedTexts(Sequence[str]):
    """The present texts of all workers; a deep copy, which vector environments return, is a tuple of strings."""

    def __init__(self, shared_memory: Any, num_envs: int) -> None:
        self._rows = np.frombuffer(shared_memory.get_obj(), dtype=np.uint8).reshape(num_envs, -1)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        row = self._rows[index]
        length = int(row[:_LENGTH_BYTES].view(np.int64)[0])
        encoded: bytes = row[_LENGTH_BYTES : _LENGTH_BYTES + length].tobytes()
        return encoded.decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)


@create_shared_memory.register(AnyText)
def _create_shared_texts(space: AnyText, n: int = 1, ctx: Any = multiprocessing) -> Any:
    return ctx.Array(c_uint8, n * (_LENGTH_BYTES + _BYTES_PER_CHARACTER * space.max_length))


@read_from_shared_memory.register(AnyText)
def _read_shared_texts(space: AnyText, shared_memory: Any, n: int = 1) -> SharedTexts:
    return SharedTexts(shared_memory, n)


@write_to_shared_memory.register(AnyText)
def _write_shared_text(space: AnyText, index: int, value: str, shared_memory: Any) -> None:
    size = _LENGTH_BYTES + _BYTES_PER_CHARACTER * space.max_length
    row = np.frombuffer(shared_memory.get_obj(), dtype=np.uint8)[index * size : (index + 1) * size]
    encoded = value.encode("utf-8", "surrogatepass")
    row[:_LENGTH_BYTES].view(np.int64)[0] = len(encoded)
    row[_LENGTH_BYTES : _LENGTH_BYTES + len(encoded)] = np.frombuffer(encoded, dtype=np.uint8)
