"""A run folder with damaged files: each is named with what was found and a way out, or made anew; never a traceback."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.trainers.kgat_runs import make_config, segment, shared_world

from provgym.eval.run_files import read_json_file
from provgym.generators.json_lines import BadFileError
from provgym.trainers import kgat
from provgym.trainers.checkpoints import MARKER, whole_checkpoints
from provgym.trainers.config_file import ConfigError, changed_keys, dump_config
from provgym.trainers.kgat_config import KgatConfig
from provgym.trainers.kgat_costs import mining_totals
from provgym.trainers.kgat_dev import read_dev_figures
from provgym.trainers.kgat_planted import read_world
from provgym.trainers.kgat_state import RoundFolder
from provgym.trainers.wandb_mirror import identify

DAMAGES = {
    "empty": b"",
    "half": b'{"figures": {"score": 0.',
    "other list": b"[]",
    "other dict": b"{}",
    "null": b"null",
    "no text": b"\xff\xfe\x00",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> KgatConfig:
    """A trained run; tests damage copies of it."""
    config = make_config(tmp_path_factory.mktemp("damage"))
    segment(config)
    (config.run_dir / "config.yaml").write_text(dump_config(config))
    return config


@pytest.fixture
def copied(finished: KgatConfig, tmp_path: Path) -> KgatConfig:
    """A copy of the trained run."""
    config = make_config(tmp_path)
    shutil.copytree(finished.run_dir, config.run_dir)
    (config.run_dir / "config.yaml").write_text(dump_config(config))
    return config


def readers(config: KgatConfig) -> dict[str, Callable[[], Any]]:
    """File in the run's folder to what reads it."""
    folder, ids = RoundFolder(config.run_dir, 0), shared_world().splits["train"].seen.task_ids
    return {
        "rounds/round-00/dev.json": lambda: read_dev_figures(folder.dev_file),
        "rounds/round-00/mining.json": lambda: mining_totals(config, {}),
        "rounds/round-00/calls.json": folder.read_calls,
        "rounds/round-00/proposals.json": lambda: folder.read_proposals(ids),
        "rounds/round-00/proposals.jsonl": lambda: folder.read_proposals(ids),
        "rounds/round-00/targets.jsonl": lambda: folder.read_targets(ids),
        "wandb_run.json": lambda: identify(config.run_dir, "hash", "disabled", None),
        "planted.json": lambda: read_world(config.run_dir / "planted.json", {}),
    }


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damaged_file_is_named_with_a_way_out(copied: KgatConfig, damage: str) -> None:
    """Kind: incomplete checkpoints, and their neighbours: any file of a run, cut or of other content."""
    for name, read in readers(copied).items():
        path = copied.run_dir / name
        whole = path.read_bytes() if path.is_file() else b""
        path.write_bytes(DAMAGES[damage])
        with pytest.raises(BadFileError) as told:
            read()
        assert str(path) in str(told.value)
        assert any(way in str(told.value) for way in ("remove", "put the file back", "--fresh"))
        path.write_bytes(whole)


def test_a_missing_half_of_the_proposals_is_named(copied: KgatConfig) -> None:
    folder = RoundFolder(copied.run_dir, 0)
    (folder.path / "proposals.json").unlink()
    with pytest.raises(BadFileError, match=r"proposals.json: found no such file, expected .*; remove the round"):
        folder.read_proposals(shared_world().splits["train"].seen.task_ids)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_with_a_damaged_marker_is_not_whole(copied: KgatConfig, damage: str) -> None:
    """Kind: incomplete checkpoints: the last whole one with a warning."""
    folder = copied.run_dir / "checkpoints"
    newest = whole_checkpoints(folder)[-1]
    (newest.path / MARKER).write_bytes(DAMAGES[damage])
    left = whole_checkpoints(folder)
    assert [c.step for c in left] == [6]
    with pytest.warns(
        UserWarning, match=r"checkpoint-12 was left half-written .*, or is damaged.* resumes from checkpoint-6"
    ):
        trainer = segment(copied)
    assert trainer is not None
    assert whole_checkpoints(folder)[-1].step == 12


@pytest.mark.parametrize("damage", ["empty", "half", "other list", "null", "no text"])
def test_a_damaged_saved_configuration_is_no_list_of_changes(copied: KgatConfig, damage: str) -> None:
    path = copied.run_dir / "config.yaml"
    path.write_bytes(DAMAGES[damage])
    with pytest.raises(ConfigError, match=r"(?s)config.yaml.*put the file back .*--fresh"):
        changed_keys(path, copied, except_for=kgat.NOT_TRAINING)


def test_a_log_line_without_a_step_is_named(copied: KgatConfig) -> None:
    path = copied.run_dir / "metrics.jsonl"
    path.write_bytes(b"{}\n" + path.read_bytes())
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 1: found 'nothing' as 'step', expected a whole number"):
        segment(copied)


def test_what_is_built_decides_what_is_other_data(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}')
    assert read_json_file(path, lambda d: d["a"], expected="x", way_out="y") == 1
    with pytest.raises(BadFileError, match=r"a.json: found no key 'b', expected x; y"):
        read_json_file(path, lambda d: d["b"], expected="x", way_out="y")
