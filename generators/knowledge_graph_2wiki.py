"""2WikiMultihopQA: evidence triples as units, placed in the paragraphs that they were taken from.

A row holds paragraphs (``context``: title and sentences), the supporting sentences (``supporting_facts``) and evidence
triples (``evidences``). A triple names no sentence; its place is found by one rule, in this order, each time the first
sentence in the order of the row:

1. a supporting sentence of the paragraph whose title is the head, that holds the tail;
2. a supporting sentence that holds head and tail;
3. a supporting sentence of the paragraph whose title is the head.

Names are compared without case, titles and heads also without what stands in brackets behind them. A triple without
such a sentence is left out and counted: no place is made up. A paragraph's title is its source.

Source: 2WikiMultihopQA, arXiv:2011.01060; the rule of places is ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from provgym.envs.evidence_units import EvidenceUnit, KnowledgeGraph, Span
from provgym.generators.json_lines import BadFileError, check_is_file

_BRACKETS = re.compile(r"\s*\([^()]*\)\s*$")
_Paragraph = tuple[str, list[str]]
_Fact = tuple[str, int]
_Triple = tuple[Annotated[str, Field(pattern=r"\S")], Annotated[str, Field(pattern=r"\S")], str]


class _Row(BaseModel):
    # Releases differ in further fields (type, entity_ids, answer_id); none of them changes what is read here.
    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str = Field(alias="_id")
    question: str
    answer: str
    context: list[_Paragraph]
    supporting_facts: list[_Fact] = Field(default_factory=list)
    evidences: list[_Triple] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WikiReport:
    """What a conversion came to.

    Attributes:
        questions: Rows of the file.
        triples: Distinct evidence triples.
        units: Those with a place.
        without_place: The others, each as text.
        renamed_documents: Paragraphs whose title another text had before; they are named ``TITLE (2)`` and so on.
    """

    questions: int
    triples: int
    units: int
    without_place: tuple[str, ...]
    renamed_documents: int

    def text(self) -> str:
        """Return the report as one line for a terminal."""
        return (
            f"{self.questions} questions, {self.triples} distinct triples: {self.units} units, "
            f"{len(self.without_place)} triples without a supporting sentence that shows them left out"
        )


class WikiKnowledge(NamedTuple):
    """The graph of a file, and the account of the conversion."""

    graph: KnowledgeGraph
    report: WikiReport


def read_2wiki_knowledge(path: Path) -> WikiKnowledge:
    """Convert a 2WikiMultihopQA file: one JSON list of rows.

    Args:
        path: ``train.json``, ``dev.json`` or a file like them.

    Raises:
        BadFileError: If the file is no such list; the message names row and field.
        FileNotFoundError: If it does not exist.
    """
    rows = _read_rows(path)
    documents = _Documents()
    places: dict[tuple[str, str, str], Span | None] = {}
    for row in rows:
        names = [documents.add(title, sentences) for title, sentences in row.context]
        for triple in row.evidences:
            if places.get(triple) is None:
                places[triple] = _place(triple, row, names, documents)
    placed = [(triple, span) for triple, span in places.items() if span is not None]
    units = tuple(
        EvidenceUnit(f"u{number}", *triple, span, span.document_id)
        for number, (triple, span) in enumerate(placed, start=1)
    )
    missing = tuple(" | ".join(triple) for triple, span in places.items() if span is None)
    report = WikiReport(len(rows), len(places), len(units), missing, documents.renamed)
    return WikiKnowledge(KnowledgeGraph(units, documents.texts), report)


class _Documents:
    """Paragraphs under their titles; another text under a title that is taken gets a number."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.renamed = 0

    def add(self, title: str, sentences: list[str]) -> str:
        text = " ".join(sentence.strip() for sentence in sentences)
        name, number = title, 1
        while self.texts.setdefault(name, text) != text:
            number += 1
            name = f"{title} ({number})"
            self.renamed += name not in self.texts
        return name

    def span(self, name: str, sentences: list[str], number: int) -> Span:
        start = sum(len(sentence.strip()) + 1 for sentence in sentences[:number])
        sentence = sentences[number].strip()
        return Span(name, start, start + len(sentence), sentence)


class _Sentence(NamedTuple):
    document: int  # in the row's context
    number: int  # in the paragraph
    title: str
    text: str


def _place(triple: tuple[str, str, str], row: _Row, names: list[str], documents: _Documents) -> Span | None:
    head, tail = _plain(_BRACKETS.sub("", triple[0])), _plain(triple[2])
    sentences = list(_supporting(row))
    rules: tuple[Callable[[_Sentence], bool], ...] = (
        lambda s: s.title == head and tail in s.text,
        lambda s: head in s.text and tail in s.text,
        lambda s: s.title == head,
    )
    for rule in rules:
        for sentence in sentences:
            if rule(sentence):
                paragraph = row.context[sentence.document][1]
                return documents.span(names[sentence.document], paragraph, sentence.number)
    return None


def _supporting(row: _Row) -> Iterator[_Sentence]:
    """Yield the supporting sentences that exist, in the order of the row."""
    for title, number in row.supporting_facts:
        for index, (other, sentences) in enumerate(row.context):
            if other == title and 0 <= number < len(sentences) and sentences[number].strip():
                yield _Sentence(index, number, _plain(_BRACKETS.sub("", title)), _plain(sentences[number]))


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _read_rows(path: Path) -> list[_Row]:
    check_is_file(path)
    try:
        return TypeAdapter(list[_Row]).validate_json(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        found = json.dumps(str(first["input"])[:60], ensure_ascii=False)
        raise BadFileError(
            path, f"{place}: found {found}, expected: {first['msg']}; give a 2WikiMultihopQA file (one JSON list)"
        ) from error
