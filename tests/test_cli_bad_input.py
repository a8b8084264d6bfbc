"""Wrong requests end in one line that names found, expected and the way out, with status 2 and nothing half done."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from provgym.generators.graphecho import GraphEcho
from provgym.generators.scripted import ScriptedPolicy, naive_path_counter
from provgym.rewards.outcome import Ending

Run = Callable[..., tuple[int, str, str]]
Refusal = Callable[..., str]
NAIVE = ("eval", "walk", "-p", "naive", "--limit", "1", "--conditions", "C1", "--general-draws", "0")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("eval walk -p naive --budget x", "'--budget': Input should be a valid integer.*; found 'x'.*walk --help"),
        ("eval walk -p naive --seed 1e3", "'--seed'.*; found '1e3'"),
        ("eval walk", "Missing option '--policy' / '-p'. See provgym eval walk --help"),
        ("eval walk --polcy naive", "No such option: --polcy .*--policy.* See provgym eval walk --help"),
        ("eval wakl", "No such command 'wakl'.* See provgym eval --help"),
        ("evil", "No such command 'evil'.* See provgym --help"),
        ("--evil", "No such option: --evil"),
        ("data check", "Missing argument 'files'. See provgym data check --help"),
        ("papt --name x", "Missing option '--config'. See provgym papt --help"),
        ("papt-seeds --config a.yaml --jobs two", "'--jobs'.*; found 'two'"),
        ("eval walk -p naive --budget 99999", "less than or equal to 10000; found 99999"),
        ("eval walk -p naive --budget -1", "greater than or equal to 1; found -1"),
        ("eval walk -p random --sampled --samples 99999999999", "less than or equal to 1000; found 99999999999"),
        ("eval walk -p naive --sampled --samples 3", "--sampled, at temperature 1.0 does nothing for policy 'naive'"),
        ("eval walk -p tiny --sampled --temperature 0", "--temperature 0 is greedy decoding, found --sampled"),
        ("eval walk -p tiny --sampled --temperature -1", "greater than or equal to 0; found -1"),
        ("eval walk -p tiny --max-rows 99999999", "less than or equal to 4096; found 99999999"),
        ("eval walk -p naive --max-rows 4", "--max-rows 4 does nothing for policy 'naive'"),
        ("eval walk -p naive --grammar json", "--grammar json does nothing for policy 'naive'"),
        ("eval walk -p naive -p tiny --grammar json", "--grammar json does nothing for policy 'naive', 'tiny'"),
        ("eval walk -p naive --max-length 9", "--max-length 9 does nothing for policy 'naive'"),
        ("eval walk -p naive --lenient", "--lenient is about the lines of files"),
        ("eval walk -p naive --data-seed 0 --claims a.jsonl", "--claims and --data-seed exclude each other"),
        ("data graphecho --out x --train 99999999999", "6 instances each are 600000001794, expected at most 1000000"),
        ("data graphecho --out x --train 9 --general-draws 999999", "expected at most 1000000 in all"),
        ("data graphecho --out x --train 1 --general-draws 0", "general_draws=0 must be >= 1"),
        ("eval rescore x --weight echo=1 --weight echo=2", "echo has 1.0 already; name each term once"),
    ],
)
def test_one_line_says_what_is_wrong(refusal: Refusal, tmp_path: Path, words: str, said: str) -> None:
    """Kind: config typing, on the command line (a bad value stops at once; nothing is left behind)."""
    line = refusal(*words.split())
    assert re.search(said, line), line
    assert list(tmp_path.iterdir()) == []


def test_more_claims_than_memory_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="hold 1000000000 claims, expected at most 500000"):
        GraphEcho.generate(1, {"train": 10**9})


CONFIG = ("--config", str(Path(__file__).resolve().parent.parent / "src/provgym/configs/papt/tiny.yaml"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("eval", "walk", "-p", "naive", "--conditions", ","),
            "--conditions ',' names nothing, expected names by commas",
        ),
        (("eval", "walk", "-p", "naive", "--conditions", " "), "--conditions ' ' names nothing"),
        (("eval", "judge", "-p", "naive", "--conditions", ",,"), "--conditions ',,' names nothing"),
        (("eval", "judge", "-p", "naive", "--conditions", "", "--general-draws", "0"), "there is nothing to play"),
        (("eval", "judge", "-p", "naive", "--conditions", "C1,C1"), "names something twice"),
        (
            ("eval", "walk", "-p", "naive", "--claims", "a.jsonl", "--conditions", ""),
            "conditions is empty: nothing",
        ),
        (("eval", "walk", "-p", "naive", "--mitigation", ""), "'M0', 'M1', 'M2' or 'M3'; found ''"),
        (("eval", "judge", "-p", "naive", "--mitigation", "M0,M1"), "'M0', 'M1', 'M2' or 'M3'; found 'M0,M1'"),
        (("eval", "walk", "-p", "naive", "--budget", ""), "'--budget'"),
        (("eval", "walk", "-p", ","), "policy ',' is no folder, no name and no hub id"),
        (("eval", "judge", "-p", ""), "is no folder, no name and no hub id"),
        (("eval", "walk", "-p", "naive", "--claims", ""), "is a folder, expected a file"),
        (("data", "graphecho", "--out", "x", "--conditions", ","), "--conditions ',' names nothing"),
        (("papt", *CONFIG, "--evaluation.conditions", ","), "evaluation.conditions"),
        (("papt", *CONFIG, "--evaluation.conditions", "[,]"), "evaluation.conditions"),
        (("papt", *CONFIG, "--evaluation.conditions", "['']"), "evaluation.*condition ''"),
        (("papt", *CONFIG, "--evaluation.conditions", "C1,C3"), "evaluation.conditions"),
        (("papt", *CONFIG, "--checkpoints.dev_conditions", "[]"), "checkpoints.dev_conditions: .*nothing to play"),
        (("papt", *CONFIG, "--data.conditions", "[]"), "conditions is empty; name at least one"),
        (("papt", *CONFIG, "--data.conditions", ","), "data.conditions"),
        (("papt", *CONFIG, "--walk.budgets", "[]"), "budgets .* must hold numbers of walks"),
        (("papt", *CONFIG, "--walk.budgets", ","), "walk.budgets"),
        (("papt", *CONFIG, "--walk.presentations", ","), "walk.presentations"),
        (("papt", *CONFIG, "--phases", "[]"), "phases"),
    ],
)
def test_a_list_that_names_nothing_is_refused_by_name(
    refusal: Refusal, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    """Kind: config typing. A comma alone is a slip, and must not quietly play something else than was meant."""
    line = refusal(*words)
    assert re.search(said, line), line
    assert list(tmp_path.iterdir()) == []


def test_no_named_condition_can_be_asked_for(run: Run, tmp_path: Path) -> None:
    """An empty text is a request: general conditions alone."""
    for command in ("walk", "judge"):
        words = ("eval", command, "-p", "oracle", "--limit", "1", "--conditions", "", "--out", command)
        assert run(*words)[0] == 0
        assert json.loads((tmp_path / command / "oracle" / "summary.json").read_text())["conditions"] == ["general"]


@pytest.mark.parametrize("policy", ["", "  ", "no such policy"])
def test_a_policy_without_a_name_is_none(refusal: Refusal, policy: str) -> None:
    assert "is no folder, no name and no hub id" in refusal("eval", "walk", "-p", policy)


def test_a_group_alone_shows_its_help(run: Run) -> None:
    for words in ((), ("eval",), ("data",)):
        status, out, err = run(*words)
        assert status == 2
        assert "Usage" in out + err
        assert "error:" not in err


def test_names_may_have_spaces_around_commas(run: Run, tmp_path: Path) -> None:
    words = ("data", "graphecho", "--out", "d", "--train", "1", "--dev", "0", "--test", "0", "--conditions", "C1, C2,")
    assert run(*words)[0] == 0
    assert json.loads((tmp_path / "d" / "dataset.json").read_text())["conditions"] == ["C1", "C2"]


def test_data_seed_zero_is_a_seed(run: Run, tmp_path: Path) -> None:
    """Kind: global RNG (seed 0 is a seed)."""
    assert run(*NAIVE, "--data-seed", "0", "--out", "out")[0] == 0
    summary = json.loads((tmp_path / "out" / "naive" / "summary.json").read_text())
    assert summary["config"]["claims"]["seed"] == 0


def test_folders_that_are_not_for_results(refusal: Refusal, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file is a file, expected a folder" in refusal(*NAIVE, "--out", "file")
    assert "file is a file, expected a folder" in refusal(*NAIVE, "--out", "file/below")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert "folder of a run, a model or a single evaluation" in refusal(*NAIVE, "--out", "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoints"]


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="/proc stands for a folder that nobody can write to")
def test_a_folder_that_cannot_be_written(refusal: Refusal, tmp_path: Path) -> None:
    """One message, from every command that writes, before anything is loaded; nothing is left behind.

    Permissions don't stop the superuser, /proc does.
    """
    configs = Path(__file__).resolve().parent.parent / "src" / "provgym" / "configs"
    papt, judge = configs / "papt", ("eval", "judge", *NAIVE[2:])
    study = ("study", "--config", str(configs / "studies" / "papt-ablations.yaml"))
    for words, named in (
        ((*NAIVE, "--out", "/proc/nope"), "--out /proc/nope"),
        ((*judge, "--out", "/proc/nope/below"), "--out /proc/nope/below"),
        ((*NAIVE, "--endpoint-dir", "/proc/nope"), "--endpoint-dir /proc/nope"),
        (("eval", "rescore", "nowhere", "--out", "/proc/nope.json"), "--out /proc/nope.json: the folder /proc"),
        (("report", "nowhere", "--out", "/proc/nope.html"), "--out /proc/nope.html: the folder /proc"),
        (("data", "graphecho", "--out", "/proc/nope", "--train", "1"), "--out /proc/nope"),
        (("warm-start", "--config", str(papt / "warm-start.yaml"), "--out", "/proc/nope"), "--out /proc/nope"),
        (("warm-start", "--config", str(papt / "smollm2-warm-start.yaml"), "--out", "/proc/x"), "--out /proc/x"),
        (("papt", "--config", str(papt / "tiny.yaml"), "--runs_dir", "/proc/x"), "runs_dir /proc/x/papt-tiny"),
        (
            ("papt-seeds", "--config", str(papt / "tiny.yaml"), "--runs_dir", "/proc/x"),
            "runs_dir /proc/x/papt-tiny-",
        ),
    ):
        line = refusal(*words)
        assert line.startswith(f"error: {named}"), line
        assert " cannot be written: no file can be made in /proc (" in line
        assert "name another one" in line
    assert refusal(*study, "--runs_dir", "/proc/x").endswith("set the study's own seeds, name or runs_dir")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_evaluation_is_named(run: Run, refusal: Refusal) -> None:
    assert run(*NAIVE, "--out", "out")[0] == 0
    episodes = Path("out/naive/episodes.jsonl")
    whole = episodes.read_bytes()
    episodes.write_bytes(whole + b'{"half')
    line = refusal(*NAIVE, "--out", "out")
    assert "episodes.jsonl, line 2: found" in line
    assert "the file ends inside this line. Remove that line" in line
    assert "line 2: found" in refusal("eval", "rescore", "out/naive")
    episodes.write_bytes(whole)
    Path("out/naive/config.yaml").write_text(": [")
    assert "out/naive/config.yaml is not valid YAML" in refusal(*NAIVE, "--out", "out")


def test_rescore_names_what_it_found(run: Run, refusal: Refusal) -> None:
    assert run(*NAIVE, "--out", "out")[0] == 0
    assert "one folder for each policy; name one: out/naive" in refusal("eval", "rescore", "out")
    assert "out/plots holds no episodes.jsonl; expected" in refusal("eval", "rescore", "out/plots")
    assert "expected one that ends in .jsonl or .parquet" in refusal("eval", "rescore", "out/naive/summary.json")
    assert "--out out is a folder, expected a file" in refusal("eval", "rescore", "out/naive", "--out", "out")
    Path("empty.jsonl").touch()
    assert "no episode with a score, expected at least one" in refusal("eval", "rescore", "empty.jsonl")
    Path("null.jsonl").write_text("null\n")
    assert "null.jsonl, line 1: found" in refusal("eval", "rescore", "null.jsonl")
    Path("out/naive/episodes.jsonl").rename("out/naive/episodes.part-00000.jsonl")
    assert "that evaluation has not finished" in refusal("eval", "rescore", "out/naive")


class _Unreachable(ScriptedPolicy):
    """Stands for an endpoint that nobody answers at."""

    def play(self, tasks, on_episode=None):  # type: ignore[no-untyped-def]
        played = super().play(tasks)
        failed = [replace(episode.outcome, ending=Ending.ERROR, judgement=None) for episode in played]
        return [replace(e, outcome=o, error="connection refused") for e, o in zip(played, failed, strict=True)]


def test_a_policy_that_fails_every_time_is_an_error(
    run: Run, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kind: endpoint failure scored as wrong. Nothing was measured, so the command does not end well."""
    unreachable = _Unreachable("naive", naive_path_counter)
    with monkeypatch.context() as patch:
        patch.setattr("provgym.eval.walk_policies.load_policy", lambda spec: unreachable)
        line = refusal(*NAIVE, "--out", "out")
    assert "naive: all 1 episodes ended in an error, so nothing was measured; the first: connection refused" in line
    assert run(*NAIVE, "--out", "out")[0] == 0  # the same command, once it can be reached


def test_memory_that_runs_out_says_what_to_lower(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(spec: object) -> None:
        raise MemoryError

    monkeypatch.setattr("provgym.eval.walk_policies.load_policy", hungry)
    line = refusal(*NAIVE)
    assert "MemoryError; too much at once for this machine's memory: lower --max-rows" in line


def test_check_says_what_is_wrong_with_a_file(refusal: Refusal) -> None:
    """Kind: Unicode lines (half a last line, nothing at all)."""
    Path("empty.jsonl").touch()
    assert "empty.jsonl: no line with a claim, expected at least one" in refusal("data", "check", "empty.jsonl")
    Path("half.jsonl").write_text('{"id": "a", "cla')
    line = refusal("data", "check", "half.jsonl")
    assert "half.jsonl: 1 bad lines, 0 instances; the first: half.jsonl, line 1: found" in line
    assert "the file ends inside this line" in line


def test_an_export_touches_no_file_of_the_users(run: Run, refusal: Refusal) -> None:
    small = ("data", "graphecho", "--out", "d", "--dev", "0", "--conditions", "C1")
    Path("d").mkdir()
    Path("d/train.jsonl").write_text("mine\n")
    assert "d holds train.jsonl, and no dataset.json" in refusal(*small, "--train", "1", "--test", "1")
    assert Path("d/train.jsonl").read_text() == "mine\n"
    Path("d/train.jsonl").unlink()
    assert run(*small, "--train", "1", "--test", "1")[0] == 0
    assert run(*small, "--train", "2", "--test", "0")[0] == 0
    # The test split of the first export holds a claim of the second one's train split: it must not stay.
    assert sorted(path.name for path in Path("d").iterdir()) == ["dataset.json", "train.jsonl"]
