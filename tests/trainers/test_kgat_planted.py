"""The planted optimum: the ratio by hand, and a trained generator that comes near the best of every graph there is."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from tests.generators.topology_worlds import NO_EVIDENCE, RuledRunner, make_task
from tests.trainers.kgat_runs import make_config

from provgym.envs.event_loop import run_to_end
from provgym.envs.topology import Topology
from provgym.envs.topology_rules import TopologyRules, enumerate_topologies
from provgym.generators.topology_targets import ScoreRule
from provgym.rewards.topology_score import CostWeights
from provgym.trainers import kgat
from provgym.trainers.kgat_config import PlantedConfig
from provgym.trainers.kgat_planted import PlantedWorld, explore_world, planted_tasks, read_world, save_world, scores_of
from provgym.trainers.kgat_rounds import TaskSet
from provgym.trainers.step_record import RunStopped

SINGLE, PAIR = Topology(("Answerer",), ()), Topology(("Verifier", "Answerer"), ((0, 1),))
RULES = TopologyRules(("Verifier", "Answerer"), max_nodes=3)
RULE = ScoreRule(CostWeights(0.1, 0.0), 1.0, "posterior_mean")
TASKS = TaskSet(tuple(make_task(f"t{n}") for n in range(6)), (NO_EVIDENCE,) * 6)


class SyncRunner(RuledRunner):
    """The rule behind the harness's interface."""

    def run_many_sync(self, requests, on_done=None):  # type: ignore[no-untyped-def]
        return [run_to_end(self.run(request)) for request in requests]


def needs_verifier(task: str, topology: Topology, replicate: int) -> bool:
    return "Verifier" in topology.roles or replicate == 0


def test_ratio_by_hand() -> None:
    """Two kinds, two halves. Random: the mean of all; best: the better row of the other half."""
    scores = np.array([[1.0, 0.0, 0.2, 0.2], [0.0, 0.4, 0.8, 0.6]])
    world = PlantedWorld((SINGLE, PAIR), scores, ("a", "a", "b", "b"), (0, 1, 0, 1))
    assert world.random == pytest.approx(((0.5 + 0.2) / 2 + (0.5 + 0.4) / 2) / 2)
    # Kind a, half 0 is scored with the winner of half 1 (PAIR: 0.0), half 1 with that of half 0 (SINGLE: 0.0).
    assert world.best == pytest.approx((0.0 + (0.8 + 0.6) / 2) / 2)
    assert world.ratio(world.best) == pytest.approx(1.0)
    assert world.ratio(world.random) == pytest.approx(0.0)
    assert {k: t.key for k, t in world.best_of_kind().items()} == {"a": SINGLE.key, "b": PAIR.key}


def test_one_team_for_all_and_what_the_evidence_is_worth_by_hand() -> None:
    """The same world: half 1 chooses PAIR for half 0 (.5 > .1), half 0 SINGLE for half 1 (.6 > .4)."""
    scores = np.array([[1.0, 0.0, 0.2, 0.2], [0.0, 0.4, 0.8, 0.6]])
    world = PlantedWorld((SINGLE, PAIR), scores, ("a", "a", "b", "b"), (0, 1, 0, 1))
    assert world.constant == pytest.approx(((0.0 + 0.0) / 2 + (0.8 + 0.2) / 2) / 2)
    assert world.best_in_sample == pytest.approx((0.5 + 0.7) / 2)
    assert world.evidence_ratio(world.best) == pytest.approx(1.0)
    assert world.evidence_ratio(world.constant) == pytest.approx(0.0)
    alike = PlantedWorld((SINGLE, PAIR), np.array([[1.0] * 4, [0.0] * 4]), ("a", "a", "b", "b"), (0, 1, 0, 1))
    assert math.isnan(alike.evidence_ratio(0.5))  # one team is best for all: nothing to gain


def test_choosing_and_scoring_on_other_halves_is_not_lucky() -> None:
    """A hundred equal topologies, pure noise: the best of them is worth no more than any."""
    rng = np.random.default_rng(0)
    found = [
        PlantedWorld((SINGLE,) * 100, rng.random((100, 40)), ("a",) * 40, tuple(n % 2 for n in range(40))).gap
        for _ in range(30)
    ]
    assert abs(float(np.mean(found))) < 0.03


def test_every_graph_is_executed_on_every_task() -> None:
    runner = SyncRunner(needs_verifier)
    world = explore_world(RULES, TASKS, runner, RULE, PlantedConfig(max_nodes=2, tasks=3, replicates=2))
    assert [t.key for t in world.topologies] == [SINGLE.key, PAIR.key]
    wanted = set(itertools.product(TASKS.task_ids, (SINGLE.key, PAIR.key), (0, 1)))
    assert set(runner.requests) == wanted
    assert len(runner.requests) == len(wanted)
    assert world.scores == pytest.approx(np.array([[0.5 - 0.1] * 6, [1.0 - 0.2] * 6]))
    assert len(list(enumerate_topologies(RULES))) > 2, "the rule set is smaller than the generator's"


def test_world_without_a_gap_is_refused() -> None:
    with pytest.raises(RunStopped, match=r"is below evaluation.planted.min_gap=0.1: topology hardly matters"):
        explore_world(
            RULES, TASKS, SyncRunner(lambda *_: True), ScoreRule(CostWeights(0.0, 0.0), 1.0, "raw"), PlantedConfig()
        )


def test_errors_are_left_out_of_the_scores() -> None:
    """Kind: endpoint failure scored as wrong."""
    runner = SyncRunner(lambda task, topology, replicate: None if task == "t1" or replicate == 1 else True)
    found = scores_of([SINGLE] * 6, TASKS, runner, RULE, replicates=2)
    assert np.isnan(found[1])
    assert found[[0, 2, 3, 4, 5]] == pytest.approx(np.full(5, 0.9))


def test_explored_once_and_again_if_the_world_changed(tmp_path: Path) -> None:
    world = explore_world(RULES, TASKS, SyncRunner(needs_verifier), RULE, PlantedConfig(max_nodes=2))
    world.scores[0, 0] = np.nan
    save_world(world, tmp_path / "planted.json", {"agent": "a"})
    again = read_world(tmp_path / "planted.json", {"agent": "a"})
    assert again is not None
    assert np.array_equal(again.scores, world.scores, equal_nan=True)
    assert (again.topologies, again.kinds, again.folds) == (world.topologies, world.kinds, world.folds)
    assert read_world(tmp_path / "planted.json", {"agent": "b"}) is None
    assert read_world(tmp_path / "nothing.json", {}) is None


def test_tasks_are_taken_evenly() -> None:
    assert planted_tasks(TASKS, 4).task_ids == ("t0", "t1", "t2", "t3")


@pytest.mark.slow
def test_trainer_finds_the_planted_optimum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exhaustive scores over all graphs of up to three nodes, trained from mined candidates alone."""
    monkeypatch.chdir(tmp_path)
    config = make_config(
        tmp_path,
        tasks={"evidence": {"seed": 15, "train_claims": 240, "dev_claims": 20, "test_claims": 40, "other_claims": 320}},
        generator={"max_nodes": 3, "hidden_size": 32},
        curriculum={"rounds": 3, "candidates": 6},
        mining={"replicates": 4, "rungs": 2, "rescore_replicates": 8},
        optim={"steps_per_round": 200, "tasks_per_step": 32, "learning_rate": 4e-3},
        checkpoints={"every": 200, "dev_replicates": 4},
        evaluation={
            "replicates": 1,
            "methods": ["kgat"],
            "trains_query_control": False,
            "planted": {"max_nodes": 3, "tasks": 40, "replicates": 4},
        },
        agents={"cache": "memory"},
    )
    summary = kgat.run(config)
    assert summary["planted"]["s_best"] - summary["planted"]["s_random"] >= 0.1
    assert summary["planted_optimum_ratio"]["value"] >= 0.95
