"""Completions on disk, so that none is paid for twice: across calls, processes, kills, and identical requests at once.

One SQLite file. An entry is found by the digest of the whole request, its seed and its replicate; the first answer
stays. While a request is out, a lock that the operating system frees when its holder dies keeps every other process
(and task) from asking the same: they wait and then find the answer.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
import warnings
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from provgym.generators.endpoint_reply import Completion

CACHE_FILE = "completions.sqlite3"
CACHE_FORMAT = 1
"""Raised when what is stored changes; a file of another format is refused, never guessed at."""

_APPLICATION_ID = 0x50524F56  # tells our files from other SQLite files
_STAMPS = ("application_id", "user_version")
_BUSY_S = 60.0
_POLL_S = (0.01, 0.5)
_LOCK_DIGITS = 3  # of the key: at most 16 ** 3 lock files, and few requests in flight that share one by chance


class CompletionCache:
    """Completions in one folder.

    A file of another format, or one that is no cache, is refused. A single entry that can't be read is treated as
    absent, with a warning, and replaced by the next answer.

    Args:
        folder: Made if absent. Not on a network disk: neither SQLite's log nor the locks hold there.

    Attributes:
        path: The SQLite file.

    Raises:
        ValueError: If the file is of another format, or no cache.
        OSError: If the folder can't be written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / CACHE_FILE
        self._locks = folder / "locks"
        self._locks.mkdir(parents=True, exist_ok=True)
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        with FileLock(self._locks / "open.lock"):  # switching to a write-ahead log doesn't wait for other processes
            with self._readable_errors():
                self._db = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
                try:
                    self._open()
                except BaseException:
                    self._db.close()
                    raise

    def get(self, key: str) -> Completion | None:
        """Return the completion of a key, or None."""
        row = self._row(key)
        if row is not None and not _is_readable(row):
            text = f"{self.path}: the entry {key[:16]} can't be read; it is asked, and paid, again"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            return None
        return None if row is None else Completion(*row)

    def put(self, key: str, completion: Completion) -> None:
        """Store a completion; it is on the disk when this returns. A whole one that is there stays.

        Raises:
            OSError: If it can't be stored, such as on a full disk.
        """
        there = self._row(key)
        if there is not None and _is_readable(there):
            return
        row = (completion.text, completion.prompt_tokens, completion.completion_tokens, completion.finish_reason)
        with self._readable_errors():
            self._db.execute("REPLACE INTO completions VALUES (?, ?, ?, ?, ?, ?)", (key, *row, time.time()))

    @asynccontextmanager
    async def alone(self, key: str) -> AsyncIterator[None]:
        """Hold a key: no other task and no other process is between these lines with it."""
        name = key[:_LOCK_DIGITS]
        turn = self._turns.setdefault(name, asyncio.Lock())
        async with turn:
            lock = FileLock(self._locks / f"{name}.lock")
            pause = _POLL_S[0]
            while True:
                try:
                    lock.acquire(blocking=False)
                    break
                except Timeout:  # another process asks the same at this moment
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _POLL_S[1])
            try:
                yield
            finally:
                lock.release()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _row(self, key: str) -> tuple[Any, ...] | None:
        query = "SELECT text, prompt_tokens, completion_tokens, finish_reason FROM completions WHERE key = ?"
        with self._readable_errors():
            row: tuple[Any, ...] | None = self._db.execute(query, (key,)).fetchone()
        return row

    def _open(self) -> None:
        application, found = (int(self._db.execute(f"PRAGMA {name}").fetchone()[0]) for name in _STAMPS)
        tables = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if (application, found) != (_APPLICATION_ID, CACHE_FORMAT):
            if tables or application or found:
                what = f"format {found}" if application == _APPLICATION_ID else "another program's tables"
                raise ValueError(
                    f"{self.path} holds {what}, expected completions of format {CACHE_FORMAT}; name another folder, "
                    "or move the file away (its answers will be asked, and paid, again)"
                )
            self._create()
        self._db.execute("PRAGMA synchronous = FULL")  # an answer that was paid survives a power cut too

    def _create(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.executescript(
            "BEGIN;"
            "CREATE TABLE completions (key TEXT PRIMARY KEY, text TEXT, prompt_tokens INTEGER, "
            "completion_tokens INTEGER, finish_reason TEXT, stored_at REAL) WITHOUT ROWID;"
            f"PRAGMA application_id = {_APPLICATION_ID};"
            f"PRAGMA user_version = {CACHE_FORMAT};"
            "COMMIT;"
        )

    @contextmanager
    def _readable_errors(self) -> Iterator[None]:
        """Turn SQLite's errors into those that name the file and a way out."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise OSError(
                f"{self.path}: {error}; make room, or name a folder on a local disk that can be written. Stored "
                "answers are kept: the same command goes on from there"
            ) from error
        except sqlite3.DatabaseError as error:
            raise ValueError(
                f"{self.path}: {error}, expected a file of completions; name another folder, or move the file away"
            ) from error


def _is_readable(row: tuple[Any, ...]) -> bool:
    wanted = ((str,), (int, type(None)), (int, type(None)), (str, type(None)))
    return all(isinstance(value, kinds) for value, kinds in zip(row, wanted, strict=True))
