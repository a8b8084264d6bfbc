"""Several walks at once: independent workers, whole observations and infos, in one process or many."""

from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest

from provgym.envs.provenance import Claim, EvidenceGraph, Instance
from provgym.envs.slots import NUM_SLOTS
from provgym.envs.vector import VectorMode, make_walk_vec, spread_seeds
from provgym.rewards.outcome import Verdict

TEXT, ARRAY = "provgym/GraphWalkText-v0", "provgym/GraphWalk-v0"
MODES: tuple[VectorMode, ...] = ("sync", "async")
STOP = {TEXT: "stop +1 -1 MIXED 1.0", ARRAY: NUM_SLOTS + 36 * 2 + 6 + 1}
FIRST = {TEXT: "walk n1", ARRAY: 0}
SECOND = {TEXT: "walk n2", ARRAY: 0}
NOTHING = {TEXT: "hm", ARRAY: NUM_SLOTS - 1}


def episodes(vec: Any, seed: Any, rounds: int = 2) -> list[list[str]]:
    """What each worker is shown at the start of its first episodes, as text."""
    shown: list[list[str]] = [[] for _ in range(vec.num_envs)]
    for k in range(rounds):
        observations, infos = vec.reset(seed=seed if k == 0 else None)
        for worker, observation in enumerate(observations):
            content = observation if isinstance(observation, str) else observation.tobytes().hex()
            shown[worker].append(f"{infos['instance_id'][worker]} {content}")
    return shown


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", [TEXT, ARRAY])
def test_workers_are_not_correlated(env_id: str, mode: Any) -> None:
    """Fault "correlated workers": 4 sub-environments, base seeds 5 and 6: all differ, repeat, and are not shifted."""
    with closing(make_walk_vec(4, mode, env_id=env_id)) as vec:
        five, again, six = (episodes(vec, seed) for seed in (5, 5, 6))
    assert five == again
    streams = [tuple(worker) for worker in five + six]
    assert len(set(streams)) == 8  # also no worker of seed 6 repeats one of seed 5


@pytest.mark.parametrize("env_id", [TEXT, ARRAY])
def test_plain_make_vec_spreads_its_seed(env_id: str) -> None:
    """Fault "correlated workers": what a user types first, ``gymnasium.make_vec(id, num_envs=4)``, is safe too."""
    with closing(gymnasium.make_vec(env_id, num_envs=4, budget=2)) as vec:
        five, six = (episodes(vec, seed) for seed in (5, 6))
        assert vec.spec is not None
        assert vec.spec.id == env_id
        assert [sub.unwrapped.budget for sub in vec.envs] == [2] * 4  # type: ignore[attr-defined]
    assert len({tuple(worker) for worker in five + six}) == 8
    with closing(make_walk_vec(4, env_id=env_id, env_kwargs={"budget": 2})) as vec:
        assert episodes(vec, 5) == five


def test_sync_and_async_play_the_same_episodes() -> None:
    shown = []
    for mode in MODES:
        with closing(make_walk_vec(3, mode)) as vec:
            shown.append(episodes(vec, 9))
    assert shown[0] == shown[1]


def test_a_list_of_seeds_is_taken_as_it_is() -> None:
    """Within a group every member can be given the same instance: equal seeds, equal episodes."""
    with closing(make_walk_vec(3)) as vec:
        first, second, third = episodes(vec, [7, 7, 8])
    single = gymnasium.make(ARRAY)
    observation, info = single.reset(seed=7)
    assert first == second != third
    assert first[0] == f"{info['instance_id']} {observation.tobytes().hex()}"


def test_spread_seeds() -> None:
    assert spread_seeds(5, 4)[:2] == spread_seeds(5, 2)  # more workers change nothing for the first ones
    seeds = [seed for base in range(200) for seed in spread_seeds(base, 8)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    with pytest.raises(ValueError, match="seed=-1 must be >= 0"):
        spread_seeds(-1, 2)


def test_options_are_passed_on_and_not_changed() -> None:
    """Fault "mutable defaults": Gymnasium's own vector reset takes keys out of the caller's dict."""
    with closing(make_walk_vec(2, env_kwargs={"budget": 4})) as vec:
        vec.reset(seed=0)
        options = {"instance": 1, "reset_mask": np.array([True, False])}
        _, infos = vec.reset(options=options)
        assert set(options) == {"instance", "reset_mask"}
        assert infos["instance_id"][0] == "demo-1/C2"
        assert infos["budget"][0] == 4


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", [TEXT, ARRAY])
@pytest.mark.parametrize("maker", ["ours", "gymnasium"])
def test_different_endings_in_one_step(env_id: str, mode: Any, maker: str) -> None:
    """One worker answers while another is truncated and a third goes on: their infos are merged all the same."""
    vec: Any
    if maker == "ours":
        vec = make_walk_vec(3, mode, env_id=env_id, env_kwargs={"budget": 2})
    else:
        vec = gymnasium.make_vec(env_id, num_envs=3, vectorization_mode=mode, budget=2)
    with closing(vec):
        vec.reset(seed=[1, 2, 3])
        first, second, nothing, stop = FIRST[env_id], SECOND[env_id], NOTHING[env_id], STOP[env_id]
        for actions in ((first, nothing, first), (second, nothing, stop)):
            vec.step(actions if env_id == TEXT else np.array(actions))
        last = (stop, nothing, first)  # the third starts its next episode
        observations, rewards, terminated, truncated, infos = vec.step(last if env_id == TEXT else np.array(last))
    assert terminated.tolist() == [True, False, False]
    assert truncated.tolist() == [False, True, False]
    assert [infos["ending"][k] for k in range(3)] == ["answered", "truncated", None]
    assert [None if o is None else o.walks for o in infos["outcome"]] == [2, 0, None]
    assert [len(trace) for trace in infos["trace"]] == [3, 3, 0]
    assert infos["trace"][1][2]["kind"] == "late"
    assert infos["terms"]["verdict"][1] == -1.0
    assert rewards[2] == 0.0
    if env_id == TEXT:
        assert observations[0] == "The episode is over."
        assert observations[2].startswith("Claim: ")
    else:
        assert observations.shape == (3, 616)
        assert infos["action_mask"].shape == (3, 172)
        assert not observations[0][:576].any()


@pytest.mark.parametrize("mode", MODES)
def test_any_text_reaches_the_caller_whole(mode: Any) -> None:
    """Fault "text space": Greek, emoji and long claims come out of worker processes unchanged."""
    texts = ("ἓν οἶδα 🙂", "x" * 100_001)
    instances = [
        Instance(f"i{k}", EvidenceGraph((Claim("c", text),), (), ()), "test", Verdict.MIXED)
        for k, text in enumerate(texts)
    ]
    from provgym.envs.presentation import PresentationConfig

    kwargs = {"instances": instances, "presentation": PresentationConfig(max_content_characters=200_000)}
    vec: Any = gymnasium.make_vec(TEXT, num_envs=2, vectorization_mode=mode, **kwargs)  # type: ignore[arg-type]
    with closing(vec):
        for k, text in enumerate(texts):
            observations, _ = vec.reset(seed=0, options={"instance": k})
            assert observations == (f"Claim: {text}\nLeft 6. Moves none.",) * 2


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="num_envs=0 must be >= 1"):
        make_walk_vec(0)
    with pytest.raises(ValueError, match="mode='threads' is unknown"):
        make_walk_vec(2, "threads")  # type: ignore[arg-type]
