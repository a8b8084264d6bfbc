"""What the commands that run a grid of trainings share: their options, and how they end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from provgym.generators.writable_folder import check_writable
from provgym.trainers.command_line import FAILED, OK, add_config, plain_parser
from provgym.trainers.config_file import ConfigError
from provgym.trainers.run_config import MAX_SEED, RunConfig
from provgym.trainers.run_grid import STALL_S, PlannedRun, run_missing

DEFAULT_SEEDS = (42, 43, 44, 45, 46)
"""Five, fixed beforehand; the first is the source's."""

GOES_ON = "goes on with what is missing"
"""What a grid's command does after an interrupt."""


@dataclass(frozen=True)
class GridOptions:
    """How a grid is run.

    Attributes:
        jobs: Runs at a time.
        accelerate: File to launch each run with; None starts it plainly.
        stall_s: Seconds without a trace after which a run is ended.
    """

    jobs: int
    accelerate: Path | None
    stall_s: float


def new_parser(program: str, text: str | None, example: str) -> argparse.ArgumentParser:
    """Return a parser that knows how a grid is run."""
    parser = plain_parser(program, text, example)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--accelerate", type=Path, default=None, help="accelerate file to launch each run with")
    parser.add_argument(
        "--stall-hours",
        type=float,
        default=STALL_S / 3600,
        help="hours without a new byte in a run's folder or log after which it is ended, and counts as failed",
    )
    return parser


def seeds_parser(program: str, text: str | None, example: str, *, kind: str) -> argparse.ArgumentParser:
    """Return the parser of a command that trains one configuration under several seeds.

    Args:
        program: Name of the command.
        text: What it does.
        example: One call of it.
        kind: What a run is called, such as ``PAPT``.
    """
    parser = new_parser(program, text, example)
    add_config(parser, kind)
    parser.add_argument("--seeds", default=",".join(map(str, DEFAULT_SEEDS)), help="training seeds, by commas")
    return parser


def grid_options(known: argparse.Namespace) -> GridOptions:
    """Read how a grid is run.

    Raises:
        ConfigError: If a value is impossible; the message names the option.
    """
    if known.jobs < 1:
        raise ConfigError(f"--jobs {known.jobs} must be >= 1")
    if not known.stall_hours > 0:
        raise ConfigError(f"--stall-hours {known.stall_hours} must be > 0; give inf to wait without a bound")
    if known.accelerate is not None and not known.accelerate.is_file():
        raise ConfigError(f"--accelerate {known.accelerate} does not exist; there are files in configs/accelerate")
    return GridOptions(known.jobs, known.accelerate, known.stall_hours * 3600)


def names_in(option: str, text: str, way_out: str) -> list[str]:
    """Return the names of an option, by commas; an option that was not given, or is empty, names none.

    Args:
        option: Such as ``--arms``.
        text: Its value.
        way_out: What to do instead, for the message.

    Raises:
        ConfigError: If there is a text and no name in it, or a name stands twice.

    Example:
        >>> names_in("--arms", "full, no_echo", "leave it out")
        ['full', 'no_echo']
    """
    names = [name for part in text.split(",") if (name := part.strip())]
    if text and not names:
        raise ConfigError(f"{option} {text!r} names nothing; {way_out}")
    if len(set(names)) < len(names):
        raise ConfigError(f"{option} {text} names something twice; name each once")
    return names


def seeds_in(text: str, way_out: str) -> list[int]:
    """Return the seeds of ``--seeds``, by commas; none if it was not given.

    Raises:
        ConfigError: If one is no whole number, none is named, or one stands twice.

    Example:
        >>> seeds_in("42,43", "leave it out")
        [42, 43]
    """
    names = names_in("--seeds", text, way_out)
    try:
        seeds = [int(name) for name in names]
    except ValueError as error:
        raise ConfigError(f"--seeds {text!r} must be whole numbers by commas, such as 42,43") from error
    if len(set(seeds)) < len(seeds):  # 42 and 042
        raise ConfigError(f"--seeds {text} names something twice; name each once")
    return seeds


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse seeds that a result can't be pooled over.

    Raises:
        ConfigError: If there are fewer than two, one is out of range, or one stands twice.
    """
    text = f"--seeds {','.join(map(str, seeds))}"
    if len(seeds) < 2:
        raise ConfigError(f"{text}: found {len(seeds)}, expected at least two seeds")
    if min(seeds) < 0 or max(seeds) > MAX_SEED:  # a copied configuration is not checked again
        raise ConfigError(f"{text}: expected whole numbers from 0 to {MAX_SEED}")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"{text} names something twice; name each once")


def run_and_pool(
    runs: Sequence[PlannedRun[RunConfig]], folder: Path, options: GridOptions, pool: Callable[[], object]
) -> int:
    """Run what is missing and, if nothing failed, pool; returns the exit status.

    Args:
        runs: The plan; never pooled over fewer.
        folder: Of the grid's own files.
        options: How it is run.
        pool: Reads the finished runs and writes what they come to.

    Raises:
        OSError: If the folder can't be written.
        ConfigError: If a finished run is of another training.
    """
    check_writable(folder, "runs_dir")
    failed = run_missing(runs, folder, jobs=options.jobs, accelerate=options.accelerate, stall_s=options.stall_s)
    if not failed:
        pool()
    return say_what_failed(failed, len(runs), folder)


def say_what_failed(failed: Sequence[PlannedRun[RunConfig]], total: int, folder: Path) -> int:
    """Name the runs that failed, if any did; returns the exit status."""
    if not failed:
        return OK
    names = ", ".join(run.config.name for run in failed)
    print(
        f"error: {len(failed)} of {total} runs failed ({names}); the finished ones are kept. See above, or "
        f"{folder}/logs, and give the same command again",
        file=sys.stderr,
    )
    return FAILED
