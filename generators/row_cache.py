"""Keys and values of many rows of different lengths, kept across turns without padding between them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.cache_utils import Cache


class RowCache(Cache):
    """A cache of R rows in which a forward pass may touch any of them, each at its own length.

    Buffers are (R, H, L, D) per layer; L grows as needed. Before a forward pass, :meth:`select` names the rows and
    the positions that the pass writes. Full attention only: layers with a sliding window or a recurrent state would
    need buffers of their own, and are refused.

    Args:
        config: The model's (text) configuration.
        num_rows: R.
        device: Where the buffers live.
        dtype: Of keys and values.

    Raises:
        ValueError: If a layer of the model is not full attention.
    """

    def __init__(self, config: PretrainedConfig, num_rows: int, device: torch.device, dtype: torch.dtype) -> None:
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise ValueError(
                f"model type {config.model_type!r} has layers {sorted(kinds)}; the retained-cache engine needs "
                "'full_attention' throughout: use the vLLM engine for this model"
            )
        super().__init__(layers=[])
        self._num_layers = int(config.num_hidden_layers)
        self._keys: list[Tensor | None] = [None] * self._num_layers  # each (R, H, L, D)
        self._values: list[Tensor | None] = [None] * self._num_layers
        self._num_rows = num_rows
        self._device, self._dtype = device, dtype
        self._capacity = 0
        self._rows: Tensor | slice = slice(None)
        self._positions = torch.zeros(0)
        self._width = 0

    def reserve(self, length: int) -> None:
        """Make room for sequences of ``length`` tokens; what is stored stays."""
        if length <= self._capacity:
            return
        self._capacity = max(64, 2 * self._capacity, length)
        for buffers in (self._keys, self._values):
            for layer, old in enumerate(buffers):
                if old is not None:
                    grown = old.new_zeros(*old.shape[:2], self._capacity, old.shape[3])
                    grown[:, :, : old.shape[2]] = old
                    buffers[layer] = grown

    def select(self, rows: Tensor | slice | None, positions: Tensor) -> None:
        """Name what the next forward pass works on.

        Args:
            rows: (n,) row numbers, whose keys and values are copied at each layer; or a run of n rows as a slice,
                or None for all rows, which are only looked at.
            positions: (n, q) where each new token of each row is written.
        """
        self._rows, self._positions = slice(None) if rows is None else rows, positions
        self._width = int(positions.max()) + 1
        self.reserve(self._width)

    def copy_row(self, source: int, targets: list[int], length: int) -> None:
        """Copy the first ``length`` tokens of a row to others."""
        for buffers in (self._keys, self._values):
            for buffer in buffers:
                if buffer is not None:
                    for target in targets:
                        buffer[target, :, :length] = buffer[source, :, :length]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write (n, H, q, D) states and return the selected rows' (n, H, width, D) keys and values."""
        stored = []
        for buffers, states in ((self._keys, key_states), (self._values, value_states)):
            buffer = buffers[layer_idx]
            if buffer is None:
                buffer = states.new_zeros(self._num_rows, states.shape[1], self._capacity, states.shape[3])
                buffers[layer_idx] = buffer
            new = states.transpose(1, 2)  # (n, q, H, D)
            if isinstance(self._rows, slice):
                chosen = buffer[self._rows]  # (n, H, L, D), the buffer itself
                chosen[torch.arange(len(chosen), device=states.device)[:, None], :, self._positions] = new
                stored.append(chosen[:, :, : self._width])
            else:
                buffer[self._rows[:, None], :, self._positions] = new
                stored.append(buffer[self._rows, :, : self._width])
        return stored[0], stored[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: positions are always given explicitly."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return (width, offset) of the keys that the next update returns."""
        return self._width, 0
