"""When training shares prefixes, and how its micro-batches are then made."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from provgym.trainers.micro_batches import split_by_length, split_in_order
from provgym.trainers.papt_config import SharingMode
from provgym.trainers.prefix_tree import PackedRows, pack_rows
from provgym.trainers.shared_prefix import SharedPrefix, spread

SMALLEST_SAVING = 1.2
"""``auto`` shares a step where separate rows would compute at least this many times the tokens (ours)."""

_PACKED = "packed_rows"


class PrefixSharing:
    """Makes a step's micro-batches and computes their log-probabilities, with shared prefixes where that is wanted.

    ``on`` shares in every step. ``auto`` counts, in each step, the tokens that separate rows (of alike length, padded)
    and shared prefixes would compute, and takes what its rule says: the choice depends on the step's rows alone, so
    a resumed run makes it again. ``off`` never shares.

    Args:
        model: The model, plain or with LoRA, after TRL added its fused head.
        mode: When to share.

    Raises:
        ValueError: If ``mode`` is ``on`` and the model cannot share; under ``auto`` that is a warning.
    """

    def __init__(self, model: PreTrainedModel, mode: SharingMode) -> None:
        self._mode = mode
        self._shared = None if mode == "off" else _prepare(model, mode)

    @property
    def is_possible(self) -> bool:
        """Whether any step can be shared."""
        return self._shared is not None

    def micro_batches(self, batch: dict[str, Any], num_slices: int) -> list[dict[str, Any]]:
        """Split a step's rows; micro-batches that share bring their layout along.

        Rows that share prefixes stay neighbours, as they come; separate rows are ordered by length.

        Args:
            batch: TRL's inputs of the step, the members of a group adjacent.
            num_slices: Micro-batches; divides the rows.

        Raises:
            ValueError: If the rows do not divide among the micro-batches.
        """
        separate = split_by_length(batch, num_slices)
        if self._shared is None:
            return separate
        parts = split_in_order(batch, num_slices)
        layouts = [_pack(part) for part in parts]
        if self._mode == "auto" and saving(separate, layouts) < SMALLEST_SAVING:
            return separate
        return [part | {_PACKED: layout} for part, layout in zip(parts, layouts, strict=True)]

    @staticmethod
    def is_shared(inputs: dict[str, Any]) -> bool:
        """Whether a micro-batch is to be computed with shared prefixes."""
        return _PACKED in inputs

    def logprobs(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies of a micro-batch that :meth:`is_shared`, both (B, T).

        Only trained tokens have them. Elsewhere entropies are 0, and log-probabilities are the old ones, where there
        are some, or 0: the loss multiplies by the mask after it took the exponential of a difference, and 0 times
        infinity would be NaN.
        """
        assert self._shared is not None
        rows: PackedRows = inputs[_PACKED]
        logprobs, entropies = self._shared(model, rows)
        nothing = torch.zeros(inputs["completion_ids"].shape, device=logprobs.device)
        background: Tensor = inputs.get("old_per_token_logps", nothing)
        return spread(logprobs, rows, background), spread(entropies, rows, nothing)


def saving(separate: list[dict[str, Any]], layouts: list[PackedRows]) -> float:
    """Return the tokens that separate, padded rows compute, over those of shared prefixes."""
    padded = sum(part["prompt_ids"].numel() + part["completion_ids"].numel() for part in separate)
    return float(padded / sum(layout.num_tokens for layout in layouts))


def _pack(part: dict[str, Any]) -> PackedRows:
    mask = part["completion_mask"]
    trained = mask * part["tool_mask"] if "tool_mask" in part else mask
    return pack_rows(part["prompt_ids"], part["prompt_mask"], part["completion_ids"], mask, trained)


def _prepare(model: PreTrainedModel, mode: SharingMode) -> SharedPrefix | None:
    """Return the shared forward, checked; None where the model has none and need not."""
    try:
        shared = SharedPrefix(model)
        shared.check(model)
    except ValueError as error:
        if mode == "on":
            raise
        warnings.warn(f"optim.shared_prefix 'auto': rows are trained separately: {error}", stacklevel=3)
        return None
    return shared
