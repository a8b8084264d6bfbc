"""An outside learner plays the array face: Stable-Baselines3's checker accepts it, its plain PPO learns on it."""

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from provgym.envs.walk_discrete import NUM_ACTIONS, GraphWalkEnv

ARRAY = "provgym/GraphWalk-v0"
TEST_SEEDS = range(10_000, 10_400)
Policy = Callable[[Any, np.random.Generator], int]


def test_its_checker_accepts_the_environment() -> None:
    from stable_baselines3.common.env_checker import check_env

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(GraphWalkEnv())


def test_infos_pass_through_its_vector_environment() -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv

    vec = DummyVecEnv([GraphWalkEnv, GraphWalkEnv])
    vec.seed(0)
    vec.reset()
    for _ in range(20):
        _, _, _, infos = vec.step(np.array([0, NUM_ACTIONS - 1]))
    assert len(infos[0]["trace"]) == infos[0]["outcome"].walks + 1 if infos[0]["outcome"] else infos[0]["trace"]
    assert infos[1]["terminal_observation"].shape == (616,)


def returns(policy: Policy) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return of one episode per test seed: the same instances in the same order for every policy."""
    env = gymnasium.make(ARRAY)
    total = []
    for seed in TEST_SEEDS:
        rng = np.random.default_rng(seed)
        observation, _ = env.reset(seed=seed)
        done = False
        while not done:
            observation, reward, terminated, truncated, _ = env.step(policy(observation, rng))
            done = terminated or truncated
        total.append(float(reward))
    return np.array(total)


@pytest.mark.slow
def test_plain_ppo_beats_the_random_policy() -> None:
    """50,000 steps, no masking, default settings; paired bootstrap over the same test seeds."""
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", gymnasium.make(ARRAY), seed=0, device="cpu")
    model.learn(50_000)
    trained = returns(lambda observation, rng: int(model.predict(observation, deterministic=True)[0]))
    chance = returns(lambda observation, rng: int(rng.integers(NUM_ACTIONS)))
    gains = trained - chance
    rng = np.random.default_rng(0)
    means = rng.choice(gains, size=(2_000, len(gains))).mean(axis=1)
    low = float(np.quantile(means, 0.025))
    print(f"PPO {trained.mean():.3f}, random {chance.mean():.3f}, gain {gains.mean():.3f}, 95 % lower bound {low:.3f}")
    assert low > 0.0
