"""The ledger: one line per request from before it leaves, whole after kills, safe beside other writers."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provgym.generators.endpoint_entry import CallTag, LedgerEntry, finished, ledger_totals, new_entry
from provgym.generators.endpoint_ledger import Ledger, read_ledger
from provgym.generators.endpoint_reply import Completion, EndpointFailure

ANSWER = Completion("walk n1", 100, 7, "stop")


def entry(item: str = "i", attempt: int = 1, tag: CallTag | None = None) -> LedgerEntry:
    return new_entry(
        "c0ffee" * 8, attempt, tag or CallTag("eval", 0, item), "m", "http://agents.test/v1/chat/completions"
    )


def test_a_line_stands_before_the_request_leaves_and_is_filled_in_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ledger.jsonl"
    ledger = Ledger(path)
    one, two, three = (entry(name, tag=CallTag("train", 2, name)) for name in "abc")
    for each in (one, two, three):
        ledger.open_line(each)
    assert [e.outcome for e in read_ledger(path)] == ["unfinished"] * 3
    ledger.close_line(finished(three, 0.25, EndpointFailure("timeout", "gave no answer")))
    ledger.close_line(finished(one, 1.5, ANSWER))
    ledger.close()
    found = read_ledger(path)
    assert [(e.item, e.outcome, e.seconds) for e in found] == [
        ("a", "answered", 1.5),
        ("b", "unfinished", None),
        ("c", "timeout", 0.25),
    ]
    assert (found[0].phase, found[0].replicate, found[0].call, found[0].status) == ("train", 2, "c0ffeec0ffeec0ff", 200)
    assert (found[0].prompt_tokens, found[0].completion_tokens, found[0].finish_reason) == (100, 7, "stop")
    assert found[2].detail == "gave no answer"
    lines = path.read_bytes().split(b"\n")
    assert [json.loads(line)["version"] for line in lines[:-1]] == [1, 1, 1]


def test_a_later_writer_appends_and_repairs_a_half_written_line(tmp_path: Path) -> None:
    """Fault kind: one failure loses its siblings (half-written last line repaired)."""
    path = tmp_path / "ledger.jsonl"
    first = Ledger(path)
    kept = entry("kept")
    first.open_line(kept)
    first.close_line(finished(kept, 1.0, ANSWER))
    first.close()
    whole = path.read_bytes()
    cut = entry("cut")
    line = json.dumps(dataclasses.asdict(cut)).encode()
    for half in (line[:1], line[:40], line, line + b" " * 100):
        path.write_bytes(whole + half)
        assert [e.item for e in read_ledger(path)] == ["kept"]
        second = Ledger(path)
        second.open_line(entry("next"))
        second.close()
        assert [e.item for e in read_ledger(path)] == ["kept", "next"]
    for half in (b"{", line[:40]):
        path.write_bytes(half)
        ledger = Ledger(path)
        ledger.open_line(entry("only"))
        ledger.close()
        assert [e.item for e in read_ledger(path)] == ["only"]


@pytest.mark.parametrize("text", ["notes\nof mine", "notes of mine", '{"step": 1}\n', "\n", '{"attempt_id": "x"}\n'])
def test_another_file_is_refused_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"notes.txt, line 1: .*name another ledger"):
        Ledger(path)
    assert path.read_text(encoding="utf-8") == text


def test_bad_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    good = dataclasses.asdict(entry())
    cases = {
        "version 2": {**good, "version": 2},
        "attempt '1'": {**good, "attempt": "1"},
        "outcome 'lost'": {**good, "outcome": "lost"},
        "colour 'red'": {**good, "colour": "red"},
        "phase None": {**good, "phase": None},
    }
    for found, data in cases.items():
        path.write_text(json.dumps(good) + "\n" + json.dumps(data) + "\n", encoding="utf-8")
        with pytest.raises(ValueError, match=f"ledger.jsonl, line 2: .*{found}"):
            read_ledger(path)
    path.write_text((json.dumps(good) + "\n") * 2, encoding="utf-8")
    with pytest.raises(ValueError, match=f"line 2: attempt {good['attempt_id']} stands there twice"):
        read_ledger(path)
    with pytest.raises(FileNotFoundError, match="near it lie ledger.jsonl"):
        read_ledger(tmp_path / "leger.jsonl")
    (tmp_path / "empty.jsonl").touch()
    assert read_ledger(tmp_path / "empty.jsonl") == []


@settings(max_examples=30)
@given(detail=st.text(max_size=900), item=st.text(max_size=300))
def test_any_detail_fits_into_its_line(tmp_path_factory: pytest.TempPathFactory, detail: str, item: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any-detail.jsonl"
    path.unlink(missing_ok=True)
    ledger = Ledger(path)
    one, two = entry(item), entry("next")
    ledger.open_line(one)
    ledger.open_line(two)
    ledger.close_line(finished(one, 123456.789, EndpointFailure("rate_limited", detail, 1.0, 429)))
    ledger.close()
    found = read_ledger(path)
    assert [e.item for e in found] == [item, "next"]
    assert detail.startswith(found[0].detail or "")
    assert found[0].detail == detail or len(found[0].detail or "") >= 20


def _write_many(path: Path, name: str, count: int) -> None:
    ledger = Ledger(path)
    for number in range(count):
        each = entry(f"{name}{number}")
        ledger.open_line(each)
        if number % 3:
            ledger.close_line(finished(each, 0.1, ANSWER))
    ledger.close()


def test_processes_write_one_ledger_without_losing_a_line(tmp_path: Path) -> None:
    """Fault kind: one failure loses its siblings (every attempt in the ledger once)."""
    path = tmp_path / "ledger.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(path, name, 60)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    found = read_ledger(path)
    assert sorted(e.item for e in found) == sorted(f"{name}{number}" for name in "ab" for number in range(60))
    assert sum(e.outcome == "unfinished" for e in found) == 40


def test_totals_are_apart_by_phase_and_never_count_what_is_unknown() -> None:
    train, evaluation = CallTag("train", 0, "t"), CallTag("eval", 0, "e")
    entries = [
        finished(entry(tag=train), 1, ANSWER),
        finished(entry(tag=train), 1, Completion("x", 10, 1, "length")),
        finished(entry(tag=train), 1, EndpointFailure("server", "down", None, 503)),
        entry(tag=train),
        finished(entry(tag=evaluation), 1, Completion("x")),
        finished(entry(tag=evaluation), 1, None),
    ]
    assert dataclasses.astuple(ledger_totals(entries, "train")) == (4, 2, 1, 1, 110, 8, 0)
    assert dataclasses.astuple(ledger_totals(entries, "eval")) == (2, 1, 1, 0, 0, 0, 1)
    assert dataclasses.astuple(ledger_totals(entries)) == (6, 3, 2, 1, 110, 8, 1)


def test_a_full_disk_stops_the_request_before_it_leaves() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    ledger = Ledger.__new__(Ledger)  # the device can't be locked beside, so only the write is tried
    ledger.path = full
    ledger._file = full.open("r+b", buffering=0)
    with pytest.raises(OSError, match="No space left"):
        ledger._write(0, b"x")
