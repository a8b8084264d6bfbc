"""Several judgements of one walk: who walks, what is taken over, and who answers for what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.trainers.test_split_credit import with_mask

from provgym.generators.engine import Sampling
from provgym.generators.episode import Episode, EpisodeTask
from provgym.generators.hf_engine import HFEngine
from provgym.generators.rollout import Fork, LanguageModelPolicy
from provgym.rewards.outcome import Ending
from provgym.trainers.data_config import DataConfig
from provgym.trainers.judgement_forks import PlayedGroups, credit_of_forks, play_groups
from provgym.trainers.optim_config import OptimConfig
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.policy_loading import TrainablePolicy, load_trainable
from provgym.trainers.split_credit import decision_tokens, split_token_advantages
from provgym.trainers.training_rows import TrainingRows, load_pool

FORKED: dict[str, Any] = {"group_size": 4, "judgements_per_walk": 2, "groups_per_step": 4, "micro_batch": 8}


@pytest.fixture
def config(make_config: Callable[..., PaptConfig]) -> PaptConfig:
    return make_config(optim__credit="split", **{f"optim__{key}": value for key, value in FORKED.items()})


def player_of(policy: TrainablePolicy, temperature: float) -> LanguageModelPolicy:
    engine = HFEngine(policy.model, max_rows=16, max_length=512)
    return LanguageModelPolicy("t", engine, policy.dialogue, Sampling(temperature))


def played_groups(
    config: PaptConfig, policy: TrainablePolicy, temperature: float, per_walk: int, judging: float | None = None
) -> PlayedGroups:
    rows = TrainingRows(config, load_pool(config.data))
    tasks = [rows.task(row, member) for row in range(8) for member in range(4)]
    walker, judge = player_of(policy, temperature), player_of(policy, judging or temperature)
    return play_groups(
        tasks, per_walk, walker.play, judge.judge_again, lambda episode: decision_tokens(episode, policy.tokenizer)
    )


def test_a_greedy_fork_says_what_its_walk_said(config: PaptConfig) -> None:
    """The same words, with the same log-probabilities, from a state that was taken over: nothing is lost on the way."""
    policy = load_trainable(config.model)
    found = played_groups(config, policy, 0.0, 2)
    forks = [place for place, is_fork in enumerate(found.is_fork) if is_fork]
    assert len(forks) >= 4  # of 16; the start stops in many of its walks
    for place in forks:
        walk, fork = found.episodes[place - 1], found.episodes[place]
        assert walk.tokens is not None
        assert fork.tokens is not None
        assert fork.tokens.completion_ids == walk.tokens.completion_ids
        assert (fork.outcome, fork.trace, fork.turns) == (walk.outcome, walk.trace, walk.turns)
        sampled = np.array(fork.tokens.mask) == 1
        assert 0 < sampled.sum() < walk.tokens.sampled
        np.testing.assert_allclose(
            np.array(fork.tokens.logprobs)[sampled], np.array(walk.tokens.logprobs)[sampled], atol=1e-5
        )


def test_forks_differ_in_their_judgement_alone(config: PaptConfig) -> None:
    policy = load_trainable(config.model)
    found = played_groups(config, policy, 1.0, 2, judging=4.0)  # the start is sure of what it says
    differ = 0
    for place, fork in enumerate(found.episodes):
        if not found.is_fork[place]:
            assert fork.tokens is not None
            assert fork.tokens.mask[0] == 1
            continue
        walk = found.episodes[place - 1]
        before = len(walk.turns) - 1
        assert fork.turns[:before] == walk.turns[:before]
        assert fork.turns[before].observation == walk.turns[before].observation
        assert fork.turns[before].action.startswith("stop")
        assert (fork.member, walk.member) == (place % 4, place % 4 - 1)
        differ += fork.turns[before].action != walk.turns[before].action
    assert differ


def test_a_training_step_credits_the_walk_once(
    config: PaptConfig, make_trainer: Callable[..., Any], make_batch: Callable[..., dict[str, Any]]
) -> None:
    """The trainer's log-probabilities are those that were sampled with, for forks too; their walk gets no advantage."""
    policy = load_trainable(config.model)
    trainer = make_trainer(
        config,
        policy=policy,
        judge_again=lambda model, forks: player_of(policy, config.optim.temperature).judge_again(forks),
    )
    batch = make_batch(trainer, config)
    step = trainer.last_step
    assert sum(step.is_fork) >= 2
    for place, episode in enumerate(step.episodes):
        mask = np.array(episode.tokens.mask)
        advantages = batch["advantages"][place][: len(mask)].numpy()
        assert not advantages[mask == 0].any()
        assert (mask[: np.flatnonzero(mask)[0]] == 0).all()
    inputs = dict(trainer._micro_batches[0])
    loss = trainer.compute_loss(trainer.model, inputs)
    assert torch.isfinite(loss)
    assert trainer._metrics["train"]["sampling_gap"][-1] < 1e-4


def test_nothing_changes_with_one_judgement_per_walk(config: PaptConfig) -> None:
    policy = load_trainable(config.model)
    rows = TrainingRows(config, load_pool(config.data))
    tasks = [rows.task(row, member) for row in range(2) for member in range(4)]
    found = played_groups(config, policy, 1.0, 1)
    alone = player_of(policy, 1.0).play(tasks)  # other rows beside it, so log-probabilities differ in their last bits
    assert [(e.turns, e.outcome) for e in found.episodes[:8]] == [(e.turns, e.outcome) for e in alone]
    assert not any(found.is_fork)


# ---------------------------------------------------------------- who plays what, without a model


def tasks_of(groups: int, size: int) -> list[EpisodeTask]:
    rows = TrainingRows(
        PaptConfig.model_validate({"name": "n", "phases": [{"steps": 1}]}), load_pool(DataConfig(train_claims=20))
    )
    return [rows.task(row, member) for row in range(groups) for member in range(size)]


@given(st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_every_task_gets_its_own_episode_in_order(decided: list[int]) -> None:
    """Walks without a judgement (0), and those whose decision is the whole action (3), are not judged again."""
    tasks, asked = tasks_of(3, 4), dict[str, list[int]](play=[], fork=[])

    def episode(task: EpisodeTask) -> Episode:
        return replace(with_mask([1, 1, 0, 1, 1, 1]), member=tasks.index(task))

    def play(chosen: Sequence[EpisodeTask]) -> list[Episode]:
        asked["play"] += [tasks.index(task) for task in chosen]
        return [episode(task) for task in chosen]

    def judge_again(forks: Sequence[Fork]) -> list[Episode]:
        asked["fork"] += [tasks.index(fork.task) for fork in forks]
        assert all(fork.walked.member == tasks.index(fork.task) - 1 for fork in forks)
        assert all(fork.decided == decided[fork.walked.member // 2] for fork in forks)
        return [episode(fork.task) for fork in forks]

    found = play_groups(tasks, 2, play, judge_again, lambda walked: decided[walked.member // 2])
    assert [e.member for e in found.episodes] == list(range(12))
    assert found.is_fork == [place % 2 == 1 and decided[place // 2] in (1, 2) for place in range(12)]
    assert sorted(asked["play"] + asked["fork"]) == list(range(12))
    assert asked["fork"] == [place for place in range(12) if found.is_fork[place]]


@pytest.mark.parametrize("cut", [slice(1, 9), slice(0, 7), slice(0, 1)])
def test_a_walk_and_its_judgements_on_two_processes_are_refused(cut: slice) -> None:
    with pytest.raises(ValueError, match=r"optim.judgements_per_walk=4 .* optim.groups_per_step"):
        play_groups(tasks_of(2, 8)[cut], 4, lambda tasks: [], lambda forks: [], lambda episode: 0)


# ---------------------------------------------------------------- credit, by hand

WALK = np.array([0.5, -1.0, 0.25])


def test_credit_of_forks_by_hand() -> None:
    """Walking's advantage goes to the walker; a judgement's to what it says; if a fork goes on, it answers for that."""
    walker = with_mask([1, 1, 0, 1, 0, 1, 1])
    fork = with_mask([0, 0, 0, 0, 0, 0, 1])
    spoiled = with_mask([0, 0, 0, 0, 0, 0, 1], ending=Ending.INVALID, judgement=None)
    went_on = with_mask([0, 0, 0, 1, 0, 1, 1])
    unscored = with_mask([0, 0, 0, 0, 0, 0, 1])
    episodes = [walker, fork, spoiled, went_on, unscored]
    walking = [WALK, WALK, WALK, WALK, np.zeros(0)]
    own, decided = credit_of_forks(episodes, [False, True, True, True, True], walking, [1, 7, 7, 1, 7])
    found = split_token_advantages(episodes, own, np.array([2.0, 3.0, -3.0, 4.0, 9.0]), decided, 7)
    assert found.tolist() == [
        [0.5, 0.5, 0.0, -1.0, 0.0, 0.25, 2.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -2.75],
        [0.0, 0.0, 0.0, -1.0, 0.0, 0.25, 4.0],
        [0.0] * 7,
    ]


# ---------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"credit": "step"}, "needs credit: split"),
        ({"group_size": 6, "judgements_per_walk": 4}, "must divide group_size=6"),
        ({"group_size": 4, "judgements_per_walk": 4}, "at least two walks"),
    ],
)
def test_groups_that_cannot_be_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        OptimConfig(**{"credit": "split", "group_size": 8, "judgements_per_walk": 2, **fields})


def test_a_trainer_without_a_judge_is_refused(config: PaptConfig, make_trainer: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="needs judge_again"):
        make_trainer(config)
