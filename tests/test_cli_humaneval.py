"""``provgym eval topology --benchmark humaneval``: off unless asked for; then end to end over an endpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.protocol_server import Answer, Request, serve

Run = Callable[..., tuple[int, str, str]]
Refusal = Callable[..., str]
EVAL = (
    "eval",
    "topology",
    "--encoder",
    "hashed",
    "--replicates",
    "2",
    "--benchmark",
    "humaneval",
    "--file",
    "he.jsonl",
)
NAMES = ("add", "sub")


def write_rows(folder: Path) -> None:
    rows = [
        {
            "task_id": f"HumanEval/{number}",
            "prompt": f'def {name}(x):\n    """ Do it ({name}). """\n',
            "entry_point": name,
            "test": f"def check(candidate):\n    assert candidate(41) == {42 if name == 'add' else 40}\n",
        }
        for number, name in enumerate(NAMES)
    ]
    (folder / "he.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_agents(folder: Path, url: str) -> None:
    agents = {"kind": "endpoint", "endpoint": {"base_url": url, "model": "m"}, "cache": "memory"}
    (folder / "agents.yaml").write_text(yaml.safe_dump(agents))


def always_adds(request: Request) -> Answer:
    name = next(name for name in NAMES if f"def {name}" in json.dumps(request.payload))
    return Answer(f"Sure:\n```python\ndef {name}(x):\n    return x + 1\n```")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*EVAL,), "off by default; allow it by run_code: true (--run-code)"),
        ((*EVAL[:6], "--run-code"), "--run-code go with --benchmark"),
        ((*EVAL[:6], "--benchmark", "gsm8k", "--run-code"), "run_code goes with humaneval alone, found gsm8k"),
        ((*EVAL, "--run-code"), "simulated agents give verdicts only"),
        (("run", "topology", "--question", "?", "--evidence", "e.jsonl", "--kind", "code"), "does not do"),
    ],
)
def test_code_is_not_run_unasked(refusal: Refusal, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    write_rows(tmp_path)
    (tmp_path / "e.jsonl").write_text("")
    assert message in refusal(*words)


def test_teams_write_code_that_is_run(run: Run, tmp_path: Path) -> None:
    write_rows(tmp_path)
    with serve(always_adds) as server:
        write_agents(tmp_path, server.url)
        words = (*EVAL, "--run-code", "--agents", "agents.yaml", "--methods", "single_agent,debate", "--out", "out")
        status, said, complaint = run(*words)
        assert status == 0, complaint
        shown = json.dumps([request.payload for request in server.requests])
        asked = len(server.requests)
        assert "candidate" not in shown  # no test reaches an agent
        assert "code of single_agent: 2 passed, 2 failed, 0 timeout, 0 crashed" in said
        summary = json.loads(Path("out/summary.json").read_text())
        assert summary["debate"]["accuracy"]["value"] == 0.5
        before = Path("out/runs/debate.jsonl").read_bytes()
        assert run(*words)[0] == 0
        assert (len(server.requests), Path("out/runs/debate.jsonl").read_bytes()) == (asked, before)
    status, said, complaint = run("eval", "topology-rescore", "out", "--read-again", "--out", "again.json")
    assert status == 0, complaint  # from what was judged then: nothing is run
    assert json.loads(Path("again.json").read_text())["debate"]["accuracy"]["value"] == 0.5
