"""What all commands share: mistakes are one line, and a choice is checked against its type.

A mistake in what was asked for ends with one line, ``error: ...``, and exit status 2; ``PROVGYM_DEBUG=1`` shows the
traceback instead. Everything heavy is imported inside the command that needs it.
"""

from __future__ import annotations

import os
from typing import Any

import typer
from typer.core import TyperGroup

USER_ERRORS = (ValueError, OSError, ImportError, RuntimeError)
"""What a wrong request, a missing file or package, or a full disk raises; anything else is our own bug."""


class _OneLineErrors(TyperGroup):
    """Runs a command; what it raises about a request becomes one line."""

    def invoke(self, ctx: Any) -> Any:  # typer's own type for it is private
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):  # both are RuntimeErrors
            raise
        except KeyboardInterrupt:
            typer.echo("\ninterrupted; finished work is kept, the same command goes on from there", err=True)
            raise typer.Exit(130) from None
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


def _one_line(error: BaseException) -> str:
    from pydantic import ValidationError

    from provgym.eval.problems import problems_of

    text = problems_of(error) if isinstance(error, ValidationError) else str(error) or type(error).__name__
    return " ".join(" ".join([text, *getattr(error, "__notes__", ())]).split())
