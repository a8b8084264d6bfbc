"""Choosing tokens from logits: greedy, or by one uniform number a token, with or without a rule of legal ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from provgym.generators.engine import LegalTokens

_BLOCK = 128


class Chosen(NamedTuple):
    """What was chosen at each place.

    Attributes:
        tokens: Ids.
        logprobs: Of each id, at the temperature it was chosen at.
    """

    tokens: list[int]
    logprobs: list[float]


def choose_tokens(logits: Tensor, temperatures: Sequence[float], uniforms: Sequence[float]) -> Chosen:
    """Choose one token at each place.

    Shapes: N places, V tokens.

    Args:
        logits: (N, V) float32; -inf where a token is not legal.
        temperatures: N numbers; 0 takes the most likely token, whose log-probability is then at temperature 1.
        uniforms: N numbers in [0, 1); each decides its place alone. Those at greedy places are not looked at.
    """
    scale = torch.tensor([t or 1.0 for t in temperatures], device=logits.device)
    logprobs = torch.log_softmax(logits / scale[:, None], dim=-1)  # (N, V)
    greedy = [t == 0.0 for t in temperatures]
    if all(greedy):
        tokens = logits.argmax(dim=-1)  # (N,)
    else:
        tokens = draw_by_uniforms(logprobs, torch.tensor(list(uniforms), dtype=torch.float64, device=logits.device))
        if any(greedy):
            tokens = torch.where(torch.tensor(greedy, device=logits.device), logits.argmax(dim=-1), tokens)
    return Chosen(tokens.tolist(), logprobs.gather(1, tokens[:, None])[:, 0].tolist())


def draw_by_uniforms(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """Invert each place's cumulative distribution at its uniform number; impossible tokens are never drawn.

    Cumulative sums are in double precision, over blocks of tokens first and then inside the block that was hit, so
    that a large vocabulary is not summed token by token.

    Args:
        logprobs: (N, V) float32.
        uniforms: (N,) float64 in [0, 1).

    Returns:
        (N,) token ids.
    """
    rows, size = logprobs.shape
    blocks = -(-size // _BLOCK)
    chances = nn.functional.pad(logprobs.exp(), (0, blocks * _BLOCK - size)).view(rows, blocks, _BLOCK)
    sums = chances.sum(dim=-1, dtype=torch.float64)  # (N, blocks)
    cumulative = sums.cumsum(dim=-1)
    block, rest = _invert(cumulative, uniforms * cumulative[:, -1])
    every = torch.arange(rows, device=logprobs.device)
    inside = chances[every, block].double().cumsum(dim=-1)  # (N, _BLOCK)
    place, _ = _invert(inside, rest)
    return block * _BLOCK + place


def _invert(cumulative: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return (N,) the first entry whose (N, m) cumulative sum exceeds the target, and what is left of the target."""
    # Rounding may put a target at or beyond the total, where every entry's sum would be too small.
    targets = targets.clamp(min=0.0).minimum(cumulative[:, -1] * (1.0 - 1e-12))
    found = torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0].clamp(max=cumulative.shape[1] - 1)
    before = torch.where(found > 0, cumulative.gather(1, (found - 1).clamp(min=0)[:, None])[:, 0], 0.0)
    return found, targets - before


def mask_illegal(logits: Tensor, rules: Sequence[tuple[LegalTokens, tuple[int, ...]] | None]) -> Tensor:
    """Return (N, V) logits with -inf at illegal tokens; without any rule, the very same tensor.

    Args:
        logits: (N, V).
        rules: At each place None, or the rule and the action's ids so far.

    Raises:
        ValueError: If a rule leaves no token.
    """
    if all(rule is None for rule in rules):
        return logits
    masked = logits.clone()
    for place, rule in enumerate(rules):
        if rule is None:
            continue
        legal, ids = rule
        allowed = torch.tensor(list(legal(ids)), dtype=torch.long, device=logits.device)
        if allowed.numel() == 0:
            raise ValueError(f"no token is legal after {list(ids)}; a constraint must leave at least one")
        masked[place] = -torch.inf
        masked[place, allowed] = logits[place, allowed]
    return masked
