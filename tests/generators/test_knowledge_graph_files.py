"""Graph files: what was written comes back equal in both formats; every bad line is named with file and line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provgym.envs.evidence_units import EvidenceUnit, KnowledgeGraph, Span
from provgym.generators.json_lines import BadFileError
from provgym.generators.knowledge_graph_files import read_knowledge_graph, write_knowledge_graph

DOCUMENT = {"kind": "document", "id": "d", "text": "Ann saw Bob. Bob saw Ann."}


def unit(**change: Any) -> dict[str, Any]:
    line = {"kind": "unit", "id": "u", "head": "Ann", "relation": "saw", "tail": "Bob", "source": "s", "document": "d"}
    return {k: v for k, v in (line | {"start": 0, "end": 12, "text": "Ann saw Bob."} | change).items() if v is not None}


def write(folder: Path, *lines: Any) -> Path:
    path = folder / "graph.jsonl"
    path.write_bytes(b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines))
    return path


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = texts.filter(str.strip)


@st.composite
def graphs(draw: st.DrawFn) -> KnowledgeGraph:
    documents = draw(st.dictionaries(names, texts, max_size=4))
    units = []
    for unit_id in draw(st.lists(names, unique=True, max_size=5)) if documents else []:
        document = draw(st.sampled_from(sorted(documents)))
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(documents[document]))] * 2)))
        span = Span(document, start, end, documents[document][start:end])
        units.append(EvidenceUnit(unit_id, draw(texts), draw(texts), draw(texts), span, draw(names)))
    return KnowledgeGraph(tuple(units), documents)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs(), st.sampled_from(["g.jsonl", "g.parquet"]))
def test_what_was_written_comes_back_equal(tmp_path: Path, graph: KnowledgeGraph, name: str) -> None:
    """Unicode lines, text space: U+2028, newlines, emoji and empty texts come back; so do order and ids."""
    write_knowledge_graph(tmp_path / name, graph)
    found, report = read_knowledge_graph(tmp_path / name)
    assert found == graph
    assert list(found.documents) == list(graph.documents)
    assert (report.units, report.documents, report.bad_total) == (len(graph.units), len(graph.documents), 0)


def test_by_hand_a_unit_needs_little(tmp_path: Path) -> None:
    lines = [
        {"kind": "unit", "head": "a", "relation": "b", "tail": "c", "source": 7, "text": "alone"},
        unit(id=None, start=None, end=None, text="Bob saw"),
        DOCUMENT,
    ]
    graph = read_knowledge_graph(write(tmp_path, *lines)).graph
    assert [u.unit_id for u in graph.units] == ["u1", "u2"]
    assert graph.units[0].span == Span("7/u1", 0, 5, "alone")
    assert graph.units[0].source_id == "7"
    assert graph.units[1].span == Span("d", 13, 20, "Bob saw")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (unit(hedd="x"), "'unit.hedd'"),
        (unit(head=None), "field 'head': found nothing"),
        (unit(kind="edge"), "'kind'"),
        ({"id": "d2"}, "'kind'"),
        (unit(end=11), "must hold end - start = 11 characters"),
        (unit(text="Ann saw Bib."), "the span says 'Ann saw Bib.'"),
        (unit(document="e"), "names document 'e', which the file lacks"),
        (unit(start=None), "together"),
        (unit(document=None), "together"),
        (unit(start=None, end=None, text="saw"), "stands more than once"),
        (unit(start=None, end=None, text="hears"), "stands no time"),
        (unit(start="0"), "field 'start'"),
        (unit(start=True), "field 'start'"),
        (unit(source=" "), "at least one visible character"),
        (b'{"kind": "document", "id": "x", "text": "\\ud800"}\n', "surrogate pair"),
        (DOCUMENT, "document id 'd' again (first in line 1)"),
        (b"null\n", "expected one JSON object"),
        (b"[]\n", "expected one JSON object"),
        (b'{"kind": "un', "the file ends inside this line"),
    ],
)
def test_a_bad_line_is_named_and_left_out_only_when_asked(tmp_path: Path, line: Any, said: str) -> None:
    """Unicode lines, config typing: strict stops with file and line, lenient counts and keeps the rest."""
    path = write(tmp_path, DOCUMENT, unit(id="first"), line)
    with pytest.raises(BadFileError, match=r"graph.jsonl, line 3: ") as failure:
        read_knowledge_graph(path)
    expected = said.replace("'unit.hedd'", "'hedd'")
    assert expected in str(failure.value)
    graph, report = read_knowledge_graph(path, "lenient")
    assert [u.unit_id for u in graph.units] == ["first"]
    assert report.bad_total == 1
    assert expected in report.text()


def test_repeated_units_and_byte_order_marks(tmp_path: Path) -> None:
    """ids and duplicates: the first one counts, the second is named."""
    path = write(tmp_path, b"\xef\xbb\xbf" + json.dumps(DOCUMENT).encode() + b"\r\n\r\n", unit(), unit(head="x"))
    graph, report = read_knowledge_graph(path, "lenient")
    assert [u.head for u in graph.units] == ["Ann"]
    assert "unit id 'u' again (first in line 3)" in report.bad_lines[0]


def test_nothing_is_a_graph_too_and_a_missing_file_is_named(tmp_path: Path) -> None:
    graph, report = read_knowledge_graph(write(tmp_path))
    assert graph == KnowledgeGraph((), {})
    assert "n = 0, not available" in report.text()
    with pytest.raises(FileNotFoundError, match="near it lie graph.jsonl"):
        read_knowledge_graph(tmp_path / "graf.jsonl")
    with pytest.raises(ValueError, match="mode 'loose' is unknown"):
        read_knowledge_graph(tmp_path / "graph.jsonl", "loose")  # type: ignore[arg-type]
    (tmp_path / "x.parquet").write_bytes(b"no table")
    with pytest.raises(BadFileError, match="no readable Parquet"):
        read_knowledge_graph(tmp_path / "x.parquet")


@pytest.mark.parametrize("name", ["g.jsonl", "g.parquet"])
def test_what_cannot_be_read_again_is_not_written_over_what_can(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    good = KnowledgeGraph((), {"d": "text"})
    write_knowledge_graph(path, good)
    for bad in ({" ": "blank id"}, {"d": "half \ud800"}):
        with pytest.raises(ValueError, match="can't be stored"):
            write_knowledge_graph(path, KnowledgeGraph((), bad))
    assert read_knowledge_graph(path).graph == good
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_ten_thousand_units_come_back(tmp_path: Path) -> None:
    text = "Ann saw Bob."
    units = tuple(
        EvidenceUnit(f"u{n}", "Ann", "saw", f"Bob {n}", Span("d", 0, 12, text), f"s{n}") for n in range(10_000)
    )
    graph = KnowledgeGraph(units, {"d": text})
    write_knowledge_graph(tmp_path / "g.jsonl", graph)
    assert read_knowledge_graph(tmp_path / "g.jsonl").graph == graph
