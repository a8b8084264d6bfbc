"""The same PAPT configuration under several seeds, and under several reward variants: one run after the other.

``provgym papt-seeds --config configs/papt/tiny.yaml`` trains seeds 42 to 46 as ``runs/papt-tiny-s42`` ... and pools
them in ``runs/papt-tiny-seeds``. Each run is a process of its own. Finished runs are skipped and an interrupted one
goes on from its last checkpoint, so the same command given again does what is missing.

``--variants full,no_echo,no_coverage,verdict_only`` trains each variant of the reward (in every phase) under each seed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from provgym.eval.run_files import write_atomic, write_json_atomic
from provgym.eval.table import print_tables
from provgym.eval.walk_config import config_hash
from provgym.rewards.rubric import Variant
from provgym.trainers.command_line import exit_status_of
from provgym.trainers.config_file import ConfigError, load_config
from provgym.trainers.grid_arguments import (
    GOES_ON,
    check_seeds,
    grid_options,
    names_in,
    run_and_pool,
    seeds_in,
    seeds_parser,
)
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.run_grid import PlannedRun
from provgym.trainers.seed_summary import PooledResult, pool, read_seed, seed_tables, variant_tables


def plan_runs(config: PaptConfig, seeds: Sequence[int], variants: Sequence[str] = ()) -> list[PlannedRun[PaptConfig]]:
    """Return the runs, variant by variant, seed by seed.

    A variant that leaves the phases as they are has no suffix in its name, so that its runs are shared with a plan
    without variants.

    Args:
        config: What is common to all runs; its own seed is not used.
        seeds: At least two distinct ones.
        variants: Reward variants; none means the configuration's own objective.

    Raises:
        ConfigError: If there are fewer than two seeds, one is out of range, something is named twice, or a variant is
            unknown.
    """
    check_seeds(seeds)
    if len(set(variants)) < len(variants):
        raise ConfigError(f"--variants {','.join(variants)} names something twice; name each once")
    unknown = [v for v in variants if v not in get_args(Variant)]
    if unknown:
        raise ConfigError(f"--variants {','.join(unknown)}: unknown; choose from {','.join(get_args(Variant))}")
    plan = []
    for variant in variants or (None,):
        phases = config.phases
        if variant is not None:
            phases = tuple(phase.model_copy(update={"variant": variant}) for phase in phases)
        own = {phase.variant for phase in phases}
        label = own.pop() if len(own) == 1 else "mixed"
        suffix = "" if phases == config.phases else f"-{variant}"
        for seed in seeds:
            name = f"{config.name}-s{seed}{suffix}"
            plan.append(PlannedRun(label, config.model_copy(update={"name": name, "seed": seed, "phases": phases})))
    return plan


def summarise_seeds(config: PaptConfig, runs: Sequence[PlannedRun[PaptConfig]], folder: Path) -> list[PooledResult]:
    """Pool finished runs, write ``summary.json`` and ``results.md``, and print the tables."""
    labels = dict.fromkeys(run.label for run in runs)
    results = [pool(label, [read_seed(r.run_dir, r.seed) for r in runs if r.label == label]) for label in labels]
    tables = [table for result in results for table in seed_tables(result, config.name)]
    tables += variant_tables(results, config.name)
    summary = {
        "name": config.name,
        "seeds": list(dict.fromkeys(run.seed for run in runs)),
        "config_hash": config_hash(config),
        "variants": {result.label: result.to_json() for result in results},
    }
    write_json_atomic(folder / "summary.json", summary)
    text = "\n".join(
        [f"## {config.name}, configuration {summary['config_hash']}\n", *(t.to_markdown() for t in tables)]
    )
    write_atomic(folder / "results.md", [text.encode()])
    print_tables(tables)
    print(f"\n{folder}/summary.json, {folder}/results.md")
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and run; returns the exit status."""
    example = "provgym papt-seeds --config configs/papt/tiny.yaml --seeds 42,43,44"
    parser = seeds_parser("provgym papt-seeds", __doc__, example, kind="PAPT")
    parser.add_argument("--variants", default="", help="reward variants, by commas; none: the configuration's own")
    known, overrides = parser.parse_known_args(arguments)
    return exit_status_of(lambda: _run_plan(known, overrides), goes_on=GOES_ON)


def _run_plan(known: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(PaptConfig, known.config, overrides)
    options = grid_options(known)
    seeds = seeds_in(known.seeds, "give whole numbers, such as 42,43")
    variants = names_in("--variants", known.variants, f"choose from {','.join(get_args(Variant))}")
    runs = plan_runs(config, seeds, variants)
    folder = config.runs_dir / f"{config.name}-seeds"
    return run_and_pool(runs, folder, options, lambda: summarise_seeds(config, runs, folder))


if __name__ == "__main__":
    sys.exit(main())
