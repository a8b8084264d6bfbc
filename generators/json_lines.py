r"""JSON lines, read so that no line can surprise, and files written so that none is left half done.

Reading: only ``\n`` ends a line (a raw U+2028 inside a text does not), CRLF and a leading byte-order mark
are accepted, one line at a time is held in memory. Writing: into a temporary file beside the target, moved
over it once everything is on disk.
"""

from __future__ import annotations

import difflib
import gzip
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

MAX_LINE_BYTES = 16 * 1024 * 1024
"""A longer line is a bad line; it is skipped without being held in memory."""

_BOM = b"\xef\xbb\xbf"


class BadLine(NamedTuple):
    """A line that was not read.

    Attributes:
        line: Its number in the file, from 1.
        problem: What was found and what was expected.
    """

    line: int
    problem: str


class JsonLine(NamedTuple):
    """A line that holds one JSON object."""

    line: int
    data: dict[str, Any]


class BadFileError(ValueError):
    """A data file that cannot be used; the message names file and line, found, expected, and a way out.

    Attributes:
        path: The file.
        line: The line's number from 1, or None if the whole file is meant.
    """

    def __init__(self, path: Path, problem: str, line: int | None = None) -> None:
        self.path = path
        self.line = line
        super().__init__(f"{path}: {problem}" if line is None else f"{path}, line {line}: {problem}")


def read_json_lines(path: Path) -> Iterator[JsonLine | BadLine]:
    """Yield every line of a file that is not blank, as an object or as a bad line, in order.

    Args:
        path: A UTF-8 file with one JSON object a line; one that ends in ``.gz`` is unpacked while it is read.

    Raises:
        BadFileError: If a ``.gz`` file can't be unpacked.
        FileNotFoundError: If there is no such file; the message names near ones.
        IsADirectoryError: If it is a folder; the message names files in it.
    """
    check_is_file(path)
    if path.suffix != ".gz":
        with path.open("rb") as file:
            yield from _lines(file)
        return
    with gzip.open(path, "rb") as packed:
        try:
            yield from _lines(packed)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise BadFileError(path, f"found no whole gzip file ({error}); fetch it again, or unpack it") from error


def _lines(file: BinaryIO | gzip.GzipFile) -> Iterator[JsonLine | BadLine]:
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if number == 1:
            raw = raw.removeprefix(_BOM)
        if len(raw) > MAX_LINE_BYTES:
            while raw and not raw.endswith(b"\n"):
                raw = file.readline(MAX_LINE_BYTES)
            yield BadLine(number, f"found more than {MAX_LINE_BYTES} bytes, expected one JSON object")
        elif raw.strip():
            yield _parse(number, raw)


def check_is_file(path: Path) -> None:
    """Refuse a path that is missing or a folder, and name what lies near it.

    Raises:
        FileNotFoundError: If there is nothing at ``path``.
        IsADirectoryError: If a folder is.
    """
    if path.is_dir():
        inside = sorted(p.name for p in path.iterdir() if p.suffix in (".jsonl", ".parquet"))
        found = f"it holds {', '.join(inside[:8])}" if inside else "it holds no .jsonl or .parquet file"
        raise IsADirectoryError(f"{path} is a folder, expected a file; {found}. Name one file")
    if not path.exists():
        around = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        alike = [name for name in around if name.endswith(path.suffix)]
        near = difflib.get_close_matches(path.name, around, n=3) or alike[:3]
        if not path.parent.is_dir():
            found = f"the folder {path.parent} does not exist either"
        else:
            found = f"near it lie {', '.join(near)}" if near else "nothing with a near name lies beside it"
        raise FileNotFoundError(f"{path} does not exist; {found}. Check the path")


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside ``path`` and move it there once it is whole and on disk.

    An exception (a full disk, an interrupt) removes the temporary file and leaves ``path`` as it was before.

    Args:
        path: Where the file is to be; missing folders are made.
    """
    path = Path(os.path.realpath(path))  # through a link, not over it
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def dump_json_line(data: dict[str, Any]) -> bytes:
    """Return one line of UTF-8 JSON with its line end; texts stay readable, NaN is refused."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"


def _parse(number: int, raw: bytes) -> JsonLine | BadLine:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        found = raw[error.start : error.start + 1].hex()
        return BadLine(number, f"found byte 0x{found} at position {error.start}, expected text saved as UTF-8")
    try:
        data = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_distinct_keys)
    except json.JSONDecodeError as error:
        # Whatever wrote the file stopped inside the line: the usual trace of a killed writer.
        cut = " (the file ends inside this line)" if not raw.endswith(b"\n") else ""
        start = text.strip()[:40]
        what = f"{error.msg}, column {error.colno}{cut}"
        return BadLine(number, f"found {start!r}, expected one JSON object: {what}")
    except ValueError as error:
        return BadLine(number, str(error))
    except RecursionError:
        return BadLine(number, "found JSON nested too deeply, expected one JSON object")
    if not isinstance(data, dict):
        return BadLine(number, f"found {_json_type(data)}, expected one JSON object")
    return JsonLine(number, data)


def _json_type(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", list: "a list", str: "a string"}
    return names.get(type(value), "a number")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"found {name}, which is not JSON, expected a finite number")


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"found the key {twice!r} twice in one object, expected each key once")
    return data
