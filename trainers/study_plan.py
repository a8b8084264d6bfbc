"""From a study to its runs: the grid, the checks that make arms comparable, what is finished and what it may take."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from provgym.trainers.checkpoints import whole_checkpoints
from provgym.trainers.config_file import ConfigError, Given, load_with
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.run_grid import PlannedRun, duration, is_finished
from provgym.trainers.study_config import Point, StudyConfig, given_by

OWN_KEYS = ("name", "seed", "runs_dir")
"""Keys of a run that the study decides."""


@dataclass(frozen=True)
class Cell:
    """An arm at one point of the axes, under every seed.

    Attributes:
        arm: Name of the arm.
        point: (key, value) of each axis.
        changes: Dotted keys to values, of the arm and the point together.
        runs: One per seed, in the order of the seeds.
    """

    arm: str
    point: Point
    changes: Mapping[str, Any]
    runs: tuple[PlannedRun[PaptConfig], ...]

    @property
    def label(self) -> str:
        """Arm and point, as tables show it."""
        return label_of(self.arm, self.point)

    @property
    def config(self) -> PaptConfig:
        """The configuration of its first seed."""
        return self.runs[0].config

    @property
    def episodes(self) -> int:
        """Training episodes of one run: steps x instances x trajectories."""
        optim = self.config.optim
        return self.config.total_steps * optim.groups_per_step * optim.group_size


def label_of(arm: str, point: Point) -> str:
    """Return the name of a cell.

    Example:
        >>> label_of("full", (("walk.mitigation", "M0"), ("evaluation.budget", 3)))
        'full, mitigation=M0, budget=3'
    """
    return ", ".join([arm, *(f"{key.rsplit('.', 1)[-1]}={value}" for key, value in point)])


def plan_study(study: StudyConfig, path: Path, overrides: Sequence[Given] = ()) -> list[Cell]:
    """Return the study's cells, point by point, arm by arm.

    Args:
        study: What is asked for.
        path: Its file, for messages.
        overrides: Put on every run, over the arms; from the command line.

    Raises:
        ConfigError: If a change is refused, two cells are the same training, or cells cannot be compared: other
            numbers of steps or episodes, other evaluations. The message names the arms.
    """
    cells = []
    for point in study.points():
        for arm in study.arms:
            values = [*given_by(study, path, arm, point), *overrides]
            for value in values:
                if value.key.split(".")[0] in OWN_KEYS:
                    raise ConfigError(f"{value}: is decided by the study; set the study's own seeds, name or runs_dir")
            cells.append(_cell(study, load_with(PaptConfig, study.base, values), arm, point))
    _check_names(cells, path)
    _check_trainings_differ(cells, path)
    if not study.allow_different_budgets:
        _check_budgets(cells, path)
    _check_evaluations(study, cells, path)
    return cells


def reuse_finished(cells: Sequence[Cell], folders: Sequence[Path]) -> list[Cell]:
    """Let finished runs elsewhere stand for planned ones that are the same training, measured the same way.

    Args:
        cells: The plan.
        folders: Folders of run folders, such as ``runs``.

    Raises:
        ConfigError: If a folder does not exist.
    """
    found: dict[tuple[str, str], Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"--reuse {folder} is no folder; expected one that holds run folders, such as runs")
        for summary in sorted(folder.glob("*/summary.json")):
            key = _what_was_measured(summary)
            if key is not None:
                found.setdefault(key, summary.parent)
    return [_with_runs(cell, [_reused(run, found) for run in cell.runs]) for cell in cells]


def describe_plan(cells: Sequence[Cell], jobs: int) -> list[str]:
    """Return what would run, a line per run, and how long it may take by the runs that are finished."""
    lines, seconds, missing = [], [], 0
    for cell in cells:
        for run in cell.runs:
            state = "to do"
            if is_finished(run):
                state = "finished"
                seconds.append(_seconds_of(run))
            else:
                missing += 1
                steps = [found.step for found in whole_checkpoints(run.run_dir / "checkpoints")]
                state = f"goes on from step {steps[-1]} of {run.config.total_steps}" if steps else state
            lines.append(f"{run.run_dir}  {cell.label}, seed {run.seed}: {state}")
    total = sum(len(cell.runs) for cell in cells)
    known = [s for s in seconds if s is not None]
    if not missing:
        cost = "nothing to do"
    elif known:
        each = median(known)
        cost = f"about {duration(each * missing / jobs)} ({duration(each)} a run, by {len(known)} finished)"
    else:
        cost = "no finished run to estimate the time from"
    return [*lines, f"{total} runs: {total - missing} finished, {missing} to do, {cost}"]


def _cell(study: StudyConfig, config: PaptConfig, arm: str, point: Point) -> Cell:
    stem = "-".join([study.name, arm, *(f"{key.rsplit('.', 1)[-1]}-{_slug(value)}" for key, value in point)])
    label = label_of(arm, point)
    runs_dir = study.folder / "runs"
    runs = tuple(
        PlannedRun(label, config.model_copy(update={"name": f"{stem}-s{seed}", "seed": seed, "runs_dir": runs_dir}))
        for seed in study.seeds
    )
    return Cell(arm, point, {**study.arms[arm], **dict(point)}, runs)


def _slug(value: Any) -> str:
    return re.sub(r"[^\w.]+", "_", str(value)).strip("_")


def _with_runs(cell: Cell, runs: Sequence[PlannedRun[PaptConfig]]) -> Cell:
    return Cell(cell.arm, cell.point, cell.changes, tuple(runs))


def _check_names(cells: Sequence[Cell], path: Path) -> None:
    names: dict[str, str] = {}
    for cell in cells:
        other = names.setdefault(cell.config.name, cell.label)
        if other != cell.label:
            raise ConfigError(f"{path}: {other!r} and {cell.label!r} would share the folder {cell.config.name}")


def _check_trainings_differ(cells: Sequence[Cell], path: Path) -> None:
    from provgym.trainers.papt import training_hash  # here, because it imports TRL

    seen: dict[tuple[str, str], str] = {}
    for cell in cells:
        evaluation = cell.config.evaluation.model_dump_json()
        other = seen.setdefault((training_hash(cell.config), evaluation), cell.label)
        if other != cell.label:
            raise ConfigError(f"{path}: {other!r} and {cell.label!r} come to the same run; drop one of them")


def _check_budgets(cells: Sequence[Cell], path: Path) -> None:
    first = cells[0]
    for cell in cells:
        if (cell.config.total_steps, cell.episodes) != (first.config.total_steps, first.episodes):
            raise ConfigError(
                f"{path}: {first.label!r} trains {first.config.total_steps} steps on {first.episodes} episodes, "
                f"{cell.label!r} {cell.config.total_steps} steps on {cell.episodes}; give every arm the same, or set "
                "allow_different_budgets: true"
            )


def _check_evaluations(study: StudyConfig, cells: Sequence[Cell], path: Path) -> None:
    """Arms are compared on the same test claims; points of the axes are not compared with each other."""
    for cell in cells:
        first = next(c for c in cells if (c.arm, c.point) == (study.reference, cell.point))
        here, there = (_test_set(c.config) for c in (cell, first))
        changed = [key for key in here if here[key] != there[key]]
        if changed:
            key = changed[0]
            raise ConfigError(
                f"{path}: {cell.label!r} is measured with {key} {here[key]!r}, {first.label!r} with {there[key]!r}; "
                "arms must be measured on the same test claims, shown alike, or their differences mean nothing"
            )


def _test_set(config: PaptConfig) -> dict[str, Any]:
    """Return what decides the final evaluation: its instances, and how they are shown."""
    data = config.data.model_dump(mode="json", include={"claims", "seed", "train_claims", "dev_claims", "test_claims"})
    evaluation = config.evaluation.model_dump(mode="json", exclude={"max_rows"})
    walk = config.walk.model_dump(mode="json", include={"mitigation", "source_labels", "preview_ids", "moves"})
    sections = {"data": data, "evaluation": evaluation, "walk": walk}
    return {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}


def _what_was_measured(summary: Path) -> tuple[str, str] | None:
    """Return a finished run's training hash and evaluation; None if the folder holds something else."""
    config = summary.parent / "config.yaml"
    try:
        stored = json.loads(summary.read_text(encoding="utf-8"))
        return str(stored["training_hash"]), load_with(PaptConfig, config, ()).evaluation.model_dump_json()
    except (ValueError, KeyError, TypeError):
        return None


def _reused(run: PlannedRun[PaptConfig], found: Mapping[tuple[str, str], Path]) -> PlannedRun[PaptConfig]:
    from provgym.trainers.papt import training_hash  # here, because it imports TRL

    if run.run_dir.exists():
        return run
    folder = found.get((training_hash(run.config), run.config.evaluation.model_dump_json()))
    if folder is None:
        return run
    return PlannedRun(run.label, run.config.model_copy(update={"name": folder.name, "runs_dir": folder.parent}))


def _seconds_of(run: PlannedRun[PaptConfig]) -> float | None:
    stored = json.loads((run.run_dir / "summary.json").read_text(encoding="utf-8"))
    seconds = stored.get("seconds_this_segment")
    return float(seconds) if isinstance(seconds, int | float) else None
