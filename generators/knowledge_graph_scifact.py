"""SciFact as a knowledge graph: every gold rationale sentence is a unit with its place in the abstract.

A unit goes from the document's title by ``supports`` or ``refutes`` (the gold label, CONTRADICT is refutes) to the
claim. The document is title and abstract, and it is the source: several rationale sentences of one abstract are one
source. Which claims are kept is decided as in :mod:`provgym.generators.scifact`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from provgym.envs.evidence_units import EvidenceUnit, KnowledgeGraph, Span
from provgym.envs.provenance import Claim, Instance
from provgym.generators.claim_files import ReadMode
from provgym.generators.knowledge_graphs import STANCE_RELATIONS
from provgym.generators.scifact import SINGLE_VARIANTS, DocumentEvidence, load_scifact
from provgym.generators.scifact_files import ScifactReport, read_corpus
from provgym.rewards.outcome import Verdict


class ScifactKnowledge(NamedTuple):
    """What the official files hold, as units.

    Attributes:
        graph: All units, claim by claim, in the order of the abstracts, and the evidence documents.
        claims: The kept claims, in the order of the file.
        gold: Claim id to its label.
        units_of: Claim id to the positions of its units in ``graph.units``.
        report: The account of the conversion.
    """

    graph: KnowledgeGraph
    claims: tuple[Claim, ...]
    gold: Mapping[str, Verdict]
    units_of: Mapping[str, tuple[int, ...]]
    report: ScifactReport


def read_scifact_knowledge(claims_path: Path, corpus_path: Path, mode: ReadMode = "strict") -> ScifactKnowledge:
    """Convert official SciFact files.

    Args:
        claims_path: ``claims_dev.jsonl`` or a file like it.
        corpus_path: ``corpus.jsonl``.
        mode: ``strict`` stops at the first line that is not in the format; ``lenient`` counts such lines.

    Raises:
        BadFileError: If a line does not follow the format (strict).
        FileNotFoundError: If a file does not exist.
    """
    data = load_scifact(claims_path, corpus_path, mode=mode)
    first = next(iter(SINGLE_VARIANTS))
    instances = [instance for instance in data.instances if instance.condition == first]
    wanted = {document.doc_id for documents in data.evidence.values() for document in documents}
    corpus, _ = read_corpus(corpus_path, wanted, mode)
    texts = {doc_id: _document(title, abstract) for doc_id, (title, abstract) in corpus.items()}
    units: list[EvidenceUnit] = []
    units_of: dict[str, tuple[int, ...]] = {}
    for instance in instances:
        own: list[EvidenceUnit] = []
        for document in data.evidence[instance.base_claim.claim_id]:
            own += _units(instance, document, texts[document.doc_id], len(units) + len(own))
        units_of[instance.base_claim.claim_id] = tuple(range(len(units), len(units) + len(own)))
        units += own
    graph = KnowledgeGraph(tuple(units), {doc_id: text.whole for doc_id, text in texts.items()})
    claims = tuple(instance.base_claim for instance in instances)
    gold = {instance.base_claim.claim_id: instance.gold for instance in instances}
    return ScifactKnowledge(graph, claims, gold, units_of, data.report)


class _Document(NamedTuple):
    """A document's text, and where each sentence of the abstract stands in it."""

    whole: str
    places: tuple[tuple[int, int], ...]


def _document(title: str, abstract: tuple[str, ...]) -> _Document:
    whole = title.strip()
    places: list[tuple[int, int]] = []
    for number, sentence in enumerate(abstract):
        whole += ("\n" if number == 0 else " ") if whole else ""
        places.append((len(whole), len(whole) + len(sentence.strip())))
        whole += sentence.strip()
    return _Document(whole, tuple(places))


def _units(instance: Instance, evidence: DocumentEvidence, document: _Document, before: int) -> list[EvidenceUnit]:
    stance = instance.graph.atoms[0].stance
    numbers = sorted({sentence for rationale in evidence.rationales for sentence in rationale})
    units: list[EvidenceUnit] = []
    for number in numbers:
        start, end = document.places[number]
        if start < end:  # a sentence of white space shows nothing
            span = Span(evidence.doc_id, start, end, document.whole[start:end])
            head = evidence.title.strip() or evidence.doc_id
            triple = (head, STANCE_RELATIONS[stance], instance.base_claim.text)
            units.append(EvidenceUnit(f"u{before + len(units) + 1}", *triple, span, evidence.doc_id))
    return units
