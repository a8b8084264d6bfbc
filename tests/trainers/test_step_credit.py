"""Step credit on the way into training: actions from traces, advantages onto tokens, tokens into TRL's loss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from provgym.envs.presentation import PresentationConfig
from provgym.envs.walk_text import TraceEntry
from provgym.generators.baseline_walkers import random_walker
from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL
from provgym.generators.episode import Episode, EpisodeTask
from provgym.generators.graphecho import GraphEcho
from provgym.generators.scripted import ScriptedPolicy, echo_avoiding_oracle, naive_walker
from provgym.rewards.advantages import group_advantages
from provgym.rewards.outcome import Ending, Judgement, Verdict, WalkOutcome
from provgym.rewards.rubric import PAPT_WEIGHTS, Rubric, papt_rubric
from provgym.trainers.callbacks import step_figures
from provgym.trainers.papt_config import OptimConfig, PaptConfig, ShapingConfig
from provgym.trainers.step_credit import (
    WalkState,
    action_advantages,
    episode_states,
    episode_step_rewards,
    spread_over_tokens,
)
from provgym.trainers.step_record import EpisodeRecord

MakeConfig = Callable[..., PaptConfig]
MakeTrainer = Callable[..., Any]
MakeBatch = Callable[..., dict[str, Any]]


def entry(kind: str, source: str | None = None, atom: str | None = None) -> TraceEntry:
    return {"kind": kind, "node": "n", "budget_left": 0, "atom": atom or source, "source": source}


def episode_of(trace: Sequence[TraceEntry], **fields: Any) -> Episode:
    """An episode with a trace by hand; the outcome holds the counts that the trace comes to."""
    kinds = [step["kind"] for step in trace]
    outcome = WalkOutcome(
        gold=Verdict.SUPPORT,
        judgement=Judgement(Verdict.SUPPORT, 2, 0),
        ending=Ending.ANSWERED,
        budget=10,
        walks=sum(kind in ("new", "echo", "connector") for kind in kinds),
        invalid_actions=sum(kind in ("illegal", "unparsed") for kind in kinds),
        echoes=kinds.count("echo"),
        connector_moves=kinds.count("connector"),
        available_support=2,
        available_refute=0,
        acquired_support=len({step["source"] for step in trace if step["kind"] == "new"}),
        acquired_refute=0,
    )
    return Episode("i", "c", "C", "train", "M1", 0, replace(outcome, **fields), tuple(trace), ())


def only(name: str) -> Rubric:
    """A rubric in which one term weighs 1 and all others nothing."""
    return papt_rubric(weights={**dict.fromkeys(PAPT_WEIGHTS, 0.0), name: 1.0})


def earned(name: str, episode: Episode) -> list[float]:
    return [float(value) for value in episode_step_rewards(episode, only(name))]


# ---------------------------------------------------------------- from a trace to what its actions earned

TRACE = [
    entry("new", "s", "a1"),
    entry("unparsed"),
    entry("echo", "s", "a1"),
    entry("new", "s", "a2"),  # another observation of the same source: a new atom, no new source
    entry("connector"),
    entry("illegal"),
    entry("new", "r"),
    entry("echo", "r"),
    entry("stop"),
]


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        ("coverage", [1 / 2, 0, 0, 0, 0, 0, 1 / 2, 0, 0]),
        ("echo", [0, 0, 1 / 6, 0, 0, 0, 0, 1 / 6, 0]),  # 2 of 6 walks
        ("cost", [1 / 10] * 8 + [0]),
        ("illegal", [0, 1 / 10, 0, 0, 0, 1 / 10, 0, 0, 0]),
        ("verdict", [0] * 8 + [1]),
        ("count", [0] * 8 + [1]),
    ],
)
def test_every_kind_of_step_by_hand(term: str, expected: list[float]) -> None:
    assert earned(term, episode_of(TRACE)) == pytest.approx(expected)


def test_a_late_action_costs_nothing_more() -> None:
    """It uses no budget: there is none left. The lost verdict is its own doing."""
    late = episode_of([entry("new", "s"), entry("late")], ending=Ending.TRUNCATED, judgement=None, budget=1)
    assert earned("cost", late) == [1.0, 0.0]
    assert earned("verdict", late) == [0.0, -1.0]


def test_an_episode_cut_before_its_first_action_has_no_step() -> None:
    cut = episode_of([], ending=Ending.TRUNCATED, judgement=None)
    assert episode_step_rewards(cut, papt_rubric()).shape == (0,)


def test_an_episode_cut_by_length_blames_its_last_action() -> None:
    cut = episode_of([entry("new", "s"), entry("connector")], ending=Ending.TRUNCATED, judgement=None)
    assert earned("verdict", cut) == [0.0, -1.0]
    assert earned("coverage", cut) == [0.5, 0.0]


def test_played_episodes_are_split_without_remainder() -> None:
    """Walkers that echo, err, confirm and avoid, under every condition: the trace says what the outcome counts."""

    data = GraphEcho.generate(3, {"train": 4})
    instances = data.instances("train", [*CONFLICT_CONDITIONS, GENERAL])
    tasks = [EpisodeTask(i, b, PresentationConfig(), n, n) for n, i in enumerate(instances) for b in (3, 6)]
    rubric = papt_rubric(weights={"illegal": -0.3})
    seen = set()
    for walker in (naive_walker(0.2, 0.5), echo_avoiding_oracle, erring_walker):
        for episode in ScriptedPolicy("scripted", walker).play(tasks):
            outcome = episode.outcome
            found = episode_step_rewards(episode, rubric)
            assert len(found) == len(episode.trace) == len(episode.turns)
            assert math.fsum(found) == pytest.approx(rubric.score(outcome).total)
            if outcome.acquired:
                shares = [value for value in earned("coverage", episode) if value]
                assert len(shares) == outcome.acquired
                assert len(set(shares)) == 1
            assert sum(value > 0 for value in earned("cost", episode)) == outcome.walks + outcome.invalid_actions
            assert sum(value > 0 for value in earned("echo", episode)) == outcome.echoes
            assert sum(value > 0 for value in earned("illegal", episode)) == outcome.invalid_actions
            seen |= {step["kind"] for step in episode.trace}
    assert seen >= {"new", "echo", "connector", "illegal", "unparsed", "stop"}


def erring_walker(env: Any, rng: np.random.Generator) -> str:
    """A walker that errs in three actions of ten, in both ways."""
    return ("walk n99", "what?")[int(rng.integers(2))] if rng.random() < 0.3 else random_walker(env, rng)


# ---------------------------------------------------------------- shaping


@pytest.mark.parametrize(
    ("shaping", "expected"),
    [
        # Two of two sources are reached, by the first and the seventh action of nine.
        ({"weight": 0.5}, [0.25, 0, 0, 0, 0, 0, 0.25, 0, 0]),
        ({"weight": 0.5, "is_repaid": True}, [0.25, 0, 0, 0, 0, 0, 0.25, 0, -0.5]),
        ({"weight": -1.0, "per": 10}, [-0.1, 0, 0, 0, 0, 0, -0.1, 0, 0]),
    ],
)
def test_shaping_rewards_new_sources_beside_the_objective(shaping: dict[str, Any], expected: list[float]) -> None:
    episode = episode_of(TRACE)
    plain = episode_step_rewards(episode, papt_rubric())
    shaped = episode_step_rewards(episode, papt_rubric(), ShapingConfig(**shaping))
    assert (shaped - plain).tolist() == pytest.approx(expected)


def test_shaping_of_an_episode_without_source_or_action() -> None:
    """An own claim may have no evidence at all: nothing to divide by, nothing gained."""
    nothing = episode_of([entry("connector"), entry("stop")], available_support=0)
    found = episode_step_rewards(nothing, papt_rubric(), ShapingConfig(weight=1.0))
    assert found.tolist() == episode_step_rewards(nothing, papt_rubric()).tolist()
    cut = episode_of([], ending=Ending.TRUNCATED, judgement=None)
    assert episode_step_rewards(cut, papt_rubric(), ShapingConfig(weight=1.0)).shape == (0,)


def test_unpaid_shaping_is_coverage_of_what_is_available() -> None:
    """Under step credit the share of available sources as a potential and as a term are one and the same."""
    weights = {"coverage": 0.0}
    covered = papt_rubric(weights={"coverage": 0.7}, coverage_basis="available")
    for seed in range(6):
        task = EpisodeTask(instances()[seed], 5, PresentationConfig(), seed, seed)
        episode = ScriptedPolicy("scripted", erring_walker).play([task])[0]
        if not episode.outcome.acquired:
            continue  # coverage that nothing earned is 0 too, at the last action
        shaped = episode_step_rewards(episode, papt_rubric(weights=weights), ShapingConfig(weight=0.7))
        assert shaped.tolist() == pytest.approx(episode_step_rewards(episode, covered).tolist())


def instances() -> list[Any]:
    """Every condition of one claim."""
    return GraphEcho.generate(3, {"train": 1}).instances("train", [*CONFLICT_CONDITIONS, GENERAL])


# ---------------------------------------------------------------- states


def test_states_by_hand() -> None:
    """The state before each action: where, what was seen, what is left; an illegal action changes the last alone."""
    trace: list[TraceEntry] = [
        {"kind": "new", "node": "observation:r", "budget_left": 9, "atom": "a", "source": "s"},
        {"kind": "illegal", "node": "observation:r", "budget_left": 8, "atom": None, "source": None},
        {"kind": "connector", "node": "claim:c", "budget_left": 7, "atom": None, "source": None},
        {"kind": "stop", "node": "claim:c", "budget_left": 7, "atom": None, "source": None},
    ]
    both = frozenset(("claim:c", "observation:r"))
    assert episode_states(episode_of(trace)) == (
        WalkState("claim:c", frozenset(("claim:c",)), 10),
        WalkState("observation:r", both, 9),
        WalkState("observation:r", both, 8),
        WalkState("claim:c", both, 7),
    )
    assert episode_states(episode_of([])) == ()


def test_states_from_traces_are_the_environment_s_own() -> None:
    """An independent route: what the walk itself says, watched while walkers play, against what the trace tells."""
    watched: list[tuple[int, frozenset[int], int]] = []

    def watching(walker: Any) -> Any:
        def act(env: Any, rng: np.random.Generator) -> str:
            watched.append((env.walk.position, frozenset(env.walk.visited), env.walk.budget_left))
            return str(walker(env, rng))

        return act

    kinds = set()
    for instance in instances():
        graph = instance.graph
        for seed, walker in enumerate([random_walker, erring_walker, erring_walker, echo_avoiding_oracle]):
            watched.clear()
            task = EpisodeTask(instance, 4, PresentationConfig(), 0, seed)
            episode = ScriptedPolicy("scripted", watching(walker)).play([task])[0]
            expected = [WalkState(graph.node_id(p), frozenset(map(graph.node_id, v)), b) for p, v, b in watched]
            assert list(episode_states(episode)) == expected
            assert len(set(expected)) == len(expected), "no walk meets a state twice"
            kinds |= {step["kind"] for step in episode.trace}
    assert kinds >= {"new", "echo", "illegal", "unparsed", "stop"}


def test_the_order_of_visits_is_no_part_of_the_state() -> None:
    """Two ways to the same node over the same nodes at the same price are one state; another budget is not."""

    def through(*nodes: str) -> Episode:
        left = range(9, 0, -1)
        return episode_of(
            [
                {"kind": "new", "node": node, "budget_left": b, "atom": node, "source": node}
                for node, b in zip(nodes, left, strict=False)
            ]
        )

    one, two = episode_states(through("x", "y", "z", "end")), episode_states(through("y", "x", "z", "end"))
    assert [a == b for a, b in zip(one, two, strict=True)] == [True, False, False, True]
    later = episode_states(through("x", "x", "y", "z", "end"))
    assert (later[4].node, later[4].visited) == (one[3].node, one[3].visited)
    assert later[4] != one[3]


# ---------------------------------------------------------------- the two parts of group_step


def record(total: float, step_rewards: Sequence[float] = (), states: Sequence[str] = ()) -> EpisodeRecord:
    return EpisodeRecord("i", total, 1, {}, None, tuple(step_rewards), tuple(states))


def test_both_parts_and_their_weight_by_hand() -> None:
    """Totals 2, 0 and one unscored: trajectory parts 0.5 and -0.5, say; at a 2 against 0, the start likewise."""
    records = [record(2.0, [0.0, 2.0], "sa"), record(math.nan), record(0.0, [1.0, -1.0, 0.0], "sab")]
    trajectory = np.array([0.5, 0.0, -0.5])

    def found(**optim: Any) -> list[list[float]]:
        config = OptimConfig(credit="group_step", group_size=3, scale_advantages="none", **optim)
        return [a.tolist() for a in action_advantages(records, trajectory, config, epsilon=0.0)]

    # To go: 2 2; 0 -1 0. At s 2 and 0, at a 2 and -1, at b alone.
    assert found() == [[1.5, 2.0], [], [-1.5, -2.0, -0.5]]
    assert found(step_weight=2.0) == [[2.5, 3.5], [], [-2.5, -3.5, -0.5]]
    assert found(step_weight=0.0) == [[0.5, 0.5], [], [-0.5, -0.5, -0.5]]


def test_trajectory_credit_has_no_advantages_of_actions() -> None:
    with pytest.raises(ValueError, match="credit 'trajectory' has no advantages of actions"):
        action_advantages([record(0.0)] * 4, np.zeros(4), OptimConfig(), epsilon=0.0)


# ---------------------------------------------------------------- from actions to tokens


def test_tokens_of_one_action_share_its_advantage() -> None:
    mask = [1, 1, 1, 0, 0, 1, 0, 1, 1]
    found = spread_over_tokens(mask, np.array([0.5, -2.0, 3.0]), 12)
    assert found.tolist() == [0.5, 0.5, 0.5, 0.0, 0.0, -2.0, 0.0, 3.0, 3.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("mask", [[], [0], [0, 0, 0]])
def test_nothing_sampled_gets_nothing(mask: list[int]) -> None:
    assert spread_over_tokens(mask, np.zeros(0), 4).tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("mask", "advantages", "runs"),
    [([1, 0, 1], [1.0], 2), ([1, 1], [1.0, 2.0], 1), ([], [1.0], 0), ([0, 1], [], 1)],
)
def test_another_number_of_actions_is_refused(mask: list[int], advantages: list[float], runs: int) -> None:
    """Kind: off-by-one mask. Advantages that belong to another row's actions are never spread quietly."""
    with pytest.raises(ValueError, match=f"the mask has {runs} actions, found {len(advantages)} advantages"):
        spread_over_tokens(mask, np.array(advantages), 5)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=8), st.integers(0, 3))
def test_spreading_follows_the_runs_of_the_mask(stretches: list[tuple[bool, int]], padding: int) -> None:
    mask = [int(is_sampled) for is_sampled, length in stretches for _ in range(length)]
    runs = [len(list(part)) for value, part in itertools.groupby(mask) if value == 1]
    advantages = np.arange(1.0, len(runs) + 1)
    found = spread_over_tokens(mask, advantages, len(mask) + padding)
    assert found.shape == (len(mask) + padding,)
    assert found[found != 0].tolist() == [float(k + 1) for k, length in enumerate(runs) for _ in range(length)]
    assert [int(value != 0) for value in found] == mask + [0] * padding


# ---------------------------------------------------------------- from tokens to TRL's loss


def loss_and_gradient(trainer: Any, batch: dict[str, Any]) -> tuple[float, torch.Tensor]:
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = 1
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    return float(loss.detach()), torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


def test_reward_at_the_end_alone_is_the_same_under_either_credit(
    make_config: MakeConfig, make_trainer: MakeTrainer, make_batch: MakeBatch
) -> None:
    """If the last action earns everything, every action's return is the total: one advantage, loss and gradient."""
    found = {}
    for credit in ("trajectory", "step"):
        config = make_config(optim__credit=credit, phases=[{"steps": 1, "variant": "verdict_only"}])
        trainer = make_trainer(config)
        batch = make_batch(trainer, config)
        found[credit] = (trainer, batch, *loss_and_gradient(trainer, batch))
    (trainer, rows, loss, gradient), (_, tokens, other_loss, other_gradient) = found["trajectory"], found["step"]
    assert rows["advantages"].shape == (8,)
    assert tokens["advantages"].shape == tokens["completion_ids"].shape
    assert torch.equal(rows["completion_ids"], tokens["completion_ids"]), "the test needs the same episodes"
    assert rows["advantages"].any(), "the test needs a group whose rewards differ"
    trained = tokens["completion_mask"] * tokens["tool_mask"]
    torch.testing.assert_close(tokens["advantages"], rows["advantages"][:, None] * trained, rtol=1e-5, atol=1e-6)
    assert other_loss == pytest.approx(loss, rel=1e-5, abs=1e-7)
    torch.testing.assert_close(other_gradient, gradient, rtol=1e-4, atol=1e-7)
    assert float(gradient.norm()) > 1e-4
    assert not trainer.last_step.records[0].step_rewards, "and only step credit sends its split between processes"


def test_reward_on_the_way_tells_actions_apart(
    make_config: MakeConfig, make_trainer: MakeTrainer, make_batch: MakeBatch
) -> None:
    """Coverage alone: the first action has the trajectory's advantage, and what came after the last source has less."""
    weights = {**dict.fromkeys(PAPT_WEIGHTS, 0.0), "coverage": 1.0}
    config = make_config(optim__credit="step", phases=[{"steps": 1, "weights": weights}])
    trainer = make_trainer(config)
    batch = make_batch(trainer, config)
    totals = group_advantages(trainer.last_step.totals, 4, epsilon=1e-4).values
    told_apart = 0
    for number, episode in enumerate(trainer.last_step.episodes):
        assert episode.tokens is not None
        mask = episode.tokens.mask
        own = batch["advantages"][number, : len(mask)].tolist()
        pairs = itertools.groupby(zip(mask, own, strict=True), key=lambda pair: pair[0])
        actions = [[a for _, a in part] for value, part in pairs if value == 1]
        assert all(len(set(action)) == 1 for action in actions), "one advantage an action"
        assert actions[0][0] == pytest.approx(totals[number], abs=1e-6)
        told_apart += len({action[0] for action in actions}) > 1
        if totals[number - number % 4 : number - number % 4 + 4].any():
            news = [i for i, step in enumerate(episode.trace) if step["kind"] == "new"]
            after = actions[news[-1] + 1 :] if news else []
            assert all(action[0] <= 1e-9 for action in after), "nothing came of it any more"
    assert told_apart
    loss, gradient = loss_and_gradient(trainer, batch)
    assert math.isfinite(loss)
    assert float(gradient.norm()) > 1e-4


def test_micro_batches_carry_the_tokens_advantages(
    make_config: MakeConfig, make_trainer: MakeTrainer, make_batch: MakeBatch
) -> None:
    """Rows are ordered by length and cut to their widths; each row's advantages stay on its own tokens."""
    config = make_config(optim__credit="step", optim__micro_batch=2)
    trainer = make_trainer(config)
    batch = make_batch(trainer, config)
    whole = {
        tuple(ids[mask.bool()].tolist()): advantages[mask.bool()].tolist()
        for ids, mask, advantages in zip(
            batch["completion_ids"], batch["completion_mask"], batch["advantages"], strict=True
        )
    }
    rows = 0
    for part in trainer._micro_batches:
        assert part["advantages"].shape == part["completion_ids"].shape
        for ids, mask, advantages in zip(
            part["completion_ids"], part["completion_mask"], part["advantages"], strict=True
        ):
            assert advantages[mask.bool()].tolist() in [
                found for key, found in whole.items() if key == tuple(ids[mask.bool()].tolist())
            ]
            rows += 1
    assert rows == 8


def test_group_step_with_weight_zero_is_trajectory_credit(
    make_config: MakeConfig, make_trainer: MakeTrainer, make_batch: MakeBatch
) -> None:
    """The same episodes, and on every trained token the same advantage: the step part alone is what is added."""
    found = {}
    for credit, weight in (("trajectory", 1.0), ("group_step", 0.0), ("group_step", 1.0)):
        config = make_config(optim__credit=credit)
        config = config.model_copy(update={"optim": config.optim.model_copy(update={"step_weight": weight})})
        trainer = make_trainer(config)
        found[credit, weight] = trainer, make_batch(trainer, config)
    plain, without, with_part = (batch for _, batch in found.values())
    assert torch.equal(plain["completion_ids"], with_part["completion_ids"]), "the test needs the same episodes"
    trained = without["completion_mask"] * without["tool_mask"]
    torch.testing.assert_close(without["advantages"], plain["advantages"][:, None] * trained, rtol=1e-6, atol=0)
    assert not torch.equal(with_part["advantages"], without["advantages"])
    trainer = found["group_step", 1.0][0]
    share = step_figures(trainer.last_step)["rollout/step_partner_share"]
    walks = [episode_states(episode) for episode in trainer.last_step.episodes]
    groups = [[state for walk in walks[i : i + 4] for state in walk] for i in (0, 4)]
    assert share == sum(group.count(s) > 1 for group in groups for s in group) / sum(map(len, groups))
    assert 8 / sum(map(len, walks)) <= share <= 1, "all start at one state"
    assert "rollout/step_partner_share" not in step_figures(found["trajectory", 1.0][0].last_step)
    assert not found["trajectory", 1.0][0].last_step.records[0].states, "and only group_step sends states around"


def test_first_actions_count_twice_under_group_step(
    make_config: MakeConfig, make_trainer: MakeTrainer, make_batch: MakeBatch
) -> None:
    """At the start all members are partners, and the return-to-go is the total: both parts are the same number."""
    config = make_config(optim__credit="group_step", optim__groups_per_step=4, optim__micro_batch=16)
    trainer = make_trainer(config)
    batch = make_batch(trainer, config)
    totals = group_advantages(trainer.last_step.totals, 4, epsilon=1e-4).values
    assert totals.any()
    assert batch["advantages"][:, 0].numpy() == pytest.approx(2 * totals, abs=1e-5)
