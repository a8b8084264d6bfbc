"""The rows of the retained-cache engine: their state, and which of them a forward pass touches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from provgym.generators.engine import LegalTokens, Sampling

_COPY_COST = 2  # copying a row's keys and values takes about as long as computing so many of its tokens


@dataclass(slots=True)
class Row:
    """State of one live row.

    Attributes:
        slot: Where its keys and values are.
        sampling: How its tokens are chosen.
        uniforms: Its own stream of uniform numbers.
        drawn: Uniform numbers that no sampled token has used yet.
        length: Tokens whose keys and values are stored.
        is_opening: True until the first token was sampled.
        pending: Ids to feed next.
        guess: Ids fed behind the pending ones, kept as far as they are then sampled.
        ids: The action's ids so far.
        logprobs: Of each of them.
        max_new_tokens: Longest action.
        end_ids: Ids that end the action.
        wants_action: Whether an action was asked for and is not complete.
        legal: The rule of the action's tokens, or None.
    """

    slot: int
    sampling: Sampling
    uniforms: np.random.Generator
    drawn: list[float] = field(default_factory=list)
    length: int = 0
    is_opening: bool = True
    pending: list[int] = field(default_factory=list)
    guess: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    max_new_tokens: int = 0
    end_ids: frozenset[int] = frozenset()
    wants_action: bool = False
    legal: LegalTokens | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the action has its end token or is as long as it may get."""
        return self.ids[-1] in self.end_ids or len(self.ids) >= self.max_new_tokens

    def next_uniforms(self, count: int) -> list[float]:
        """Return the row's next uniform numbers without using them up; greedy rows need none."""
        if self.sampling.is_greedy:
            return [0.0] * count
        while len(self.drawn) < count:
            self.drawn.append(float(self.uniforms.random()))
        return self.drawn[:count]


def slots_of_pass(slots: list[int], width: int) -> list[int]:
    """Return the slots that a pass computes, ascending: those given, or the whole run where that is cheaper.

    What an idle row of the run computes is written behind its last token, and overwritten before anything reads it.
    """
    run = range(slots[0], slots[-1] + 1)
    idle = len(run) - len(slots)
    return list(run) if idle * width <= _COPY_COST * len(slots) else slots


def padded(feeds: list[list[int]], width: int) -> Tensor:
    """Return feeds as an (m, width) tensor, zeros behind each."""
    return torch.tensor([feed + [0] * (width - len(feed)) for feed in feeds])  # (m, width)


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many ids two sequences begin with alike."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
