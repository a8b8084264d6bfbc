"""Which checkpoints count, which is resumed from, which are deleted, which is chosen."""

from __future__ import annotations

import math
import os
import shutil
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provgym.trainers.checkpoints import (
    MARKER,
    Origin,
    choose_checkpoint,
    find_resume_point,
    mark_complete,
    prune_checkpoints,
    whole_checkpoints,
)

ORIGIN = Origin(config_hash="abc", wandb_id="id1", world_size=1)


def save(folder: Path, step: int, *, is_whole: bool = True) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"weights")
    (path / "optimizer.pt").write_bytes(b"moments")
    if is_whole:
        mark_complete(path, step, ORIGIN)
    return path


def steps(folder: Path) -> list[int]:
    return [c.step for c in whole_checkpoints(folder)]


def test_order_is_by_number(tmp_path: Path) -> None:
    """Kind: incomplete or mis-sorted checkpoints (step_900 and step_1000: 1000 is newest, whatever the clock says)."""
    for step in (1000, 900, 20):
        save(tmp_path, step)
    os.utime(tmp_path / "checkpoint-20", (2e9, 2e9))
    assert steps(tmp_path) == [20, 900, 1000]
    found = find_resume_point(tmp_path, "abc")
    assert found is not None
    assert found.step == 1000
    assert found.path == tmp_path / "checkpoint-1000"
    assert found.origin == ORIGIN


def test_nothing_to_resume_from(tmp_path: Path) -> None:
    assert find_resume_point(tmp_path, "abc") is None
    assert find_resume_point(tmp_path / "absent", "abc") is None


def test_half_written_checkpoint(tmp_path: Path) -> None:
    """Kind: incomplete or mis-sorted checkpoints (newest lacks its state: the last whole one, with a warning)."""
    save(tmp_path, 10)
    save(tmp_path, 20, is_whole=False)
    with pytest.warns(UserWarning, match=r"checkpoint-20 was left half-written.*resumes from checkpoint-10"):
        found = find_resume_point(tmp_path, "abc")
    assert found is not None
    assert found.step == 10
    assert not (tmp_path / "checkpoint-20").exists()


def test_only_a_half_written_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 20, is_whole=False)
    with pytest.warns(UserWarning, match="resumes from the start"):
        assert find_resume_point(tmp_path, "abc") is None


@pytest.mark.parametrize("damage", ["missing", "cut", "longer"])
def test_marked_checkpoint_whose_files_changed(tmp_path: Path, damage: str) -> None:
    """A copy that lost or cut a file still has its marker; it is not resumed from."""
    save(tmp_path, 10)
    file = save(tmp_path, 20) / "optimizer.pt"
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(b"mom" if damage == "cut" else b"moments moments")
    assert steps(tmp_path) == [10]


def test_other_names_are_no_checkpoints(tmp_path: Path) -> None:
    for name in ("checkpoint-", "checkpoint-x", "checkpoint-5-old", "xcheckpoint-5"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MARKER).write_text("{}")
    assert steps(tmp_path) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_resume_point(tmp_path, "abc") is None
    assert len(list(tmp_path.iterdir())) == 4, "nobody else's folder is touched"


def test_other_configuration_is_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path, 10)
    save(tmp_path, 20, is_whole=False)
    with pytest.raises(ValueError, match=r"checkpoint-10 .*abc, this run has xyz; changed: optim.clip: 0.2 -> 0.3"):
        find_resume_point(tmp_path, "xyz", ["optim.clip: 0.2 -> 0.3"])
    assert (tmp_path / "checkpoint-20").exists(), "nothing is deleted for a run that is refused"


def test_folder_can_be_moved(tmp_path: Path) -> None:
    """Kind: resume makes a new run (folder moved: still resumes)."""
    save(tmp_path / "here", 10)
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    found = find_resume_point(tmp_path / "there", "abc")
    assert found is not None
    assert found.path == tmp_path / "there" / "checkpoint-10"


@pytest.mark.parametrize(
    ("keep", "left"), [(1, [1000]), (2, [900, 1000]), (3, [20, 900, 1000]), (7, [20, 900, 1000]), (-1, [20, 900, 1000])]
)
def test_pruning(tmp_path: Path, keep: int, left: list[int]) -> None:
    """Kind: incomplete or mis-sorted checkpoints (keep = -1 deletes nothing)."""
    for step in (20, 900, 1000):
        save(tmp_path, step)
    prune_checkpoints(tmp_path, keep)
    assert steps(tmp_path) == left
    assert len(list(tmp_path.iterdir())) == len(left)


def test_pruning_counts_whole_checkpoints_only(tmp_path: Path) -> None:
    for step in (10, 20):
        save(tmp_path, step)
    save(tmp_path, 30, is_whole=False)
    prune_checkpoints(tmp_path, 2)
    assert steps(tmp_path) == [10, 20]


def test_kill_during_pruning_leaves_nothing_that_looks_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (10, 20):
        save(tmp_path, step)

    def killed(path: Path) -> None:
        (path / "optimizer.pt").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        prune_checkpoints(tmp_path, 1)
    assert steps(tmp_path) == [20]


@given(st.sets(st.integers(0, 10_000), min_size=1, max_size=6), st.integers(1, 7))
def test_pruning_keeps_the_newest(tmp_path_factory: pytest.TempPathFactory, saved: set[int], keep: int) -> None:
    folder = tmp_path_factory.mktemp("run")
    for step in saved:
        save(folder, step)
    prune_checkpoints(folder, keep)
    assert steps(folder) == sorted(saved)[-keep:]


def test_choice_by_metric() -> None:
    """NaN never wins, in either direction; a tie goes to the later step."""
    scores = {20: 0.5, 40: math.nan, 60: 0.7, 80: 0.7}
    assert choose_checkpoint(scores, "max") == 80
    assert choose_checkpoint(scores, "min") == 20
    assert choose_checkpoint({1: -math.inf, 2: math.nan}, "max") == 1


def test_choice_without_a_score() -> None:
    with pytest.raises(ValueError, match="no checkpoint has a usable score"):
        choose_checkpoint({20: math.nan}, "max")
    with pytest.raises(ValueError, match="no checkpoint has a usable score"):
        choose_checkpoint({}, "max")
