"""SciFact: real claims with gold rationale sentences, as graph instances for transfer (never trained on).

Official files: claims ``{id, claim, evidence: {doc_id: [{sentences: [i ...], label}]}, cited_doc_ids}`` and
corpus ``{doc_id, title, abstract: [sentence ...], structured}``. Each document gives one evidence record: the
sentences of all its rationale sets, in the order of the abstract. Its id is the observable source; redundant
routes repeat that record through other representations. Five variants, the last two for claims with several
evidence documents; the first three use the first evidence document in the claims file:

* ``one_doc_one_route``: one document by one route;
* ``one_doc_five_routes``: the same document by five routes, of the kinds that GraphEcho-Syn uses;
* ``one_doc_relabelled``: those five routes, relabelled to representations that GraphEcho-Syn never uses;
* ``all_docs_one_route``: every document by one route;
* ``all_docs_five_routes``: every document by five routes.

The gold verdict is the label (CONTRADICT is REFUTE), not a count of sources.

Sources: SciFact, arXiv:2004.14974; the conversion is that of GraphEcho, arXiv:2609.17695, section 3.4. Names
of the variants, the order of documents and the kinds of representation are ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from provgym.envs.provenance import Atom, Claim, EvidenceGraph, Instance, Route, Stance
from provgym.generators.claim_files import ReadMode
from provgym.generators.scifact_files import (
    Corpus,
    ScifactClaim,
    ScifactReport,
    read_claims_file,
    read_corpus,
)
from provgym.generators.splits import check_instances
from provgym.rewards.outcome import Verdict

ROUTE_KINDS = ("abstract", "result", "table", "conclusion", "figure")
"""The rationales are sentences of the abstract, so that kind comes first."""
RELABELLED_KINDS = ("summary", "excerpt", "discussion", "supplement", "note")

SINGLE_VARIANTS: Mapping[str, tuple[str, ...]] = {
    "one_doc_one_route": ROUTE_KINDS[:1],
    "one_doc_five_routes": ROUTE_KINDS,
    "one_doc_relabelled": RELABELLED_KINDS,
}
MULTI_VARIANTS: Mapping[str, tuple[str, ...]] = {
    "all_docs_one_route": ROUTE_KINDS[:1],
    "all_docs_five_routes": ROUTE_KINDS,
}
VARIANTS = (*SINGLE_VARIANTS, *MULTI_VARIANTS)

_STANCES = {"SUPPORT": Stance.SUPPORT, "CONTRADICT": Stance.REFUTE}


class DocumentEvidence(NamedTuple):
    """What one document says of one claim.

    Attributes:
        doc_id: The document, which is the source.
        title: Its title; not shown to the agent.
        rationales: Its rationale sets, each a tuple of sentence numbers from 0.
        text: The sentences of all sets, each once, in the order of the abstract.
    """

    doc_id: str
    title: str
    rationales: tuple[tuple[int, ...], ...]
    text: str


class ScifactData(NamedTuple):
    """Instances, the evidence they were built from, and what was left out.

    Attributes:
        instances: Claim by claim, variant by variant.
        evidence: Claim id (``scifact-ID``) to its documents, in the order of the claims file.
        report: The account.
    """

    instances: list[Instance]
    evidence: Mapping[str, tuple[DocumentEvidence, ...]]
    report: ScifactReport


def load_scifact(
    claims_path: Path, corpus_path: Path, *, split: str = "test", mode: ReadMode = "strict"
) -> ScifactData:
    """Convert official SciFact files.

    Claims without gold evidence, with conflicting labels, or whose evidence is not in the corpus are left out
    and counted; repeated ids count once. A file without any usable claim gives no instance and a report
    that says so.

    Args:
        claims_path: ``claims_dev.jsonl`` or a file like it.
        corpus_path: ``corpus.jsonl``.
        split: Split of the instances.
        mode: ``strict`` stops at the first line that is not in the format; ``lenient`` counts such lines.

    Raises:
        BadFileError: If a line does not follow the format (strict).
        FileNotFoundError: If a file does not exist.
        IsADirectoryError: If a path is a folder.
    """
    claims, lines_report = read_claims_file(claims_path, mode)
    wanted = {doc for claim in claims for doc in (*claim.evidence, *claim.cited)}
    corpus, corpus_report = read_corpus(corpus_path, wanted, mode)
    account = _Account()
    instances: list[Instance] = []
    evidence: dict[str, tuple[DocumentEvidence, ...]] = {}
    for claim in claims:
        documents = account.judge(claim, corpus)
        if documents:
            evidence[f"scifact-{claim.claim_id}"] = documents
            instances += _variants(claim, documents, split)
    check_instances(instances)
    report = ScifactReport(
        num_claims=len(claims),
        kept=len(evidence),
        labels=dict(account.labels),
        left_out=dict(account.left_out),
        multi_document=sum(len(documents) > 1 for documents in evidence.values()),
        instances=dict(Counter(i.condition for i in instances)),
        duplicates=lines_report.duplicates + corpus_report.duplicates,
        absent_documents=tuple(account.absent),
        out_of_range=tuple(account.out_of_range),
        bad_lines=lines_report.bad_lines + corpus_report.bad_lines,
    )
    return ScifactData(instances, evidence, report)


class _Account:
    """Decides what of each claim is kept, and remembers why the rest is not."""

    def __init__(self) -> None:
        self.labels: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.absent: list[str] = []
        self.out_of_range: list[str] = []

    def judge(self, claim: ScifactClaim, corpus: Corpus) -> tuple[DocumentEvidence, ...]:
        """Return the claim's usable documents; none if it is left out."""
        # A cited document without evidence is no part of the instance, but its absence is worth knowing.
        for doc_id in dict.fromkeys((*claim.evidence, *claim.cited)):
            if doc_id not in corpus:
                self.absent.append(f"claim {claim.claim_id}: document {doc_id}")
        if not claim.is_labelled:
            return self._leave_out("unlabelled (no 'evidence' field)")
        if not claim.evidence:
            return self._leave_out("without gold evidence")
        if len(claim.labels) > 1:
            return self._leave_out("with conflicting labels")
        present = [doc_id for doc_id in claim.evidence if doc_id in corpus]
        if not present:
            return self._leave_out("with evidence documents absent from the corpus")
        found = [self._collect(claim, doc_id, corpus) for doc_id in present]
        documents = tuple(document for document in found if document.text)
        if not documents:
            return self._leave_out("with sentence numbers outside the abstract")
        self.labels[claim.labels[0]] += 1
        return documents

    def _leave_out(self, reason: str) -> tuple[DocumentEvidence, ...]:
        self.left_out[reason] += 1
        return ()

    def _collect(self, claim: ScifactClaim, doc_id: str, corpus: Corpus) -> DocumentEvidence:
        title, abstract = corpus[doc_id]
        rationales: list[tuple[int, ...]] = []
        for rationale in claim.evidence[doc_id]:
            outside = [s for s in rationale if not 0 <= s < len(abstract)]
            for sentence in outside:
                where = f"sentence {sentence} of document {doc_id}, which has {len(abstract)}"
                self.out_of_range.append(f"claim {claim.claim_id}: {where}")
            rationales.append(tuple(s for s in rationale if s not in outside))
        numbers = sorted({s for rationale in rationales for s in rationale})
        text = " ".join(abstract[s].strip() for s in numbers).strip()
        return DocumentEvidence(doc_id, title, tuple(r for r in rationales if r), text)


def _variants(claim: ScifactClaim, documents: tuple[DocumentEvidence, ...], split: str) -> list[Instance]:
    made = [_instance(claim, name, kinds, documents[:1], split) for name, kinds in SINGLE_VARIANTS.items()]
    if len(documents) > 1:
        made += [_instance(claim, name, kinds, documents, split) for name, kinds in MULTI_VARIANTS.items()]
    return made


def _instance(
    claim: ScifactClaim,
    variant: str,
    kinds: tuple[str, ...],
    documents: tuple[DocumentEvidence, ...],
    split: str,
) -> Instance:
    base = Claim(f"scifact-{claim.claim_id}", claim.text, "biomedicine")
    stance = _STANCES[claim.labels[0]]
    atoms = tuple(Atom(f"{base.claim_id}-{d.doc_id}", d.doc_id, stance, d.text) for d in documents)
    routes = tuple(
        Route(f"{atom.atom_id}-{number}", base.claim_id, atom.atom_id, kind)
        for atom in atoms
        for number, kind in enumerate(kinds)
    )
    graph = EvidenceGraph((base,), atoms, routes)
    return Instance(f"{base.claim_id}/{variant}", graph, variant, Verdict(stance.value), split)
