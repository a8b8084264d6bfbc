"""Writing the files that a run leaves behind, so that a reader never meets half of one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from provgym.generators.json_lines import atomic_file


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
