"""What all commands share: mistakes are one line, and a choice is checked against its type.

A mistake in what was asked for ends with one line, ``error: ...``, and exit status 2; ``PROVGYM_DEBUG=1`` shows the
traceback instead. Everything heavy is imported inside the command that needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

USER_ERRORS = (ValueError, OSError, ImportError, RuntimeError, MemoryError)
"""What a wrong request, a missing file or package, a full disk or memory raises; anything else is our own bug."""

UsageError: Any = typer.BadParameter.__mro__[1]
"""What typer raises where a command line can't be read; it has no public name of its own."""


class _OneLineErrors(TyperGroup):
    """Reads and runs a command; what it raises about a request becomes one line."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:  # typer's own types for it are private
        """Read what stands before the command's name."""
        with _one_line_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Read the command's own words and run it."""
        with _one_line_errors():
            return super().invoke(ctx)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (typer.Exit, typer.Abort):  # both are RuntimeErrors
        raise
    except KeyboardInterrupt:
        typer.echo("\ninterrupted; finished work is kept, the same command goes on from there", err=True)
        raise typer.Exit(130) from None
    except UsageError as error:
        if error.ctx is None or type(error).__name__ == "NoArgsIsHelpError":  # typer shows the group's help
            raise
        typer.echo(f"error: {_usage_line(error)}", err=True)
        raise typer.Exit(2) from None
    except USER_ERRORS as error:
        if os.environ.get("PROVGYM_DEBUG"):
            raise
        typer.echo(f"error: {_one_line(error)}", err=True)
        raise typer.Exit(2) from None


def new_group(text: str) -> typer.Typer:
    """Return an empty group of commands with a help text."""
    return typer.Typer(
        cls=_OneLineErrors,
        help=text,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )


def checked(kind: Any, value: str, option: str) -> Any:
    """Return an option's value, checked against a type such as a ``Literal``.

    Raises:
        ValueError: If it does not fit; the message names the option, what was found and what was expected.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{option} {value!r}: {error.errors()[0]['msg']}") from error


def names_of(text: str, option: str) -> list[str]:
    """Return names that stand in one text, by commas; an empty text asks for none.

    Raises:
        ValueError: If there is a text, and no name in it; the message names the option.

    Example:
        >>> names_of("C1, C2,", "--conditions"), names_of("", "--conditions")
        (['C1', 'C2'], [])
    """
    names = [name for part in text.split(",") if (name := part.strip())]
    if text and not names:
        raise ValueError(f"{option} {text!r} names nothing, expected names by commas, or '' for none; correct it")
    return names


def progress_bars(unit: str, *, is_shown: bool) -> Callable[[str, int, int], None]:
    """Return what draws a progress bar for each name it is told of: called with (name, done, total)."""
    from tqdm.auto import tqdm

    bars: dict[str, Any] = {}

    def on_progress(name: str, done: int, total: int) -> None:
        if name not in bars:
            bars[name] = tqdm(desc=name, total=total, unit=unit, disable=not is_shown, mininterval=1)
        bars[name].update(done - bars[name].n)
        if done == total:
            bars[name].close()

    return on_progress


def _usage_line(error: Any) -> str:
    """Say which words could not be read, what was expected, and where the command is explained."""
    from pydantic import ValidationError

    cause = error.__cause__
    found = f"; found {cause.errors()[0]['input']!r}" if isinstance(cause, ValidationError) else ""
    # Typer names the command by the name of its Python function where it runs inside another program.
    command = " ".join(["provgym", *error.ctx.command_path.split()[1:]])
    return " ".join(f"{error.format_message().rstrip('.')}{found}. See {command} --help".split())


def _one_line(error: BaseException) -> str:
    from provgym.eval.problems import one_line

    if _is_out_of_memory(error):
        error.add_note("too much at once for this machine's memory: lower --max-rows, --max-length or --limit")
    return one_line(error)


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    if "torch" not in sys.modules or not isinstance(error, Exception):
        return False
    from accelerate.utils.memory import should_reduce_batch_size

    return bool(should_reduce_batch_size(error))
