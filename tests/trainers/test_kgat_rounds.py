"""A mining round: interrupted, split, damaged, failing; the targets are the same or the reason is named."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.generators.topology_worlds import NO_EVIDENCE, RuledRunner, draw, make_task

from provgym.envs.topology import Topology
from provgym.envs.topology_rules import TopologyRules, enumerate_topologies
from provgym.eval.processes import SingleProcess
from provgym.generators.candidate_mining import Proposal, Proposals
from provgym.generators.json_lines import BadFileError
from provgym.generators.task_mining import MiningPlan
from provgym.generators.topology_pruning import PruningRule
from provgym.generators.topology_targets import ScoreRule, TaskTarget
from provgym.rewards.topology_score import CostWeights
from provgym.trainers.kgat_rounds import MiningSetup, TaskSet, mine_round
from provgym.trainers.kgat_state import RoundFolder
from provgym.trainers.step_record import RunStopped

RULES = TopologyRules(("Planner", "Verifier", "Answerer"), max_nodes=4)
ALL = [topology.canonical() for topology in enumerate_topologies(RULES)]
TASKS = TaskSet(tuple(make_task(f"t{n}") for n in range(7)), (NO_EVIDENCE,) * 7)
PLAN = MiningPlan(
    replicates=2,
    score=ScoreRule(CostWeights(0.04, 0.01), 1.0, "posterior_mean"),
    temperature=0.1,
    rungs=2,
    rescore_replicates=2,
    keeps_unpruned=True,
    pruning=PruningRule(0.5, keeps_score=True),
)
PROPOSALS = Proposals(
    tuple(tuple(Proposal(ALL[(5 * n + 11 * k) % len(ALL)], "random") for k in range(4)) for n in range(7)),
    {"random": 28},
)


class Killed(BaseException):
    """Stands for a kill inside one process: nothing may catch it."""


def world(task: str, topology: Topology, replicate: int) -> bool:
    return draw(task, topology.key, replicate) < 0.2 + 0.2 * topology.num_nodes


class StoppingRunner(RuledRunner):
    """Dies after so many executions."""

    def __init__(self, limit: int) -> None:
        super().__init__(world)
        self._limit = limit

    async def run(self, request: Any) -> Any:
        if len(self.requests) == self._limit:
            raise Killed
        return await super().run(request)


def mine(
    folder: Path,
    runner: RuledRunner | None = None,
    processes: Any = None,
    propose: Callable[[], Proposals] | None = None,
) -> tuple[list[TaskTarget], RoundFolder, RuledRunner]:
    runner = runner or RuledRunner(world)
    setup = MiningSetup(TASKS, PLAN, RULES, runner, tasks_at_once=2)
    round_folder = RoundFolder(folder, 0)
    targets = mine_round(round_folder, setup, propose or (lambda: PROPOSALS), processes or SingleProcess())
    return targets, round_folder, runner


def test_round_is_read_not_mined_again(tmp_path: Path) -> None:
    targets, folder, _ = mine(tmp_path)
    before = folder.targets_file.read_bytes()

    def never() -> Proposals:
        raise AssertionError("a finished round needs no proposals")

    again, _, runner = mine(tmp_path, propose=never)
    assert runner.requests == []
    assert [t.to_json() for t in again] == [t.to_json() for t in targets]
    assert folder.targets_file.read_bytes() == before
    assert [t.task_id for t in targets] == [f"t{n}" for n in range(7)]
    assert not list(folder.path.glob("*.part-*"))
    assert not list(folder.path.glob(".*.tmp"))


@pytest.mark.parametrize("limits", [(3, 20, 50), (1, 1, 1), (70, 5, 30)])
def test_killed_anywhere_ends_with_the_same_targets(tmp_path: Path, limits: tuple[int, ...]) -> None:
    """Kind: one failure loses its siblings. What was mined stays; no proposal is drawn twice."""
    _, whole, plain = mine(tmp_path / "whole")
    asked: list[int] = []

    def propose() -> Proposals:
        asked.append(1)
        return PROPOSALS

    for limit in limits:
        with pytest.raises(Killed):
            mine(tmp_path / "cut", StoppingRunner(limit), propose=propose)
    done = len(RoundFolder(tmp_path / "cut", 0).read_parts())
    _, folder, runner = mine(tmp_path / "cut", propose=propose)
    assert folder.targets_file.read_bytes() == whole.targets_file.read_bytes()
    assert len(asked) == 1
    finished = {f"t{n}" for n in range(7)} - {task for task, _, _ in runner.requests}
    assert len(finished) == done
    assert len(runner.requests) <= len(plain.requests)


def test_half_written_line_is_mined_again(tmp_path: Path) -> None:
    """Kind: Unicode lines (half a last line): whole records count, the cut one is repaired away."""
    _, whole, _ = mine(tmp_path / "whole")
    with pytest.raises(Killed):
        mine(tmp_path / "cut", StoppingRunner(60))
    part = RoundFolder(tmp_path / "cut", 0).part_file(0)
    lines = part.read_bytes().splitlines(keepends=True)
    assert len(lines) >= 2
    part.write_bytes(b"".join(lines[:-1]) + lines[-1][:40])
    _, folder, runner = mine(tmp_path / "cut")
    assert folder.targets_file.read_bytes() == whole.targets_file.read_bytes()
    assert json.loads(lines[-1])["target"]["task_id"] in {task for task, _, _ in runner.requests}
    assert json.loads(lines[0])["target"]["task_id"] not in {task for task, _, _ in runner.requests}


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        mine(tmp_path, StoppingRunner(60))
    part = RoundFolder(tmp_path, 0).part_file(0)
    lines = part.read_bytes().splitlines(keepends=True)
    part.write_bytes(lines[0][:30] + b"\n" + b"".join(lines[1:]))
    with pytest.raises(BadFileError, match=r"targets\.part-00000\.jsonl, line 1.*remove the file"):
        mine(tmp_path)


def test_targets_of_other_tasks_are_refused(tmp_path: Path) -> None:
    _, folder, _ = mine(tmp_path)
    rows = folder.targets_file.read_text().replace('"task_id": "t3"', '"task_id": "other"')
    folder.targets_file.write_text(rows)
    with pytest.raises(BadFileError, match=r"found task 'other' where 't3' was expected.*--fresh"):
        mine(tmp_path)


class ThreadProcesses:
    """Several processes as threads that gather at a barrier."""

    def __init__(self, rank: int, shared: dict[str, Any]) -> None:
        self.rank, self.world_size, self._shared = rank, shared["size"], shared

    def gather(self, items: list[Any]) -> list[Any]:
        self._shared["items"][self.rank] = list(items)
        self._shared["barrier"].wait()
        found = [item for part in self._shared["items"] for item in part]
        self._shared["barrier"].wait()
        return found


def test_two_processes_mine_what_one_does(tmp_path: Path) -> None:
    """Kinds: one process instead of two, one run per process. Targets gathered in the order of the tasks."""
    _, whole, plain = mine(tmp_path / "one")
    shared: dict[str, Any] = {"size": 2, "items": [[], []], "barrier": threading.Barrier(2, timeout=60)}
    found: dict[int, Any] = {}

    def work(rank: int) -> None:
        found[rank] = mine(tmp_path / "two", processes=ThreadProcesses(rank, shared))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    targets = [[t.to_json() for t in found[rank][0]] for rank in range(2)]
    assert targets[0] == targets[1]
    assert found[0][1].targets_file.read_bytes() == whole.targets_file.read_bytes()
    shares = [{task for task, _, _ in found[rank][2].requests} for rank in range(2)]
    assert shares == [{"t0", "t2", "t4", "t6"}, {"t1", "t3", "t5"}]
    assert sum(len(found[rank][2].requests) for rank in range(2)) == len(plain.requests)
    one = json.loads(whole.mining_file.read_text())
    assert json.loads(found[0][1].mining_file.read_text()) == one


def test_only_errors_stop_the_run_and_leave_nothing_final(tmp_path: Path) -> None:
    """Kind: endpoint failure scored as wrong; the same command tries again."""
    with pytest.raises(RunStopped, match=r"all \d+ executions.*ended in error.*timeout: no answer in 60 s"):
        mine(tmp_path, RuledRunner(lambda *_: None))
    assert not RoundFolder(tmp_path, 0).targets_file.exists()
    _, folder, runner = mine(tmp_path)
    assert len({task for task, _, _ in runner.requests}) == 7, "tasks with errors are tried again"
    assert folder.targets_file.is_file()


def test_some_errors_are_counted_and_left_out(tmp_path: Path) -> None:
    runner = RuledRunner(lambda task, topology, r: None if task == "t1" else world(task, topology, r))
    targets, folder, _ = mine(tmp_path, runner)
    figures = folder.read_figures()
    assert targets[1].kept == ()
    assert figures["mining/unscored"] == 1
    assert figures["mining/errors"] > 0


def test_all_candidates_failing_everywhere_says_so(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no candidate of any task succeeded, so that cost alone made the targets"):
        targets, folder, _ = mine(tmp_path, RuledRunner(lambda *_: False))
    assert all(target.is_all_failing for target in targets)
    assert folder.read_figures()["mining/all_failing"] == 7
    for target in targets:
        cheapest = min(target.kept, key=lambda c: (c.outcome.nodes, c.outcome.edges))
        assert cheapest.target == max(c.target for c in target.kept)


def test_failing_tasks_are_named(tmp_path: Path) -> None:
    runner = RuledRunner(lambda task, topology, r: task != "t2" and world(task, topology, r))
    with pytest.warns(UserWarning, match=r"no candidate succeeded on 1 of 7 tasks \(t2\)"):
        mine(tmp_path, runner)


def test_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("provgym.trainers.kgat_state.os.fsync", full)
        with pytest.raises(OSError, match="No space left") as caught:
            mine(tmp_path)
    assert any("could not be written; free space" in note for note in caught.value.__notes__)
