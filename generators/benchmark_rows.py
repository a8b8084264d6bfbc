r"""What one row of a benchmark says: question, options and gold answer, however its copies spell the fields.

Each reader takes the official files and the usual copies on the hub:

* ``mmlu``: ``question``; options as ``choices``, as ``choice0`` ... ``choice3`` or as ``A`` ... ``D``; ``answer`` as a
  number from 0 or a letter;
* ``mmlu_pro``: ``question``, ``options`` (3 to 10), ``answer`` as a letter;
* ``gpqa``: ``Question``, ``Correct Answer``, ``Incorrect Answer 1`` ... ``3``; options are put in an order drawn from
  the question's text, since the right one always comes first in the file;
* ``strategyqa``: ``question``, ``answer`` (true or false), and, as evidence, ``facts``;
* ``gsm8k``: ``question``, ``answer`` that ends in ``#### number``;
* ``aqua``: ``question``, ``options`` such as ``A)21``, ``correct`` as a letter;
* ``humaneval``: ``prompt``, ``entry_point``, ``test``; the canonical solution is not read. Its answers are run: see
  :mod:`provgym.envs.answer_judge`.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from provgym.generators.seeds import Purpose, derive_rng, text_key
from provgym.rewards.answer_code import CodeGold
from provgym.rewards.answers import MAX_CHOICES, AnswerKind

BenchmarkName = Literal["mmlu", "mmlu_pro", "gpqa", "strategyqa", "gsm8k", "aqua", "humaneval"]

CODE_BENCHMARKS: tuple[BenchmarkName, ...] = ("humaneval",)
"""Benchmarks whose answers have to be run to be judged."""

_LETTERS = string.ascii_uppercase[:MAX_CHOICES]
_LETTERED = re.compile(r"^\s*\(?[A-Z]\s*[).:]\s*")
Text = Annotated[str, Field(pattern=r"\S")]
# A CSV copy holds numbers, and a table numbers as options.
_OptionText = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, (int, float)) else value)]


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One question.

    Attributes:
        question: As asked, without the options.
        gold: A letter, ``yes`` or ``no``, or a number, as text; of code, what it is tested by.
        kind: How answers are read.
        choices: Texts of the options A, B, ...; empty without options.
        row_id: The data set's own id; empty if it has none.
        topic: What the question is about; empty if the data set does not say.
        facts: Sentences that the data set gives as evidence.
    """

    question: str
    gold: str
    kind: AnswerKind
    choices: tuple[str, ...] = ()
    row_id: str = ""
    topic: str = ""
    facts: tuple[str, ...] = ()


class _Row(BaseModel):
    # Copies carry further fields (rationale, category, source); none of them is shown to an agent.
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Mmlu(_Row):
    question: Text
    answer: str | int
    choices: list[_OptionText] = Field(min_length=2, max_length=MAX_CHOICES)


class _MmluPro(_Row):
    question: Text
    options: list[_OptionText] = Field(min_length=2, max_length=MAX_CHOICES)
    answer: Text
    question_id: int | str = ""


class _Gpqa(_Row):
    question: Text = Field(alias="Question")
    correct: _OptionText = Field(alias="Correct Answer")
    wrong1: _OptionText = Field(alias="Incorrect Answer 1")
    wrong2: _OptionText = Field(alias="Incorrect Answer 2")
    wrong3: _OptionText = Field(alias="Incorrect Answer 3")
    record_id: str = Field(default="", alias="Record ID")


class _StrategyQa(_Row):
    question: Text
    answer: bool
    qid: str = ""
    term: str = ""
    facts: Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)] = Field(
        default_factory=list
    )


class _Gsm8k(_Row):
    question: Text
    answer: str = Field(pattern=r"####\s*\S")


class _Aqua(_Row):
    question: Text
    options: list[_OptionText] = Field(min_length=2, max_length=MAX_CHOICES)
    answer: Text = Field(validation_alias=AliasChoices("correct", "answer"))


class _HumanEval(_Row):
    prompt: Text
    entry_point: str = Field(pattern=r"^[^\W\d]\w*$")
    test: Text
    task_id: str = ""


def read_benchmark_row(name: BenchmarkName, data: Mapping[str, Any]) -> BenchmarkRow:
    """Read one row.

    Args:
        name: Of the benchmark.
        data: The row as plain data.

    Raises:
        ValueError: If the benchmark is unknown, or a field is missing or wrong; the message names it.

    Example:
        >>> row = read_benchmark_row("aqua", {"question": "2 + 2?", "options": ["A)3", "B)4"], "correct": "B"})
        >>> row.choices, row.gold
        (('3', '4'), 'B')
    """
    if name not in _READERS:
        raise ValueError(f"benchmark {name!r} is unknown; choose one of {list(_READERS)}")
    return _READERS[name](data)


def check_run_code(name: str, is_allowed: bool) -> None:
    """Refuse a benchmark whose answers have to be run where nobody allowed it, and the permission where nothing is run.

    Args:
        name: Of the benchmark.
        is_allowed: The setting ``run_code``.

    Raises:
        ValueError: If the two do not go together.
    """
    if name in CODE_BENCHMARKS and not is_allowed:
        raise ValueError(
            f"benchmark {name!r} is judged by running the code that agents write, which is off by default; allow it by "
            "run_code: true (--run-code), best inside a container without keys and network"
        )
    if is_allowed and name not in CODE_BENCHMARKS:
        raise ValueError(f"run_code goes with {', '.join(CODE_BENCHMARKS)} alone, found {name}; leave it out")


def _mmlu(data: Mapping[str, Any]) -> BenchmarkRow:
    for names in ([f"choice{number}" for number in range(4)], list("ABCD")):
        if "choices" not in data and all(key in data for key in names):
            data = {**data, "choices": [data[key] for key in names]}
    row = _validate(_Mmlu, data)
    answer = str(row.answer).strip()
    gold = _LETTERS[int(answer)] if answer.isdecimal() and int(answer) < len(row.choices) else answer
    topic = str(data.get("subject", ""))
    return BenchmarkRow(row.question, _letter(gold, row.choices), "multiple_choice", tuple(row.choices), topic=topic)


def _mmlu_pro(data: Mapping[str, Any]) -> BenchmarkRow:
    row = _validate(_MmluPro, data)
    gold = _letter(row.answer, row.options)
    number, topic = str(row.question_id), str(data.get("category", ""))
    return BenchmarkRow(row.question, gold, "multiple_choice", tuple(row.options), number, topic)


def _gpqa(data: Mapping[str, Any]) -> BenchmarkRow:
    row = _validate(_Gpqa, data)
    options = [text.strip() for text in (row.correct, row.wrong1, row.wrong2, row.wrong3)]
    order = derive_rng(0, Purpose.BENCHMARK, text_key(row.question)).permutation(len(options)).tolist()
    choices = tuple(options[place] for place in order)
    return BenchmarkRow(row.question.strip(), _LETTERS[order.index(0)], "multiple_choice", choices, row.record_id)


def _strategyqa(data: Mapping[str, Any]) -> BenchmarkRow:
    row = _validate(_StrategyQa, data)
    facts = tuple(fact.strip() for fact in row.facts if fact.strip())
    return BenchmarkRow(row.question, "yes" if row.answer else "no", "yes_no", (), row.qid, row.term, facts)


def _gsm8k(data: Mapping[str, Any]) -> BenchmarkRow:
    row = _validate(_Gsm8k, data)
    return BenchmarkRow(row.question, row.answer.rsplit("####", 1)[1].strip(), "number")


def _aqua(data: Mapping[str, Any]) -> BenchmarkRow:
    row = _validate(_Aqua, data)
    # The option's text may begin with a letter and a dot of its own: one mark is taken off, and only the right one.
    choices = tuple(_without_mark(letter, text) for letter, text in zip(_LETTERS, row.options, strict=False))
    return BenchmarkRow(row.question, _letter(row.answer, choices), "multiple_choice", choices)


def _humaneval(data: Mapping[str, Any]) -> BenchmarkRow:
    row = _validate(_HumanEval, data)
    gold = CodeGold(row.prompt, row.entry_point, row.test).to_text()
    question = f"Complete this Python function.\n\n{row.prompt.strip()}"
    return BenchmarkRow(question, gold, "code", row_id=row.task_id.removeprefix("HumanEval/"))


def _without_mark(letter: str, text: str) -> str:
    mark = _LETTERED.match(text)
    return text[mark.end() :].strip() if mark and letter in mark.group() else text.strip()


def _letter(answer: str, choices: list[str] | tuple[str, ...]) -> str:
    letter = answer.strip().upper()
    if len(letter) != 1 or letter not in _LETTERS[: len(choices)]:
        raise ValueError(
            f"field 'answer': found {answer!r}, expected a letter from A to {_LETTERS[len(choices) - 1]} for "
            f"{len(choices)} options"
        )
    return letter


_Model = TypeVar("_Model", bound=_Row)


def _validate(model: type[_Model], data: Mapping[str, Any]) -> _Model:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        found = "nothing" if first["type"] == "missing" else repr(first["input"])[:60]
        raise ValueError(f"field {field!r}: found {found}, expected: {first['msg']}") from error


_READERS: Mapping[str, Callable[[Mapping[str, Any]], BenchmarkRow]] = {
    "mmlu": _mmlu,
    "mmlu_pro": _mmlu_pro,
    "gpqa": _gpqa,
    "strategyqa": _strategyqa,
    "gsm8k": _gsm8k,
    "aqua": _aqua,
    "humaneval": _humaneval,
}
