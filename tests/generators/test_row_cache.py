"""Keys and values of rows, without a model: what is written is what comes back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig

from provgym.generators.row_cache import RowCache

LAYERS, HEADS, DIM = 2, 2, 3


def make_cache(num_rows: int = 3) -> RowCache:
    config = LlamaConfig(num_hidden_layers=LAYERS)
    return RowCache(config, num_rows, torch.device("cpu"), torch.float32)


def states(rows: int, tokens: int, start: float) -> Tensor:
    return start + torch.arange(rows * HEADS * tokens * DIM).reshape(rows, HEADS, tokens, DIM).float()


def test_rows_of_different_lengths_do_not_mix() -> None:
    cache = make_cache()
    first = states(2, 2, 100.0)
    cache.select(torch.tensor([0, 2]), torch.tensor([[0, 1], [0, 1]]))
    keys, values = cache.update(first, first + 0.5, 0)
    assert keys.shape == (2, HEADS, 2, DIM)  # (n, H, width, D)
    assert torch.equal(keys, first)
    assert torch.equal(values, first + 0.5)
    later = states(1, 1, 900.0)
    cache.select(torch.tensor([2]), torch.tensor([[2]]))
    keys, _ = cache.update(later, later, 0)
    assert torch.equal(keys[0, :, :2], first[1])
    assert torch.equal(keys[0, :, 2:], later[0])
    assert cache.get_mask_sizes(1, 0) == (3, 0)
    assert cache.get_seq_length() == 0


def test_all_rows_at_once_equal_each_selected() -> None:
    whole, parts = make_cache(2), make_cache(2)
    given = states(2, 3, 0.0)
    positions = torch.tensor([[0, 1, 2], [0, 1, 2]])
    whole.select(None, positions)
    together, _ = whole.update(given, given, 1)
    for row in range(2):
        parts.select(torch.tensor([row]), positions[row : row + 1])
        alone, _ = parts.update(given[row : row + 1], given[row : row + 1], 1)
        assert torch.equal(alone[0], together[row])


def test_copied_rows_and_growth_keep_what_is_stored() -> None:
    cache = make_cache()
    given = states(1, 4, 5.0)
    cache.select(torch.tensor([1]), torch.arange(4)[None])
    for layer in range(LAYERS):
        cache.update(given, given, layer)
    cache.copy_row(1, [0, 2], 4)
    cache.reserve(500)
    new = states(3, 1, -1.0)
    cache.select(None, torch.full((3, 1), 4))
    for layer in range(LAYERS):
        keys, _ = cache.update(new, new, layer)
        for row in range(3):
            assert torch.equal(keys[row, :, :4], given[0])
            assert torch.equal(keys[row, :, 4:], new[row])


def test_reserving_less_changes_nothing() -> None:
    cache = make_cache()
    cache.reserve(10)
    cache.reserve(3)
    cache.select(torch.tensor([0]), torch.tensor([[63]]))
    keys, _ = cache.update(states(1, 1, 0.0), states(1, 1, 0.0), 0)
    assert keys.shape[2] == 64


def test_models_with_other_layers_are_refused() -> None:
    config = LlamaConfig(num_hidden_layers=2)
    config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ValueError, match="sliding_attention.*use the vLLM engine"):
        RowCache(config, 1, torch.device("cpu"), torch.float32)
