"""SciFact: the official dev file gives the known figures; every fault of real files is named and counted."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from provgym.generators.claim_files import read_claims, write_claims
from provgym.generators.json_lines import BadFileError
from provgym.generators.scifact import (
    RELABELLED_KINDS,
    ROUTE_KINDS,
    VARIANTS,
    ScifactData,
    load_scifact,
)
from provgym.rewards.outcome import Verdict

MULTI_DOCUMENT = {70, 179, 261, 275, 452, 597, 873, 971, 1029, 1379}


def claim(number: int | str = 1, **change: Any) -> dict[str, Any]:
    evidence = {"31": [{"sentences": [0], "label": "SUPPORT"}]}
    return {"id": number, "claim": f"Claim {number}.", "evidence": evidence, "cited_doc_ids": [31]} | change


def document(number: int | str = 31, sentences: tuple[str, ...] = ("First.", "Second.", "Third.")) -> dict[str, Any]:
    return {"doc_id": number, "title": f"Title {number}", "abstract": list(sentences), "structured": False}


def load(folder: Path, claims: list[Any], corpus: list[Any] | None = None, **options: Any) -> ScifactData:
    for name, rows in (
        ("claims.jsonl", claims),
        ("corpus.jsonl", [document()] if corpus is None else corpus),
    ):
        lines = [row if isinstance(row, bytes) else json.dumps(row, ensure_ascii=False).encode() for row in rows]
        (folder / name).write_bytes(b"".join(row + b"\n" for row in lines))
    return load_scifact(folder / "claims.jsonl", folder / "corpus.jsonl", **options)


@pytest.fixture(scope="module")
def dev(shared_data: Path) -> ScifactData:
    folder = shared_data / "scifact"
    return load_scifact(folder / "claims_dev.jsonl", folder / "corpus.jsonl")


# --- the official files


def test_the_dev_file_gives_the_figures_of_the_paper(dev: ScifactData) -> None:
    report = dev.report
    assert (report.num_claims, report.kept, report.multi_document) == (300, 188, 10)
    assert report.labels == {"SUPPORT": 124, "CONTRADICT": 64}
    assert report.num_instances == len(dev.instances) == 584
    assert report.instances == dict(zip(VARIANTS, (188, 188, 188, 10, 10), strict=True))
    assert report.left_out == {"without gold evidence": 112}
    assert (report.duplicates, report.absent_documents, report.out_of_range, report.bad_lines) == (
        (),
        (),
        (),
        (),
    )


def test_the_report_says_what_was_kept_and_left_out(dev: ScifactData) -> None:
    text = dev.report.text()
    assert "kept 188 of 300 claims (124 SUPPORT, 64 CONTRADICT = REFUTE)" in text
    assert "10 claims have more than one evidence document" in text
    assert "584 instances" in text
    assert "left out 112 claims: 112 without gold evidence" in text


def test_gold_comes_from_the_label(dev: ScifactData, shared_data: Path) -> None:
    with (shared_data / "scifact" / "claims_dev.jsonl").open(encoding="utf-8") as file:
        rows = {row["id"]: row for row in map(json.loads, file)}
    assert len({i.base_claim.claim_id for i in dev.instances}) == 188
    for instance in dev.instances:
        row = rows[int(instance.base_claim.claim_id.removeprefix("scifact-"))]
        labels = {r["label"] for rationales in row["evidence"].values() for r in rationales}
        assert labels == {"SUPPORT" if instance.gold is Verdict.SUPPORT else "CONTRADICT"}
        assert instance.gold is not Verdict.MIXED
        assert instance.split == "test"
        assert set(instance.graph.sources) <= set(row["evidence"])
    gold = Counter(i.gold.value for i in dev.instances if i.condition == VARIANTS[0])
    assert gold == {"SUPPORT": 124, "REFUTE": 64}


def test_multi_document_claims_have_the_variants_that_need_them(dev: ScifactData) -> None:
    for name in VARIANTS[3:]:
        found = {int(i.base_claim.claim_id.removeprefix("scifact-")) for i in dev.instances if i.condition == name}
        assert found == MULTI_DOCUMENT
    pairs = sum(len(documents) for documents in dev.evidence.values())
    rationales = sum(len(d.rationales) for documents in dev.evidence.values() for d in documents)
    assert (pairs, rationales) == (209, 338)
    assert len({d.doc_id for documents in dev.evidence.values() for d in documents}) == 182


def test_the_test_file_has_no_labels(shared_data: Path) -> None:
    """Fault kind "SciFact without evidence": no ``evidence`` key; n = 0, never an invented figure."""
    folder = shared_data / "scifact"
    found = load_scifact(folder / "claims_test.jsonl", folder / "corpus.jsonl")
    assert found.instances == []
    assert found.report.left_out == {"unlabelled (no 'evidence' field)": 300}
    assert "n = 0, not available" in found.report.text()


def test_real_instances_can_be_stored_as_claim_files(dev: ScifactData, tmp_path: Path) -> None:
    write_claims(tmp_path / "scifact.jsonl", dev.instances)
    found = read_claims(tmp_path / "scifact.jsonl")
    assert [i.graph.routes for i in found.instances] == [i.graph.routes for i in dev.instances]
    assert [i.graph.atoms for i in found.instances] == [i.graph.atoms for i in dev.instances]
    assert found.report.gold_differs == 0


# --- the conversion, by hand


def test_the_five_variants_of_a_claim_with_two_documents(tmp_path: Path) -> None:
    rationales = [{"sentences": [2, 0], "label": "CONTRADICT"}, {"sentences": [0], "label": "CONTRADICT"}]
    evidence = {"32": rationales, "31": [{"sentences": [1], "label": "CONTRADICT"}]}
    found = load(tmp_path, [claim(evidence=evidence, cited_doc_ids=[31, 32])], [document(31), document(32)])
    assert [i.condition for i in found.instances] == list(VARIANTS)
    assert [i.instance_id for i in found.instances] == [f"scifact-1/{name}" for name in VARIANTS]
    assert [(i.graph.n_path(), i.graph.n_prov()) for i in found.instances] == [
        (1, 1),
        (5, 1),
        (5, 1),
        (2, 2),
        (10, 2),
    ]
    # The first document of the claims file; its record holds the sentences of both sets, in order, once.
    for instance in found.instances[:3]:
        assert [(a.source_id, a.text) for a in instance.graph.atoms] == [("32", "First. Third.")]
    assert [(a.source_id, a.text) for a in found.instances[4].graph.atoms] == [
        ("32", "First. Third."),
        ("31", "Second."),
    ]
    assert {i.gold for i in found.instances} == {Verdict.REFUTE}
    assert found.instances[4].source_counts == (0, 2)
    kinds = [[r.kind for r in i.graph.routes] for i in found.instances]
    first = ROUTE_KINDS[0]
    assert kinds == [[first], [*ROUTE_KINDS], [*RELABELLED_KINDS], [first] * 2, [*ROUTE_KINDS] * 2]
    assert not set(ROUTE_KINDS) & set(RELABELLED_KINDS)
    first_document = found.evidence["scifact-1"][0]
    assert first_document.rationales == ((2, 0), (0,))
    assert first_document.title == "Title 32"
    assert found.report.multi_document == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"evidence": {}}, "without gold evidence"),
        ({"evidence": {"5": []}}, "without gold evidence"),
        ({"evidence": {"31": [{"sentences": [], "label": "SUPPORT"}]}}, "without gold evidence"),
        ({"evidence": None}, "unlabelled (no 'evidence' field)"),
        (
            {
                "evidence": {
                    "31": [{"sentences": [0], "label": "SUPPORT"}],
                    "32": [{"sentences": [0], "label": "CONTRADICT"}],
                }
            },
            "with conflicting labels",
        ),
        (
            {"evidence": {"99": [{"sentences": [0], "label": "SUPPORT"}]}},
            "with evidence documents absent from the corpus",
        ),
        (
            {"evidence": {"31": [{"sentences": [7], "label": "SUPPORT"}]}},
            "with sentence numbers outside the abstract",
        ),
    ],
)
def test_what_is_left_out_is_counted_by_reason(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    """Fault kind "SciFact without evidence": by rule, without a crash."""
    found = load(tmp_path, [claim(1, **change)], [document(31), document(32)])
    assert found.instances == []
    assert found.report.left_out == {reason: 1}
    assert found.report.kept == 0
    assert "n = 0, not available" in found.report.text()
    # Beside a good claim it changes nothing but the count.
    with_good = load(tmp_path, [claim(1, **change), claim(2)], [document(31), document(32)])
    assert (with_good.report.num_claims, with_good.report.kept) == (2, 1)
    assert with_good.report.left_out == {reason: 1}


def test_an_absent_evidence_key_is_unlabelled(tmp_path: Path) -> None:
    found = load(tmp_path, [{"id": 7, "claim": "Claim."}])
    assert found.report.left_out == {"unlabelled (no 'evidence' field)": 1}


def test_an_empty_file_gives_n_0(tmp_path: Path) -> None:
    """Fault kind "SciFact without evidence": an empty file, empty corpus included."""
    found = load(tmp_path, [], [])
    assert (found.instances, found.report.num_claims, found.report.left_out) == ([], 0, {})
    assert found.report.text() == (
        "SciFact: n = 0, not available: no claim with usable gold evidence\nleft out 0 claims"
    )


def test_ids_of_two_types_duplicates_and_absences(tmp_path: Path) -> None:
    """Fault kind "ids and duplicates", as in the list of faults."""
    evidence = {"31": [{"sentences": [0, 4], "label": "SUPPORT"}]}
    corpus = [document("32"), document(31, ("One.", "Two.")), document("31", ("Other.",))]
    rows = [claim(9, evidence=evidence, cited_doc_ids=[31, 33]), claim("9"), claim(10)]
    found = load(tmp_path, rows, corpus)
    assert (found.report.num_claims, found.report.kept) == (2, 2)
    assert len(found.instances) == 6
    assert found.instances[0].graph.atoms[0].text == "One."  # the first of the two documents 31
    assert found.report.duplicates == (
        "claim 9 (claims.jsonl, lines 1 and 2)",
        "document 31 (corpus.jsonl, lines 2 and 3)",
    )
    assert found.report.absent_documents == ("claim 9: document 33",)
    assert found.report.out_of_range == ("claim 9: sentence 4 of document 31, which has 2",)
    text = found.report.text()
    assert "2 repeated ids: claim 9 (claims.jsonl, lines 1 and 2); document 31" in text
    assert "1 documents absent from the corpus: claim 9: document 33" in text


def test_an_absent_document_beside_a_present_one(tmp_path: Path) -> None:
    evidence = {doc: [{"sentences": [0], "label": "SUPPORT"}] for doc in ("99", "31")}
    found = load(tmp_path, [claim(evidence=evidence)])
    assert found.report.kept == 1
    assert found.report.multi_document == 0
    assert found.instances[0].graph.sources == ("31",)
    assert found.report.absent_documents == ("claim 1: document 99",)


def test_two_spellings_of_one_document_are_one_source(tmp_path: Path) -> None:
    evidence = {doc: [{"sentences": [n], "label": "SUPPORT"}] for n, doc in enumerate(("31", " 031"))}
    found = load(tmp_path, [claim(evidence=evidence)])
    assert [d.rationales for d in found.evidence["scifact-1"]] == [((0,), (1,))]
    assert len(found.instances) == 3


def test_negative_sentence_numbers_do_not_count_from_the_end(tmp_path: Path) -> None:
    found = load(tmp_path, [claim(evidence={"31": [{"sentences": [-1, 1], "label": "SUPPORT"}]})])
    assert found.instances[0].graph.atoms[0].text == "Second."
    assert found.report.out_of_range == ("claim 1: sentence -1 of document 31, which has 3",)


# --- lines that do not follow the format

BAD_LINES = {
    "null": (b"null", "found null"),
    "list": (b"[]", "found a list"),
    "half": (b'{"id": 5, "claim": "x', "found"),
    "label": (
        json.dumps(claim(5, evidence={"31": [{"sentences": [0], "label": "REFUTES"}]})).encode(),
        "field 'evidence.31.0.label': found 'REFUTES', expected: Input should be 'SUPPORT' or 'CONTRADICT'",
    ),
    "sentence": (
        json.dumps(claim(5, evidence={"31": [{"sentences": ["0"], "label": "SUPPORT"}]})).encode(),
        "field 'evidence.31.0.sentences.0': found '0'",
    ),
    "no claim": (b'{"id": 5}', "field 'claim': found nothing"),
    "empty claim": (b'{"id": 5, "claim": " "}', "field 'claim'"),
    "evidence list": (b'{"id": 5, "claim": "x", "evidence": []}', "field 'evidence'"),
    "key twice": (b'{"id": 5, "claim": "x", "evidence": {"31": [], "31": []}}', "the key '31' twice"),
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_strict_stops_and_lenient_counts(tmp_path: Path, kind: str) -> None:
    """Fault kind "Unicode lines": bad lines by file and line."""
    bad, problem = BAD_LINES[kind]
    with pytest.raises(BadFileError, match="claims.jsonl, line 2: ") as caught:
        load(tmp_path, [claim(1), bad, claim(2)])
    assert problem in str(caught.value)
    found = load(tmp_path, [claim(1), bad, claim(2)], mode="lenient")
    assert (found.report.num_claims, found.report.kept) == (2, 2)
    assert len(found.report.bad_lines) == 1
    assert found.report.bad_lines[0].startswith("claims.jsonl, line 2: ")
    assert "1 bad lines: claims.jsonl, line 2" in found.report.text()


def test_bad_corpus_lines_are_named_too(tmp_path: Path) -> None:
    corpus: list[Any] = [document(31), {"doc_id": 32, "title": "T"}]
    with pytest.raises(BadFileError, match=r"corpus.jsonl, line 2: field 'abstract': found nothing"):
        load(tmp_path, [claim()], corpus)
    assert load(tmp_path, [claim()], corpus, mode="lenient").report.kept == 1


def test_unicode_lines_load_unchanged(tmp_path: Path) -> None:
    """Fault kind "Unicode lines": BOM, CRLF, raw U+2028 in a claim."""
    text = "Alpha\u2028beta\u2029γ."
    row = b"\xef\xbb\xbf" + json.dumps(claim(1, claim=text), ensure_ascii=False).encode() + b"\r"
    found = load(tmp_path, [row, b"", claim(2)])
    assert found.report.kept == 2
    assert found.instances[0].base_claim.text == text


def test_missing_files_are_named(tmp_path: Path) -> None:
    load(tmp_path, [claim()])
    with pytest.raises(FileNotFoundError, match="claim.jsonl does not exist; near it lie claims.jsonl"):
        load_scifact(tmp_path / "claim.jsonl", tmp_path / "corpus.jsonl")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        load_scifact(tmp_path / "claims.jsonl", tmp_path)
    with pytest.raises(ValueError, match="mode 'loose' is unknown"):
        load(tmp_path, [claim()], mode="loose")
