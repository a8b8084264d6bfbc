"""What the commands that train share: their common options, and how they end."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import provgym
from provgym.eval.problems import one_line
from provgym.trainers.config_file import ConfigError
from provgym.trainers.step_record import RunStopped

OK, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130
"""Exit statuses."""

_OURS = Path(provgym.__file__).parent
_FORMAT = warnings.formatwarning


def plain_parser(program: str, text: str | None, example: str) -> argparse.ArgumentParser:
    """Return a parser without options; what it does not know is left for the configuration's fields."""
    return argparse.ArgumentParser(
        prog=program,
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"example: {example}",
        allow_abbrev=False,  # --fres must not throw a run away
    )


def add_config(parser: argparse.ArgumentParser, kind: str) -> None:
    """Add ``--config`` of a ``kind`` run, such as ``PAPT``."""
    parser.add_argument("--config", required=True, help=f"YAML file of a {kind} run")


def run_parser(program: str, text: str | None, example: str, *, kind: str) -> argparse.ArgumentParser:
    """Return the parser of a command that trains one run.

    Args:
        program: Name of the command.
        text: What it does.
        example: One call of it.
        kind: What the run is called, such as ``PAPT``.
    """
    parser = plain_parser(program, text, example)
    add_config(parser, kind)
    parser.add_argument("--fresh", action="store_true", help="throw an earlier run of this name away")
    return parser


def main_of_run(
    arguments: Sequence[str] | None,
    *,
    name: str,
    text: str | None,
    example: str,
    kind: str,
    goes_on: str,
    train: Callable[[str, Sequence[str], bool], object],
) -> int:
    """Read the command line of a command that trains one run, train, and return the exit status.

    Args:
        arguments: Of the command line; the process's own if None.
        name: Of the command below ``provgym``.
        text: What the command does.
        example: What follows the command's name in an example.
        kind: What the run is called, such as ``PAPT``.
        goes_on: What the same command does after an interrupt.
        train: Called with the configuration's file, the fields given on the command line, and ``--fresh``.
    """
    program = f"provgym {name}"
    parser = run_parser(program, text, f"{program} {example}", kind=kind)
    known, overrides = parser.parse_known_args(arguments)

    def work() -> int:
        train(known.config, overrides, known.fresh)
        return OK

    return exit_status_of(work, goes_on=goes_on)


def exit_status_of(work: Callable[[], int], *, goes_on: str) -> int:
    """Do a command's work and return its exit status; what it refuses becomes one line, a bug keeps its traceback.

    Args:
        work: Returns the exit status.
        goes_on: What the same command does after an interrupt, such as ``goes on from the last checkpoint``.
    """
    before = warnings.formatwarning
    warnings.formatwarning = _one_line_warning
    try:
        return work()
    except (ConfigError, OSError, ValueError, ImportError, RunStopped) as error:
        if os.environ.get("PROVGYM_DEBUG"):
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print(f"\ninterrupted; the same command {goes_on}", file=sys.stderr)
        return INTERRUPTED
    finally:
        warnings.formatwarning = before


def _one_line_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Show our own warnings as text for users; of others', the place in the code stays."""
    if Path(filename).is_relative_to(_OURS):
        return f"warning: {message}\n"
    return _FORMAT(message, category, filename, lineno, line)
