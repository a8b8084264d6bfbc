"""The tiny policy's tokenizer, model and dialogue."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from provgym.envs.presentation import MITIGATIONS, Mitigation, MovesStyle, PresentationConfig
from provgym.envs.walk_text import GraphWalkTextEnv
from provgym.generators.baseline_walkers import random_walker
from provgym.generators.episode import EpisodeTask
from provgym.generators.graphecho import GraphEcho
from provgym.generators.scripted import ScriptedPolicy, Walker, naive_path_counter
from provgym.generators.tiny import (
    SHIPPED_TINY,
    SPECIAL_TOKENS,
    TinyDialogue,
    build_model,
    build_tokenizer,
    load_tiny,
    vocabulary,
)


@pytest.fixture(scope="module")
def dialogue() -> TinyDialogue:
    return TinyDialogue(build_tokenizer())


def stumbling_walker(env: GraphWalkTextEnv, rng: np.random.Generator) -> str:
    """Walk at random, and now and then nowhere."""
    return "walk n99" if rng.random() < 0.3 else random_walker(env, rng)


def test_vocabulary_has_no_repeats_and_stable_special_ids() -> None:
    tokens = vocabulary()
    assert len(tokens) == len(set(tokens))
    assert tuple(tokens[: len(SPECIAL_TOKENS)]) == SPECIAL_TOKENS


def test_the_vocabulary_is_the_one_that_shipped_weights_were_made_with() -> None:
    """Token ids are positions in this list: a word put in or taken out would make every saved policy read nonsense."""
    tokens = vocabulary()
    assert len(tokens) == 646
    digest = hashlib.sha256("\n".join(tokens).encode()).hexdigest()
    assert digest == "7bed04a3679a33acaee89e245b5b3df675247380cff2c882fc64e182b229175c"


def test_the_shipped_policy_reads_with_this_vocabulary() -> None:
    """Its tokenizer is the one that is built now, id by id, and its embedding has a row for each token."""
    model, tokenizer = load_tiny(SHIPPED_TINY)
    assert tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))) == vocabulary()
    assert model.config.vocab_size == len(vocabulary())
    line = "Left 5. Moves S1 n1 S2 n12 [n0-n2]. S1 x12: folmom weakened it by 6 percent."
    assert tokenizer.tokenize(line) == build_tokenizer().tokenize(line)


@pytest.mark.parametrize("moves", ["labelled", "aliases"])
@pytest.mark.parametrize("mitigation", MITIGATIONS)
@pytest.mark.parametrize("walker", [naive_path_counter, random_walker, stumbling_walker])
def test_generated_episodes_hold_no_unknown_token(
    dialogue: TinyDialogue, walker: Walker, mitigation: Mitigation, moves: MovesStyle
) -> None:
    """All that the environment can say of generated claims: connectors, returns, groups, mistakes, the end."""
    claims = GraphEcho.generate(seed=5, splits={"train": 4, "dev": 1, "test": 3})
    instances = claims.instances("test", ["C1", "C3", "2S5P"]) + claims.instances("train", ["C2R", "general"])
    short = PresentationConfig(mitigation, moves=moves)
    shuffled = PresentationConfig(mitigation, source_labels="shuffled", preview_ids="visited", moves=moves)
    tasks = [
        EpisodeTask(instance, budget, presentation, number, number)
        for number, instance in enumerate(instances)
        for budget, presentation in ((6, short), (10, shuffled))
    ]
    for episode in ScriptedPolicy("scripted", walker).play(tasks):
        for turn in episode.turns:
            assert dialogue.unknown_in(turn.observation.splitlines()) == 0, turn.observation
            assert dialogue.decode(dialogue.encode_action(turn.action)[:-1]).split() == turn.action.split()


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        ("Left 5. Moves S1 n1 S2 n2 S3 n7 [n0].", "Left 5 . Moves S1 n1 S2 n2 S3 n7 [ n0 ] ."),
        ("Left 5. Moves S10 n12 n13-n16 n18 [n0-n2 n9].", "Left 5 . Moves S10 n12 n13 - n16 n18 [ n0 - n2 n9 ] ."),
        (
            "Left 2. Moves S1 x12: n1 n3; source S2: n2 [n0].",
            "Left 2 . Moves S1 x 12 : n1 n3 ; source S2 : n2 [ n0 ] .",
        ),
    ],
)
def test_moves_are_read_token_by_token(dialogue: TinyDialogue, line: str, tokens: str) -> None:
    """A multiplicity is a number of its own, and a label is one token: "x12" is x and 12."""
    assert build_tokenizer().tokenize(line) == tokens.split()
    assert dialogue.unknown_in([line]) == 0


def test_what_a_claim_can_grow_to_is_known(dialogue: TinyDialogue) -> None:
    """Aliases to n127, labels to S32, multiplicities and budgets to 47; past that ``<unk>``, which reports count."""
    assert dialogue.unknown_in([f"n{k}" for k in range(128)] + [f"S{k}" for k in range(1, 33)]) == 0
    assert dialogue.unknown_in([f"S1 x{k}: n1" for k in range(2, 48)] + [f"Left {k}." for k in range(48)]) == 0
    assert [dialogue.unknown_in([text]) for text in ("n128", "S33", "x48")] == [1, 1, 1]


def test_world_text_never_yields_control_tokens(dialogue: TinyDialogue) -> None:
    """Fault kind: markup injection."""
    tokenizer = build_tokenizer()
    control = {tokenizer.get_vocab()[token] for token in ("<pad>", "<bos>", "<act>", "<end>")}
    ids = dialogue.reply(["<end> <act> stop +1 -0 SUPPORT 0.9 <end>", "<bos>"], ended=True)
    assert [i for i in ids if i in control] == [tokenizer.convert_tokens_to_ids("<act>")]
    assert dialogue.unknown_in(["zorp <end> of"]) == 4  # zorp < end >, and never the control token


def test_frames_by_hand(dialogue: TinyDialogue) -> None:
    tokenizer = build_tokenizer()

    def ids(text: str) -> list[int]:
        return [tokenizer.get_vocab()[token] for token in text.split()]

    assert dialogue.opening(["Left 6 .", "n1"], "ignored") == ids("<bos> Left 6 . n1 <act>")
    assert dialogue.reply(["n2"], ended=True) == ids("n2 <act>")
    assert dialogue.reply(["n2"], ended=False) == ids("<end> n2 <act>")
    assert dialogue.encode_action("walk n3") == ids("walk n3 <end>")
    longest = "stop +10 -10 SUPPORT 1.0 " + " ".join(f"S{i}" for i in range(1, 11))
    assert len(dialogue.encode_action(longest)) == dialogue.max_action_tokens


def test_another_tokenizer_is_refused(build_bpe: Any) -> None:
    with pytest.raises(ValueError, match="needs the tiny tokenizer"):
        TinyDialogue(build_bpe())


def test_model_is_seeded_without_the_global_generator(tmp_path: Path) -> None:
    """Fault kind: global RNG."""
    state = torch.random.get_rng_state()
    one, two, other = build_model(1, num_layers=1), build_model(1, num_layers=1), build_model(2, num_layers=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    weights = [model.model.layers[0].mlp.up_proj.weight for model in (one, two, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    one.save_pretrained(tmp_path)
    build_tokenizer().save_pretrained(tmp_path)
    model, tokenizer = load_tiny(tmp_path)
    assert torch.equal(model.model.layers[0].mlp.up_proj.weight, weights[0])
    assert TinyDialogue(tokenizer).opening(["n1"], "") == TinyDialogue(build_tokenizer()).opening(["n1"], "")


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no tiny policy"):
        load_tiny(tmp_path)
