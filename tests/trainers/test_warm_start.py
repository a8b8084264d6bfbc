"""The naive start: what is cloned, what is only read, and that it counts paths."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from provgym.envs.actions import Stop, WalkTo, parse_action
from provgym.generators.graphecho import DOWN, UP, GraphEcho
from provgym.generators.tiny import ACT, PAD, TinyDialogue, build_model, build_tokenizer, load_tiny, vocabulary
from provgym.rewards.outcome import Verdict
from provgym.trainers.warm_start import Readout, cloning_loss, warm_start
from provgym.trainers.warm_start_config import WarmStartConfig
from provgym.trainers.warm_start_rows import WarmStartRow, batches, cloned_episode, drilled_list

RISES = {word for pair in UP for word in pair}
FALLS = {word for pair in DOWN for word in pair}
ACT_ID = vocabulary().index(ACT)


@pytest.fixture(scope="module")
def graphecho() -> GraphEcho:
    """Claims of all splits, so that a test claim used by mistake would be seen."""
    return GraphEcho.generate(42, {"train": 30, "dev": 5, "test": 5})


@pytest.fixture(scope="module")
def dialogue() -> TinyDialogue:
    """The tiny policy's own format."""
    return TinyDialogue(build_tokenizer())


def spans(sequence: WarmStartRow, value: int) -> Iterator[tuple[int, int]]:
    """Yield (first, past the last) of every stretch of the mask with a value."""
    start = 0
    for place in range(1, len(sequence.mask) + 1):
        if place == len(sequence.mask) or sequence.mask[place] != sequence.mask[start]:
            if sequence.mask[start] == value:
                yield start, place
            start = place


def actions(sequence: WarmStartRow, dialogue: TinyDialogue) -> list[str]:
    """Decode what is cloned, by the mask alone."""
    return [dialogue.decode(sequence.ids[a : b - 1]) for a, b in spans(sequence, 1)]


def episodes(graphecho: GraphEcho, dialogue: TinyDialogue, count: int = 30, **settings: float) -> list[WarmStartRow]:
    config = WarmStartConfig.model_validate(settings)
    return [cloned_episode(graphecho, dialogue, config, np.random.default_rng([1, i])) for i in range(count)]


def test_mask_holds_whole_actions(graphecho: GraphEcho, dialogue: TinyDialogue) -> None:
    """Kind: off-by-one mask. What is cloned are actions with their end token, each right after an <act>, no header."""
    kinds = set()
    for sequence in episodes(graphecho, dialogue, stumble_probability=0.0):
        assert len(sequence.ids) == len(sequence.mask)
        for first, past in spans(sequence, 1):
            assert sequence.ids[first - 1] == ACT_ID
            assert sequence.ids[past - 1] in dialogue.end_ids
            kinds.add(type(parse_action(dialogue.decode(sequence.ids[first : past - 1]))))
        assert sequence.mask[0] == 0
        assert sequence.mask[-1] == 1
        assert sequence.ids.count(ACT_ID) == len(actions(sequence, dialogue))
        assert isinstance(parse_action(actions(sequence, dialogue)[-1]), Stop)
    assert kinds == {WalkTo, Stop}


def test_stumbles_are_read_and_not_cloned(graphecho: GraphEcho, dialogue: TinyDialogue) -> None:
    """Illegal moves stand in the context with mask 0, and the walker goes on after them."""
    seen = 0
    for sequence in episodes(graphecho, dialogue, stumble_probability=0.5):
        text = dialogue.decode(sequence.ids)
        seen += text.count("No such move")
        for action in actions(sequence, dialogue):
            found = parse_action(action)
            assert isinstance(found, WalkTo | Stop)
        assert sequence.mask[-1] == 1
    assert seen > 10


def test_only_train_claims_are_cloned(graphecho: GraphEcho, dialogue: TinyDialogue) -> None:
    """Splits don't leak: no name of a dev or test claim stands in a sequence."""
    held_out = {name for split in ("dev", "test") for c in graphecho.of_split(split) for name in c.claim.entities}
    rng = np.random.default_rng(3)
    drills = [drilled_list(graphecho.of_split("train"), dialogue, rng) for _ in range(20)]
    for sequence in [*episodes(graphecho, dialogue, 20), *drills]:
        words = set(re.findall(r"\w+", dialogue.decode(sequence.ids)))
        assert not words & held_out


@pytest.mark.parametrize("kind", ["episodes", "drills"])
def test_stances_point_at_the_last_token_of_evidence(graphecho: GraphEcho, dialogue: TinyDialogue, kind: str) -> None:
    """Each position is the full stop of an evidence line, and the verbs of claim and evidence give its label."""
    train = graphecho.of_split("train")
    rng = np.random.default_rng(7)
    found = (
        episodes(graphecho, dialogue) if kind == "episodes" else [drilled_list(train, dialogue, rng) for _ in range(30)]
    )
    labels = []
    for sequence in found:
        claim_words = dialogue.decode(sequence.ids[: sequence.ids.index(vocabulary().index("."), 4)]).split()
        claim_rises = bool(RISES & set(claim_words))
        assert claim_rises != bool(FALLS & set(claim_words))
        for position, label in sequence.stances:
            assert sequence.mask[position] == 0, "read from the world, not from an action"
            line = dialogue.decode(sequence.ids[: position + 1])
            assert line.endswith("percent .") or line.endswith("percent.")
            last = re.split(r"[:.]", line.rstrip(" ."))[-1].split()
            evidence_rises = bool(RISES & set(last))
            assert evidence_rises != bool(FALLS & set(last))
            assert label == int(evidence_rises != claim_rises)
            labels.append(label)
    assert {0, 1} == set(labels)
    assert len(labels) > 50


def test_every_piece_of_evidence_has_a_stance(graphecho: GraphEcho, dialogue: TinyDialogue) -> None:
    for sequence in episodes(graphecho, dialogue):
        shown = dialogue.decode(sequence.ids).count("percent")
        assert len(sequence.stances) == shown


def test_drill_answers_by_paths(dialogue: TinyDialogue, graphecho: GraphEcho) -> None:
    """The answer counts lines, not sources: five lines of two sources are five, and their majority is the verdict."""
    rng = np.random.default_rng(11)
    repeats = 0
    for _ in range(60):
        sequence = drilled_list(graphecho.of_split("train"), dialogue, rng)
        (action,) = actions(sequence, dialogue)
        stop = parse_action(action)
        assert isinstance(stop, Stop)
        assert stop.judgement is not None
        refuting = sum(label for _, label in sequence.stances)
        supporting = len(sequence.stances) - refuting
        assert (stop.judgement.support_count, stop.judgement.refute_count) == (supporting, refuting)
        wanted = "MIXED" if supporting == refuting else "SUPPORT" if supporting > refuting else "REFUTE"
        assert stop.judgement.verdict is Verdict(wanted)
        repeats += len(stop.judgement.cited_sources) < len(sequence.stances)
    assert repeats > 20, "the drill must hold echoes, or paths and sources are one"


def test_cloned_walker_answers_by_paths(graphecho: GraphEcho, dialogue: TinyDialogue) -> None:
    """Its counts are the evidence-bearing nodes it visited, echoes included (the last walk is shown too)."""
    checked = 0
    for sequence in episodes(graphecho, dialogue, stumble_probability=0.0):
        stop = parse_action(actions(sequence, dialogue)[-1])
        assert isinstance(stop, Stop)
        assert stop.judgement is not None
        labels = [label for _, label in sequence.stances]
        counts = (stop.judgement.support_count, stop.judgement.refute_count)
        assert counts == (labels.count(0), labels.count(1))
        checked += sum(counts) > len(stop.judgement.cited_sources)
    assert checked > 5, "the test needs episodes with echoes"


def test_loss_sees_action_tokens_only(dialogue: TinyDialogue) -> None:
    """Kinds: off-by-one mask, pad = EOS: the loss is the sum over masked tokens, written out by hand."""
    model = build_model(1, hidden_size=16, num_layers=2, intermediate_size=16)
    readout = Readout(16)
    pad = vocabulary().index(PAD)
    short = WarmStartRow([1, 40, 41, 2, 50, 3], [0, 0, 0, 0, 1, 1], [(2, 1)], [(1, 0), (3, 1)])
    long = WarmStartRow([1, 40, 2, 51, 52, 3, 60, 2, 53, 3], [0, 0, 0, 1, 1, 1, 0, 0, 1, 1], [(6, 0)])
    action_loss, stance_loss, familiar_loss = cloning_loss(model, readout, [short, long], pad)
    losses, stances, familiar = [], [], []
    for sequence in (short, long):
        output = model(input_ids=torch.tensor([sequence.ids]), output_hidden_states=True)
        logprobs = output.logits[0].log_softmax(-1)
        losses += [-logprobs[i - 1, sequence.ids[i]] for i, m in enumerate(sequence.mask) if m]
        for position, label in sequence.stances:
            stances.append(-readout.stance(output.hidden_states[-1][0, position]).log_softmax(-1)[label])
        for position, label in sequence.familiar:  # read off the middle: after the first of two layers
            familiar.append(-readout.familiar(output.hidden_states[1][0, position]).log_softmax(-1)[label])
    assert len(losses) == 7
    torch.testing.assert_close(action_loss, torch.stack(losses).sum(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(stance_loss, torch.stack(stances).sum(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(familiar_loss, torch.stack(familiar).sum(), rtol=1e-4, atol=1e-5)


def test_loss_without_evidence(dialogue: TinyDialogue) -> None:
    model = build_model(1, hidden_size=16, num_layers=1, intermediate_size=16)
    _, stance_loss, familiar_loss = cloning_loss(model, Readout(16), [WarmStartRow([1, 2, 50, 3], [0, 0, 1, 1], [])], 0)
    assert (float(stance_loss), float(familiar_loss)) == (0.0, 0.0)


def test_batches_are_drills_first_then_a_mix(graphecho: GraphEcho, dialogue: TinyDialogue) -> None:
    config = WarmStartConfig(drill_steps=2, clone_steps=6, confirm_steps=2, drill_rows=3, clone_rows=2)
    sizes = [len(batch) for batch in batches(graphecho, dialogue, config)]
    assert sizes == [3, 3, 2, 2, 3, 2, 2, 2, 3, 2], "three drills a step at 0, 1 and every fourth step"
    again = [[s.ids for s in batch] for batch in batches(graphecho, dialogue, config)]
    assert again == [[s.ids for s in batch] for batch in batches(graphecho, dialogue, config)]


def test_same_seed_same_weights(tmp_path: Path) -> None:
    """Kind: global RNG. The weights depend on the seed alone, and the global generator is left as it was."""
    config = WarmStartConfig(
        drill_steps=1,
        clone_steps=2,
        confirm_steps=2,
        drill_rows=2,
        clone_rows=2,
        hidden_size=16,
        num_layers=1,
        out=tmp_path / "a",
    )
    torch.manual_seed(5)
    before = torch.get_rng_state()
    calls: list[tuple[int, int]] = []
    warm_start(config, lambda step, total, action, stance: calls.append((step, total)))
    assert calls == [(step, 5) for step in range(1, 6)]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    warm_start(config.model_copy(update={"out": tmp_path / "b"}))
    warm_start(config.model_copy(update={"out": tmp_path / "c", "seed": 1}))
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b
    assert a != c
    model, tokenizer = load_tiny(tmp_path / "a")
    assert tokenizer.vocab_size == model.config.vocab_size == len(vocabulary())
    saved = WarmStartConfig.model_validate_json((tmp_path / "a" / "warm_start.json").read_text())
    assert saved.model_copy(update={"out": config.out}) == config
    assert len(json.loads((tmp_path / "a" / "loss.json").read_text())) == 5


def test_losses_are_token_means_for_any_micro_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kind: gradient accumulation. Parts of 1, 2 or all rows: one loss curve, of means over the whole step's tokens."""
    curves = []
    for rows in (1, 2, 100):
        monkeypatch.setattr("provgym.trainers.warm_start.MICRO_BATCH", rows)
        config = WarmStartConfig(
            out=tmp_path / str(rows),
            drill_steps=1,
            clone_steps=3,
            confirm_steps=0,
            drill_rows=5,
            clone_rows=5,
            hidden_size=16,
            num_layers=1,
        )
        warm_start(config)
        curves.append(json.loads((config.out / "loss.json").read_text()))
    for other in curves[1:]:
        np.testing.assert_allclose(other, curves[0], rtol=1e-3)
    assert 1.0 < curves[0][0][0] < 20.0, "nats a token"


def test_start_learns_the_grammar(start_folder: Path) -> None:
    """The fixture's few seconds: the loss falls to a third."""
    losses = [action for action, _, _ in json.loads((start_folder / "loss.json").read_text())]
    assert sum(losses[-5:]) / 5 < losses[0] / 3
