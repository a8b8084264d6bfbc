"""``provgym/TopologyBuild-v0``: what Gymnasium and SB3 ask, masks, endings, rewards, seeds and copies."""

import copy
import math
import pickle
import random
import warnings
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from provgym.envs.topology import Topology
from provgym.envs.topology_build import ENV_ID, TopologyBuildEnv
from provgym.envs.topology_builtin import DemoExecutor, demo_topology_tasks
from provgym.envs.topology_rules import TopologyRules, enumerate_topologies
from provgym.envs.topology_tasks import TopologyTask
from provgym.rewards.topology_score import CostWeights, TopologyOutcome, topology_score

PLANNER, REASONER, VERIFIER, ANSWERER, END, NO, YES = range(7)
SINGLE = [ANSWERER, END]
VERIFIED = [VERIFIER, ANSWERER, YES, END]


class Fixed:
    """An executor that remembers what it was asked, and answers as told."""

    def __init__(self, successes: int = 1, replicates: int = 2) -> None:
        self.successes, self.replicates = successes, replicates
        self.calls: list[tuple[str, str, int]] = []

    def execute(self, task: TopologyTask, topology: Topology, seed: int) -> TopologyOutcome:
        self.calls.append((task.task_id, topology.key, seed))
        return TopologyOutcome(self.successes, self.replicates, topology.num_nodes, topology.num_edges)


def make(**options: Any) -> TopologyBuildEnv:
    env = gymnasium.make(ENV_ID, **options).unwrapped
    assert isinstance(env, TopologyBuildEnv)
    return env


def play(env: TopologyBuildEnv, actions: list[int], **reset: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    env.reset(**reset)
    for action in actions[:-1]:
        _, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated, info["ending"]) == (0.0, False, False, None)
    return env.step(actions[-1])


def with_executor(executor: Any, **options: Any) -> TopologyBuildEnv:
    return make(tasks=demo_topology_tasks(), executor=executor, **options)


def test_gymnasium_and_stable_baselines3_accept_it() -> None:
    from stable_baselines3.common.env_checker import check_env as check_for_sb3

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make())
        check_for_sb3(make())


def test_a_verified_answer_by_hand() -> None:
    """The demo conflict: an echo of four outvotes two studies until a Verifier counts sources."""
    env = make()
    _, reward, terminated, truncated, info = play(env, VERIFIED, seed=0, options={"task": "demo-conflict"})
    assert (terminated, truncated, info["ending"], info["last_step"]) == (True, False, "answered", "end")
    assert info["topology"] == Topology(("Verifier", "Answerer"), ((0, 1),))
    assert info["outcome"] == TopologyOutcome(1, 1, 2, 1)
    assert info["terms"] == {"success": 1.0, "cost": pytest.approx(0.12)}
    assert reward == pytest.approx(0.88)
    _, reward, _, _, info = play(env, SINGLE, options={"task": "demo-conflict"})
    assert info["terms"]["success"] == 0.0
    assert reward == pytest.approx(-0.05)


@pytest.mark.parametrize(
    ("task", "best"),
    [
        ("demo-agreement", "Answerer:"),
        ("demo-conflict", "Verifier+Answerer:0>1"),
        ("demo-irrelevance", "Reasoner+Answerer:0>1"),
    ],
)
def test_each_demo_task_calls_for_another_team(task: str, best: str) -> None:
    env = make()
    number = [each.task_id for each in env.tasks].index(task)
    scores = {
        topology.key: topology_score(
            DemoExecutor().execute(env.tasks[number], topology, 0),
            weights=env.weights,
            cost_weight=env.cost_weight,
            estimator="raw",
        )
        for topology in enumerate_topologies(TopologyRules(env.rules.role_names, 3))
    }
    assert max(scores, key=scores.__getitem__) == best
    assert sum(score == scores[best] for score in scores.values()) == 1


def test_demo_units_and_features_are_counted() -> None:
    agreement, conflict, irrelevance = demo_topology_tasks()
    assert [len(task.graph.units) for task in demo_topology_tasks()] == [6, 6, 6]
    assert len({task.question for task in demo_topology_tasks()}) == 1
    contexts = [make().reset(options={"task": k})[0]["context"] for k in range(3)]
    assert np.allclose(contexts, [[1, 1, 5 / 6], [3 / 6, 1, 4 / 6], [1, 3 / 6, 2 / 6]])


def test_observations_by_hand() -> None:
    env = make(rules=TopologyRules(("Reasoner", "Answerer"), max_nodes=2), illegal_budget=2)
    seen, info = env.reset(seed=0)
    assert (seen["roles"].tolist(), seen["phase"].tolist(), seen["illegal_left"].tolist()) == (
        [0.0] * 4,
        [1, 0, 0],
        [1],
    )
    assert info["action_mask"].tolist() == [1, 1, 0, 0, 0]
    seen, *_, info = env.step(0)
    assert seen["roles"].tolist() == [1, 0, 0, 0]
    assert info["action_mask"].tolist() == [0, 1, 0, 0, 0]
    seen, *_, info = env.step(1)
    assert (seen["roles"].tolist(), seen["phase"].tolist()) == ([1, 0, 0, 1], [0, 1, 0])
    assert seen["pending"].tolist() == [0, 1, 0, 0]
    assert info["action_mask"].tolist() == [0, 0, 0, 0, 1]
    seen, *_, info = env.step(3)
    assert (info["last_step"], info["illegal_actions"], info["illegal_left"]) == ("illegal", 1, 1)
    assert (seen["illegal_left"].tolist(), seen["pending"].tolist()) == ([0.5], [0, 1, 0, 0])
    seen, *_, info = env.step(4)
    assert (seen["adjacency"].tolist(), seen["pending"].tolist()) == ([0, 1, 0, 0], [0, 0, 0, 0])
    assert info["action_mask"].tolist() == [0, 0, 1, 0, 0]
    assert env.action_masks().tolist() == [False, False, True, False, False]
    seen, _, terminated, _, info = env.step(2)
    assert terminated
    assert (seen["phase"].tolist(), info["phase"], info["action_mask"].tolist()) == ([0, 0, 1], "over", [0] * 5)


@pytest.mark.parametrize(
    "rules", [None, TopologyRules(("Reasoner", "Answerer"), 5, 2), TopologyRules(("Answerer",), 1)]
)
@given(seed=st.integers(0, 2**32))
def test_masked_play_never_ends_invalid(rules: TopologyRules | None, seed: int) -> None:
    executor = Fixed()
    env = with_executor(executor, rules=rules)
    env.action_space.seed(seed)
    observation, info = env.reset(seed=seed)
    done = False
    steps = 0
    while not done:
        assert observation in env.observation_space
        assert np.array_equal(info["action_mask"], env.action_masks())
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample(info["action_mask"]))
        steps += 1
        done = terminated or truncated
    assert (info["ending"], info["illegal_actions"], truncated) == ("answered", 0, False)
    env.rules.check(info["topology"])
    nodes = info["topology"].num_nodes
    assert steps == nodes + nodes * (nodes - 1) // 2 + 1


@given(seed=st.integers(0, 2**32))
def test_sampled_actions_never_crash(seed: int) -> None:
    """Fault "text space": a sampled action never crashes ``step``, legal or not; every episode ends."""
    env = make()
    env.action_space.seed(seed)
    observation, info = env.reset(seed=seed)
    done = False
    while not done:
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert observation in env.observation_space
        assert isinstance(reward, float)
        done = terminated or truncated
    assert info["ending"] in ("answered", "truncated")


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_an_illegal_action_too_many_truncates(budget: int) -> None:
    """Fault "terminated or truncated": illegal actions are steps; the one after the budget's last truncates."""
    env = make(illegal_budget=budget, cost_weight=2.0)
    env.reset(seed=0)
    for k in range(budget):
        _, reward, terminated, truncated, info = env.step(END)
        assert (reward, terminated, truncated, info["ending"], info["illegal_left"]) == (
            0,
            False,
            False,
            None,
            budget - k - 1,
        )
    seen, reward, terminated, truncated, info = env.step(END)
    assert (terminated, truncated, info["ending"], info["last_step"]) == (False, True, "truncated", "late")
    assert (info["topology"], info["outcome"], info["illegal_actions"]) == (None, None, budget)
    assert seen["illegal_left"].tolist() == [0.0]
    largest = 6 * 0.05 + (0 + 1 + 2 + 3 + 3 + 3) * 0.02
    assert info["terms"] == {"success": -1.0, "cost": pytest.approx(largest)}
    assert reward == pytest.approx(-1.0 - 2.0 * largest)


def test_no_finished_topology_is_worth_less_than_giving_up() -> None:
    rules = TopologyRules(("Reasoner", "Answerer"), 4)
    env = with_executor(Fixed(0, 1), rules=rules, cost_weight=50.0, illegal_budget=0)
    _, given_up, *_ = play(env, [END], seed=0)
    for topology in enumerate_topologies(rules):
        outcome = TopologyOutcome(0, 1, topology.num_nodes, topology.num_edges)
        assert topology_score(outcome, weights=env.weights, cost_weight=50.0, estimator="raw") > given_up


def test_a_step_after_the_end_or_before_the_start_is_a_clear_error() -> None:
    """Fault "terminated or truncated": a step after the end."""
    env = make()
    with pytest.raises(RuntimeError, match="call reset before step"):
        env.step(ANSWERER)
    play(env, SINGLE, seed=0)
    for action in (ANSWERER, END):
        with pytest.raises(RuntimeError, match=r"the episode ended \(answered\)"):
            env.step(action)
    env.reset()
    env.step(ANSWERER)


@pytest.mark.parametrize("action", [-1, 7])
def test_actions_outside_the_space_are_named(action: int) -> None:
    env = make()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=rf"action {action} must lie in \[0, 7\)"):
        env.step(action)


def test_rewards_follow_the_replicates() -> None:
    weights = CostWeights(0.1, 0.0)
    env = with_executor(Fixed(3, 4), weights=weights, cost_weight=0.5, estimator="posterior_mean")
    _, reward, *_, info = play(env, VERIFIED, seed=0)
    assert info["terms"] == {"success": pytest.approx(4 / 6), "cost": pytest.approx(0.2)}
    assert reward == pytest.approx(4 / 6 - 0.1)


def test_a_run_without_a_score_is_no_failure() -> None:
    """Fault "endpoint failure scored as wrong": it stops a learner that knows of no gaps, or is not a number."""
    with pytest.raises(RuntimeError, match="no run of Answerer: on task 'demo-.*' could be scored"):
        play(with_executor(Fixed(0, 0)), SINGLE, seed=0)
    _, reward, terminated, truncated, info = play(with_executor(Fixed(0, 0), unscored="nan"), SINGLE, seed=0)
    assert math.isnan(reward)
    assert math.isnan(info["terms"]["success"])
    assert (terminated, truncated, info["ending"]) == (False, True, "error")


def test_an_executor_that_ran_something_else_is_named() -> None:
    class Wrong:
        def execute(self, task: TopologyTask, topology: Topology, seed: int) -> TopologyOutcome:
            return TopologyOutcome(1, 1, 3, 2)

    with pytest.raises(RuntimeError, match="was given Answerer: and returned the size of another one"):
        play(with_executor(Wrong()), SINGLE, seed=0)


def test_every_run_is_a_fresh_draw_and_repeats_with_the_seed() -> None:
    """Fault "global RNG": reset(seed=11), reset(), reset() ask for the same runs whatever the global states are."""

    def three_episodes(disturb: int) -> list[tuple[str, str, int]]:
        executor = Fixed()
        env = with_executor(executor)
        for k in range(3):
            random.seed(disturb + k)
            np.random.seed(disturb + k)  # noqa: NPY002
            before = (random.getstate(), np.random.get_state()[1].tobytes())  # type: ignore[index]  # noqa: NPY002
            play(env, SINGLE, seed=11 if k == 0 else None)
            assert before == (random.getstate(), np.random.get_state()[1].tobytes())  # type: ignore[index]  # noqa: NPY002
        return executor.calls

    calls = three_episodes(1)
    assert calls == three_episodes(100)
    assert len({seed for _, _, seed in calls}) == 3
    assert all(0 <= seed < 2**63 for _, _, seed in calls)


def test_zero_is_a_seed() -> None:
    """Fault "global RNG": seed 0 repeats, and differs from others."""

    def tasks(seed: int) -> list[str]:
        env = make()
        return [env.reset(seed=seed if k == 0 else None)[1]["task_id"] for k in range(12)]

    assert tasks(0) == tasks(0) != tasks(1)


def test_observations_and_infos_are_the_callers_own() -> None:
    """Fault "aliased observations": kept ones don't change, and changing one changes nothing in the environment."""
    env, twin = make(), make()
    observation, info = env.reset(seed=3)
    twin.reset(seed=3)
    kept = copy.deepcopy(observation)
    info["action_mask"][:] = 1
    for array in observation.values():
        assert array.flags.owndata or array.base is not None
    env.step(REASONER)
    twin.step(REASONER)
    assert all(np.array_equal(observation[key], kept[key]) for key in kept)
    for array in observation.values():
        array[:] = 0.25
    later, *_, later_info = env.step(ANSWERER)
    expected, *_, expected_info = twin.step(ANSWERER)
    assert all(np.array_equal(later[key], expected[key]) for key in expected)
    assert np.array_equal(later_info["action_mask"], expected_info["action_mask"])
    env.step(YES)
    *_, end = env.step(END)
    end["terms"]["success"] = 5.0
    assert env.reset(seed=3)[1]["terms"] == {}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_plays_on_by_itself(copied: Any) -> None:
    env = make()
    env.reset(seed=5)
    env.step(REASONER)
    twin = copied(env)
    for action in (ANSWERER, YES):
        env.step(action)
    assert len(twin.draft.roles) == 1
    twin.step(ANSWERER)
    twin.step(YES)
    ours, theirs = env.step(END), twin.step(END)
    assert ours[1] == theirs[1]
    assert ours[4]["topology"] == theirs[4]["topology"]


def test_options_hold_for_one_episode_and_are_not_kept() -> None:
    """Fault "mutable defaults": nothing shared, the caller's dict unchanged, back to drawing tasks."""
    env = make()
    options = {"task": "demo-conflict"}
    assert env.reset(seed=1, options=options)[1]["task_id"] == "demo-conflict"
    assert options == {"task": "demo-conflict"}
    assert env.reset(options={"task": np.int64(2)})[1]["task_id"] == "demo-irrelevance"
    assert len({env.reset()[1]["task_id"] for _ in range(30)}) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tsak": 0}, r"reset options \['tsak'\] are unknown; known are \['task'\]"),
        ({"task": 3}, r"options\['task'\]=3 must be an integer in \[0, 2\]"),
        ({"task": True}, r"options\['task'\]=True"),
        ({"task": "demo"}, r"options\['task'\]='demo' is no task id of this environment; it has 3"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make().reset(seed=0, options=options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": demo_topology_tasks()}, "tasks were given without an executor"),
        ({"tasks": (), "executor": Fixed()}, "tasks is empty"),
        ({"illegal_budget": -1}, "illegal_budget=-1 must be >= 0"),
        ({"unscored": "zero"}, r"unscored='zero' is unknown; choose one of \['raise', 'nan'\]"),
        ({"estimator": "mean"}, "estimator 'mean' is unknown"),
        ({"cost_weight": -1.0}, "cost_weight=-1.0 must be finite"),
        ({"features": np.zeros((2, 4))}, r"features of shape \(2, 4\) must be \(tasks=3, F >= 1\)"),
        ({"features": np.zeros((3, 0))}, r"features of shape \(3, 0\)"),
        ({"features": np.array([[0.0], [np.nan], [0.0]])}, "features of task 'demo-conflict' must be finite"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], message: str) -> None:
    if "features" in options:
        options = {"tasks": demo_topology_tasks(), "executor": Fixed(), **options}
    with pytest.raises(ValueError, match=message):
        TopologyBuildEnv(**options)


def test_features_are_the_tasks_own_and_copied() -> None:
    features = np.array([[1.0, -7.5], [2.0, 0.0], [3.0, 0.5]])
    env = with_executor(Fixed(), features=features)
    features[:] = 0.0
    seen, _ = env.reset(seed=0, options={"task": 0})
    assert seen["context"].tolist() == [1.0, -7.5]
    assert seen in env.observation_space
    assert with_executor(Fixed()).reset(seed=0)[0]["context"].tolist() == [0.0]


@pytest.mark.parametrize("mode", ["vector_entry_point", "sync", "async"])
def test_several_builders_at_once(mode: Any) -> None:
    """One ends while others go on; their infos are merged, their observations stacked."""
    with closing(gymnasium.make_vec(ENV_ID, num_envs=3, vectorization_mode=mode)) as vec:
        vec.reset(seed=[1, 2, 3], options={"task": "demo-agreement"})  # type: ignore[arg-type]
        vec.step(np.array([ANSWERER, REASONER, END]))
        observations, rewards, terminated, truncated, infos = vec.step(np.array([END, ANSWERER, PLANNER]))
    assert terminated.tolist() == [True, False, False]
    assert not truncated.any()
    assert rewards.tolist() == [pytest.approx(0.95), 0.0, 0.0]
    assert infos["topology"][0] == Topology(("Answerer",), ())
    assert infos["outcome"][0] == TopologyOutcome(1, 1, 1, 0)
    assert infos["last_step"].tolist() == ["end", "role", "role"]
    assert infos["illegal_actions"].tolist() == [0, 0, 1]
    assert infos["action_mask"].shape == (3, 7)
    assert observations["roles"].shape == (3, 24)


def test_workers_are_not_correlated() -> None:
    """Fault "correlated workers": four sub-environments, base seeds 5 and 6: all differ, repeat, not shifted."""

    def streams(seed: int) -> list[tuple[str, ...]]:
        with closing(gymnasium.make_vec(ENV_ID, num_envs=4)) as vec:
            shown = [vec.reset(seed=seed if k == 0 else None)[1]["task_id"].tolist() for k in range(20)]
        return list(zip(*shown, strict=True))

    assert streams(5) == streams(5)
    assert len(set(streams(5) + streams(6))) == 8


@pytest.mark.slow
def test_plain_ppo_adapts_the_team_to_the_evidence() -> None:
    """An outside learner on the built-in tasks, no masking, default settings: better than any one team for all."""
    from stable_baselines3 import PPO

    rules = TopologyRules(("Reasoner", "Verifier", "Answerer"), 2)
    env = make(rules=rules)
    model = PPO("MultiInputPolicy", env, seed=0, device="cpu", n_steps=512, gamma=1.0)
    model.learn(8_192)
    total = 0.0
    for task in range(3):
        observation, _ = env.reset(seed=task, options={"task": task})
        done = False
        while not done:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(int(action))
            done, total = terminated or truncated, total + reward
    for_all = max(
        sum(
            topology_score(
                DemoExecutor().execute(task, topology, 0), weights=env.weights, cost_weight=1.0, estimator="raw"
            )
            for task in env.tasks
        )
        for topology in enumerate_topologies(rules)
    )
    print(f"PPO {total:.2f}, the best single team {for_all:.2f}")
    assert total > for_all + 0.5
