"""The short names under which a walk shows nodes and sources, and the way back from a name to what it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from provgym.envs.provenance import Instance

SourceLabels = Literal["short", "shuffled", "real"]
"""S1, S2 ... in order of discovery or in random order, or the source ids themselves."""

AliasOrder = Literal["discovery", "shuffled"]
"""Whether nodes are numbered as they are first shown, or in random order."""

SHUFFLED_ALIASES = 99
"""Shuffled aliases are drawn from n1 to this; further nodes are numbered on from there."""


class WalkNames:
    """Aliases of nodes and labels of sources in one walk; a name once given never changes.

    Args:
        instance: What is walked on.
        source_labels: How sources are named.
        aliases: How nodes are numbered; the first node named is n0 always.
        order_key: Decides the numbers of shuffled aliases alone, so that the draws from ``rng`` are the same with and
            without shuffling.
        rng: Orders shuffled labels; one draw is taken whatever ``source_labels`` is.
    """

    def __init__(
        self,
        instance: Instance,
        *,
        source_labels: SourceLabels,
        aliases: AliasOrder,
        order_key: int,
        rng: np.random.Generator,
    ) -> None:
        self._graph = instance.graph
        self._shows_ids = source_labels == "real"
        routes = self._graph.claim_routes(instance.claim)
        sources = self._graph.node_source[len(self._graph.claims) + routes]
        self._claim_sources: list[int] = list(dict.fromkeys(sources.tolist()))
        order = rng.permutation(len(self._claim_sources))
        self._labels: dict[int, str] = {}  # in order of discovery, labels are given as sources are first shown
        if source_labels == "shuffled":
            pairs = zip(self._claim_sources, order.tolist(), strict=True)
            self._labels = {source: f"S{place + 1}" for source, place in pairs}
        self._first_numbers: list[int] = []
        if aliases == "shuffled":
            drawn = np.random.default_rng([order_key, SHUFFLED_ALIASES]).permutation(SHUFFLED_ALIASES)
            self._first_numbers = [0, *(drawn + 1).tolist()]
        self._alias: dict[int, str] = {}
        self._node: dict[str, int] = {}

    def source_label(self, source: int) -> str:
        """Return what the agent sees as the name of ``graph.sources[source]``, a new one if it has none yet."""
        if self._shows_ids:
            return self._graph.sources[source]
        return self._labels.setdefault(source, f"S{len(self._labels) + 1}")

    def source_ids(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Translate labels that an agent cited into source ids; unknown ones are left out."""
        sources = self._graph.sources
        shown = self._claim_sources if self._shows_ids else list(self._labels)
        by_label = {self.source_label(s): sources[s] for s in shown}
        return tuple(by_label[label] for label in labels if label in by_label)

    def name(self, node: int) -> str:
        """Return the alias of a node, a new one if it has none yet."""
        alias = self._alias.get(node)
        if alias is None:
            place = len(self._alias)
            alias = f"n{self._first_numbers[place] if place < len(self._first_numbers) else place}"
            self._alias[node] = alias
            self._node[alias] = node
        return alias

    def alias_of(self, node: int) -> str | None:
        """Return the alias of a node, or None if it was not shown yet."""
        return self._alias.get(node)

    def node_of(self, alias: str) -> int | None:
        """Return the node behind an alias, or None if no such alias was shown."""
        return self._node.get(alias)

    def number_of(self, node: int) -> int:
        """Return the number in a shown node's alias."""
        return int(self._alias[node][1:])
