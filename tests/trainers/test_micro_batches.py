"""Micro-batches of alike length hold the same rows, and less padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from provgym.trainers.micro_batches import split_by_length, split_in_order


def batch_of(prompts: list[int], completions: list[int]) -> dict[str, Any]:
    """Return TRL's inputs for rows of the given lengths; row i is filled with i + 1."""
    rows, left, right = len(prompts), max(prompts), max(completions)
    prompt_mask = torch.tensor([[0] * (left - n) + [1] * n for n in prompts])
    completion_mask = torch.tensor([[1] * n + [0] * (right - n) for n in completions])
    number = torch.arange(1, rows + 1)[:, None]
    return {
        "prompt_ids": prompt_mask * number,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_mask * number,
        "completion_mask": completion_mask,
        "advantages": number[:, 0].float(),
        "sampling_per_token_logps": completion_mask * -number.float(),
        "num_items_in_batch": completion_mask.sum(),
    }


def test_rows_stay_together_and_are_cut_to_their_own_widths() -> None:
    found = split_by_length(batch_of([3, 5, 2, 4], [1, 6, 2, 4]), 2)
    assert [part["advantages"].tolist() for part in found] == [[2.0, 4.0], [1.0, 3.0]], "longest first, ties in order"
    assert [tuple(part["prompt_ids"].shape) for part in found] == [(2, 5), (2, 3)]
    assert [tuple(part["completion_ids"].shape) for part in found] == [(2, 6), (2, 2)]
    assert found[1]["prompt_ids"].tolist() == [[1, 1, 1], [0, 3, 3]]
    assert found[1]["completion_ids"].tolist() == [[1, 0], [3, 3]]
    assert found[1]["sampling_per_token_logps"].tolist() == [[-1.0, 0.0], [-3.0, -3.0]]
    assert [int(part["num_items_in_batch"]) for part in found] == [13, 13], "of the whole step, not of the part"


def test_neighbours_keep_their_order() -> None:
    found = split_in_order(batch_of([3, 5, 2, 4], [1, 6, 2, 4]), 2)
    assert [part["advantages"].tolist() for part in found] == [[1.0, 2.0], [3.0, 4.0]]
    assert [tuple(part["prompt_ids"].shape) for part in found] == [(2, 5), (2, 4)]
    assert [tuple(part["completion_ids"].shape) for part in found] == [(2, 6), (2, 4)]
    with pytest.raises(ValueError, match="3 rows do not split into 2 micro-batches"):
        split_in_order(batch_of([1, 2, 3], [1, 2, 3]), 2)


def test_advantages_of_each_token_are_cut_too() -> None:
    batch = batch_of([2, 2], [1, 4])
    batch["advantages"] = batch["completion_ids"].float()
    found = split_by_length(batch, 2)
    assert [part["advantages"].tolist() for part in found] == [[[2.0] * 4], [[1.0]]]


def test_equal_widths_of_prompt_and_completion_are_not_confused() -> None:
    (part,) = split_by_length(batch_of([3, 1], [1, 3]), 1)
    assert part["prompt_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    assert part["completion_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12), st.data())
def test_nothing_is_lost(lengths: list[tuple[int, int]], data: st.DataObject) -> None:
    count = data.draw(st.sampled_from([n for n in range(1, len(lengths) + 1) if len(lengths) % n == 0]))
    batch = batch_of([p for p, _ in lengths], [c for _, c in lengths])
    found = split_by_length(batch, count)
    for name in ("prompt_ids", "completion_ids", "sampling_per_token_logps", "advantages", "completion_mask"):
        assert sum(float(part[name].sum()) for part in found) == float(batch[name].sum()), name
    assert sorted(a for part in found for a in part["advantages"].tolist()) == batch["advantages"].tolist()
    for part in found:
        assert part["prompt_mask"].any(dim=0).all()
        assert part["completion_mask"].any(dim=0).all()


def test_what_does_not_fit_is_refused() -> None:
    batch = batch_of([1, 2, 3], [1, 2, 3])
    with pytest.raises(ValueError, match="3 rows do not split into 2 micro-batches"):
        split_by_length(batch, 2)
    batch["extra"] = torch.zeros(2)
    with pytest.raises(ValueError, match="'extra'"):
        split_by_length(batch, 1)
