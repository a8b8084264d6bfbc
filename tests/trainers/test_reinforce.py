"""REINFORCE on the same world: its baseline by hand, its direction, its resume."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch
from tests.generators.topology_worlds import RuledRunner
from tests.trainers.kgat_runs import make_config, shared_world

from provgym.envs.topology import Topology
from provgym.trainers import reinforce
from provgym.trainers.checkpoints import whole_checkpoints
from provgym.trainers.kgat_learning_config import ReinforceConfig
from provgym.trainers.reinforce_step import ReinforceFigures, ReinforceTrainer, advantages_of
from provgym.trainers.step_record import RunStopped

NAN = math.nan


class Killed(BaseException):
    """Stands for a kill inside one process: nothing may catch it."""


def test_leave_one_out_by_hand() -> None:
    """Kinds: identical rewards (exactly 0), unscored reward (in no baseline)."""
    config = ReinforceConfig(samples=4)
    rewards = torch.tensor([[1.0, 0.0, 1.0, 1.0], [0.35, 0.35, 0.35, 0.35], [1.0, NAN, 0.0, 1.0], [NAN] * 4])
    found, _ = advantages_of(rewards, NAN, config)
    assert found[0].tolist() == pytest.approx([1 / 3, -1.0, 1 / 3, 1 / 3])
    assert found[1].tolist() == [0.0] * 4
    assert found[2].tolist() == pytest.approx([0.5, 0.0, -1.0, 0.5])
    assert found[3].tolist() == [0.0] * 4


def test_running_mean_by_hand() -> None:
    config = ReinforceConfig(samples=2, baseline="running_mean", momentum=0.75)
    first, mean = advantages_of(torch.tensor([[1.0, 0.0]]), NAN, config)
    assert (first.tolist(), mean) == ([[0.5, -0.5]], 0.5)
    second, mean = advantages_of(torch.tensor([[1.0, NAN]]), mean, config)
    assert second.tolist() == [[0.5, 0.0]]
    assert mean == pytest.approx(0.75 * 0.5 + 0.25 * 1.0)
    nothing, after = advantages_of(torch.tensor([[NAN, NAN]]), mean, config)
    assert (nothing.tolist(), after) == ([[0.0, 0.0]], mean)


def test_probability_moves_to_what_is_rewarded(tmp_path: Path) -> None:
    """A world in which the single agent is always right and all others never: its probability rises."""
    config = make_config(tmp_path, reinforce={"steps": 25, "tasks_per_step": 3, "samples": 6, "learning_rate": 2e-2})
    runner = RuledRunner(lambda task, topology, replicate: topology.num_nodes == 1)
    trainer = ReinforceTrainer(config, shared_world(), runner)  # type: ignore[arg-type]
    contexts = shared_world().splits["train"].contexts
    teams = [Topology(("Answerer",), ())] * len(contexts)
    before = trainer.model.log_prob(contexts, teams).mean().item()
    rewards = [trainer.step(number).reward for number in range(25)]
    assert trainer.model.log_prob(contexts, teams).mean().item() > before + 0.5
    assert sum(rewards[-5:]) > sum(rewards[:5])
    replicates = {replicate for _, _, replicate in runner.requests}
    assert replicates == set(range(25)), "every step has draws of its own"


def test_only_errors_stop_the_run(tmp_path: Path) -> None:
    """Kind: endpoint failure scored as wrong."""
    runner = RuledRunner(lambda *_: None)
    trainer = ReinforceTrainer(make_config(tmp_path), shared_world(), runner)  # type: ignore[arg-type]
    with pytest.raises(RunStopped, match="executions of step 1 ended in error; the first: task"):
        trainer.step(0)


def _dying_at(at: int) -> Callable[[ReinforceTrainer, int], ReinforceFigures]:
    plain, calls = ReinforceTrainer.step, count(1)

    def step(self: ReinforceTrainer, number: int) -> ReinforceFigures:
        if next(calls) == at:
            raise Killed
        return plain(self, number)

    return step


def test_killed_and_resumed_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kind: resume makes a new run."""
    world, states = shared_world(), []
    for name, kills in (("whole", ()), ("stopped", (4, 3))):
        config = make_config(tmp_path, name)
        for at in kills:
            with monkeypatch.context() as patched:
                patched.setattr(ReinforceTrainer, "step", _dying_at(at))
                with pytest.raises(Killed):
                    reinforce.train(config, world, world.open_runtime(config))
        reinforce.train(config, world, world.open_runtime(config))
        last = whole_checkpoints(config.run_dir / "checkpoints")[-1].path
        states.append([(last / file).read_bytes() for file in ("model.safetensors", "optimizer.pt", "notes.json")])
    assert states[0] == states[1]


@pytest.mark.slow
def test_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    summary = reinforce.run(make_config(tmp_path))
    assert summary["name"] == "run-reinforce"
    assert set(summary["test"]["figures"]) == {"accuracy", "score", "tokens", "calls", "nodes", "edges"}
    assert (tmp_path / "runs" / "run-reinforce" / "generator" / "generator.json").is_file()
