"""The tiny policy's tokenizer, model and dialogue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from provgym.generators.graphecho import GraphEcho
from provgym.generators.scripted import ScriptedPolicy, naive_path_counter
from provgym.generators.tiny import (
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


def test_vocabulary_has_no_repeats_and_stable_special_ids() -> None:
    tokens = vocabulary()
    assert len(tokens) == len(set(tokens))
    assert tuple(tokens[: len(SPECIAL_TOKENS)]) == SPECIAL_TOKENS


def test_generated_episodes_hold_no_unknown_token(dialogue: TinyDialogue) -> None:
    from provgym.envs.presentation import MITIGATIONS, PresentationConfig
    from provgym.generators.episode import EpisodeTask

    claims = GraphEcho.generate(seed=5, splits={"train": 12, "dev": 4, "test": 4})
    instances = claims.instances("test", ["C1", "C3", "2S5P"]) + claims.instances("train", ["C2R"])
    tasks = [
        EpisodeTask(instance, 6, PresentationConfig(mitigation=mitigation), 1, 2)
        for instance in instances
        for mitigation in MITIGATIONS
    ]
    for episode in ScriptedPolicy("naive", naive_path_counter).play(tasks):
        for turn in episode.turns:
            assert dialogue.unknown_in(turn.observation.splitlines()) == 0
            assert dialogue.decode(dialogue.encode_action(turn.action)[:-1]).split() == turn.action.split()


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
