"""What a K-GAT run leaves on disk while it trains, and how it is read again after a kill.

Each round has a folder: ``proposals.jsonl`` (what is to be executed), ``targets.part-RANK.jsonl`` (a line as soon as a
task is mined), ``targets.jsonl``, ``calls.json`` and ``mining.json`` once all are, ``dev.json`` (the generator at the
round's start).
Whole files are written in one step; of a part, a last line that a kill cut in half is left out, and its task is mined
again from the message cache.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from provgym.envs.topology import Topology
from provgym.eval.run_files import read_json_file, write_atomic, write_json_atomic
from provgym.generators.candidate_mining import Proposal, Proposals
from provgym.generators.json_lines import BadFileError, BadLine, dump_json_line, read_json_lines
from provgym.generators.task_mining import PruningCount
from provgym.generators.topology_targets import TaskTarget
from provgym.generators.topology_trials import PaidCall, TrialAccount

Built = TypeVar("Built")
_PART = re.compile(r"targets\.part-\d+\.jsonl")
_DRAWS = ("drawn", "refused", "repeated")
_DRAWN_AGAIN = "remove the round's folder, and it is mined again (from the message cache)"


@dataclass(frozen=True, slots=True)
class MinedRow:
    """One mined task, as it is stored and sent between processes.

    Attributes:
        number: Of the task in its split.
        target: What the generator is to match.
        pruning: What pruning did.
        account: What the executions cost.
        failure: Why the first execution that ended in ``error`` did so, or None.
        paid: Key of each call that the account counts as paid, to its tokens; none where no store has it.
    """

    number: int
    target: TaskTarget
    pruning: PruningCount
    account: TrialAccount
    failure: str | None = None
    paid: Mapping[str, PaidCall] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data; :meth:`from_json` reverses it exactly."""
        return {
            "number": self.number,
            "target": self.target.to_json(),
            "pruning": self.pruning._asdict(),
            "account": self.account.to_json(),
            "failure": self.failure,
            "paid": {key: list(call) for key, call in self.paid.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MinedRow:
        """Rebuild a row.

        Raises:
            ValueError: If a field is missing or unknown.
        """
        try:
            target, pruning = TaskTarget.from_json(data["target"]), PruningCount(**data["pruning"])
            account = TrialAccount(**data["account"])
            # Rows of before this was stored have none: of a round interrupted then, repeats can't be taken out.
            paid = {key: PaidCall(*call) for key, call in data.get("paid", {}).items()}
            return cls(int(data["number"]), target, pruning, account, data["failure"], paid)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a stored mined task: {error!r}") from error


class RoundFolder:
    """The files of one round.

    Args:
        run_dir: The run's folder.
        number: Of the round, from 0.
    """

    def __init__(self, run_dir: Path, number: int) -> None:
        self.number = number
        self.path = run_dir / "rounds" / f"round-{number:02d}"
        self.proposals_file = self.path / "proposals.jsonl"
        self.targets_file = self.path / "targets.jsonl"
        self.mining_file = self.path / "mining.json"
        self.calls_file = self.path / "calls.json"
        self.begun_file = self.path / "begun.json"
        self.dev_file = self.path / "dev.json"

    def write_proposals(self, proposals: Proposals, task_ids: Sequence[str]) -> None:
        """Write the candidates of every task, and in ``proposals.json`` how they were drawn."""
        rows = (
            {
                "task_id": task_id,
                "proposals": [{"topology": p.topology.as_dict(), "origin": p.origin} for p in row],
            }
            for task_id, row in zip(task_ids, proposals.by_task, strict=True)
        )
        counts = {name: dict(getattr(proposals, name)) for name in _DRAWS}
        write_json_atomic(self.path / "proposals.json", counts)
        write_atomic(self.proposals_file, (dump_json_line(row) for row in rows))

    def read_proposals(self, task_ids: Sequence[str]) -> Proposals | None:
        """Return what :meth:`write_proposals` wrote; None if it did not come to it.

        Raises:
            BadFileError: If the file is damaged, or of other tasks.
        """
        if not self.proposals_file.is_file():
            return None
        rows = _read_rows(self.proposals_file)
        _check_tasks(self.proposals_file, [str(row.get("task_id")) for row in rows], task_ids)
        by_task = tuple(_built(self.proposals_file, n, _proposals_of, row) for n, row in enumerate(rows, start=1))
        return read_json_file(
            self.path / "proposals.json",
            lambda counts: Proposals(by_task, **{name: dict(counts[name]) for name in _DRAWS}),
            expected="how many candidates were drawn, refused and repeated",
            way_out=_DRAWN_AGAIN,
        )

    def begin(self, newest_reply: float) -> float | None:
        """Note, before the first execution, when the newest stored reply was stored.

        Args:
            newest_reply: That moment, in seconds since 1970.

        Returns:
            What an earlier process noted, if one began to mine this round: replies stored since then are the round's
            own. None if this one is the first.
        """
        if self.begun_file.is_file():
            return read_json_file(
                self.begun_file,
                lambda found: float(found["newest_reply"]),
                expected="when the newest stored reply was stored as the round began",
                way_out=_DRAWN_AGAIN,
            )
        write_json_atomic(self.begun_file, {"newest_reply": newest_reply})
        return None

    def part_file(self, rank: int) -> Path:
        """Return where a process stores its tasks as they are mined."""
        return self.path / f"targets.part-{rank:05d}.jsonl"

    def read_parts(self) -> dict[int, MinedRow]:
        """Return what was mined before a kill, by task number, whichever process did it.

        Tasks with executions that ended in ``error`` are left out: they are tried again.

        Raises:
            BadFileError: If a line other than a file's last is damaged.
        """
        found: dict[int, MinedRow] = {}
        parts = self.path.iterdir() if self.path.is_dir() else ()
        for path in sorted(p for p in parts if _PART.fullmatch(p.name)):
            for number, row in enumerate(_read_rows(path, may_be_cut=True), start=1):
                mined = _built(path, number, MinedRow.from_json, row)
                if not mined.account.errors:
                    found[mined.number] = mined
        return found

    def repair_part(self, rank: int) -> None:
        """Cut a half-written last line away, so that the next one is not glued to it."""
        path = self.part_file(rank)
        if path.is_file() and not path.read_bytes().endswith(b"\n"):
            rows = _read_rows(path, may_be_cut=True)
            write_atomic(path, (dump_json_line(row) for row in rows))

    def append(self, rank: int, row: MinedRow) -> None:
        """Store one mined task; it is on the disk when this returns.

        Raises:
            OSError: If the disk is full; a note on the error says what to do.
        """
        path = self.part_file(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("ab") as file:
                file.write(dump_json_line(row.to_json()))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            error.add_note(f"{path} could not be written; free space, then give the same command again")
            raise

    def finish(
        self, rows: Sequence[MinedRow], figures: Mapping[str, Any], calls: Mapping[str, tuple[int, int]]
    ) -> None:
        """Write targets, in the order of the tasks, the round's figures and each task's calls; the parts go last."""
        write_json_atomic(self.mining_file, dict(figures))
        write_json_atomic(self.calls_file, {task_id: list(found) for task_id, found in calls.items()})
        write_atomic(self.targets_file, (dump_json_line(row.target.to_json()) for row in rows))
        for path in list(self.path.iterdir()):
            if _PART.fullmatch(path.name):
                path.unlink()

    def read_targets(self, task_ids: Sequence[str]) -> list[TaskTarget] | None:
        """Return the finished round's targets in the order of the tasks; None if the round is not finished.

        Raises:
            BadFileError: If the file is damaged, or of other tasks.
        """
        if not self.targets_file.is_file():
            return None
        rows = _read_rows(self.targets_file)
        targets = [_built(self.targets_file, n, TaskTarget.from_json, row) for n, row in enumerate(rows, start=1)]
        _check_tasks(self.targets_file, [target.task_id for target in targets], task_ids)
        return targets

    def read_figures(self) -> dict[str, Any]:
        """Return a finished round's figures.

        Raises:
            BadFileError: If the file is damaged.
            OSError: If it can't be read.
        """
        way_out = "put the file back, or start over with --fresh"
        return read_json_file(self.mining_file, _figures_of, expected="what a round of mining came to", way_out=way_out)

    def read_calls(self) -> dict[str, tuple[int, int]]:
        """Return task id to (node calls asked for, of them paid) of a finished round; empty if it stored none.

        Raises:
            BadFileError: If the file is damaged.
        """
        if not self.calls_file.is_file():
            return {}
        return read_json_file(
            self.calls_file,
            _calls_of,
            expected="node calls asked for and paid, by task",
            way_out="put the file back, or remove it: the cost of mining then has no interval",
        )


def _proposals_of(row: Mapping[str, Any]) -> tuple[Proposal, ...]:
    """Rebuild one task's candidates.

    Raises:
        ValueError: If a field is missing or unknown.
    """
    try:
        return tuple(Proposal(Topology.from_dict(p["topology"]), p["origin"]) for p in row["proposals"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a task's stored candidates: {error!r}") from error


def _figures_of(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict) or "mining/tasks" not in data:
        raise ValueError(f"a {type(data).__name__} without mining/tasks")
    return data


def _calls_of(data: Any) -> dict[str, tuple[int, int]]:
    if not isinstance(data, dict) or not data:
        raise ValueError(f"a {type(data).__name__} of {len(data) if isinstance(data, dict) else 'no'} tasks")
    return {str(task_id): (int(asked), int(paid)) for task_id, (asked, paid) in data.items()}


def _built(path: Path, line: int, build: Callable[[Mapping[str, Any]], Built], row: Mapping[str, Any]) -> Built:
    """Build what a line holds.

    Raises:
        BadFileError: If it holds something else.
    """
    try:
        return build(row)
    except ValueError as error:
        raise BadFileError(path, f"{error}; remove the file, its tasks are mined again", line) from error


def _read_rows(path: Path, *, may_be_cut: bool = False) -> list[dict[str, Any]]:
    lines = list(read_json_lines(path))
    if may_be_cut and lines and isinstance(lines[-1], BadLine):
        lines = lines[:-1]
    rows: list[dict[str, Any]] = []
    for line in lines:
        if isinstance(line, BadLine):
            raise BadFileError(path, f"{line.problem}; remove the file, its tasks are mined again", line.line)
        rows.append(line.data)
    return rows


def _check_tasks(path: Path, found: Iterable[str], expected: Sequence[str]) -> None:
    found = list(found)
    if found != list(expected):
        place = next((n for n, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), -1)
        what = f"task {found[place]!r} where {expected[place]!r} was expected" if place >= 0 else f"{len(found)} tasks"
        raise BadFileError(
            path, f"found {what}, of {len(expected)} tasks; the data changed since: start over with --fresh", None
        )
