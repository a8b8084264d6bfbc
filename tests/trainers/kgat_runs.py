"""Small K-GAT runs for tests: a world of simulated agents and hashed embeddings, built once."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.workflow import AgentReply, MemoryMessageCache, NodeCall, WorkflowRuntime
from provgym.trainers.kgat import find_start, train
from provgym.trainers.kgat_config import KgatConfig
from provgym.trainers.kgat_training import KgatTrainer
from provgym.trainers.kgat_world import KgatWorld, build_world
from provgym.trainers.launch import World

ALONE = World(1, 0)


def make_config(folder: Path, name: str = "run", **overrides: Any) -> KgatConfig:
    """A run of two rounds of six steps on nine tasks; keys with dots as ``section__key`` override single fields."""
    data: dict[str, Any] = {
        "name": name,
        "runs_dir": str(folder / "runs"),
        "tasks": {
            "evidence": {"train_claims": 3, "dev_claims": 2, "test_claims": 2, "other_claims": 160, "num_units": 6}
        },
        "retrieval": {"encoder": "hashed", "cache": None},
        "generator": {"max_nodes": 4, "hidden_size": 16, "heads": 2},
        "curriculum": {"rounds": 2, "candidates": 3, "pi_last": 0.5},
        "mining": {"replicates": 2, "rungs": 1, "rescore_replicates": 1},
        "optim": {"steps_per_round": 6, "tasks_per_step": 4, "warmup_steps": 2},
        "reinforce": {"steps": 6, "tasks_per_step": 3, "samples": 2},
        "checkpoints": {"every": 2, "dev_replicates": 1},
        "evaluation": {"replicates": 1, "planted": None, "methods": ["kgat", "single_agent"]},
        "tracking": {"wandb": "disabled"},
    }
    for key, value in overrides.items():
        section, _, field = key.partition("__")
        data[section] = {**data.get(section, {}), field: value} if field else value
    return KgatConfig.model_validate(data)


@lru_cache(maxsize=2)
def shared_world() -> KgatWorld:
    """The world of :func:`make_config`'s runs; it is the same for all of them."""
    return build_world(make_config(Path("nowhere")))


def segment(config: KgatConfig, world: KgatWorld | None = None) -> KgatTrainer:
    """Run the training part of a run, as ``kgat.run`` does, from wherever it stopped."""
    world = world or shared_world()
    resume = find_start(config, ALONE)
    config.run_dir.mkdir(parents=True, exist_ok=True)
    return train(config, world, world.open_runtime(config), ALONE, resume)[0]


def plain_runtime(agent: Any, *, cached: bool) -> WorkflowRuntime:
    """A runtime without disk."""
    return WorkflowRuntime(agent, roles=DEFAULT_ROLES, cache=MemoryMessageCache() if cached else None)


class CountingAgent:
    """Counts what reaches the agent below.

    Attributes:
        calls: Calls that were answered.
    """

    def __init__(self, agent: Any) -> None:
        self.calls = 0
        self._agent = agent

    @property
    def fingerprint(self) -> str:
        """The agent's own."""
        found: str = self._agent.fingerprint
        return found

    async def reply(self, call: NodeCall) -> AgentReply:
        """Pass a call on."""
        self.calls += 1
        found: AgentReply = await self._agent.reply(call)
        return found
