"""A K-GAT run's checkpoints: weights and optimiser, nothing else, for every step derives its random numbers."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from provgym.eval.run_files import read_json_file, write_json_atomic
from provgym.generators.kgat_folder import WEIGHTS_FILE, load_weights, save_weights
from provgym.generators.kgat_model import KgatModel
from provgym.trainers.checkpoints import MARKER, Checkpoint, Origin, mark_complete, whole_checkpoints

OPTIMIZER_FILE, NOTES_FILE = "optimizer.pt", "notes.json"


def save_checkpoint(
    folder: Path,
    step: int,
    model: KgatModel,
    optimizer: torch.optim.Optimizer,
    origin: Origin,
    notes: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint; it counts once its marker, written last, stands.

    Args:
        folder: Of the run's checkpoints.
        step: Optimiser steps done.
        model: The generator.
        optimizer: Of its parameters.
        origin: What the checkpoint belongs to.
        notes: Whatever else decides how training goes on, for :func:`read_notes`.

    Raises:
        OSError: If the disk is full; a note on the error says what to do.
    """
    path = folder / f"checkpoint-{step}"
    try:
        shutil.rmtree(path, ignore_errors=True)  # what a kill left of an earlier try
        path.mkdir(parents=True)
        save_weights(path / WEIGHTS_FILE, model)
        torch.save(optimizer.state_dict(), path / OPTIMIZER_FILE)
        write_json_atomic(path / NOTES_FILE, dict(notes or {}))
        mark_complete(path, step, origin)
    except OSError as error:
        error.add_note(f"checkpoint {step} could not be written to {folder}; free space, then the same command again")
        raise
    return path


def load_checkpoint(path: Path, model: KgatModel, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Load a checkpoint into a generator of the same shape, and into its optimiser if there is one.

    Args:
        path: Folder of the checkpoint.
        model: Gets the weights.
        optimizer: Gets the state of the one that was saved; None leaves it unread.

    Raises:
        FileNotFoundError: If the folder holds no weights.
        ValueError: If they are of another shape.
    """
    load_weights(model, path / WEIGHTS_FILE)
    if optimizer is not None:
        optimizer.load_state_dict(torch.load(path / OPTIMIZER_FILE, weights_only=True))


def read_notes(path: Path) -> dict[str, Any]:
    """Return what a checkpoint was saved with beside weights and optimiser.

    Raises:
        BadFileError: If the file is damaged.
        OSError: If it can't be read.
    """
    way_out = f"remove {path.name}, and the run goes on from the checkpoint before"
    found: dict[str, Any] = read_json_file(path / NOTES_FILE, dict, expected="a checkpoint's notes", way_out=way_out)
    return found


def drop_passed(folder: Path, steps_per_round: int) -> None:
    """Delete checkpoints within rounds that a newer checkpoint has made useless; ends of rounds stay.

    A kill in the middle leaves a folder without marker, never one that looks whole.
    """
    found: list[Checkpoint] = whole_checkpoints(folder)
    for checkpoint in found[:-1]:
        if checkpoint.step % steps_per_round:
            (checkpoint.path / MARKER).unlink()
            shutil.rmtree(checkpoint.path)
