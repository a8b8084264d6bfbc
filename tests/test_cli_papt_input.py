"""``provgym papt`` on requests that cannot be met: found before anything is thrown away, trained or written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

Refusal = Callable[..., str]
CONFIG = Path(__file__).resolve().parent.parent / "src" / "provgym" / "configs" / "papt" / "tiny.yaml"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--seed x", "key 'seed'"),
        ("--seed -1", "key 'seed': Input should be greater than or equal to 0; found -1"),
        ("--seed 4294967296", "key 'seed': Input should be less than or equal to 4294967295; found 4294967296"),
        ("--optim.learning_rate .inf", "key 'optim.learning_rate': Input should be a finite number; found inf"),
        ("--optim.temperature .inf", "key 'optim.temperature': Input should be a finite number; found inf"),
        ("--optim.group_size 1", "greater than or equal to 2; found 1"),
        ("--optim.learning_rate no", "key 'optim.learning_rate'.*found 'no'"),
        ("--optim.learing_rate 1e-5", "did you mean 'optim.learning_rate'"),
        ("--name ../x", "key 'name'"),
        ("--data.conditions [C9]", "condition 'C9' is unknown"),
        ("--walk.budgets [0]", "from 1 to 10000"),
        ("--seed", "--seed lacks a value"),
        ("seed 3", "expected --key value, found 'seed'"),
        ("--phases.0.weights_to {echo:-1.0}", "YAML needs a space after a colon: 'echo: -1.0'"),
        ("--walk.presentations [{aliases:shuffled}]", "YAML needs a space after a colon: 'aliases: shuffled'"),
        ("--checkpoints.keep 1", "keep=1 is below select_last"),
        ("--seed x --name ../x", "key 'name'.*; .*key 'seed'"),
    ],
)
def test_overrides_that_are_refused(refusal: Refusal, tmp_path: Path, words: str, said: str) -> None:
    """Kind: config typing (stops at load; names key, place and expectation; all problems in one line)."""
    line = refusal("papt", "--config", str(CONFIG), *words.split())
    assert re.search(said, line), line
    assert "command line" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--model.path nowhere", "nowhere holds no tiny policy"),
        ("--model.kind hf --model.path .", "folder '.' holds no model"),
        ("--model.adapter nowhere", "nowhere holds no adapter"),
        ("--data.claims empty.jsonl", "empty.jsonl: holds no claim, expected at least one line"),
        ("--data.claims nowhere.jsonl", "nowhere.jsonl does not exist"),
        ("--evaluation.conditions [C9]", "condition 'C9' is unknown"),
        ("--checkpoints.dev_conditions [C9]", "condition 'C9' is unknown"),
        ("--generation.max_length 99999", r"generation.max_length=99999 must lie in \[1, 2048\]"),
        ("--optim.micro_batch 7", "must split evenly over 1 processes and micro_batch=7; try micro_batch=1"),
        ("--num_processes 3", "num_processes asks for 3 processes, but 1 take part"),
    ],
)
def test_fresh_throws_nothing_away_for_a_run_that_cannot_begin(
    refusal: Refusal, tmp_path: Path, words: str, said: str
) -> None:
    """What is missing is found before an earlier run of that name goes, and before hours of training."""
    (tmp_path / "empty.jsonl").touch()
    earlier = tmp_path / "runs" / "papt-tiny" / "checkpoints"
    earlier.mkdir(parents=True)
    line = refusal("papt", "--config", str(CONFIG), "--fresh", *words.split())
    assert re.search(said, line), line
    assert [path.name for path in earlier.parent.iterdir()] == ["checkpoints"]


def test_half_an_option_throws_nothing_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start of an option's name is not the option."""
    from provgym.trainers.papt import main

    monkeypatch.chdir(tmp_path)
    earlier = tmp_path / "runs" / "papt-tiny" / "checkpoints"
    earlier.mkdir(parents=True)
    assert main(["--config", str(CONFIG), "--fres", "x"]) == 2
    assert earlier.is_dir()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("papt-seeds --seeds -1,42", "--seeds -1,42: expected whole numbers from 0 to 4294967295"),
        ("papt-seeds --seeds 42,4294967296", "--seeds 42,4294967296: expected whole numbers from 0 to 4294967295"),
        ("papt-seeds --variants -x", "--variants -x: unknown"),
        ("papt-seeds --optim.clip -1 --optim.group_size 1", "optim.group_size.*; command line: key 'optim.clip'"),
        ("papt-seeds --variants ,", "--variants ',' names nothing; choose from full,"),
        ("study --arms ,", "--arms ',' names nothing; leave it out"),
        ("study --seeds ,", "--seeds ',' names nothing; leave it out"),
        ("study --seeds -1,42", "at least two distinct whole numbers from 0 to 4294967295"),
        ("study --seeds 42,4294967296", "at least two distinct whole numbers from 0 to 4294967295"),
        ("study --arms -x", "--arms -x: .* has no such arm"),
        ("study --optim.clip -1 --optim.group_size 1", "optim.group_size.*; command line: key 'optim.clip'"),
    ],
)
def test_grids_refuse_in_one_line_and_start_nothing(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, words: str, said: str
) -> None:
    """A value that begins with a dash is a value, and several problems are one line."""
    command, *rest = words.split()
    file = CONFIG.parent.parent / "studies" / "papt-ablations.yaml" if command == "study" else CONFIG
    status, out, complaint = run(command, "--config", str(file), *rest)
    assert (status, out) == (2, "")
    (line,) = complaint.splitlines()
    assert line.startswith("error: ")
    assert re.search(said, line), line
    assert list(tmp_path.iterdir()) == []


def test_a_run_in_progress_is_left_alone(refusal: Refusal, tmp_path: Path) -> None:
    """Its study may have been killed, and the same command given again, while the run itself lives on."""
    earlier = tmp_path / "runs" / "papt-tiny" / "checkpoints"
    earlier.mkdir(parents=True)
    with FileLock(tmp_path / "runs" / ".papt-tiny.lock"):
        for words in ((), ("--fresh",)):
            line = refusal("papt", "--config", str(CONFIG), *words)
            assert "papt-tiny is being trained by another process that is still running; wait for it or end it" in line
    assert [path.name for path in earlier.parent.iterdir()] == ["checkpoints"]
