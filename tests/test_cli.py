"""The command line: help with examples, errors in one line, and whole commands on a few claims."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from provgym.cli import app
from provgym.generators.export import load_export
from provgym.generators.tiny import build_model, build_tokenizer

COMMANDS = (
    "papt",
    "papt-seeds",
    "study",
    "warm-start",
    "version",
    "report",
    "eval walk",
    "eval judge",
    "eval rescore",
    "data graphecho",
    "data check",
)
SOURCE = Path(__file__).resolve().parent.parent / "src" / "provgym" / "configs" / "papt" / "source.yaml"


class Answer:
    """What a command said."""

    def __init__(self, status: int, text: str, error: str) -> None:
        self.status, self.text, self.error = status, text, error


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """Run a command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("PROVGYM_DEBUG", raising=False)

    def invoke(*words: str) -> Answer:
        result = CliRunner().invoke(app, list(words))
        return Answer(result.exit_code, result.stdout, result.stderr)

    return invoke


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(run: Callable[..., Answer], command: str) -> None:
    answer = run(*command.split(), "--help")
    assert answer.status == 0
    assert f"Example: provgym {command}" in answer.text


def test_help_lists_every_command_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom provgym.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'trl', 'transformers', 'wandb', 'networkx', 'pydantic'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "HEAVY []" in done.stdout
    for command in COMMANDS:
        assert command.split()[0] in done.stdout


def test_version(run: Callable[..., Answer]) -> None:
    import provgym

    assert run("version").text == f"provgym {provgym.__version__}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("eval walk --policy naiv", "did you mean naive?"),
        ("eval walk --policy naive --budget 0", "budgets.0: Input should be greater than or equal to 1; found 0"),
        ("eval walk --policy naive --mitigation M7", "'M0', 'M1', 'M2' or 'M3'; found 'M7'"),
        ("eval walk --policy naive --conditions C9", "condition 'C9' is unknown"),
        ("eval walk --policy naive --moves short", "moves: Input should be 'labelled' or 'aliases'; found 'short'"),
        ("eval walk --policy naive --source-labels long", "'short', 'shuffled' or 'real'; found 'long'"),
        ("eval walk --policy naive --preview-ids never", "'shown' or 'visited'; found 'never'"),
        ("eval walk --policy naive --samples 3", "--samples 3 would play one episode 3 times; add --sampled"),
        ("eval walk --policy naive --temperature 0.5", "add --sampled"),
        ("eval walk --policy naive --claims a.jsonl --scifact b", "--claims and --scifact exclude each other"),
        ("eval walk --policy naive --claims nowhere.jsonl", "nowhere.jsonl does not exist"),
        ("eval walk --policy naive --scifact nowhere", "claims_dev.jsonl does not exist"),
        ("eval walk --policy endpoint", "lacks --base-url and --model"),
        (
            "eval walk --policy tiny --max-rows 0 --limit 1",
            "max_rows: Input should be greater than or equal to 1; found 0",
        ),
        ("eval walk --policy naive --policy naive --limit 1", "two policies are called 'naive'"),
        ("eval rescore nowhere", "nowhere does not exist"),
        ("eval rescore nowhere --variant half", "--variant 'half': Input should be 'full'"),
        ("eval rescore nowhere --weight echo", "expected TERM=NUMBER"),
        ("eval rescore nowhere --weight ecko=1", "['ecko'] are unknown"),
        ("data graphecho --out x --conditions C9", "condition 'C9' is unknown"),
        ("data graphecho --out x --format csv", "--format 'csv': Input should be 'jsonl', 'parquet' or 'both'"),
        ("data graphecho --out x --train -1", "-1"),
        ("data check nowhere.jsonl", "nowhere.jsonl does not exist"),
        ("warm-start --config nowhere.yaml", "configuration file nowhere.yaml does not exist"),
        (f"warm-start --config {SOURCE}", "is unknown"),
        (f"warm-start --config {SOURCE} --kind chta", "key 'kind': Input should be 'tiny' or 'chat'; found 'chta'"),
        ("papt --config nowhere.yaml", "configuration file nowhere.yaml does not exist"),
        (f"papt --config {SOURCE} --optim.learing_rate 1", "did you mean 'optim.learning_rate'?"),
        (f"papt-seeds --config {SOURCE} --seeds 1", "at least two seeds"),
    ],
)
def test_mistakes_are_one_line_and_status_2(run: Callable[..., Answer], words: str, said: str) -> None:
    answer = run(*words.split())
    assert answer.status == 2
    lines = [line for line in answer.error.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert said in lines[0]
    assert "Traceback" not in answer.error


@pytest.mark.parametrize("command", ["walk", "judge"])
def test_twins_are_refused_before_anyone_plays(run: Callable[..., Answer], tmp_path: Path, command: str) -> None:
    words = f"eval {command} --policy naive --policy oracle --policy naive --limit 1 --out out"
    answer = run(*words.split())
    assert answer.status == 2
    assert "are called 'naive'; evaluate them apart" in answer.error
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback(run: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROVGYM_DEBUG", "1")
    result = CliRunner().invoke(app, ["eval", "walk", "--policy", "naiv"])
    assert isinstance(result.exception, FileNotFoundError)


def test_interrupt_is_status_130(run: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    import provgym.eval.walk_policies

    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(provgym.eval.walk_policies, "evaluate_policies", interrupt)
    answer = run("eval", "walk", "-p", "naive")
    assert answer.status == 130
    assert "the same command goes on" in answer.error


def test_our_own_bugs_are_not_dressed_up(run: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    import provgym.eval.walk_policies

    def broken(*args: object, **kwargs: object) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(provgym.eval.walk_policies, "evaluate_policies", broken)
    result = CliRunner().invoke(app, ["eval", "walk", "-p", "naive"])
    assert isinstance(result.exception, TypeError)


def test_walk_end_to_end_on_two_policies(run: Callable[..., Answer], tmp_path: Path) -> None:
    words = (
        "eval",
        "walk",
        "-p",
        "naive",
        "-p",
        "oracle",
        "--limit",
        "2",
        "--conditions",
        "C3",
        "--out",
        "out",
        "--parquet",
    )
    answer = run(*words)
    assert answer.status == 0, answer.error
    assert "4 episodes of 2 claims, split test, M1, budget 6, greedy, seed 42" in answer.text
    assert "probe: constant" in answer.text
    assert "oracle - naive" in answer.text
    oracle = json.loads((tmp_path / "out" / "oracle" / "summary.json").read_text())
    assert oracle["metrics"]["accuracy"] == {"value": 1.0, "low": 1.0, "high": 1.0, "n": 2}
    assert oracle["conditions"] == ["C3", "general"]
    assert (tmp_path / "out" / "naive" / "episodes.parquet").is_file()
    assert (tmp_path / "out" / "plots" / "policies.png").is_file()
    compared = json.loads((tmp_path / "out" / "comparison.json").read_text())["comparisons"]
    assert {(c["first"], c["second"]) for c in compared} == {("oracle", "naive")}
    assert "| oracle | " in (tmp_path / "out" / "report.md").read_text()
    assert run(*words).text == answer.text  # nothing left to play: the same figures again
    refused = run(*words, "--seed", "1")
    assert refused.status == 2
    assert "holds an evaluation with config_hash" in refused.error


def test_several_mitigations_and_budgets(run: Callable[..., Answer]) -> None:
    settings = ("--mitigation", "M0", "--mitigation", "M2", "--budget", "3", "--budget", "6")
    answer = run(
        "eval", "walk", "-p", "random", "--limit", "1", "--conditions", "C1", "--general-draws", "0", *settings
    )
    assert answer.status == 0, answer.error
    assert "4 episodes of 1 claims" in answer.text
    for setting in ("M0/B3", "M0/B6", "M2/B3", "M2/B6"):
        assert setting in answer.text


@pytest.mark.parametrize(
    ("words", "moves"),
    [((), r"Left 5\. Moves S\d n\d.*\[n0\]\."), (("--moves", "aliases"), r"Left 5\. Moves n0[-n\d ]*\.")],
)
def test_how_walks_are_shown_reaches_the_episodes(
    run: Callable[..., Answer], tmp_path: Path, words: tuple[str, ...], moves: str
) -> None:
    asked = ("eval", "walk", "-p", "naive", "--limit", "1", "--conditions", "C2", "--general-draws", "0")
    answer = run(*asked, "--out", "out", "--source-labels", "shuffled", "--preview-ids", "shown", *words)
    assert answer.status == 0, answer.error
    (line,) = (tmp_path / "out" / "naive" / "episodes.jsonl").read_text().splitlines()
    second = json.loads(line)["turns"][1]["observation"].splitlines()
    assert re.fullmatch(moves, second[-1]), second[-1]
    config = json.loads((tmp_path / "out" / "naive" / "summary.json").read_text())["config"]
    assert (config["source_labels"], config["moves"]) == ("shuffled", "aliases" if words else "labelled")


def test_tiny_policy_on_scifact_is_called_not_meaningful(
    run: Callable[..., Answer], tmp_path: Path, shared_data: Path
) -> None:
    """The report of real dev claims: what was kept, what was left out, constant SUPPORT beside, unknown tokens."""
    build_model(1, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16).save_pretrained(tmp_path / "t")
    build_tokenizer().save_pretrained(tmp_path / "t")
    answer = run("eval", "walk", "-p", "t", "--scifact", str(shared_data / "scifact"), "--limit", "3")
    assert answer.status == 0, answer.error
    assert "kept 188 of 300 claims (124 SUPPORT, 64 CONTRADICT = REFUTE)" in answer.text
    assert "10 claims have more than one evidence document" in answer.text
    assert "left out 112 claims" in answer.text
    assert "probe: constant" in answer.text
    assert "macro_f1" in answer.text
    assert "unknown_token_rate" in answer.text
    assert "figures are not meaningful" in answer.text


def test_constant_support_beside_scifact_figures(run: Callable[..., Answer], tmp_path: Path, shared_data: Path) -> None:
    words = (
        "eval",
        "walk",
        "-p",
        "oracle",
        "--scifact",
        str(shared_data / "scifact"),
        "--conditions",
        "one_doc_one_route",
    )
    answer = run(*words, "--out", "out")
    assert answer.status == 0, answer.error
    probes = json.loads((tmp_path / "out" / "oracle" / "summary.json").read_text())["probes"]["conditions"]
    assert probes[0]["name"] == "constant SUPPORT"
    assert probes[0]["accuracy"] == pytest.approx(124 / 188)


def test_rescore_a_stored_evaluation(run: Callable[..., Answer], tmp_path: Path) -> None:
    assert run("eval", "walk", "-p", "oracle", "--limit", "1", "--out", "out", "--general-draws", "0").status == 0
    answer = run("eval", "rescore", "out/oracle", "--variant", "verdict_only", "--out", "again.json")
    assert answer.status == 0, answer.error
    metrics = json.loads((tmp_path / "again.json").read_text())["metrics"]
    assert metrics["reward"]["value"] == metrics["reward_verdict"]["value"] == 1.0
    answer = run("eval", "rescore", "out/oracle/episodes.jsonl", "--weight", "coverage=2", "--out", "more.json")
    more = json.loads((tmp_path / "more.json").read_text())["metrics"]
    weights = {"verdict": 1.0, "count": 0.4, "coverage": 2.0, "echo": -0.4, "cost": -0.05, "illegal": 0.0}
    terms = {name: more[f"reward_{name}"]["value"] for name in weights}
    expected = sum(weight * terms[name] for name, weight in weights.items())
    assert more["reward"]["value"] == pytest.approx(expected)


def test_export_check_and_walk_round_trip(run: Callable[..., Answer], tmp_path: Path) -> None:
    answer = run(
        "data", "graphecho", "--out", "data", "--train", "2", "--dev", "1", "--test", "2", "--conditions", "C1,C2"
    )
    assert answer.status == 0, answer.error
    assert "train: 2 claims, 4 instances" in answer.text
    loaded = load_export(tmp_path / "data")
    assert {split: len(found) for split, found in loaded.items()} == {"train": 4, "dev": 2, "test": 4}
    answer = run("data", "check", "data/train.jsonl", "data/dev.jsonl", "data/test.jsonl")
    assert answer.status == 0, answer.error
    assert "kept 10 instances, left out 0 bad lines" in answer.text
    assert "test: 2 claims, 4 instances; gold: 4 MIXED; conditions: 2 C1, 2 C2" in answer.text
    answer = run("eval", "walk", "-p", "oracle", "--claims", "data/test.jsonl")
    assert answer.status == 0, answer.error
    assert "4 episodes of 2 claims" in answer.text


def test_check_names_every_bad_line(run: Callable[..., Answer], tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"id": 1}\nnull\n')
    answer = run("data", "check", "bad.jsonl")
    assert answer.status == 2
    assert "bad.jsonl, line 1: field 'claim' is missing" in answer.text
    assert "bad.jsonl, line 2: found null" in answer.text
    assert "error: bad.jsonl: 2 bad lines, 0 instances; the first: bad.jsonl, line 1: field 'claim'" in answer.error


def test_passed_on_words_reach_the_trainer(run: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    import provgym.trainers.papt
    import provgym.trainers.papt_seeds

    seen: list[list[str]] = []

    def record(words: list[str]) -> int:
        seen.append(words)
        return 7

    monkeypatch.setattr(provgym.trainers.papt, "main", record)
    monkeypatch.setattr(provgym.trainers.papt_seeds, "main", record)
    given = ("--seed", "43", "--optim.learning_rate=1e-4", "--lora", "null", "--phases.0.weights", "{echo: -1}")
    assert run("papt", "--config", "a.yaml", "--fresh", *given).status == 7
    assert seen[0] == ["--config", "a.yaml", "--fresh", *given]
    assert run("papt-seeds", "--config", "a.yaml", "--jobs", "2", "--seeds", "1,2", *given).status == 7
    assert seen[1][0] == "--config=a.yaml"
    assert {"--jobs=2", "--seeds=1,2"} <= set(seen[1])
    assert seen[1][-len(given) :] == list(given)


def test_warm_start_command(run: Callable[..., Answer], tmp_path: Path) -> None:
    steps = ("--drill_steps", "1", "--clone_steps", "1", "--drill_rows", "2", "--clone_rows", "2")
    small = ("--hidden_size", "16", "--num_layers", "1", "--out", "start")
    config = SOURCE.with_name("warm-start.yaml")
    answer = run("warm-start", "--config", str(config), *steps, *small)
    assert answer.status == 0, answer.error
    assert "--model.path start" in answer.text
    assert run("eval", "walk", "-p", "start", "--limit", "1", "--conditions", "C1").status == 0


def test_warm_start_command_of_a_chat_model(
    run: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``kind: chat`` in the file chooses the other warm start; what follows on the command line beats the file."""
    import provgym.trainers.chat_warm_start
    from provgym.trainers.chat_warm_start import ChatWarmStartConfig

    seen: list[ChatWarmStartConfig] = []

    def record(config: ChatWarmStartConfig, on_step: Callable[[int, int, float], None]) -> Path:
        seen.append(config)
        on_step(1, 1, 0.5)
        return config.out / "policy"

    monkeypatch.setattr(provgym.trainers.chat_warm_start, "chat_warm_start", record)
    config = SOURCE.with_name("smollm2-warm-start.yaml")
    given = ("--model.kind", "hf", "--model.path", "my-model", "--out", "start")
    answer = run("warm-start", "--config", str(config), *given)
    assert answer.status == 0, answer.error
    assert "--model.adapter start/policy" in answer.text
    assert (seen[0].model.kind, seen[0].model.path, seen[0].steps) == ("hf", "my-model", 120)
