"""Several processes give the very figures of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from provgym.eval.processes import AccelerateProcesses, SingleProcess, current_processes, share_of
from provgym.eval.walk import evaluate
from provgym.eval.walk_config import GraphEchoClaims, WalkEvalConfig, build_tasks, load_instances
from provgym.eval.walk_result import WalkEvalResult
from provgym.generators.scripted import ScriptedPolicy, naive_path_counter

CONFIG = WalkEvalConfig(
    claims=GraphEchoClaims(seed=1, splits={"test": 5}), resamples=100, samples=2, decoding="sampled"
)
NAIVE = ScriptedPolicy("naive", naive_path_counter)


class Together:
    """Ranks that are threads of this process and gather through a shared list."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.barrier = threading.Barrier(world_size, timeout=60)
        self.slots: list[list[Any]] = [[] for _ in range(world_size)]

    def rank_of(self, rank: int) -> OneRank:
        """Return one rank's view."""
        return OneRank(self, rank)


class OneRank:
    def __init__(self, all_ranks: Together, rank: int) -> None:
        self.all_ranks, self.rank, self.world_size = all_ranks, rank, all_ranks.world_size

    def gather(self, items: list[Any]) -> list[Any]:
        """Wait for everyone twice: to write, and to have read."""
        self.all_ranks.slots[self.rank] = list(items)
        self.all_ranks.barrier.wait()
        found = [item for slot in self.all_ranks.slots for item in slot]
        self.all_ranks.barrier.wait()
        return found


def on_ranks(world_size: int, work: Callable[[OneRank], WalkEvalResult]) -> list[Any]:
    """Run work on every rank at once; return results or exceptions, rank by rank."""
    ranks = Together(world_size)

    def guarded(rank: int) -> Any:
        try:
            return work(ranks.rank_of(rank))
        except Exception as error:
            return error

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(guarded, range(world_size)))


def figures(result: WalkEvalResult) -> dict[str, Any]:
    return {**result.to_json(), "world_size": None}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> WalkEvalResult:
    """The evaluation on one process."""
    return evaluate(CONFIG, NAIVE, tmp_path_factory.mktemp("alone"), plots=False)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_together_equal_one_process(alone: WalkEvalResult, tmp_path: Path, world_size: int) -> None:
    """Kinds: one run per process (one results file), one process instead of two (world size is stored)."""
    results = on_ranks(world_size, lambda rank: evaluate(CONFIG, NAIVE, tmp_path, plots=False, processes=rank))
    for result in results:
        assert figures(result) == figures(alone)
        assert result.episodes == alone.episodes
        assert result.world_size == world_size
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.yaml", "episodes.jsonl", "summary.json"]
    assert (tmp_path / "episodes.jsonl").read_bytes() == (alone.out_dir / "episodes.jsonl").read_bytes()
    assert json.loads((tmp_path / "summary.json").read_text())["world_size"] == world_size


def test_failed_rank_stops_the_others_and_all_work_is_kept(alone: WalkEvalResult, flaky: Any, tmp_path: Path) -> None:
    """Kind: one failure loses its siblings (two kept, one typed failure, resumed on one process)."""
    results = on_ranks(
        2,
        lambda rank: evaluate(
            CONFIG,
            flaky(NAIVE, dies_after=3 if rank.rank == 1 else None),
            tmp_path,
            plots=False,
            processes=rank,
        ),
    )
    assert isinstance(results[0], RuntimeError)
    assert "process 1: ConnectionError: the server went away" in str(results[0])
    assert isinstance(results[1], ConnectionError)
    rest = flaky(NAIVE)
    resumed = evaluate(CONFIG, rest, tmp_path, plots=False)
    assert figures(resumed) == figures(alone)
    assert len(rest.played) == len(alone.episodes) - len(alone.episodes) // 2 - 3


def test_bad_folder_stops_every_rank(alone: WalkEvalResult) -> None:
    other = CONFIG.model_copy(update={"seed": 7})
    results = on_ranks(2, lambda rank: evaluate(other, NAIVE, alone.out_dir, processes=rank))
    assert isinstance(results[0], ValueError)
    assert isinstance(results[1], RuntimeError)


def test_episodes_that_only_another_rank_can_read_are_not_lost(
    alone: WalkEvalResult, flaky: Any, tmp_path: Path
) -> None:
    """Two machines without a shared disk: each rank has a folder of its own."""
    folders = [tmp_path / "zero", tmp_path / "one"]
    for folder, dies in zip(folders, (4, 7), strict=True):
        with pytest.raises(ConnectionError):
            evaluate(CONFIG, flaky(NAIVE, dies_after=dies), folder, plots=False)
    policies = [flaky(NAIVE), flaky(NAIVE)]
    results = on_ranks(
        2,
        lambda rank: evaluate(CONFIG, policies[rank.rank], folders[rank.rank], plots=False, processes=rank),
    )
    assert figures(results[0]) == figures(alone)
    assert sum(len(p.played) for p in policies) == len(alone.episodes) - 7, "both had begun at the end"


def test_shares_split_the_work_and_keep_groups_whole() -> None:
    tasks = build_tasks(CONFIG, load_instances(CONFIG).instances)
    wanted = [n for n in range(len(tasks)) if n % 7]
    for world_size in (1, 2, 3, 64):
        shares = [share_of(tasks, wanted, rank=r, world_size=world_size) for r in range(world_size)]
        assert sorted(n for share in shares for n in share) == wanted
        owner = {tasks[n].instance.instance_id: r for r, share in enumerate(shares) for n in share}
        assert all(owner[tasks[n].instance.instance_id] == r for r, share in enumerate(shares) for n in share)
        assert max(map(len, shares)) - min(map(len, shares)) <= 2 * CONFIG.samples
    with pytest.raises(ValueError, match="rank=2"):
        share_of(tasks, wanted, rank=2, world_size=2)


def test_without_a_launcher_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert isinstance(current_processes(), SingleProcess)
    assert current_processes().gather([1, 2]) == [1, 2]


def test_world_size_that_is_not_there_fails_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kind: one process instead of two (asked for 2, got 1: asserted, failing by name)."""
    import accelerate

    class Alone:
        num_processes, process_index = 1, 0

        def __init__(self, cpu: bool) -> None:
            self.cpu = cpu

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(accelerate, "PartialState", Alone)
    with pytest.raises(RuntimeError, match=r"WORLD_SIZE=2 processes were started, Accelerate sees 1"):
        AccelerateProcesses()


TWO = """
import sys
from pathlib import Path
from provgym.eval.walk import evaluate
from provgym.eval.walk_config import WalkEvalConfig
from provgym.generators.scripted import ScriptedPolicy, naive_path_counter

config = WalkEvalConfig.model_validate_json(sys.argv[1])
result = evaluate(config, ScriptedPolicy("naive", naive_path_counter), Path(sys.argv[2]), plots=False)
print("accuracy", result.metrics["accuracy"].value, flush=True)
"""


@pytest.mark.slow
def test_two_real_processes_equal_one(alone: WalkEvalResult, tmp_path: Path) -> None:
    """Kind: one process instead of two, with gloo and torchrun."""
    script = tmp_path / "two.py"
    script.write_text(TWO)
    out = tmp_path / "out"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
    }
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, str(script), CONFIG.model_dump_json(), str(out)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("accuracy") == 2
    found = json.loads((out / "summary.json").read_text())
    assert found["world_size"] == 2
    expected = json.loads((alone.out_dir / "summary.json").read_text())
    assert {**found, "world_size": 1} == expected
    assert (out / "episodes.jsonl").read_bytes() == (alone.out_dir / "episodes.jsonl").read_bytes()
