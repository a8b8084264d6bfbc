"""What a text engine and a dialogue format are: ids in, ids and log-probabilities out.

The roll-out knows engines by this protocol alone. Engines that keep a cache of each row's keys and values,
engines with a prefix cache of their own (vLLM) and remote endpoints all fit behind ``submit`` and ``poll``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: 0 is greedy; otherwise logits are divided by it, and log-probabilities are of that
            distribution.

    Raises:
        ValueError: If the temperature is negative or not finite.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature={self.temperature} must be finite and >= 0 (0 is greedy)")

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Sampled:
    """One action's tokens.

    Attributes:
        row: The engine row that sampled.
        ids: Sampled ids, the end token included if there was one.
        logprobs: Of each id, at the sampling temperature; as long as ``ids``.
        ended: Whether the last id is an end token; False when the token limit cut the action.
        error: Why nothing could be sampled (remote engines), else None.
    """

    row: int
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ended: bool
    error: str | None = None


class Engine(Protocol):
    """A batch of rows, each a growing sequence of ids that the engine can continue by one action."""

    @property
    def max_rows(self) -> int:
        """Rows that can be live at once."""
        ...

    @property
    def max_length(self) -> int:
        """Longest sequence a row may reach, in tokens."""
        ...

    def open_row(self, row: int, seed: int, sampling: Sampling) -> None:
        """Begin a new sequence in ``row``; ``seed`` alone decides what is sampled, not the rows around it."""
        ...

    def submit(self, row: int, ids: Sequence[int], max_new_tokens: int, end_ids: frozenset[int]) -> None:
        """Append world ids to the row and ask for one action of at most ``max_new_tokens``."""
        ...

    def poll(self) -> list[Sampled]:
        """Work on, and return the actions that are complete; never empty-handed forever while any is asked for."""
        ...

    def close_row(self, row: int) -> None:
        """Forget the row."""
        ...


@runtime_checkable
class GuessingEngine(Engine, Protocol):
    """An engine that foresees actions, so as to sample the same tokens in fewer passes."""

    def learn_action(self, ids: Sequence[int]) -> None:
        """Learn an action that is likely to come."""
        ...


LegalTokens = Callable[[tuple[int, ...]], Sequence[int]]
"""Maps an action's ids so far to the ids that may follow; never empty while the action is not complete."""


class ActionConstraint(Protocol):
    """Tells the legal tokens of the next action from what the agent was shown last."""

    def legal_tokens(self, lines: Sequence[str]) -> LegalTokens:
        """Return the rule for the action that answers an observation."""
        ...


@runtime_checkable
class RestrictingEngine(Engine, Protocol):
    """An engine that can hold the next action of a row to legal tokens."""

    def restrict(self, row: int, legal: LegalTokens) -> None:
        """Sample the row's next action from legal tokens only; log-probabilities are of that distribution."""
        ...


class Dialogue(Protocol):
    """How world text and actions become ids: a chat template, or the tiny policy's own format.

    World text never yields a control token, whatever it holds.
    """

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end an action."""
        ...

    @property
    def max_action_tokens(self) -> int:
        """Longest legal action, its end token included."""
        ...

    def opening(self, lines: Sequence[str], instructions: str) -> list[int]:
        """Return the ids before the first action."""
        ...

    def reply(self, lines: Sequence[str], *, ended: bool) -> list[int]:
        """Return the world's ids between two actions; an action that did not end is closed first."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return an action's text, its end token left out."""
        ...

    def unknown_in(self, lines: Sequence[str]) -> int:
        """Count tokens of world text that the tokenizer does not know."""
        ...


@runtime_checkable
class WritingDialogue(Dialogue, Protocol):
    """A dialogue that knows how the policy writes an action."""

    def encode_action(self, text: str) -> list[int]:
        """Return the ids of an action in the short grammar, end token included."""
        ...
