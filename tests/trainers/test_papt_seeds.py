"""Several seeds and reward variants: the plan, running what is missing, and pooling with every seed shown."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.trainers.finished_runs import base_config, write_finished
from tests.trainers.run_stub import launch_stub

from provgym.trainers import papt_seeds, run_grid
from provgym.trainers.config_file import ConfigError, dump_config
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.papt_seeds import plan_runs, summarise_seeds
from provgym.trainers.run_grid import command_of, run_missing
from provgym.trainers.seed_summary import pool, read_seed, seed_tables, variant_tables


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs of the seeds 1 and 2 and of two variants, to be copied into place by the stand-in."""
    folder = tmp_path_factory.mktemp("finished")
    for run in plan_runs(base_config(folder), [1, 2], ["full", "verdict_only"]):
        write_finished(folder / run.config.name, run)
    return folder


@pytest.fixture
def launched(finished: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let runs be played by the stand-in; returns the file that lists what was launched."""
    return launch_stub(finished, monkeypatch)


def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(dump_config(base_config(tmp_path / "runs")))
    return path


def test_plan_names_every_run_and_shares_what_is_the_same(tmp_path: Path) -> None:
    config = base_config(tmp_path)
    plain = plan_runs(config, [42, 43])
    assert [(r.config.name, r.seed, r.label) for r in plain] == [("run-s42", 42, "full"), ("run-s43", 43, "full")]
    varied = plan_runs(config, [42, 43], ["full", "no_echo"])
    assert [r.config.name for r in varied] == ["run-s42", "run-s43", "run-s42-no_echo", "run-s43-no_echo"]
    assert [r.config for r in varied[:2]] == [r.config for r in plain]
    assert {phase.variant for phase in varied[2].config.phases} == {"no_echo"}
    assert [phase.steps for phase in varied[2].config.phases] == [3, 2]


def test_plan_of_phases_that_differ(tmp_path: Path) -> None:
    config = base_config(tmp_path, phases=[{"steps": 1}, {"steps": 1, "variant": "no_echo"}])
    assert [r.label for r in plan_runs(config, [1, 2])] == ["mixed", "mixed"]
    assert [r.config.name for r in plan_runs(config, [1, 2], ["full"])] == ["run-s1-full", "run-s2-full"]


@pytest.mark.parametrize(
    ("seeds", "variants", "said"),
    [
        ([1], [], "at least two seeds"),
        ([1, 1], [], "names something twice"),
        ([1, 2], ["full", "full"], "names something twice"),
        ([1, 2], ["half"], "half: unknown; choose from full,no_echo,no_coverage,verdict_only"),
    ],
)
def test_impossible_plans(tmp_path: Path, seeds: list[int], variants: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan_runs(base_config(tmp_path), seeds, variants)


def test_runs_once_and_skips_what_is_finished(
    tmp_path: Path, launched: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", str(config_file(tmp_path)), "--seeds", "1,2"]
    assert papt_seeds.main(words) == 0
    assert launched.read_text().split() == ["run-s1", "run-s2"]
    assert papt_seeds.main(words) == 0
    assert launched.read_text().split() == ["run-s1", "run-s2"]
    assert "2 runs: 2 finished, 0 to do" in capfd.readouterr().out
    # The variant that equals the configuration's own objective is not trained again.
    assert papt_seeds.main([*words, "--variants", "full,verdict_only"]) == 0
    assert launched.read_text().split()[2:] == ["run-s1-verdict_only", "run-s2-verdict_only"]


def test_each_run_gets_its_resolved_configuration(tmp_path: Path, launched: Path) -> None:
    config = base_config(tmp_path / "runs")
    runs = plan_runs(config, [1, 2])
    assert run_missing(runs, tmp_path / "folder", jobs=2, accelerate=None) == []
    for run in runs:
        written = yaml.safe_load((tmp_path / "folder" / "configs" / f"{run.config.name}.yaml").read_text())
        assert PaptConfig.model_validate(written) == run.config
        assert (tmp_path / "folder" / "logs" / f"{run.config.name}.log").is_file()


def test_one_failure_loses_nothing(
    tmp_path: Path, finished: Path, launched: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One failure loses its siblings: the other runs are kept, and only the failed one is run again."""
    (finished / "FAIL-run-s1").touch()
    words = ["--config", str(config_file(tmp_path)), "--seeds", "1,2"]
    assert papt_seeds.main(words) == 1
    assert "1 of 2 runs failed (run-s1)" in capfd.readouterr().err
    assert not (tmp_path / "runs" / "run-seeds" / "summary.json").exists()  # never pooled over fewer seeds
    (finished / "FAIL-run-s1").unlink()
    assert papt_seeds.main(words) == 0
    assert launched.read_text().split() == ["run-s1", "run-s2", "run-s1"]


def test_another_training_under_the_same_name_is_refused(
    tmp_path: Path, launched: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", str(config_file(tmp_path)), "--seeds", "1,2"]
    assert papt_seeds.main(words) == 0
    assert papt_seeds.main([*words, "--optim.learning_rate", "0.5"]) == 2
    message = capfd.readouterr().err
    assert "run-s1/summary.json was trained under configuration" in message
    assert "another name" in message
    assert papt_seeds.main([*words, "--tracking.wandb", "disabled"]) == 0  # does not change what is trained
    (tmp_path / "runs" / "run-s1" / "summary.json").write_text("{half")
    assert papt_seeds.main(words) == 2
    assert "is no summary of a run" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seeds", "1,x"], "must be whole numbers"),
        (["--jobs", "0"], "must be >= 1"),
        (["--stall-hours", "0"], "--stall-hours 0.0 must be > 0"),
        (["--stall-hours", "nan"], "--stall-hours nan must be > 0"),
        (["--seeds", ","], "--seeds ',' names nothing"),
        (["--seeds", "42,042"], "names something twice"),
        (["--variants", "full,full"], "--variants full,full names something twice"),
        (["--runs_dir", "/proc/runs"], "runs_dir /proc/runs/run-seeds cannot be written"),
        (["--accelerate", "nowhere.yaml"], "does not exist"),
        (["--sede", "1"], "key 'sede' is unknown; did you mean 'seed'?"),
    ],
)
def test_bad_command_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert papt_seeds.main(["--config", str(config_file(tmp_path)), *words]) == 2
    assert said in capfd.readouterr().err


def test_interrupt_ends_the_running_process(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    plain_popen = subprocess.Popen

    def remember(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        started.append(plain_popen(*args, **kwargs))
        return started[-1]

    plain_sleep = time.sleep

    def interrupt(seconds: float) -> None:
        monkeypatch.setattr(time, "sleep", plain_sleep)  # once: ending the process waits a moment too
        raise KeyboardInterrupt

    monkeypatch.setattr(run_grid, "command_of", lambda *_: [sys.executable, "-c", "import time; time.sleep(600)"])
    monkeypatch.setattr(subprocess, "Popen", remember)
    monkeypatch.setattr(time, "sleep", interrupt)
    assert papt_seeds.main(["--config", str(config_file(tmp_path)), "--seeds", "1,2"]) == 130
    assert "the same command goes on" in capfd.readouterr().err
    (process,) = started
    assert process.poll() is not None


def test_command_of_a_run() -> None:
    plain = command_of("provgym.trainers.papt", Path("a.yaml"), None)
    assert plain == [sys.executable, "-m", "provgym.trainers.papt", "--config", "a.yaml"]
    launched = command_of("provgym.trainers.papt", Path("a.yaml"), Path("cpu2.yaml"))
    assert launched[1:5] == ["-m", "accelerate.commands.launch", "--config_file", "cpu2.yaml"]
    assert launched[5:] == plain[1:]


def test_pooled_figures_show_every_seed(finished: Path, tmp_path: Path) -> None:
    """Pooled means and gains against each run's own summary, which was computed by another route."""
    runs = [read_seed(finished / f"run-s{seed}", seed) for seed in (1, 2)]
    result = pool("full", runs)
    for name in ("accuracy", "echo_rate", "general_source_recall"):
        own = [run.summary["trained"][name]["value"] for run in runs]
        assert result.trained[name].by_seed == pytest.approx(own)
        assert result.trained[name].overall.value == pytest.approx(sum(own) / 2)
        gains = [run.summary["gain"][name]["value"] for run in runs]
        assert result.gain[name].by_seed == pytest.approx(gains)
    assert result.trained["accuracy"].by_seed[1] == 1.0  # the perfect walker on the five conditions
    assert result.trained["accuracy"].overall.n == 40
    assert [probe.accuracy for probe in result.probes[""]] == pytest.approx([0.6, 0.8, 0.6 + 0.4 * 5 / 6])
    for table in seed_tables(result, "run"):
        assert {"seed 1", "seed 2", "pooled"} <= {row[0] for row in table.rows}
    assert variant_tables([result], "run") == []


def test_summary_and_markdown(tmp_path: Path, finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = base_config(tmp_path / "runs")
    runs = plan_runs(config, [1, 2], ["full", "verdict_only"])
    for run in runs:
        shutil.copytree(finished / run.config.name, run.run_dir)
    summarise_seeds(config, runs, tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["seeds"] == [1, 2]
    assert list(summary["variants"]) == ["full", "verdict_only"]
    full = summary["variants"]["full"]
    assert list(full["seeds"]) == ["1", "2"]
    accuracy = full["trained"]["accuracy"]
    assert accuracy["by_seed"] == [full["seeds"][s]["trained"]["accuracy"]["value"] for s in ("1", "2")]
    assert accuracy["low"] <= accuracy["value"] <= accuracy["high"]
    assert full["start"]["accuracy"]["n"] == 20  # one start, shown once
    text = (tmp_path / "out" / "results.md").read_text()
    assert text.count("| seed 1 |") == 8  # two variants, two groups of conditions, figures and gains
    assert "reward variants, pooled over seeds" in text
    assert "pooled" in capfd.readouterr().out


def test_runs_that_were_evaluated_otherwise_are_not_pooled(tmp_path: Path, finished: Path) -> None:
    run = plan_runs(base_config(tmp_path), [1, 3])[1]
    write_finished(tmp_path / "run-s3", run, limit=3)
    runs = [read_seed(finished / "run-s1", 1), read_seed(tmp_path / "run-s3", 3)]
    with pytest.raises(ValueError, match="run-s3/eval has the hashes"):
        pool("full", runs)
    with pytest.raises(ValueError, match="at least two"):
        pool("full", runs[:1])
    with pytest.raises(ValueError, match="is of seed 3, expected 4"):
        read_seed(tmp_path / "run-s3", 4)
