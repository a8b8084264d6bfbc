"""Retrieval against brute force: any size from nothing to 10,000 units, any order of the units, ties, bad encoders."""

import zlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from provgym.envs.evidence_units import EvidenceUnit, KnowledgeGraph, Span
from provgym.envs.topology_tasks import TopologyTask
from provgym.generators.hashed_encoder import HashedEncoder
from provgym.generators.retriever import (
    HnswSettings,
    IndexKind,
    RandomRetriever,
    Retriever,
    UnitIndex,
    encode_checked,
    retrieve_contexts,
)


class PointEncoder:
    """A fake: the text's own angle decides its vector, so that cosines are known by hand."""

    def __init__(self, dimension: int = 2) -> None:
        self.dimension = dimension
        self.calls: list[list[str]] = []

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls.append(list(texts))
        angles = [float(text.rsplit("=", 1)[-1].strip('"')) for text in texts]
        rows = np.zeros((len(texts), self.dimension), dtype=np.float32)
        rows[:, 0], rows[:, 1] = np.cos(angles), np.sin(angles)
        return rows


class ScatterEncoder:
    """A fake for large graphs: a text's checksum picks one of 65,536 random directions."""

    def __init__(self) -> None:
        rows = np.random.default_rng(1).standard_normal((65_536, 16))
        self.rows: NDArray[np.float32] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.take(self.rows, [zlib.crc32(text.encode()) % len(self.rows) for text in texts], axis=0)


def graph_of(angles: Sequence[float], order: Sequence[int] | None = None) -> KnowledgeGraph:
    texts = {f"d{number}": f"={angle}" for number, angle in enumerate(angles)}
    units = [
        EvidenceUnit(f"u{number:05d}", "h", "r", "t", Span(name, 0, len(text), text), f"s{number % 3}")
        for number, (name, text) in enumerate(texts.items())
    ]
    return KnowledgeGraph(tuple(units[place] for place in (range(len(units)) if order is None else order)), texts)


def ids(units: Sequence[EvidenceUnit]) -> list[str]:
    return [unit.unit_id for unit in units]


def task_of(name: str, graph: KnowledgeGraph, question: str = "=0") -> TopologyTask:
    return TopologyTask(name, name, "test", question, "SUPPORT", "verdict", (), graph, None)


def test_nearest_first_with_their_cosines() -> None:
    context = Retriever(graph_of([1.0, 0.2, 3.0, 0.5]), PointEncoder()).retrieve("=0", 2)
    assert ids(context.units) == ["u00001", "u00003"]
    assert context.similarities == pytest.approx([np.cos(0.2), np.cos(0.5)], abs=1e-6)


@pytest.mark.parametrize("index", ["flat", "hnsw"])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 10, 100])
def test_one_unit_and_every_depth(index: IndexKind, k: int) -> None:
    assert len(Retriever(graph_of([0.3]), PointEncoder(), index).retrieve("=0", k).units) == 1
    assert len(Retriever(graph_of([0.1] * 4), PointEncoder(), index).retrieve("=0", k).units) == min(k, 4)


def test_empty_evidence_is_an_empty_context_and_encodes_nothing() -> None:
    encoder = PointEncoder()
    empty = KnowledgeGraph((), {"d": "a document without units"})
    assert Retriever(empty, encoder).retrieve("=0", 3).units == ()
    assert RandomRetriever(empty, encoder).retrieve("=0", 3).units == ()
    assert encoder.calls == []


@settings(max_examples=40)
@given(st.lists(st.sampled_from([0.0, 0.1, 0.1, 0.7, 2.0]), min_size=1, max_size=12), st.data())
def test_order_of_the_units_makes_no_difference_and_ties_go_by_id(angles: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, 13))
    order = data.draw(st.permutations(range(len(angles))))
    found = Retriever(graph_of(angles, order), PointEncoder()).retrieve("=0", k)
    by_hand = sorted(range(len(angles)), key=lambda number: (-round(float(np.cos(angles[number])), 6), number))
    assert ids(found.units) == [f"u{number:05d}" for number in by_hand[:k]]
    graphs = [graph_of(angles, order), graph_of(angles)]
    first, second = (RandomRetriever(graph, PointEncoder(), 5).retrieve("=0", k) for graph in graphs)
    assert first == second


def test_a_tie_wider_than_the_first_look_is_decided_by_id_too() -> None:
    order = list(range(300))[::-1]
    found = Retriever(graph_of([0.5] * 300, order), PointEncoder()).retrieve("=0", 3)
    assert ids(found.units) == ["u00000", "u00001", "u00002"]


def test_ten_thousand_units_exact_and_approximate() -> None:
    """10,000 units: flat is brute force, HNSW finds nearly the same."""
    graph = graph_of(list(range(10_000)))
    encoder = ScatterEncoder()
    rows = encode_checked(encoder, [unit.linearised() for unit in graph.units])
    flat = Retriever(graph, encoder)
    index = UnitIndex(rows, "hnsw", HnswSettings(16, 60, 100))
    recall = []
    for number in range(20):
        query = encode_checked(encoder, [f"question {number}"])[0]
        brute = np.argsort(-(rows @ query), kind="stable")[:10].tolist()
        assert ids(flat.retrieve(f"question {number}", 10).units) == [f"u{place:05d}" for place in brute]
        recall.append(len(set(index.search(query, 10)[0].tolist()) & set(brute)) / 10)
    assert np.mean(recall) > 0.9


def test_an_approximate_index_is_built_the_same_each_time() -> None:
    rows = ScatterEncoder().rows[:2_000]
    first, second = (UnitIndex(rows, "hnsw", HnswSettings(8, 20, 10)) for _ in range(2))
    for query in ScatterEncoder().rows[3_000:3_030]:
        assert first.search(query, 5)[0].tolist() == second.search(query, 5)[0].tolist()


def test_the_retriever_works_over_hnsw() -> None:
    angles = np.linspace(0.0, 3.0, 200).tolist()
    approximate = Retriever(graph_of(angles), PointEncoder(), "hnsw").retrieve("=0", 5)
    assert ids(approximate.units) == [f"u{number:05d}" for number in range(5)]


def test_random_control_draws_evenly_and_by_its_own_key() -> None:
    """global RNG, correlated workers: the draw depends on seed and question alone, and never shifts with the seed."""
    graph = graph_of(np.linspace(0, 3, 10).tolist())
    encoder = PointEncoder()

    def draw(seed: int, question: str = "=0") -> list[str]:
        return ids(RandomRetriever(graph, encoder, seed).retrieve(question, 3).units)

    first = draw(5)
    np.random.seed(0)  # noqa: NPY002
    assert draw(5) == first
    assert draw(5, "=1") != first or draw(5, "=2") != first
    counts = np.zeros(10)
    for seed in range(600):
        for name in draw(seed):
            counts[int(name[1:])] += 1
    assert abs(counts / 600 - 0.3).max() < 0.08
    assert not np.allclose(np.diff(counts), 0)


def test_random_units_come_with_their_true_cosines_highest_first() -> None:
    angles = [0.4, 1.2, 2.0]
    context = RandomRetriever(graph_of(angles), PointEncoder()).retrieve("=0", 3)
    assert context.similarities == pytest.approx(np.cos(angles), abs=1e-6)


def test_contexts_of_many_tasks_encode_each_text_once() -> None:
    encoder = PointEncoder()
    shared = graph_of([0.1, 0.2, 0.3])
    graphs = {"a": shared, "b": graph_of([2.0, 0.2]), "c": shared, "d": graph_of([])}
    tasks = [task_of(name, graph, "=3" if name == "c" else "=0") for name, graph in graphs.items()]
    contexts = retrieve_contexts(tasks, encoder, 2)
    (texts,) = encoder.calls
    assert len(texts) == len(set(texts))
    alone = [Retriever(task.graph, encoder).retrieve(task.question, 2) for task in tasks]
    assert contexts == alone
    assert [len(context.units) for context in contexts] == [2, 2, 2, 0]
    random = retrieve_contexts(tasks, encoder, 2, choice="random", seed=3)
    assert random == [RandomRetriever(task.graph, encoder, 3).retrieve(task.question, 2) for task in tasks]
    assert retrieve_contexts([], encoder, 2) == []


class Wrong:
    def __init__(self, rows: NDArray[np.float32]) -> None:
        self.rows = rows

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self.rows


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (np.ones((2, 3)), "for 1 texts, expected one row each"),
        (np.ones(3), "for 1 texts"),
        (np.full((1, 3), np.nan), "length nan"),
        (np.zeros((1, 3)), "length 0"),
        (np.full((1, 3), 2.0), "let it normalise"),
    ],
)
def test_an_encoder_that_breaks_its_word_is_named(rows: NDArray[np.float32], said: str) -> None:
    with pytest.raises(ValueError, match="Wrong") as failure:
        Retriever(graph_of([0.1]), Wrong(rows))
    assert said in str(failure.value)


def test_mistakes_are_refused_by_name() -> None:
    graph = graph_of([0.1, 0.2])
    retriever = Retriever(graph, PointEncoder())
    for k in (0, -1):
        with pytest.raises(ValueError, match=f"k={k} must be >= 1"):
            retriever.retrieve("=0", k)
    with pytest.raises(ValueError, match="index 'tree' is unknown"):
        Retriever(graph, PointEncoder(), "tree")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="choice 'nearest' is unknown"):
        retrieve_contexts([task_of("a", graph)], PointEncoder(), 1, choice="nearest")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one row"):
        UnitIndex(np.zeros((0, 2), dtype=np.float32))
    with pytest.raises(ValueError, match="same encoder"):
        UnitIndex(np.eye(3, dtype=np.float32)).search(np.ones(2, dtype=np.float32), 1)


# --- the encoder without weights


@given(st.lists(st.text(max_size=40), max_size=6))
def test_hashed_rows_are_unit_rows_whatever_the_text(texts: list[str]) -> None:
    """text space: empty, newline, Greek, emoji."""
    rows = HashedEncoder(16).encode(texts)
    assert rows.shape == (len(texts), 16)
    assert rows.dtype == np.float32
    assert np.allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
    alone = [HashedEncoder(16).encode([text])[0] for text in texts]
    assert all((row == other).all() for row, other in zip(rows, alone, strict=True))


def test_hashed_similarity_is_shared_words() -> None:
    a, b, c, d = HashedEncoder(4096).encode(["red fox runs", "Red fox sleeps", "blue whale sings", "\ud800"])
    assert a @ b > 0.4
    assert abs(a @ c) < 0.1
    assert np.isfinite(d).all()
    with pytest.raises(ValueError, match="dimension=1"):
        HashedEncoder(1)
