"""Grammar-constrained actions: everything sampled is legal, everything legal can be sampled, and it can be replayed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedModel

from provgym.envs.actions import Stop, WalkTo, parse_action
from provgym.envs.presentation import MITIGATIONS, Mitigation, MovesStyle, PresentationConfig
from provgym.envs.walk_names import SourceLabels
from provgym.envs.walk_text import GraphWalkTextEnv
from provgym.generators.action_grammar import (
    ChatJSONConstraint,
    TinyConstraint,
    legal_moves,
    replay_legal_tokens,
)
from provgym.generators.chat import ChatDialogue
from provgym.generators.engine import ActionConstraint, Sampling
from provgym.generators.episode import Episode, EpisodeTask
from provgym.generators.graphecho import GraphEcho
from provgym.generators.hf_engine import HFEngine
from provgym.generators.rollout import LanguageModelPolicy
from provgym.generators.scripted import ScriptedPolicy, naive_path_counter
from provgym.generators.tiny import TinyDialogue, build_model, build_tokenizer
from provgym.rewards.outcome import Ending

LABELS: tuple[SourceLabels, ...] = ("short", "shuffled", "real")
PREVIEWS: tuple[Literal["shown", "visited"], ...] = ("shown", "visited")
OPEN, SPENT = ["x", "Left 6. Moves n0-n2 n5."], ["Left 0. Stop now."]
TINY = build_tokenizer()


def random_action(constraint: ActionConstraint, lines: list[str], end: int, seed: int, limit: int) -> list[int]:
    rng = np.random.default_rng(seed)
    legal = constraint.legal_tokens(lines)
    ids: list[int] = []
    while not ids or ids[-1] != end:
        allowed = legal(tuple(ids))
        assert len(allowed) > 0
        ids.append(int(rng.choice(np.asarray(allowed))))
        assert len(ids) <= limit
    return ids


def test_moves_are_read_off_the_last_line() -> None:
    assert legal_moves(OPEN) == ("n0", "n1", "n2", "n5")
    assert legal_moves(SPENT) == legal_moves(["Left 2. Moves none."]) == ()
    for lines in ([], ["Claim: Left 2. Moves n1.", "x"]):
        with pytest.raises(ValueError, match="expected the moves in the observation's last line"):
            legal_moves(lines)


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ("S1 n1 S2 n2 S3 n7 [n0]", "n0 n1 n2 n7"),
        ("S1 n12 n13-n16 n18 [n0-n2 n9]", "n0 n1 n2 n9 n12 n13 n14 n15 n16 n18"),
        ("S1 x2: n1 n4; source S2: n7 [n0]", "n0 n1 n4 n7"),
        ("claim: n3; S1: n5 [n4]", "n3 n4 n5"),
        ("n1-n2 n4 [n0]", "n0 n1 n2 n4"),
        ("[n3 n5]", "n3 n5"),
        ("Okada 2011 n1 City report A n2 [n0]", "n0 n1 n2"),
        ("n-type-n3x n1 an2 n2", "n1 n2"),
        ("lab n1-n999999999 n2", "n2"),  # a source's id, not a billion moves
    ],
)
def test_moves_are_found_among_labels_groups_and_brackets(moves: str, expected: str) -> None:
    assert legal_moves([f"Left 4. Moves {moves}."]) == tuple(expected.split())


@pytest.mark.parametrize("moves", ["labelled", "aliases"])
@pytest.mark.parametrize("mitigation", MITIGATIONS)
def test_moves_read_off_are_the_neighbours(mitigation: Mitigation, moves: MovesStyle) -> None:
    """Whatever the footer looks like, the constraint allows every walk that the environment does, and no other."""
    rng = np.random.default_rng(3)
    presentations = [
        PresentationConfig(mitigation, labels, ids, moves) for labels, ids in itertools.product(LABELS, PREVIEWS)
    ]
    for instance in GraphEcho.generate(4, {"train": 3}).instances("train", ["C2", "5S5P", "general"]):
        for presentation in presentations:
            env = GraphWalkTextEnv([instance], budget=8, presentation=presentation)
            env.reset(seed=int(rng.integers(1_000)))
            for _ in range(8):
                assert env.walk is not None
                assert env.presentation is not None
                around = {env.presentation.alias_of(int(node)) for node in env.walk.neighbours()}
                found = legal_moves(env.observation_lines)
                assert set(found) == around
                env.step(f"walk {found[rng.integers(len(found))]}" if rng.random() < 0.9 else "walk n99")
            assert legal_moves(env.observation_lines) == ()


@given(seed=st.integers(0, 2**32 - 1), spent=st.booleans())
def test_tiny_actions_parse_and_fit(seed: int, spent: bool) -> None:
    dialogue = TinyDialogue(TINY)
    (end,) = dialogue.end_ids
    constraint = TinyConstraint(TINY)
    ids = random_action(constraint, SPENT if spent else OPEN, end, seed, dialogue.max_action_tokens)
    action = parse_action(dialogue.decode(ids[:-1]))
    if isinstance(action, WalkTo):
        assert not spent
        assert action.node in ("n0", "n1", "n2", "n5")
    else:
        assert isinstance(action, Stop)
        assert action.judgement is not None


@pytest.fixture(scope="module")
def chat(build_bpe: Any) -> tuple[ChatDialogue, ChatJSONConstraint, Any]:
    tokenizer = build_bpe()
    dialogue = ChatDialogue(tokenizer)
    return dialogue, ChatJSONConstraint(tokenizer, dialogue), tokenizer


@given(seed=st.integers(0, 2**32 - 1), spent=st.booleans())
def test_chat_actions_parse_in_any_split_into_tokens(
    chat: tuple[ChatDialogue, ChatJSONConstraint, Any], seed: int, spent: bool
) -> None:
    dialogue, constraint, _ = chat
    ids = random_action(constraint, SPENT if spent else OPEN, dialogue.turn_end, seed, 1_000)
    action = parse_action(dialogue.decode(ids[:-1]))
    if isinstance(action, WalkTo):
        assert not spent
        assert action.node in ("n0", "n1", "n2", "n5")
    else:
        assert isinstance(action, Stop)
        assert action.judgement is not None


@pytest.mark.parametrize(
    "text",
    [
        "walk n5",
        "stop +0 -0 MIXED 0.5",
        "stop +10 -9 REFUTE 1.0 S1 S22 S3",
        '{"stop": {"support_count": 99, "refute_count": 10, "verdict": "SUPPORT", "confidence": 1, '
        '"cited_sources": ["study-S1", "PMC:12/3"]}}',
    ],
)
def test_ordinary_actions_are_legal(chat: tuple[ChatDialogue, ChatJSONConstraint, Any], text: str) -> None:
    dialogue, constraint, _ = chat
    legal = constraint.legal_tokens(OPEN)
    ids = dialogue.encode_action(text)
    for place, token in enumerate(ids):
        assert token in legal(tuple(ids[:place]))


@pytest.mark.parametrize("text", ["walk n4", "walk n50", "stop +100 -0 MIXED 0.5", "stop +1 -0 MIXED 0.512"])
def test_illegal_actions_are_not(chat: tuple[ChatDialogue, ChatJSONConstraint, Any], text: str) -> None:
    dialogue, constraint, _ = chat
    legal = constraint.legal_tokens(OPEN)
    ids = dialogue.encode_action(text)
    assert not all(token in legal(tuple(ids[:place])) for place, token in enumerate(ids))


def test_scripted_actions_are_legal_for_the_tiny_policy(build_tasks: Any) -> None:
    dialogue, constraint = TinyDialogue(TINY), TinyConstraint(TINY)
    for episode in ScriptedPolicy("naive", naive_path_counter).play(build_tasks()):
        for turn in episode.turns:
            legal = constraint.legal_tokens(turn.observation.splitlines())
            ids = dialogue.encode_action(turn.action)
            assert all(token in legal(tuple(ids[:place])) for place, token in enumerate(ids))


def play_tiny(tasks: list[EpisodeTask], *, constrained: bool, model: PreTrainedModel) -> list[Episode]:
    constraint = TinyConstraint(TINY) if constrained else None
    engine = HFEngine(model, max_rows=5)
    return LanguageModelPolicy("t", engine, TinyDialogue(TINY), Sampling(1.0), constraint=constraint).play(tasks)


def test_an_untrained_policy_plays_legally_under_the_constraint(build_tasks: Any) -> None:
    model = build_model(seed=1, hidden_size=32, num_layers=1).eval()
    free = play_tiny(build_tasks(), constrained=False, model=model)
    held = play_tiny(build_tasks(), constrained=True, model=model)
    assert sum(e.outcome.invalid_actions for e in free) > 0
    assert sum(e.outcome.invalid_actions for e in held) == 0
    assert {e.outcome.ending for e in held} == {Ending.ANSWERED}


def test_replayed_sets_make_the_trainer_s_logprobs_the_sampler_s(build_tasks: Any) -> None:
    """Fault kind: temperature in the ratio, for masks: sampling and training under the same mask gives ratio 1."""
    model = build_model(seed=1, hidden_size=32, num_layers=1).eval()
    constraint = TinyConstraint(TINY)
    for episode in play_tiny(build_tasks(members=2), constrained=True, model=model):
        tokens = episode.tokens
        assert tokens is not None
        sets = replay_legal_tokens(constraint, episode)
        assert [s is not None for s in sets] == [bool(m) for m in tokens.mask]
        ids = [*tokens.prompt_ids, *tokens.completion_ids]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, len(tokens.prompt_ids) - 1 : -1]
        for place, allowed in enumerate(sets):
            if allowed is None:
                continue
            table = torch.log_softmax(logits[place, list(allowed)], dim=-1)
            expected = float(table[list(allowed).index(tokens.completion_ids[place])])
            assert tokens.logprobs[place] == pytest.approx(expected, abs=1e-4)


def test_replay_refuses_what_was_not_sampled_under_the_constraint(build_tasks: Any) -> None:
    model = build_model(seed=1, hidden_size=32, num_layers=1).eval()
    (episode,) = play_tiny(build_tasks(conditions=[0]), constrained=False, model=model)
    with pytest.raises(ValueError, match="was not sampled under this constraint"):
        replay_legal_tokens(TinyConstraint(TINY), episode)
    with pytest.raises(ValueError, match="holds no tokens"):
        replay_legal_tokens(TinyConstraint(TINY), replace(episode, tokens=None))


def test_chat_policy_plays_legally_under_the_constraint(
    chat: tuple[ChatDialogue, ChatJSONConstraint, Any],
    build_model: Callable[..., PreTrainedModel],
    build_tasks: Any,
) -> None:
    _, constraint, tokenizer = chat
    model = build_model("llama", len(tokenizer), max_length=16_384)
    dialogue = ChatDialogue(tokenizer, max_action_tokens=400)
    policy = LanguageModelPolicy("c", HFEngine(model, max_rows=6), dialogue, Sampling(1.0), constraint=constraint)
    episodes = policy.play(build_tasks(budget=2))
    assert sum(e.outcome.invalid_actions for e in episodes) == 0
    assert all(len(replay_legal_tokens(constraint, e)) for e in episodes)


def test_what_cannot_be_constrained_is_refused(build_bpe: Any, trl_template: Callable[[str], str]) -> None:
    tokenizer = build_bpe(style="qwen")
    tools = ChatDialogue(tokenizer, "tool_call", chat_template=trl_template("qwen2_5"))
    with pytest.raises(ValueError, match="grammar 'tool_call' can't be constrained"):
        ChatJSONConstraint(tokenizer, tools)
    with pytest.raises(ValueError, match="need a byte-level tokenizer"):
        ChatJSONConstraint(TINY, ChatDialogue(tokenizer))
