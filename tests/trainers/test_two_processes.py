"""Two processes really are two, and together they do what one does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from provgym.trainers import launch as launching
from provgym.trainers import papt, trl_bridge
from provgym.trainers.config_file import load_config
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.step_record import RunStopped

MakeConfig = Callable[..., PaptConfig]


def write(config: PaptConfig, path: Path) -> Path:
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return path


def launch(repository: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run ``accelerate launch`` as a user does, with nothing of ours in the environment but where the package lies."""
    ours = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "ACCELERATE_USE_CPU", "OMP_NUM_THREADS")
    env = {k: v for k, v in os.environ.items() if k not in ours}
    env["PYTHONPATH"] = str(repository / "src")
    command = [sys.executable, "-m", "accelerate.commands.launch", *arguments]
    return subprocess.run(command, cwd=repository, env=env, capture_output=True, text=True, timeout=500, check=False)


def read_summary(config: PaptConfig) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((config.run_dir / "summary.json").read_text())
    return found


def read_metrics(config: PaptConfig) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (config.run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "judged", [{}, {"optim__credit": "split", "optim__judgements_per_walk": 2}], ids=["once", "twice"]
)
def test_two_processes_train_and_evaluate_as_one(
    make_config: MakeConfig, tmp_path: Path, repository: Path, judged: dict[str, Any]
) -> None:
    """Kinds: one process instead of two, one run per process. World size, one W&B run, one results file, the episodes
    of both ranks; then one checkpoint under one and under two processes: the same figures and n."""
    settings: dict[str, Any] = {
        **judged,
        "phases": [{"steps": 3}],
        "optim__groups_per_step": 3,
        "optim__micro_batch": 3,  # two groups of four are cut between the processes: 12 = 2 x 6
        "optim__learning_rate": 1e-3,
        "evaluation": {"conditions": ["C1", "C3"], "general_draws": 1, "limit_claims": 3},
        "checkpoints": {"every": 2, "keep": 2, "select_last": 2, "dev_conditions": ["C1", "general"]},
    }
    two = make_config(name="two", **settings, tracking={"wandb": "offline"})
    file = write(two, tmp_path / "two.yaml")
    command = ["--config_file", "configs/accelerate/cpu2.yaml", "-m", "provgym.trainers.papt", "--config", str(file)]
    done = launch(repository, [*command, "--num_processes", "2"])
    assert done.returncode == 0, done.stderr[-3000:]
    summary = read_summary(two)
    assert summary["world_size"] == 2
    assert len(list((two.run_dir / "wandb").glob("*-run-*"))) == 1
    assert (two.run_dir / "wandb" / "latest-run").resolve().name.endswith(summary["wandb_run_id"])
    assert [p.name for p in (two.run_dir / "eval" / "trained").glob("episodes*")] == ["episodes.jsonl"]
    states = sorted(p.name for p in (two.run_dir / "checkpoints" / "checkpoint-3").glob("rng_state*"))
    assert states == ["rng_state_0.pth", "rng_state_1.pth"]
    metrics = read_metrics(two)
    assert [row["step"] for row in metrics] == [1, 2, 3]
    assert all(row["rollout/episodes"] + row["rollout/forks"] == 12 for row in metrics)
    assert any(row["rollout/forks"] for row in metrics) == bool(judged)
    assert all(len(row["instances"]) == 3 for row in metrics)

    # Sampling depends on the row alone: one process plays the same episodes, and its gradient is the same.
    one = make_config(name="one", **settings)
    assert papt.main(["--config", str(write(one, tmp_path / "one.yaml"))]) == 0
    assert read_summary(one)["world_size"] == 1
    alone = read_metrics(one)
    assert [row["instances"] for row in metrics] == [row["instances"] for row in alone]
    # The first step alone: later ones start from weights that were summed in another order.
    for name in (
        "rollout/reward",
        "rollout/walks",
        "rollout/tokens/sampled",
        "rollout/forks",
        "rollout/zero_spread_groups",
    ):
        assert metrics[0][name] == pytest.approx(alone[0][name]), name
    assert metrics[0]["train/loss"] == pytest.approx(alone[0]["train/loss"], rel=1e-3, abs=1e-5)
    assert metrics[0]["train/grad_norm"] == pytest.approx(alone[0]["train/grad_norm"], rel=1e-3)

    for folder in ("eval", "dev"):
        shutil.rmtree(two.run_dir / folder)
    assert papt.main(["--config", str(file), "--tracking.wandb", "disabled"]) == 0
    again = read_summary(two)
    assert again["world_size"] == 1
    same = ("start", "trained", "ceiling", "gain", "dev_scores", "selected_step", "trained_fingerprint", "wandb_run_id")
    assert {k: again[k] for k in same} == {k: summary[k] for k in same}
    assert summary["trained"]["accuracy"]["n"] == 6


@pytest.mark.slow
def test_launcher_that_starts_one_instead_of_two(make_config: MakeConfig, tmp_path: Path, repository: Path) -> None:
    """Kind: one process instead of two. ``launch --cpu --num_processes 2`` starts one: named, not trained."""
    config = make_config(num_processes=2)
    file = write(config, tmp_path / "config.yaml")
    done = launch(repository, ["--cpu", "--num_processes", "2", "-m", "provgym.trainers.papt", "--config", str(file)])
    assert done.returncode != 0
    assert "num_processes asks for 2 processes, but 1 take part" in done.stderr
    assert "configs/accelerate/cpu2.yaml" in done.stderr
    assert not config.run_dir.exists()


def test_asked_for_two_and_got_one(make_config: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kind: one process instead of two (asserted before anything is loaded or written)."""
    config = make_config(num_processes=2)
    assert papt.main(["--config", str(write(config, tmp_path / "config.yaml"))]) == 2
    assert "num_processes asks for 2 processes, but 1 take part" in capsys.readouterr().err
    assert not config.run_dir.exists()


def test_launcher_announced_more_than_take_part(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(launching, "PartialState", lambda cpu: SimpleNamespace(num_processes=1, process_index=0))
    with pytest.raises(RunStopped, match="the launcher announced 4 processes, but 1 take part"):
        launching.join_world(make_config())


@pytest.mark.parametrize(("cores", "announced", "threads"), [(2, 2, 1), (8, 2, 4), (1, 4, 1)])
def test_processes_share_the_cores(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, cores: int, announced: int, threads: int
) -> None:
    """On CPUs each process takes its part of the cores: two on two cores run one thread each."""
    found: list[int] = []
    monkeypatch.setenv("WORLD_SIZE", str(announced))
    monkeypatch.setattr(
        launching, "PartialState", lambda cpu: SimpleNamespace(num_processes=announced, process_index=0)
    )
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    world = launching.join_world(make_config())
    assert (world.size, world.is_main) == (announced, True)
    assert found == [threads]


def test_trajectories_must_divide_among_processes(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl_bridge, "GRPOConfig", lambda **settings: SimpleNamespace(**settings))
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match=r"= 8 trajectories must split evenly over 3 processes.*try groups_per_step=3"):
        trl_bridge.grpo_config(make_config(), Path("out"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert trl_bridge.grpo_config(make_config(optim__micro_batch=2), Path("out")).gradient_accumulation_steps == 2
    # The shipped micro-batch of one process is more than the share of one of two.
    found = trl_bridge.grpo_config(make_config(optim__micro_batch=64), Path("out"))
    assert (found.per_device_train_batch_size, found.gradient_accumulation_steps) == (4, 1)


def test_shipped_configuration_runs_in_two_processes(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl_bridge, "GRPOConfig", lambda **settings: SimpleNamespace(**settings))
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("tiny", "source", "smollm2-135m", "qwen3-4b"):
        config = load_config(PaptConfig, repository / "configs" / "papt" / f"{name}.yaml")
        found = trl_bridge.grpo_config(config, Path("out"))
        trajectories = config.optim.group_size * config.optim.groups_per_step
        assert 2 * found.per_device_train_batch_size * found.gradient_accumulation_steps == trajectories
