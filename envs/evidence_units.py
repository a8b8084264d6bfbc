"""Evidence units: triples that say where they stand written, and the knowledge graph that they make up.

Source: K-GAT, arXiv:2608.27984: a unit is ``(head, relation, tail, provenance)``, the provenance a span of a document.

Example:
    >>> text = "In our trial orvelin raised hardness."
    >>> span = Span("d1", 13, 37, text[13:37])
    >>> unit = EvidenceUnit("u1", "orvelin", "raises", "hardness", span, "study-7")
    >>> graph = KnowledgeGraph((unit,), {"d1": text})
    >>> print(unit.linearised())
    u1 | orvelin | raises | hardness | source study-7 | document d1, characters 13-37 | "orvelin raised hardness."
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import networkx as nx

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a document and the text that stands there.

    Attributes:
        document_id: Not empty.
        start: First character, >= 0, counted in Unicode code points as Python's ``str`` does.
        end: One past the last character.
        text: The ``end - start`` characters between them.

    Raises:
        ValueError: If the id is empty, or start, end and the length of the text do not agree.
    """

    document_id: str
    start: int
    end: int
    text: str

    def __post_init__(self) -> None:
        if not self.document_id:
            raise ValueError("a span's document_id must not be empty")
        if not (0 <= self.start <= self.end and self.end - self.start == len(self.text)):
            raise ValueError(
                f"span [{self.start}, {self.end}) of document {self.document_id!r} must hold "
                f"end - start = {self.end - self.start} characters from start >= 0, found {len(self.text)}: "
                f"{_shown(self.text)}"
            )


@dataclass(frozen=True, slots=True)
class EvidenceUnit:
    """One triple with its provenance.

    Attributes:
        unit_id: Unique within its graph, not empty.
        head: What the relation starts from.
        relation: What holds between head and tail.
        tail: What the relation leads to.
        span: Where the triple stands written.
        source_id: Who observed it, not empty. Several units, and several documents, may go back to one source.

    Raises:
        ValueError: If one of the two ids is empty.
    """

    unit_id: str
    head: str
    relation: str
    tail: str
    span: Span
    source_id: str

    def __post_init__(self) -> None:
        if not self.unit_id or not self.source_id:
            raise ValueError(f"unit_id={self.unit_id!r} and source_id={self.source_id!r} must not be empty")

    def linearised(self) -> str:
        """Return the unit as one line, provenance included: what agents read and encoders encode.

        Seven fields between bars; runs of white space become one space, a bar inside a field becomes a broken bar, and
        the span is quoted as a JSON string. So no text of a unit can look like another field or another unit.
        """
        span = self.span
        place = f"document {_field(span.document_id)}, characters {span.start}-{span.end}"
        fields = [_field(text) for text in (self.unit_id, self.head, self.relation, self.tail)]
        quoted = json.dumps(_field(span.text), ensure_ascii=False)
        return " | ".join([*fields, f"source {_field(self.source_id)}", place, quoted])


@dataclass(frozen=True, slots=True)
class KnowledgeGraph:
    """Evidence units and the documents that they stand in.

    Attributes:
        units: In any order, distinct ids; none at all is a graph too.
        documents: Document id to its whole text; copied, so that a later change of the caller's changes nothing.

    Raises:
        ValueError: If two units share an id, a unit names a document that is not there, or the document does not hold
            the span's text at its place.
    """

    units: tuple[EvidenceUnit, ...]
    documents: Mapping[str, str] = field(hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "units", tuple(self.units))
        object.__setattr__(self, "documents", dict(self.documents))
        _refuse_repeated(self.units, "knowledge graph")
        for unit in self.units:
            self._check_span(unit)

    def _check_span(self, unit: EvidenceUnit) -> None:
        span = unit.span
        document = self.documents.get(span.document_id)
        if document is None:
            raise ValueError(f"unit {unit.unit_id!r} names document {span.document_id!r}, which the graph lacks")
        found = document[span.start : span.end]
        if found != span.text:
            raise ValueError(
                f"unit {unit.unit_id!r}: document {span.document_id!r} holds {_shown(found)} at "
                f"[{span.start}, {span.end}), the span says {_shown(span.text)}"
            )

    def to_networkx(self) -> nx.MultiDiGraph[str]:
        """Return the triples as edges from head to tail, keyed by unit id, with relation and provenance as attributes.

        Document texts are left out, so that a large graph can be looked at.
        """
        graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
        for unit in self.units:
            graph.add_edge(
                unit.head,
                unit.tail,
                key=unit.unit_id,
                relation=unit.relation,
                source_id=unit.source_id,
                document_id=unit.span.document_id,
                start=unit.span.start,
                end=unit.span.end,
                text=unit.span.text,
            )
        return graph


@dataclass(frozen=True, slots=True)
class EvidenceContext:
    """What was retrieved for one question.

    Attributes:
        units: In the order in which agents see them, distinct ids; none is a context too.
        similarities: One finite number per unit, as the retriever gave it.

    Raises:
        ValueError: If ids repeat, the lengths differ, or a similarity is not finite.
    """

    units: tuple[EvidenceUnit, ...]
    similarities: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "units", tuple(self.units))
        object.__setattr__(self, "similarities", tuple(float(value) for value in self.similarities))
        if len(self.units) != len(self.similarities):
            raise ValueError(f"found {len(self.similarities)} similarities for {len(self.units)} units; give one each")
        _refuse_repeated(self.units, "evidence context")
        for unit, similarity in zip(self.units, self.similarities, strict=True):
            if not math.isfinite(similarity):
                raise ValueError(f"similarity={similarity} of unit {unit.unit_id!r} must be finite")


def _refuse_repeated(units: tuple[EvidenceUnit, ...], where: str) -> None:
    seen: set[str] = set()
    for unit in units:
        if unit.unit_id in seen:
            raise ValueError(f"unit id {unit.unit_id!r} stands twice in one {where}; ids must be distinct")
        seen.add(unit.unit_id)


def _field(text: str) -> str:
    return " ".join(text.split()).replace("|", "\u00a6")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "...")
