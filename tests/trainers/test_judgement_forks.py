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
from provgym.generators.episode import Episode, EpisodeTask, last_action
from provgym.generators.hf_engine import HFEngine
from provgym.generators.rollout import Fork, LanguageModelPolicy
from provgym.generators.tiny import TinyDialogue
from provgym.generators.vllm_engine import Generated, GenerationRequest, VLLMEngine
from provgym.rewards.outcome import Ending
from provgym.trainers.callbacks import step_figures
from provgym.trainers.data_config import DataConfig
from provgym.trainers.judgement_forks import PlayedGroups, play_groups
from provgym.trainers.optim_config import OptimConfig
from provgym.trainers.papt import check_trainer
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.policy_loading import TrainablePolicy, load_trainable
from provgym.trainers.split_credit import decision_tokens, split_advantages, split_token_advantages
from provgym.trainers.step_record import EpisodeRecord
from provgym.trainers.training_rows import TrainingRows, load_pool

FORKED: dict[str, Any] = {"group_size": 8, "judgements_per_walk": 4, "groups_per_step": 4, "micro_batch": 8}
PER_WALK, SIZE = 4, 8


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
    tasks = [rows.task(row, member) for row in range(4) for member in range(SIZE)]
    walker, judge = player_of(policy, temperature), player_of(policy, judging or temperature)
    return play_groups(
        tasks, per_walk, walker.play, judge.judge_again, lambda episode: decision_tokens(episode, policy.tokenizer)
    )


def test_a_greedy_fork_says_what_its_walk_said(config: PaptConfig) -> None:
    """The same words, with the same log-probabilities, from a state that was taken over: nothing is lost on the way."""
    policy = load_trainable(config.model)
    found = played_groups(config, policy, 0.0, PER_WALK)
    forks = [place for place, is_fork in enumerate(found.is_fork) if is_fork]
    assert len(forks) >= 6  # of 24; the start stops in many of its walks
    for place in forks:
        walk, fork = found.episodes[place - place % PER_WALK], found.episodes[place]
        assert walk.tokens is not None
        assert fork.tokens is not None
        assert fork.tokens.completion_ids == walk.tokens.completion_ids
        assert (fork.outcome, fork.trace, fork.turns) == (walk.outcome, walk.trace, walk.turns)
        sampled = np.array(fork.tokens.mask) == 1
        assert 0 < sampled.sum() < walk.tokens.sampled
        assert_only_its_judgement_is_trained(fork, walk, policy)
        np.testing.assert_allclose(
            np.array(fork.tokens.logprobs)[sampled], np.array(walk.tokens.logprobs)[sampled], atol=1e-5
        )


def test_forks_differ_in_their_judgement_alone(config: PaptConfig) -> None:
    policy = load_trainable(config.model)
    found = played_groups(config, policy, 1.0, PER_WALK, judging=4.0)  # the start is sure of what it says
    said: dict[int, set[str]] = {}
    for place, fork in enumerate(found.episodes):
        assert fork.member == place % SIZE
        if not found.is_fork[place]:
            assert fork.tokens is not None
            assert fork.tokens.mask[0] == 1
            continue
        walk = found.episodes[place - place % PER_WALK]
        before = len(walk.turns) - 1
        assert fork.turns[:before] == walk.turns[:before]
        assert fork.turns[before].observation == walk.turns[before].observation
        assert fork.turns[before].action.startswith("stop")
        said.setdefault(place // PER_WALK, {walk.turns[before].action}).add(fork.turns[before].action)
    assert max(len(of_walk) for of_walk in said.values()) >= 3, "not only from the walk: forks of one walk differ too"


def assert_only_its_judgement_is_trained(fork: Episode, walk: Episode, policy: TrainablePolicy) -> None:
    """What was taken over, and the words that decided to stop, are masked; what follows them is sampled."""
    assert walk.tokens is not None
    assert fork.tokens is not None
    begins = last_action(walk.tokens.mask).start + decision_tokens(walk, policy.tokenizer)
    assert not any(fork.tokens.mask[:begins])
    assert fork.tokens.mask[begins] == 1


def test_a_training_step_credits_the_walk_once(
    config: PaptConfig, make_trainer: Callable[..., Any], make_batch: Callable[..., dict[str, Any]]
) -> None:
    """The trainer's log-probabilities are those that were sampled with, for forks too, and only a fork's own tokens are
    trained: no token of a walk, nor the decision to stop, is counted or credited more than once."""
    policy = load_trainable(config.model)
    trainer = make_trainer(
        config,
        policy=policy,
        judge_again=lambda model, forks: player_of(policy, config.optim.temperature).judge_again(forks),
    )
    batch = make_batch(trainer, config)
    step = trainer.last_step
    assert sum(step.is_fork) >= 6
    trained = 0
    for place, episode in enumerate(step.episodes):
        if step.is_fork[place]:
            assert_only_its_judgement_is_trained(episode, step.episodes[place - place % PER_WALK], policy)
        mask = np.array(episode.tokens.mask)
        assert not batch["advantages"][place][: len(mask)].numpy()[mask == 0].any()
        assert (batch["completion_mask"] * batch["tool_mask"])[place].sum() == mask.sum()
        trained += int(mask.sum())
    assert int(batch["num_items_in_batch"]) == sum(record.trained_tokens for record in step.records) == trained
    for micro_batch in trainer._micro_batches:
        assert torch.isfinite(trainer.compute_loss(trainer.model, dict(micro_batch)))
        assert trainer._metrics["train"]["sampling_gap"][-1] < 1e-4


def test_figures_of_a_step_count_every_walk_once(
    config: PaptConfig, make_trainer: Callable[..., Any], make_batch: Callable[..., dict[str, Any]]
) -> None:
    policy = load_trainable(config.model)
    judge = player_of(policy, config.optim.temperature)
    trainer = make_trainer(config, policy=policy, judge_again=lambda model, forks: judge.judge_again(forks))
    make_batch(trainer, config)
    step = trainer.last_step
    whole = [e for e, is_fork in zip(step.episodes, step.is_fork, strict=True) if not is_fork]
    figures = step_figures(step)
    assert (figures["rollout/episodes"], figures["rollout/forks"]) == (len(whole), sum(step.is_fork))
    assert figures["rollout/walks"] == pytest.approx(np.mean([e.outcome.walks for e in whole]))
    assert figures["rollout/tokens/sampled"] == pytest.approx(np.mean([e.tokens.sampled for e in whole]))


def test_judgements_are_sampled_again_by_an_engine_that_keeps_nothing(config: PaptConfig) -> None:
    """The vLLM engine, with a stand-in for vLLM, gets the whole text so far as its first request."""
    policy = load_trainable(config.model)
    rows = TrainingRows(config, load_pool(config.data))
    walked = player_of(policy, 0.0).play([rows.task(row, 0) for row in range(8)])
    forks = [
        Fork(rows.task(row, 1), episode, decision_tokens(episode, policy.tokenizer))
        for row, episode in enumerate(walked)
        if decision_tokens(episode, policy.tokenizer)
    ]
    assert forks
    asked: list[GenerationRequest] = []

    said = tuple(TinyDialogue(policy.tokenizer).encode_action("stop +1 -1 MIXED 0.9")[1:])

    def generate(requests: Sequence[GenerationRequest]) -> list[Generated]:
        asked.extend(requests)
        return [Generated(said, (-1.0,) * len(said)) for _ in requests]

    engine = VLLMEngine(generate, max_rows=4, max_length=512)
    found = LanguageModelPolicy("t", engine, policy.dialogue, Sampling(1.0)).judge_again(forks)
    for fork, episode, request in zip(forks, found, asked, strict=True):
        assert fork.walked.tokens is not None
        assert episode.tokens is not None
        kept = last_action(fork.walked.tokens.mask).start + fork.decided
        assert request.ids == (*fork.walked.tokens.prompt_ids, *fork.walked.tokens.completion_ids[:kept])
        assert episode.turns[-1].action.startswith("stop +1 -1 MIXED 0.9")
        assert episode.tokens.logprobs[kept:] == (-1.0,) * len(episode.tokens.logprobs[kept:])


def test_a_walk_that_goes_another_way_is_refused(config: PaptConfig) -> None:
    policy = load_trainable(config.model)
    rows = TrainingRows(config, load_pool(config.data))
    walked = player_of(policy, 0.0).play([rows.task(row, 0) for row in range(8)])
    row = next(row for row, episode in enumerate(walked) if decision_tokens(episode, policy.tokenizer))
    task = rows.task(row, 1)
    for other in (
        replace(task, budget=1),
        replace(task, budget=9),
        replace(task, instance=rows.task(row + 1, 1).instance),
    ):
        with pytest.raises(ValueError, match=f"the walk of '{walked[row].instance_id}' goes another way"):
            player_of(policy, 0.0).judge_again([Fork(other, walked[row], 1)])


def test_nothing_changes_with_one_judgement_per_walk(config: PaptConfig) -> None:
    policy = load_trainable(config.model)
    rows = TrainingRows(config, load_pool(config.data))
    tasks = [rows.task(row, member) for row in range(2) for member in range(SIZE)]
    found = played_groups(config, policy, 1.0, 1)
    alone = player_of(policy, 1.0).play(tasks)  # other rows beside it, so log-probabilities differ in their last bits
    assert [(e.turns, e.outcome) for e in found.episodes[: len(tasks)]] == [(e.turns, e.outcome) for e in alone]
    assert not any(found.is_fork)


# ---------------------------------------------------------------- who plays what, without a model


def tasks_of(groups: int, size: int) -> list[EpisodeTask]:
    rows = TrainingRows(
        PaptConfig.model_validate({"name": "n", "phases": [{"steps": 1}]}), load_pool(DataConfig(train_claims=20))
    )
    return [rows.task(row, member) for row in range(groups) for member in range(size)]


@given(st.sampled_from([2, 4]), st.lists(st.integers(0, 3), min_size=12, max_size=12))
def test_every_task_gets_its_own_episode_in_order(per_walk: int, decided: list[int]) -> None:
    """Walks without a judgement (0), and those whose decision is the whole action (3), are not judged again."""
    tasks, asked = tasks_of(3, 8), dict[str, list[int]](play=[], fork=[])

    def episode(task: EpisodeTask) -> Episode:
        return replace(with_mask([1, 1, 0, 1, 1, 1]), member=tasks.index(task))

    def play(chosen: Sequence[EpisodeTask]) -> list[Episode]:
        asked["play"] += [tasks.index(task) for task in chosen]
        return [episode(task) for task in chosen]

    def judge_again(forks: Sequence[Fork]) -> list[Episode]:
        asked["fork"] += [tasks.index(fork.task) for fork in forks]
        assert all(fork.walked.member == tasks.index(fork.task) // per_walk * per_walk for fork in forks)
        assert all(fork.decided == decided[fork.walked.member // per_walk] for fork in forks)
        return [episode(fork.task) for fork in forks]

    found = play_groups(tasks, per_walk, play, judge_again, lambda walked: decided[walked.member // per_walk])
    assert [e.member for e in found.episodes] == list(range(24))
    assert found.is_fork == [bool(place % per_walk) and decided[place // per_walk] in (1, 2) for place in range(24)]
    assert sorted(asked["play"] + asked["fork"]) == list(range(24))
    assert asked["fork"] == [place for place in range(24) if found.is_fork[place]]


@pytest.mark.parametrize("cut", [slice(1, 9), slice(0, 7), slice(0, 1)])
def test_a_walk_and_its_judgements_on_two_processes_are_refused(cut: slice) -> None:
    with pytest.raises(ValueError, match=r"optim.judgements_per_walk=4 .* optim.groups_per_step"):
        play_groups(tasks_of(2, 8)[cut], 4, lambda tasks: [], lambda forks: [], lambda episode: 0)


# ---------------------------------------------------------------- credit, by hand


def record(walk: Sequence[float], judged: float, taken_over: int | None = None) -> EpisodeRecord:
    return EpisodeRecord("i", sum(walk) + judged, 1, {}, None, tuple(walk), (), judged, taken_over)


def test_credit_of_a_mixed_group_by_hand() -> None:
    """Two judgements a walk. To go: walk A .6 .2, and a fork of it the same; B, without a judgement, 1.0, and the
    member behind it, which walks itself, .4 .4 -.2. Every walk counts once: the steps' means are (.6 + 1 + .4) / 3,
    (.2 + 1 + .4) / 3 and (.2 + 1 - .2) / 3. A fork that ends as its walk did, with a valid judgement or without, has
    nothing to answer for but that judgement."""
    group = [
        record([0.4, 0.2], 1.0),
        record([0.4, 0.2], -1.0, taken_over=1),
        record([1.0], -2.0),
        record([0.0, 0.6, -0.2], 0.0),
    ]
    config = OptimConfig(credit="split", group_size=4, judgements_per_walk=2, scale_advantages="none")
    walking, judging = split_advantages(group, config, epsilon=0.0)
    assert [own.tolist() for own in walking] == [
        pytest.approx([0.6 - 2 / 3, 0.2 - 8 / 15]),
        [0.0],
        pytest.approx([1.0 - 2 / 3]),
        pytest.approx([0.4 - 2 / 3, 0.4 - 8 / 15, -0.2 - 1 / 3]),
    ]
    spread = float(np.std([1.0, -1.0, -2.0, 0.0], ddof=1))
    assert judging == pytest.approx(np.array([1.5, -0.5, -1.5, 0.5]) / spread)
    # Spread, of the group and of the step, is that of the three walks .6, 1.0 and .4, too.
    for scale in ("group", "batch"):
        scaled, _ = split_advantages(group, config.model_copy(update={"scale_advantages": scale}), epsilon=0.0)
        assert scaled[2][0] == pytest.approx((1.0 - 2 / 3) / np.std([0.6, 1.0, 0.4], ddof=1))


def test_a_fork_that_goes_on_answers_for_what_came_of_it() -> None:
    """It did not stop where its walk did (.2), but found .5 more, and then lost .1: .6 - .2 and .1 less .2."""
    group = [
        record([0.4, 0.2], 1.0),
        record([0.4, 0.5, 0.1], 1.0, taken_over=1),
        record([0.1], 0.0),
        record([0.1], 0.0),
    ]
    config = OptimConfig(credit="split", group_size=4, judgements_per_walk=2, scale_advantages="none")
    assert split_advantages(group, config, epsilon=0.0)[0][1].tolist() == pytest.approx([0.4, -0.1])


def test_tokens_of_forks_by_hand() -> None:
    """A fork that judges, validly or not, gets that advantage alone; in one that goes on, the last action parts."""
    walker = with_mask([1, 1, 0, 1, 0, 1, 1])
    fork = with_mask([0, 0, 0, 0, 0, 0, 1])
    spoiled = with_mask([0, 0, 0, 0, 0, 0, 1], ending=Ending.INVALID, judgement=None)
    went_on = with_mask([0, 0, 0, 1, 0, 1, 1])
    walking = [np.array([0.5, -1.0, 0.25]), np.zeros(1), np.zeros(1), np.array([-1.0, 0.25]), np.zeros(0)]
    episodes = [walker, fork, spoiled, went_on, fork]
    found = split_token_advantages(episodes, walking, np.array([2.0, 3.0, -3.0, 4.0, 9.0]), [1, 0, 0, 1, 0], 7)
    assert found.tolist() == [
        [0.5, 0.5, 0.0, -1.0, 0.0, 0.25, 2.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -3.0],
        [0.0, 0.0, 0.0, -1.0, 0.0, 0.25, 4.0],
        [0.0] * 7,
    ]


# ---------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"credit": "step"}, "needs credit: split"),
        (
            {"group_size": 6, "judgements_per_walk": 4},
            "group_size=6 into at least two walks; set group_size to 8",
        ),
        ({"group_size": 4, "judgements_per_walk": 4}, "at least two walks"),
    ],
)
def test_groups_that_cannot_be_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        OptimConfig(**{"credit": "split", "group_size": 8, "judgements_per_walk": 2, **fields})


def test_a_trainer_without_a_judge_is_refused(config: PaptConfig, make_trainer: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="needs judge_again"):
        make_trainer(config)


def test_a_share_that_parts_walks_from_their_judgements_is_refused_before_anything_is_thrown_away(
    config: PaptConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "16")
    with pytest.raises(ValueError, match="share of 2 trajectories must be a multiple of judgements_per_walk=4"):
        check_trainer(config)
    monkeypatch.setenv("WORLD_SIZE", "8")
    check_trainer(config)
