"""Training on questions that are answered in code: only where running it was allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.envs.workflow_worlds import ScriptedAgent, plain

from provgym.envs.evidence_units import EvidenceContext, KnowledgeGraph
from provgym.envs.topology import Topology
from provgym.envs.topology_tasks import TopologyTask
from provgym.envs.workflow import RunRequest
from provgym.generators.hashed_encoder import HashedEncoder
from provgym.rewards.answer_code import CodeGold
from provgym.trainers.kgat_config import KgatConfig
from provgym.trainers.kgat_world import KgatWorld, eval_config_of
from provgym.trainers.kgat_world_config import AgentsConfig, BenchmarkConfig, TasksConfig

FILES: dict[str, Any] = {"train": Path("a"), "dev": Path("b"), "test": Path("c")}
GOLD = CodeGold('def f(x):\n    """Add one."""\n', "f", "def check(candidate):\n    assert candidate(1) == 2\n")
TASK = TopologyTask("t", "t", "train", GOLD.prompt, GOLD.to_text(), "code", (), KnowledgeGraph((), {}), None)


def test_running_code_has_to_be_allowed() -> None:
    """Kind: config typing."""
    with pytest.raises(ValueError, match="off by default"):
        BenchmarkConfig(name="humaneval", **FILES)
    with pytest.raises(ValueError, match="run_code goes with humaneval alone"):
        BenchmarkConfig(name="gsm8k", run_code=True, **FILES)


@pytest.mark.parametrize("name", ["humaneval", "gsm8k"])
def test_a_run_s_runtime_and_evaluation_run_code_if_it_may(name: Any) -> None:
    benchmark = BenchmarkConfig(name=name, run_code=name == "humaneval", **FILES)
    config = KgatConfig(name="x", tasks=TasksConfig(benchmark=benchmark), agents=AgentsConfig(cache="memory"))
    assert eval_config_of(config).runs_code == (name == "humaneval")
    runtime = KgatWorld({}, HashedEncoder(), ScriptedAgent(default=plain("    return x + 1"))).open_runtime(config)
    request = RunRequest(Topology(("Answerer",), ()), TASK, EvidenceContext((), ()), phase="train")
    if name == "humaneval":
        (run,) = runtime.run_many_sync([request])
        assert run.is_correct
    else:
        with pytest.raises(ValueError, match="off by default"):
            runtime.run_many_sync([request])
