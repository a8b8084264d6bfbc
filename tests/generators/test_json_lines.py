"""Reading and writing lines: bad ones by file and line, and never a half-written file."""

import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provgym.envs.provenance import Instance
from provgym.generators import json_lines
from provgym.generators.claim_files import read_claims, write_claims
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


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


BAD_LINES = {
    "null": (b"null", "found null, expected one JSON object"),
    "list": (b"[]", "found a list, expected one JSON object"),
    "string": (b'"x"', "found a string"),
    "number": (b"7", "found a number"),
    "true": (b"true", "found a boolean"),
    "prose": (b"hello", "found 'hello', expected one JSON object"),
    "two objects": (b"{} {}", "expected one JSON object: Extra data"),
    "NaN": (b'{"weight": NaN}', "found NaN, which is not JSON"),
    "key twice": (b'{"id": 1, "id": 2}', "the key 'id' twice"),
    "latin-1": ("{'é'}".encode("latin-1"), "found byte 0xe9 at position 2, expected text saved as UTF-8"),
    "utf-16": ("{}".encode("utf-16"), "found byte 0xff at position 0"),
    "BOM inside": (b"\xef\xbb\xbf{}", "expected one JSON object"),
    "deep": (b"[" * 100_000, "found"),
    "long number": (b'{"id": ' + b"1" * 5_000 + b"}", "digits"),
    "NUL": (b"\x00", "expected one JSON object"),
}


def test_bom_crlf_blank_lines_line_separators_and_a_missing_last_line_end(tmp_path: Path) -> None:
    """Fault kind "Unicode lines": whole records load unchanged."""
    claim = "It\u2028rises\u2029by\x85half\x0b."
    rows = [json.dumps(line(n, claim=claim), ensure_ascii=False).encode() for n in (1, 2, 3)]
    path = tmp_path / "own.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n\r\n  \n".join(rows))
    found = read_claims(path)
    assert [i.base_claim.text for i in found.instances] == [claim] * 3


@pytest.mark.parametrize("kind", BAD_LINES)
def test_strict_stops_and_lenient_counts(tmp_path: Path, kind: str) -> None:
    """Fault kind "Unicode lines": bad lines are reported with file and line."""
    bad, problem = BAD_LINES[kind]
    path = tmp_path / "own.jsonl"
    good = [json.dumps(line(n)).encode() for n in (1, 2)]
    path.write_bytes(good[0] + b"\n" + bad + b"\n" + good[1] + b"\n")
    with pytest.raises(BadFileError, match="own.jsonl, line 2: .*Correct the line, or read in lenient mode") as caught:
        read_claims(path)
    assert problem in str(caught.value)
    assert (caught.value.path, caught.value.line) == (path, 2)
    found = read_claims(path, mode="lenient")
    assert [i.instance_id for i in found.instances] == ["own-1", "own-2"]
    assert found.report.bad_total == 1
    assert found.report.bad_lines[0].startswith(f"{path}, line 2: ")
    assert problem in found.report.bad_lines[0]


def test_half_a_last_line_is_named_as_such(tmp_path: Path) -> None:
    """Fault kind "Unicode lines": half a last line."""
    path = write(tmp_path / "own.jsonl", line(1))
    with path.open("ab") as file:
        file.write(json.dumps(line(2)).encode()[:50])
    with pytest.raises(BadFileError, match=r"line 2: .*the file ends inside this line"):
        read_claims(path)
    assert read_claims(path, mode="lenient").report.kept == 1


def test_an_endless_line_is_skipped_without_being_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "MAX_LINE_BYTES", 1_000)
    path = write(tmp_path / "own.jsonl", line(1), line(2, claim="x" * 5_000), line(3))
    found = read_claims(path, mode="lenient")
    assert [i.instance_id for i in found.instances] == ["own-1", "own-3"]
    assert "line 2: found more than 1000 bytes" in found.report.bad_lines[0]


def test_a_folder_instead_of_a_file_is_named_with_what_it_holds(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", line())
    with pytest.raises(IsADirectoryError, match="is a folder, expected a file; it holds train.jsonl"):
        read_claims(tmp_path)


def test_a_missing_file_is_named_with_near_names(tmp_path: Path) -> None:
    write(tmp_path / "claims_train.jsonl", line())
    with pytest.raises(FileNotFoundError, match=r"claim_train.jsonl does not exist; near it lie claims_train.jsonl"):
        read_claims(tmp_path / "claim_train.jsonl")
    with pytest.raises(FileNotFoundError, match=r"near it lie claims_train.jsonl"):
        read_claims(tmp_path / "x.jsonl")
    with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere does not exist either"):
        read_claims(tmp_path / "nowhere" / "x.jsonl")
    with pytest.raises(FileNotFoundError, match=r"x.parquet does not exist"):
        read_claims(tmp_path / "x.parquet")


def test_lines_are_read_one_at_a_time(tmp_path: Path) -> None:
    """Memory is bound by a line: the reader asks for the next line only when the last one was used."""
    path = write(tmp_path / "own.jsonl", *(line(n) for n in range(2_000)))
    rows = json_lines.read_json_lines(path)
    assert next(rows).line == 1
    # The file changes after its first line was taken; a reader that held the whole file would not see it.
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size - 5)
        file.write(b"\xff\xff\xff")
    last = [row for row in rows][-1]
    assert isinstance(last, json_lines.BadLine)
    assert last.line == 2_000


def test_a_full_disk_leaves_the_old_file_and_no_half_one(tmp_path: Path) -> None:
    """Bad input "full disk": the write really fails, at a limit of the operating system."""
    path = tmp_path / "own.jsonl"
    write_claims(path, SYNTHETIC[:2])
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_claims(path, SYNTHETIC)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["own.jsonl", "own.parquet"])
def test_an_interrupt_leaves_the_old_file_and_no_half_one(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_claims(path, SYNTHETIC[:2])
    before = path.read_bytes()

    def interrupted() -> Iterator[Instance]:
        yield from SYNTHETIC[:5]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_claims(path, interrupted())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_sync_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_claims(tmp_path / "own.jsonl", SYNTHETIC)
    assert list(tmp_path.iterdir()) == []


def test_folders_are_made_links_are_followed_and_rights_are_usual(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er" / "own.jsonl"
    write_claims(target, SYNTHETIC[:1])
    link = tmp_path / "link.jsonl"
    link.symlink_to(target)
    write_claims(link, SYNTHETIC[:3])
    assert link.is_symlink()
    assert read_claims(target).report.kept == 3
    plain = tmp_path / "plain"
    plain.touch()
    assert target.stat().st_mode == plain.stat().st_mode
