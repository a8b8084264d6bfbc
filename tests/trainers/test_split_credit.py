"""Split credit: what walks answers for the walk, what states the judgement answers for the judgement, and no more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from provgym.envs.presentation import PresentationConfig
from provgym.generators.baseline_walkers import random_walker
from provgym.generators.chat_actions import ActionGrammar, rewrite_action
from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL
from provgym.generators.episode import Episode, EpisodeTask, Tokens
from provgym.generators.graphecho import GraphEcho
from provgym.generators.scripted import ScriptedPolicy, naive_walker
from provgym.generators.tiny import END, TinyDialogue, build_tokenizer
from provgym.rewards.advantages import group_advantages
from provgym.rewards.outcome import Ending, Judgement, Verdict, WalkOutcome
from provgym.rewards.rubric import Rubric, papt_rubric
from provgym.trainers.papt_config import OptimConfig
from provgym.trainers.split_credit import (
    JUDGEMENT_TERMS,
    decision_tokens,
    split_advantages,
    split_token_advantages,
)
from provgym.trainers.step_credit import episode_step_rewards
from provgym.trainers.step_record import EpisodeRecord, record_episode

WALK_TERMS = ("coverage", "echo", "cost", "illegal")
STOP = "stop +1 -0 SUPPORT 0.9 S1"
TINY = build_tokenizer()


def record(walk: Sequence[float], judged: float, *, is_scored: bool = True) -> EpisodeRecord:
    """What one episode earned; not scored, it has neither step rewards nor a judgement's reward."""
    if not is_scored:
        return EpisodeRecord("i", math.nan, 0, {}, "time out")
    return EpisodeRecord("i", math.fsum(walk) + judged, 1, {}, None, tuple(walk), (), judged)


def optim(**fields: Any) -> OptimConfig:
    return OptimConfig(credit="split", **{"group_size": 2, "scale_advantages": "none", **fields})


def found_by(records: Sequence[EpisodeRecord], **fields: Any) -> tuple[list[list[float]], list[float]]:
    walking, judging = split_advantages(records, optim(**fields), epsilon=0.0)
    return [own.tolist() for own in walking], judging.tolist()


# ---------------------------------------------------------------- advantages


def test_two_walks_by_hand() -> None:
    """To go .3 -.1 and .2: means .25, and .05 where the one that has ended counts with its last. Judged 1.4 and -1,
    which a group of two makes .71 and -.71."""
    group = [record([0.4, -0.1], 1.4), record([0.2], -1.0)]
    walking, judging = found_by(group)
    assert walking[0] == pytest.approx([0.05, -0.15])
    assert walking[1] == pytest.approx([-0.05])
    assert judging == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])


def test_each_part_is_divided_by_its_own_spread() -> None:
    """The walks' totals .3 and .2 have a deviation of .1/sqrt 2, the judgements of 2.4/sqrt 2: both come to .71."""
    group = [record([0.4, -0.1], 1.4), record([0.2], -1.0)]
    walking, judging = found_by(group, scale_advantages="group")
    half = math.sqrt(0.5)
    assert walking[0] == pytest.approx([half, -3 * half])
    assert walking[1] == pytest.approx([-half])
    assert judging == pytest.approx([half, -half])


def test_three_with_one_that_is_not_scored() -> None:
    """Kind: unscored reward. Baselines are over the two that are: to go 1 1 and .5, judged .5 and -1."""
    group = [record([0.0, 1.0], 0.5), record([], 0.0, is_scored=False), record([0.5], -1.0)]
    walking, judging = found_by(group, group_size=3)
    assert walking == [[0.25, 0.25], [], [-0.25]]
    assert judging == pytest.approx([math.sqrt(0.5), 0.0, -math.sqrt(0.5)])


def test_a_part_without_spread_teaches_nothing_and_the_other_still_does() -> None:
    """Kind: identical rewards, in either part; all equal in both: exactly 0 everywhere."""
    assert found_by([record([0.35], 1.0), record([0.35], 0.0)], scale_advantages="group")[0] == [[0.0], [0.0]]
    assert found_by([record([0.35], 1.0), record([0.35], 0.0)])[1] == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])
    walking, judging = found_by([record([0.1], 0.35), record([0.3], 0.35)], scale_advantages="group")
    assert judging == [0.0, 0.0]
    assert walking[0] == pytest.approx([-math.sqrt(0.5)])
    assert found_by([record([0.35], 0.35)] * 2, scale_advantages="group") == ([[0.0], [0.0]], [0.0, 0.0])


def test_judgements_keep_to_their_group_s_spread_whatever_walking_is_divided_by() -> None:
    rows = [record([1.0], 1.0), record([0.0], -1.0), record([0.0], 0.1), record([3.0], 0.0)]
    group, batch = found_by(rows, scale_advantages="group"), found_by(rows, scale_advantages="batch")
    assert batch[1] == group[1] == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)] * 2)
    assert batch[0][0][0] / batch[0][3][0] == pytest.approx(0.5 / 1.5)  # walking keeps its proportions


def test_groups_are_apart() -> None:
    one, two = [record([1.0], 1.0), record([0.0], 0.0)], [record([0.0, 9.0], 5.0), record([3.0], 7.0)]
    both = found_by([*one, *two], scale_advantages="group")
    first, second = found_by(one, scale_advantages="group"), found_by(two, scale_advantages="group")
    assert both == (first[0] + second[0], first[1] + second[1])


# ---------------------------------------------------------------- over tokens


def outcome_of(*, budget: int = 6, **fields: Any) -> WalkOutcome:
    plain: dict[str, Any] = {
        "gold": Verdict.SUPPORT,
        "judgement": Judgement(Verdict.SUPPORT, 1, 0),
        "ending": Ending.ANSWERED,
        "walks": 1,
        "invalid_actions": 0,
        "echoes": 0,
        "connector_moves": 0,
        "available_support": 2,
        "available_refute": 1,
        "acquired_support": 1,
        "acquired_refute": 0,
    }
    return WalkOutcome(budget=budget, **{**plain, **fields})


def with_mask(mask: Sequence[int], ids: Sequence[int] | None = None, **fields: Any) -> Episode:
    """An episode whose tokens are sampled where the mask says so."""
    own = tuple(range(len(mask))) if ids is None else tuple(ids)
    tokens = Tokens((), own, tuple(mask), (0.0,) * len(mask))
    return Episode("i", "c", "C", "train", "M1", 0, outcome_of(**fields), (), (), tokens=tokens)


MASK = [1, 1, 0, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("decided", "expected"),
    [
        (1, [0.5, 0.5, 0.0, -1.0, 2.0, 2.0, 0.0, 0.0]),
        (2, [0.5, 0.5, 0.0, -1.0, -1.0, 2.0, 0.0, 0.0]),
        (3, [0.5, 0.5, 0.0, -1.0, -1.0, -1.0, 0.0, 0.0]),
        (0, [0.5, 0.5, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0]),  # nothing states a judgement: both, -1 + 2
    ],
)
def test_the_last_action_is_parted_where_it_decides_to_stop(decided: int, expected: list[float]) -> None:
    """Kind: off-by-one mask. World tokens and padding get 0, the action before the last is the walk's alone."""
    found = split_token_advantages([with_mask(MASK)], [np.array([0.5, -1.0])], np.array([2.0]), [decided], 8)
    assert found.tolist() == [expected]


def test_a_stop_as_the_only_action_and_episodes_without_advantages() -> None:
    """Kind: unscored reward (no advantage), and an episode that was cut before its first token."""
    episodes = [with_mask([1, 1, 1]), with_mask(MASK), replace(with_mask([]), tokens=None), with_mask([0, 0])]
    walking: list[NDArray[np.float64]] = [np.array([0.5]), np.zeros(0), np.array([1.0]), np.zeros(0)]
    found = split_token_advantages(episodes, walking, np.array([2.0, 3.0, 3.0, 3.0]), [1, 1, 1, 0], 7)
    assert found[0].tolist() == [0.5, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0]
    assert not found[1:].any()


# ---------------------------------------------------------------- which tokens decide


def chat_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer; the more entries, the more of an action is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([rewrite_action(STOP, g) for g in ("json", "tool_call")] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def ending_with(ids: Sequence[int], **fields: Any) -> Episode:
    """A walk of two tokens, a world token, and then these."""
    return with_mask([1, 1, 0, *[1] * len(ids)], [7, 7, 7, *ids], **fields)


def test_the_tiny_policy_decides_with_its_first_word() -> None:
    """`stop` is one token; counts, verdict and confidence follow, and the end mark is the judgement's too."""
    ids = TinyDialogue(TINY).encode_action(STOP)
    assert TINY.convert_ids_to_tokens(ids)[0] == "stop"
    assert TINY.convert_ids_to_tokens(ids)[-1] in (END, "S1")
    assert decision_tokens(ending_with(ids), TINY) == 1


@pytest.mark.parametrize("grammar", ["json", "tool_call"])
@pytest.mark.parametrize("vocab_size", [256, 262, 275, 400])
def test_a_chat_model_decides_once_its_text_says_so(grammar: ActionGrammar, vocab_size: int) -> None:
    """Character by character, in pieces, or as one token: the first tokens whose text holds the word, and no more."""
    tokenizer = chat_tokenizer(vocab_size)
    text = rewrite_action(STOP, grammar)
    ids = tokenizer.encode(text, add_special_tokens=False)
    decided = decision_tokens(ending_with(ids), tokenizer)
    assert "stop" in tokenizer.decode(ids[:decided])
    assert decided == 1 or "stop" not in tokenizer.decode(ids[: decided - 1])
    stated = tokenizer.decode(ids[decided:])
    if len(ids) > 1:
        assert "verdict" in stated
        assert "SUPPORT" in stated
    if vocab_size == 256:
        assert decided == text.index("stop") + len("stop")


@pytest.mark.parametrize("grammar", ["json", "tool_call"])
@pytest.mark.parametrize("vocab_size", [256, 262, 275])
@pytest.mark.parametrize("prose", ["I could stop {now}. ", "stop and think: ", "stop\u00e9\U0001f600 stop "])
def test_prose_that_speaks_of_stopping_belongs_to_the_decision(
    prose: str, vocab_size: int, grammar: ActionGrammar
) -> None:
    """Only the action's own word ends the decision, so that no prose is credited as a judgement."""
    tokenizer = chat_tokenizer(vocab_size)
    text = prose + rewrite_action(STOP, grammar)
    ids = tokenizer.encode(text, add_special_tokens=False)
    decided = decision_tokens(ending_with(ids), tokenizer)
    whole = text[: text.rindex("stop") + len("stop")]
    assert str(tokenizer.decode(ids[:decided])).startswith(whole)
    assert not str(tokenizer.decode(ids[: decided - 1])).startswith(whole)
    assert "verdict" in tokenizer.decode(ids[decided:])


@pytest.mark.parametrize("ending", [Ending.INVALID, Ending.TRUNCATED])
def test_an_ending_without_a_judgement_has_no_part_that_states_one(ending: Ending) -> None:
    """Its last action gets both advantages, whatever words stand in it."""
    ids = TinyDialogue(TINY).encode_action(STOP)
    episode = ending_with(ids, ending=ending, judgement=None)
    assert decision_tokens(episode, TINY) == 0
    found = split_token_advantages([episode], [np.array([0.5, -1.0])], np.array([-2.0]), [0], len(ids) + 3)
    assert found[0].tolist() == [0.5, 0.5, 0.0, *[-3.0] * len(ids)]


def test_an_episode_without_tokens_decides_nothing() -> None:
    assert decision_tokens(replace(ending_with([1]), tokens=None), TINY) == 0


# ---------------------------------------------------------------- neither sees the other's terms


def played(seed: int) -> list[Episode]:
    """Two groups of three real walks, right and wrong, with tokens: three for an action, two for the world's reply."""

    def erring(env: Any, rng: np.random.Generator) -> str:
        return "walk n99" if rng.random() < 0.3 else random_walker(env, rng)

    instances = GraphEcho.generate(3, {"train": 2}).instances("train", [*CONFLICT_CONDITIONS, GENERAL])
    found = []
    for group, walkers in enumerate(((naive_walker(0.2, 0.5), erring, random_walker),) * 2):
        for member, walker in enumerate(walkers):
            sampling = 100 * seed + 10 * group + member
            task = EpisodeTask(instances[(seed + group) % len(instances)], 4, PresentationConfig(), seed, sampling)
            (episode,) = ScriptedPolicy("scripted", walker).play([task])
            mask = ([1, 1, 1, 0, 0] * len(episode.trace))[:-2]
            tokens = Tokens((), tuple(range(len(mask))), tuple(mask), (0.0,) * len(mask))
            found.append(replace(episode, tokens=tokens))
    return found


def token_rows(episodes: Sequence[Episode], rubric: Rubric) -> NDArray[np.float64]:
    """Return (B, T) advantages as training computes them, the first token of a stop deciding."""
    walked = rubric.without(JUDGEMENT_TERMS)
    records = [
        record_episode(
            episode,
            rubric.score(episode.outcome),
            episode_step_rewards(episode, walked).tolist(),
            judgement_reward=rubric.score(episode.outcome).total - walked.score(episode.outcome).total,
        )
        for episode in episodes
    ]
    for found in records:
        assert math.fsum((*found.step_rewards, found.judgement_reward)) == pytest.approx(found.total)
    walking, judging = split_advantages(records, optim(group_size=3, scale_advantages="group"), epsilon=1e-4)
    decided = [int(episode.outcome.judgement is not None) for episode in episodes]
    width = max(len(episode.tokens.mask) for episode in episodes if episode.tokens is not None)
    return split_token_advantages(episodes, walking, judging, decided, width)


def parts(episodes: Sequence[Episode], rows: NDArray[np.float64]) -> tuple[list[list[float]], list[list[float]]]:
    """Return each row's values where the walk alone answers, and where the judgement alone does."""
    walk, judgement = [], []
    for episode, row in zip(episodes, rows, strict=True):
        assert episode.tokens is not None
        length = len(episode.tokens.mask)
        states_one = episode.outcome.judgement is not None
        walk.append(row[: length - 2 if states_one else length - 3].tolist())
        judgement.append(row[length - 2 : length].tolist() if states_one else [])
    return walk, judgement


Weights = st.fixed_dictionaries({name: st.floats(-2.0, 2.0) for name in (*JUDGEMENT_TERMS, *WALK_TERMS)})


@settings(max_examples=25)
@given(seed=st.integers(0, 11), one=Weights, other=Weights)
def test_neither_part_sees_the_other_s_terms(seed: int, one: dict[str, float], other: dict[str, float]) -> None:
    """Change what the judgement's terms weigh: no walk's token changes. Change the walk's: no judgement's does."""
    episodes = played(seed)
    before = token_rows(episodes, papt_rubric(weights=one))
    judged_otherwise = token_rows(episodes, papt_rubric(weights={**one, **{n: other[n] for n in JUDGEMENT_TERMS}}))
    walked_otherwise = token_rows(episodes, papt_rubric(weights={**one, **{n: other[n] for n in WALK_TERMS}}))
    assert parts(episodes, judged_otherwise)[0] == parts(episodes, before)[0]
    expected = [value for row in parts(episodes, before)[1] for value in row]
    found = [value for row in parts(episodes, walked_otherwise)[1] for value in row]
    assert found == pytest.approx(expected, abs=1e-9)  # the judgement's reward is what the walk's leaves of the total


@settings(max_examples=10)
@given(seed=st.integers(0, 11), verdict=st.sampled_from(Verdict), support=st.integers(0, 5))
def test_another_answer_leaves_the_walk_s_advantages_alone(seed: int, verdict: Verdict, support: int) -> None:
    """The known way out, stopping early because little is easier to judge, pays nothing here."""
    episodes = played(seed)
    answered = [
        replace(e, outcome=replace(e.outcome, judgement=Judgement(verdict, support, 1)))
        if number == 0 and e.outcome.judgement is not None
        else e
        for number, e in enumerate(episodes)
    ]
    before, after = (token_rows(chosen, papt_rubric()) for chosen in (episodes, answered))
    assert parts(episodes, after)[0] == parts(episodes, before)[0]


# ---------------------------------------------------------------- in the trainer


def test_training_gives_each_token_its_own_part(
    make_config: Callable[..., Any], make_trainer: Callable[..., Any], make_batch: Callable[..., dict[str, Any]]
) -> None:
    """Sampled episodes: tokens behind a decision carry the judgement's advantage; both parts sum to the total."""
    config = make_config(optim__credit="split")
    trainer = make_trainer(config)
    batch = make_batch(trainer, config)
    records = trainer.last_step.records
    judged = group_advantages(np.array([r.judgement_reward for r in records]), 4, epsilon=1e-4).values
    stated = 0
    for number, (found, episode) in enumerate(zip(records, trainer.last_step.episodes, strict=True)):
        assert math.fsum((*found.step_rewards, found.judgement_reward)) == pytest.approx(found.total)
        if episode.outcome.judgement is None:
            continue
        last = [place for place, sampled in enumerate(episode.tokens.mask) if sampled][-1]
        assert float(batch["advantages"][number, last]) == pytest.approx(judged[number], abs=1e-6)
        stated += 1
    assert stated, "the test needs an episode that is answered"
