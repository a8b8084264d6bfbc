"""Knowledge graph files: documents and units as JSON lines or a Parquet table; ``docs/knowledge_graphs.md`` shows one.

A line is a document ``{"kind": "document", "id", "text"}`` or a unit ``{"kind": "unit", "id", "head", "relation",
"tail", "source", "document", "start", "end", "text"}``, in any order. What was written comes back equal, order
included. For files by hand a unit may leave out ``id`` (numbered), ``start`` and ``end`` (the text must stand in the
document exactly once) and ``document`` (the text is a document of its own).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from provgym.envs.evidence_units import EvidenceUnit, KnowledgeGraph, Span
from provgym.generators.claim_files import MAX_REPORTED, ReadMode, read_rows
from provgym.generators.claim_records import Id, storable
from provgym.generators.json_lines import BadFileError, BadLine, atomic_file, dump_json_line

AnyText = Annotated[str, BeforeValidator(storable)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DocumentLine(_Line):
    """A document: its id and its whole text."""

    kind: Literal["document"]
    id: Id
    text: AnyText


class UnitLine(_Line):
    """A unit: a triple, who observed it, and where it stands written."""

    kind: Literal["unit"]
    id: Id | None = None
    head: AnyText
    relation: AnyText
    tail: AnyText
    source: Id
    document: Id | None = None
    start: int | None = Field(default=None, ge=0)
    end: int | None = Field(default=None, ge=0)
    text: AnyText

    @model_validator(mode="after")
    def _has_a_whole_place(self) -> UnitLine:
        if (self.start is None) != (self.end is None) or (self.document is None and self.start is not None):
            raise ValueError("needs 'document', 'start' and 'end' together; leave out the last two, or all three")
        return self


_Lines: TypeAdapter[DocumentLine | UnitLine] = TypeAdapter(
    Annotated[DocumentLine | UnitLine, Field(discriminator="kind")]
)
_COLUMNS = ("kind", "id", "head", "relation", "tail", "source", "document", "start", "end", "text")
_SCHEMA = pa.schema([(name, pa.int64() if name in ("start", "end") else pa.string()) for name in _COLUMNS])


@dataclass(frozen=True, slots=True)
class GraphReport:
    """What a reading came to.

    Attributes:
        path: The file.
        units: Units kept.
        documents: Documents kept.
        bad_total: Lines left out (lenient mode).
        bad_lines: The first of them, each with file and line.
    """

    path: str
    units: int
    documents: int
    bad_total: int
    bad_lines: tuple[str, ...]

    def text(self) -> str:
        """Return the report as a few lines for a terminal."""
        lines = [f"{self.path}: {self.units} units in {self.documents} documents, left out {self.bad_total} bad lines"]
        if not self.units:
            lines.append("n = 0, not available: there is no evidence to retrieve")
        lines += self.bad_lines[:10]
        return "\n".join(lines if self.bad_total <= 10 else [*lines, f"... and {self.bad_total - 10} more"])


class GraphFile(NamedTuple):
    """A graph and the account of its reading."""

    graph: KnowledgeGraph
    report: GraphReport


def read_knowledge_graph(path: Path, mode: ReadMode = "strict") -> GraphFile:
    """Read a graph from ``.jsonl`` or ``.parquet``; an empty file, or one of documents only, is a graph without units.

    Args:
        path: The file.
        mode: ``strict`` stops at the first bad line; ``lenient`` leaves bad lines out and reports them.

    Raises:
        BadFileError: If a line is bad (strict), or a Parquet file cannot be read.
        FileNotFoundError: If the file does not exist.
        ValueError: If ``mode`` is unknown.
    """
    if mode not in get_args(ReadMode):
        raise ValueError(f"mode {mode!r} is unknown; choose one of {list(get_args(ReadMode))}")
    reading = _Reading(path, mode)
    rows: list[tuple[int, UnitLine]] = []
    for line in read_rows(path):
        row = line if isinstance(line, BadLine) else _validate(line.line, line.data)
        if isinstance(row, BadLine):
            reading.leave_out(row)
        elif isinstance(row, UnitLine):
            rows.append((line.line, row))
        else:
            reading.add_document(line.line, row)
    # Units come last: the document of a unit may stand below it.
    for number, unit in rows:
        reading.add_unit(number, unit)
    return reading.result()


def write_knowledge_graph(path: Path, graph: KnowledgeGraph) -> None:
    """Write a graph; on any failure the file that was there before stays as it was.

    Args:
        path: ``.parquet`` gives Parquet, anything else JSON lines. Documents come first.
        graph: Any size.

    Raises:
        ValueError: If an id or a text cannot be stored, such as half of a surrogate pair; the message names it.
        OSError: If the disk is full or the folder cannot be written.
    """
    with atomic_file(path) as file:
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(list(_lines_of(graph)), schema=_SCHEMA), file)
        else:
            for line in _lines_of(graph):
                file.write(dump_json_line(line))


class _Reading:
    """A graph that is being put together, and what did not fit into it."""

    def __init__(self, path: Path, mode: ReadMode) -> None:
        self._path = path
        self._mode = mode
        self._documents: dict[str, str] = {}
        self._units: dict[str, EvidenceUnit] = {}
        self._lines: dict[tuple[str, str], int] = {}
        self._problems: list[BadLine] = []

    def leave_out(self, bad: BadLine) -> None:
        """Count a bad line, or stop at it."""
        if self._mode == "strict":
            way_out = "Correct the line, or read in lenient mode to leave bad lines out"
            raise BadFileError(self._path, f"{bad.problem}. {way_out}", bad.line)
        self._problems.append(bad)

    def add_document(self, number: int, line: DocumentLine) -> None:
        """Keep a document, unless its id is taken."""
        if self._is_new(number, "document", line.id):
            self._documents[line.id] = line.text

    def add_unit(self, number: int, line: UnitLine) -> None:
        """Keep a unit, unless its id is taken or its place is not in its document."""
        unit_id = line.id if line.id is not None else f"u{len(self._units) + 1}"
        if not self._is_new(number, "unit", unit_id):
            return
        try:
            span = self._span(unit_id, line)
            unit = EvidenceUnit(unit_id, line.head, line.relation, line.tail, span, line.source)
            KnowledgeGraph((unit,), {span.document_id: self._documents[span.document_id]})  # checks the place
        except ValueError as error:
            self.leave_out(BadLine(number, str(error)))
        else:
            self._units[unit_id] = unit

    def result(self) -> GraphFile:
        """Return the graph and the account."""
        graph = KnowledgeGraph(tuple(self._units.values()), self._documents)
        shown = sorted(self._problems)[:MAX_REPORTED]
        messages = tuple(f"{self._path}, line {bad.line}: {bad.problem}" for bad in shown)
        report = GraphReport(str(self._path), len(self._units), len(self._documents), len(self._problems), messages)
        return GraphFile(graph, report)

    def _is_new(self, number: int, what: str, name: str) -> bool:
        first = self._lines.setdefault((what, name), number)
        if first == number:
            return True
        problem = f"found {what} id {name!r} again (first in line {first}), expected a new one; rename or remove it"
        self.leave_out(BadLine(number, problem))
        return False

    def _span(self, unit_id: str, line: UnitLine) -> Span:
        document_id = line.document
        if document_id is None:
            document_id = f"{line.source}/{unit_id}"
            if self._documents.setdefault(document_id, line.text) != line.text:
                raise ValueError(
                    f"unit {unit_id!r} names no document, and the id {document_id!r} of its own is taken; name one"
                )
        text = self._documents.get(document_id)
        if text is None:
            raise ValueError(f"unit {unit_id!r} names document {document_id!r}, which the file lacks; add its line")
        if line.start is not None and line.end is not None:
            return Span(document_id, line.start, line.end, line.text)
        start = text.find(line.text)
        if not line.text or start < 0 or text.find(line.text, start + 1) >= 0:
            times = "no time" if start < 0 else "more than once"
            raise ValueError(
                f"unit {unit_id!r}: its text stands {times} in document {document_id!r}, expected once; "
                "correct the text, or say where by 'start' and 'end'"
            )
        return Span(document_id, start, start + len(line.text), line.text)


def _validate(number: int, data: Any) -> DocumentLine | UnitLine | BadLine:
    try:
        return _Lines.validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        # The first part of a place in a line is its kind.
        field = ".".join(str(part) for part in first["loc"][1:]) or "kind"
        found = "nothing" if first["type"] == "missing" else repr(first["input"])[:60]
        problem = f"field {field!r}: found {found}, expected: {first['msg'].removeprefix('Value error, ')}"
        return BadLine(number, problem)


def _lines_of(graph: KnowledgeGraph) -> Iterator[dict[str, Any]]:
    for document_id, text in graph.documents.items():
        yield _checked({"kind": "document", "id": document_id, "text": text})
    for unit in graph.units:
        head = {"kind": "unit", "id": unit.unit_id, "head": unit.head, "relation": unit.relation, "tail": unit.tail}
        place = {"document": unit.span.document_id, "start": unit.span.start, "end": unit.span.end}
        yield _checked({**head, "source": unit.source_id, **place, "text": unit.span.text})


def _checked(line: dict[str, Any]) -> dict[str, Any]:
    """Refuse what could not be read again, before anything is written over."""
    found = _validate(0, line)
    if isinstance(found, BadLine):
        raise ValueError(f"{line['kind']} {line['id']!r} can't be stored: {found.problem}")
    return line
