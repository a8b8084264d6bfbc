"""Answers on disk by key, so that none is paid for twice: across calls, processes, kills, and equal requests at once.

One SQLite file. An entry is found by the digest of everything that it depends on; the first answer stays. While an
answer is being had, a lock that the operating system frees when its holder dies keeps every other process (and task)
from asking for the same: they wait and then find it. What the entries hold is for those who build on this to say.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
import warnings
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

_STAMPS = ("application_id", "user_version")
_BUSY_S = 60.0
_POLL_S = (0.01, 0.5)
_LOCK_DIGITS = 3  # of the key: at most 16 ** 3 lock files, and few requests in flight that share one by chance


@dataclass(frozen=True, slots=True)
class Column:
    """One value of an entry.

    Attributes:
        name: Of the column.
        sql_type: Its type in SQLite.
        kinds: Types that a readable value has in Python.
    """

    name: str
    sql_type: Literal["TEXT", "INTEGER", "REAL", "BLOB"]
    kinds: tuple[type, ...]


@dataclass(frozen=True, slots=True)
class StoreFormat:
    """What a file holds. A file of another format is refused, never guessed at.

    Attributes:
        file_name: Within the store's folder.
        contents: Plural noun for what is stored; also the table's name.
        application_id: Tells the files of one kind from all other SQLite files.
        version: Raised when what is stored changes.
        columns: Values of an entry, in order.
        locks_folder: Within the store's folder; two stores in one folder must not share it.
        survives_power_cut: Whether each entry is on the disk when storing it returns. Without, it survives the death
            of the process but perhaps not that of the machine, and is some thousand times cheaper to store.
    """

    file_name: str
    contents: str
    application_id: int
    version: int
    columns: tuple[Column, ...]
    locks_folder: str = "locks"
    survives_power_cut: bool = True


class KeyedStore:
    """Entries in one folder.

    A file of another format, or one that is no store, is refused. A single entry that can't be read is treated as
    absent, with a warning, and replaced by the next answer.

    Args:
        folder: Made if absent. Not on a network disk: neither SQLite's log nor the locks hold there.
        stored: What the file holds.

    Attributes:
        path: The SQLite file.

    Raises:
        ValueError: If the file is of another format, or no store.
        OSError: If the folder can't be written.
    """

    def __init__(self, folder: Path, stored: StoreFormat) -> None:
        self.path = folder / stored.file_name
        self._format = stored
        self._locks = folder / stored.locks_folder
        self._locks.mkdir(parents=True, exist_ok=True)
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        names = ", ".join(column.name for column in stored.columns)
        places = ", ".join("?" for _ in range(len(stored.columns) + 2))
        self._select = f"SELECT {names} FROM {stored.contents} WHERE key = ?"
        self._replace = f"REPLACE INTO {stored.contents} VALUES ({places})"
        with FileLock(self._locks / "open.lock"):  # switching to a write-ahead log doesn't wait for other processes
            with self._readable_errors():
                # Held by one event loop at a time, which may run on another thread than the one that opened it.
                self._db = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
                try:
                    self._open()
                except BaseException:
                    self._db.close()
                    raise

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

    def newest(self) -> float:
        """Return when the newest entry was stored, in seconds since 1970; 0 without one."""
        with self._readable_errors():
            row = self._db.execute(f"SELECT max(stored_at) FROM {self._format.contents}").fetchone()
        return float(row[0] or 0.0)

    def is_newer(self, key: str, moment: float) -> bool:
        """Whether an entry is there and was stored after a moment, in seconds since 1970."""
        with self._readable_errors():
            query = f"SELECT 1 FROM {self._format.contents} WHERE key = ? AND stored_at > ?"
            return self._db.execute(query, (key, moment)).fetchone() is not None

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _find(self, key: str) -> tuple[Any, ...] | None:
        """Return the values of an entry; None without one, and, with a warning, if it can't be read."""
        row = self._row(key)
        if row is None or self._is_readable(row):
            return row
        self._warn_unreadable(key)
        return None

    def _keep(self, key: str, values: tuple[Any, ...]) -> None:
        """Store the values of an entry; a whole one that is there stays.

        Raises:
            OSError: If they can't be stored, such as on a full disk.
        """
        there = self._row(key)
        if there is not None and self._is_readable(there):
            return
        with self._readable_errors():
            self._db.execute(self._replace, (key, *values, time.time()))

    def _is_readable(self, row: tuple[Any, ...]) -> bool:
        return all(isinstance(value, column.kinds) for value, column in zip(row, self._format.columns, strict=True))

    def _warn_unreadable(self, key: str) -> None:
        text = f"{self.path}: the entry {key[:16]} can't be read; it is asked, and paid, again"
        warnings.warn(text, RuntimeWarning, stacklevel=4)

    def _row(self, key: str) -> tuple[Any, ...] | None:
        with self._readable_errors():
            row: tuple[Any, ...] | None = self._db.execute(self._select, (key,)).fetchone()
        return row

    def _open(self) -> None:
        stored = self._format
        application, found = (int(self._db.execute(f"PRAGMA {name}").fetchone()[0]) for name in _STAMPS)
        tables = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if (application, found) != (stored.application_id, stored.version):
            if tables or application or found:
                what = f"format {found}" if application == stored.application_id else "another program's tables"
                raise ValueError(
                    f"{self.path} holds {what}, expected {stored.contents} of format {stored.version}; name another "
                    "folder, or move the file away (its answers will be asked, and paid, again)"
                )
            self._create()
        self._db.execute(f"PRAGMA synchronous = {'FULL' if stored.survives_power_cut else 'NORMAL'}")

    def _create(self) -> None:
        stored = self._format
        columns = ", ".join(f"{column.name} {column.sql_type}" for column in stored.columns)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.executescript(
            "BEGIN;"
            f"CREATE TABLE {stored.contents} (key TEXT PRIMARY KEY, {columns}, stored_at REAL) WITHOUT ROWID;"
            f"PRAGMA application_id = {stored.application_id};"
            f"PRAGMA user_version = {stored.version};"
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
                f"{self.path}: {error}, expected a file of {self._format.contents}; name another folder, or move the "
                "file away"
            ) from error
