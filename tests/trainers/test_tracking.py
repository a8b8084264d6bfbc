"""What a run logs: every step once, on our own axis, with or without W&B."""

from __future__ import annotations

import json
import math
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provgym.generators.episode import EpisodeTask
from provgym.generators.scripted import ScriptedPolicy, echo_avoiding_oracle
from provgym.trainers.callbacks import step_figures
from provgym.trainers.papt_config import PaptConfig, TrackingConfig
from provgym.trainers.step_record import EpisodeRecord, StepRecord
from provgym.trainers.tracking import EPISODE_COLUMNS, Tracker
from provgym.trainers.training_rows import TrainingRows, load_pool

OFFLINE = TrackingConfig(wandb="offline")
DISABLED = TrackingConfig(wandb="disabled")


class FakeWandb:
    """Records what a tracker asks of W&B."""

    def __init__(self) -> None:
        self.inits: list[dict[str, Any]] = []
        self.metrics: list[tuple[str, str | None]] = []
        self.logged: list[dict[str, Any]] = []
        self.by_folder: list[tuple[str, dict[str, Any]]] = []
        self.exit_codes: list[int] = []
        self.summary: dict[str, Any] = {}

    def init(self, **settings: Any) -> FakeWandb:
        self.inits.append(settings)
        kind = "offline-run" if settings["mode"] == "offline" else "run"
        self.dir = str(Path(settings["dir"]) / "wandb" / f"{kind}-{len(self.inits)}-{settings['id']}" / "files")
        Path(self.dir).mkdir(parents=True)
        return self

    def Settings(self, **settings: Any) -> SimpleNamespace:  # noqa: N802 - W&B's name
        return SimpleNamespace(**settings)

    def Table(self, columns: list[str], data: list[list[Any]]) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(columns=columns, data=data)

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.metrics.append((name, step_metric))

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values)
        self.by_folder.append((Path(self.dir).parent.name, values))

    def finish(self, exit_code: int = 0) -> None:
        self.exit_codes.append(exit_code)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    """A stand-in for the package."""
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def track(run_dir: Path, *, config: TrackingConfig = DISABLED, run_id: str | None = None, **other: Any) -> Tracker:
    options: dict[str, Any] = {"training_hash": "h", "is_main": True} | other
    return Tracker(run_dir, config, {"seed": 42}, run_id=run_id, **options)


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def log_steps(tracker: Tracker, first: int, last: int) -> None:
    with tracker:
        for step in range(first, last + 1):
            tracker.log(step, {"train/loss": step / 100})


def test_killed_at_63_and_resumed_from_40(tmp_path: Path, wandb: FakeWandb) -> None:
    """Kind: W&B step goes back. Checkpoint every 40, killed at 63, resumed: 1..100 once each, one run id, our axis."""
    first = track(tmp_path, config=OFFLINE)
    log_steps(first, 1, 63)
    again = track(tmp_path, config=OFFLINE, run_id=first.run_id)
    log_steps(again, 41, 100)
    assert [row["step"] for row in rows(tmp_path)] == list(range(1, 101))
    assert [values["step"] for values in wandb.logged] == list(range(1, 101))
    assert {settings["id"] for settings in wandb.inits} == {first.run_id}
    assert wandb.metrics == [("step", None), ("*", "step")] * 2
    assert wandb.exit_codes == [0, 0]


def steps_in_wandb(run_dir: Path, wandb: FakeWandb) -> list[int]:
    """Return the steps of the segments that count, in order."""
    counted = {p.name for p in (run_dir / "wandb").iterdir() if p.name.startswith("offline-run-")}
    return [values["step"] for folder, values in wandb.by_folder if folder in counted and "episodes" not in values]


def test_killed_segment_is_logged_again(tmp_path: Path, wandb: FakeWandb) -> None:
    """Kind: W&B step goes back. A kill loses what W&B had not written: that segment is set aside, and its steps are
    logged again from the file; W&B then holds each step once, in order."""
    log_steps(track(tmp_path, config=OFFLINE), 1, 20)
    killed = track(tmp_path, config=OFFLINE, run_id=track_id(tmp_path))
    for step in range(21, 64):
        killed.log(step, {"a": step})
    log_steps(track(tmp_path, config=OFFLINE, run_id=killed.run_id), 41, 100)
    assert steps_in_wandb(tmp_path, wandb) == list(range(1, 101))
    names = sorted(p.name.split("-")[0] for p in (tmp_path / "wandb").iterdir())
    assert names == ["offline", "offline", "unfinished"]
    assert [row["step"] for row in rows(tmp_path)] == list(range(1, 101))


def track_id(run_dir: Path) -> str:
    return str(json.loads((run_dir / "wandb_run.json").read_text())["run_id"])


def test_interrupted_segment_counts(tmp_path: Path, wandb: FakeWandb) -> None:
    """Ctrl-C ends a segment cleanly: nothing of it is logged again, tables neither."""
    tracker = track(tmp_path, config=OFFLINE)

    def interrupted() -> None:
        with tracker:
            for step in range(1, 6):
                tracker.log(step, {"a": step})
            tracker.log_episodes(4, [], [])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with track(tmp_path, config=OFFLINE, run_id=tracker.run_id) as again:
        for step in range(3, 8):
            again.log(step, {"a": step})
        again.log_episodes(4, [], [])
        again.log_episodes(6, [], [])
    assert steps_in_wandb(tmp_path, wandb) == list(range(1, 8))
    assert [values["step"] for values in wandb.logged if "episodes" in values] == [4, 6]


def test_wandb_switched_on_later_gets_the_whole_run(tmp_path: Path, wandb: FakeWandb) -> None:
    first = track(tmp_path)
    log_steps(first, 1, 5)
    log_steps(track(tmp_path, config=OFFLINE, run_id=first.run_id), 6, 8)
    assert [values["step"] for values in wandb.logged] == list(range(1, 9))


def test_online_goes_on_after_what_the_server_has(tmp_path: Path, wandb: FakeWandb) -> None:
    online = TrackingConfig(wandb="online")
    killed = track(tmp_path, config=online)
    for step in range(1, 8):
        killed.log(step, {"a": step})
    wandb.logged.clear()
    wandb.summary["step"] = 5
    log_steps(track(tmp_path, config=online, run_id=killed.run_id), 6, 9)
    assert [values["step"] for values in wandb.logged] == [6, 7, 8, 9]
    assert wandb.inits[-1]["resume"] == "allow"


def test_whole_last_line_without_its_end(tmp_path: Path) -> None:
    """A kill between a line and its line end: the next line is not glued to it."""
    first = track(tmp_path)
    log_steps(first, 1, 3)
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-1])
    log_steps(track(tmp_path, run_id=first.run_id), 3, 5)
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4, 5]


def test_log_says_whether_a_step_was_new(tmp_path: Path) -> None:
    tracker = track(tmp_path)
    assert tracker.log(1, {"a": 1})
    assert not tracker.log(1, {"a": 2})
    assert tracker.log(2, {"a": 3})
    assert [row["a"] for row in rows(tmp_path)] == [1, 3]


def test_killed_before_the_first_checkpoint(tmp_path: Path, wandb: FakeWandb) -> None:
    """Kind: resume makes a new run: without a checkpoint too, the same run goes on under its id."""
    first = track(tmp_path, config=OFFLINE)
    log_steps(first, 1, 3)
    again = track(tmp_path, config=OFFLINE)
    log_steps(again, 1, 5)
    assert again.run_id == first.run_id
    assert [values["step"] for values in wandb.logged] == [1, 2, 3, 4, 5]


def test_other_configuration_begins_anew(tmp_path: Path) -> None:
    first = track(tmp_path)
    log_steps(first, 1, 3)
    other = track(tmp_path, training_hash="other")
    assert other.run_id != first.run_id
    log_steps(other, 1, 2)
    assert [row["step"] for row in rows(tmp_path)] == [1, 2]


def test_fresh_start_elsewhere_has_a_new_id(tmp_path: Path) -> None:
    """Kind: resume makes a new run (fresh start elsewhere: new id)."""
    assert track(tmp_path / "a").run_id != track(tmp_path / "b").run_id


def test_folder_can_be_moved(tmp_path: Path) -> None:
    """Kind: resume makes a new run (folder moved: the same id)."""
    first = track(tmp_path / "a")
    log_steps(first, 1, 3)
    (tmp_path / "a").rename(tmp_path / "b")
    again = track(tmp_path / "b", run_id=first.run_id)
    log_steps(again, 1, 4)
    assert [row["step"] for row in rows(tmp_path / "b")] == [1, 2, 3, 4]
    assert json.loads((tmp_path / "b" / "wandb_run.json").read_text())["run_id"] == first.run_id


def test_without_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kind: resume makes a new run (W&B not installed: one clear warning, local logs)."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.warns(UserWarning, match=r"metrics.jsonl only. `pip install wandb` adds it") as caught:
        tracker = track(tmp_path, config=OFFLINE)
    assert len(caught) == 1
    log_steps(tracker, 1, 3)
    tracker.log_episodes(3, [], [])
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3]


def test_disabled_wandb_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log_steps(track(tmp_path), 1, 1)
    assert len(rows(tmp_path)) == 1


def test_only_the_main_process_logs(tmp_path: Path, wandb: FakeWandb) -> None:
    """Kind: one run per process (one W&B run, one results file)."""
    tracker = track(tmp_path, config=OFFLINE, is_main=False)
    log_steps(tracker, 1, 3)
    tracker.log_episodes(3, [], [])
    assert not wandb.inits
    assert not wandb.logged
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_finite_is_null(tmp_path: Path, wandb: FakeWandb) -> None:
    """The file stays strict JSON; W&B gets no such figure."""
    with track(tmp_path, config=OFFLINE) as tracker:
        tracker.log(1, {"a": math.nan, "b": math.inf, "c": None, "d": 0.5, "e": 0})
    assert rows(tmp_path) == [{"step": 1, "a": None, "b": None, "c": None, "d": 0.5, "e": 0}]
    assert wandb.logged == [{"step": 1, "d": 0.5, "e": 0}]


def test_instances_are_on_file_only(tmp_path: Path, wandb: FakeWandb) -> None:
    with track(tmp_path, config=OFFLINE) as tracker:
        tracker.log(1, {"a": 1.0}, instances=["x/C1", "y/C2"])
    assert rows(tmp_path)[0]["instances"] == ["x/C1", "y/C2"]
    assert wandb.logged == [{"step": 1, "a": 1.0}]


def test_half_written_last_line_is_cut_away(tmp_path: Path) -> None:
    """Kind: one failure loses its siblings (a half-written last line is repaired), Unicode lines (half a last line)."""
    first = track(tmp_path)
    log_steps(first, 1, 3)
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-5])
    log_steps(track(tmp_path, run_id=first.run_id), 2, 4)
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4]


def test_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    first = track(tmp_path)
    log_steps(first, 1, 3)
    file = tmp_path / "metrics.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], "oops", lines[2]]) + "\n")
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 2: .*changed by hand"):
        track(tmp_path, run_id=first.run_id)


def test_failed_run_says_so(tmp_path: Path, wandb: FakeWandb) -> None:
    with pytest.raises(KeyboardInterrupt), track(tmp_path, config=OFFLINE):
        raise KeyboardInterrupt
    assert wandb.exit_codes == [1]


def test_episodes_are_shown_with_their_provenance(tmp_path: Path, wandb: FakeWandb) -> None:
    config = PaptConfig.model_validate(
        {"name": "r", "phases": [{"steps": 1}], "data": {"train_claims": 3, "dev_claims": 1, "test_claims": 1}}
    )
    task: EpisodeTask = TrainingRows(config, load_pool(config.data)).task(0, 0)
    (episode,) = ScriptedPolicy("ceiling", echo_avoiding_oracle).play([task])
    with track(tmp_path, config=OFFLINE) as tracker:
        tracker.log_episodes(1, [episode, episode], [0.5, math.nan])
    (logged,) = wandb.logged
    assert logged["step"] == 1
    table = logged["episodes"]
    assert table.columns == list(EPISODE_COLUMNS)
    row = dict(zip(table.columns, table.data[0], strict=True))
    assert row["instance"] == episode.instance_id
    assert row["reward"] == 0.5
    assert table.data[1][EPISODE_COLUMNS.index("reward")] is None, "not scored"
    assert row["transcript"].count("\n> ") == len(episode.turns)
    for entry in episode.trace:
        assert entry["node"] in row["provenance"]
        assert entry["source"] is None or f"(source {entry['source']})" in row["provenance"]
    assert any(entry["source"] for entry in episode.trace)


def test_mean_leaves_out_what_is_not_a_number() -> None:
    """Kind: NaN in a mean. 0.5, NaN, 0.8: 0.65 over two; without any, not available."""
    values = [0.5, math.nan, 0.8]
    records = [EpisodeRecord("i", value, 1, {"reward": value, "never": math.nan}, None) for value in values]
    figures = step_figures(StepRecord(records=records))
    assert figures["rollout/reward"] == pytest.approx(0.65)
    assert figures["rollout/never"] is None
    assert figures["rollout/episodes"] == 3
    assert figures["rollout/unscored"] == 1


def test_full_disk_while_logging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full disk: the error says what to do, and the lines before are whole."""
    tracker = track(tmp_path)
    tracker.log(1, {"a": 1})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left") as caught:
            tracker.log(2, {"a": 2})
    assert "free space, then give the same command again" in caught.value.__notes__[0]
    log_steps(track(tmp_path, run_id=tracker.run_id), 1, 3)
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3]
