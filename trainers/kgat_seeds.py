"""The same K-GAT configuration under several seeds: one run after the other, then one result.

``provgym kgat-seeds --config configs/kgat/simulated.yaml`` trains seeds 42 to 46 as ``runs/kgat-simulated-s42`` ... and
pools them in ``runs/kgat-simulated-seeds``. Each run is a process of its own. Finished runs are skipped and an
interrupted one goes on where it stopped, so the same command given again does what is missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from provgym.eval.run_files import write_atomic, write_json_atomic
from provgym.eval.table import print_tables
from provgym.eval.topology_names import KGAT
from provgym.eval.walk_config import config_hash
from provgym.trainers.command_line import exit_status_of
from provgym.trainers.config_file import ConfigError, changed_keys, load_config
from provgym.trainers.grid_arguments import (
    GOES_ON,
    check_seeds,
    grid_options,
    run_and_pool,
    seeds_in,
    seeds_parser,
)
from provgym.trainers.kgat_config import KgatConfig
from provgym.trainers.kgat_seed_summary import PooledRuns, draw_pooled, pool_runs, read_run
from provgym.trainers.run_grid import PlannedRun


def plan_runs(config: KgatConfig, seeds: Sequence[int]) -> list[PlannedRun[KgatConfig]]:
    """Return the runs, seed by seed.

    Args:
        config: What is common to all runs; its own seed is not used.
        seeds: At least two distinct ones.

    Raises:
        ConfigError: If seeds can't be pooled over, or ``kgat`` itself is not evaluated.
    """
    check_seeds(seeds)
    played = config.evaluation.played_methods()
    if KGAT not in played:
        raise ConfigError(
            f"evaluation.methods {','.join(played)} leaves {KGAT} out, which seeds are pooled for; add it"
        )
    return [
        PlannedRun(KGAT, config.model_copy(update={"name": f"{config.name}-s{seed}", "seed": seed})) for seed in seeds
    ]


def refuse_other_evaluations(runs: Sequence[PlannedRun[KgatConfig]]) -> None:
    """Refuse finished runs that were measured in another way than the plan says: they would pass for what it says.

    Raises:
        ConfigError: If there is one; the message names its keys.
    """
    for run in runs:
        if not (run.run_dir / "summary.json").is_file():
            continue
        changes = changed_keys(run.run_dir / "config.yaml", run.config)
        changes = [change for change in changes if change.startswith("evaluation.")]
        if changes:
            raise ConfigError(
                f"{run.run_dir} was evaluated with other settings; changed: {', '.join(changes)}. Remove its "
                "summary.json and eval/ to have it evaluated anew without training it again, or give this plan another "
                "name"
            )


def summarise_seeds(config: KgatConfig, runs: Sequence[PlannedRun[KgatConfig]], folder: Path) -> PooledRuns:
    """Pool finished runs, write ``summary.json``, ``results.md`` and ``plots/``, and print the tables.

    Raises:
        FileNotFoundError: If a run left no summary or evaluation.
        ValueError: If a file is damaged, or the runs can't be pooled.
        OSError: If the folder can't be written.
    """
    result = pool_runs([read_run(run.run_dir, run.seed) for run in runs])
    hash_ = config_hash(config)
    write_json_atomic(folder / "summary.json", {"name": config.name, "config_hash": hash_} | result.to_json())
    tables = result.tables()
    lines = [f"## {config.name}, configuration {hash_}\n", f"{result.headline()}\n"]
    notes = "".join(f"- {note}\n" for note in result.notes)
    text = "\n".join([*lines, *(table.to_markdown() for table in tables), *([notes] if notes else [])])
    write_atomic(folder / "results.md", [text.encode()])
    draw_pooled(result, folder / "plots")
    print(result.headline())
    print_tables(tables)
    for note in result.notes:
        print(f"- {note}")
    print(f"\n{folder}/summary.json, {folder}/results.md, {folder}/plots/")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and run; returns the exit status: 0, 1 if a run failed, 2 if refused, 130 interrupted."""
    example = "provgym kgat-seeds --config configs/kgat/simulated.yaml --seeds 42,43,44"
    parser = seeds_parser("provgym kgat-seeds", __doc__, example, kind="K-GAT")
    known, overrides = parser.parse_known_args(arguments)
    return exit_status_of(lambda: _run_plan(known, overrides), goes_on=GOES_ON)


def _run_plan(known: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(KgatConfig, known.config, overrides)
    options = grid_options(known)
    runs = plan_runs(config, seeds_in(known.seeds, "give whole numbers, such as 42,43"))
    folder = config.runs_dir / f"{config.name}-seeds"
    refuse_other_evaluations(runs)
    return run_and_pool(runs, folder, options, lambda: summarise_seeds(config, runs, folder))


if __name__ == "__main__":
    sys.exit(main())
