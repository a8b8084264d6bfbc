"""Several walk environments at once, with seeds that do not overlap.

Gymnasium's own vector environments give sub-environment i the seed ``base + i``: base seeds 5 and 6 then share all but
one of their workers. Those here spread one seed over the workers by numpy's ``SeedSequence``. ``gymnasium.make_vec(id,
num_envs=n)`` makes them; with ``vectorization_mode="sync"`` or ``"async"`` it makes Gymnasium's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import provgym

VectorMode = Literal["sync", "async"]
Seeds = int | Sequence[int | None] | None


def spread_seeds(seed: int, num_envs: int) -> list[int]:
    """Return one seed per sub-environment.

    Args:
        seed: Any integer >= 0.
        num_envs: Sub-environments, >= 1; the first seeds do not depend on it.

    Returns:
        63-bit integers, all different for any practical number of workers and seeds.

    Raises:
        ValueError: If ``seed`` is negative.

    Example:
        >>> set(spread_seeds(5, 4)) & set(spread_seeds(6, 4))
        set()
    """
    if seed < 0:
        raise ValueError(f"seed={seed} must be >= 0")
    children = np.random.SeedSequence(seed).spawn(num_envs)
    return [int(child.generate_state(1, np.uint64)[0] >> np.uint64(1)) for child in children]


class WalkSyncVectorEnv(SyncVectorEnv):
    """Sub-environments in this process, one after the other."""

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all sub-environments.

        Args:
            seed: One seed, spread over the sub-environments; or a list with one each, taken as it is.
            options: Passed on to every sub-environment; never changed.
        """
        return super().reset(seed=_seeds(seed, self.num_envs), options=None if options is None else dict(options))


class WalkAsyncVectorEnv(AsyncVectorEnv):
    """One process per sub-environment."""

    def reset_async(self, seed: Seeds = None, options: dict[str, Any] | None = None) -> None:
        """Start resetting all sub-environments; see :meth:`WalkSyncVectorEnv.reset` for the arguments."""
        super().reset_async(_seeds(seed, self.num_envs), None if options is None else dict(options))


def make_walk_vec(
    num_envs: int,
    mode: VectorMode = "sync",
    *,
    env_id: str = "provgym/GraphWalk-v0",
    env_kwargs: Mapping[str, Any] | None = None,
) -> WalkSyncVectorEnv | WalkAsyncVectorEnv:
    """Make a vector environment of walks.

    Args:
        num_envs: Sub-environments, >= 1.
        mode: ``sync`` steps them in this process; ``async`` gives each its own.
        env_id: Which face, ``provgym/GraphWalk-v0`` or ``provgym/GraphWalkText-v0``.
        env_kwargs: Arguments of the environment, such as ``instances`` and ``budget``.

    Raises:
        ValueError: If ``num_envs`` < 1 or ``mode`` is unknown.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs={num_envs} must be >= 1")
    make: Callable[[], gym.Env[Any, Any]] = partial(_make_one, env_id, dict(env_kwargs or {}))
    if mode == "sync":
        return WalkSyncVectorEnv([make] * num_envs)
    if mode == "async":
        return WalkAsyncVectorEnv([make] * num_envs)
    raise ValueError(f"mode={mode!r} is unknown; choose 'sync' or 'async'")


def make_text_vec(num_envs: int = 1, **env_kwargs: Any) -> WalkSyncVectorEnv | WalkAsyncVectorEnv:
    """Make text walks in this process; what ``gymnasium.make_vec`` calls for ``provgym/GraphWalkText-v0``.

    Args:
        num_envs: Sub-environments, >= 1.
        env_kwargs: Arguments of the environment, passed on as Gymnasium does.
    """
    return make_walk_vec(num_envs, env_id="provgym/GraphWalkText-v0", env_kwargs=env_kwargs)


def make_array_vec(num_envs: int = 1, **env_kwargs: Any) -> WalkSyncVectorEnv | WalkAsyncVectorEnv:
    """Make array walks in this process; what ``gymnasium.make_vec`` calls for ``provgym/GraphWalk-v0``.

    Args:
        num_envs: Sub-environments, >= 1.
        env_kwargs: Arguments of the environment, passed on as Gymnasium does.
    """
    return make_walk_vec(num_envs, env_id="provgym/GraphWalk-v0", env_kwargs=env_kwargs)


def _make_one(env_id: str, env_kwargs: Mapping[str, Any]) -> gym.Env[Any, Any]:
    provgym.register_envs()  # in a worker process too
    return gym.make(env_id, **env_kwargs)


def _seeds(seed: Seeds, num_envs: int) -> list[int | None]:
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, (int, np.integer)):
        return list(spread_seeds(int(seed), num_envs))
    return list(seed)
