"""Whether files can be written to a folder, asked before anything is loaded, played or trained."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def check_writable(folder: Path, option: str) -> None:
    """Refuse a folder that no file can be written to; nothing is made and nothing stays.

    A folder that is not there yet is asked about at the nearest one that is. A disk that is full may still take an
    empty file: what runs out of space later says so by itself.

    Args:
        folder: Where files are to go.
        option: Who named it, such as ``--out``, for the message.

    Raises:
        NotADirectoryError: If a file is in the way.
        OSError: If no file can be made there; the message names the folder, why, and what to do.

    Example:
        >>> check_writable(Path("."), "--out")
    """
    places = (folder, *folder.absolute().parents)
    for place in places:
        if os.path.exists(place) and not os.path.isdir(place):
            raise NotADirectoryError(f"{option} {folder}: {place} is a file, expected a folder; name another one")
    nearest = next(place for place in places if os.path.isdir(place))
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise OSError(
            f"{option} {folder} cannot be written: no file can be made in {nearest} ({error.strerror or error}), "
            "expected a folder that takes files; name another one, or change its permissions"
        ) from error


def check_file_writable(file: Path, option: str, *, such_as: str) -> None:
    """Refuse a file that cannot be written.

    Args:
        file: To be written.
        option: Who named it.
        such_as: A name for it, shown where a folder was named.

    Raises:
        IsADirectoryError: If a folder was named.
        OSError: As :func:`check_writable`.
    """
    if file.is_dir():
        raise IsADirectoryError(f"{option} {file} is a folder, expected a file; name one, such as {file / such_as}")
    check_writable(file.absolute().parent, f"{option} {file}: the folder")
