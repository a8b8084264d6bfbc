r"""JSON values within prose: found by a real decoder in bounded work, whatever stands before them.

A brace or bracket that cannot begin a value (``{sentence 2}``, ``\frac{1}{2}``, ``[see below]``) is passed over and
uses up nothing. What was decoded in vain is counted in characters: only text made for it, such as hundreds of objects
opened within each other and never closed, reaches the bound, and then nothing further is found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

MAX_VAIN_CHARACTERS = 1_000_000
"""So many characters may be decoded in vain in one text; an attempt counts for 100 at least."""

_DECODER = json.JSONDecoder()
_OBJECT = re.compile(r'\{(?=\s*["}])')
_OBJECT_OR_LIST = re.compile(r'\{(?=\s*["}])|\[(?=\s*[\[{\]])')
_BETWEEN_MEMBERS = re.compile(r"[\s,]*")
_COLON = re.compile(r"\s*:\s*")


class FoundValue(NamedTuple):
    """A JSON value and where it stands.

    Attributes:
        value: As decoded.
        start: Place of its first character.
        end: Place behind its last.
    """

    value: Any
    start: int
    end: int


class Member(NamedTuple):
    """A key of a JSON object and its value, each with where it stands."""

    key: FoundValue
    value: FoundValue


def find_json(text: str, *, with_lists: bool = False) -> Iterator[FoundValue]:
    r"""Yield the JSON objects of a text from left to right, not those within one another; never raises.

    Args:
        text: Anything; a caller bounds its length.
        with_lists: Whether lists of objects, of lists, and empty ones are values too.

    Example:
        >>> [found.value for found in find_json('See {1}: {"a": {"b": 1}} and {"c')]
        [{'a': {'b': 1}}]
    """
    opening_pattern = _OBJECT_OR_LIST if with_lists else _OBJECT
    position, in_vain = 0, 0
    while in_vain < MAX_VAIN_CHARACTERS and (opening := opening_pattern.search(text, position)):
        start = opening.start()
        try:
            value, position = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            read_to = error.pos if isinstance(error, json.JSONDecodeError) else len(text)
            in_vain += max(100, read_to - start)
            position = start + 1
        else:
            yield FoundValue(value, start, position)


def members_of(text: str, start: int) -> Iterator[Member]:
    """Yield the members of an object that :func:`find_json` found, in the order in which they are written.

    Args:
        text: The text it was found in.
        start: Place of its opening brace.

    Example:
        >>> [(m.key.value, m.value.value, m.value.start) for m in members_of('So: {"a": 1, "b": [2]}', 4)]
        [('a', 1, 10), ('b', [2], 18)]
    """
    position = _skip(_BETWEEN_MEMBERS, text, start + 1)
    while text[position] != "}":
        key, key_end = _DECODER.raw_decode(text, position)
        value_start = _skip(_COLON, text, key_end)
        value, value_end = _DECODER.raw_decode(text, value_start)
        yield Member(FoundValue(key, position, key_end), FoundValue(value, value_start, value_end))
        position = _skip(_BETWEEN_MEMBERS, text, value_end)


def _skip(pattern: re.Pattern[str], text: str, position: int) -> int:
    found = pattern.match(text, position)
    assert found is not None  # the object was decoded before
    return found.end()
