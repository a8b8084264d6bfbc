"""Evidence units: spans that must be there, one line per unit, and graphs of any size."""

import copy
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provgym.envs.evidence_units import EvidenceContext, EvidenceUnit, KnowledgeGraph, Span

TEXT = "In our trial, orvelin raised the hardness of tamrite. A second one agreed."


def unit(unit_id: str = "u1", start: int = 14, end: int = 53, **changes: str) -> EvidenceUnit:
    values = {"head": "orvelin", "relation": "raises", "tail": "hardness of tamrite", "source_id": "study-7", **changes}
    return EvidenceUnit(unit_id=unit_id, span=Span("d1", start, end, TEXT[start:end]), **values)


def test_a_graph_by_hand() -> None:
    graph = KnowledgeGraph((unit(), unit("u2", 54, 73)), {"d1": TEXT, "d2": "unused"})
    assert graph.units[0].span.text == "orvelin raised the hardness of tamrite."
    assert graph == KnowledgeGraph(graph.units, dict(graph.documents))
    assert hash(graph) == hash(KnowledgeGraph(graph.units, dict(graph.documents)))
    for copied in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert copied == graph


def test_networkx_edges_carry_the_provenance() -> None:
    graph = KnowledgeGraph((unit(), unit("u2", 54, 73)), {"d1": TEXT}).to_networkx()
    assert graph.number_of_edges("orvelin", "hardness of tamrite") == 2
    assert graph.edges["orvelin", "hardness of tamrite", "u2"] == {
        "relation": "raises",
        "source_id": "study-7",
        "document_id": "d1",
        "start": 54,
        "end": 73,
        "text": TEXT[54:73],
    }


def test_empty_and_large_graphs() -> None:
    """Bad input "empty evidence, one unit, 10,000 units"."""
    assert KnowledgeGraph((), {}).units == ()
    assert KnowledgeGraph((), {}).to_networkx().number_of_nodes() == 0
    large = KnowledgeGraph(tuple(unit(f"u{k}") for k in range(10_000)), {"d1": TEXT})
    assert large.to_networkx().number_of_edges() == 10_000
    assert EvidenceContext((), ()).units == ()


def test_the_callers_documents_are_not_shared() -> None:
    """Fault "mutable defaults": what the caller changes later changes nothing."""
    documents = {"d1": TEXT}
    graph = KnowledgeGraph([unit()], documents)  # type: ignore[arg-type]
    documents["d1"] = ""
    assert graph.documents == {"d1": TEXT}
    assert isinstance(graph.units, tuple)


@pytest.mark.parametrize(
    ("units", "documents", "message"),
    [
        ((unit(), unit()), {"d1": TEXT}, "unit id 'u1' stands twice in one knowledge graph"),
        ((unit(),), {"d2": TEXT}, "unit 'u1' names document 'd1', which the graph lacks"),
        ((unit(),), {"d1": TEXT.upper()}, r"unit 'u1': document 'd1' holds 'ORVELIN.*at \[14, 53\), the span says"),
        ((unit(),), {"d1": TEXT[:20]}, r"unit 'u1': document 'd1' holds 'orveli' at \[14, 53\)"),
    ],
)
def test_wrong_graphs_are_named(units: tuple[EvidenceUnit, ...], documents: dict[str, str], message: str) -> None:
    """Fault "ids and duplicates": duplicates and absences are named."""
    with pytest.raises(ValueError, match=message):
        KnowledgeGraph(units, documents)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("", 0, 1, "x"), "document_id must not be empty"),
        (("d", -1, 0, "x"), r"span \[-1, 0\) of document 'd'"),
        (("d", 3, 2, ""), r"span \[3, 2\)"),
        (("d", 0, 2, "x"), r"must hold end - start = 2 characters from start >= 0, found 1: 'x'"),
    ],
)
def test_wrong_spans_are_named(values: tuple[str, int, int, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Span(*values)


def test_ids_must_not_be_empty() -> None:
    with pytest.raises(ValueError, match="unit_id='' and source_id='study-7' must not be empty"):
        unit("")
    with pytest.raises(ValueError, match="source_id=''"):
        unit(source_id="")


def test_offsets_count_characters_not_bytes() -> None:
    """Fault "Unicode lines": Greek, emoji and U+2028 in a document."""
    text = "ἓν οἶδα 🙂\u2028orvelin works"
    start = text.index("orvelin")
    span = Span("d", start, len(text), "orvelin works")
    line = EvidenceUnit("u", "orvelin", "is", "working", span, "s")
    assert KnowledgeGraph((line,), {"d": text}).units == (line,)


def test_one_line_by_hand() -> None:
    assert unit().linearised() == (
        "u1 | orvelin | raises | hardness of tamrite | source study-7 | document d1, characters 14-53 | "
        '"orvelin raised the hardness of tamrite."'
    )


texts = st.text(alphabet=st.sampled_from('ab |"\\\n\r\t\u2028\u00a6{}<>'), min_size=1, max_size=12)


@given(unit_id=texts, head=texts, relation=texts, tail=texts, source=texts, document=texts, quoted=texts)
def test_no_text_can_pass_for_a_field_or_another_unit(
    unit_id: str, head: str, relation: str, tail: str, source: str, document: str, quoted: str
) -> None:
    """Fault "markup injection": whatever a unit holds, it is one line of seven fields."""
    span = Span(document, 0, len(quoted), quoted)
    line = EvidenceUnit(unit_id, head, relation, tail, span, source).linearised()
    assert len(line.splitlines()) == 1
    assert line.count(" | ") == 6
    assert line.count("|") == 6


@pytest.mark.parametrize(
    ("units", "similarities", "message"),
    [
        ((unit(),), (), "found 0 similarities for 1 units"),
        ((unit(), unit()), (0.5, 0.5), "unit id 'u1' stands twice in one evidence context"),
        ((unit(),), (math.nan,), "similarity=nan of unit 'u1' must be finite"),
        ((unit(),), (math.inf,), "similarity=inf"),
    ],
)
def test_wrong_contexts_are_named(
    units: tuple[EvidenceUnit, ...], similarities: tuple[float, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        EvidenceContext(units, similarities)
