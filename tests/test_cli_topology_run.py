"""``provgym run topology``: what it shows, and what it refuses in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from provgym.generators.knowledge_graph_files import write_knowledge_graph
from tests.envs.workflow_worlds import QUESTION, conflict

Run = Callable[..., tuple[int, str, str]]
WORDS = ("run", "topology", "--question", QUESTION, "--evidence", "evidence.jsonl")


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    path = tmp_path / "evidence.jsonl"
    write_knowledge_graph(path, conflict().graph)
    return path


def test_it_shows_the_topology_the_messages_and_the_ledger(run: Run, evidence: Path) -> None:
    status, shown, complaint = run(*WORDS, "--topology", "with_verifier", "--gold", "REFUTE", "--seed", "1")
    assert status == 0, complaint
    assert "Topology: 3 nodes, 2 edges" in shown
    for line in ("Reasoner (0):", "Verifier (1):", "Answerer (2):", "Checked against the quoted spans."):
        assert line in shown
    assert "Units 2, 3, 4, 5 repeat the source of unit 1." in shown
    assert "[claims checked: 7 supported, 0 contradicted, 0 not found; corrected: 0; SUPPORT -> REFUTE]" in shown
    assert "Ledger (eval)" in shown
    assert "all 3 calls" in shown
    assert shown.rstrip().splitlines()[-1] == "answered answer: REFUTE right"


def test_a_team_from_a_file_and_replies_from_a_store(run: Run, evidence: Path, tmp_path: Path) -> None:
    team = {"roles": ["Answerer", "Reasoner"], "edges": [[1, 0]]}
    (tmp_path / "team.json").write_text(json.dumps(team), encoding="utf-8")
    for reply in ("paid", "stored"):
        status, shown, complaint = run(*WORDS, "--topology", "team.json", "--cache", "replies")
        assert status == 0, complaint
        assert "Topology: 2 nodes, 1 edges" in shown
        assert shown.count(f" {reply} ") >= 2
        assert "right" not in shown
        assert "wrong" not in shown


def test_a_text_of_the_world_does_not_steer_the_terminal(run: Run, evidence: Path) -> None:
    status, shown, complaint = run(*WORDS[:-1], "missing\x1b[2J.jsonl")
    assert status == 2
    assert "missing" in complaint
    assert shown == ""


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--topology", "ring"), "--topology 'ring' is no template, no file and no folder; templates are single"),
        (("--kind", "essay"), "--kind 'essay'"),
        (("--gold", "PERHAPS"), "does not accept the gold answer 'PERHAPS'|is no answer of kind"),
        (("--kind", "number"), "simulated agents give verdicts only"),
        (("--choices", "a,b"), "choices go with answer_kind 'multiple_choice'"),
        (("--base-url", "http://x/v1"), "--base-url mean"),
        (("--temperature", "0.5"), "--temperature 0.5 means nothing to --agent simulated"),
        (("--agent", "endpoint"), "lacks --base-url and --model"),
        (("--agent", "no-such-folder"), "'no-such-folder' is no folder, no name and no hub id"),
        (("--agent", "naive"), "--agent naive is no language model"),
        (("--replicate", "-1"), "replicate=-1 must be >= 0"),
        (("--seed", "-1"), "seed=-1 must be >= 0"),
        (("--depth", "0"), "--depth 0 must be >= 1"),
    ],
)
def test_mistakes_are_one_line(
    refusal: Callable[..., str], evidence: Path, words: tuple[str, ...], wanted: str
) -> None:
    import re

    assert re.search(wanted, refusal(*WORDS, *words))


def test_a_team_that_is_none_is_refused_by_name(refusal: Callable[..., str], evidence: Path, tmp_path: Path) -> None:
    """Fault kind: cyclic graph: refused with the cycle named; a doubled edge; no Answerer."""
    for roles, edges, wanted in (
        (["Planner", "Reasoner", "Answerer"], [[0, 1], [1, 0], [1, 2]], "cycle: Planner (0) -> Reasoner (1)"),
        (["Reasoner", "Answerer"], [[0, 0], [0, 1]], "cycle"),
        (["Reasoner", "Answerer"], [[0, 1], [0, 1]], "stands twice"),
        (["Reasoner"], [], "no node is the Answerer"),
        (["Poet", "Answerer"], [[0, 1]], "'Poet', which is unknown"),
    ):
        (tmp_path / "team.json").write_text(json.dumps({"roles": roles, "edges": edges}), encoding="utf-8")
        line = refusal(*WORDS, "--topology", "team.json")
        assert wanted.replace("(0) -> Reasoner (1)", "") in line or wanted in line
    (tmp_path / "team.json").write_text("{", encoding="utf-8")
    assert "not the JSON of a topology" in refusal(*WORDS, "--topology", "team.json")


def test_a_server_that_fails_is_an_error_with_what_was_said(run: Run, evidence: Path) -> None:
    """Fault kind: endpoint failure scored as wrong."""
    file = evidence.with_name("endpoint.yaml")
    file.write_text("base_url: http://127.0.0.1:9/v1\nmodel: m\nmax_attempts: 1\n", encoding="utf-8")
    status, shown, complaint = run(*WORDS, "--agent", "endpoint", "--endpoint-file", str(file), "--topology", "single")
    assert status == 2
    assert "failed: connection" in shown
    assert "error answer" not in shown
    assert complaint.startswith("error: Answerer (0): connection: ")


def test_a_trained_generator_chooses_the_team(run: Run, evidence: Path, tmp_path: Path) -> None:
    """A run's folder as --topology: its own encoder and depth; the team is the one that its generator decodes."""
    from provgym.generators.hashed_encoder import HashedEncoder
    from provgym.generators.kgat_context import ContextBatch, embed_contexts
    from provgym.generators.kgat_folder import StoredGenerator, save_generator
    from provgym.generators.kgat_model import KgatModel
    from provgym.generators.retriever import Retriever
    from provgym.trainers.config_file import dump_config
    from tests.trainers.kgat_runs import make_config

    encoder = HashedEncoder()
    graph = conflict().graph
    shown_teams = set()
    for seed in range(3):
        config = make_config(tmp_path, name=f"run-{seed}")
        model = KgatModel(config.generator, seed=seed).eval()
        save_generator(config.run_dir / "generator", StoredGenerator(model, encoder.fingerprint))
        (config.run_dir / "config.yaml").write_text(dump_config(config), encoding="utf-8")
        for words, depth in (((), config.retrieval.depth), (("--depth", "2"), 2)):
            context = Retriever(graph, encoder).retrieve(QUESTION, depth)
            (wanted,) = model.decode(ContextBatch.of(embed_contexts([QUESTION], [context], encoder)))
            status, shown, complaint = run(*WORDS, "--topology", str(config.run_dir), *words)
            assert status == 0, complaint
            assert f"Topology: {wanted.num_nodes} nodes, {wanted.num_edges} edges" in shown
            assert shown.count(" paid ") >= wanted.num_nodes
            shown_teams.add(wanted.key)
    assert len(shown_teams) > 1  # or the test could not tell one generator from another


def test_a_folder_that_is_no_finished_run_is_refused_by_name(
    refusal: Callable[..., str], evidence: Path, tmp_path: Path
) -> None:
    from provgym.trainers.config_file import dump_config
    from tests.trainers.kgat_runs import make_config

    (tmp_path / "empty").mkdir()
    assert "empty is a folder without config.yaml" in refusal(*WORDS, "--topology", "empty")
    config = make_config(tmp_path)
    config.run_dir.mkdir(parents=True)
    (config.run_dir / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    assert "holds no generator: name the folder of a finished K-GAT run" in refusal(
        *WORDS, "--topology", str(config.run_dir)
    )
