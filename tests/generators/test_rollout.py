"""Playing episodes with an engine: token in, token out; four endings; nothing that a model writes can crash it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provgym.generators.engine import Sampled, Sampling
from provgym.generators.episode import Episode, EpisodeTask
from provgym.generators.hf_engine import HFEngine
from provgym.generators.rollout import LanguageModelPolicy
from provgym.generators.tiny import TinyDialogue, build_model, build_tokenizer
from provgym.rewards.outcome import Ending

END = 10**6
OPENING, WORLD, CLOSED = 1, 2, 3


class FakeDialogue:
    """Ids are character codes; world text is a single id, so that it can be told apart."""

    end_ids = frozenset([END])
    max_action_tokens = 40

    def opening(self, lines: Sequence[str], instructions: str) -> list[int]:
        return [OPENING]

    def reply(self, lines: Sequence[str], *, ended: bool) -> list[int]:
        return [WORLD] if ended else [CLOSED, WORLD]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids if i != END)

    def unknown_in(self, lines: Sequence[str]) -> int:
        return len(lines)


class FakeEngine:
    """Writes given texts; records what it was fed."""

    def __init__(self, actions: Callable[[int, int], str | None], max_rows: int = 4, max_length: int = 10_000) -> None:
        self.actions, self.max_rows, self.max_length = actions, max_rows, max_length
        self.fed: dict[int, list[int]] = {}
        self.seeds: dict[int, int] = {}
        self.turn: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        self.most_live = 0

    def open_row(self, row: int, seed: int, sampling: Sampling) -> None:
        assert row not in self.seeds
        self.seeds[row], self.turn[row], self.fed[row] = seed, 0, []
        self.most_live = max(self.most_live, len(self.seeds))

    def close_row(self, row: int) -> None:
        del self.seeds[row]

    def submit(self, row: int, ids: Sequence[int], max_new_tokens: int, end_ids: frozenset[int]) -> None:
        assert row not in self.waiting
        self.fed[row] += ids
        self.waiting[row] = max_new_tokens

    def poll(self) -> list[Sampled]:
        done = []
        for row, limit in list(self.waiting.items())[::-1]:
            del self.waiting[row]
            text = self.actions(self.seeds[row], self.turn[row])
            self.turn[row] += 1
            if text is None:
                done.append(Sampled(row, (), (), False, "server fell over"))
                continue
            ids = ([ord(c) for c in text] + [END])[:limit]
            self.fed[row] += ids
            done.append(Sampled(row, tuple(ids), tuple(-0.5 for _ in ids), ids[-1] == END))
        return done


def play(
    tasks: Sequence[EpisodeTask], actions: Callable[[int, int], str | None], **kwargs: Any
) -> tuple[list[Episode], FakeEngine]:
    engine = FakeEngine(actions, **kwargs)
    episodes = LanguageModelPolicy("fake", engine, FakeDialogue(), Sampling(0.0)).play(tasks)
    assert not engine.seeds
    return episodes, engine


def segments(episode: Episode) -> list[tuple[int, int]]:
    assert episode.tokens is not None
    return list(zip(episode.tokens.completion_ids, episode.tokens.mask, strict=True))


def test_rows_hold_the_very_ids_that_were_sampled(build_tasks: Any) -> None:
    """Fault kinds: re-tokenized turns, off-by-one mask. World ids have mask 0, end tokens 1."""
    texts = ["walk n1", "walk n0", "stop +1 -0 SUPPORT 0.9"]
    (episode,), engine = play(build_tasks(conditions=[0]), lambda seed, turn: texts[turn])
    expected: list[tuple[int, int]] = []
    for turn, text in enumerate(texts):
        expected += [(WORLD, 0)] if turn else []
        expected += [(ord(c), 1) for c in text] + [(END, 1)]
    assert segments(episode) == expected
    assert episode.tokens is not None
    assert episode.tokens.prompt_ids == (OPENING,)
    assert episode.tokens.logprobs == tuple(-0.5 * mask for _, mask in expected)
    assert engine.fed[0] == [OPENING, *episode.tokens.completion_ids]
    assert [turn.action for turn in episode.turns] == texts
    assert episode.outcome.ending is Ending.ANSWERED


def test_a_cut_action_is_closed_and_costs_a_walk(build_tasks: Any) -> None:
    (episode,), _ = play(
        build_tasks(conditions=[0], budget=2),
        lambda seed, turn: "x" * 99 if turn == 0 else "stop +0 -0 MIXED 0.5",
    )
    ids = segments(episode)
    assert ids[:42] == [(ord("x"), 1)] * 40 + [(CLOSED, 0), (WORLD, 0)]
    assert episode.outcome.invalid_actions == 1
    assert episode.outcome.ending is Ending.ANSWERED


def test_the_four_endings_are_kept_apart(build_tasks: Any) -> None:
    """Fault kind: terminated or truncated; an error is never a wrong answer."""
    by_seed: dict[int, Callable[[int], str | None]] = {
        0: lambda turn: "stop +1 -1 MIXED 0.9",
        1_000: lambda turn: "stop please",
        2_000: lambda turn: "walk n1" if turn % 2 == 0 else "walk n0",
        3_000: lambda turn: "walk n1" if turn == 0 else None,
    }
    episodes, _ = play(build_tasks(conditions=range(4)), lambda seed, turn: by_seed[seed](turn))
    assert [e.outcome.ending for e in episodes] == [
        Ending.ANSWERED,
        Ending.INVALID,
        Ending.TRUNCATED,
        Ending.ERROR,
    ]
    assert [e.error for e in episodes] == [None, None, None, "server fell over"]
    assert episodes[3].tokens is not None
    assert episodes[3].tokens.sampled == len("walk n1") + 1


@pytest.mark.parametrize("budget", [1, 3, 5])
def test_the_budget_counts_walks_and_one_more_action(build_tasks: Any, budget: int) -> None:
    tasks = build_tasks(conditions=[1], budget=budget)

    def walks(turn: int) -> str:
        return "walk n1" if turn % 2 == 0 else "walk n0"

    (late,), _ = play(tasks, lambda seed, turn: walks(turn))
    assert (late.outcome.ending, len(late.turns)) == (Ending.TRUNCATED, budget + 1)
    (in_time,), _ = play(tasks, lambda seed, turn: walks(turn) if turn < budget else "stop +1 -1 MIXED 0.9")
    assert (in_time.outcome.ending, len(in_time.turns)) == (Ending.ANSWERED, budget + 1)
    (junk,), _ = play(tasks, lambda seed, turn: "???")
    assert (junk.outcome.ending, len(junk.turns)) == (Ending.TRUNCATED, budget + 1)


@pytest.mark.parametrize("max_length", [20, 41, 60, 100])
def test_what_can_outgrow_the_engine_is_truncated_before_it_does(build_tasks: Any, max_length: int) -> None:
    """Fault kind: truncation eats the question; nothing is cut away, the episode ends."""
    (episode,), engine = play(
        build_tasks(conditions=[0], budget=5), lambda seed, turn: "walk n1", max_length=max_length
    )
    assert episode.outcome.ending is Ending.TRUNCATED
    assert episode.tokens is not None
    length = len(episode.tokens.prompt_ids) + len(episode.tokens.completion_ids)
    assert length <= max_length
    assert (len(episode.turns) > 0) == (max_length >= 41)
    assert not segments(episode) or segments(episode)[-1][1] == 1


def test_rows_are_refilled_and_results_keep_their_order(build_tasks: Any) -> None:
    tasks = build_tasks(members=3)
    seen: list[int] = []
    engine = FakeEngine(lambda seed, turn: "walk n1" if turn < seed % 3 else "stop +1 -1 MIXED 0.9", max_rows=4)
    policy = LanguageModelPolicy("fake", engine, FakeDialogue(), Sampling(0.0))
    episodes = policy.play(tasks, lambda index, episode: seen.append(index))
    assert engine.most_live == 4
    assert sorted(seen) == list(range(len(tasks)))
    assert [(e.instance_id, e.member) for e in episodes] == [(t.instance.instance_id, t.member) for t in tasks]
    assert policy.play([]) == []


def test_an_interrupt_closes_the_rows(build_tasks: Any) -> None:
    def interrupted(seed: int, turn: int) -> str:
        raise KeyboardInterrupt

    engine = FakeEngine(interrupted)
    policy = LanguageModelPolicy("fake", engine, FakeDialogue(), Sampling(0.0))
    with pytest.raises(KeyboardInterrupt):
        policy.play(build_tasks())
    assert not engine.seeds


@settings(max_examples=150)
@given(
    texts=st.lists(
        st.one_of(
            st.text(max_size=60),
            st.sampled_from(
                [
                    "",
                    "{" * 40,
                    '{"stop": {"verdict": "SUPPORT"}}',
                    '{"walk": ["n1"]}',
                    '{"walk": "n1"}',
                    "walk n0",
                    "walk n999",
                    "stop",
                    "<|im_end|>",
                    "\x00",
                    "[" * 40,
                    '{"stop": {"support_count": NaN}}',
                ]
            ),
        ),
        min_size=4,
        max_size=4,
    )
)
def test_any_output_is_a_step_or_an_ending_never_an_exception(build_tasks: Any, texts: list[str]) -> None:
    (episode,), _ = play(build_tasks(conditions=[1]), lambda seed, turn: texts[turn])
    assert episode.outcome.ending in (Ending.ANSWERED, Ending.INVALID, Ending.TRUNCATED)
    assert Episode.from_json(json.loads(json.dumps(episode.to_json()))) == episode
    assert episode.tokens is not None
    assert episode.tokens.sampled == sum(min(len(turn.action) + 1, 40) for turn in episode.turns)


def test_a_megabyte_of_braces_is_one_invalid_step(build_tasks: Any) -> None:
    """Fault kind: braces and several objects."""

    class Long(FakeDialogue):
        max_action_tokens = 1_100_000

    engine = FakeEngine(lambda seed, turn: "{" * 1_000_000 if turn == 0 else "stop +1 -1 MIXED 1.0", max_length=10**7)
    policy = LanguageModelPolicy("fake", engine, Long(), Sampling(0.0))
    (episode,) = policy.play(build_tasks(conditions=[0]))
    assert episode.outcome.invalid_actions == 1
    assert episode.outcome.ending is Ending.ANSWERED


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_episodes_do_not_depend_on_the_batch(build_tasks: Any, temperature: float) -> None:
    """Fault kind: padding side, for whole episodes: rows, refills and neighbours change nothing."""
    tokenizer, model = build_tokenizer(), build_model(seed=3, hidden_size=32, num_layers=2).eval()
    tasks = build_tasks(members=2)

    def rollout(some: Sequence[EpisodeTask], max_rows: int) -> list[Episode]:
        engine = HFEngine(model, max_rows=max_rows)
        return LanguageModelPolicy("tiny", engine, TinyDialogue(tokenizer), Sampling(temperature)).play(some)

    alone = [rollout([task], 1)[0] for task in tasks]
    for max_rows in (1, 3, 32):
        for one, other in zip(alone, rollout(tasks, max_rows), strict=True):
            assert one.tokens is not None
            assert other.tokens is not None
            assert one.tokens.completion_ids == other.tokens.completion_ids
            assert one.tokens.logprobs == pytest.approx(other.tokens.logprobs, abs=1e-4)
    assert [e.turns for e in rollout(tasks[::-1], 5)] == [e.turns for e in alone[::-1]]


def test_stored_logprobs_are_those_of_one_forward_pass(build_tasks: Any) -> None:
    """Fault kinds: temperature in the ratio, off-by-one mask. The ratio is 1 on the first step."""
    import torch

    tokenizer, model = build_tokenizer(), build_model(seed=3, hidden_size=32, num_layers=2).eval()
    engine = HFEngine(model, max_rows=4)
    episodes = LanguageModelPolicy("tiny", engine, TinyDialogue(tokenizer), Sampling(0.6)).play(build_tasks())
    for episode in episodes:
        assert episode.tokens is not None
        ids = [*episode.tokens.prompt_ids, *episode.tokens.completion_ids]
        with torch.no_grad():
            table = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0] / 0.6, dim=-1)
        offset = len(episode.tokens.prompt_ids)
        for place, (token, mask, logprob) in enumerate(
            zip(episode.tokens.completion_ids, episode.tokens.mask, episode.tokens.logprobs, strict=True)
        ):
            expected = float(table[offset + place - 1, token]) if mask else 0.0
            assert logprob == pytest.approx(expected, abs=1e-4)


def test_a_group_prefills_its_prompt_once(build_tasks: Any) -> None:
    tokenizer, model = build_tokenizer(), build_model(hidden_size=32, num_layers=1).eval()
    tasks = build_tasks(conditions=[2], members=4)
    engine = HFEngine(model, max_rows=4)
    episodes = LanguageModelPolicy("tiny", engine, TinyDialogue(tokenizer), Sampling(1.0)).play(tasks)
    tokens = [e.tokens for e in episodes if e.tokens is not None]
    assert len({t.prompt_ids for t in tokens}) == 1
    # Every completion id is fed once, except an action's last one when nothing follows it.
    assert engine.forward_tokens == len(tokens[0].prompt_ids) + sum(len(t.completion_ids) - 1 for t in tokens)
