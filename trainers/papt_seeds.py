"""The same PAPT configuration under several seeds, and under several reward variants: one run after the other.

``provgym papt-seeds --config configs/papt/tiny.yaml`` trains seeds 42 to 46 as ``runs/papt-tiny-s42`` ... and pools
them in ``runs/papt-tiny-seeds``. Each run is a process of its own. Finished runs are skipped and an interrupted one
goes on from its last checkpoint, so the same command given again does what is missing.

``--variants full,no_echo,no_coverage,verdict_only`` trains each variant of the reward (in every phase) under each seed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, get_args

from provgym.eval.run_files import write_atomic, write_json_atomic
from provgym.eval.table import print_tables
from provgym.eval.walk_config import config_hash
from provgym.rewards.rubric import Variant
from provgym.trainers.config_file import ConfigError, dump_config, load_config
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.seed_summary import PooledResult, pool, read_seed, seed_tables, variant_tables

DEFAULT_SEEDS = (42, 43, 44, 45, 46)
"""Five, fixed beforehand; the first is the source's."""

POLL_S = 0.2


@dataclass(frozen=True)
class SeedRun:
    """One run of the plan.

    Attributes:
        label: Its objective: a reward variant, or ``mixed`` where the phases' variants differ.
        config: Its configuration, seed and name included.
    """

    label: str
    config: PaptConfig

    @property
    def seed(self) -> int:
        """Its training seed."""
        return self.config.seed

    @property
    def run_dir(self) -> Path:
        """Its folder."""
        return self.config.run_dir


def plan_runs(config: PaptConfig, seeds: Sequence[int], variants: Sequence[str] = ()) -> list[SeedRun]:
    """Return the runs, variant by variant, seed by seed.

    A variant that leaves the phases as they are has no suffix in its name, so that its runs are shared with a plan
    without variants.

    Args:
        config: What is common to all runs; its own seed is not used.
        seeds: At least two distinct ones.
        variants: Reward variants; none means the configuration's own objective.

    Raises:
        ConfigError: If there are fewer than two seeds, something is named twice, or a variant is unknown.
    """
    if len(seeds) < 2:
        raise ConfigError(f"--seeds {','.join(map(str, seeds))}: found {len(seeds)}, expected at least two seeds")
    for option, values in (("--seeds", list(seeds)), ("--variants", list(variants))):
        if len(set(values)) < len(values):
            raise ConfigError(f"{option} {','.join(map(str, values))} names something twice; name each once")
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
            plan.append(SeedRun(label, config.model_copy(update={"name": name, "seed": seed, "phases": phases})))
    return plan


def is_finished(run: SeedRun) -> bool:
    """Whether a run's ``summary.json`` stands and is of this very training.

    Raises:
        ConfigError: If it is of another training.
    """
    from provgym.trainers.papt import training_hash  # here, because it imports TRL

    path = run.run_dir / "summary.json"
    if not path.is_file():
        return False
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("training_hash")
    except (json.JSONDecodeError, AttributeError) as error:
        raise ConfigError(f"{path} is no summary of a run ({error}); remove it") from error
    wanted = training_hash(run.config)
    if found != wanted:
        raise ConfigError(
            f"{path} was trained under configuration {found}, this plan has {wanted}; remove {run.run_dir}, or give "
            "this plan another --name"
        )
    return True


def command_of(config_file: Path, accelerate: Path | None) -> list[str]:
    """Return the command of one run."""
    module = ["-m", "provgym.trainers.papt", "--config", str(config_file)]
    if accelerate is None:
        return [sys.executable, *module]
    return [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(accelerate), *module]


def run_missing(runs: Sequence[SeedRun], folder: Path, *, jobs: int, accelerate: Path | None) -> list[SeedRun]:
    """Run what is not finished, at most ``jobs`` at a time; return those that failed.

    One failure does not stop the others. With one job the run's own progress is shown; with more, each run writes to
    ``folder/logs``.
    """
    waiting = deque(run for run in runs if not is_finished(run))
    print(f"{len(runs)} runs: {len(runs) - len(waiting)} finished, {len(waiting)} to do", flush=True)
    running: dict[subprocess.Popen[bytes], tuple[SeedRun, float, IO[bytes] | None]] = {}
    failed: list[SeedRun] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                run = waiting.popleft()
                process, log = _start(run, folder, accelerate, shows=jobs == 1)
                running[process] = (run, time.monotonic(), log)
                print(f"== {run.config.name}: started{f', see {log.name}' if log else ''}", flush=True)
            time.sleep(POLL_S)
            for process in [p for p in running if p.poll() is not None]:
                run, began, log = running.pop(process)
                if log is not None:
                    log.close()
                outcome = "done" if process.returncode == 0 else f"failed with exit status {process.returncode}"
                seconds = time.monotonic() - began
                print(f"== {run.config.name}: {outcome} after {seconds:.0f} s, {len(waiting)} waiting", flush=True)
                failed += [run] if process.returncode else []
    finally:
        for process in running:
            process.terminate()
            process.wait()
    return failed


def summarise_seeds(config: PaptConfig, runs: Sequence[SeedRun], folder: Path) -> list[PooledResult]:
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
    parser = argparse.ArgumentParser(
        prog="provgym papt-seeds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: provgym papt-seeds --config configs/papt/tiny.yaml --seeds 42,43,44",
        allow_abbrev=False,
    )
    parser.add_argument("--config", required=True, help="YAML file of a PAPT run")
    parser.add_argument("--seeds", default=",".join(map(str, DEFAULT_SEEDS)), help="training seeds, by commas")
    parser.add_argument("--variants", default="", help="reward variants, by commas; none: the configuration's own")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--accelerate", type=Path, default=None, help="accelerate file to launch each run with")
    known, overrides = parser.parse_known_args(arguments)
    try:
        return _run_plan(known, overrides)
    except (ConfigError, FileNotFoundError, ValueError) as error:
        if os.environ.get("PROVGYM_DEBUG"):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on with what is missing", file=sys.stderr)
        return 130


def _run_plan(known: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(PaptConfig, known.config, overrides)
    if known.jobs < 1:
        raise ConfigError(f"--jobs {known.jobs} must be >= 1")
    if known.accelerate is not None and not known.accelerate.is_file():
        raise ConfigError(f"--accelerate {known.accelerate} does not exist; there are files in configs/accelerate")
    try:
        seeds = [int(seed) for seed in known.seeds.split(",")]
    except ValueError as error:
        raise ConfigError(f"--seeds {known.seeds!r} must be whole numbers by commas, such as 42,43") from error
    runs = plan_runs(config, seeds, [v for v in known.variants.split(",") if v])
    folder = config.runs_dir / f"{config.name}-seeds"
    failed = run_missing(runs, folder, jobs=known.jobs, accelerate=known.accelerate)
    if failed:
        names = ", ".join(run.config.name for run in failed)
        print(
            f"error: {len(failed)} of {len(runs)} runs failed ({names}); the finished ones are kept. See above, or "
            f"{folder}/logs, and give the same command again",
            file=sys.stderr,
        )
        return 1
    summarise_seeds(config, runs, folder)
    return 0


def _start(
    run: SeedRun, folder: Path, accelerate: Path | None, *, shows: bool
) -> tuple[subprocess.Popen[bytes], IO[bytes] | None]:
    """Start one run under its resolved configuration; its output goes to the terminal or to a log."""
    file = folder / "configs" / f"{run.config.name}.yaml"
    write_atomic(file, [dump_config(run.config).encode()])
    command = command_of(file, accelerate)
    if shows:
        return subprocess.Popen(command), None
    log_path = folder / "logs" / f"{run.config.name}.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log = log_path.open("ab")
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ), log


if __name__ == "__main__":
    sys.exit(main())
