"""Guessing how an action goes on, from actions seen before.

An action grammar repeats itself: most tokens of ``{"walk": "n3"}`` follow from the ones before. The engine feeds
guessed tokens along with a sampled one and keeps them as far as the policy then samples the very same tokens, so
guesses save forward passes and change nothing that is sampled.

Source: speculative decoding, arXiv:2211.17192, with n-gram drafts in the place of a draft model; sampling each
token with the row's own uniform number makes acceptance exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_ORDERS = (4, 2)  # tokens of context, the longer first
_START = -1  # stands before an action's first token


@dataclass(slots=True)
class _Successors:
    """What followed a context, how often, and what most often."""

    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0
    likeliest: int = -1

    def add(self, token: int) -> None:
        count = self.counts[token] = self.counts.get(token, 0) + 1
        self.total += 1
        if count >= self.counts.get(self.likeliest, 0):  # of equals the newest
            self.likeliest = token

    @property
    def share(self) -> float:
        return self.counts[self.likeliest] / self.total


class ActionGuesser:
    """Learns actions and guesses the next tokens of one that was begun.

    Args:
        longest: Most tokens guessed at once.
        least_chance: Guessing goes on while the guess as a whole is right with at least this estimated chance.

    Raises:
        ValueError: If ``longest`` < 0 or the chance lies outside (0, 1].

    Example:
        >>> guesser = ActionGuesser(longest=8)
        >>> guesser.learn([5, 6, 7, 1, 9])
        >>> guesser.learn([5, 6, 7, 2, 9])
        >>> guesser.guess([5], 8), guesser.guess([5, 6, 7], 8), guesser.guess([], 2)
        ([6, 7], [], [5, 6])
    """

    def __init__(self, longest: int = 16, least_chance: float = 0.6) -> None:
        if longest < 0 or not 0.0 < least_chance <= 1.0:
            raise ValueError(f"longest={longest} must be >= 0 and least_chance={least_chance} lie in (0, 1]")
        self._longest, self._least_chance = longest, least_chance
        self._after: dict[tuple[int, ...], _Successors] = {}

    def learn(self, ids: Sequence[int]) -> None:
        """Count what follows what in a complete action."""
        padded = [_START] * _ORDERS[0] + list(ids)
        for place in range(_ORDERS[0], len(padded)):
            for order in _ORDERS:
                context = tuple(padded[place - order : place])
                successors = self._after.get(context)
                if successors is None:
                    successors = self._after[context] = _Successors()
                successors.add(padded[place])

    def guess(self, ids: Sequence[int], limit: int) -> list[int]:
        """Return up to ``limit`` tokens that may follow an action's ids so far; empty where nothing is likely."""
        padded = [_START] * _ORDERS[0] + list(ids[-_ORDERS[0] :])
        guessed: list[int] = []
        chance = 1.0
        while len(guessed) < min(limit, self._longest):
            successors = self._look_up(padded)
            if successors is None:
                break
            chance *= successors.share
            if chance < self._least_chance:
                break
            guessed.append(successors.likeliest)
            padded.append(successors.likeliest)
        return guessed

    def _look_up(self, padded: list[int]) -> _Successors | None:
        for order in _ORDERS:
            successors = self._after.get(tuple(padded[-order:]))
            if successors is not None:
                return successors
        return None
