"""Temporary folders in which foreign code may make whatever it likes, and that go all the same.

``shutil.rmtree`` descends by calling itself and opens a folder for each level: folders in folders, a thousand deep, end
it with a RecursionError, or with no file left to open. What is removed here is brought to the top first.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class ForeignFolder:
    """A new temporary folder.

    Args:
        prefix: Of its name.

    Attributes:
        name: Its path.
    """

    def __init__(self, prefix: str) -> None:
        self.name = tempfile.mkdtemp(prefix=prefix)

    def cleanup(self) -> None:
        """Remove it with all that is in it; what the system refuses to remove stays."""
        with suppress(OSError):
            remove_tree(self.name)


def remove_tree(folder: str) -> None:
    """Remove a folder, however deep, and whatever modes its folders have; links are never followed.

    Raises:
        OSError: If something can't be removed.
    """
    token, moved = secrets.token_hex(8), 0  # no name that was there before
    with _opened(folder, None) as top:
        while names := os.listdir(top):
            for name in names:
                try:
                    os.unlink(name, dir_fd=top)
                    continue
                except (IsADirectoryError, PermissionError):  # the latter of some systems; else the next line says so
                    pass
                with _opened(name, top) as inside:
                    for each in os.listdir(inside):
                        moved += 1
                        _move(each, inside, f"{token}-{moved}", top)
                os.rmdir(name, dir_fd=top)
    os.rmdir(folder)


@contextmanager
def _opened(name: str, parent: int | None) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    if os.geteuid() != 0:  # root may open it as it is, and a link must not lead root's chmod elsewhere
        os.chmod(name, 0o700, dir_fd=parent)
    found = os.open(name, flags, dir_fd=parent)
    try:
        yield found
    finally:
        os.close(found)


def _move(name: str, source: int, new_name: str, target: int) -> None:
    try:
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
    except PermissionError:  # a folder that its owner may not write can't change places (root's can)
        if os.geteuid() == 0:
            raise
        os.chmod(name, 0o700, dir_fd=source)
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
