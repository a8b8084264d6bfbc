"""Episodes on disk: appended as they end, read back whole, finished files in task order.

One JSON object per line; only a line feed ends a line (a raw U+2028 inside a text does not). A last line that
a killed process left half-written is left out by readers and cut away by the next writer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from provgym.eval.line_store import LineWriter
from provgym.eval.metric_kinds import is_scored
from provgym.eval.run_files import write_atomic
from provgym.generators.episode import Episode
from provgym.generators.json_lines import check_is_file


def to_line(episode: Episode) -> bytes:
    """Return an episode as one line of ASCII JSON, its line end included: any text a model may write fits."""
    return json.dumps(episode.to_json(), separators=(",", ":")).encode("ascii") + b"\n"


class EpisodeWriter(LineWriter):
    """Appends episodes to a file; see :class:`~provgym.eval.line_store.LineWriter`."""

    def append(self, episode: Episode) -> None:
        """Append one episode.

        Raises:
            OSError: If the disk is full; the note says what was kept.
        """
        self.append_line(to_line(episode), f"episode {episode.instance_id!r}")


def read_episodes(path: Path, *, allow_half_line: bool = False) -> list[Episode]:
    """Read stored episodes, JSONL or Parquet by the file's ending.

    Args:
        path: A ``.jsonl`` or ``.parquet`` file.
        allow_half_line: Leave out a last line without a line end, as a killed process leaves behind.

    Raises:
        FileNotFoundError: If there is no such file; the message names near ones.
        ValueError: If the ending is unknown, or a line is no episode; the message names file and line.
    """
    check_is_file(path)
    if path.suffix == ".parquet":
        from provgym.eval.episode_parquet import read_parquet

        return read_parquet(path)
    if path.suffix != ".jsonl":
        raise ValueError(f"{path} is no file of episodes, expected one that ends in .jsonl or .parquet; name it")
    return list(_read_lines(path, allow_half_line))


def write_episodes(path: Path, episodes: Sequence[Episode]) -> None:
    """Write a finished file in one step, in the order given."""
    write_atomic(path, (to_line(episode) for episode in episodes))


def merge_episodes(found: Iterable[tuple[int, Episode]]) -> dict[int, Episode]:
    """Join episodes of several files by task number: a result wins over an ``error``, else the later one."""
    merged: dict[int, Episode] = {}
    for index, episode in found:
        before = merged.get(index)
        if before is None or not is_scored(before) or is_scored(episode):
            merged[index] = episode
    return merged


def _read_lines(path: Path, allow_half_line: bool) -> Iterator[Episode]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):  # binary files split at \n alone
            if not raw.endswith(b"\n") and allow_half_line:
                return
            if not raw.strip():
                continue
            try:
                yield Episode.from_json(json.loads(raw.decode("utf-8-sig")))
            except (ValueError, AttributeError) as error:
                cut = "" if raw.endswith(b"\n") else "; the file ends inside this line"
                raise ValueError(
                    f"{path}, line {number}: found {raw[:40]!r}, expected a stored episode ({error}){cut}. Remove that "
                    "line, or the whole file and let the evaluation play again"
                ) from error
