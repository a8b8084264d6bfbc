"""Stopped at any moment and started again, a run ends as if it had never stopped."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from wandb.proto import wandb_internal_pb2

from provgym.trainers import papt
from provgym.trainers.checkpoints import whole_checkpoints
from provgym.trainers.config_file import dump_config
from provgym.trainers.launch import World, throw_away
from provgym.trainers.papt import find_start, train, training_hash
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.policy_loading import load_trainable
from provgym.trainers.trl_bridge import PaptTrainer

MakeConfig = Callable[..., PaptConfig]
ALONE = World(1, 0)
LORA = {"r": 4, "alpha": 8}
JUDGED_TWICE = {"optim__credit": "split", "optim__judgements_per_walk": 2}
"""Walks judged twice, as the shipped recipe judges them four times."""
RECORD: Any = vars(wandb_internal_pb2)["Record"]  # made when the module is imported, unknown to type checkers


class Killed(BaseException):
    """Stands for a kill inside one process: nothing may catch it."""


def segment(config: PaptConfig) -> None:
    """Run the training part of a PAPT run, as ``papt.run`` does."""
    resume = find_start(config, ALONE)
    config.run_dir.mkdir(parents=True, exist_ok=True)
    (config.run_dir / "config.yaml").write_text(dump_config(config))
    train(config, load_trainable(config.model), ALONE, resume)


def final_state(folder: Path, step: int) -> dict[str, Any]:
    """Return everything of a checkpoint that decides how training goes on."""
    path = folder / "checkpoints" / f"checkpoint-{step}"
    weights = path / "adapter_model.safetensors"
    optimizer = torch.load(path / "optimizer.pt", weights_only=True)
    return {
        "weights": (weights if weights.exists() else path / "model.safetensors").read_bytes(),
        "moments": [t.tolist() for s in optimizer["state"].values() for t in s.values()],
        "schedule": torch.load(path / "scheduler.pt", weights_only=True)["last_epoch"],
        "random": torch.load(path / "rng_state.pth", weights_only=False)["cpu"].tolist(),
    }


def logged(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_clock(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if "time" not in k} for row in rows]


def kill_in(monkeypatch: pytest.MonkeyPatch, method: str, step: int, *, after: bool) -> None:
    """Make one of the trainer's methods die in a step, before or after its work."""
    plain = getattr(PaptTrainer, method)

    def dying(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_now = self.state.global_step == step
        if is_now and not after:
            raise Killed
        result = plain(self, *args, **kwargs)
        if is_now and after:
            raise Killed
        return result

    monkeypatch.setattr(PaptTrainer, method, dying)


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_stopped_three_times_ends_the_same(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, lora: dict[str, int] | None
) -> None:
    """Kinds: W&B step goes back, resume makes a new run. Quick, in one process: during a roll-out before the first
    checkpoint, between loss and optimiser, and in a save after the weights are written but before it counts."""
    settings: dict[str, Any] = {
        "lora": lora,
        "phases": [{"steps": 5}],
        "optim__schedule": "linear",
        "optim__warmup_steps": 2,
        "optim__micro_batch": 4,
        "data__general_share": 0.5,
        **(JUDGED_TWICE if lora is None else {}),
    }
    whole = make_config(name="whole", **settings)
    segment(whole)
    config = make_config(name="stopped", **settings)
    for method, step, after in (("_rollout", 1, True), ("_clip_grad_norm", 3, False), ("_save_checkpoint", 4, True)):
        with monkeypatch.context() as patched:
            kill_in(patched, method, step, after=after)
            with pytest.raises(Killed):
                segment(config)
    with pytest.warns(UserWarning, match=r"checkpoint-4 was left half-written.*resumes from checkpoint-2"):
        segment(config)
    assert final_state(config.run_dir, 5) == final_state(whole.run_dir, 5)
    assert [row["step"] for row in logged(config.run_dir)] == [1, 2, 3, 4, 5]
    assert without_clock(logged(config.run_dir)) == without_clock(logged(whole.run_dir)), "the same instances too"
    assert logged(config.run_dir)[0]["instances"]
    ids = {c.origin.wandb_id for c in whole_checkpoints(config.run_dir / "checkpoints")}
    assert ids == {json.loads((config.run_dir / "wandb_run.json").read_text())["run_id"]}


def test_finished_run_is_left_alone(make_config: MakeConfig) -> None:
    config = make_config(phases=[{"steps": 2}])
    segment(config)
    resume = find_start(config, ALONE)
    assert resume is not None
    assert resume.step == config.total_steps == 2


def test_moved_folder_goes_on(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kind: resume makes a new run (folder moved: still resumes, under its id)."""
    whole = make_config(name="whole")
    segment(whole)
    config = make_config(name="run")
    with monkeypatch.context() as patched:
        kill_in(patched, "_rollout", 3, after=False)
        with pytest.raises(Killed):
            segment(config)
    moved = make_config(name="other-name", runs_dir=str(tmp_path / "elsewhere"))
    moved.runs_dir.mkdir()
    config.run_dir.rename(moved.run_dir)
    before = json.loads((moved.run_dir / "wandb_run.json").read_text())["run_id"]
    segment(moved)
    assert json.loads((moved.run_dir / "wandb_run.json").read_text())["run_id"] == before
    assert final_state(moved.run_dir, 4) == final_state(whole.run_dir, 4)


def test_changed_configuration_is_refused_by_name(make_config: MakeConfig) -> None:
    """What decides the weights may not change within a run; the message names every key that did."""
    segment(make_config(phases=[{"steps": 2}]))
    changed = make_config(phases=[{"steps": 4}], optim__learning_rate=1e-4, evaluation={"budget": 3})
    with pytest.raises(ValueError, match=r"An exact resume needs the same configuration") as caught:
        segment(changed)
    message = str(caught.value)
    assert "phases.0.steps: 2 -> 4" in message
    assert "optim.learning_rate: 0.003 -> 0.0001" in message
    assert "evaluation" not in message


def test_names_evaluation_and_tracking_may_change(make_config: MakeConfig) -> None:
    one = make_config()
    other = make_config(
        name="x", runs_dir="elsewhere", evaluation={"budget": 3}, tracking={"episodes_every": 7}, num_processes=2
    )
    assert training_hash(one) == training_hash(other)
    assert training_hash(one) != training_hash(make_config(seed=43))


def test_other_number_of_processes_is_refused(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process has random numbers of its own: an unfinished run can't go on with more or fewer of them."""
    config = make_config()
    with monkeypatch.context() as patched:
        kill_in(patched, "_rollout", 3, after=False)
        with pytest.raises(Killed):
            segment(config)
    with pytest.raises(ValueError, match=r"was made by 1 processes, this run has 2"):
        find_start(config, World(2, 0))


def test_kept_checkpoints_are_the_newest(make_config: MakeConfig) -> None:
    """Kind: best checkpoint deleted. Save every 1, keep 2: the two that selection looks at are there at the end."""
    config = make_config(phases=[{"steps": 5}], checkpoints={"every": 1, "keep": 2, "select_last": 2})
    segment(config)
    assert [c.step for c in whole_checkpoints(config.run_dir / "checkpoints")] == [4, 5]


def test_keeping_fewer_than_are_compared_is_refused(make_config: MakeConfig) -> None:
    """Kind: best checkpoint deleted (refused at load)."""
    with pytest.raises(ValueError, match="the chosen checkpoint could be deleted"):
        make_config(checkpoints={"keep": 2, "select_last": 3})


def test_last_step_is_saved_even_between_saves(make_config: MakeConfig) -> None:
    config = make_config(phases=[{"steps": 3}])
    segment(config)
    assert [c.step for c in whole_checkpoints(config.run_dir / "checkpoints")] == [2, 3]


# ---------------------------------------------------------------- the whole program, really killed

DRIVER = """
import sys, time
from pathlib import Path
from provgym.trainers import papt
from provgym.trainers.callbacks import CheckpointMarker

save_step, flag, *arguments = sys.argv[1:]
plain = CheckpointMarker.on_save

def slow(self, args, state, control, **kwargs):
    if state.global_step == int(save_step):
        Path(flag).touch()
        time.sleep(600)
    return plain(self, args, state, control, **kwargs)

CheckpointMarker.on_save = slow
sys.exit(papt.main(arguments))
"""


def start(driver: Path, config_file: Path, *, save_step: int = -1, flag: Path) -> subprocess.Popen[bytes]:
    """Start a run in a process of its own; in ``save_step`` it stands still between writing and marking."""
    command = [sys.executable, str(driver), str(save_step), str(flag), "--config", str(config_file)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def kill_when(process: subprocess.Popen[bytes], is_time: Callable[[], bool], pause_s: float) -> None:
    """Send SIGKILL a moment after something has happened."""
    while not is_time():
        assert process.poll() is None, process.stderr.read().decode()[-2000:] if process.stderr else ""
        time.sleep(0.005)
    time.sleep(pause_s)
    process.send_signal(signal.SIGKILL)
    process.wait()


def has_logged(folder: Path, steps: int) -> bool:
    file = folder / "metrics.jsonl"
    return file.exists() and file.read_bytes().count(b"\n") >= steps


def wandb_steps(path: Path) -> list[int]:
    """Return the steps of the history in a W&B file (LevelDB's log format after a header of 7 bytes)."""
    data, place, pending = path.read_bytes(), 7, b""
    steps = []
    while place + 7 <= len(data):
        if 32_768 - place % 32_768 < 7:  # a block's tail too short for a record's head
            place += 32_768 - place % 32_768
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        pending = (b"" if kind in (1, 2) else pending) + data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            record: Any = RECORD()
            record.ParseFromString(pending)
            values = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
            if "train/loss" in values:
                steps.append(int(json.loads(values["step"])))
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_killed_three_times_ends_the_same(make_config: MakeConfig, tmp_path: Path, lora: dict[str, int] | None) -> None:
    """SIGKILL at three random moments, one of them inside a save: weights bit for bit, instances, log and W&B id."""
    moments = random.Random(f"moments {lora}")
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    files = []
    for name in ("whole", "killed"):
        config = make_config(
            name=name,
            lora=lora,
            phases=[{"steps": 14}],
            optim__micro_batch=4,
            evaluation={"conditions": ["C1"], "general_draws": 1, "limit_claims": 2},
            checkpoints={"every": 2, "keep": 2, "select_last": 1, "dev_conditions": ["C1"]},
            tracking={"wandb": "offline", "episodes_every": 3},
            **(JUDGED_TWICE if lora is None else {}),
        )
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(yaml.safe_dump(config.model_dump(mode="json")))
    folders = [tmp_path / "runs" / name for name in ("whole", "killed")]
    flag = tmp_path / "saving"

    whole = start(driver, files[0], flag=flag)
    assert whole.wait() == 0, whole.stderr.read().decode()[-2000:] if whole.stderr else ""
    for after_step in (moments.randint(1, 2), None, moments.randint(9, 11)):
        process = start(driver, files[1], save_step=8 if after_step is None else -1, flag=flag)
        if after_step is None:
            kill_when(process, flag.exists, 0.0)
        else:
            kill_when(process, partial(has_logged, folders[1], after_step), 0.05 * moments.random())
    last = start(driver, files[1], flag=flag)
    errors = last.communicate()[1].decode()
    assert last.returncode == 0, errors[-2000:]

    assert final_state(folders[1], 14) == final_state(folders[0], 14)
    rows = [logged(folder) for folder in folders]
    assert [row["step"] for row in rows[1]] == list(range(1, 15)), "no gap, nothing twice"
    assert without_clock(rows[1]) == without_clock(rows[0]), "the same instances, rewards and losses"
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
    own = ("name", "wandb_run_id", "seconds_this_segment", "config_hash")
    kept = [{k: v for k, v in summary.items() if k not in own} for summary in summaries]
    assert kept[0] == kept[1]
    run_id = summaries[1]["wandb_run_id"]
    assert run_id != summaries[0]["wandb_run_id"]
    segments = sorted(p.name for p in (folders[1] / "wandb").glob("*-run-*"))
    assert [name.split("-")[0] for name in segments] == ["offline"] + ["unfinished"] * 3
    assert all(name.endswith(f"-{run_id}") for name in segments)
    (file,) = (folders[1] / "wandb" / segments[0]).glob("*.wandb")
    assert wandb_steps(file) == list(range(1, 15)), "W&B holds every step once, in order"


# ---------------------------------------------------------------- a full disk, an interrupt


def test_full_disk_in_a_save(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Full disk: a message with the file and the way out, exit status 2; finished work is kept and goes on."""
    whole = make_config(name="whole")
    segment(whole)
    config = make_config()
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    plain = torch.save

    def full(data: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        if "checkpoint-4" in str(path):
            raise OSError(28, "No space left on device", str(path))
        plain(data, path, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", full)
        assert papt.main(["--config", str(file)]) == 2
    message = capsys.readouterr().err
    assert "checkpoint 4 could not be written to" in message
    assert "No space left on device" in message
    assert "the same command again" in message
    assert [c.step for c in whole_checkpoints(config.run_dir / "checkpoints")] == [2]
    with pytest.warns(UserWarning, match="checkpoint-4 was left half-written"):
        segment(config)
    assert final_state(config.run_dir, 4) == final_state(whole.run_dir, 4)


def test_full_disk_at_the_file_layer(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Files that are written in one step stay as they were, and the error says which one it was."""
    config = make_config(phases=[{"steps": 2}])
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    segment(config)
    before = (config.run_dir / "config.yaml").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert papt.main(["--config", str(file), "--evaluation.budget", "5"]) == 2
    message = capsys.readouterr().err
    assert "config.yaml could not be written; free space" in message
    assert (config.run_dir / "config.yaml").read_bytes() == before


def test_interrupt_keeps_finished_work(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Ctrl-C: a message, exit status 130, and the same command goes on."""
    config = make_config()
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    plain = PaptTrainer._rollout

    def interrupted(self: Any, *args: Any) -> Any:
        if self.state.global_step == 3:
            raise KeyboardInterrupt
        return plain(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(PaptTrainer, "_rollout", interrupted)
        assert papt.main(["--config", str(file)]) == 130
    assert "the same command goes on from the last checkpoint" in capsys.readouterr().err
    assert [c.step for c in whole_checkpoints(config.run_dir / "checkpoints")] == [2]
    assert [row["step"] for row in logged(config.run_dir)] == [1, 2, 3]
    segment(config)
    assert [row["step"] for row in logged(config.run_dir)] == [1, 2, 3, 4]


def run_main(config: PaptConfig, tmp_path: Path, extra: Sequence[str] = ()) -> int:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return papt.main(["--config", str(file), *extra])


def test_whole_run_in_one_process(make_config: MakeConfig, tmp_path: Path) -> None:
    """Training, selection, evaluation and files; then --fresh starts over under a new id."""
    config = make_config(phases=[{"steps": 2}], checkpoints={"every": 1, "keep": 2, "select_last": 2})
    assert run_main(config, tmp_path) == 0
    summary = json.loads((config.run_dir / "summary.json").read_text())
    assert summary["world_size"] == 1
    assert summary["selected_step"] in (1, 2)
    assert set(summary["dev_scores"]) == {"1", "2"}
    best = max(summary["dev_scores"].items(), key=lambda pair: (pair[1]["selection"], int(pair[0])))[0]
    assert summary["selected_step"] == int(best)
    assert summary["start_fingerprint"] != summary["trained_fingerprint"]
    for name in ("config.yaml", "metrics.jsonl", "policy/model.safetensors", "plots/policies.png"):
        assert (config.run_dir / name).is_file()
    chosen = config.run_dir / "checkpoints" / f"checkpoint-{best}" / "model.safetensors"
    assert (config.run_dir / "policy" / "model.safetensors").read_bytes() == chosen.read_bytes()

    assert run_main(config, tmp_path) == 0, "a finished run is shown again, not trained again"
    again = json.loads((config.run_dir / "summary.json").read_text())
    assert again["wandb_run_id"] == summary["wandb_run_id"]
    assert {k: again[k] for k in ("start", "trained", "ceiling")} == {
        k: summary[k] for k in ("start", "trained", "ceiling")
    }
    shutil.rmtree(config.run_dir / "eval")
    assert run_main(config, tmp_path, ["--fresh"]) == 0
    fresh = json.loads((config.run_dir / "summary.json").read_text())
    assert fresh["wandb_run_id"] != summary["wandb_run_id"]
    assert fresh["trained_fingerprint"] == summary["trained_fingerprint"], "same seed, same machine, same numbers"


def test_fresh_removes_a_run_and_nothing_else(tmp_path: Path) -> None:
    """``--fresh`` beside a mistyped name or runs_dir leaves a folder of other things alone, and says so."""
    for name, file in (("finished", "config.yaml"), ("killed-early", "checkpoints/checkpoint-1/state.json")):
        path = tmp_path / name / file
        path.parent.mkdir(parents=True)
        path.write_text("x")
        throw_away(tmp_path / name)
        assert not (tmp_path / name).exists()
    throw_away(tmp_path / "never-run")
    thesis = tmp_path / "documents" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    for other in (thesis, thesis.parent):
        with pytest.raises(ValueError, match=f"{other.name} is no run: found neither config.yaml nor checkpoints"):
            throw_away(other)
    assert thesis.read_text() == "years of work"
