"""Our roll-out and TRL's tool loop play the very same episodes, which is what makes their speeds comparable."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from tests.benchmarks import bench_rollout, tool_call_policy
from tests.benchmarks.bench_rollout import build_loop, check_equal, play_ours, speedup_figure
from tests.benchmarks.tool_call_policy import CloneConfig, ToolCallPolicy
from tests.benchmarks.trl_tool_loop import Elapsed, TrlRollout

from provgym.generators.chat_actions import TOOL_INSTRUCTIONS
from provgym.generators.engine import Sampling
from provgym.generators.episode import Episode, EpisodeTask
from provgym.generators.hf_engine import HFEngine
from provgym.generators.rollout import LanguageModelPolicy

SMALL = CloneConfig(budget=2, steps=80, rows=2, learning_rate=1e-2, vocabulary_size=600, hidden_size=64, num_layers=1)
TASKS = 2


@pytest.fixture(scope="module")
def tasks() -> list[EpisodeTask]:
    return tool_call_policy.draw_tasks(0, SMALL.budget, TASKS, 1)


@pytest.fixture(scope="module")
def policy(tasks: list[EpisodeTask]) -> ToolCallPolicy:
    """A policy that knows the episodes of the tasks by heart: a few seconds of cloning."""
    torch.set_num_threads(1)
    made = tool_call_policy.untrained(SMALL)
    by_heart = itertools.cycle([tool_call_policy.conversation_of(task) for task in tasks])
    tool_call_policy.clone(made, SMALL, by_heart)
    return made


@pytest.fixture(scope="module")
def episodes(policy: ToolCallPolicy, tasks: list[EpisodeTask]) -> list[Episode]:
    return play_ours(policy, tasks).episodes


def test_the_policy_plays_whole_episodes(episodes: list[Episode]) -> None:
    """What follows is about walks of several turns that end by a stop, not about empty or broken ones."""
    assert [episode.outcome.ending.value for episode in episodes] == ["answered"] * TASKS
    assert all(episode.outcome.walks == SMALL.budget for episode in episodes)


@pytest.mark.parametrize("can_end", [True, False])
def test_trajectories_equal_those_of_trl_id_by_id(
    policy: ToolCallPolicy, tasks: list[EpisodeTask], episodes: list[Episode], can_end: bool
) -> None:
    """Fault kinds: re-tokenized turns, padding side. Prompt, actions, world ids and masks up to the stop are TRL's."""
    theirs = build_loop(policy, tasks, episodes, can_end=can_end).play()
    check_equal(episodes, theirs, can_end=can_end)
    for episode, ids in zip(episodes, theirs.completion_ids, strict=True):
        assert episode.tokens is not None
        if can_end:
            assert len(ids) == len(episode.tokens.completion_ids)
        else:  # TRL goes on behind the stop
            assert len(ids) > len(episode.tokens.completion_ids)


def test_guesses_change_no_id_and_no_logprob(policy: ToolCallPolicy, tasks: list[EpisodeTask]) -> None:
    """The engine's guesses make it faster; greedy and sampled episodes stay what they are without."""
    dialogue = tool_call_policy.dialogue_of(policy.tokenizer)
    for temperature in (0.0, 1.0):
        played = []
        for longest_guess in (0, 16):
            engine = HFEngine(policy.model, max_rows=2, longest_guess=longest_guess)
            player = LanguageModelPolicy("p", engine, dialogue, Sampling(temperature), instructions=TOOL_INSTRUCTIONS)
            played.append((player.play(tasks), engine))
        (plain, plain_engine), (guessed, guessing_engine) = played
        assert guessing_engine.forward_passes < plain_engine.forward_passes
        assert guessing_engine.forward_tokens == plain_engine.forward_tokens
        assert plain_engine.missed_guesses == 0
        for one, other in zip(plain, guessed, strict=True):
            assert one.tokens is not None
            assert other.tokens is not None
            assert one.tokens.completion_ids == other.tokens.completion_ids
            assert one.tokens.logprobs == pytest.approx(other.tokens.logprobs, abs=1e-4)


def test_a_difference_is_named(episodes: list[Episode]) -> None:
    tokens = [episode.tokens for episode in episodes if episode.tokens is not None]
    completions = [list(t.completion_ids) for t in tokens]
    same = TrlRollout(
        [list(t.prompt_ids) for t in tokens], completions, [list(t.mask) for t in tokens], Elapsed(1.0, 1.0), 1, 1
    )
    check_equal(episodes, same, can_end=True)
    completions[1][5] += 1
    with pytest.raises(AssertionError, match=r"episode 1 .*the completion differs at 5"):
        check_equal(episodes, same, can_end=True)


@pytest.mark.parametrize(
    ("ours", "theirs", "value", "low", "high"),
    [([1.0, 2.0, 1.0], [6.0, 8.0, 5.0], 5.0, 4.0, 6.0), ([0.5], [1.0], 2.0, 2.0, 2.0)],
)
def test_speedup_is_the_median_of_paired_ratios(
    ours: Sequence[float], theirs: Sequence[float], value: float, low: float, high: float
) -> None:
    figure = speedup_figure(ours, theirs)
    assert figure == {"value": value, "low": low, "high": high, "n": len(ours)}


def test_the_workloads_are_those_of_shipped_configurations() -> None:
    """TRL's loop judges a walk once, so the tiny policy's is that of the recipe which does."""
    from tests.benchmarks.bench_overhead import CONFIGS, REPOSITORY

    from provgym.trainers.config_file import load_config
    from provgym.trainers.papt_config import PaptConfig

    for name, workload in bench_rollout.WORKLOADS.items():
        file = {**CONFIGS, "tiny": "configs/papt/tiny-split.yaml"}[name]
        config = load_config(PaptConfig, str(REPOSITORY / file))
        assert config.optim.judgements_per_walk == 1
        assert workload.group_size == config.optim.group_size
        assert workload.instances == config.optim.groups_per_step
        assert config.walk.budgets == (workload.budget,)
