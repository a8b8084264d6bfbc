r"""Reading triples, each with its quote, out of whatever a language model wrote.

The rule, in order:

1. the whole reply, stripped, is one JSON list of triples, or an object with such a list under ``triples``;
2. otherwise the first such list or object in the text that holds a triple (within a fence or prose; a real decoder
   scans the first 65,536 characters), or else the first empty one;
   reasoning (:mod:`provgym.rewards.reasoning`) is not read;
3. entries are checked one by one: ``head``, ``relation``, ``tail`` and ``quote``, all visible text.

A quote matches literally, or else with runs of white space taken as one and without regard to case; its first place in
the passage counts.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict

from provgym.generators.claim_records import Text
from provgym.rewards.json_in_text import find_json
from provgym.rewards.reasoning import said_after_reasoning

MAX_SCANNED_CHARACTERS = 65_536


class QuotedTriple(BaseModel):
    """A triple as a model states it, with the piece of text that it quotes for it."""

    # A model may add keys of its own (confidence ...); they say nothing that can be checked.
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    head: Text
    relation: Text
    tail: Text
    quote: Text


def read_triples(reply: str) -> list[Any] | None:
    r"""Return the entries of the list of triples in a reply by the module's rule, unchecked; None if there is none.

    Example:
        >>> read_triples('Sure: ```json\n[{"head": "a"}]\n```'), read_triples("none found")
        ([{'head': 'a'}], None)
    """
    empty: list[Any] | None = None
    said = said_after_reasoning(reply) or ""
    for found in find_json(said[:MAX_SCANNED_CHARACTERS], with_lists=True):
        entries = found.value.get("triples") if isinstance(found.value, dict) else found.value
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            continue
        if entries:
            return entries
        empty = entries
    return empty


def find_quote(quote: str, text: str) -> tuple[int, int] | None:
    r"""Return where a quote stands in a text, or None: literally, else by words without regard to case.

    Example:
        >>> find_quote("raised  the Yield", "It raised the\nyield twice.")
        (3, 19)
    """
    start = text.find(quote)
    if start >= 0:
        return start, start + len(quote)
    words = quote.split()
    found = re.search(r"\s+".join(map(re.escape, words)), text, re.IGNORECASE) if words else None
    return None if found is None else found.span()
