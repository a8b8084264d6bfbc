"""Retrieval: the evidence units of a knowledge graph that are nearest to a question, or random ones as a control.

Similarity is the cosine of the question's and the linearised unit's sentence vectors (``sim(x_tau, q)`` of the K-GAT
paper, arXiv:2608.27984); the index is FAISS, exact (``flat``) or approximate (``hnsw``). The order of a graph's units
makes no difference: what is equally near, to six decimals, stands in the order of its ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from provgym.envs.evidence_units import EvidenceContext, KnowledgeGraph
from provgym.envs.topology_tasks import TopologyTask
from provgym.generators.seeds import Purpose, derive_rng, text_key

IndexKind = Literal["flat", "hnsw"]
Choice = Literal["similar", "random"]
DEFAULT_DEPTH = 3
"""K of the K-GAT paper, whose best range is 3 to 5."""

_TIE_DECIMALS = 6  # float32 products of 384 terms differ by less, whichever order they are summed in
_UNIT_LENGTH_ATOL = 1e-3


class Encoder(Protocol):
    """Turns texts into sentence vectors."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return (n, d) float32 rows of length 1, one for each text."""
        ...


@dataclass(frozen=True, slots=True)
class HnswSettings:
    """How thorough the approximate index is; the defaults are FAISS's advice for some 10,000 to 1,000,000 rows.

    Attributes:
        neighbours: Links of each row, >= 2.
        build_effort: Candidates looked at when a row is added.
        search_effort: Candidates looked at when a question is asked; never fewer than are to be found.
    """

    neighbours: int = 32
    build_effort: int = 200
    search_effort: int = 128


def encode_checked(encoder: Encoder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Return an encoder's rows, (n, d) float32, after a check of what it owes.

    Raises:
        ValueError: If there is not one finite row of length 1 for each text.
    """
    rows = np.ascontiguousarray(encoder.encode(texts), dtype=np.float32)
    name = type(encoder).__name__
    if rows.ndim != 2 or len(rows) != len(texts):
        raise ValueError(f"{name} gave an array of shape {rows.shape} for {len(texts)} texts, expected one row each")
    lengths = np.linalg.norm(rows, axis=1)
    bad = np.flatnonzero(~np.isclose(lengths, 1.0, atol=_UNIT_LENGTH_ATOL))  # NaN is never close
    if bad.size:
        raise ValueError(
            f"{name} gave a row of length {lengths[bad[0]]:.4g} for the text {texts[bad[0]][:60]!r}, expected length 1;"
            " let it normalise its rows"
        )
    return rows


class UnitIndex:
    """A FAISS index over rows of length 1.

    Args:
        rows: (n, d) float32, n >= 1.
        kind: ``flat`` is exact; ``hnsw`` is approximate and faster from some 100,000 rows on.
        settings: Of ``hnsw``.

    Raises:
        ValueError: If ``kind`` is unknown or there is no row.
    """

    def __init__(self, rows: NDArray[np.float32], kind: IndexKind = "flat", settings: HnswSettings | None = None):
        if kind not in get_args(IndexKind):
            raise ValueError(f"index {kind!r} is unknown; choose one of {list(get_args(IndexKind))}")
        if not len(rows):
            raise ValueError("an index needs at least one row; an empty graph has nothing to retrieve")
        self._settings = settings or HnswSettings()
        self._kind = kind
        self._index = _build(rows, kind, self._settings)

    def search(self, query: NDArray[np.float32], count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return positions and cosines of the nearest rows, nearest first; an approximate index may find fewer.

        Args:
            query: (d,) of length 1.
            count: How many, 1 to n.

        Raises:
            ValueError: If the query has another dimension than the rows.
        """
        if query.shape != (self._index.d,):
            raise ValueError(
                f"the question's vector has shape {query.shape}, the units' have {self._index.d} dimensions; "
                "encode both with the same encoder"
            )
        options: dict[str, Any] = {}
        if self._kind == "hnsw":
            effort = max(self._settings.search_effort, count)
            options["params"] = _faiss().SearchParametersHNSW(efSearch=effort)
        cosines, positions = self._index.search(query[None, :], count, **options)  # (1, count) each
        found = positions[0] >= 0
        return positions[0][found], cosines[0][found]


class Retriever:
    """Finds the units of one graph that are nearest to a question.

    Args:
        graph: Any size; an empty one gives empty evidence.
        encoder: Of units and questions.
        index: ``flat`` or ``hnsw``.
        settings: Of ``hnsw``.

    Raises:
        ValueError: If the encoder gives other than one row of length 1 for each unit.
    """

    def __init__(
        self,
        graph: KnowledgeGraph,
        encoder: Encoder,
        index: IndexKind = "flat",
        settings: HnswSettings | None = None,
    ) -> None:
        self._graph = graph
        self._encoder = encoder
        self._index: UnitIndex | None = None
        if graph.units:
            rows = encode_checked(encoder, [unit.linearised() for unit in graph.units])
            self._index = UnitIndex(rows, index, settings)

    def retrieve(self, question: str, k: int = DEFAULT_DEPTH) -> EvidenceContext:
        """Return the k nearest units, nearest first; all of them if the graph has fewer.

        Raises:
            ValueError: If ``k`` < 1.
        """
        _check_depth(k)
        if self._index is None:
            return EvidenceContext((), ())
        query = encode_checked(self._encoder, [question])[0]
        return _context(self._graph, self._nearest(query, k))

    def _nearest(self, query: NDArray[np.float32], k: int) -> list[tuple[float, str, int]]:
        """Return (cosine, unit id, position) of the k nearest, with ties at the cut decided by id."""
        assert self._index is not None
        units = self._graph.units
        count = wide = min(k, len(units))
        while True:
            positions, cosines = self._index.search(query, wide)
            near = np.round(cosines, _TIE_DECIMALS)
            if wide == len(units) or len(near) < wide or near[-1] < near[count - 1]:
                break
            wide = min(2 * wide, len(units))
        found = [(float(c), units[p].unit_id, int(p)) for c, p in zip(cosines, positions, strict=True)]
        return _in_order(found)[:count]


class RandomRetriever:
    """Draws units regardless of the question: the control for retrieval.

    Only which units are shown differs from :class:`Retriever`: they come with their cosines, highest first.

    Args:
        graph: Any size.
        encoder: Of units and questions.
        seed: Any integer >= 0; another question draws other units.
    """

    def __init__(self, graph: KnowledgeGraph, encoder: Encoder, seed: int = 0) -> None:
        self._graph = graph
        self._encoder = encoder
        self._seed = seed

    def retrieve(self, question: str, k: int = DEFAULT_DEPTH) -> EvidenceContext:
        """Return k units drawn without replacement; all of them if the graph has fewer.

        Raises:
            ValueError: If ``k`` < 1.
        """
        _check_depth(k)
        units = self._graph.units
        if not units:
            return EvidenceContext((), ())
        rng = derive_rng(self._seed, Purpose.RETRIEVAL, text_key(question))
        by_id = sorted(range(len(units)), key=lambda position: units[position].unit_id)
        drawn = [by_id[place] for place in rng.permutation(len(units))[:k].tolist()]
        rows = encode_checked(self._encoder, [question, *(units[p].linearised() for p in drawn)])
        cosines = rows[1:] @ rows[0]  # (k,)
        found = [(float(c), units[p].unit_id, p) for c, p in zip(cosines, drawn, strict=True)]
        return _context(self._graph, _in_order(found))


def retrieve_contexts(
    tasks: Sequence[TopologyTask], encoder: Encoder, k: int, *, choice: Choice = "similar", seed: int = 0
) -> list[EvidenceContext]:
    """Retrieve for many tasks, each from its own graph; every distinct text is encoded once, in one call.

    Args:
        tasks: Each with its graph.
        encoder: Of units and questions.
        k: Retrieval depth, >= 1.
        choice: The nearest units, or random ones as a control.
        seed: Of the random choice.

    Raises:
        ValueError: If ``k`` < 1 or ``choice`` is unknown.
    """
    _check_depth(k)
    if choice not in get_args(Choice):
        raise ValueError(f"choice {choice!r} is unknown; choose one of {list(get_args(Choice))}")
    if not tasks:
        return []
    texts = [text for task in tasks for text in (task.question, *(unit.linearised() for unit in task.graph.units))]
    distinct = list(dict.fromkeys(texts))
    table = _EncodedTexts(dict(zip(distinct, encode_checked(encoder, distinct), strict=True)))
    if choice == "random":
        return [RandomRetriever(task.graph, table, seed).retrieve(task.question, k) for task in tasks]
    # Tasks of one graph share its index; ids hold while the tasks do.
    retrievers: dict[int, Retriever] = {}
    for task in tasks:
        if id(task.graph) not in retrievers:
            retrievers[id(task.graph)] = Retriever(task.graph, table)
    return [retrievers[id(task.graph)].retrieve(task.question, k) for task in tasks]


class _EncodedTexts:
    """An encoder of texts whose rows are there already."""

    def __init__(self, rows: Mapping[str, NDArray[np.float32]]) -> None:
        self._rows = rows

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([self._rows[text] for text in texts])


def _faiss() -> Any:
    """Return the package, untyped: its own type information lacks half of its classes."""
    import faiss  # here: whoever only reads or writes graphs need not wait for it

    return faiss


def _build(rows: NDArray[np.float32], kind: IndexKind, settings: HnswSettings) -> Any:
    faiss = _faiss()
    if kind == "flat":
        index = faiss.IndexFlatIP(rows.shape[1])
        index.add(rows)
        return index
    index = faiss.IndexHNSWFlat(rows.shape[1], settings.neighbours, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = settings.build_effort
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)  # several would link the rows in an order of their own at each run
    try:
        index.add(rows)
    finally:
        faiss.omp_set_num_threads(threads)
    return index


def _context(graph: KnowledgeGraph, found: Sequence[tuple[float, str, int]]) -> EvidenceContext:
    units = tuple(graph.units[position] for _, _, position in found)
    return EvidenceContext(units, tuple(min(1.0, max(-1.0, cosine)) for cosine, _, _ in found))


def _in_order(found: list[tuple[float, str, int]]) -> list[tuple[float, str, int]]:
    return sorted(found, key=lambda unit: (-round(unit[0], _TIE_DECIMALS), unit[1]))


def _check_depth(k: int) -> None:
    if k < 1:
        raise ValueError(f"k={k} must be >= 1; for agents without evidence, hand them an empty context")
