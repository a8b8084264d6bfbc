"""Writing files of a run so that a reader never meets half of one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_text_atomic(path: Path, text: str) -> None:
    """Write ``text`` beside ``path``, then put it in place in one step.

    Raises:
        OSError: If the disk is full or the folder cannot be written; what stood at ``path`` is still whole.
    """
    write_lines_atomic(path, [text])


def write_lines_atomic(path: Path, parts: Iterable[str]) -> None:
    """Write pieces of text one after the other, then put the file in place in one step; see above."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("w", encoding="utf-8", newline="") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        error.add_note(f"{path} could not be written; free space or choose another folder, then run again")
        raise


def write_json_atomic(path: Path, data: Any) -> None:
    """Write strict, indented JSON (no NaN) in one step.

    Raises:
        ValueError: If ``data`` holds NaN or an infinity, which strict readers refuse; use null.
    """
    write_text_atomic(path, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
