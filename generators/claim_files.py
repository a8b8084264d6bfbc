"""Claim files: how users bring their own claims, and how generated instances leave and come back.

One instance a line (JSONL), or a row (Parquet); :mod:`provgym.generators.claim_records` says what a line
holds, and ``docs/claim_files.md`` shows it with an example.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import pyarrow
import pyarrow.parquet

from provgym.envs.provenance import Instance
from provgym.generators.claim_records import instance_to_record, record_to_instance
from provgym.generators.json_lines import (
    BadFileError,
    BadLine,
    JsonLine,
    atomic_file,
    check_is_file,
    dump_json_line,
    read_json_lines,
)
from provgym.generators.splits import check_instances
from provgym.rewards.outcome import Verdict

if TYPE_CHECKING:
    from datasets import Dataset

ReadMode = Literal["strict", "lenient"]
MAX_REPORTED = 100
"""A report holds at most this many messages; all bad lines are counted."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a reading came to.

    Attributes:
        files: Names of the files read.
        kept: Instances kept.
        bad_total: Lines left out because they could not be read; always 0 in strict mode.
        bad_lines: The first 100 of them, each with file and line.
        gold_differs: Instances whose own ``gold`` is not the majority over their distinct sources; it holds.
    """

    files: tuple[str, ...]
    kept: int
    bad_total: int
    bad_lines: tuple[str, ...]
    gold_differs: int

    def text(self) -> str:
        """Return the report as a few lines for a terminal."""
        lines = [f"{', '.join(self.files)}: kept {self.kept} instances, left out {self.bad_total} bad lines"]
        if self.kept == 0:
            lines.append("n = 0, not available: there is nothing to walk")
        if self.gold_differs:
            lines.append(f"{self.gold_differs} instances state another gold than their sources' majority")
        lines += self.bad_lines[:10]
        if self.bad_total > 10:
            lines.append(f"... and {self.bad_total - 10} more")
        return "\n".join(lines)


class ClaimSet(NamedTuple):
    """Instances in the order of their lines, and the account of the reading."""

    instances: list[Instance]
    report: LoadReport


def read_claims(*paths: Path, mode: ReadMode = "strict") -> ClaimSet:
    """Read claim files, and check that no claim, entity or source stands in two splits.

    Memory grows with the instances kept, never with the size of a file: one line is held at a time.

    Args:
        paths: At least one ``.jsonl`` or ``.parquet`` file; the files together make one data set.
        mode: ``strict`` stops at the first bad line; ``lenient`` leaves bad lines out and reports them.

    Raises:
        BadFileError: If a line is bad or there is no instance at all (strict), if splits leak, or if a
            Parquet file cannot be read.
        FileNotFoundError: If a file does not exist.
        IsADirectoryError: If a path is a folder.
        ValueError: If ``mode`` is unknown or there is no path.
    """
    if mode not in get_args(ReadMode):
        raise ValueError(f"mode {mode!r} is unknown; choose one of {list(get_args(ReadMode))}")
    if not paths:
        raise ValueError("no claim file was named; give at least one path")
    instances: list[Instance] = []
    messages: list[str] = []
    bad_total = 0
    index = _Index()
    for path in paths:
        for row in read_rows(path):
            found = row if isinstance(row, BadLine) else index.build(path, row)
            if isinstance(found, Instance):
                instances.append(found)
                continue
            if mode == "strict":
                way_out = "Correct the line, or read in lenient mode to leave bad lines out"
                raise BadFileError(path, f"{found.problem}. {way_out}", found.line)
            bad_total += 1
            if len(messages) < MAX_REPORTED:
                messages.append(f"{path}, line {found.line}: {found.problem}")
    if not instances and mode == "strict":
        raise BadFileError(paths[0], "holds no claim, expected at least one line; see docs/claim_files.md")
    try:
        check_instances(instances)
    except ValueError as error:
        raise BadFileError(paths[0], f"splits leak: {error}") from error
    differs = sum(i.gold is not Verdict.from_counts(*i.source_counts) for i in instances)
    report = LoadReport(tuple(str(p) for p in paths), len(instances), bad_total, tuple(messages), differs)
    return ClaimSet(instances, report)


def write_claims(path: Path, instances: Iterable[Instance]) -> int:
    """Write instances to a claim file; on any failure the file that was there before stays as it was.

    Args:
        path: Where to; ``.parquet`` gives Parquet, anything else JSON lines.
        instances: With distinct ids; read one by one.

    Returns:
        How many were written.

    Raises:
        ValueError: If an id appears twice, or an instance cannot be written; see
            :func:`~provgym.generators.claim_records.instance_to_record`.
        OSError: If the disk is full or the folder cannot be written.
    """
    if path.suffix == ".parquet":
        table = to_dataset(instances).data.table
        with atomic_file(path) as file:
            pyarrow.parquet.write_table(table, file)
        return int(table.num_rows)
    count = 0
    with atomic_file(path) as file:
        for record in _records(instances, explicit_routes=False):
            file.write(dump_json_line(record))
            count += 1
    return count


def to_dataset(instances: Iterable[Instance]) -> Dataset:
    """Return instances as a ``datasets.Dataset``, one row each, with the fields of a claim file.

    Raises:
        ValueError: If an id appears twice, or an instance cannot be written.
    """
    import datasets  # here, because it takes a second to import and reading JSON lines does not need it

    text = datasets.Value("string")
    evidence = {
        "source": text,
        "stance": text,
        "text": text,
        "routes": datasets.List({"kind": text, "id": text}),
        "atom": text,
        "weight": datasets.Value("float64"),
    }
    names = ("id", "claim", "split", "condition", "gold", "domain")
    features = datasets.Features(
        dict.fromkeys(names, text)
        | {"entities": datasets.List(text), "claim_id": text, "evidence": datasets.List(evidence)}
    )
    records = list(_records(instances, explicit_routes=True))
    # By columns: rows would lose the features where there are none.
    columns = {name: [record[name] for record in records] for name in features}
    return datasets.Dataset.from_dict(columns, features=features)


def from_dataset(dataset: Iterable[Mapping[str, Any]]) -> list[Instance]:
    """Return the instances of a ``datasets.Dataset``, or of any rows, and check its splits.

    Args:
        dataset: Rows with the fields of a claim file; a None is a field left out.

    Raises:
        ValueError: Naming the row, what was found and what was expected; or what leaks between splits.
    """
    index = _Index()
    place = Path("data set")
    instances: list[Instance] = []
    for number, row in enumerate(dataset, start=1):
        found = index.build(place, JsonLine(number, _without_none(dict(row))))
        if isinstance(found, BadLine):
            raise ValueError(f"data set, row {number}: {found.problem}")
        instances.append(found)
    check_instances(instances)
    return instances


class _Index:
    """What was read so far: where each instance id and each claim stood."""

    def __init__(self) -> None:
        self._place_of_id: dict[str, str] = {}
        self._claim_of_id: dict[str, tuple[int, str]] = {}

    def build(self, path: Path, row: JsonLine) -> Instance | BadLine:
        """Build a row's instance, unless it is bad or contradicts an earlier one."""
        try:
            instance = record_to_instance(row.data)
        except ValueError as error:
            return BadLine(row.line, str(error))
        place = f"{path.name}, line {row.line}"
        name, claim = instance.instance_id, instance.base_claim
        if name in self._place_of_id:
            earlier = self._place_of_id[name]
            problem = f"found id {name!r} again (first in {earlier}), expected a new one; rename or remove it"
            return BadLine(row.line, problem)
        contents, first = self._claim_of_id.setdefault(claim.claim_id, (hash(claim), place))
        if contents != hash(claim):
            return BadLine(
                row.line,
                f"found claim_id {claim.claim_id!r} with another claim text, domain or entities than in "
                f"{first}, expected the same; give another claim another claim_id",
            )
        self._place_of_id[name] = place
        return instance


def read_rows(path: Path) -> Iterator[JsonLine | BadLine]:
    """Yield the lines of a JSON lines file, or the rows of a Parquet table without their empty fields.

    Raises:
        BadFileError: If a Parquet file cannot be read.
        FileNotFoundError: If the file does not exist.
        IsADirectoryError: If it is a folder.
    """
    if path.suffix != ".parquet":
        yield from read_json_lines(path)
        return
    check_is_file(path)
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield JsonLine(number, _without_none(row))
    except pyarrow.ArrowException as error:
        raise BadFileError(path, f"found no readable Parquet ({error}); write it again") from error


def _without_none(value: Any) -> Any:
    """Leave out None fields: a table has every column in every row."""
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def _records(instances: Iterable[Instance], *, explicit_routes: bool) -> Iterator[dict[str, Any]]:
    seen: set[str] = set()
    for instance in instances:
        if instance.instance_id in seen:
            raise ValueError(f"instance id {instance.instance_id!r} appears twice; give each its own id")
        seen.add(instance.instance_id)
        yield instance_to_record(instance, explicit_routes=explicit_routes)
