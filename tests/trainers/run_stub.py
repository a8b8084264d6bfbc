"""A stand-in for the command of a training run, and how a grid of runs is told to use it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from provgym.trainers import run_grid

# A stand-in for a training run: copies finished files into place, or fails while a file FAIL-NAME stands.
STUB = """
import json, pathlib, shutil, sys
import yaml
config = yaml.safe_load(pathlib.Path(sys.argv[2]).read_text())
finished = pathlib.Path(sys.argv[1])
name, runs = config["name"], pathlib.Path(config["runs_dir"])
with (finished / "launched.txt").open("a") as file:
    file.write(name + "\\n")
if (finished / f"FAIL-{name}").exists():
    sys.exit(3)
shutil.copytree(finished / name, runs / name, dirs_exist_ok=True)
"""


def launch_stub(finished: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let runs be played by the stand-in; returns the file that lists what was launched."""
    (finished / "stub.py").write_text(STUB)

    def command(trainer: str, config_file: Path, accelerate: Path | None) -> list[str]:
        return [sys.executable, str(finished / "stub.py"), str(finished), str(config_file)]

    monkeypatch.setattr(run_grid, "command_of", command)
    file = finished / "launched.txt"
    file.write_text("")
    for mark in finished.glob("FAIL-*"):
        mark.unlink()
    return file
