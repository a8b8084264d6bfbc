"""Running a study with a stand-in for training: what is run, what a failure does, and the figures that come out."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.trainers.finished_runs import write_finished
from tests.trainers.run_stub import launch_stub

from provgym.eval.bootstrap import paired_difference
from provgym.eval.metrics import HEADLINE, METRICS, split_by_prefix
from provgym.generators.baseline_walkers import random_walker
from provgym.generators.scripted import echo_avoiding_oracle, naive_path_counter
from provgym.trainers import run_grid, study
from provgym.trainers.seed_summary import read_seed
from provgym.trainers.study import study_hash
from provgym.trainers.study_config import load_study
from provgym.trainers.study_plan import plan_study
from provgym.trainers.study_results import ArmResult, StudyResult, collect
from provgym.trainers.study_tables import difference_cell, figure_table, study_tables

ARMS: dict[str, Any] = {
    "full": None,
    "echoes": {"phases.*.variant": "no_echo"},
    "verdict": {"phases.*.variant": "verdict_only"},
}
WALKERS = {"full": random_walker, "echoes": echo_avoiding_oracle, "verdict": naive_path_counter}


def write_study(folder: Path, **fields: Any) -> Path:
    data = {"name": "trial", "base": "base.yaml", "seeds": [1, 2], "reference": "full", "arms": ARMS}
    (folder / "base.yaml").write_text(yaml.safe_dump({"name": "base", "phases": [{"steps": 3}]}))
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(data | {"runs_dir": str(folder / "runs")} | fields, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs of every arm and seed, to be copied into place by the stand-in."""
    folder = tmp_path_factory.mktemp("finished")
    path = write_study(folder)
    for cell in plan_study(load_study(path), path):
        for run in cell.runs:
            write_finished(folder / run.config.name, run, limit=2, trained=WALKERS[cell.arm])
    return folder


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the pictures that a study would draw; drawing itself is tested on the evaluation floor."""
    names: list[str] = []
    monkeypatch.setattr(study, "plot_forest", lambda panels, path, **_: names.append(path.name))
    return names


@pytest.fixture
def launched(finished: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let runs be played by the stand-in; returns the file that lists what was launched."""
    monkeypatch.setattr(run_grid, "POLL_S", 0.01)
    return launch_stub(finished, monkeypatch)


@pytest.fixture(scope="module")
def result(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    """The whole study, read from finished runs."""
    folder = tmp_path_factory.mktemp("done")
    path = write_study(folder)
    cells = plan_study(load_study(path), path)
    for cell in cells:
        for run in cell.runs:
            shutil.copytree(finished / run.config.name, run.run_dir)
    return collect(load_study(path), cells)


def test_the_whole_grid_is_run_once_and_reported(
    tmp_path: Path, launched: Path, drawn: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_study(tmp_path)
    assert study.main(["--config", str(path), "--dry-run"]) == 0
    said = capfd.readouterr().out
    assert said.count(": to do") == 6
    assert launched.read_text() == ""
    assert not (tmp_path / "runs").exists()  # saying what would run leaves nothing behind

    assert study.main(["--config", str(path)]) == 0
    assert launched.read_text().split() == [f"trial-{arm}-s{seed}" for seed in (1, 2) for arm in ARMS]
    said = capfd.readouterr().out
    assert "1 of 6 finished, 5 to go, about " in said
    assert "6 of 6 finished\n" in said

    folder = tmp_path / "runs" / "studies" / "trial"
    summary = json.loads((folder / "summary.json").read_text())
    assert (list(summary["arms"]), summary["unfinished"], summary["failed"]) == (list(ARMS), {}, [])
    assert summary["arms"]["echoes"]["trained"]["accuracy"]["value"] == 1.0
    assert summary["arms"]["echoes"]["changes"] == {"phases.*.variant": "no_echo"}
    assert summary["arms"]["full"]["to_reference"] == {}
    report = (folder / "report.md").read_text()
    assert "| echoes | phases.*.variant: no_echo | 3 |" in report
    assert drawn == [f"{metric}{end}.png" for metric in HEADLINE for end in ("", "-to-reference")]
    assert load_study(folder / "study.yaml").arms == load_study(path).arms

    assert study.main(["--config", str(path)]) == 0
    assert "6 runs: 6 finished, 0 to do" in capfd.readouterr().out
    assert len(launched.read_text().split()) == 6


def test_a_failed_run_is_named_and_the_others_go_on(
    tmp_path: Path, finished: Path, launched: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One failure loses its siblings: the others finish, the arm is left out by name, the same command repairs it."""
    path = write_study(tmp_path)
    (finished / "FAIL-trial-echoes-s1").touch()
    assert study.main(["--config", str(path), "--jobs", "2"]) == 1
    said = capfd.readouterr()
    assert "error: 1 of 6 runs failed (trial-echoes-s1)" in said.err
    assert "arm 'echoes' is left out: trial-echoes-s1 not finished" in said.out
    assert len(launched.read_text().split()) == 6
    folder = tmp_path / "runs" / "studies" / "trial"
    summary = json.loads((folder / "summary.json").read_text())
    assert (list(summary["arms"]), summary["failed"]) == (["full", "verdict"], ["trial-echoes-s1"])
    assert summary["unfinished"] == {"echoes": ["trial-echoes-s1"]}
    assert (folder / "logs" / "trial-echoes-s1.log").is_file()

    (finished / "FAIL-trial-echoes-s1").unlink()
    assert study.main(["--config", str(path)]) == 0
    assert launched.read_text().split()[6:] == ["trial-echoes-s1"]
    assert list(json.loads((folder / "summary.json").read_text())["arms"]) == list(ARMS)


def test_nothing_finished_is_no_table_and_an_unfinished_reference_no_difference(
    tmp_path: Path, finished: Path, launched: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_study(tmp_path)
    for arm in ARMS:
        (finished / f"FAIL-trial-{arm}-s1").touch()
    assert study.main(["--config", str(path)]) == 1
    folder = tmp_path / "runs" / "studies" / "trial"
    assert json.loads((folder / "summary.json").read_text())["arms"] == {}
    (finished / "FAIL-trial-verdict-s1").unlink()
    assert study.main(["--config", str(path)]) == 1
    (verdict,) = json.loads((folder / "summary.json").read_text())["arms"].values()
    assert (verdict["arm"], verdict["to_reference"]) == ("verdict", {})
    assert verdict["gain"]["accuracy"]["by_seed"] == [0.0, 0.0]
    assert "minus 'full'" not in (folder / "report.md").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--jobs", "0"], "--jobs 0 must be >= 1"),
        (["--stall-hours", "-1"], "--stall-hours -1.0 must be > 0"),
        (["--arms", "full,full"], "--arms full,full names something twice; name each once"),
        (["--arms", "full, full"], "names something twice"),
        (["--arms", " , "], "--arms ' , ' names nothing"),
        (["--seeds", "1,2,1"], "--seeds 1,2,1 names something twice"),
        (["--seeds", "1,x"], "must be whole numbers by commas"),
        (["--seeds", "1"], "at least two distinct"),
        (["--arms", "ful"], "did you mean 'full'"),
        (["--accelerate", "nowhere.yaml"], "does not exist"),
        (["--reuse", "nowhere"], "is no folder"),
        (["--optim.learing_rate", "1"], "did you mean 'optim.learning_rate'?"),
        (["--name", "x"], "is decided by the study"),
        (["--optim.clip"], "lacks a value"),
    ],
)
def test_bad_command_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert study.main(["--config", str(write_study(tmp_path)), "--dry-run", *words]) == 2
    message = capfd.readouterr().err
    assert message.startswith("error: ")
    assert said in message
    assert not (tmp_path / "runs").exists()


def test_a_place_that_cannot_be_written_is_named_before_anything_runs(
    tmp_path: Path, launched: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if not Path("/proc/self").is_dir():
        pytest.skip("/proc stands for a folder that nobody can write to")
    path = write_study(tmp_path, runs_dir="/proc/nope")
    assert study.main(["--config", str(path)]) == 2
    message = capfd.readouterr().err
    assert message.startswith("error: runs_dir /proc/nope/studies/trial cannot be written: no file can be made in")
    assert launched.read_text() == ""


def test_an_interrupt_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "run_missing", interrupt)
    assert study.main(["--config", str(write_study(tmp_path))]) == 130
    assert "the same command goes on" in capfd.readouterr().err


def test_differences_pair_the_same_seeds_and_claims(result: StudyResult, finished: Path) -> None:
    """Each seed's difference by the two-policy route, and their plain mean."""
    by_label = {arm.label: arm for arm in result.arms}
    assert list(by_label) == list(ARMS)
    for arm in ("echoes", "verdict"):
        for name in ("accuracy", "echo_rate", "general_source_recall"):
            prefix = "general_" if name.startswith("general_") else ""
            expected = []
            for seed in (1, 2):
                here = read_seed(finished / f"trial-{arm}-s{seed}", seed).trained
                there = read_seed(finished / f"trial-full-s{seed}", seed).trained
                pair = [split_by_prefix(episodes)[prefix] for episodes in (here, there)]
                metric = METRICS[name.removeprefix(prefix)]
                expected.append(paired_difference(pair[0], pair[1], metric, resamples=10).difference.value)
            found = by_label[arm].to_reference[name].crossed
            assert found.by_seed == pytest.approx(expected, abs=1e-9)
            assert found.overall.value == pytest.approx(sum(expected) / 2, abs=1e-9)
    gain = by_label["echoes"].to_start["accuracy"]
    assert gain.crossed.overall.value == pytest.approx(
        sum(run.summary["gain"]["accuracy"]["value"] for run in by_label["echoes"].pooled.runs) / 2
    )


def test_p_is_corrected_over_the_arms(result: StudyResult) -> None:
    """Two arms are compared with the reference: Holm doubles the smaller p and never lets it pass the larger one's."""
    echoes, verdict = (arm.to_reference["accuracy"] for arm in result.arms[1:])
    small, large = sorted([echoes, verdict], key=lambda d: d.crossed.p)
    assert small.holm_p == pytest.approx(min(1.0, 2 * small.crossed.p))
    assert large.holm_p == pytest.approx(max(small.holm_p, large.crossed.p))
    assert small.crossed.seeds_with_sign == 2
    starts = [arm.to_start["accuracy"] for arm in result.arms]
    assert [d.holm_p >= d.crossed.p for d in starts] == [True] * 3


def test_tables_hold_the_summary_s_figures(result: StudyResult) -> None:
    tables = {table.title: table for table in study_tables(result)}
    named = next(t for title, t in tables.items() if "test claims, named" in title)
    assert [row[0] for row in named.rows][:5] == ["start", "full", "echoes", "verdict", "ceiling"]
    echoes = result.arms[1]
    column = named.header.index("accuracy")
    assert named.rows[2][column].startswith(f"{echoes.pooled.trained['accuracy'].overall.value:.3f}\n")
    against = tables["Named conditions: arm minus 'full', paired"]
    assert [row[0] for row in against.rows] == ["echoes", "verdict"]
    cell = against.rows[0][column]
    assert cell == difference_cell(echoes.to_reference["accuracy"])
    assert cell.splitlines()[-1] == "seeds 2/2"
    assert f"n={echoes.to_reference['accuracy'].crossed.overall.n}" in cell
    seeds = tables["Named conditions: seeds 1, 2 one below the other"]
    assert seeds.rows[1][column] == "\n".join(f"{v:.3f}" for v in echoes.pooled.trained["accuracy"].by_seed)
    dev = tables["Dev claims, chosen checkpoints"]
    assert dev.rows[0][1:3] == ("2.500\n2.000 to 3.000", "0.500\n0.500 to 0.500")
    assert dev.rows[0][dev.header.index("general_accuracy")] == "-"  # null: nothing was measured
    assert math.isnan(result.arms[0].dev["general_accuracy"][0])
    assert difference_cell(None) == "-"


def test_each_point_of_the_axes_has_its_own_start_and_ceiling(result: StudyResult) -> None:
    """A mitigation or budget changes how one start is measured; a point's figure must not stand for another's."""
    arms: list[ArmResult] = []
    for arm, share in zip(result.arms[:2], (0.25, 0.75), strict=True):
        point = (("walk.mitigation", ["M0", "M1"][len(arms)]),)
        run = arm.pooled.runs[0]
        start = run.summary["start"] | {"accuracy": {"value": share, "low": None, "high": None, "n": 8}}
        runs = (replace(run, summary={**run.summary, "start": start}), *arm.pooled.runs[1:])
        arms.append(replace(arm, cell=replace(arm.cell, point=point), pooled=replace(arm.pooled, runs=runs)))
    table = figure_table(replace(result, arms=tuple(arms)), "", "named")
    rows = {row[0]: row[table.header.index("accuracy")] for row in table.rows}
    assert rows["start, mitigation=M0"].startswith("0.250\n")
    assert rows["start, mitigation=M1"].startswith("0.750\n")
    assert {"ceiling, mitigation=M0", "ceiling, mitigation=M1"} < rows.keys()
    assert not {"start", "ceiling"} & rows.keys()


def test_runs_of_other_weights_have_no_common_start(finished: Path, tmp_path: Path) -> None:
    path = write_study(tmp_path)
    cells = plan_study(load_study(path), path)
    for cell in cells:
        for run in cell.runs:
            shutil.copytree(finished / run.config.name, run.run_dir)
    summary = cells[0].runs[0].run_dir / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"start_fingerprint": "another"}))
    found = collect(load_study(path), cells)
    assert not found.shares_start
    named = next(t for t in study_tables(found) if "test claims, named" in t.title)
    assert [row[0] for row in named.rows][0] == "full"


def test_the_hash_follows_what_the_runs_did(result: StudyResult) -> None:
    """The study's file can stay the same while its base file or the command line change every run."""

    def with_rate(rate: float) -> StudyResult:
        arms = []
        for arm in result.arms:
            configs = [
                run.config.model_copy(update={"optim": run.config.optim.model_copy(update={"learning_rate": rate})})
                for run in arm.cell.runs
            ]
            runs = tuple(replace(run, config=config) for run, config in zip(arm.cell.runs, configs, strict=True))
            arms.append(replace(arm, cell=replace(arm.cell, runs=runs)))
        return replace(result, arms=tuple(arms))

    assert study_hash(with_rate(1e-4)) == study_hash(with_rate(1e-4))
    assert study_hash(with_rate(1e-4)) != study_hash(with_rate(2e-4))
