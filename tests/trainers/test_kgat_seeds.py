"""Several seeds of a K-GAT run: the plan, running what is missing, and pooling with every seed shown."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml
from tests.eval.topology_records import random_runs
from tests.trainers.kgat_runs import make_config
from tests.trainers.run_stub import launch_stub
from typer.testing import CliRunner

from provgym.cli import app
from provgym.eval.crossed import over_seeds
from provgym.eval.run_files import write_json_atomic
from provgym.eval.topology import rescore_methods
from provgym.eval.topology_store import runs_file, write_runs
from provgym.trainers import kgat_seeds, run_grid
from provgym.trainers.config_file import ConfigError, dump_config
from provgym.trainers.kgat import training_hash
from provgym.trainers.kgat_config import KgatConfig
from provgym.trainers.kgat_seed_summary import draw_pooled, pool_runs, read_run
from provgym.trainers.kgat_seeds import plan_runs, summarise_seeds
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.run_grid import PlannedRun, is_finished, training_hash_of

METHODS = ("kgat", "single_agent", "self_consistency_matched", "debate")
RATIOS = {1: 0.9, 2: 1.0, 3: 0.98}
T_2 = 4.302652729696142  # 97.5 % point of Student's t with two degrees of freedom, from a table


def base_config(runs_dir: Path, **overrides: Any) -> KgatConfig:
    evaluation = {"methods": list(METHODS), "replicates": 2, "planted": None}
    return make_config(runs_dir.parent, **({"evaluation": evaluation} | overrides))


def write_finished(folder: Path, run: PlannedRun[KgatConfig], **fields: Any) -> None:
    """What a run leaves behind: stored runs of every method, their prices, and the summary made of them."""
    score = run.config.score
    prices = {"node": score.node, "edge": score.edge, "cost_weight": score.cost_weight}
    for method in METHODS:
        write_runs(runs_file(folder / "eval", method), random_runs(method, run.seed))
    (folder / "eval" / "config.yaml").write_text(yaml.safe_dump({"topology_eval": prices}))
    result = rescore_methods(folder / "eval", score.rule())
    ratio = RATIOS[run.seed]
    summary = {
        "name": run.config.name,
        "seed": run.seed,
        "training_hash": training_hash(run.config),
        "config_hash": "0" * 12,
        "selected_step": 6 * run.seed,
        "calls_ratio_cached": {"value": ratio / 4, "low": None, "high": None, "n": 9},
        "planted_optimum_ratio": {"value": ratio, "low": ratio - 0.1, "high": ratio + 0.1, "n": 9},
        **result.to_json(),
        **fields,
    }
    (folder / "config.yaml").write_text(dump_config(run.config))
    write_json_atomic(folder / "summary.json", summary)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs of the seeds 1 to 3, to be copied into place by the stand-in."""
    folder = tmp_path_factory.mktemp("finished")
    for run in plan_runs(base_config(folder), [1, 2, 3]):
        write_finished(folder / run.config.name, run)
    return folder


@pytest.fixture
def launched(finished: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let runs be played by the stand-in; returns the file that lists what was launched."""
    monkeypatch.setattr(run_grid, "POLL_S", 0.01)
    return launch_stub(finished, monkeypatch)


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders that pictures would go to; one test draws them."""
    folders: list[Path] = []
    monkeypatch.setattr(kgat_seeds, "draw_pooled", lambda result, folder: folders.append(folder))
    return folders


def words_for(tmp_path: Path, *more: str, seeds: str = "1,2,3") -> list[str]:
    path = tmp_path / "run.yaml"
    path.write_text(dump_config(base_config(tmp_path / "runs")))
    return ["--config", str(path), "--seeds", seeds, *more]


def test_plan_names_every_run(tmp_path: Path) -> None:
    config = base_config(tmp_path / "runs")
    runs = plan_runs(config, [42, 43])
    assert [(r.config.name, r.seed, r.run_dir) for r in runs] == [
        ("run-s42", 42, tmp_path / "runs" / "run-s42"),
        ("run-s43", 43, tmp_path / "runs" / "run-s43"),
    ]
    assert runs[0].config.model_copy(update={"name": "run", "seed": config.seed}) == config
    assert run_grid.command_of(runs[0].config.trainer, Path("a.yaml"), None)[1:3] == ["-m", "provgym.trainers.kgat"]
    assert training_hash_of(runs[0].config) == training_hash(runs[0].config) != training_hash(runs[1].config)
    assert PaptConfig.trainer == "provgym.trainers.papt"


def test_impossible_plans(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found 1, expected at least two seeds"):
        plan_runs(base_config(tmp_path), [1])
    with pytest.raises(ConfigError, match="leaves kgat out"):
        plan_runs(base_config(tmp_path, evaluation={"methods": ["debate"], "planted": None}), [1, 2])


def test_runs_once_skips_what_is_finished_and_pools(
    tmp_path: Path, launched: Path, drawn: list[Path], capfd: pytest.CaptureFixture[str]
) -> None:
    words = words_for(tmp_path)
    assert kgat_seeds.main(words) == 0
    assert launched.read_text().split() == ["run-s1", "run-s2", "run-s3"]
    folder = tmp_path / "runs" / "run-seeds"
    before = (folder / "summary.json").read_bytes()
    assert kgat_seeds.main(words) == 0
    assert launched.read_text().split() == ["run-s1", "run-s2", "run-s3"]
    assert "3 runs: 3 finished, 0 to do" in capfd.readouterr().out
    assert (folder / "summary.json").read_bytes() == before
    written = yaml.safe_load((folder / "configs" / "run-s2.yaml").read_text())
    assert KgatConfig.model_validate(written) == plan_runs(base_config(tmp_path / "runs"), [1, 2])[1].config
    assert drawn == [folder / "plots"] * 2


def test_one_failure_loses_nothing(
    tmp_path: Path, finished: Path, launched: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Kind: one failure loses its siblings; nothing is pooled over fewer seeds than were asked for."""
    (finished / "FAIL-run-s1").touch()
    words = words_for(tmp_path, "--jobs", "2")
    assert kgat_seeds.main(words) == 1
    assert "1 of 3 runs failed (run-s1)" in capfd.readouterr().err
    assert not (tmp_path / "runs" / "run-seeds" / "summary.json").exists()
    (finished / "FAIL-run-s1").unlink()
    assert kgat_seeds.main(words) == 0
    assert sorted(launched.read_text().split()) == ["run-s1", "run-s1", "run-s2", "run-s3"]


def test_what_other_trainings_and_evaluations_left_is_refused(
    tmp_path: Path, launched: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert kgat_seeds.main(words_for(tmp_path)) == 0
    for run in plan_runs(base_config(tmp_path / "runs"), [1, 2, 3]):
        (run.run_dir / "config.yaml").write_text(dump_config(run.config))  # the copies are of another folder's runs
    assert kgat_seeds.main(words_for(tmp_path, "--score.node", "0.5")) == 2
    assert "run-s1/summary.json was trained under configuration" in capfd.readouterr().err
    assert kgat_seeds.main(words_for(tmp_path, "--evaluation.replicates", "8")) == 2
    said = capfd.readouterr().err
    assert "run-s1 was evaluated with other settings; changed: evaluation.replicates: 2 -> 8. Remove" in said
    assert kgat_seeds.main(words_for(tmp_path, "--tracking.wandb", "offline")) == 0  # decides no figure


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seeds", "1,x"], "must be whole numbers"),
        (["--seeds", "1,1"], "names something twice"),
        (["--jobs", "0"], "must be >= 1"),
        (["--runs_dir", "/proc/runs"], "runs_dir /proc/runs/run-seeds cannot be written"),
        (["--accelerate", "nowhere.yaml"], "does not exist"),
        (["--sede", "1"], "key 'sede' is unknown; did you mean 'seed'?"),
    ],
)
def test_bad_command_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert kgat_seeds.main(words_for(tmp_path, *words)) == 2
    assert said in capfd.readouterr().err


def test_the_command_passes_words_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def record(words: list[str]) -> int:
        seen.append(words)
        return 7

    monkeypatch.setattr(kgat_seeds, "main", record)
    given = ["--score.node", "0.5", "--optim.learning_rate=1e-3"]
    answer = CliRunner().invoke(app, ["kgat-seeds", "--config", "a.yaml", "--jobs", "2", "--seeds", "1,2", *given])
    assert answer.exit_code == 7
    assert seen == [["--config=a.yaml", "--seeds=1,2", "--jobs=2", "--stall-hours=6.0", *given]]
    assert "Example: provgym kgat-seeds" in CliRunner().invoke(app, ["kgat-seeds", "--help"]).stdout


def test_pooled_figures_show_every_seed(tmp_path: Path, finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Pooled means against each run's own summary, which another function made; intervals over seeds by hand."""
    config = base_config(tmp_path / "runs")
    runs = plan_runs(config, [1, 2, 3])
    for run in runs:
        write_finished(run.run_dir, run)
    draw_pooled(summarise_seeds(config, runs, tmp_path / "out"), tmp_path / "plots")
    pictures = {path.name for path in (tmp_path / "plots").iterdir() if path.stat().st_size > 1000}
    assert pictures == {"accuracy_tokens.png", "score_tokens.png", "adaptation.png", "differences.png"}
    pooled = json.loads((tmp_path / "out" / "summary.json").read_text())
    own = [json.loads((run.run_dir / "summary.json").read_text()) for run in runs]
    assert pooled["seeds"] == [1, 2, 3]
    assert pooled["prices"] == {"node": 0.03, "edge": 0.015, "cost_weight": 1.0}
    assert list(pooled["methods"]) == list(METHODS)
    for method in METHODS:
        for metric in ("accuracy", "score", "nodes", "tokens"):
            figures = [summary[method][metric]["value"] for summary in own]
            assert pooled["methods"][method][metric]["by_seed"] == pytest.approx(figures)
            assert pooled["methods"][method][metric]["value"] == pytest.approx(fmean(figures))
    for kind in ("agreement", "conflict", "irrelevance"):
        nodes = [summary["adaptation"][kind]["nodes"]["value"] for summary in own]
        assert pooled["adaptation"][kind]["nodes"]["by_seed"] == pytest.approx(nodes)
        shares = [summary["adaptation"][kind]["sizes"].get("2", 0.0) for summary in own]
        assert pooled["adaptation"][kind]["sizes"].get("2", 0.0) == pytest.approx(fmean(shares))
    gaps = [summary["adaptation"]["difference"]["nodes"]["value"] for summary in own]
    assert pooled["adaptation"]["difference"]["nodes"]["by_seed"] == pytest.approx(gaps)
    planted = pooled["planted_optimum_ratio"]
    mean = fmean(RATIOS.values())
    half = T_2 * (sum((value - mean) ** 2 for value in RATIOS.values()) / 2 / 3) ** 0.5
    assert [planted["value"], planted["low"], planted["high"]] == pytest.approx([mean, mean - half, mean + half])
    assert planted["by_seed"] == list(RATIOS.values())
    assert pooled["calls_ratio_cached"]["value"] == pytest.approx(mean / 4)
    assert pooled["runs"]["2"]["kgat"] == own[1]["kgat"]
    text = (tmp_path / "out" / "results.md").read_text()
    assert all(f"| seed {seed} |" in text for seed in (1, 2, 3))
    assert "score = right - 1 x (0.03 x nodes + 0.015 x edges)" in text
    assert "**Against debate**" in text
    assert all(note in text and note in capfd.readouterr().out for note in pooled["notes"][:1])


def test_a_ratio_that_a_run_left_out_is_missing_never_zero(tmp_path: Path) -> None:
    """Kind: NaN in a mean: not available, and named."""
    config = base_config(tmp_path / "runs")
    runs = plan_runs(config, [1, 2])
    write_finished(runs[0].run_dir, runs[0], planted_optimum_ratio=None)
    write_finished(runs[1].run_dir, runs[1])
    result = pool_runs([read_run(run.run_dir, run.seed) for run in runs])
    found = result.to_json()["planted_optimum_ratio"]
    assert (found["value"], found["n"], found["by_seed"]) == (None, 0, [None, 1.0])
    assert any("planted_optimum_ratio is not available" in note and "run-s1" in note for note in result.notes)


def test_runs_that_can_not_be_pooled(tmp_path: Path) -> None:
    config = base_config(tmp_path / "runs")
    runs = plan_runs(config, [1, 2])
    for run in runs:
        write_finished(run.run_dir, run)
    assert all(is_finished(run) for run in runs)
    with pytest.raises(ValueError, match="is of seed 1, expected 3; was the folder renamed"):
        read_run(runs[0].run_dir, 3)
    (runs[1].run_dir / "eval" / "config.yaml").write_text("topology_eval: {node: 0.2, edge: 0.1, cost_weight: 1}")
    with pytest.raises(ValueError, match="made with different prices: node in .*run-s1/eval: 0.03, .*run-s2/eval: 0.2"):
        pool_runs([read_run(run.run_dir, run.seed) for run in runs])
    (runs[1].run_dir / "summary.json").write_text('{"seed": 2}')
    with pytest.raises(ValueError, match="holds no figures of 'kgat'"):
        read_run(runs[1].run_dir, 2)
    (runs[1].run_dir / "summary.json").write_text("{half")
    with pytest.raises(ValueError, match="is no summary of a run"):
        read_run(runs[1].run_dir, 2)


def test_seeds_that_agree_exactly_have_no_width() -> None:
    found = over_seeds([0.5, 0.5, 0.5]).overall
    assert (found.value, found.low, found.high, found.n) == (0.5, 0.5, 0.5, 3)
    with pytest.raises(ValueError, match="at least two"):
        over_seeds([0.5])
