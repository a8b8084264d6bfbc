"""Micro-batches of alike length, without the padding that the whole step's longest row would bring.

TRL pads every row of a step to the longest prompt and the longest completion, then shuffles. The step's gradient is a
sum over rows, so their order is free: sorted by length and cut to their own widths, walks need about half the tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def split_by_length(batch: dict[str, Any], num_slices: int) -> list[dict[str, Any]]:
    """Split a step's rows into micro-batches of alike length, each cut to its own widths.

    Shapes: B rows, P prompt columns (padded on the left), C completion columns (padded on the right).

    Args:
        batch: TRL's inputs: tensors with B rows, of width P (``prompt_*``) or C, and scalars.
        num_slices: Micro-batches; divides B.

    Returns:
        The micro-batches, longest rows first (so that the largest comes when memory is freshest).

    Raises:
        ValueError: If the rows do not divide among the micro-batches.
    """
    lengths = batch["prompt_mask"].sum(dim=1) + batch["completion_mask"].sum(dim=1)  # (B,)
    return _split(batch, torch.argsort(lengths, descending=True, stable=True), num_slices)


def split_in_order(batch: dict[str, Any], num_slices: int) -> list[dict[str, Any]]:
    """Split a step's rows into micro-batches of neighbours, each cut to its own widths.

    For rows whose neighbours have their prompt in common; arguments and errors as of :func:`split_by_length`.
    """
    rows = batch["prompt_mask"]
    return _split(batch, torch.arange(rows.shape[0], device=rows.device), num_slices)


def _split(batch: dict[str, Any], order: Tensor, num_slices: int) -> list[dict[str, Any]]:
    rows = len(order)
    if rows % num_slices:
        raise ValueError(f"{rows} rows do not split into {num_slices} micro-batches")
    return [_cut(batch, chosen, rows) for chosen in order.reshape(num_slices, -1)]


def _cut(batch: dict[str, Any], chosen: Tensor, rows: int) -> dict[str, Any]:
    """Take some rows, and drop the columns that are padding in all of them."""
    prompt_columns = batch["prompt_mask"][chosen].any(dim=0).nonzero()
    completion_columns = batch["completion_mask"][chosen].any(dim=0).nonzero()
    first = int(prompt_columns[0]) if len(prompt_columns) else batch["prompt_mask"].shape[1] - 1
    end = int(completion_columns[-1]) + 1 if len(completion_columns) else 1
    width = batch["completion_mask"].shape[1]
    cut: dict[str, Any] = {}
    for name, value in batch.items():
        if not isinstance(value, Tensor) or value.dim() == 0:
            cut[name] = value
            continue
        if value.shape[0] != rows:
            raise ValueError(f"input {name!r} of shape {tuple(value.shape)} does not have the step's {rows} rows")
        part = value[chosen]
        if name in ("prompt_ids", "prompt_mask"):
            part = part[:, first:]
        elif part.dim() == 2 and part.shape[1] == width:
            part = part[:, :end]
        cut[name] = part
    return cut
