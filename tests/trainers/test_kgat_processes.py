"""K-GAT in real processes: killed with SIGKILL, and launched as two."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.trainers.kgat_runs import make_config

from provgym.trainers.kgat_config import KgatConfig
from provgym.trainers.kgat_state import RoundFolder

pytestmark = pytest.mark.slow


def write(config: KgatConfig, path: Path) -> Path:
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return path


def environment(repository: Path) -> dict[str, str]:
    ours = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "ACCELERATE_USE_CPU")
    kept = {k: v for k, v in os.environ.items() if k not in ours}
    return kept | {"PYTHONPATH": str(repository / "src"), "OMP_NUM_THREADS": "1"}


def run_whole(repository: Path, file: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "provgym.trainers.kgat", "--config", str(file)]
    done = subprocess.run(
        command, cwd=folder, env=environment(repository), capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def kill_once(repository: Path, file: Path, folder: Path, is_there: Callable[[], bool]) -> None:
    """Start the run and kill it with SIGKILL as soon as something is on disk."""
    command = [sys.executable, "-m", "provgym.trainers.kgat", "--config", str(file)]
    process = subprocess.Popen(
        command, cwd=folder, env=environment(repository), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + 400
        while not is_there() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        assert process.poll() is None, "the run ended before it could be killed"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)


def state_of(config: KgatConfig) -> list[bytes]:
    folders = [RoundFolder(config.run_dir, number) for number in range(2)]
    weights = (config.run_dir / "checkpoints" / "checkpoint-12" / "model.safetensors").read_bytes()
    return [*(f.targets_file.read_bytes() for f in folders), weights]


def test_kill_9_in_mining_and_in_optimisation(tmp_path: Path, repository: Path) -> None:
    """Identical targets and generator, and no call paid twice: the store holds each reply once."""
    whole, config = make_config(tmp_path, "whole"), make_config(tmp_path, "stopped")
    run_whole(repository, write(whole, tmp_path / "whole.yaml"), tmp_path)
    file = write(config, tmp_path / "stopped.yaml")
    first = RoundFolder(config.run_dir, 0)
    kill_once(repository, file, tmp_path, lambda: first.part_file(0).is_file())
    kill_once(repository, file, tmp_path, lambda: (config.run_dir / "checkpoints" / "checkpoint-2").is_dir())
    run_whole(repository, file, tmp_path)
    assert state_of(config) == state_of(whole)
    rows = [json.loads(line)["step"] for line in (config.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert rows == list(range(1, 13))
    summaries = [json.loads((c.run_dir / "summary.json").read_text()) for c in (whole, config)]
    assert summaries[0]["kgat"] == summaries[1]["kgat"]
    for key in ("mining", "calls_ratio_cached"):
        assert summaries[0][key] == summaries[1][key]


def test_two_processes_end_as_one(tmp_path: Path, repository: Path) -> None:
    """Kinds: one process instead of two, one run per process. Same targets and weights, one W&B run, one summary."""
    one = make_config(tmp_path, "one")
    two = make_config(tmp_path, "two", num_processes=2, tracking={"wandb": "offline"})
    run_whole(repository, write(one, tmp_path / "one.yaml"), tmp_path)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file"]
    launch += [str(repository / "configs" / "accelerate" / "cpu2.yaml"), "-m", "provgym.trainers.kgat", "--config"]
    launch += [str(write(two, tmp_path / "two.yaml"))]
    done = subprocess.run(
        launch, cwd=tmp_path, env=environment(repository), capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert state_of(two) == state_of(one)
    summary = json.loads((two.run_dir / "summary.json").read_text())
    assert summary["world_size"] == 2
    assert len(list((two.run_dir / "wandb").glob("offline-run-*"))) == 1
    assert summary["kgat"] == json.loads((one.run_dir / "summary.json").read_text())["kgat"]
