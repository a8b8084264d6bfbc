"""``provgym data knowledge``: whole commands on small files, and mistakes in one line."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from provgym.cli_knowledge import knowledge_app
from provgym.generators.claim_files import write_claims
from provgym.generators.endpoint_entry import ledger_totals
from provgym.generators.endpoint_ledger import read_ledger
from provgym.generators.graphecho import GraphEcho
from provgym.generators.knowledge_graph_files import read_knowledge_graph
from tests.protocol_server import Answer, ProtocolServer, Raw, Request, serve

Run = Callable[..., tuple[int, str, str]]
DOCS = Path(__file__).resolve().parent.parent / "docs" / "knowledge_graphs.md"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in an empty folder; returns its status, what it said and what it complained about."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("PROVGYM_DEBUG", raising=False)

    def invoke(*words: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(knowledge_app, list(words))
        return result.exit_code, result.stdout, result.stderr

    return invoke


@pytest.mark.parametrize("command", ["build", "check", "retrieve", "extract"])
def test_help_has_an_example(run: Run, command: str) -> None:
    status, text, _ = run(command, "--help")
    assert status == 0
    assert f"Example: provgym data knowledge {command}" in text


def test_claims_become_a_graph_that_is_checked_and_searched(run: Run, tmp_path: Path) -> None:
    world = GraphEcho.generate(3, {"test": 4})
    instances = world.instances("test", ["C2"])
    write_claims(tmp_path / "claims.jsonl", instances)
    status, text, _ = run("build", "claims", "claims.jsonl", "--out", "graph.parquet")
    assert status == 0
    assert "24 units in 24 documents" in text
    status, text, _ = run("check", "graph.parquet")
    assert status == 0
    assert "8 sources; the one with most units" in text
    claim = instances[2].base_claim
    status, text, _ = run("retrieve", "graph.parquet", "--question", claim.text, "-k", "6")
    assert status == 0
    assert len(text.splitlines()) == 6
    assert all(claim.entities[0] in line for line in text.splitlines())


def test_the_documented_file_is_read_as_documented(run: Run, tmp_path: Path) -> None:
    example = DOCS.read_text(encoding="utf-8").split("```jsonl\n")[1].split("```")[0]
    (tmp_path / "graph.jsonl").write_text(example, encoding="utf-8")
    graph = read_knowledge_graph(tmp_path / "graph.jsonl").graph
    assert [unit.source_id for unit in graph.units] == ["Okada 2011", "Okada 2011", "Lindqvist 2015"]
    status, text, _ = run("retrieve", "graph.jsonl", "--question", "Pressure in the green tea arm?", "-k", "1")
    assert status == 0
    assert "Lindqvist 2015" in text


def test_mistakes_are_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"kind": "unit"}\n')
    (tmp_path / "empty.jsonl").write_text("")
    for words, said in (
        (["build", "csv", "x", "--out", "y"], "kind 'csv'"),
        (["build", "scifact", "one", "--out", "y"], "scifact takes 2 files, found 1"),
        (["build", "claims", "none.jsonl", "--out", "y"], "none.jsonl does not exist"),
        (["check", "bad.jsonl"], "1 bad lines; the first: bad.jsonl, line 1: field 'head'"),
        (["retrieve", "bad.jsonl", "--question", "?"], "bad.jsonl, line 1"),
        (["retrieve", "empty.jsonl", "--question", "?", "-k", "0"], "k=0 must be >= 1"),
        (["retrieve", "empty.jsonl", "--question", "?", "--encoder", "big"], "--encoder 'big'"),
        (["retrieve", "empty.jsonl", "--question", "?", "--index", "tree"], "--index 'tree'"),
    ):
        status, _, complaint = run(*words)
        assert status == 2, words
        assert said in complaint
        assert complaint.startswith("error: ")
        assert complaint.count("\n") == 1
    assert run("retrieve", "empty.jsonl", "--question", "?")[1] == "the graph holds no unit\n"
    assert not (tmp_path / "y").exists()


# --- extraction over a real server on loopback


def answer(request: Request) -> Answer | Raw:
    passage = request.payload["messages"][-1]["content"].removeprefix("Passage:\n")
    if "silence" in passage:
        return Raw(400, b'{"error": {"message": "no"}}')
    return Answer(f"```json\n{json.dumps([{'head': 'a', 'relation': 'b', 'tail': 'c', 'quote': passage[:3]}])}\n```")


@pytest.fixture
def server() -> Iterator[ProtocolServer]:
    with serve(answer) as running:
        yield running


def test_extraction_pays_once_and_keeps_failures_apart(run: Run, server: ProtocolServer, tmp_path: Path) -> None:
    """endpoint failure scored as wrong, nothing paid twice, ledger equal to the server's own figures."""
    (tmp_path / "endpoint.yaml").write_text(f"base_url: {server.url}\nmodel: m\nmax_attempts: 1\n")
    (tmp_path / "one.txt").write_text("One fish.")
    (tmp_path / "two.txt").write_text("Two fish.")
    words = ["extract", "one.txt", "two.txt", "--endpoint-file", "endpoint.yaml", "--out", "graph.jsonl"]
    assert run(*words)[0] == 0
    first = read_knowledge_graph(tmp_path / "graph.jsonl").graph
    assert [(unit.source_id, unit.span.text) for unit in first.units] == [("one", "One"), ("two", "Two")]
    assert run(*words)[0] == 0
    assert len(server.requests) == 2
    totals = ledger_totals(read_ledger(tmp_path / "runs" / "endpoint" / "ledger.jsonl"))
    assert (totals.answered, totals.prompt_tokens, totals.completion_tokens) == (2, 200, 14)
    (tmp_path / "three.txt").write_text("silence")
    status, text, _ = run("extract", "three.txt", *words[1:])
    assert status == 1
    assert "1 passages failed" in text
    assert read_knowledge_graph(tmp_path / "graph.jsonl").graph.units == first.units
    assert run("extract", "one.txt", "one.txt", *words[3:])[0] == 2


@pytest.mark.parametrize(
    "words",
    [
        ("build", "claims", "nowhere.jsonl"),
        ("extract", "nowhere.txt", "--endpoint-file", "nowhere.yaml"),
    ],
)
def test_a_file_that_can_not_be_written_is_refused_before_anything_is_read(
    run: Run, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The inputs do not exist either: what is said is about the output, so it was looked at first."""
    (tmp_path / "folder").mkdir()
    status, _, said = run(*words, "--out", "folder")
    assert (status, "--out folder is a folder, expected a file" in said) == (2, True), said
    status, _, said = run(*words, "--out", "/proc/graph.jsonl")
    assert (status, "--out /proc/graph.jsonl: the folder /proc cannot be written" in said) == (2, True), said
