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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from provgym.eval.run_files import write_json_atomic

MARKER = "provgym_complete.json"
_NAME = re.compile(r"checkpoint-(\d+)")


class Origin(NamedTuple):
    """What a checkpoint belongs to.

    Attributes:
        config_hash: Of the configuration that made it.
        wandb_id: W&B run id.
        world_size: Processes that trained; each has a random state of its own in the checkpoint.
    """

    config_hash: str
    wandb_id: str
    world_size: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint.

    Attributes:
        step: Optimiser steps done.
        path: Its folder.
        origin: What it belongs to.
    """

    step: int
    path: Path
    origin: Origin


def mark_complete(path: Path, step: int, origin: Origin) -> None:
    """Declare a checkpoint folder whole, as it lies there: every file with its size."""
    sizes = {f.relative_to(path).as_posix(): f.stat().st_size for f in sorted(path.rglob("*")) if f.is_file()}
    write_json_atomic(path / MARKER, {"step": step, **origin._asdict(), "file_sizes": sizes})


def whole_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the whole checkpoints of a run, oldest first, by step number (step_1000 comes after step_900)."""
    found = [_read(path) for path in folder.glob("checkpoint-*")]
    return sorted((c for c in found if c is not None), key=lambda c: c.step)


def find_resume_point(folder: Path, config_hash: str, changes: Sequence[str] = ()) -> Checkpoint | None:
    """Return the newest whole checkpoint, after clearing away half-written ones.

    Args:
        folder: Where the run's checkpoints lie.
        config_hash: Of the configuration that wants to resume.
        changes: What is known to have changed in it, one ``key: old -> new`` each, for the message.

    Raises:
        ValueError: If the newest checkpoint was made under another configuration.
    """
    whole = whole_checkpoints(folder)
    if whole and whole[-1].origin.config_hash != config_hash:
        what = "; changed: " + ", ".join(changes) if changes else ""
        raise ValueError(
            f"{whole[-1].path} was made under configuration {whole[-1].origin.config_hash}, this run has "
            f"{config_hash}{what}. An exact resume needs the same configuration: choose another name, or start over "
            "with --fresh"
        )
    names = {c.path.name for c in whole}
    for path in sorted(folder.glob("checkpoint-*")):
        if _NAME.fullmatch(path.name) and path.name not in names:
            warnings.warn(
                f"{path} was left half-written by an interrupted run, or is damaged; it is removed, and the run "
                f"resumes from {whole[-1].path.name if whole else 'the start'}",
                stacklevel=2,
            )
            shutil.rmtree(path)
    return whole[-1] if whole else None


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Delete all but the newest ``keep`` whole checkpoints; -1 keeps all.

    A kill in the middle leaves a folder without marker, never one that looks whole.
    """
    if keep == -1:
        return
    for checkpoint in whole_checkpoints(folder)[: -max(1, keep)]:
        (checkpoint.path / MARKER).unlink()
        shutil.rmtree(checkpoint.path)


def _read(path: Path) -> Checkpoint | None:
    """Return the checkpoint in a folder; None if it is not one, or files are missing, cut or damaged."""
    name, marker = _NAME.fullmatch(path.name), path / MARKER
    if not name or not marker.is_file():
        return None
    try:
        data = json.loads(marker.read_text(encoding="utf-8"))
        sizes: dict[str, int] = dict(data["file_sizes"])
        origin = Origin(str(data["config_hash"]), str(data["wandb_id"]), int(data["world_size"]))
    except (ValueError, KeyError, TypeError):  # a marker that can't be read marks nothing
        return None
    for file, size in sizes.items():
        if not (path / file).is_file() or (path / file).stat().st_size != size:
            return None
    return Checkpoint(int(name.group(1)), path, origin)


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
