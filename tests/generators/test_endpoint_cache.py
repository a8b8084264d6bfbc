"""Completions on disk: found again whole, never evicted, refused by format, asked for by one at a time."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provgym.generators.endpoint_cache import CACHE_FILE, CompletionCache
from provgym.generators.endpoint_reply import Completion

KEY = "ab" * 32


@pytest.mark.parametrize(
    "completion",
    [
        Completion("walk n1", 100, 7, "stop"),
        Completion("", 100, 0, "length"),
        Completion("no usage"),
        Completion("a\x00b \u2028 \U0001f600" * 1000, 2**52, 0, "stop"),
    ],
)
def test_what_is_stored_comes_back_in_another_process_or_handle(tmp_path: Path, completion: Completion) -> None:
    first, second = CompletionCache(tmp_path), CompletionCache(tmp_path)
    assert second.get(KEY) is None
    first.put(KEY, completion)
    assert second.get(KEY) == completion
    first.close()
    assert CompletionCache(tmp_path).get(KEY) == completion


@settings(max_examples=30)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_any_text_survives(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    cache = CompletionCache(tmp_path_factory.getbasetemp() / "any-text")
    key = text.encode().hex().ljust(8, "0")
    cache.put(key, Completion(text))
    assert cache.get(key) == Completion(text)
    cache.close()


def test_the_first_answer_stays(tmp_path: Path) -> None:
    cache = CompletionCache(tmp_path)
    cache.put(KEY, Completion("first"))
    cache.put(KEY, Completion("second"))
    assert cache.get(KEY) == Completion("first")


def test_another_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    CompletionCache(tmp_path).close()
    database = sqlite3.connect(tmp_path / CACHE_FILE)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(ValueError, match=r"completions.sqlite3 holds format 99, expected completions of format 1"):
        CompletionCache(tmp_path)
    database = sqlite3.connect(tmp_path / CACHE_FILE)
    assert database.execute("PRAGMA user_version").fetchone() == (99,)
    database.close()


def test_files_of_other_programs_are_refused(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / CACHE_FILE)
    other.execute("CREATE TABLE mine (x)")
    other.close()
    with pytest.raises(ValueError, match="holds another program's tables"):
        CompletionCache(tmp_path)
    text = tmp_path / "text"
    text.mkdir()
    (text / CACHE_FILE).write_text("no database, " * 100, encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"file is not a database, expected a file of completions; name another folder"
    ):
        CompletionCache(text)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OSError, match="file"):
        CompletionCache(tmp_path / "file")


def test_an_entry_that_cannot_be_read_is_named_asked_again_and_replaced(tmp_path: Path) -> None:
    cache = CompletionCache(tmp_path)
    cache.put(KEY, Completion("good", 1, 2, "stop"))
    database = sqlite3.connect(tmp_path / CACHE_FILE)
    database.execute("UPDATE completions SET text = NULL")
    database.commit()
    database.close()
    with pytest.warns(RuntimeWarning, match=rf"the entry {KEY[:16]} can't be read; it is asked, and paid, again"):
        assert cache.get(KEY) is None
    cache.put(KEY, Completion("new"))
    assert cache.get(KEY) == Completion("new")


def test_a_full_disk_is_an_error_that_says_what_is_kept(tmp_path: Path) -> None:
    cache = CompletionCache(tmp_path)
    cache.put(KEY, Completion("kept"))
    pages = cache._db.execute("PRAGMA page_count").fetchone()[0]
    cache._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(OSError, match=r"completions.sqlite3: database or disk is full; make room"):
        cache.put("cd" * 32, Completion("x" * 100_000))
    assert cache.get(KEY) == Completion("kept")


def test_one_key_is_held_by_one_at_a_time_over_tasks_and_handles(tmp_path: Path) -> None:
    """Fault kind: one failure loses its siblings (nothing paid twice): equal requests at once wait for one."""
    live: list[int] = []
    most = 0

    async def hold(cache: CompletionCache, key: str) -> None:
        nonlocal most
        async with cache.alone(key):
            live.append(1)
            most = max(most, len(live))
            await asyncio.sleep(0.005)
            live.pop()

    async def run(keys: list[str]) -> int:
        nonlocal most
        most = 0
        caches = [CompletionCache(tmp_path), CompletionCache(tmp_path)]
        await asyncio.gather(*(hold(cache, key) for key in keys for cache in caches))
        for cache in caches:
            cache.close()
        return most

    assert asyncio.run(run([KEY, KEY, KEY])) == 1
    assert asyncio.run(run([KEY, "cd" * 32])) == 2


def test_a_holder_that_fails_lets_go(tmp_path: Path) -> None:
    async def run() -> str:
        cache = CompletionCache(tmp_path)
        with pytest.raises(RuntimeError, match="dropped"):
            async with cache.alone(KEY):
                raise RuntimeError("dropped")
        async with cache.alone(KEY):
            cache.close()
            return "held again"

    assert asyncio.run(run()) == "held again"
