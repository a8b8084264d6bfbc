"""Completions on disk: found by the digest of the whole request, its seed and its replicate, and never paid for twice.

See :mod:`provgym.envs.keyed_store` for what holds across processes, kills and identical requests at once.
"""

from __future__ import annotations

from pathlib import Path

from provgym.envs.keyed_store import Column, KeyedStore, StoreFormat
from provgym.generators.endpoint_reply import Completion

CACHE_FILE = "completions.sqlite3"
CACHE_FORMAT = 1
"""Raised when what is stored changes; a file of another format is refused, never guessed at."""

_FORMAT = StoreFormat(
    file_name=CACHE_FILE,
    contents="completions",
    application_id=0x50524F56,
    version=CACHE_FORMAT,
    columns=(
        Column("text", "TEXT", (str,)),
        Column("prompt_tokens", "INTEGER", (int, type(None))),
        Column("completion_tokens", "INTEGER", (int, type(None))),
        Column("finish_reason", "TEXT", (str, type(None))),
    ),
)


class CompletionCache(KeyedStore):
    """Completions in one folder; see :class:`~provgym.envs.keyed_store.KeyedStore`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _FORMAT)

    def get(self, key: str) -> Completion | None:
        """Return the completion of a key, or None."""
        row = self._find(key)
        return None if row is None else Completion(*row)

    def put(self, key: str, completion: Completion) -> None:
        """Store a completion; it is on the disk when this returns. A whole one that is there stays.

        Raises:
            OSError: If it can't be stored, such as on a full disk.
        """
        self._keep(
            key, (completion.text, completion.prompt_tokens, completion.completion_tokens, completion.finish_reason)
        )
