"""Stored episodes come back equal, half lines are repaired, bad lines are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from provgym.envs.presentation import PresentationConfig
from provgym.eval.episode_parquet import write_parquet
from provgym.eval.episode_store import EpisodeWriter, merge_episodes, read_episodes, to_line, write_episodes
from provgym.eval.run_files import write_json_atomic
from provgym.generators.episode import Episode, EpisodeTask, Tokens, Turn
from provgym.generators.graphecho import GraphEcho
from provgym.generators.scripted import ScriptedPolicy, naive_path_counter

Make = Callable[..., Episode]


@pytest.fixture(scope="module")
def played() -> list[Episode]:
    """Real episodes, one with tokens, one with usage."""
    data = GraphEcho.generate(3, {"test": 2})
    tasks = [EpisodeTask(i, 4, PresentationConfig(), 1, 2) for i in data.instances("test", ["C1", "C3"])]
    episodes = ScriptedPolicy("naive", naive_path_counter).play(tasks)
    tokens = Tokens((1, 2), (3, 4), (1, 0), (-0.1234567890123, 0.0))
    episodes[0] = replace(episodes[0], tokens=tokens, unknown_tokens=1)
    episodes[1] = replace(episodes[1], usage={"completion_tokens": 12})
    return episodes


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_round_trip_is_exact(played: list[Episode], tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"deep/er/episodes{suffix}"
    write = write_parquet if suffix == ".parquet" else write_episodes
    write(path, played)
    assert read_episodes(path) == played
    write(path, [])
    assert read_episodes(path) == []
    assert [p.name for p in path.parent.iterdir()] == [path.name], "no draft may stay behind"


@pytest.mark.parametrize("text", ["a\u2028b", "\ufeff\r\n", "emoji 🙂 Ελλάδα", '{"verdict": "SUPPORT"}', "\ud800 lone"])
def test_any_text_fits_in_a_line(make_episode: Make, tmp_path: Path, text: str) -> None:
    """Kind: Unicode lines (raw U+2028, BOM, CRLF), markup injection, and a lone surrogate of a model."""
    episode = replace(make_episode("a"), turns=(Turn(text, text),))
    path = tmp_path / "episodes.jsonl"
    write_episodes(path, [episode, episode])
    assert read_episodes(path) == [episode, episode]
    write_parquet(tmp_path / "episodes.parquet", [episode])
    (again,) = read_episodes(tmp_path / "episodes.parquet")
    assert again.turns[0].action == text.replace("\ud800", "?")


def test_half_last_line_is_cut_away_and_writing_goes_on(make_episode: Make, tmp_path: Path) -> None:
    """Kind: one failure loses its siblings (half-written last line repaired)."""
    path = tmp_path / "part.jsonl"
    first, second, third = (make_episode(name) for name in "abc")
    path.write_bytes(to_line(first) + to_line(second)[:-20])
    assert read_episodes(path, allow_half_line=True) == [first]
    with pytest.raises(ValueError, match=r"part\.jsonl, line 2"):
        read_episodes(path)
    with EpisodeWriter(path) as writer:
        writer.append(third)
    assert read_episodes(path) == [first, third]


@pytest.mark.parametrize("size", [0, 1, 5])
def test_file_of_one_half_line_is_emptied(make_episode: Make, tmp_path: Path, size: int) -> None:
    path = tmp_path / "part.jsonl"
    path.write_bytes(to_line(make_episode())[:size])
    with EpisodeWriter(path) as writer:
        writer.append(make_episode())
    assert read_episodes(path) == [make_episode()]


def test_half_line_longer_than_a_read_block(make_episode: Make, tmp_path: Path) -> None:
    path = tmp_path / "part.jsonl"
    path.write_bytes(to_line(make_episode()) + b"x" * (3 << 20))
    EpisodeWriter(path).__exit__(None, None, None)
    assert read_episodes(path) == [make_episode()]


def test_each_append_is_readable_at_once(make_episode: Make, tmp_path: Path) -> None:
    path = tmp_path / "part.jsonl"
    with EpisodeWriter(path) as writer:
        for n in range(3):
            writer.append(make_episode(f"c{n}"))
            assert len(read_episodes(path)) == n + 1, "a kill here must lose nothing"


@pytest.mark.parametrize("line", ["null", "[]", "{}", '{"instance_id": 1}', "nonsense", '"text"'])
def test_bad_line_is_named_with_file_and_number(make_episode: Make, tmp_path: Path, line: str) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(to_line(make_episode()) + b"\n" + line.encode() + b"\n")
    with pytest.raises(ValueError, match=r"episodes\.jsonl, line 3: found .*, expected a stored episode"):
        read_episodes(path)


def test_missing_and_unknown_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone.jsonl"):
        read_episodes(tmp_path / "gone.jsonl")
    (tmp_path / "episodes.csv").write_text("x")
    with pytest.raises(ValueError, match=r"expected one that ends in \.jsonl or \.parquet"):
        read_episodes(tmp_path / "episodes.csv")
    (tmp_path / "bad.parquet").write_text("x")
    with pytest.raises(ValueError, match=r"bad\.parquet is no table"):
        read_episodes(tmp_path / "bad.parquet")


def test_full_disk_says_what_is_kept(make_episode: Make, tmp_path: Path) -> None:
    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            pass

    writer = EpisodeWriter(tmp_path / "part.jsonl")
    writer.append(make_episode("a"))
    writer._file.close()
    writer._file = Full()  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space") as caught:
        writer.append(make_episode("b"))
    assert "the 1 before it are kept" in caught.value.__notes__[0]


def test_failed_write_leaves_the_old_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json_atomic(path, {"value": 1.0})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json_atomic(path, {"value": float("nan")})
    assert json.loads(path.read_text()) == {"value": 1.0}
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_results_win_over_errors_when_files_are_joined(make_episode: Make) -> None:
    good, error = make_episode("a"), make_episode("a", ending="error")
    later = make_episode("a", answer="SUPPORT")
    assert merge_episodes([(0, error), (0, good), (1, good), (1, error), (2, good), (2, later)]) == {
        0: good,
        1: good,
        2: later,
    }
