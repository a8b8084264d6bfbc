"""A small automaton over symbols (characters or token ids) that tells which may come next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

Symbol = TypeVar("Symbol")
States = frozenset[int]


class Automaton(Generic[Symbol]):
    """Built left to right: each method adds a part behind the ends given and returns the new ends.

    Example: ``a|b`` followed by up to two ``c``.

        >>> automaton = Automaton[str]()
        >>> ends = automaton.choice(automaton.start, [["a"], ["b"]])
        >>> ends = automaton.repeat(ends, ["c"], most=2)
        >>> automaton.accept(ends)
        >>> states = automaton.step(automaton.start, "b")
        >>> sorted(automaton.symbols(states)), automaton.may_end(states)
        (['c'], True)
        >>> automaton.step(automaton.start, "c")
        frozenset()
    """

    def __init__(self) -> None:
        self._next: list[dict[Symbol, set[int]]] = [{}]
        self._accepting: frozenset[int] = frozenset()
        self.start: States = frozenset([0])

    def choice(self, ends: States, options: Iterable[Sequence[Symbol]]) -> States:
        """Add one of several non-empty symbol sequences."""
        return frozenset(self._one(ends, option) for option in options)

    def sequence(self, ends: States, symbols: Sequence[Symbol]) -> States:
        """Add a non-empty symbol sequence."""
        return frozenset([self._one(ends, symbols)])

    def repeat(self, ends: States, symbols: Iterable[Symbol], *, most: int, least: int = 0) -> States:
        """Add ``least`` to ``most`` symbols, each any of the given ones."""
        given = list(symbols)
        every = ends if least == 0 else frozenset()
        for count in range(1, most + 1):
            ends = self._any(ends, given)
            every = every | ends if count >= least else every
        return every

    def accept(self, ends: States) -> None:
        """Let sequences end here."""
        self._accepting |= ends

    def step(self, states: States, symbol: Symbol) -> States:
        """Return the states after a symbol; empty if it may not come next."""
        return frozenset(target for state in states for target in self._next[state].get(symbol, ()))

    def symbols(self, states: States) -> set[Symbol]:
        """Return the symbols that may come next."""
        return {symbol for state in states for symbol in self._next[state]}

    def may_end(self, states: States) -> bool:
        """Whether a sequence may end here."""
        return not self._accepting.isdisjoint(states)

    def _one(self, ends: States, symbols: Sequence[Symbol]) -> int:
        for symbol in symbols:
            (state,) = self._any(ends, [symbol])
            ends = frozenset([state])
        return state

    def _any(self, ends: States, symbols: Sequence[Symbol]) -> States:
        self._next.append({})
        target = len(self._next) - 1
        for state in ends:
            for symbol in symbols:
                self._next[state].setdefault(symbol, set()).add(target)
        return frozenset([target])
