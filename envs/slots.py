"""The walk slots of the array face: in which order neighbours are listed, and what is shown of each.

A node's priority is drawn when the node is first listed and holds for the episode, so the order of two nodes never
changes and says nothing of stance. All per-node arrays are allocated once; an episode writes to the nodes it met and
the next one clears those, so that no cost grows with the graph.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from provgym.envs.graph_arrays import MAX_NEIGHBOURS
from provgym.envs.presentation import Mitigation
from provgym.envs.provenance import EvidenceGraph, Instance, NodeKind

NUM_SLOTS = MAX_NEIGHBOURS


class SlotFeature(IntEnum):
    """Columns of a slot; each lies in [0, 1], and an empty slot is all zero.

    Only what the text face shows as well: kinds, visits, and (unless the mitigation is M0) source labels, from which
    the agent knows whether it has read a source. Stance and evidence appear in no slot.
    """

    WALKABLE = 0  # this column is the walk part of the action mask
    CLAIM = 1
    OBSERVATION = 2
    REPRESENTATION = 3
    SOURCE = 4
    VISITED = 5
    READ_SOURCE = 6  # bears evidence, and its source was read before; 0 under M0
    NEW_SOURCE = 7  # bears evidence, and its source was not read yet; 0 under M0
    LABEL = 8  # number of the source among those listed so far / 64, at most 1; under M0 at source nodes only


_VISITED = 4  # a node's code is its kind (2 bits), this bit, and its source's label above
_LABEL = 8
_FEW_LABELS = 64
_NODE_BITS = [np.full(count, 0xFFFFFFFF, dtype=np.int64) for count in range(NUM_SLOTS + 1)]
_DRAW_BITS = np.int64(0x7FFFFFFF00000000)


class Slots:
    """Lists the neighbours of one walk's position in a shuffled order that is fixed for the episode.

    Args:
        mitigation: M0 hides the sources of observations and representations. M2 and M3 differ from M1 in wording,
            so their arrays are the same.

    Attributes:
        nodes: (count,) int64; the node behind each filled slot. Read-only to callers.
        count: Filled slots.
    """

    _graph: EvidenceGraph
    _rng: np.random.Generator
    _first_source: int

    def __init__(self, mitigation: Mitigation) -> None:
        self._shows_sources = mitigation != "M0"
        self._priority = np.zeros(0, dtype=np.int64)  # (N,) draw and node, see _draw; 0 = not met yet
        # (N,) see _VISITED; a source node has its label in its code even before it is met
        self._code = np.zeros(0, dtype=np.int64)
        self._num_labels = 0
        self._read_labels: list[int] = []
        self._written: list[NDArray[np.int64]] = []  # nodes whose entries are to be cleared
        self._make_rows(_FEW_LABELS)
        self.nodes = np.zeros(0, dtype=np.int64)
        self.count = 0

    def begin(self, instance: Instance, rng: np.random.Generator) -> None:
        """Forget the last episode; label the sources of the instance's claim and shuffle its nodes."""
        self._clear()
        graph = instance.graph
        own = graph.claim_nodes(instance.claim)
        self._graph, self._rng = graph, rng
        self._first_source = graph.num_nodes - len(graph.sources)
        if len(self._code) < graph.num_nodes:
            self._priority = np.zeros(graph.num_nodes, dtype=np.int64)
            self._code = np.zeros(graph.num_nodes, dtype=np.int64)
        self._num_labels = num_sources = own.num_sources
        if num_sources >= self._max_labels:
            self._make_rows(2 * num_sources)
        draws = rng.random(num_sources + 1)
        draws[0] = -1.0  # stays first: place 0 is the claim's, which has no source
        labels = self._label_codes.take(draws.argsort())
        self._code[own.nodes] = labels.take(own.places) + own.kinds
        self._draw(own.nodes)
        self.mark_visited(instance.claim)

    def show_around(self, position: int, features: NDArray[np.float32]) -> None:
        """Fill the slots with the neighbours of ``position``.

        Args:
            position: A node of the graph.
            features: (NUM_SLOTS, features) float32, written in place; holds what was last written there.
        """
        around = self._graph.neighbours(position)
        keys = self._priority.take(around)
        keys.sort()
        count = len(keys)
        if count and keys.item(0) == 0:  # some are met for the first time
            self._meet(around[self._priority.take(around) == 0])
            keys = self._priority.take(around)
            keys.sort()
        self.nodes = nodes = np.bitwise_and(keys, _NODE_BITS[count], keys)
        features[:count] = self._rows.take(self._code.take(nodes), axis=0)
        if self.count > count:
            features[count : self.count] = 0.0
        self.count = count

    def show_nothing(self, features: NDArray[np.float32]) -> None:
        """Empty the slots; ``features`` as for :meth:`show_around`."""
        features[: self.count] = 0.0
        self.nodes = self.nodes[:0]
        self.count = 0

    def mark_visited(self, node: int) -> None:
        """Remember that the walker stood on ``node``."""
        self._code[node] = self._code.item(node) | _VISITED

    def mark_read(self, source: int) -> None:
        """Remember that evidence of ``source`` was read; its nodes are echoes from now on."""
        label = self._code.item(self._first_source + source) // _LABEL
        self._read_labels.append(label)
        codes = slice(label * _LABEL, (label + 1) * _LABEL)
        self._rows[codes] = self._rows_if_read[codes]

    def _draw(self, nodes: NDArray[np.int64]) -> None:
        """Draw the nodes' places in the order of listing."""
        # The bits of a float in [0, 1) sort as the float does: the upper half is the draw, the lower the node.
        draws = self._rng.random(len(nodes)).view(np.int64)
        self._priority[nodes] = (draws & _DRAW_BITS) | nodes
        self._written.append(nodes)

    def _meet(self, nodes: NDArray[np.int64]) -> None:
        """Draw places for nodes of other claims, and labels for sources that this claim does not have."""
        source_nodes = self._graph.node_source.take(nodes) + np.int64(self._first_source)
        has_source = source_nodes >= self._first_source  # a claim has none
        found = np.unique(source_nodes[has_source])
        new = found[self._code.take(found) == 0]
        if len(new):
            labels = self._rng.permutation(len(new)) + (self._num_labels + 1)
            self._num_labels += len(new)
            if self._num_labels >= self._max_labels:
                self._make_rows(2 * self._num_labels)
            self._code[new] = labels * _LABEL + int(NodeKind.SOURCE)
            self._written.append(new)
        labels = np.where(has_source, self._code.take(np.where(has_source, source_nodes, 0)) // _LABEL, 0)
        self._code[nodes] = labels * _LABEL + self._graph.node_kind.take(nodes)
        self._draw(nodes)

    def _make_rows(self, max_labels: int) -> None:
        """Build the tables from codes to features for labels up to ``max_labels``."""
        self._max_labels = max_labels
        self._label_codes = np.arange(max_labels + 1) * _LABEL
        self._rows_if_unread = _code_features(max_labels, self._shows_sources, is_read=False)  # (codes, features)
        self._rows_if_read = _code_features(max_labels, self._shows_sources, is_read=True)
        self._rows = self._rows_if_unread.copy()  # what holds now
        for label in self._read_labels:
            codes = slice(label * _LABEL, (label + 1) * _LABEL)
            self._rows[codes] = self._rows_if_read[codes]

    def _clear(self) -> None:
        for label in self._read_labels:
            codes = slice(label * _LABEL, (label + 1) * _LABEL)
            self._rows[codes] = self._rows_if_unread[codes]
        self._read_labels.clear()
        for nodes in self._written:
            self._code[nodes] = 0
            self._priority[nodes] = 0
        self._written.clear()


def _code_features(max_labels: int, shows_sources: bool, *, is_read: bool) -> NDArray[np.float32]:
    """Return (codes, features): the features of every code, if all sources were read or none."""
    code = np.arange((max_labels + 1) * _LABEL)
    kind, label = code % _VISITED, code // _LABEL
    bears_evidence = (kind == NodeKind.OBSERVATION) | (kind == NodeKind.REPRESENTATION)
    rows = np.zeros((len(code), len(SlotFeature)), dtype=np.float32)
    rows[:, SlotFeature.WALKABLE] = 1.0
    rows[code, SlotFeature.CLAIM + kind] = 1.0
    rows[:, SlotFeature.VISITED] = code & _VISITED != 0
    if shows_sources:
        rows[:, SlotFeature.READ_SOURCE if is_read else SlotFeature.NEW_SOURCE] = bears_evidence
    shown_label = label if shows_sources else np.where(bears_evidence, 0, label)
    rows[:, SlotFeature.LABEL] = np.minimum(shown_label / _FEW_LABELS, 1.0)
    return rows
