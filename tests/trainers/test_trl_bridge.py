"""The seam with TRL: advantages, what the loss is divided by, and that TRL computes what GRPO says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.trainers.bridge_batches import (
    LOSS_TYPES,
    GradientKeeper,
    MakeBatch,
    MakeConfig,
    MakeTrainer,
    as_error,
    changed,
    gradient_of,
    hand_batch,
    plain_play,
    total_loss,
    without_gap_check,
)

from provgym.generators.episode import Episode, Tokens
from provgym.rewards.outcome import Ending
from provgym.trainers.callbacks import step_figures
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.policy_loading import load_trainable
from provgym.trainers.training_rows import TrainingRows, load_pool


def test_group_members_share_everything_but_their_sampling(
    make_config: MakeConfig, make_trainer: MakeTrainer, make_batch: MakeBatch
) -> None:
    """Kind: correlated workers (within a group the instance is the same, the sampling differs)."""
    config = make_config(optim__groups_per_step=4, optim__micro_batch=16)
    trainer = make_trainer(config)
    batch = make_batch(trainer, config)
    episodes = trainer.last_step.episodes
    groups = [episodes[i : i + 4] for i in range(0, 16, 4)]
    for number, group in enumerate(groups):
        assert [e.member for e in group] == [0, 1, 2, 3]
        assert len({e.instance_id for e in group}) == 1
        prompts = batch["prompt_ids"][4 * number : 4 * number + 4]
        assert bool((prompts == prompts[0]).all()), "one presentation"
    assert any(len({tuple(t.action for t in e.turns) for e in group}) > 1 for group in groups)
    assert trainer.last_step.instances(4) == [group[0].instance_id for group in groups]


def test_identical_rewards_teach_nothing(
    make_config: MakeConfig, make_trainer: MakeTrainer, make_batch: MakeBatch
) -> None:
    """Kind: identical rewards: advantages exactly 0, no NaN, groups counted, a loss and gradient of exactly 0."""
    config = make_config()

    def same(episodes: list[Episode]) -> list[Episode]:
        return [replace(e, outcome=episodes[0].outcome) for e in episodes]

    trainer = make_trainer(config, play=changed(plain_play(config), same))
    batch = make_batch(trainer, config)
    assert batch["advantages"].tolist() == [0.0] * 8
    assert trainer.last_step.zero_spread_groups == 2
    loss, gradient = total_loss(trainer, batch, 1)
    assert loss == 0.0
    assert not gradient.any()


def test_group_of_one_is_refused(make_config: MakeConfig) -> None:
    """Kind: identical rewards (a group of one is refused at load)."""
    with pytest.raises(ValueError, match="group_size"):
        make_config(optim__group_size=1)


def test_unscored_episode_is_left_out(
    make_config: MakeConfig, make_trainer: MakeTrainer, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kind: unscored reward. Group 1, None, 0, 1: baseline .667, advantages .577, 0, -1.155, .577."""
    config = make_config(optim__groups_per_step=1, optim__micro_batch=4)
    rewards = itertools.cycle([1.0, math.nan, 0.0, 1.0])
    record = __import__("provgym.trainers.trl_bridge", fromlist=["record_episode"]).record_episode
    monkeypatch.setattr(
        "provgym.trainers.trl_bridge.record_episode",
        lambda *args, **named: record(*args, **named)._replace(total=next(rewards)),
    )

    def second_fails(episodes: list[Episode]) -> list[Episode]:
        return [as_error(e) if i == 1 else e for i, e in enumerate(episodes)]

    trainer = make_trainer(config, play=changed(plain_play(config), second_fails))
    with pytest.warns(UserWarning, match="1 of 4 episodes ended in error"):
        batch = make_batch(trainer, config)
    # TRL's 1e-4 beside the standard deviation moves the fourth digit.
    assert batch["advantages"].tolist() == pytest.approx([0.577, 0.0, -1.155, 0.577], abs=1e-3)
    trained = (batch["completion_mask"] * batch["tool_mask"]).sum(1)
    assert trained[1] == 0, "not one of its tokens is trained"
    assert trained[[0, 2, 3]].min() > 0
    assert batch["num_items_in_batch"] == trained.sum(), "nor do they count in what the loss is divided by"
    assert float(batch["row_weight"]) == pytest.approx(4 / 3)
    figures = step_figures(trainer.last_step)
    assert figures["rollout/unscored"] == 1
    assert figures["rollout/ending/error"] == 0.25


def test_nothing_scored_gives_zeros_and_names_the_instances(
    make_config: MakeConfig, make_trainer: MakeTrainer, make_batch: MakeBatch
) -> None:
    """Kinds: unscored reward (all None: zeros, a warning with ids), masked roll-outs (0.0 that supports backward)."""
    config = make_config()
    trainer = make_trainer(config, play=changed(plain_play(config), lambda es: [as_error(e) for e in es]))
    with pytest.warns(UserWarning, match="none is scored, so every advantage is 0") as caught:
        batch = make_batch(trainer, config)
    message = str(next(w.message for w in caught if "none is scored" in str(w.message)))
    for instance in trainer.last_step.instances(4):
        assert instance in message
    assert "the server went away" in message
    assert batch["advantages"].tolist() == [0.0] * 8
    assert step_figures(trainer.last_step)["rollout/reward"] is None, "not available, never 0"
    loss, gradient = total_loss(trainer, batch, 1)
    assert loss == 0.0
    assert bool(torch.isfinite(gradient).all())


def test_episode_that_failed_before_its_first_token(
    make_config: MakeConfig, make_trainer: MakeTrainer, make_batch: MakeBatch
) -> None:
    config = make_config()

    def first_fails(episodes: list[Episode]) -> list[Episode]:
        tokens = episodes[0].tokens
        assert tokens is not None
        empty = replace(as_error(episodes[0]), tokens=Tokens(tokens.prompt_ids, (), (), ()))
        return [empty, *episodes[1:]]

    trainer = make_trainer(config, play=changed(plain_play(config), first_fails))
    with pytest.warns(UserWarning, match="1 of 8 episodes"):
        batch = make_batch(trainer, config)
    assert int((batch["completion_mask"] * batch["tool_mask"])[0].sum()) == 0
    assert math.isfinite(total_loss(trainer, batch, 1)[0])


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_masked_rows_do_not_shrink_the_loss(
    make_config: MakeConfig, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, loss_type: str
) -> None:
    """Kind: masked roll-outs in the normaliser. A: 4 tokens of loss 1; B: 8 masked ones. As if B weren't there."""
    without_gap_check(monkeypatch)
    trainer = make_trainer(make_config(optim__loss_type=loss_type))
    both, gradient = total_loss(trainer, hand_batch(trainer, [4, 8], [1.0, 1.0], [1, 0]), 1)
    alone, expected = total_loss(trainer, hand_batch(trainer, [4], [1.0], [1]), 1)
    assert both == pytest.approx(alone, rel=1e-6)
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5)
    # dr_grpo divides by a constant, the longest episode, and not by the tokens there are.
    assert alone == pytest.approx(4 / 512 if loss_type == "dr_grpo" else 1.0, rel=1e-6)
    nothing, gradient = total_loss(trainer, hand_batch(trainer, [8], [1.0], [0]), 1)
    assert nothing == 0.0
    assert not gradient.any()


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_masked_rows_in_any_micro_batch(
    make_config: MakeConfig, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, loss_type: str
) -> None:
    """Kinds: masked roll-outs in the normaliser, gradient accumulation (a micro-batch may be masked throughout)."""
    without_gap_check(monkeypatch)
    trainer = make_trainer(make_config(optim__loss_type=loss_type))
    batch = hand_batch(trainer, [2, 6, 4, 4], [3.0, 1.0, 1.0, 2.0], [1, 0, 1, 0])
    found = [total_loss(trainer, batch, count) for count in (1, 2, 4)]
    for loss, gradient in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-5)
        torch.testing.assert_close(gradient, found[0][1], rtol=1e-3, atol=1e-5)


def test_token_mean_over_micro_batches(
    make_config: MakeConfig, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kind: gradient accumulation. 2, 6, 4, 4 tokens of loss 3, 1, 1, 1: token mean 1.25 for 1, 2, 4 micro-batches."""
    without_gap_check(monkeypatch)
    trainer = make_trainer(make_config(optim__loss_type="dapo"))
    batch = hand_batch(trainer, [2, 6, 4, 4], [3.0, 1.0, 1.0, 1.0], [1, 1, 1, 1])
    gradients = []
    for count in (1, 2, 4):
        loss, gradient = total_loss(trainer, batch, count)
        assert loss == pytest.approx(1.25, rel=1e-5)
        gradients.append(gradient)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(gradients[2], gradients[0], rtol=1e-3, atol=1e-5)


def test_loss_that_depends_on_the_micro_batch_is_not_offered(make_config: MakeConfig) -> None:
    """Kind: gradient accumulation: TRL's bnpo would give 1.5 for the four micro-batches above."""
    with pytest.raises(ValueError, match="loss_type"):
        make_config(optim__loss_type="bnpo")


@pytest.mark.parametrize(
    ("loss_type", "credit"),
    [
        ("dapo", "trajectory"),
        ("grpo", "trajectory"),
        ("dr_grpo", "trajectory"),
        ("dapo", "step"),
        ("dapo", "group_step"),
    ],
)
def test_one_curve_for_any_micro_batch(
    make_config: MakeConfig, make_trainer: MakeTrainer, loss_type: str, credit: str
) -> None:
    """Batch 1 x 8 and 8 x 1, and 4 x 2: the same losses and gradients over three steps of training."""
    curves = []
    for micro_batch in (8, 4, 1):
        keeper = GradientKeeper()
        config = make_config(
            optim__micro_batch=micro_batch,
            optim__loss_type=loss_type,
            optim__credit=credit,
            optim__learning_rate=1e-3,
            optim__max_grad_norm=1e9,
            phases=[{"steps": 3}],
        )
        make_trainer(config, callbacks=[keeper]).train()
        curves.append(keeper)
    for other in curves[1:]:
        # Adam divides by the gradient's size: rounding in one step is seen a little in the next.
        assert other.losses == pytest.approx(curves[0].losses, rel=1e-3, abs=2e-5)
        torch.testing.assert_close(other.gradients[0], curves[0].gradients[0], rtol=1e-3, atol=1e-6)
    assert min(float(gradient.norm()) for gradient in curves[0].gradients) > 1e-3


def written_out_advantages(config: PaptConfig, episodes: Sequence[Episode]) -> list[list[float]]:
    """Return each sampled token's advantage, action by action, from the formulas alone."""
    rubric = config.phases[0].rubric()
    found: list[list[float]] = []
    for first in range(0, len(episodes), 4):
        group = episodes[first : first + 4]
        totals = np.array([rubric.score(e.outcome).total for e in group])
        scale = totals.std(ddof=1) + 1e-4
        to_go = []
        for episode, total in zip(group, totals, strict=True):
            earned = written_out_earnings(config, episode)
            assert sum(earned) == pytest.approx(total), "a split, no more and no less"
            to_go.append([sum(earned[i:]) for i in range(len(earned))])
        for member, episode in enumerate(group):
            assert episode.tokens is not None
            per_action = []
            for i, value in enumerate(to_go[member]):
                same_step = [other[min(i, len(other) - 1)] for other in to_go]
                per_action.append((value - np.mean(same_step)) / scale)
            whole = (totals[member] - totals.mean()) / scale
            if config.optim.credit == "trajectory":
                per_action = [whole] * len(per_action)
            if config.optim.credit == "group_step":
                per_action = [whole + 0.5 * own / scale for own in written_out_against_partners(group, to_go, member)]
            runs = [len(list(part)) for m, part in itertools.groupby(episode.tokens.mask) if m == 1]
            found.append([a for a, n in zip(per_action, runs, strict=True) for _ in range(n)])
    return found


def written_out_against_partners(
    group: Sequence[Episode], to_go: Sequence[Sequence[float]], member: int
) -> list[float]:
    """Return a member's returns-to-go less the mean at their state, each state found by walking the trace again."""

    def state(episode: Episode, action: int) -> tuple[object, ...]:
        past = episode.trace[:action]
        visited = {f"claim:{episode.claim_id}", *(entry["node"] for entry in past)}
        spent = sum(entry["kind"] not in ("stop", "late") for entry in past)
        return past[-1]["node"] if past else f"claim:{episode.claim_id}", sorted(visited), spent

    found = []
    for action, value in enumerate(to_go[member]):
        here = state(group[member], action)
        met = [
            other[i] for e, other in zip(group, to_go, strict=True) for i in range(len(other)) if state(e, i) == here
        ]
        found.append(value - float(np.mean(met)))
    return found


def written_out_earnings(config: PaptConfig, episode: Episode) -> list[float]:
    """Split an episode's total over its actions, reading the trace one entry at a time."""
    rubric, outcome = config.phases[0].rubric(), episode.outcome
    due = {name: rubric.weights[name] * value for name, value in rubric.score(outcome).terms.items()}
    kinds = [str(entry["kind"]) for entry in episode.trace]
    sources = [entry["source"] if kind == "new" else None for kind, entry in zip(kinds, episode.trace, strict=True)]
    is_new = [s is not None and s not in sources[:i] for i, s in enumerate(sources)]
    earned = [0.0] * len(kinds)
    for i, kind in enumerate(kinds):
        if is_new[i]:
            earned[i] += due["coverage"] / sum(is_new)
        if kind == "echo":
            earned[i] += due["echo"] / kinds.count("echo")
        if kind not in ("stop", "late"):
            earned[i] += due["cost"] / sum(k not in ("stop", "late") for k in kinds)
        if kind in ("illegal", "unparsed"):
            earned[i] += due.get("illegal", 0.0) / sum(k in ("illegal", "unparsed") for k in kinds)
    earned[-1] += due["verdict"] + due["count"]
    return earned


@pytest.mark.parametrize(
    ("credit", "temperature", "kl_weight"),
    [
        ("trajectory", 1.0, 0.0),
        ("trajectory", 1.0, 0.1),
        ("trajectory", 0.6, 0.0),
        ("trajectory", 0.6, 0.1),
        ("step", 1.0, 0.0),
        ("step", 0.6, 0.1),
        ("group_step", 1.0, 0.0),
    ],
)
def test_trl_equals_plain_torch(
    make_config: MakeConfig,
    make_trainer: MakeTrainer,
    make_batch: MakeBatch,
    credit: str,
    temperature: float,
    kl_weight: float,
) -> None:
    """Loss and gradient of TRL on our rows against GRPO written out: one unpadded row at a time, no TRL, no mask."""
    config = make_config(
        optim__temperature=temperature,
        optim__kl_weight=kl_weight,
        optim__loss_type="dapo",
        optim__credit=credit,
        optim__step_weight=0.5,
        phases=[{"steps": 1, "weights": {"cost": 0.2, "echo": 1.0}}],
    )
    trainer = make_trainer(config)
    if kl_weight:
        with torch.no_grad():  # away from the reference, so that the KL term has something to say
            for parameter in trainer.model.parameters():
                parameter.mul_(1.05)
    batch = make_batch(trainer, config)
    loss, gradient = total_loss(trainer, batch, 1)

    model = load_trainable(config.model).model.train()
    reference = load_trainable(config.model).model.eval()
    model.load_state_dict(trainer.model.state_dict())
    episodes = trainer.last_step.episodes
    total = torch.zeros(())
    count = 0
    for episode, advantages in zip(episodes, written_out_advantages(config, episodes), strict=True):
        assert episode.tokens is not None
        ids = torch.tensor([[*episode.tokens.prompt_ids, *episode.tokens.completion_ids]])
        first = len(episode.tokens.prompt_ids)
        places = [first + i for i, m in enumerate(episode.tokens.mask) if m == 1]
        logits = model(input_ids=ids).logits[0] / temperature
        with torch.no_grad():
            other = reference(input_ids=ids).logits[0] / temperature
        for place, advantage in zip(places, advantages, strict=True):
            logprob = logits[place - 1].log_softmax(-1)[ids[0, place]]
            ratio = torch.exp(logprob - logprob.detach())
            total = total - ratio * float(advantage)
            difference = other[place - 1].log_softmax(-1)[ids[0, place]] - logprob
            # The ratio makes the estimator's gradient that of the true KL; TRL does it too.
            total = total + kl_weight * ratio * (torch.exp(difference) - difference - 1)
        count += len(places)
    plain = total / count
    plain.backward()
    assert loss == pytest.approx(float(plain.detach()), rel=1e-4, abs=1e-6)
    torch.testing.assert_close(gradient, gradient_of(model), rtol=1e-3, atol=1e-6)
    assert float(gradient.norm()) > 1e-3


def test_step_credit_with_every_kind_of_ending(
    make_config: MakeConfig, make_trainer: MakeTrainer, make_batch: MakeBatch
) -> None:
    """Episodes that failed, or were cut by length, have as many advantages as actions; world tokens have none."""
    config = make_config(optim__credit="step", generation={"max_rows": 16, "max_length": 100})

    def first_fails(episodes: list[Episode]) -> list[Episode]:
        return [as_error(episodes[0]), *episodes[1:]]

    trainer = make_trainer(config, play=changed(plain_play(config), first_fails))
    with pytest.warns(UserWarning, match="1 of 8 episodes"):
        batch = make_batch(trainer, config)
    assert batch["advantages"].shape == batch["completion_ids"].shape
    endings = {e.outcome.ending for e in trainer.last_step.episodes}
    assert {Ending.ERROR, Ending.TRUNCATED} <= endings
    trained = (batch["completion_mask"] * batch["tool_mask"]).bool()
    assert not batch["advantages"][~trained].any()
    assert batch["advantages"][trained].any()
    assert not trained[0].any()
    loss, gradient = total_loss(trainer, batch, 1)
    assert math.isfinite(loss)
    assert bool(torch.isfinite(gradient).all())


def test_rows_know_their_phase(make_config: MakeConfig, make_trainer: MakeTrainer, make_batch: MakeBatch) -> None:
    """Steps of a second phase are scored under its objective."""
    phases = [{"steps": 1, "variant": "verdict_only"}, {"steps": 1, "weights": {"verdict": 0.0, "cost": 1.0}}]
    config = make_config(phases=phases)
    trainer = make_trainer(config)
    make_batch(trainer, config, step=0)
    assert set(trainer.last_step.totals) <= {-1.0, 1.0}
    make_batch(trainer, config, step=1)
    rubric = config.phases[1].rubric()
    expected = [rubric.score(e.outcome).total for e in trainer.last_step.episodes]
    assert trainer.last_step.totals.tolist() == expected
    assert len(TrainingRows(config, load_pool(config.data))) == 4
