"""Agents' replies, found again by what they depend on: in memory, or on disk for processes to share.

See :mod:`provgym.envs.keyed_store` for what holds across processes, kills and identical calls at once. Storing one
reply survives ``kill -9`` at any moment; a power cut may cost the last few, which a paid endpoint's own store of
completions (on the disk before the answer is used) still has.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, Protocol

from pydantic import TypeAdapter, ValidationError

from provgym.envs.keyed_store import Column, KeyedStore, StoreFormat
from provgym.envs.workflow_records import AgentReply

MESSAGES_FILE = "messages.sqlite3"
MESSAGES_FORMAT = 1
"""Raised when what is stored changes; a file of another format is refused, never guessed at."""

_FORMAT = StoreFormat(
    file_name=MESSAGES_FILE,
    contents="messages",
    application_id=0x50524F4D,
    version=MESSAGES_FORMAT,
    columns=(Column("reply", "TEXT", (str,)), Column("seconds", "REAL", (float,))),
    locks_folder="message-locks",  # an agent may hold a completion's lock, in the same folder, meanwhile
    survives_power_cut=False,
)
_REPLY = TypeAdapter(AgentReply)


class StoredReply(NamedTuple):
    """A reply, and the seconds that it took when it was paid for."""

    reply: AgentReply
    seconds: float


class ReplyStore(Protocol):
    """Replies by key."""

    def get(self, key: str) -> StoredReply | None:
        """Return a stored reply, or None."""
        ...

    def put(self, key: str, stored: StoredReply) -> None:
        """Store a reply; one that is there stays."""
        ...

    def alone(self, key: str) -> AbstractAsyncContextManager[None]:
        """Hold a key, so that nobody else asks for it meanwhile."""
        ...


class MessageCache(KeyedStore):
    """Replies in one folder, shared by processes.

    Args:
        folder: Made if absent; on a local disk.

    Raises:
        ValueError: If the folder's file is of another format, or no store of messages.
        OSError: If the folder can't be written.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _FORMAT)

    def get(self, key: str) -> StoredReply | None:
        """Return a stored reply, or None; one that can't be read is named, asked again, and replaced."""
        row = self._find(key)
        return None if row is None else StoredReply(_REPLY.validate_json(row[0]), row[1])

    def put(self, key: str, stored: StoredReply) -> None:
        """Store a reply; a whole one that is there stays.

        Raises:
            OSError: If it can't be stored, such as on a full disk.
        """
        self._keep(key, (json.dumps(asdict(stored.reply)), float(stored.seconds)))

    def was_paid_after(self, key: str, moment: float) -> bool:
        """Whether a reply was paid for, by whichever process, after a moment (as :meth:`newest` returns it)."""
        if not self.is_newer(key, moment):
            return False
        stored = self.get(key)
        return stored is not None and not stored.reply.is_cached

    def _is_readable(self, row: tuple[object, ...]) -> bool:
        if not super()._is_readable(row):
            return False
        try:
            _REPLY.validate_json(str(row[0]))
        except ValidationError:
            return False
        return True


class MemoryMessageCache:
    """Replies of one process, gone with it: for simulated agents, whose replies cost nothing to have again."""

    def __init__(self) -> None:
        self._replies: dict[str, StoredReply] = {}
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._replies)

    def get(self, key: str) -> StoredReply | None:
        """Return a stored reply, or None."""
        return self._replies.get(key)

    def put(self, key: str, stored: StoredReply) -> None:
        """Store a reply; one that is there stays."""
        self._replies.setdefault(key, stored)

    def alone(self, key: str) -> AbstractAsyncContextManager[None]:
        """Hold a key: no other task is inside with it."""
        return self._turns.setdefault(key, asyncio.Lock())
