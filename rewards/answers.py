r"""Answer checkers: what a free text answers, and whether that is right.

One rule for every kind, in this order:

1. Reasoning between ``<think>`` and ``</think>`` is not read. Where it was never closed, the reply was cut inside it
   and holds no answer. Of what is left, the last :data:`MAX_READ_CHARACTERS` characters are read.
2. JSON objects with a key ``final_answer`` or ``answer`` (``verdict`` before these where a verdict is asked for; a real
   decoder scans): if all of them give one readable answer, that is it; if they disagree or one can't be read, there is
   none.
3. The last mark ("answer is", "Answer:", "verdict:", ``####``, ``\boxed{}``) whose line can be read; of at most 64
   marks, and at most 1,000 characters of a line.
4. Otherwise what stands behind the last mark, or the whole text if there is none, is read loosely: only what can't be
   mistaken counts (see :mod:`~provgym.rewards.answer_readers`).

Code is read by rules of its own (:mod:`~provgym.rewards.answer_code`) after the first; whether it is right is found out
by running it, which no function here does.

Nothing raises on a text, whatever it holds. Answers come in one normal form each, so that votes can be counted:
``SUPPORT``, ``B``, ``yes``, ``18.5``, lower-case text.

Example:
    >>> extract_answer("multiple_choice", "A car is fast. The answer is (B).", choices=["slow", "fast"])
    'B'
    >>> is_correct("number", "16 - 3 = 13, so she makes 13 * 2 = $26.00.", "26")
    True
    >>> extract_answer("verdict", "The evidence does not support it.") is None
    True
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

from provgym.rewards.answer_code import extract_code
from provgym.rewards.answer_readers import READERS, Reader
from provgym.rewards.json_in_text import find_json
from provgym.rewards.reasoning import said_after_reasoning

AnswerKind = Literal["verdict", "multiple_choice", "yes_no", "number", "exact", "code"]
"""How answers are read: a verdict on a claim, a letter, yes or no, a number, text compared after normalisation, or code
that is run against tests."""

MAX_READ_CHARACTERS = 65_536
MAX_TRIED_MARKS = 64
MAX_LINE_CHARACTERS = 1_000
MAX_CHOICES = 26

_KEYS = ("final_answer", "answer")
_MARK = re.compile(
    r"\b(?:answer|verdict)(?:\s(?:choice|option))?\b[*_\"'`)]{0,4}\s?"
    r"(?:(?:is|are|was|(?:would|must|should|will)\sbe)\b:?|[:=])[*_\"'`]{0,4}\s{0,8}"
    r"|####"
    r"|\\boxed\s?(?=\{)",
    re.IGNORECASE,
)
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s?\{([^{}]*)\}")
_FENCE = re.compile(r"^[ \t]*```.*$", re.MULTILINE)
_LONGEST_BOX = 500


def extract_answer(kind: AnswerKind, text: str, *, choices: Sequence[str] = ()) -> str | None:
    """Return the answer in a text in its normal form, or None if there is none to be read.

    Args:
        kind: Which answers there are.
        text: Anything a model may write.
        choices: Texts of the options A, B, ... for ``multiple_choice``; at most 26. Without them every letter counts.

    Raises:
        ValueError: If the kind is unknown or there are too many choices; never because of the text.
    """
    said = said_after_reasoning(text)
    if kind == "code":
        return None if said is None else extract_code(_stated_code(said[-MAX_READ_CHARACTERS:]))
    reader = _reader(kind, choices)
    if said is None:
        return None
    visible = said[-MAX_READ_CHARACTERS:]
    stated = list(_stated_values(visible, ("verdict", *_KEYS) if kind == "verdict" else _KEYS))
    if stated:
        answers = {_read_value(reader, value, choices) for value in stated}
        return answers.pop() if len(answers) == 1 else None
    plain = _FENCE.sub("", visible)
    marks = list(_MARK.finditer(plain))
    for mark in marks[: -MAX_TRIED_MARKS - 1 : -1]:
        answer = reader.marked(_behind(plain, mark), choices)
        if answer is not None:
            return answer
    return reader.loose(plain[marks[-1].end() :] if marks else plain, choices)


def is_correct(kind: AnswerKind, text: str, gold: str, *, choices: Sequence[str] = ()) -> bool:
    """Whether a text gives the gold answer; a text without a readable answer does not.

    Args:
        kind: As for :func:`extract_answer`.
        text: As for :func:`extract_answer`.
        gold: The right answer alone: a verdict, a letter, yes or no, a number, or any text.
        choices: As for :func:`extract_answer`.

    Raises:
        ValueError: If the kind is unknown or ``code``, or the gold answer is none of that kind.
    """
    if kind == "code":
        raise ValueError("kind 'code': whether code is right is found out by running it; see provgym.envs.answer_judge")
    wanted = _reader(kind, choices).marked(gold, choices)
    if wanted is None:
        raise ValueError(
            f"gold {gold!r} is no answer of kind {kind!r}" + (f" to {len(choices)} choices" * bool(choices))
        )
    return extract_answer(kind, text, choices=choices) == wanted


def _reader(kind: AnswerKind, choices: Sequence[str]) -> Reader:
    if kind not in READERS:
        raise ValueError(f"answer kind {kind!r} is unknown; choose one of {list(get_args(AnswerKind))}")
    if len(choices) > MAX_CHOICES:
        raise ValueError(f"found {len(choices)} choices; letters name at most {MAX_CHOICES}")
    return READERS[kind]


def _stated_values(text: str, keys: Sequence[str]) -> Iterator[Any]:
    """Yield what the JSON objects of a text give under the first of the keys that they have."""
    for found in find_json(text):
        yield from [found.value[key] for key in keys if key in found.value][:1]


def _stated_code(text: str) -> str:
    """Return the code in a reply that is one JSON object with a key for it, else the reply."""
    stated = list(_stated_values(text, ("code", *_KEYS))) if text.lstrip()[:1] == "{" else []
    return stated[0] if len(stated) == 1 and isinstance(stated[0], str) else text


def _read_value(reader: Reader, value: Any, choices: Sequence[str]) -> str | None:
    if isinstance(value, bool):
        value = "yes" if value else "no"
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return reader.marked(str(value), choices) if isinstance(value, (str, int, float)) else None


def _behind(text: str, mark: re.Match[str]) -> str:
    """Return the line behind a mark; of ``boxed`` what stands between its braces."""
    if not mark.group().startswith("\\"):
        return text[mark.end() : mark.end() + MAX_LINE_CHARACTERS].lstrip().split("\n", 1)[0]
    depth = 0
    for place in range(mark.end(), min(len(text), mark.end() + _LONGEST_BOX)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return _WRAPPED.sub(r"\1", text[mark.end() + 1 : place])
    return ""
