"""The benchmark of shared prefixes compares equals, and counts what it says it counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.benchmarks.bench_shared_prefix import Computed, check_equal, compare, long_group, token_bound
from tests.benchmarks.trl_tool_loop import Elapsed

SMALL: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def test_both_sides_compute_the_same_and_tokens_are_counted() -> None:
    """P=10, C=4, G=4: separate rows have 56 tokens; shared ones 10 + 4 x 3, as the last of each row is not read."""
    found = compare(long_group(SMALL, 10, 4, 4), 1)
    assert found["tokens"] == {"trl": 56, "ours": 22, "trained": 16}
    assert found["token_bound"] == pytest.approx(56 / 26)
    assert found["speedup"]["value"] == pytest.approx(found["share_of_bound"]["value"] * 56 / 26)
    assert set(found["seconds"]) == {"trl", "ours", "ours_separate"}
    assert found["gradient_gap"] < 1e-3


def test_bound_of_two_groups_of_unequal_lengths() -> None:
    """Groups of (P=3; C=1, 5) and (P=2; C=2, 2): (2 x 8 + 2 x 4) / ((3 + 6) + (2 + 4))."""
    batch = {
        "prompt_ids": torch.tensor([[7, 8, 9], [7, 8, 9], [0, 7, 8], [0, 7, 8]]),
        "prompt_mask": torch.tensor([[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 1, 1]]),
        "completion_mask": torch.tensor([[1, 0, 0, 0, 0], [1] * 5, [1, 1, 0, 0, 0], [1, 1, 0, 0, 0]]),
    }
    assert token_bound(batch) == pytest.approx(24 / 15)


def test_sides_that_differ_end_the_benchmark() -> None:
    time = Elapsed(1.0, 1.0)
    right = Computed(time, 2.0, torch.ones(3))
    assert check_equal(right, right) == {"loss_gap": 0.0, "gradient_gap": 0.0}
    with pytest.raises(AssertionError, match="losses 2.1 and 2.0 differ"):
        check_equal(Computed(time, 2.1, torch.ones(3)), right)
    with pytest.raises(AssertionError, match="gradients differ"):
        check_equal(Computed(time, 2.0, torch.tensor([1.0, 1.0, 1.1])), right)
