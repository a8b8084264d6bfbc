"""Appending finished work to a file, a line each, so that a kill costs at most the line that was being written."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import IO, Self

from filelock import FileLock, Timeout


class LineWriter:
    """Appends lines to a file; each is on its way to the disk when :meth:`append_line` returns.

    Args:
        path: A file of lines, created with its folder if absent; a half-written last line is cut away first.

    Raises:
        BlockingIOError: If another process, or another writer of this one, is appending to the file.
        OSError: If the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        # The system lets go of the lock when a process dies, however it dies.
        self._lock = FileLock(path.with_name(f".{path.name}.lock"), blocking=False)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise BlockingIOError(
                f"{path} is being written by another evaluation that is still running; wait for it, or choose "
                "another folder"
            ) from error
        self._file: IO[bytes] = path.open("ab")
        whole = _length_of_whole_lines(path)
        if whole < path.stat().st_size:
            self._file.truncate(whole)
        self.written = 0

    def append_line(self, line: bytes, what: str) -> None:
        """Append one line.

        Args:
            line: With its line end.
            what: What the line holds, for the message of an error.

        Raises:
            OSError: If the disk is full; the note says what was kept.
        """
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            error.add_note(
                f"{what} could not be appended to {self.path}; the {self.written} "
                "before it are kept there: free space and run the same command again to go on"
            )
            raise
        self.written += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        except OSError:
            if error is None:  # else the first failure is the one to report
                raise
        finally:
            self._lock.release()
            Path(self._lock.lock_file).unlink(missing_ok=True)


def _length_of_whole_lines(path: Path) -> int:
    """Return the number of bytes up to and including the last line end."""
    block = 1 << 20
    with path.open("rb") as file:
        end = file.seek(0, 2)
        while end > 0:
            start = max(0, end - block)
            file.seek(start)
            place = file.read(end - start).rfind(b"\n")
            if place >= 0:
                return start + place + 1
            end = start
    return 0
