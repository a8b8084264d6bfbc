"""Attention within a packed sequence: each segment sees itself and the segments before it on its path.

It is registered with transformers under a name of its own. :class:`AttentionSwitch` makes a layer use it in calls that
carry a layout, and in no others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv

from provgym.trainers.prefix_tree import PackedRows

SEGMENT_ATTENTION = "provgym_shared_prefix"
"""The name that transformers knows it by."""

LAYOUT_KEY = "packed_rows"
"""The keyword under which the layout travels through the model to its attention layers."""


def segment_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    packed_rows: PackedRows,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend within each segment of a packed sequence and to the segments before it on its path.

    Shapes: N packed tokens, H query heads, K key-value heads (divides H), D head size.

    Args:
        module: The attention layer; unused, the interface of transformers has it.
        query: (1, H, N, D), rotated.
        key: (1, K, N, D), rotated.
        value: (1, K, N, D).
        attention_mask: Unused; the layout decides.
        scaling: Factor of the scores; None is 1/sqrt(D).
        packed_rows: The layout.

    Returns:
        (1, N, H, D), and None for the attention weights.
    """
    lengths, groups = packed_rows.lengths, query.shape[1] // key.shape[1]
    queries = query.split(lengths, dim=2)
    keys = repeat_kv(key, groups).split(lengths, dim=2)
    values = repeat_kv(value, groups).split(lengths, dim=2)
    outputs = []
    for number, (length, depth, path) in enumerate(packed_rows.segments):
        seen = (*path, number)
        outputs.append(
            scaled_dot_product_attention(
                queries[number],
                torch.cat([keys[i] for i in seen], dim=2) if path else keys[number],
                torch.cat([values[i] for i in seen], dim=2) if path else values[number],
                # Row depth + i of the triangle is what the segment's token i sees.
                attn_mask=packed_rows.mask[depth : depth + length, : depth + length] if path else None,
                is_causal=not path,
                scale=scaling,
            )
        )
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


AttentionInterface.register(SEGMENT_ATTENTION, segment_attention)


class AttentionSwitch:
    """Makes an attention layer use :func:`segment_attention` in calls that carry a layout.

    Hooks of the attention layer itself, because those of the layer around it are skipped when gradient checkpointing
    computes it again.
    """

    def __init__(self, layer: Any) -> None:
        self._config = layer.config
        self._usual: str = layer.config._attn_implementation
        self.handles = [
            layer.register_forward_pre_hook(self._enter, with_kwargs=True),
            layer.register_forward_hook(self._leave, with_kwargs=True, always_call=True),
        ]

    def _enter(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if LAYOUT_KEY in kwargs:
            self._config._attn_implementation = SEGMENT_ATTENTION

    def _leave(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if LAYOUT_KEY in kwargs:
            self._config._attn_implementation = self._usual
