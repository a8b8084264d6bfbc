"""Exported data sets: whole folders, honest cards, and what comes back is what was generated."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from provgym.generators.claim_files import read_claims, write_claims
from provgym.generators.claim_records import instance_to_record
from provgym.generators.export import DEFAULT_CONDITIONS, export_graphecho, load_export
from provgym.generators.graphecho import GraphEcho
from provgym.generators.json_lines import BadFileError

SIZES = {"train": 6, "dev": 2, "test": 3}


def test_a_folder_holds_a_file_per_split_and_a_card(tmp_path: Path) -> None:
    made = export_graphecho(tmp_path / "out", 5, SIZES, general_draws=3)
    assert sorted(p.name for p in made.folder.iterdir()) == [
        "dataset.json",
        "dev.jsonl",
        "test.jsonl",
        "train.jsonl",
    ]
    assert [p.name for p in made.files] == ["train.jsonl", "dev.jsonl", "test.jsonl"]
    card = json.loads((made.folder / "dataset.json").read_text(encoding="utf-8"))
    assert card == made.card
    assert (card["seed"], card["conditions"], card["general_draws"]) == (5, list(DEFAULT_CONDITIONS), 3)
    for split, claims in SIZES.items():
        entry = card["splits"][split]
        assert (entry["claims"], entry["instances"]) == (claims, claims * (5 + 3))
        assert entry["conditions"]["C3"]["gold"] == {"SUPPORT": claims}
        assert sum(entry["conditions"]["general"]["gold"].values()) == claims * 3
        data = (made.folder / f"{split}.jsonl").read_bytes()
        assert entry["files"] == {f"{split}.jsonl": hashlib.sha256(data).hexdigest()}
        assert entry["content_sha256"] == hashlib.sha256(data).hexdigest()
        assert len(data.splitlines()) == entry["instances"]


def test_token_and_node_counts_are_worked_out_by_hand(tmp_path: Path) -> None:
    """The source-count intervention leaves the text shown as it is; only source nodes are more."""
    card = export_graphecho(tmp_path, 5, {"test": 4}, ["C1", "1S5P", "5S5P"]).card["splits"]["test"]["conditions"]
    # "In D, X raises the M of Y." has 8 words; "X raised the M of Y by 7 percent." has 9.
    assert card["C1"]["tokens"] == {"mean": 8 + 2 * 9, "min": 26, "max": 26}
    assert card["1S5P"]["tokens"] == card["5S5P"]["tokens"] == {"mean": 8 + 5 * 9, "min": 53, "max": 53}
    # Claim, an observation and a representation per route, and the sources.
    assert card["C1"]["nodes"]["mean"] == 1 + 2 * 2 + 2
    assert card["1S5P"]["nodes"]["mean"] == 1 + 5 * 2 + 1
    assert card["5S5P"]["nodes"]["mean"] == 1 + 5 * 2 + 5


@pytest.mark.parametrize("file_format", ["jsonl", "parquet", "both"])
def test_what_comes_back_is_what_was_generated(tmp_path: Path, file_format: Any) -> None:
    made = export_graphecho(tmp_path, 5, SIZES, ["C2", "general"], 2, file_format)
    generated = GraphEcho.generate(5, SIZES)
    loaded = load_export(tmp_path)
    assert list(loaded) == list(SIZES)
    for split, instances in loaded.items():
        expected = [
            generated.instance(base, name, draw=draw)
            for base in generated.of_split(split)
            for name, draw in (("C2", 0), ("general", 0), ("general", 1))
        ]
        assert [instance_to_record(i) for i in instances] == [instance_to_record(i) for i in expected]
    suffixes = {p.suffix for p in made.files}
    assert suffixes == {"jsonl": {".jsonl"}, "parquet": {".parquet"}, "both": {".jsonl", ".parquet"}}[file_format]
    if file_format == "both":
        for split in SIZES:
            one, other = (read_claims(tmp_path / f"{split}.{suffix}").instances for suffix in ("jsonl", "parquet"))
            assert [instance_to_record(i) for i in one] == [instance_to_record(i) for i in other]


def test_the_same_request_writes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        export_graphecho(tmp_path / name, 5, SIZES, file_format="both")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    other = export_graphecho(tmp_path / "three", 6, SIZES)
    first = json.loads((tmp_path / "one" / "dataset.json").read_text())
    assert other.card["splits"]["test"]["content_sha256"] != first["splits"]["test"]["content_sha256"]


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (
            {"file_format": "csv"},
            r"file_format 'csv' is unknown; choose one of \['jsonl', 'parquet', 'both'\]",
        ),
        ({"conditions": ["C1", "C9"]}, "condition 'C9' is unknown"),
        ({"conditions": []}, "conditions is empty"),
        ({"conditions": ["C1", "C1"]}, r"\['C1'\] are named more than once"),
        ({"general_draws": 0}, "general_draws=0 must be >= 1"),
        ({"splits": {"validation": 5}}, r"splits \['validation'\] are unknown"),
        ({"splits": {"train": -1}}, "sizes >= 0"),
        ({"seed": -1}, "integers >= 0"),
    ],
)
def test_an_impossible_request_writes_nothing(tmp_path: Path, request_: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        export_graphecho(tmp_path / "out", **({"splits": SIZES} | request_))
    assert not (tmp_path / "out").exists()


def test_a_split_of_size_zero_has_no_file(tmp_path: Path) -> None:
    export_graphecho(tmp_path, 5, {"train": 0, "test": 2}, ["C1"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dataset.json", "test.jsonl"]
    assert list(load_export(tmp_path)) == ["test"]


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    export_graphecho(tmp_path, 5, SIZES, ["C1"])
    path = tmp_path / "dev.jsonl"
    path.write_bytes(path.read_bytes().replace(b"MIXED", b"REFUTE"))
    with pytest.raises(BadFileError, match=r"dev.jsonl: found contents with SHA-256 .*as its card says"):
        load_export(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="dev.jsonl does not exist"):
        load_export(tmp_path)


@pytest.mark.parametrize("card", ["", "[]", "{}", '{"splits": 5}', '{"splits": {"dev": {}}}'])
def test_a_broken_card_is_named(tmp_path: Path, card: str) -> None:
    (tmp_path / "dataset.json").write_text(card)
    with pytest.raises(BadFileError, match=r"dataset.json: found no readable card"):
        load_export(tmp_path)


def test_a_folder_without_a_card_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="dataset.json does not exist"):
        load_export(tmp_path)


def test_an_interrupted_export_leaves_no_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad input "full disk, interrupt": an old card must not vouch for new files."""
    export_graphecho(tmp_path, 5, SIZES, ["C1"])

    def interrupted(path: Path, instances: Any) -> int:
        if path.name == "dev.jsonl":
            raise KeyboardInterrupt
        return write_claims(path, instances)

    monkeypatch.setattr("provgym.generators.export.write_claims", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_graphecho(tmp_path, 6, SIZES, ["C1"])
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".dataset.unfinished",
        "dev.jsonl",
        "test.jsonl",
        "train.jsonl",
    ]
    with pytest.raises(FileNotFoundError, match="dataset.json does not exist"):
        load_export(tmp_path)
