"""Tokens chosen from logits, against numpy in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from provgym.generators.token_choice import choose_tokens, draw_by_uniforms, mask_illegal


def logits_of(seed: int, rows: int, size: int) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=(rows, size)) * 3.0, dtype=torch.float32)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 5, 127, 128, 129, 1000]), st.floats(0.0, 1.0, exclude_max=True))
def test_draws_invert_the_cumulative_distribution(seed: int, size: int, uniform: float) -> None:
    logprobs = torch.log_softmax(logits_of(seed, 2, size), dim=-1)
    drawn = draw_by_uniforms(logprobs, torch.tensor([uniform, 0.0], dtype=torch.float64))
    chances = logprobs.double().exp().numpy()
    cumulative = chances.cumsum(axis=1)
    token = int(drawn[0])
    # Sums in another order differ in the last digits: the token's interval holds the number up to that.
    assert cumulative[0, token] / cumulative[0, -1] >= uniform - 1e-12
    assert (cumulative[0, token] - chances[0, token]) / cumulative[0, -1] <= uniform + 1e-12
    assert int(drawn[1]) == 0


@settings(deadline=None)
@given(st.integers(0, 2**32), st.floats(0.0, 1.0, exclude_max=True), st.sampled_from([3, 130, 300]))
def test_impossible_tokens_are_never_drawn(seed: int, uniform: float, size: int) -> None:
    rng = np.random.default_rng(seed)
    logits = logits_of(seed, 1, size)
    allowed = rng.choice(size, size=2, replace=False)
    masked = torch.full_like(logits, -torch.inf)
    masked[0, allowed] = logits[0, allowed]
    for number in (uniform, 0.0, float(np.nextafter(1.0, 0.0))):
        drawn = draw_by_uniforms(torch.log_softmax(masked, dim=-1), torch.tensor([number], dtype=torch.float64))
        assert int(drawn[0]) in allowed


def test_greedy_and_sampled_places_do_not_mix() -> None:
    logits = torch.log(torch.tensor([[0.2, 0.5, 0.3], [0.2, 0.5, 0.3], [0.2, 0.5, 0.3]]))
    chosen = choose_tokens(logits, [0.0, 1.0, 1.0], [0.99, 0.1, 0.71])
    assert chosen.tokens == [1, 0, 2]  # most likely; 0.1 < 0.2; 0.7 < 0.71
    assert chosen.logprobs == pytest.approx(np.log([0.5, 0.2, 0.3]), abs=1e-6)


def test_logprobs_are_at_each_places_temperature() -> None:
    """Fault kind: temperature in the ratio. At temperature 2, chances 0.64 and 0.36 become 0.8 and 0.6, of 1.4."""
    logits = torch.log(torch.tensor([[0.64, 0.36]] * 2))
    chosen = choose_tokens(logits, [2.0, 0.0], [0.0, 0.0])
    assert chosen.logprobs == pytest.approx(np.log([0.8 / 1.4, 0.64]), abs=1e-6)


def test_rules_mask_their_own_places_only() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]] * 2)
    assert mask_illegal(logits, [None, None]) is logits
    masked = mask_illegal(logits, [None, (lambda ids: [0, len(ids)], (7,))])
    assert masked.tolist() == [[1.0, 2.0, 3.0], [1.0, 2.0, -np.inf]]
    assert logits.tolist() == [[1.0, 2.0, 3.0]] * 2
    with pytest.raises(ValueError, match=r"no token is legal after \[7\]"):
        mask_illegal(logits, [(lambda ids: [], (7,)), None])
