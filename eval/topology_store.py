"""Runs of methods on disk: one JSONL file per method, appended as runs end, finished files in the questions' order.

While a method plays, its runs go to ``runs/METHOD.part.jsonl``; when it has answered everything, ``runs/METHOD.jsonl``
is written in one step and the part goes. A last line that a killed process left half-written is cut away.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from provgym.eval.line_store import LineWriter
from provgym.eval.run_files import write_atomic
from provgym.eval.topology_runs import MethodRun, RunKey, by_question
from provgym.generators.json_lines import BadFileError, BadLine, read_json_lines

RUNS_FOLDER = "runs"
PART_SUFFIX = ".part.jsonl"


def runs_file(folder: Path, method: str) -> Path:
    """Return where the finished runs of a method lie."""
    return folder / RUNS_FOLDER / f"{method}.jsonl"


def part_file(folder: Path, method: str) -> Path:
    """Return where the runs of a method lie that is still playing."""
    return folder / RUNS_FOLDER / f"{method}{PART_SUFFIX}"


def to_line(run: MethodRun) -> bytes:
    """Return a run as one line of ASCII JSON, its line end included: any text an agent may write fits."""
    return json.dumps(run.to_json(), separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


class RunWriter(LineWriter):
    """Appends runs to a file; see :class:`~provgym.eval.line_store.LineWriter`."""

    def append(self, run: MethodRun) -> None:
        """Append one run.

        Raises:
            OSError: If the disk is full; the note says what was kept.
        """
        self.append_line(to_line(run), run.where)


def write_runs(path: Path, runs: Iterable[MethodRun]) -> None:
    """Write a finished file in one step, in the order given."""
    write_atomic(path, (to_line(run) for run in runs))


def read_runs(path: Path) -> list[MethodRun]:
    """Read stored runs, in the file's order.

    Raises:
        FileNotFoundError: If there is no such file; the message names near ones.
        BadFileError: If a line is no stored run; the message names file and line.
    """
    found = []
    for line in read_json_lines(path):
        if isinstance(line, BadLine):
            raise BadFileError(path, f"{line.problem}; remove the line and let the evaluation play it again", line.line)
        try:
            found.append(MethodRun.from_json(line.data))
        except ValueError as error:
            problem = f"expected a stored run ({error}); remove the line and let the evaluation play it again"
            raise BadFileError(path, problem, line.line) from error
    return found


def read_methods(folder: Path) -> dict[str, list[MethodRun]]:
    """Read the finished runs of every method of an evaluation, in the order of its file names.

    Raises:
        FileNotFoundError: If there are none; the message says whether the evaluation has not finished.
        ValueError: If a line is no stored run, or a file holds another method's; the message names it.
    """
    files = sorted(p for p in (folder / RUNS_FOLDER).glob("*.jsonl") if not p.name.endswith(PART_SUFFIX))
    if not files:
        parts = sorted((folder / RUNS_FOLDER).glob(f"*{PART_SUFFIX}"))
        found = (
            "that evaluation has not finished; give its command again, then score it"
            if parts
            else "expected the folder of a topology evaluation, such as runs/NAME/eval"
        )
        raise FileNotFoundError(f"{folder} holds no {RUNS_FOLDER}/METHOD.jsonl; {found}")
    return {path.stem: _of_method(path) for path in files}


def merge_runs(found: Iterable[MethodRun]) -> dict[RunKey, MethodRun]:
    """Join runs of several files by question: a result wins over an ``error``, else the later one."""
    merged: dict[RunKey, MethodRun] = {}
    for run in found:
        before = merged.get(run.key)
        if before is None or not before.is_scored or run.is_scored:
            merged[run.key] = run
    return merged


def _of_method(path: Path) -> list[MethodRun]:
    runs = read_runs(path)
    wrong = next((run for run in runs if run.method != path.stem), None)
    if wrong is not None:
        raise ValueError(f"{path} holds a run of method {wrong.method!r}, expected {path.stem!r}; rename the file")
    by_question(runs)
    return runs
