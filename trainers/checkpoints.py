"""Checkpoints: which are whole, which to resume from, and which one is chosen.

A checkpoint counts once its marker file exists; the marker is written last and atomically, so a folder that a kill
left half-written is never resumed from.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from provgym.eval.run_files import write_json_atomic

MARKER = "provgym_complete.json"
_NAME = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint.

    Attributes:
        step: Optimiser steps done.
        path: Its folder.
        config_hash: Hash of the configuration that made it.
        wandb_id: W&B run id that it belongs to.
    """

    step: int
    path: Path
    config_hash: str
    wandb_id: str


def mark_complete(path: Path, step: int, config_hash: str, wandb_id: str) -> None:
    """Declare a checkpoint folder whole."""
    write_json_atomic(path / MARKER, {"step": step, "config_hash": config_hash, "wandb_id": wandb_id})


def whole_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the whole checkpoints of a run, oldest first, by step number (step_1000 comes after step_900)."""
    found = []
    for path in folder.glob("checkpoint-*"):
        name = _NAME.fullmatch(path.name)
        marker = path / MARKER
        if name and marker.is_file():
            data = json.loads(marker.read_text(encoding="utf-8"))
            found.append(Checkpoint(int(name.group(1)), path, data["config_hash"], data["wandb_id"]))
    return sorted(found, key=lambda c: c.step)


def find_resume_point(folder: Path, config_hash: str) -> Checkpoint | None:
    """Return the newest whole checkpoint, after clearing away half-written ones.

    Args:
        folder: Where the run's checkpoints lie.
        config_hash: Of the configuration that wants to resume.

    Raises:
        ValueError: If the newest checkpoint was made under another configuration.
    """
    whole = whole_checkpoints(folder)
    names = {c.path.name for c in whole}
    for path in sorted(folder.glob("checkpoint-*")):
        if _NAME.fullmatch(path.name) and path.name not in names:
            warnings.warn(
                f"{path} was left half-written by an interrupted run; it is removed, and the run resumes from "
                f"{whole[-1].path.name if whole else 'the start'}",
                stacklevel=2,
            )
            shutil.rmtree(path)
    if not whole:
        return None
    if whole[-1].config_hash != config_hash:
        raise ValueError(
            f"{whole[-1].path} was made under configuration {whole[-1].config_hash}, this run has {config_hash}: "
            "an exact resume needs the same configuration; choose another name, or delete the run's folder"
        )
    return whole[-1]


def choose_checkpoint(scores: Mapping[int, float], direction: Literal["max", "min"]) -> int:
    """Return the step with the best score; NaN never wins, and a tie goes to the later step.

    Raises:
        ValueError: If there is no score that is a number.
    """
    usable = {step: score for step, score in scores.items() if not math.isnan(score)}
    if not usable:
        raise ValueError(f"no checkpoint has a usable score, found {dict(scores)}")
    sign = 1.0 if direction == "max" else -1.0
    return max(usable, key=lambda step: (sign * usable[step], step))
