r"""The ledger of an endpoint: one line of JSON for each request that was sent, whatever became of it.

A line is appended before its request leaves, with ``outcome: unfinished``, and filled in (in place, within the width
reserved for it by spaces) once the outcome is known. So a process that is killed leaves exactly one line for each
request the server may have seen. A line that a kill cut while it was appended belongs to a request that never left;
the next writer cuts it away. Several processes may write one ledger. Keys and message texts are never in it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from filelock import FileLock
from pydantic import TypeAdapter, ValidationError

from provgym.generators.endpoint_entry import LEDGER_VERSION, LedgerEntry
from provgym.generators.json_lines import BadFileError, BadLine, JsonLine, read_json_lines

RESERVED_BYTES = 512
"""Room of a line for what is known only at the end; longer details are shortened to fit."""

_LINE_START = b'{"attempt_id"'
_ENTRY = TypeAdapter(LedgerEntry)


class Ledger:
    """Writes a ledger.

    Args:
        path: A JSONL file; made with its folder if absent.

    Raises:
        ValueError: If the file is no ledger of this version; it is left as it is.
        OSError: If it can't be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(path.with_name(f".{path.name}.lock"))
        self._places: dict[str, tuple[int, int]] = {}
        path.touch()
        with self._lock:
            _refuse_other_files(path)
        self._file = path.open("r+b", buffering=0)

    def open_line(self, entry: LedgerEntry) -> None:
        """Append the line of a request that is about to leave.

        Raises:
            OSError: If the disk is full; then the request must not leave.
        """
        line = _line_of(entry)
        width = len(line) + RESERVED_BYTES
        with self._lock:
            start = self._cut_half_line()
            self._write(start, _padded(line, width))
        self._places[entry.attempt_id] = (start, width)

    def close_line(self, entry: LedgerEntry) -> None:
        """Fill in the outcome of a request whose line was opened.

        Raises:
            KeyError: If no such line is open.
            OSError: If it can't be written.
        """
        start, width = self._places.pop(entry.attempt_id)
        detail = entry.detail
        line = _line_of(entry)
        while len(line) >= width and detail:
            detail = detail[: len(detail) - max(1, (len(line) - width) // 12)]  # a character is 12 bytes at most
            line = _line_of(dataclasses.replace(entry, detail=detail))
        assert len(line) < width, "everything but the detail is bounded"
        with self._lock:
            self._write(start, _padded(line, width))

    def close(self) -> None:
        """Close the file; lines that are still open stay ``unfinished``."""
        self._file.close()

    def _cut_half_line(self) -> int:
        """Return where the next line begins, after cutting what a killed writer left of one."""
        end = self._file.seek(0, os.SEEK_END)
        place = end
        while place > 0:
            start = max(0, place - 4096)
            self._file.seek(start)
            newline = self._file.read(place - start).rfind(b"\n")
            if newline >= 0:
                place = start + newline + 1
                break
            place = start
        if place < end:
            self._file.truncate(place)
        return place

    def _write(self, start: int, line: bytes) -> None:
        self._file.seek(start)
        written = self._file.write(line)
        if written != len(line):
            raise OSError(f"{self.path}: {written} of {len(line)} bytes could be written; make room on the disk")


def read_ledger(path: Path) -> list[LedgerEntry]:
    """Read a ledger, in the order in which requests left.

    A last line that was cut while it was appended is left out: its request never left.

    Raises:
        FileNotFoundError: If there is no such file; the message names near ones.
        ValueError: If a line is no ledger line of this version, or an attempt stands there twice; the message names
            file and line.
    """
    lines = list(read_json_lines(path))
    if lines and not _ends_whole(path):
        lines.pop()
    entries: dict[str, LedgerEntry] = {}
    for line in lines:
        entry = _entry_of(path, line)
        if entry.attempt_id in entries:
            problem = f"attempt {entry.attempt_id} stands there twice; remove one of the lines"
            raise BadFileError(path, problem, line.line)
        entries[entry.attempt_id] = entry
    return list(entries.values())


def _line_of(entry: LedgerEntry) -> bytes:
    return json.dumps(dataclasses.asdict(entry)).encode("ascii")


def _padded(line: bytes, width: int) -> bytes:
    return line.ljust(width - 1) + b"\n"


def _entry_of(path: Path, line: JsonLine | BadLine) -> LedgerEntry:
    if isinstance(line, BadLine):
        raise BadFileError(path, f"{line.problem}; remove the line, or name another ledger", line.line)
    version = line.data.get("version")
    if version != LEDGER_VERSION:
        problem = f"found version {version!r}, expected a ledger line of version {LEDGER_VERSION}; name another ledger"
        raise BadFileError(path, problem, line.line)
    try:
        return _ENTRY.validate_json(json.dumps(line.data))  # strict, yet a whole number of seconds will do
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{first['loc'][0]} {first['input']!r}: {first['msg']}; remove the line, or name another ledger"
        raise BadFileError(path, problem, line.line) from error


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _refuse_other_files(path: Path) -> None:
    """Refuse a file whose first line is no ledger line, so that no other file is ever cut or appended to."""
    with path.open("rb") as file:
        first = file.readline(1 << 20)
    if first.endswith(b"\n"):
        _entry_of(path, next(iter(read_json_lines(path)), BadLine(1, "found a blank line")))
    elif not (_LINE_START.startswith(first) or first.startswith(_LINE_START)):
        raise BadFileError(path, f"found {first[:40]!r}, expected a ledger line; name another ledger", 1)
