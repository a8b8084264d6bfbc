"""Reading an answer of one kind out of a piece of text; where the piece comes from is for ``answers`` to say.

Every kind has two readers. The *marked* one reads the line behind words such as "the answer is": it believes what
stands first. The *loose* one reads text that marks nothing: it takes only what can't be mistaken. Both return the
answer's one normal form, or None.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from string import ascii_uppercase
from typing import NamedTuple

from provgym.rewards.answer_numbers import read_numbers

Read = Callable[[str, Sequence[str]], str | None]

_EDGES = " \t\r\n*_\"'`\u201c\u201d\u2018\u2019"


class Reader(NamedTuple):
    """The two readers of a kind; both take a text and the texts of the choices."""

    marked: Read
    loose: Read


_VERDICT = re.compile(r"\b(?:(support)(?:s|ed)?|(refute|contradict)(?:s|d|ed)?|(mixed))\b", re.IGNORECASE)
_VERDICTS = ("SUPPORT", "REFUTE", "MIXED")
_NEGATED = re.compile(
    r"(?:\b(?:not|never|no|none|neither|nor|cannot|without)|n['\u2019]t)(?:\s+(?!but\b|yet\b)\w+){0,2}\s*$", re.I
)
_OR = r"\s*(?:/|\||,|&|\bor\b|\band\b)\s*"
_ANOTHER_VERDICT = re.compile(_OR + r"(?:support|refute|contradict|mixed)", re.IGNORECASE)


def _verdict_mentions(text: str) -> list[re.Match[str]]:
    """Return the verdict words that no negation stands before."""
    return [m for m in _VERDICT.finditer(text) if not _NEGATED.search(text[max(0, m.start() - 40) : m.start()])]


def _single_verdict(mentions: list[re.Match[str]]) -> str | None:
    named = {_VERDICTS[(mention.lastindex or 1) - 1] for mention in mentions}
    return named.pop() if len(named) == 1 else None


def _marked_verdict(line: str, choices: Sequence[str]) -> str | None:
    line = line.strip(_EDGES)
    mentions = _verdict_mentions(line)
    if mentions and mentions[0].start() == 0:
        return None if _ANOTHER_VERDICT.match(line, mentions[0].end()) else _single_verdict(mentions[:1])
    return _single_verdict(mentions)


def _loose_verdict(text: str, choices: Sequence[str]) -> str | None:
    mentions = _verdict_mentions(text)
    labels = [mention for mention in mentions if mention.group().isupper()]
    return _single_verdict(labels or mentions)


_YES_NO = re.compile(r"(?:(yes|true)|(no|false))\b", re.IGNORECASE)
_YES_OR_NO = re.compile(_OR + r"(?:yes|no|true|false)\b", re.IGNORECASE)
_PAUSE = re.compile(r"\s*(?:[.,;:!)*_\u2013\u2014-]|$)")


def _marked_yes_no(line: str, choices: Sequence[str]) -> str | None:
    line = line.strip(_EDGES)
    found = _YES_NO.match(line)
    if found is None or _YES_OR_NO.match(line, found.end()):
        return None
    return "yes" if found[1] else "no"


def _loose_yes_no(text: str, choices: Sequence[str]) -> str | None:
    """Read a first or last line that begins with the answer and a pause: "No evidence" is not a "no"."""
    lines = [line.strip(_EDGES) for line in text.splitlines() if line.strip(_EDGES)]
    heads = [line for line in (lines[:1] + lines[-1:]) if (m := _YES_NO.match(line)) and _PAUSE.match(line, m.end())]
    answers = {_marked_yes_no(line, choices) for line in heads}
    return answers.pop() if len(answers) == 1 else None


_LETTER = re.compile(
    r"(?:(?:option|choice)\s+)?(?P<open>[(\[{]?)\s*(?P<letter>[A-Za-z])(?!\w)\s*(?P<close>[)\]}.:]?)", re.I
)
_SECOND_LETTER = re.compile(_OR + r"(?:(?:option|choice)\s+)?[(\[{]?[A-Z]\b(?!\w)")
_BRACKETED = re.compile(r"(?<!\w)\(\s*([A-Z])\s*\)")  # P(B) is no option
_AFTER_LETTER = re.compile(r"\s*(?:$|[-,;*_\u2013\u2014(]|(?:because|since|as|is|due|given|with|for)\b)", re.IGNORECASE)


def _letters(choices: Sequence[str]) -> str:
    return ascii_uppercase[: len(choices)] if choices else ascii_uppercase


def _marked_choice(line: str, choices: Sequence[str]) -> str | None:
    """Read a letter at the line's start, or a line that is the text of one choice."""
    line = line.strip(_EDGES)
    found = _LETTER.match(line)
    if found is not None and _stands_alone(found, line) and found["letter"].upper() in _letters(choices):
        return None if _SECOND_LETTER.match(line, found.end()) else found["letter"].upper()
    return _choice_by_text(line, choices)


def _stands_alone(found: re.Match[str], line: str) -> bool:
    """Whether a letter at the start of a line is an option's name and no word, such as the article "A"."""
    letter = found["letter"]
    if found["open"] or found["close"] or found.end() == len(line):
        return True
    if not letter.isupper():
        return False
    follows = line[found.end("letter") :]
    return letter not in "AI" or _AFTER_LETTER.match(follows) is not None or bool(_SECOND_LETTER.match(follows))


def _choice_by_text(line: str, choices: Sequence[str]) -> str | None:
    wanted = normalised_text(line)
    equal = [
        letter for letter, text in zip(_letters(choices), choices, strict=False) if normalised_text(text) == wanted
    ]
    return equal[0] if wanted and len(equal) == 1 else None


def _loose_choice(text: str, choices: Sequence[str]) -> str | None:
    """Read what the last line begins with, if it names no other; otherwise the only letter in brackets or in front."""
    lines = [line for each in text.splitlines() if (line := each.strip(_EDGES))]
    if not lines:
        return None
    last, first = _named_choice(lines[-1], choices), _named_choice(lines[0], choices)
    if last is not None and _bracketed(lines[-1], choices) <= {last}:
        return last
    named = _bracketed(text, choices) | ({first} - {None})
    return named.pop() if len(named) == 1 else None


def _named_choice(line: str, choices: Sequence[str]) -> str | None:
    """Read a line that is a letter, begins with one as options do, or is the text of one choice."""
    found = _LETTER.match(line)
    is_named = found is not None and (found["close"] or found.end() == len(line))
    return _marked_choice(line, choices) if is_named else _choice_by_text(line, choices)


def _bracketed(text: str, choices: Sequence[str]) -> set[str | None]:
    return {found[1] for found in _BRACKETED.finditer(text)} & set(_letters(choices))


def _marked_number(line: str, choices: Sequence[str]) -> str | None:
    """Read what stands behind the last sign of equality, or else the first number."""
    numbers = read_numbers(line.rpartition("=")[2]) or read_numbers(line)
    return numbers[0] if numbers else None


def _loose_number(text: str, choices: Sequence[str]) -> str | None:
    """Read the last number, as is the custom for GSM8K."""
    numbers = read_numbers(text)
    return numbers[-1] if numbers else None


_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_KEPT_SIGNS = re.compile(r"(?<=\d)[.,:/-](?=\d)|(?<!\w)-(?=\d)")


def normalised_text(text: str) -> str:
    """Return a text without case, articles, punctuation and double spaces; signs inside numbers stay.

    Source:
        The answer normalisation of SQuAD, arXiv:1606.05250; NFKC and the kept signs are ours (there 3.5 equals 35).

    Example:
        >>> normalised_text("The  Eiffel Tower."), normalised_text("3.5 %"), normalised_text("A")
        ('eiffel tower', '3.5', 'a')
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    kept = {found.start() for found in _KEPT_SIGNS.finditer(folded)}
    letters = [
        character if place in kept or unicodedata.category(character)[0] not in "PSC" else " "
        for place, character in enumerate(folded)
    ]
    plain = "".join(letters)
    return " ".join(_ARTICLES.sub(" ", plain).split()) or " ".join(plain.split())


def _marked_exact(line: str, choices: Sequence[str]) -> str | None:
    return normalised_text(line) or None


def _loose_exact(text: str, choices: Sequence[str]) -> str | None:
    """Read the last line that holds anything."""
    lines = [normalised for line in text.splitlines() if (normalised := normalised_text(line))]
    return lines[-1] if lines else None


READERS: dict[str, Reader] = {
    "verdict": Reader(_marked_verdict, _loose_verdict),
    "multiple_choice": Reader(_marked_choice, _loose_choice),
    "yes_no": Reader(_marked_yes_no, _loose_yes_no),
    "number": Reader(_marked_number, _loose_number),
    "exact": Reader(_marked_exact, _loose_exact),
}
"""The readers of every answer kind."""
