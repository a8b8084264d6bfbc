"""Benchmark loaders: official files, the fields of hub copies, and every awkward row named."""

import csv
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from provgym.envs.evidence_units import KnowledgeGraph
from provgym.envs.topology_tasks import TopologyTask
from provgym.generators.benchmark_rows import BenchmarkName, read_benchmark_row
from provgym.generators.benchmark_tasks import HUB_SOURCES, HubSource, benchmark_from_file, benchmark_from_hub
from provgym.generators.json_lines import BadFileError
from provgym.rewards.answers import is_correct

ROWS: Mapping[BenchmarkName, dict[str, Any]] = {
    "mmlu": {"question": "2 + 2?", "choices": ["3", "4", "5", "6"], "answer": 1, "subject": "sums"},
    "mmlu_pro": {"question": "2 + 2?", "options": ["3", "4", "5"], "answer": "B", "question_id": 9},
    "gpqa": {
        "Question": "Made up: which is made up?",
        "Correct Answer": "this one\n",
        "Incorrect Answer 1": "that",
        "Incorrect Answer 2": "those",
        "Incorrect Answer 3": "these",
    },
    "strategyqa": {
        "qid": "q1",
        "term": "Sun",
        "question": "Is it hot?",
        "answer": True,
        "facts": ["It burns. ", "", "It glows."],
    },
    "gsm8k": {"question": "How many?", "answer": "3 * 400 = <<3*400=1200>>1200\n#### 1,200"},
    "aqua": {"question": "2 + 2?", "options": ["A)3", "B) 4", "C)C. elegans"], "correct": "B", "rationale": "x"},
}
GOLD = {"mmlu": "B", "mmlu_pro": "B", "strategyqa": "yes", "gsm8k": "1,200", "aqua": "B"}


def write(folder: Path, rows: Any, name: str = "rows.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    return path


# --- rows


@pytest.mark.parametrize("name", list(ROWS))
def test_a_row_of_each_benchmark_and_its_gold_answer_scores(name: BenchmarkName, tmp_path: Path) -> None:
    (task,) = benchmark_from_file(name, write(tmp_path, [ROWS[name]]))
    assert is_correct(task.answer_kind, f"So the answer is {task.gold}.", task.gold, choices=task.choices)
    if name != "gpqa":
        assert task.gold == GOLD[name]


@pytest.mark.parametrize(
    "row",
    [
        {"question": "?", "A": "3", "B": "4", "C": "5", "D": "6", "answer": "B"},
        {"question": "?", "choice0": 3, "choice1": 4, "choice2": 5, "choice3": 6, "answer": "1"},
        {"question": "?", "choices": ["3", "4", "5", "6"], "answer": "b "},
    ],
)
def test_copies_of_mmlu_spell_one_row_differently(row: dict[str, Any]) -> None:
    found = read_benchmark_row("mmlu", row)
    assert (found.choices, found.gold) == (("3", "4", "5", "6"), "B")


def test_aqua_takes_off_its_own_letter_only() -> None:
    found = read_benchmark_row("aqua", ROWS["aqua"])
    assert found.choices == ("3", "4", "C. elegans")
    assert read_benchmark_row("aqua", ROWS["aqua"] | {"options": ["B) 3", "(B) 4", "none"]}).choices == (
        "B) 3",
        "4",
        "none",
    )


def test_gpqa_options_are_put_in_an_order_of_the_question_alone(tmp_path: Path) -> None:
    """The right option comes first in the file: no order may let it be read off."""
    rows = [ROWS["gpqa"] | {"Question": f"Made up, number {number}?"} for number in range(200)]
    first = [read_benchmark_row("gpqa", row) for row in rows]
    assert first == [read_benchmark_row("gpqa", row) for row in rows[::-1]][::-1]
    counts = Counter(row.gold for row in first)
    assert set(counts) == set("ABCD")
    assert min(counts.values()) > 25
    for row in first:
        assert row.choices["ABCD".index(row.gold)] == "this one"
        assert sorted(row.choices) == ["that", "these", "this one", "those"]


def test_strategyqa_facts_are_evidence(tmp_path: Path) -> None:
    (task,) = benchmark_from_file("strategyqa", write(tmp_path, [ROWS["strategyqa"]]))
    assert [(u.head, u.relation, u.tail, u.span.text) for u in task.graph.units] == [
        ("Sun", "fact", "It burns.", "It burns."),
        ("Sun", "fact", "It glows.", "It glows."),
    ]
    (bare,) = benchmark_from_file("strategyqa", write(tmp_path, [ROWS["strategyqa"] | {"facts": []}]))
    assert bare.graph == KnowledgeGraph((), {})
    own = KnowledgeGraph((), {"d": "mine"})
    assert benchmark_from_file("strategyqa", write(tmp_path, [ROWS["strategyqa"]]), graph=own)[0].graph is own


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("mmlu", {"answer": 4}, "found '4', expected a letter from A to D"),
        ("mmlu", {"answer": -1}, "found '-1'"),
        ("mmlu", {"answer": "E"}, "found 'E'"),
        ("mmlu", {"answer": None}, "field 'answer"),
        ("mmlu", {"choices": ["one"]}, "field 'choices'"),
        ("mmlu_pro", {"answer": "D"}, "from A to C for 3 options"),
        ("mmlu_pro", {"options": list("abcdefghijklmnopqrstuvwxyz0")}, "field 'options'"),
        ("strategyqa", {"answer": "perhaps"}, "field 'answer'"),
        ("gsm8k", {"answer": "1200"}, "field 'answer'"),
        ("gsm8k", {"answer": "#### a lot"}, "gold 'a lot'"),
        ("aqua", {"correct": ""}, "field 'correct'"),
        ("aqua", {"question": " "}, "field 'question'"),
    ],
)
def test_a_bad_row_is_named(name: BenchmarkName, change: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = write(tmp_path, [ROWS[name], ROWS[name] | change])
    with pytest.raises(ValueError, match=r"row|task") as failure:
        benchmark_from_file(name, path)
    assert said in str(failure.value)


# --- files


def test_every_format_gives_the_same_tasks(tmp_path: Path) -> None:
    """Unicode lines: a raw U+2028 ends no line, CSV cells may hold line breaks, a byte-order mark is no text."""
    rows = [ROWS["mmlu"] | {"question": text} for text in ("a\u2028b", 'c\n"d", e', "ε \U0001f600")]
    flat = [{"question": r["question"], **dict(zip("ABCD", r["choices"], strict=True)), "answer": "B"} for r in rows]
    as_list = benchmark_from_file("mmlu", write(tmp_path, rows))
    lines = tmp_path / "rows.jsonl"
    lines.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(row).encode() for row in rows))
    disguised = tmp_path / "lines" / "rows.json"
    disguised.parent.mkdir()
    disguised.write_bytes(lines.read_bytes())
    for name, header in (("rows.csv", True), ("bare/rows.csv", False)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with (tmp_path / name).open("w", encoding="utf-8-sig", newline="") as file:
            writer = csv.DictWriter(file, list(flat[0]))
            if header:
                writer.writeheader()
            writer.writerows(flat)
    for path in (lines, disguised, tmp_path / "rows.csv", tmp_path / "bare" / "rows.csv"):
        assert benchmark_from_file("mmlu", path) == as_list


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.json", "[1]", "row 1: found a int"),
        ("x.json", "[{", "no readable JSON list"),
        ("x.json", "[]", "holds no question"),
        ("x.jsonl", "", "holds no question"),
        ("x.jsonl", "null\n", "line 1: found null"),
        ("x.csv", "", "holds no question"),
        ("x.csv", "question,A\nwhat,1,2\n", "row 1: found 3 cells, expected 2"),
        ("x.csv", "\udcff", "no readable CSV"),
        ("x.csv", 'question,"A', "no readable CSV"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(name: str, content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadFileError) as failure:
        benchmark_from_file("mmlu", tmp_path / name)
    assert said in str(failure.value)
    assert name in str(failure.value)


def test_a_missing_file_and_an_unknown_benchmark_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        benchmark_from_file("mmlu", tmp_path / "none.csv")
    with pytest.raises(ValueError, match="benchmark 'mlu' is unknown"):
        benchmark_from_file("mlu", write(tmp_path, [ROWS["mmlu"]]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="benchmark 'mlu' is unknown"):
        benchmark_from_hub("mlu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limit=0"):
        benchmark_from_file("mmlu", write(tmp_path, [ROWS["mmlu"]]), limit=0)


def test_repeated_questions_are_one_base_and_repeated_ids_two_tasks(tmp_path: Path) -> None:
    """ids and duplicates: one question is one cluster in every interval."""
    tasks = benchmark_from_file("mmlu_pro", write(tmp_path, [ROWS["mmlu_pro"]] * 2))
    assert [task.task_id for task in tasks] == ["mmlu_pro/rows/9", "mmlu_pro/rows/9#2"]
    assert len({task.base_id for task in tasks}) == 1


def test_a_limit_is_a_sample_in_order_and_by_seed(tmp_path: Path) -> None:
    path = write(tmp_path, [ROWS["gsm8k"] | {"question": f"{number}?"} for number in range(50)])
    every = benchmark_from_file("gsm8k", path)
    some = benchmark_from_file("gsm8k", path, limit=10, seed=1)
    assert len(some) == 10
    assert [task for task in every if task in some] == list(some)
    assert some != benchmark_from_file("gsm8k", path, limit=10, seed=2)
    assert some != every[:10]
    assert benchmark_from_file("gsm8k", path, limit=99) == every


# --- the hub


def test_the_hub_is_asked_for_what_the_source_says() -> None:
    asked = []

    def load(*words: Any, **options: Any) -> list[dict[str, Any]]:
        asked.append((*words, options))
        return [ROWS["aqua"]]

    (task,) = benchmark_from_hub("aqua", load=load, split="dev")
    assert (task.gold, task.split, task.task_id) == ("B", "dev", "aqua/raw/1")
    benchmark_from_hub("aqua", HubSource("me/mine", None, "train"), load=load)
    assert asked == [("deepmind/aqua_rat", "raw", {"split": "test"}), ("me/mine", None, {"split": "train"})]
    assert set(HUB_SOURCES) == {*ROWS, "humaneval"}  # which has a file of tests of its own


def test_what_the_hub_does_not_give_is_named() -> None:
    def unreachable(*_: Any, **__: Any) -> list[dict[str, Any]]:
        raise ConnectionError("no network")

    with pytest.raises(OSError, match=r"openai/gsm8k .*no network.*or name a local file"):
        benchmark_from_hub("gsm8k", load=unreachable)
    with pytest.raises(ValueError, match=r"openai/gsm8k, row 1: field 'question'.*is it a copy of gsm8k"):
        benchmark_from_hub("gsm8k", load=lambda *_, **__: [{"q": 1}])
    with pytest.raises(ValueError, match="holds no question"):
        benchmark_from_hub("gsm8k", load=lambda *_, **__: [])


# --- official files


@pytest.mark.parametrize(
    ("name", "file", "count"),
    [
        ("mmlu", "mmlu/anatomy_test.csv", 135),
        ("mmlu", "mmlu/high_school_macroeconomics_test.csv", 390),
        ("mmlu_pro", "mmlu_pro/mmlu_pro_test.jsonl", 400),
        ("strategyqa", "strategyqa/dev.json", 229),
        ("gsm8k", "gsm8k/test.jsonl", 1319),
        ("aqua", "aqua/test.json", 254),
    ],
)
def test_official_files(shared_data: Path, name: BenchmarkName, file: str, count: int) -> None:
    tasks = benchmark_from_file(name, shared_data / file)
    assert len(tasks) == len({task.task_id for task in tasks}) == count
    for task in tasks:
        assert isinstance(task, TopologyTask)
        assert task.choices == () or len(task.choices) > "ABCDEFGHIJ".index(task.gold)
    if name == "strategyqa":
        assert Counter(len(task.graph.units) for task in tasks) == {2: 128, 3: 72, 4: 23, 5: 6}
