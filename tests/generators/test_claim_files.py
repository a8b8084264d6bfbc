"""Claim files: exact round trips, duplicates and leaks by name, and an honest report."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from provgym.envs.provenance import Instance
from provgym.generators import json_lines
from provgym.generators.claim_files import from_dataset, read_claims, to_dataset, write_claims
from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL
from provgym.generators.graphecho import GraphEcho
from provgym.generators.json_lines import BadFileError

SYNTHETIC = [
    instance
    for split in ("train", "dev", "test")
    for instance in GraphEcho.generate(3, {"train": 4, "dev": 2, "test": 2}).instances(
        split, [*CONFLICT_CONDITIONS, "3+1|2", "2S5PR", GENERAL]
    )
]


def line(number: int = 1, **change: Any) -> dict[str, Any]:
    """A good record; ``change`` replaces fields."""
    evidence = [{"source": f"doc{number}", "stance": "SUPPORT", "text": "It rose."}]
    return {
        "id": f"own-{number}",
        "claim": f"Claim {number}.",
        "split": "train",
        "evidence": evidence,
    } | change


def evidence(**change: Any) -> list[dict[str, Any]]:
    return [{"source": "doc1", "stance": "SUPPORT", "text": "It rose."} | change]


def contents(instance: Instance) -> tuple[object, ...]:
    graph = instance.graph
    head = (instance.instance_id, instance.condition, instance.gold, instance.split, instance.claim)
    return (*head, graph.claims, graph.atoms, graph.routes, graph.sources, graph.indices.tolist())


def same(one: Sequence[Instance], other: Sequence[Instance]) -> bool:
    return [contents(i) for i in one] == [contents(i) for i in other]


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["claims.jsonl", "claims.parquet"])
def test_what_is_written_comes_back_equal(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert write_claims(path, iter(SYNTHETIC)) == len(SYNTHETIC)
    found = read_claims(path)
    assert same(found.instances, SYNTHETIC)
    assert found.report.kept == len(SYNTHETIC)
    assert (found.report.bad_total, found.report.gold_differs) == (0, 0)


def test_a_dataset_comes_back_equal() -> None:
    dataset = to_dataset(SYNTHETIC)
    assert len(dataset) == len(SYNTHETIC)
    assert dataset[0]["evidence"][0]["routes"][0]["kind"] == SYNTHETIC[0].graph.routes[0].kind
    assert same(from_dataset(dataset), SYNTHETIC)
    assert len(to_dataset([])) == 0


def test_the_documented_example_reads(repository: Path, tmp_path: Path) -> None:
    document = repository / "docs" / "claim_files.md"
    example = document.read_text(encoding="utf-8").split("```jsonl\n")[1].split("```")[0]
    path = tmp_path / "own.jsonl"
    path.write_text(example, encoding="utf-8")
    found = read_claims(path)
    assert [i.instance_id for i in found.instances] == [
        "tea-1",
        "tea-2",
        "led-1",
        "led-2",
        "naps-1",
        "moss-1",
    ]
    assert [i.gold.value for i in found.instances] == [
        "MIXED",
        "SUPPORT",
        "MIXED",
        "REFUTE",
        "SUPPORT",
        "MIXED",
    ]
    assert (found.instances[0].graph.n_path(), found.instances[0].graph.n_prov()) == (3, 2)


def test_a_stated_gold_holds_and_a_difference_is_reported(tmp_path: Path) -> None:
    found = read_claims(write(tmp_path / "own.jsonl", line(1, gold="REFUTE"), line(2), line(3, gold="SUPPORT")))
    assert [i.gold.value for i in found.instances] == ["REFUTE", "SUPPORT", "SUPPORT"]
    assert found.report.gold_differs == 1
    assert "1 instances state another gold" in found.report.text()


def test_duplicate_ids_are_named_with_both_places(tmp_path: Path) -> None:
    """Fault kind "ids and duplicates": 31 and "31" are one id, in one file or two."""
    one = write(tmp_path / "one.jsonl", line(1, id=31), line(2))
    two = write(tmp_path / "two.jsonl", line(3), line(4, id="31"))
    with pytest.raises(BadFileError, match=r"two.jsonl, line 2: found id '31' again \(first in one.jsonl, line 1\)"):
        read_claims(one, two)
    found = read_claims(one, two, mode="lenient")
    assert [i.instance_id for i in found.instances] == ["31", "own-2", "own-3"]
    assert found.report.bad_total == 1


def test_one_claim_id_is_one_claim(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", line(1, claim_id="c"), line(2, claim_id="c"))
    with pytest.raises(BadFileError, match="line 2: found claim_id 'c' with another claim text"):
        read_claims(path)


def test_an_empty_file_has_no_claims(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    for contents_of in (b"", b"\n\n", b"\xef\xbb\xbf"):
        path.write_bytes(contents_of)
        with pytest.raises(BadFileError, match=r"own.jsonl: holds no claim, expected at least one line"):
            read_claims(path)
        found = read_claims(path, mode="lenient")
        assert found.instances == []
        assert "n = 0, not available" in found.report.text()


def test_unreadable_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    path.write_bytes(b"PAR1 no, not really")
    with pytest.raises(BadFileError, match=r"own.parquet: found no readable Parquet"):
        read_claims(path)


def test_parquet_rows_are_checked_as_lines_are(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    path = tmp_path / "own.parquet"
    datasets.Dataset.from_list([line(1), line(2, split="nowhere")]).to_parquet(str(path))
    with pytest.raises(BadFileError, match=r"own.parquet, line 2: field 'split': found 'nowhere'"):
        read_claims(path)
    assert read_claims(path, mode="lenient").report.kept == 1


def test_dataset_rows_are_checked_by_number() -> None:
    with pytest.raises(ValueError, match="data set, row 2: found id 'own-1' again"):
        from_dataset([line(1), line(1)])
    leaking = line(2, split="test", evidence=evidence())
    with pytest.raises(ValueError, match="source 'doc1' stands in split 'train' and in split 'test'"):
        from_dataset([line(1), leaking])


@pytest.mark.parametrize("mode", ["strict", "lenient"])
def test_leaking_splits_are_refused_in_either_mode(tmp_path: Path, mode: Any) -> None:
    one = write(tmp_path / "train.jsonl", line(1, entities=["ruxor"]))
    two = write(tmp_path / "test.jsonl", line(2, entities=["ruxor"], split="test"))
    with pytest.raises(BadFileError, match="splits leak: entity 'ruxor' stands in split 'train' and in split 'test'"):
        read_claims(one, two, mode=mode)
    assert read_claims(one, mode=mode).report.kept == 1


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(ValueError, match="mode 'loose' is unknown"):
        read_claims(Path("x"), mode="loose")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one path"):
        read_claims()


def test_a_report_stays_short_however_many_lines_are_bad(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_bytes(b"[]\n" * 5_000 + json_lines.dump_json_line(line()))
    report = read_claims(path, mode="lenient").report
    assert (report.kept, report.bad_total, len(report.bad_lines)) == (1, 5_000, 100)
    assert report.text().endswith("... and 4990 more")


def test_a_duplicate_is_not_written(tmp_path: Path) -> None:
    twice = [*SYNTHETIC[:3], SYNTHETIC[1]]
    with pytest.raises(ValueError, match=f"{SYNTHETIC[1].instance_id!r} appears twice"):
        write_claims(tmp_path / "own.jsonl", twice)
    with pytest.raises(ValueError, match="appears twice"):
        to_dataset(twice)
    assert list(tmp_path.iterdir()) == []
