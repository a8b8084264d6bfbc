"""HumanEval: its rows as tasks, and its own solutions against its own tests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from provgym.envs.agent_prompts import agent_prompt
from provgym.envs.code_sandbox import check_code
from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.workflow_records import NodeCall
from provgym.generators.benchmark_rows import check_run_code, read_benchmark_row
from provgym.generators.benchmark_tasks import benchmark_from_file, benchmark_from_hub
from provgym.generators.json_lines import BadFileError
from provgym.rewards.answer_code import CodeGold
from provgym.rewards.answers import extract_answer

ROW: dict[str, Any] = {
    "task_id": "HumanEval/7",
    "prompt": 'def add(x):\n    """ Add one.\n    >>> add(1)\n    2\n    """\n',
    "entry_point": "add",
    "canonical_solution": "    return x + 1  # CANONICAL\n",
    "test": "def check(candidate):\n    assert candidate(41) == 42\n",
}


def test_a_row_and_what_agents_see_of_it() -> None:
    (task,) = benchmark_from_hub("humaneval", load=lambda *_, **__: [ROW])
    assert (task.task_id, task.answer_kind, task.choices) == ("humaneval/test/7", "code", ())
    assert CodeGold.from_text(task.gold) == CodeGold(ROW["prompt"], "add", ROW["test"])
    call = NodeCall(task.task_id, DEFAULT_ROLES["Answerer"], task.question, task.answer_kind, (), (), (), 0)
    prompt = agent_prompt(call).user
    assert ROW["prompt"].strip() in prompt
    for hidden in ("CANONICAL", "candidate", "42"):
        assert hidden not in prompt


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt": "def other(x):\n    '''x'''\n"}, "expected Python that defines add()"),
        ({"prompt": "def add(x)"}, "prompt: found"),
        ({"test": "assert add(1) == 2"}, "tests: found 'assert add(1) == 2', expected Python that defines check()"),
        ({"entry_point": "a.b"}, "field 'entry_point'"),
        ({"test": None}, "field 'test'"),
    ],
)
def test_a_bad_row_is_named(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (ROW, ROW | change)))
    with pytest.raises(BadFileError, match="row 2") as failure:
        benchmark_from_file("humaneval", path)
    assert said in str(failure.value)


def test_a_packed_file_is_read_and_a_torn_one_named(tmp_path: Path) -> None:
    packed = tmp_path / "HumanEval.jsonl.gz"
    data = gzip.compress(json.dumps(ROW).encode())
    packed.write_bytes(data)
    (task,) = benchmark_from_file("humaneval", packed)
    assert task.task_id == "humaneval/HumanEval/7"
    for torn in (data[:-9], b"no gzip", data[:20] + b"xxxx" + data[24:]):
        packed.write_bytes(torn)
        with pytest.raises(BadFileError, match="found no whole gzip file"):
            benchmark_from_file("humaneval", packed)


def test_running_code_has_to_be_allowed_and_means_nothing_elsewhere() -> None:
    check_run_code("humaneval", True)
    check_run_code("gsm8k", False)
    with pytest.raises(
        ValueError, match=r"'humaneval' is judged by running .*off by default; allow it by run_code: true"
    ):
        check_run_code("humaneval", False)
    with pytest.raises(ValueError, match="run_code goes with humaneval alone, found gsm8k"):
        check_run_code("gsm8k", True)


# --- the official file


def official(shared_data: Path) -> list[dict[str, Any]]:
    with gzip.open(shared_data / "humaneval" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def broken(row: dict[str, Any]) -> str:
    """Return a solution that gives what no test expects."""
    return f"{row['prompt']}    return 'no such value'\n"


def check_row(row: dict[str, Any]) -> None:
    """A solution passes as a body and as a whole function, and a broken one does not."""
    gold = CodeGold.from_text(read_benchmark_row("humaneval", row).gold)
    whole = f"Here:\n```python\n{row['prompt']}{row['canonical_solution']}\n```\nIt works."
    for reply in (row["canonical_solution"], whole):
        answer = extract_answer("code", reply)
        assert answer is not None
        found = check_code(gold, answer)
        assert found.outcome == "passed", (row["task_id"], found)
    answer = extract_answer("code", broken(row))
    assert answer is not None
    assert check_code(gold, answer).outcome == "failed", row["task_id"]


def test_the_official_file(shared_data: Path) -> None:
    tasks = benchmark_from_file("humaneval", shared_data / "humaneval" / "HumanEval.jsonl.gz")
    assert len(tasks) == len({task.base_id for task in tasks}) == 164
    assert tasks[-1].task_id == "humaneval/HumanEval/163"


@pytest.mark.parametrize("number", [0, 32, 38, 81, 134])  # helpers that tests call, random tests, odd indentation
def test_some_official_solutions(shared_data: Path, number: int) -> None:
    check_row(official(shared_data)[number])


@pytest.mark.slow
def test_all_official_solutions(shared_data: Path) -> None:
    for row in official(shared_data):
        check_row(row)
