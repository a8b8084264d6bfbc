"""Errors in one line; pydantic's say which field, what was expected, what was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError


def innermost_problems(problems: Sequence[Any]) -> list[Any]:
    """Leave out a problem of a whole that only follows from a problem of one of its parts."""
    places = [p["loc"] for p in problems]
    return [p for p in problems if not any(len(q) > len(p["loc"]) and q[: len(p["loc"])] == p["loc"] for q in places)]


def problems_of(error: ValidationError) -> str:
    """Return every problem of a refused record as one line.

    Example:
        >>> from pydantic import BaseModel, Field
        >>> class Row(BaseModel):
        ...     budget: int = Field(ge=1)
        >>> try:
        ...     _ = Row(budget=0)
        ... except ValidationError as error:
        ...     print(problems_of(error))
        budget: Input should be greater than or equal to 1; found 0
    """
    parts = []
    for problem in innermost_problems(error.errors()):
        place = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        # Checks of our own name their values themselves.
        found = "" if message != problem["msg"] else f"; found {problem['input']!r}"
        parts.append(f"{place}: {message}{found}" if place else f"{message}{found}")
    return "; ".join(parts)


def one_line(error: BaseException) -> str:
    r"""Return what an error says, its notes included, without line breaks.

    Example:
        >>> error = ValueError("a: 1 is refused\n  b: 2 is refused")
        >>> error.add_note("see the file")
        >>> one_line(error)
        'a: 1 is refused; b: 2 is refused; see the file'
    """
    text = problems_of(error) if isinstance(error, ValidationError) else str(error) or type(error).__name__
    lines = [" ".join(line.split()) for part in (text, *getattr(error, "__notes__", ())) for line in part.splitlines()]
    return "; ".join(line for line in lines if line)
