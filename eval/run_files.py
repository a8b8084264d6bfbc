"""The files that a run leaves behind: written so that a reader never meets half of one, and read by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from provgym.generators.json_lines import BadFileError, atomic_file

Built = TypeVar("Built")


def write_atomic(path: Path, parts: Iterable[bytes]) -> None:
    """Write pieces one after the other beside ``path``, then put the file in place in one step.

    Raises:
        OSError: If the disk is full or the folder cannot be written; what stood at ``path`` is still whole,
            and a note on the error says what to do.
    """
    try:
        with atomic_file(path) as file:
            for part in parts:
                file.write(part)
    except OSError as error:
        error.add_note(f"{path} could not be written; free space or choose another folder, then run again")
        raise


def write_json_atomic(path: Path, data: Any) -> None:
    """Write strict, indented JSON in one step.

    Raises:
        ValueError: If ``data`` holds NaN or an infinity, which strict readers refuse; use null.
    """
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomic(path, [text.encode("utf-8", "backslashreplace"), b"\n"])


def read_json_file(path: Path, build: Callable[[Any], Built], *, expected: str, way_out: str) -> Built:
    """Read a JSON file that a run wrote, and build what it holds.

    Args:
        path: The file.
        build: Makes what is returned from the file's data; may raise what wrong data raise: ``ValueError``,
            ``KeyError``, ``TypeError``, ``AttributeError`` or ``IndexError``.
        expected: What the file should hold, for the message.
        way_out: What to do about a file that is damaged, for the message.

    Raises:
        BadFileError: If the file is missing or damaged; the message names it, what was found, and the way out.
        OSError: If it can't be read.
    """
    try:
        return build(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        found = "no such file"
    except UnicodeDecodeError as error:
        found = f"byte 0x{error.object[error.start]:02x} at position {error.start}"
    except json.JSONDecodeError as error:
        found = f"no whole JSON ({error})" if path.stat().st_size else "an empty file"
    except KeyError as error:
        found = f"no key {error.args[0]!r}"
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        found = f"other data ({error})"
    raise BadFileError(path, f"found {found}, expected {expected}; {way_out}")
