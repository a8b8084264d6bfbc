"""Speed of the array environment: against CartPole, and against the size of the graph.

Run by hand: ``python tests/benchmarks/bench_envs.py``; ``make bench`` calls :func:`measure`.
"""

import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

import provgym  # noqa: F401 - registers the ids
from provgym.envs.provenance import Instance
from provgym.envs.scale import merged_instances
from provgym.envs.slots import NUM_SLOTS
from provgym.envs.walk_discrete import NUM_ACTIONS

WALK_ID = "provgym/GraphWalk-v0"
STEPS_PER_ROUND = 2_000
ROUNDS = 41
SMALL, LARGE = 100, 1_000_000

AnyEnv = gymnasium.Env[Any, Any]


def measure() -> dict[str, float]:
    """Return the figures; ratios are medians over rounds of adjacent plays, and times include every reset.

    * ``env_steps_vs_cartpole``: steps per second over those of ``CartPole-v1``, both through ``gymnasium.make`` and
      with actions drawn beforehand. The walker uses its whole budget, then stops; 7 steps an episode.
    * ``env_steps_vs_cartpole_uniform``: the same with uniform random actions, which stop after 1.6 steps on average
      and so measure resets more than steps.
    * ``env_step_growth``: time per step in a graph of 10^6 nodes over that in one of 10^2.
    """
    walkers = {
        "cartpole": (gymnasium.make("CartPole-v1"), _play_uniform(2)),
        "walk": (gymnasium.make(WALK_ID), _play_to_the_budget()),
        "uniform": (gymnasium.make(WALK_ID), _play_uniform(NUM_ACTIONS)),
        "small": (_walk_env(merged_instances(SMALL)), _play_to_the_budget()),
        "large": (_walk_env(merged_instances(LARGE)), _play_to_the_budget()),
    }
    times: dict[str, list[float]] = {name: [] for name in walkers}
    # The large graph is millions of records that never change; they are left out of every garbage collection.
    gc.collect()
    gc.freeze()
    for env, play in walkers.values():
        env.reset(seed=0)
        for _ in range(3):
            play(env)  # warm-up
    for _ in range(ROUNDS):
        for name, (env, play) in walkers.items():
            times[name].append(play(env))
    gc.unfreeze()

    def ratio(above: str, below: str) -> float:
        return statistics.median(a / b for a, b in zip(times[above], times[below], strict=True))

    return {
        "env_steps_vs_cartpole": ratio("cartpole", "walk"),
        "env_steps_vs_cartpole_uniform": ratio("cartpole", "uniform"),
        "env_step_growth": ratio("large", "small"),
        "env_steps_per_s": 1.0 / statistics.median(times["walk"]),
        "cartpole_steps_per_s": 1.0 / statistics.median(times["cartpole"]),
    }


def _walk_env(instances: Sequence[Instance]) -> AnyEnv:
    return gymnasium.make(WALK_ID, instances=instances)


def _play_uniform(num_actions: int) -> Callable[[AnyEnv], float]:
    actions = np.random.default_rng(1).integers(num_actions, size=STEPS_PER_ROUND).tolist()

    def play(env: AnyEnv) -> float:
        start = time.perf_counter()
        env.reset()
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return (time.perf_counter() - start) / STEPS_PER_ROUND

    return play


def _play_to_the_budget() -> Callable[[AnyEnv], float]:
    # The first slots are filled first, so a walk to one of the first three is nearly always legal.
    slots = np.random.default_rng(2).integers(3, size=STEPS_PER_ROUND).tolist()

    def play(env: AnyEnv) -> float:
        start = time.perf_counter()
        _, info = env.reset()
        for slot in slots:
            action = slot if info["budget_left"] else NUM_SLOTS
            _, _, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                _, info = env.reset()
        return (time.perf_counter() - start) / STEPS_PER_ROUND

    return play


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
