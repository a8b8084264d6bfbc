"""Reading official SciFact files line by line: claims, corpus, and the report of a conversion."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from provgym.generators.claim_files import ReadMode
from provgym.generators.json_lines import BadFileError, BadLine, JsonLine, read_json_lines

ScifactLabel = Literal["SUPPORT", "CONTRADICT"]
Corpus = Mapping[str, tuple[str, tuple[str, ...]]]
"""Document id to its title and the sentences of its abstract."""


def _one_type_of_id(value: object) -> object:
    """Return ids as text without spaces or leading zeros: a number in one file is a string in another."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        value = value.strip()
        return str(int(value)) if value.isascii() and value.isdigit() and len(value) < 20 else value
    return value


_Id = Annotated[str, BeforeValidator(_one_type_of_id), Field(min_length=1)]


class _Line(BaseModel):
    # Files of later SciFact releases carry more fields; none of them changes what is read here.
    model_config = ConfigDict(extra="ignore", strict=True)


class _Rationale(_Line):
    sentences: list[int]
    label: ScifactLabel


class _ClaimLine(_Line):
    id: _Id
    claim: str = Field(pattern=r"\S")
    evidence: dict[str, list[_Rationale]] | None = None
    cited_doc_ids: list[_Id] = Field(default_factory=list)


class _DocumentLine(_Line):
    doc_id: _Id
    title: str = ""
    abstract: list[str]


@dataclass(frozen=True, slots=True)
class ScifactClaim:
    """One claim of a SciFact file.

    Attributes:
        claim_id: As text.
        text: The claim.
        is_labelled: Whether the line has an ``evidence`` field (test files have none).
        evidence: Document id to its rationale sets (sentence numbers); documents without any are left out.
        labels: The distinct labels of all rationale sets; one, unless they conflict or there is no evidence.
        cited: Ids of cited documents.
    """

    claim_id: str
    text: str
    is_labelled: bool
    evidence: Mapping[str, tuple[tuple[int, ...], ...]]
    labels: tuple[ScifactLabel, ...]
    cited: tuple[str, ...]


class LinesReport(NamedTuple):
    """Lines of one file that did not count: repeated ids, and lines that do not follow the format."""

    duplicates: tuple[str, ...]
    bad_lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScifactReport:
    """What a conversion kept, and what it left out and why.

    Attributes:
        num_claims: Claims in the file, each id once.
        kept: Claims with usable gold evidence.
        labels: Kept claims per label, SUPPORT and CONTRADICT.
        left_out: Reason to number of claims.
        multi_document: Kept claims with more than one evidence document.
        instances: Variant to number of instances.
        duplicates: Repeated ids, each named with its file and lines; the first one counts.
        absent_documents: Evidence or cited documents that the corpus lacks, each named with its claim.
        out_of_range: Sentence numbers outside their abstract, each named.
        bad_lines: Lines that do not follow the format (lenient mode), each named.
    """

    num_claims: int
    kept: int
    labels: Mapping[str, int]
    left_out: Mapping[str, int]
    multi_document: int
    instances: Mapping[str, int]
    duplicates: tuple[str, ...] = ()
    absent_documents: tuple[str, ...] = ()
    out_of_range: tuple[str, ...] = ()
    bad_lines: tuple[str, ...] = ()

    @property
    def num_instances(self) -> int:
        """Instances of all variants."""
        return sum(self.instances.values())

    def text(self) -> str:
        """Return the report as lines for a terminal."""
        lines = []
        if self.kept == 0:
            lines.append("SciFact: n = 0, not available: no claim with usable gold evidence")
        else:
            labels = f"{self.labels.get('SUPPORT', 0)} SUPPORT, {self.labels.get('CONTRADICT', 0)} CONTRADICT"
            lines.append(f"SciFact: kept {self.kept} of {self.num_claims} claims ({labels} = REFUTE)")
            variants = ", ".join(f"{count} {name}" for name, count in self.instances.items())
            lines.append(f"{self.multi_document} claims have more than one evidence document")
            lines.append(f"{self.num_instances} instances: {variants}")
        total = sum(self.left_out.values())
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.left_out.items()))
        lines.append(f"left out {total} claims" + (f": {reasons}" if reasons else ""))
        for what, names in (
            ("repeated ids", self.duplicates),
            ("documents absent from the corpus", self.absent_documents),
            ("sentences outside their abstract", self.out_of_range),
            ("bad lines", self.bad_lines),
        ):
            if names:
                more = "; ..." if len(names) > 5 else ""
                lines.append(f"{len(names)} {what}: {'; '.join(names[:5])}{more}")
        return "\n".join(lines)


def read_claims_file(path: Path, mode: ReadMode = "strict") -> tuple[list[ScifactClaim], LinesReport]:
    """Read a claims file; a repeated id counts once, as its first line.

    Raises:
        BadFileError: If a line does not follow the format (strict).
    """
    claims: dict[str, ScifactClaim] = {}
    first_line: dict[str, int] = {}
    duplicates: list[str] = []
    bad_lines: list[str] = []
    for number, row in _read_rows(path, _ClaimLine, mode, bad_lines):
        if row.id in claims:
            duplicates.append(f"claim {row.id} ({path.name}, lines {first_line[row.id]} and {number})")
            continue
        first_line[row.id] = number
        claims[row.id] = _claim(row)
    return list(claims.values()), LinesReport(tuple(duplicates), tuple(bad_lines))


def _claim(row: _ClaimLine) -> ScifactClaim:
    evidence: dict[str, tuple[tuple[int, ...], ...]] = {}
    labels: dict[ScifactLabel, None] = {}
    for key, rationales in (row.evidence or {}).items():
        stated = [r for r in rationales if r.sentences]
        if stated:
            doc_id = str(_one_type_of_id(key))
            evidence[doc_id] = evidence.get(doc_id, ()) + tuple(tuple(r.sentences) for r in stated)
            labels |= dict.fromkeys(r.label for r in stated)
    return ScifactClaim(row.id, row.claim, row.evidence is not None, evidence, tuple(labels), tuple(row.cited_doc_ids))


def read_corpus(path: Path, wanted: Collection[str], mode: ReadMode = "strict") -> tuple[Corpus, LinesReport]:
    """Read the documents that are wanted; the others are checked and forgotten.

    Raises:
        BadFileError: If a line does not follow the format (strict).
    """
    corpus: dict[str, tuple[str, tuple[str, ...]]] = {}
    first_line: dict[str, int] = {}
    duplicates: list[str] = []
    bad_lines: list[str] = []
    for number, row in _read_rows(path, _DocumentLine, mode, bad_lines):
        if row.doc_id in first_line:
            lines = f"lines {first_line[row.doc_id]} and {number}"
            duplicates.append(f"document {row.doc_id} ({path.name}, {lines})")
            continue
        first_line[row.doc_id] = number
        if row.doc_id in wanted:
            corpus[row.doc_id] = (row.title, tuple(row.abstract))
    return corpus, LinesReport(tuple(duplicates), tuple(bad_lines))


_Row = TypeVar("_Row", bound=_Line)


def _read_rows(path: Path, model: type[_Row], mode: ReadMode, bad_lines: list[str]) -> Iterator[tuple[int, _Row]]:
    """Yield (line number, row); bad lines stop the reading or are added to ``bad_lines``."""
    if mode not in get_args(ReadMode):
        raise ValueError(f"mode {mode!r} is unknown; choose one of {list(get_args(ReadMode))}")
    for line in read_json_lines(path):
        row = line if isinstance(line, BadLine) else _validate(line, model)
        if not isinstance(row, BadLine):
            yield line.line, row
        elif mode == "strict":
            way_out = "Correct the line, or read in lenient mode to leave it out"
            raise BadFileError(path, f"{row.problem}. {way_out}", row.line)
        else:
            bad_lines.append(f"{path.name}, line {row.line}: {row.problem}")


def _validate(line: JsonLine, model: type[_Row]) -> _Row | BadLine:
    try:
        return model.model_validate(line.data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        found = "nothing" if first["type"] == "missing" else repr(str(first["input"])[:60])
        return BadLine(line.line, f"field {name!r}: found {found}, expected: {first['msg']}")
