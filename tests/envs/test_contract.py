"""What every registered walk environment keeps to; parametrised over the ids."""

import copy
import random
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import provgym
from provgym.envs.provenance import Instance
from provgym.envs.slots import NUM_SLOTS

Env = gymnasium.Env[Any, Any]
InstanceOf = Callable[..., Instance]
IDS = sorted(env_id for env_id in gymnasium.registry if env_id.startswith("provgym/GraphWalk"))
TEXT, ARRAY = "provgym/GraphWalkText-v0", "provgym/GraphWalk-v0"
# The same acts on both faces: a walk to some neighbour, a stop, something malformed.
STOP = {TEXT: "stop +1 -1 MIXED 1.0", ARRAY: NUM_SLOTS + 36 * 2 + 6 + 1}
MALFORMED = {TEXT: "hm", ARRAY: NUM_SLOTS - 1}

# GraphEcho's equation 3, and our own term, which weighs nothing unless asked.
WEIGHTS = {"verdict": 1.0, "count": 0.4, "coverage": 0.4, "echo": -0.4, "cost": -0.05, "illegal": 0.0}

each_id = pytest.mark.parametrize("env_id", IDS)


def make(env_id: str, **options: Any) -> Env:
    return gymnasium.make(env_id, **options).unwrapped


def legal_walk(env: Env) -> Any:
    """Some legal walk of the present state."""
    unwrapped: Any = env.unwrapped
    if isinstance(env.action_space, gymnasium.spaces.Discrete):
        return 0
    node = int(unwrapped.walk.neighbours()[0])
    return f"walk {unwrapped.presentation.alias_of(node)}"


def snapshot(env: Env) -> tuple[Any, ...]:
    walk = env.unwrapped.walk  # type: ignore[attr-defined]
    return (walk.instance.instance_id, walk.position, walk.budget_left, len(walk.trace))


def test_both_faces_are_tested() -> None:
    assert [ARRAY, TEXT] == IDS
    assert provgym.__version__


@each_id
def test_gymnasium_accepts_it(env_id: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(env_id))


@each_id
def test_seeded_episodes_repeat_whatever_the_global_generators_do(env_id: str) -> None:
    """Fault "global RNG": reset(seed=11), reset(), reset() give the same episodes; global states stay untouched."""

    def three_episodes(disturb: Callable[[int], None]) -> list[Any]:
        env = make(env_id)
        seen = []
        for k in range(3):
            disturb(k)
            before = (random.getstate(), np.random.get_state()[1].tobytes())  # type: ignore[index]  # noqa: NPY002
            observation, info = env.reset(seed=11 if k == 0 else None)
            env.step(legal_walk(env))
            seen.append((copy.deepcopy(observation), info["instance_id"]))
            after = (random.getstate(), np.random.get_state()[1].tobytes())  # type: ignore[index]  # noqa: NPY002
            assert before == after
        return seen

    def disturb_one_way(k: int) -> None:
        random.seed(k)
        np.random.seed(k)  # noqa: NPY002

    def disturb_another_way(k: int) -> None:
        random.seed(99 - k)
        np.random.seed(99 - k)  # noqa: NPY002

    first, second = three_episodes(disturb_one_way), three_episodes(disturb_another_way)
    for (one, one_id), (other, other_id) in zip(first, second, strict=True):
        assert np.array_equal(one, other)
        assert one_id == other_id


@each_id
def test_zero_is_a_seed(env_id: str) -> None:
    """Fault "global RNG": seed 0 repeats, and differs from other seeds."""
    env = make(env_id)
    episodes = [[env.reset(seed=seed if k == 0 else None)[0] for k in range(4)] for seed in (0, 0, 1)]
    assert all(np.array_equal(a, b) for a, b in zip(episodes[0], episodes[1], strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(episodes[0], episodes[2], strict=True))


@each_id
def test_observations_and_infos_are_the_callers_own(env_id: str) -> None:
    """Fault "aliased observations": kept ones don't change, and changing one changes nothing in the environment."""
    env, twin = make(env_id), make(env_id)
    observation, info = env.reset(seed=3)
    kept, kept_info = copy.deepcopy(observation), copy.deepcopy({**info, "trace": list(info["trace"])})
    twin.reset(seed=3)
    for _ in range(3):
        action = legal_walk(env)
        env.step(action)
        twin.step(action)
    assert np.array_equal(observation, kept)
    assert list(info["trace"]) == kept_info["trace"] == []
    later, _, _, _, later_info = env.step(legal_walk(env))
    twin.step(legal_walk(twin))
    if isinstance(later, np.ndarray):
        later[:] = -1.0
        later_info["action_mask"][:] = 0
    later_info["terms"]["verdict"] = 5.0
    later_info["cited_source_ids"].append("nobody")
    list(later_info["trace"])[0]["node"] = "nowhere"
    action = legal_walk(env)
    ours, theirs = env.step(action), twin.step(action)
    assert np.array_equal(ours[0], theirs[0])
    assert list(ours[4]["trace"]) == list(theirs[4]["trace"])
    assert ours[4]["terms"] == theirs[4]["terms"] == {}


@each_id
@pytest.mark.parametrize("walks", [1, 2, 3])
def test_a_stop_in_time_terminates(env_id: str, walks: int) -> None:
    """Fault "terminated or truncated": budget 3, stop as 2nd, 3rd and 4th action."""
    env = make(env_id, budget=3)
    env.reset(seed=0)
    for _ in range(walks):
        _, reward, terminated, truncated, info = env.step(legal_walk(env))
        assert (reward, terminated, truncated, info["ending"], info["outcome"]) == (0.0, False, False, None, None)
    _, reward, terminated, truncated, info = env.step(STOP[env_id])
    assert (terminated, truncated, info["ending"]) == (True, False, "answered")
    assert info["last_step"] == "stop"
    assert info["outcome"].walks == walks
    assert set(info["terms"]) == set(WEIGHTS)
    assert reward == pytest.approx(sum(weight * info["terms"][name] for name, weight in WEIGHTS.items()))


@each_id
@pytest.mark.parametrize("late", ["walk", "malformed"])
def test_any_other_late_action_truncates(env_id: str, late: str) -> None:
    """Fault "terminated or truncated": budget 3, a 4th walk and a malformed 4th action."""
    env = make(env_id, budget=3)
    env.reset(seed=0)
    for _ in range(3):
        env.step(legal_walk(env))
    _, reward, terminated, truncated, info = env.step(legal_walk(env) if late == "walk" else MALFORMED[env_id])
    assert (terminated, truncated, info["ending"]) == (False, True, "truncated")
    assert info["terms"]["verdict"] == -1.0
    assert info["terms"]["count"] == 0.0
    assert float(reward) < 0.0


@each_id
def test_a_step_after_the_end_is_a_clear_error(env_id: str) -> None:
    """Fault "terminated or truncated": a step after the end."""
    env = make(env_id)
    env.reset(seed=0)
    env.step(STOP[env_id])
    for action in (STOP[env_id], MALFORMED[env_id]):
        with pytest.raises(RuntimeError, match="the episode ended"):
            env.step(action)
    env.reset()
    env.step(legal_walk(env))


@each_id
def test_a_step_before_the_first_reset_is_a_clear_error(env_id: str) -> None:
    with pytest.raises(RuntimeError, match="reset"):
        make(env_id).step(STOP[env_id])


@each_id
def test_options_hold_for_one_episode_and_are_not_kept(env_id: str) -> None:
    """Fault "mutable defaults": nothing shared, the caller's dict unchanged, back to defaults."""
    env, other = make(env_id, budget=5), make(env_id, budget=5)
    options = {"instance": "demo-1/C3", "budget": 2}
    for one in (env, other):
        _, info = one.reset(seed=1, options=options)
        assert (info["instance_id"], info["budget"], info["budget_left"]) == ("demo-1/C3", 2, 2)
    assert options == {"instance": "demo-1/C3", "budget": 2}
    env.step(legal_walk(env))
    assert snapshot(other)[2:] == (2, 0)
    options["budget"] = 4
    assert snapshot(other)[2:] == (2, 0)
    instances = set()
    for _ in range(20):
        _, info = env.reset(options=None)
        assert info["budget"] == 5
        instances.add(info["instance_id"])
    assert len(instances) > 1


@each_id
def test_a_given_instance_leaves_the_draw_of_instances_alone(env_id: str) -> None:
    env = make(env_id)
    assert env.reset(seed=1, options={"instance": 4})[1]["instance_id"] == "demo-1/C2R"
    assert env.reset(seed=1, options={"instance": np.int64(0), "budget": None})[1]["instance_id"] == "demo-1/C1"


@each_id
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"instnace": 0}, r"reset options \['instnace'\] are unknown; known are"),
        ({"instance": 6}, r"options\['instance'\]=6 must be an integer in \[0, 5\]"),
        ({"instance": -1}, r"options\['instance'\]=-1"),
        ({"instance": 1.5}, r"options\['instance'\]=1.5"),
        ({"instance": True}, r"options\['instance'\]=True"),
        ({"instance": "C3"}, r"options\['instance'\]='C3' is no instance id"),
        ({"budget": 0}, r"options\['budget'\]=0 must be an integer in \[1, 10000\]"),
        ({"budget": "6"}, r"options\['budget'\]='6'"),
        ({"budget": 10_001}, r"options\['budget'\]=10001"),
    ],
)
def test_wrong_options_are_named(env_id: str, options: dict[str, Any], message: str) -> None:
    env = make(env_id)
    with pytest.raises(ValueError, match=message):
        env.reset(seed=0, options=options)


@each_id
def test_wrong_arguments_are_named(env_id: str) -> None:
    with pytest.raises(ValueError, match="instances is empty"):
        make(env_id, instances=[])
    for budget in (0, 10_001):
        with pytest.raises(ValueError, match=f"budget={budget} must lie in"):
            make(env_id, budget=budget)


@each_id
def test_the_trace_is_whole_and_typed(env_id: str, instance_of: InstanceOf) -> None:
    env = make(env_id, instances=[instance_of([1], [])], budget=4)
    _, info = env.reset(seed=0)
    assert list(info["trace"]) == []
    env.step(legal_walk(env))
    env.step(MALFORMED[env_id])
    _, _, _, _, info = env.step(STOP[env_id])
    walked, malformed, stopped = info["trace"]
    assert walked == {
        "kind": "new",
        "node": "observation:c-r0",
        "budget_left": 3,
        "atom": "c-a0",
        "source": "c-source0",
    }
    assert (malformed["kind"], malformed["node"], malformed["budget_left"], malformed["atom"]) == (
        {TEXT: "unparsed", ARRAY: "illegal"}[env_id],
        "observation:c-r0",
        2,
        None,
    )
    assert (stopped["kind"], stopped["budget_left"]) == ("stop", 2)
    assert (info["outcome"].walks, info["outcome"].invalid_actions) == (1, 1)


@each_id
@pytest.mark.parametrize("which", ["demo", "bare", "merged"])
def test_sampled_actions_never_crash(
    env_id: str, which: str, bare_instance: Instance, merged_instance: Instance
) -> None:
    """Fault "text space": a sampled action never crashes ``step``; also on a graph without edges."""
    instances = {"demo": None, "bare": [bare_instance], "merged": [merged_instance]}[which]
    env = make(env_id, instances=instances)
    env.action_space.seed(0)
    for episode in range(60):
        observation, info = env.reset(seed=episode)
        assert observation in env.observation_space
        done = False
        while not done:
            mask = info.get("action_mask") if episode % 2 else None
            observation, reward, terminated, truncated, info = env.step(env.action_space.sample(mask))
            assert observation in env.observation_space
            assert isinstance(reward, float)
            done = terminated or truncated


@pytest.mark.parametrize("text", ["", "\n", "περπάτα", "🙂", "\x00\ud800", "x" * 100_001, "walk " + "n" * 100_001])
def test_any_text_is_a_step(text: str) -> None:
    """Fault "text space": empty, newline, Greek, emoji, 100,001 characters; in, and the reply inside too."""
    env = make(TEXT)
    env.reset(seed=0)
    assert text in env.action_space
    observation, reward, terminated, truncated, info = env.step(text)
    assert observation in env.observation_space
    assert (reward, terminated, truncated, info["last_step"]) == (0.0, False, False, "unparsed")


def test_any_claim_is_an_observation(instance_of: InstanceOf) -> None:
    """Fault "text space": observations of Greek, emoji and very long claims stay inside the space."""
    from provgym.envs.provenance import Claim, EvidenceGraph
    from provgym.rewards.outcome import Verdict

    for text in ("", "ἓν οἶδα 🙂\u2028x", "Long. " * 50_000):
        graph = EvidenceGraph((Claim("c", text),), (), ())
        env = make(TEXT, instances=[Instance("i", graph, "test", Verdict.MIXED)])
        assert env.reset(seed=0)[0] in env.observation_space
