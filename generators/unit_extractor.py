"""From raw text to evidence units, by a language model behind a protocol.

A document is read in passages of whole paragraphs. The model is asked for triples with a literal quote each; a quote is
then looked up in its passage, so that every unit's span is a real place. What can't be found is refused and counted,
never guessed; a passage whose call fails is counted apart and gives nothing. The rule for reading a reply stands in
:mod:`provgym.generators.triple_reading`. The source paper builds its graph by StructSense; this is our part in its
place.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pydantic import ValidationError

from provgym.envs.event_loop import all_of, run_to_end
from provgym.envs.evidence_units import EvidenceUnit, KnowledgeGraph, Span
from provgym.generators.endpoint_entry import CallTag
from provgym.generators.endpoint_reply import EndpointFailure
from provgym.generators.triple_reading import QuotedTriple, find_quote, read_triples

Message = dict[str, str]
DEFAULT_PASSAGE_CHARACTERS = 2_000

INSTRUCTIONS = (
    "Extract the factual statements of the passage as triples. Answer with a JSON list only; each entry is an object "
    'with the keys "head", "relation", "tail" and "quote". The quote is the shortest piece of the passage that states '
    "the triple, copied letter by letter. Leave out what the passage does not state. An empty list is a good answer."
)
_BREAKS = (re.compile(r"\n\s*\n"), re.compile(r"[.!?]\s+"), re.compile(r"\s+"))  # paragraphs, sentences, words


class ExtractionModel(Protocol):
    """A chat model; :class:`~provgym.generators.endpoint_client.ChatClient` is one."""

    async def complete(
        self,
        messages: list[Message],
        temperature: float,
        seed: int,
        usage: Counter[str],
        tag: CallTag | None = None,
    ) -> str:
        """Return the answer to a conversation.

        Args:
            messages: Role and content of each.
            temperature: Of sampling, >= 0.
            seed: Of sampling.
            usage: Tokens and attempts are added to it.
            tag: What the call is for, for the ledger.

        Raises:
            EndpointFailure: If no answer could be had.
        """
        ...


class TextDocument(NamedTuple):
    """A text to be read.

    Attributes:
        document_id: Unique, not empty.
        text: Any length.
        source_id: Who it goes back to; documents that repeat one source share it.
    """

    document_id: str
    text: str
    source_id: str


@dataclass(frozen=True, slots=True)
class ExtractionReport:
    """What an extraction came to.

    Attributes:
        passages: All that were asked about.
        units: Kept, each triple and place once.
        unreadable: Passages whose reply held no list of triples.
        failed: Passages whose call failed, each with what went wrong: they are not known to hold nothing.
        refused: Reason to number of triples left out.
        usage: Tokens and attempts, as the model's client tallied them.
    """

    passages: int
    units: int
    unreadable: int
    failed: tuple[str, ...]
    refused: Mapping[str, int]
    usage: Mapping[str, int]

    def text(self) -> str:
        """Return the report as a few lines for a terminal."""
        lines = [
            f"{self.units} units from {self.passages} passages; {self.unreadable} replies without a list of triples"
        ]
        lines += [f"{count} triples left out: {reason}" for reason, count in sorted(self.refused.items())]
        lines += [f"{len(self.failed)} passages failed, such as {self.failed[0]}"] if self.failed else []
        return "\n".join(lines)


class Extraction(NamedTuple):
    """The graph of some documents, and the account of the extraction."""

    graph: KnowledgeGraph
    report: ExtractionReport


class _Passage(NamedTuple):
    document: TextDocument
    start: int
    text: str


async def extract_units(
    documents: Sequence[TextDocument],
    model: ExtractionModel,
    *,
    passage_characters: int = DEFAULT_PASSAGE_CHARACTERS,
    seed: int = 0,
) -> Extraction:
    """Extract the units of some documents; passages are asked about at once, within the model's own limit.

    Args:
        documents: With distinct ids. Documents without a unit stay in the graph.
        model: Asked at temperature 0.
        passage_characters: A passage ends at the last paragraph within so many characters; without one, at the last
            sentence, at the last word, or there.
        seed: Passed on to the model.

    Raises:
        ValueError: If ids repeat, or ``passage_characters`` < 1.
    """
    if passage_characters < 1:
        raise ValueError(f"passage_characters={passage_characters} must be >= 1")
    repeated = [name for name, count in Counter(d.document_id for d in documents).items() if count > 1]
    if repeated:
        raise ValueError(f"document ids {repeated} stand more than once; give each document its own")
    passages = [passage for document in documents for passage in _passages(document, passage_characters)]
    usage: Counter[str] = Counter()
    replies = await all_of(_ask(model, passage, seed, usage) for passage in passages)
    keeper = _Keeper()
    for passage, reply in zip(passages, replies, strict=True):
        keeper.read(passage, reply)
    graph = KnowledgeGraph(tuple(keeper.units), {d.document_id: d.text for d in documents})
    report = ExtractionReport(
        passages=len(passages),
        units=len(keeper.units),
        unreadable=keeper.unreadable,
        failed=tuple(keeper.failed),
        refused=dict(keeper.refused),
        usage=dict(usage),
    )
    return Extraction(graph, report)


def extract_units_now(
    documents: Sequence[TextDocument], model: ExtractionModel, *, passage_characters: int = DEFAULT_PASSAGE_CHARACTERS
) -> Extraction:
    """Do :func:`extract_units` from code that is not asynchronous, as often as wanted.

    Args:
        documents: As there.
        model: As there; it must not be tied to an event loop of its own.
        passage_characters: As there.

    Raises:
        ValueError: As there.
    """
    return run_to_end(extract_units(documents, model, passage_characters=passage_characters))


class _Keeper:
    """Units as they come in, and what was left out."""

    def __init__(self) -> None:
        self.units: list[EvidenceUnit] = []
        self.unreadable = 0
        self.failed: list[str] = []
        self.refused: Counter[str] = Counter()
        self._seen: set[tuple[str, str, str, Span]] = set()

    def read(self, passage: _Passage, reply: str | EndpointFailure) -> None:
        """Take a passage's units out of its reply."""
        if isinstance(reply, EndpointFailure):
            self.failed.append(f"{_name(passage)}: {reply}")
            return
        entries = read_triples(reply)
        if entries is None:
            self.unreadable += 1
            return
        for entry in entries:
            self._take(passage, entry)

    def _take(self, passage: _Passage, entry: Any) -> None:
        try:
            triple = QuotedTriple.model_validate(entry)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            self.refused[f"field {'.'.join(map(str, first['loc']))!r} missing or no visible text"] += 1
            return
        place = find_quote(triple.quote.strip(), passage.text)
        if place is None:
            self.refused["quote not in the passage"] += 1
            return
        start, end = passage.start + place[0], passage.start + place[1]
        span = Span(passage.document.document_id, start, end, passage.text[slice(*place)])
        key = (triple.head, triple.relation, triple.tail, span)
        if key in self._seen:
            self.refused["said twice"] += 1
            return
        self._seen.add(key)
        parts = (triple.head, triple.relation, triple.tail)
        self.units.append(EvidenceUnit(f"u{len(self.units) + 1}", *parts, span, passage.document.source_id))


async def _ask(model: ExtractionModel, passage: _Passage, seed: int, usage: Counter[str]) -> str | EndpointFailure:
    messages = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": f"Passage:\n{passage.text}"},
    ]
    try:
        return await model.complete(messages, 0.0, seed, usage, CallTag(item=f"extract {_name(passage)}"))
    except EndpointFailure as failure:  # kept apart from an empty answer, and its siblings go on
        return failure


def _passages(document: TextDocument, size: int) -> Iterator[_Passage]:
    start = 0
    while start < len(document.text):
        end = start + size
        if end < len(document.text):
            found = (list(pattern.finditer(document.text, start, end)) for pattern in _BREAKS)
            end = next((matches[-1].end() for matches in found if matches), end)
        text = document.text[start:end]
        if text.strip():
            yield _Passage(document, start, text)
        start = end


def _name(passage: _Passage) -> str:
    return f"{passage.document.document_id} from {passage.start}"
