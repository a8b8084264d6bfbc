"""Knowledge graphs from claims under a condition, and several graphs as one.

An instance's routes become units: each route is one representation of a source, so it is a document of its own, and
all units of one source share its source id. That is what an echo is: many documents, one source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from provgym.envs.evidence_units import EvidenceUnit, KnowledgeGraph, Span
from provgym.envs.provenance import Atom, Claim, Instance, Stance
from provgym.generators.graphecho import DOWN, UP

STANCE_RELATIONS: Mapping[Stance, str] = {Stance.SUPPORT: "supports", Stance.REFUTE: "refutes"}
"""Relation of a unit whose text is no triple by itself: from its source to the claim, as the data set labels it."""

_VERBS = "|".join(past for _, past in (*UP, *DOWN))
_OBSERVATION = re.compile(rf"(?P<head>\S+) (?P<relation>{_VERBS}) (?P<tail>the \S+ of \S+) by \d+ percent\.")


class Triple(NamedTuple):
    """What a unit states.

    Attributes:
        head: What it speaks of.
        relation: What it says of the head, such as ``raised`` or ``supports``.
        tail: What the relation leads to.
    """

    head: str
    relation: str
    tail: str


def observed_triple(atom: Atom, claim: Claim) -> Triple:
    """Return what an atom says, as a triple.

    A sentence of GraphEcho-Syn is taken apart. Any other text keeps its stance as the relation, from its source to the
    claim: ``("Okada 2011", "supports", "Green tea lowers blood pressure.")``.

    Example:
        >>> atom = Atom("a", "study-1", Stance.SUPPORT, "bolnan raised the yield of dalkon by 7 percent.")
        >>> tuple(observed_triple(atom, Claim("c", "In agriculture, bolnan raises the yield of dalkon.")))
        ('bolnan', 'raised', 'the yield of dalkon')
    """
    sentence = _OBSERVATION.fullmatch(atom.text)
    if sentence is None:
        return Triple(atom.source_id, STANCE_RELATIONS[atom.stance], claim.text)
    return Triple(sentence["head"], sentence["relation"], sentence["tail"])


def graph_from_instance(instance: Instance) -> KnowledgeGraph:
    """Return the knowledge graph of one instance: a unit for each route to its claim.

    A document is named ``SOURCE/KIND`` and holds the kind and the observation; where two routes of one source have the
    same kind, the second one is ``SOURCE/KIND-2``. Units are ``u1``, ``u2`` ... in the order of the routes.

    Args:
        instance: Of GraphEcho-Syn, of SciFact or of a claim file; other claims of its graph are left out.
    """
    graph, claim = instance.graph, instance.base_claim
    atoms = {atom.atom_id: atom for atom in graph.atoms}
    documents: dict[str, str] = {}
    units: list[EvidenceUnit] = []
    for number, index in enumerate(graph.routes_of_claim[instance.claim], start=1):
        route = graph.routes[index]
        atom = atoms[route.atom_id]
        heading = f"{route.kind[:1].upper()}{route.kind[1:]}: "
        document_id = _free_name(f"{atom.source_id}/{route.kind}", documents)
        documents[document_id] = heading + atom.text
        span = Span(document_id, len(heading), len(heading) + len(atom.text), atom.text)
        units.append(EvidenceUnit(f"u{number}", *observed_triple(atom, claim), span, atom.source_id))
    return KnowledgeGraph(tuple(units), documents)


def join_graphs(graphs: Iterable[KnowledgeGraph]) -> KnowledgeGraph:
    """Return one graph of several, units in order and numbered anew: ``u1``, ``u2`` ...

    Args:
        graphs: A document of the same id and text in several of them becomes one.

    Raises:
        ValueError: If two graphs hold different texts under one document id.
    """
    documents: dict[str, str] = {}
    units: list[EvidenceUnit] = []
    for graph in graphs:
        for document_id, text in graph.documents.items():
            if documents.setdefault(document_id, text) != text:
                raise ValueError(
                    f"document {document_id!r} has one text in one graph and another in a later one; "
                    "give another text another document id"
                )
        units += graph.units
    return KnowledgeGraph(numbered(units), documents)


def numbered(units: Iterable[EvidenceUnit]) -> tuple[EvidenceUnit, ...]:
    """Return units with the ids ``u1``, ``u2`` ... in order: ids that say nothing of where a unit comes from."""
    return tuple(
        EvidenceUnit(f"u{number}", u.head, u.relation, u.tail, u.span, u.source_id)
        for number, u in enumerate(units, start=1)
    )


def _free_name(name: str, taken: Mapping[str, str]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    return free
