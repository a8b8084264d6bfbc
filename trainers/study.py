"""A study: arms of one PAPT configuration under several seeds, then one table of what each arm changed.

``provgym study --config configs/studies/papt-ablations.yaml``

Finished runs are skipped and an interrupted one goes on from its last checkpoint, so the same command given again does
what is missing. ``--dry-run`` says what would run. Files go to ``runs/studies/NAME/``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from provgym.eval.forest_plot import plot_forest
from provgym.eval.metrics import HEADLINE
from provgym.eval.run_files import write_atomic, write_json_atomic
from provgym.eval.table import print_tables
from provgym.eval.walk_config import config_hash
from provgym.generators.writable_folder import check_writable
from provgym.trainers.command_line import OK, exit_status_of
from provgym.trainers.config_file import dump_config, parse_overrides
from provgym.trainers.grid_arguments import (
    GOES_ON,
    grid_options,
    names_in,
    new_parser,
    say_what_failed,
    seeds_in,
)
from provgym.trainers.run_config import RunConfig
from provgym.trainers.run_grid import PlannedRun, run_missing
from provgym.trainers.study_config import load_study
from provgym.trainers.study_plan import describe_plan, plan_study, reuse_finished
from provgym.trainers.study_results import StudyResult, collect
from provgym.trainers.study_tables import GROUPS, study_tables


def write_study(result: StudyResult, failed: Sequence[PlannedRun[RunConfig]] = ()) -> None:
    """Write ``summary.json``, ``report.md`` and ``plots/*.png``, and print the tables.

    Args:
        result: What is finished.
        failed: Runs that failed just now; named in the report.

    Raises:
        OSError: If the folder cannot be written.
    """
    study, folder = result.study, result.study.folder
    notes = _notes(result, failed)
    summary: dict[str, Any] = {
        "name": study.name,
        "seeds": list(study.seeds),
        "reference": study.reference,
        "config_hash": study_hash(result),
        "arms": {arm.label: arm.to_json() for arm in result.arms},
        "unfinished": {label: list(names) for label, names in result.unfinished.items()},
        "failed": [run.config.name for run in failed],
    }
    write_json_atomic(folder / "summary.json", summary)
    tables = study_tables(result)
    parts = [f"## {study.name}, configuration {summary['config_hash']}\n", *(f"- {note}\n" for note in notes)]
    write_atomic(folder / "report.md", ["\n".join([*parts, *(t.to_markdown() for t in tables)]).encode()])
    _draw(result, folder / "plots")
    print_tables(tables)
    for note in notes:
        print(f"note: {note}")
    print(f"\n{folder}/summary.json, {folder}/report.md, {folder}/plots/")


def study_hash(result: StudyResult) -> str:
    """Return 12 hexadecimal digits over how every run in the tables was trained and measured, whoever said so.

    The study's own file is not enough: its base file and words of the command line change the runs too.
    """
    no_place: dict[str, Any] = {"name": "run", "runs_dir": Path("runs")}
    runs = {
        arm.label: [config_hash(run.config.model_copy(update=no_place)) for run in arm.cell.runs] for arm in result.arms
    }
    return hashlib.sha256(json.dumps(runs, sort_keys=True).encode()).hexdigest()[:12]


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and run; returns the exit status: 0, 1 if a run failed, 2 if refused, 130 interrupted."""
    example = "provgym study --config configs/studies/papt-ablations.yaml --dry-run"
    parser = new_parser("provgym study", __doc__, example)
    parser.add_argument("--config", required=True, type=Path, help="YAML file of a study")
    parser.add_argument("--arms", default="", help="only these arms, by commas; the reference is always among them")
    parser.add_argument("--seeds", default="", help="in place of the file's, by commas")
    parser.add_argument("--reuse", type=Path, action="append", default=[], help="folder of finished runs; repeatable")
    parser.add_argument("--dry-run", action="store_true", help="say what would run, and stop")
    known, overrides = parser.parse_known_args(arguments)
    return exit_status_of(lambda: _run_study(known, overrides), goes_on=GOES_ON)


def _run_study(known: argparse.Namespace, overrides: Sequence[str]) -> int:
    options = grid_options(known)
    way_out = "leave it out, and all of the file's are taken"
    seeds = seeds_in(known.seeds, way_out)
    study = load_study(known.config, seeds=seeds, arms=names_in("--arms", known.arms, way_out))
    cells = reuse_finished(plan_study(study, known.config, parse_overrides(overrides)), known.reuse)
    if known.dry_run:
        print("\n".join(describe_plan(cells, options.jobs)))
        return OK
    check_writable(study.folder, "runs_dir")
    write_atomic(study.folder / "study.yaml", [dump_config(study).encode()])
    # Seed by seed: after the first seed every arm has a figure, and a study cut short is a whole one of fewer seeds.
    runs = [cell.runs[place] for place in range(len(study.seeds)) for cell in cells]
    failed = run_missing(runs, study.folder, jobs=options.jobs, accelerate=options.accelerate, stall_s=options.stall_s)
    write_study(collect(study, cells), failed)
    return say_what_failed(failed, len(runs), study.folder)


def _notes(result: StudyResult, failed: Sequence[PlannedRun[RunConfig]]) -> list[str]:
    notes = [f"run {run.config.name} failed" for run in failed]
    for label, names in result.unfinished.items():
        notes.append(f"arm {label!r} is left out: {', '.join(names)} not finished; never pooled over fewer seeds")
    if result.arms and not result.shares_start:
        notes.append("runs began from different weights: no common start is shown, gains are each run's own")
    return notes


def _draw(result: StudyResult, folder: Path) -> None:
    """Draw one forest plot per metric of the figures, and one of the differences to the reference."""
    if not result.arms:
        return
    first = result.arms[0].pooled
    for metric in HEADLINE:
        panels, gains, marks = {}, {}, {}
        for prefix, group in GROUPS:
            key, name = prefix + metric, f"{group} conditions"
            if key not in first.trained:
                continue
            panels[name] = {arm.label: arm.pooled.trained[key] for arm in result.arms}
            gains[name] = {arm.label: arm.to_reference[key].crossed for arm in result.arms if key in arm.to_reference}
            starts = [pooled.runs[0].estimates("start")[key] for _, pooled in result.first_at_points]
            marks[name] = [start.value for start in starts if result.shares_start and start.is_available]
        title = f"{metric.replace('_', ' ')}: mean over seeds, 95 % crossed interval, seeds as dots; dashed: start"
        plot_forest(panels, folder / f"{metric}.png", title=title, marks=marks)
        if any(gains.values()):
            title = f"{metric.replace('_', ' ')}: arm minus {result.study.reference}, 95 % crossed interval"
            zero = {name: [0.0] for name in gains}
            plot_forest(gains, folder / f"{metric}-to-reference.png", title=title, marks=zero)


if __name__ == "__main__":
    sys.exit(main())
