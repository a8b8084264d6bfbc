"""Builders: what becomes a unit, where it stands, that echoes keep one source; official files give known figures."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provgym.envs.evidence_units import KnowledgeGraph
from provgym.envs.provenance import Atom, Claim, EvidenceGraph, Instance, Route, Stance
from provgym.generators.graphecho import GraphEcho
from provgym.generators.json_lines import BadFileError
from provgym.generators.knowledge_graph_2wiki import read_2wiki_knowledge
from provgym.generators.knowledge_graph_scifact import read_scifact_knowledge
from provgym.generators.knowledge_graphs import graph_from_instance, join_graphs
from provgym.rewards.outcome import Verdict


@pytest.fixture(scope="module")
def world() -> GraphEcho:
    return GraphEcho.generate(7, {"train": 12})


# --- GraphEcho-Syn and claim files


@settings(max_examples=40)
@given(st.integers(0, 11), st.sampled_from(["C1", "C2", "C3", "C4", "C2R", "5S5P", "3+2|1", "general"]))
def test_a_unit_for_each_route_with_the_sources_of_the_instance(world: GraphEcho, number: int, condition: str) -> None:
    instance = world.instance(world.claims[number], condition)
    graph = graph_from_instance(instance)
    assert len(graph.units) == len(instance.graph.routes) == instance.graph.n_path()
    assert {unit.source_id for unit in graph.units} == set(instance.graph.sources)
    assert len(graph.documents) == len(graph.units)  # an echo is another document of one source
    subject, target = instance.base_claim.entities
    stances = {atom.source_id: atom.stance for atom in instance.graph.atoms}
    for unit in graph.units:
        assert unit.head == subject
        assert unit.tail.endswith(f" of {target}")
        assert unit.span.text == f"{unit.head} {unit.relation} {unit.tail} by" + unit.span.text.split(" by")[1]
        assert stances[unit.source_id].value.lower() not in unit.linearised().lower()
    assert len({(unit.source_id, unit.relation) for unit in graph.units}) == len(graph.units and stances)


def test_a_free_text_keeps_its_stance_as_the_relation() -> None:
    claim = Claim("tea", "Green tea lowers blood pressure.")
    atoms = (Atom("a", "Okada", Stance.SUPPORT, "It fell."), Atom("b", "Lind", Stance.REFUTE, "It rose."))
    routes = tuple(
        Route(f"r{n}", "tea", atom, kind) for n, (atom, kind) in enumerate([("a", "table"), ("a", "table"), ("b", "x")])
    )
    graph = graph_from_instance(Instance("i", EvidenceGraph((claim,), atoms, routes), "own", Verdict.MIXED))
    assert [(u.head, u.relation, u.tail, u.source_id) for u in graph.units] == [
        ("Okada", "supports", claim.text, "Okada"),
        ("Okada", "supports", claim.text, "Okada"),
        ("Lind", "refutes", claim.text, "Lind"),
    ]
    assert graph.documents == {
        "Okada/table": "Table: It fell.",
        "Okada/table-2": "Table: It fell.",
        "Lind/x": "X: It rose.",
    }


def test_other_claims_of_a_merged_graph_stay_out(world: GraphEcho) -> None:
    first, second = (world.instance(base, "C3") for base in world.claims[:2])
    merged = Instance("m", EvidenceGraph.merge([first.graph, second.graph]), "C3", second.gold, claim=1)
    assert graph_from_instance(merged) == graph_from_instance(second)


def test_joined_graphs_are_numbered_anew_and_disagreeing_documents_refused(world: GraphEcho) -> None:
    graphs = [graph_from_instance(world.instance(base, "C2")) for base in world.claims[:3]]
    joined = join_graphs([*graphs, graphs[0]])
    assert [unit.unit_id for unit in joined.units] == [f"u{n}" for n in range(1, 25)]
    assert [unit.span for unit in joined.units[:6]] == [unit.span for unit in joined.units[-6:]]
    assert len(joined.documents) == 18
    assert join_graphs([]) == KnowledgeGraph((), {})
    name = next(iter(graphs[0].documents))
    with pytest.raises(ValueError, match="has one text in one graph and another"):
        join_graphs([graphs[0], KnowledgeGraph((), {name: "another"})])


# --- SciFact


def write_scifact(folder: Path, claims: list[dict[str, Any]], documents: list[dict[str, Any]]) -> tuple[Path, Path]:
    paths = folder / "claims.jsonl", folder / "corpus.jsonl"
    for path, rows in zip(paths, (claims, documents), strict=True):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return paths


def test_scifact_sentences_stand_where_they_stand(tmp_path: Path) -> None:
    """ids and duplicates: "31" and 31 are one document; SciFact without evidence: such claims give no unit."""
    evidence = {"31": [{"sentences": [2, 0], "label": "CONTRADICT"}, {"sentences": [2], "label": "CONTRADICT"}]}
    claims = [
        {"id": 1, "claim": "A.", "evidence": evidence},
        {"id": 2, "claim": "B.", "evidence": {}},
        {"id": 3, "claim": "C."},
    ]
    documents = [{"doc_id": 31, "title": "T", "abstract": ["First. ", " Second.", "Third."]}]
    knowledge = read_scifact_knowledge(*write_scifact(tmp_path, claims, documents))
    assert knowledge.graph.documents == {"31": "T\nFirst. Second. Third."}
    assert [unit.span.text for unit in knowledge.graph.units] == ["First.", "Third."]
    assert {(u.head, u.relation, u.tail, u.source_id) for u in knowledge.graph.units} == {("T", "refutes", "A.", "31")}
    assert knowledge.gold == {"scifact-1": Verdict.REFUTE}
    assert knowledge.units_of == {"scifact-1": (0, 1)}
    assert knowledge.report.left_out == {"without gold evidence": 1, "unlabelled (no 'evidence' field)": 1}
    empty = read_scifact_knowledge(*write_scifact(tmp_path, claims[1:], documents))
    assert (empty.graph.units, empty.claims) == ((), ())


def test_official_scifact_dev_file(shared_data: Path) -> None:
    folder = shared_data / "scifact"
    knowledge = read_scifact_knowledge(folder / "claims_dev.jsonl", folder / "corpus.jsonl")
    assert (len(knowledge.claims), len(knowledge.graph.documents)) == (188, 182)
    gold = list(knowledge.gold.values())
    assert (gold.count(Verdict.SUPPORT), gold.count(Verdict.REFUTE)) == (124, 64)
    # By plain loops over the file: distinct (claim, document, sentence).
    places = set()
    for line in (folder / "claims_dev.jsonl").read_text().splitlines():
        row = json.loads(line)
        for document, rationales in row["evidence"].items():
            places |= {(row["id"], document, s) for rationale in rationales for s in rationale["sentences"]}
    assert len(knowledge.graph.units) == len(places)


# --- 2WikiMultihopQA


def wiki_row(**change: Any) -> dict[str, Any]:
    context = [
        ["Film (1990 film)", ["Film is old.", " It was made by Ann Lee. "]],
        ["Ann Lee", ["Ann Lee was born in Ulm."]],
    ]
    facts = [["Film (1990 film)", 1], ["Ann Lee", 0]]
    evidences = [["Film", "director", "Ann Lee"], ["Ann Lee", "place of birth", "Ulm"]]
    row = {"_id": "1", "question": "?", "answer": "Ulm", "context": context, "supporting_facts": facts}
    return row | {"evidences": evidences} | change


def read_wiki(folder: Path, rows: Any) -> Any:
    (folder / "wiki.json").write_text(json.dumps(rows), encoding="utf-8")
    return read_2wiki_knowledge(folder / "wiki.json")


def test_wiki_triples_get_the_sentence_that_shows_them(tmp_path: Path) -> None:
    graph, report = read_wiki(tmp_path, [wiki_row(), wiki_row(_id="2")])
    assert [(u.head, u.relation, u.tail, u.span.text, u.source_id) for u in graph.units] == [
        ("Film", "director", "Ann Lee", "It was made by Ann Lee.", "Film (1990 film)"),
        ("Ann Lee", "place of birth", "Ulm", "Ann Lee was born in Ulm.", "Ann Lee"),
    ]
    assert graph.documents["Film (1990 film)"] == "Film is old. It was made by Ann Lee."
    assert (report.questions, report.triples, report.units, report.without_place) == (2, 2, 2, ())


def test_wiki_triples_without_a_place_are_counted_and_may_find_one_later(tmp_path: Path) -> None:
    rows = [wiki_row(supporting_facts=[["Film (1990 film)", 9], ["Gone", 0]]), wiki_row(evidences=[["X", "is", "Y"]])]
    graph, report = read_wiki(tmp_path, rows)
    assert graph.units == ()
    assert report.without_place == ("Film | director | Ann Lee", "Ann Lee | place of birth | Ulm", "X | is | Y")
    assert len(read_wiki(tmp_path, [*rows, wiki_row()]).graph.units) == 2


def test_another_text_under_a_title_is_another_document(tmp_path: Path) -> None:
    context = [["Ann Lee", ["Ann Lee lived in Ulm."]]]
    row = wiki_row(context=context, supporting_facts=[["Ann Lee", 0]], evidences=[["Ann Lee", "residence", "Ulm"]])
    graph, report = read_wiki(tmp_path, [wiki_row(), row, row])
    assert set(graph.documents) == {"Film (1990 film)", "Ann Lee", "Ann Lee (2)"}
    assert graph.units[-1].span.document_id == "Ann Lee (2)"
    assert report.renamed_documents == 1


@pytest.mark.parametrize(
    "rows", [{}, [1], [{"_id": "1"}], [wiki_row(context=[["T"]])], [wiki_row(evidences=[["", "r", "t"]])]]
)
def test_a_file_that_is_no_2wiki_file_is_named(tmp_path: Path, rows: Any) -> None:
    with pytest.raises(BadFileError, match=r"wiki.json: .*expected"):
        read_wiki(tmp_path, rows)


def test_official_2wiki_sample(shared_data: Path) -> None:
    graph, report = read_2wiki_knowledge(shared_data / "2wikimultihopqa" / "2wiki_train_sample500.json")
    assert (report.questions, report.triples, len(graph.documents)) == (500, 1178, 3112)
    assert report.units + len(report.without_place) == 1178
    assert report.units > 1050
    shown = sum(unit.tail.casefold() in unit.span.text.casefold() for unit in graph.units)
    assert shown / report.units > 0.5
