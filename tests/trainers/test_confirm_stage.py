"""The warm start's last stage: a naive walker that seeks confirmation, shown what PAPT and evaluation show."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

from provgym.envs.actions import Stop, parse_action
from provgym.envs.presentation import MovesStyle
from provgym.generators.graphecho import GraphEcho
from provgym.generators.tiny import ACT, END, TinyDialogue, build_tokenizer, vocabulary
from provgym.rewards.outcome import Verdict
from provgym.trainers.warm_start_config import WarmStartConfig
from provgym.trainers.warm_start_rows import WarmStartRow, batches, cloned_episode

ACT_ID, END_ID = vocabulary().index(ACT), vocabulary().index(END)
FRESH = WarmStartConfig(stumble_probability=0.0, stop_probability=0.0)


@pytest.fixture(scope="module")
def graphecho() -> GraphEcho:
    return GraphEcho.generate(42, {"train": 30, "dev": 5, "test": 5})


@pytest.fixture(scope="module")
def dialogue() -> TinyDialogue:
    return TinyDialogue(build_tokenizer())


def texts(row: WarmStartRow, dialogue: TinyDialogue, value: int) -> Iterator[str]:
    """Yield the stretches that are cloned (1) or read (0), as text, without their control tokens."""
    part: list[int] = []
    for token, mask in [*zip(row.ids, row.mask, strict=True), (END_ID, -1)]:
        if mask == value and token not in (ACT_ID, END_ID):
            part.append(token)
        elif mask != value and part:
            yield dialogue.decode(part)
            part = []


def sources_read(row: WarmStartRow, dialogue: TinyDialogue) -> list[str]:
    """Return the label of each evidence line, in order: what each walk reached."""
    return re.findall(r"(S\d+) : ", " ".join(texts(row, dialogue, 0)))


def echoes_of(confirm_probability: float, graphecho: GraphEcho, dialogue: TinyDialogue) -> float:
    """Return the share of evidence lines, after the first, whose source was read before."""
    repeated, total = 0, 0
    for i in range(60):
        rng = np.random.default_rng([5, i])
        row = cloned_episode(graphecho, dialogue, FRESH, rng, confirm_probability=confirm_probability)
        labels = sources_read(row, dialogue)
        repeated += sum(label in labels[:k] for k, label in enumerate(labels))
        total += len(labels) - 1
    return repeated / total


def test_it_repeats_sources_more_often(graphecho: GraphEcho, dialogue: TinyDialogue) -> None:
    plain, half, always = (echoes_of(chance, graphecho, dialogue) for chance in (0.0, 0.5, 1.0))
    assert plain + 0.1 < half < always - 0.1


@pytest.mark.parametrize("moves", ["labelled", "aliases"])
def test_it_still_answers_by_the_majority_over_paths(
    graphecho: GraphEcho, dialogue: TinyDialogue, moves: MovesStyle
) -> None:
    """Counts are of evidence lines, repeats included; the verdict is their majority."""
    repeats = 0
    for i in range(40):
        rng = np.random.default_rng([6, i])
        row = cloned_episode(graphecho, dialogue, FRESH, rng, confirm_probability=0.7, moves=moves)
        stop = parse_action(list(texts(row, dialogue, 1))[-1])
        assert isinstance(stop, Stop)
        assert stop.judgement is not None
        refuting = sum(label for _, label in row.stances)
        counts = (len(row.stances) - refuting, refuting)
        assert (stop.judgement.support_count, stop.judgement.refute_count) == counts
        assert stop.judgement.verdict is Verdict.from_counts(*counts)
        read = sources_read(row, dialogue)
        assert list(stop.judgement.cited_sources) == list(dict.fromkeys(read))
        repeats += len(read) > len(set(read))
    assert repeats > 20


def footers(row: WarmStartRow, dialogue: TinyDialogue) -> list[str]:
    """Return the moves shown after each walk."""
    return re.findall(r"Left \d+ \. Moves ([^.]*) \.", " ".join(texts(row, dialogue, 0)))[1:]


def test_stages_are_shown_what_belongs_to_them(graphecho: GraphEcho, dialogue: TinyDialogue) -> None:
    """Cloning reads the short list of moves; the last stage the one with labels, as PAPT and evaluation show it."""
    config = WarmStartConfig(drill_steps=1, clone_steps=3, confirm_steps=3, drill_rows=1, clone_rows=6)
    steps = list(batches(graphecho, dialogue, config))
    assert [len(step) for step in steps] == [1, 6, 6, 6, 1, 6, 6], "drills first, then at every fourth step"
    for number, step in enumerate(steps):
        if len(step) == 1:
            continue
        shown = [text for row in step for text in footers(row, dialogue)]
        assert shown
        is_labelled = [bool(re.search(r"S\d+", text)) for text in shown]
        has_brackets = ["[" in text for text in shown]
        if number < 4:
            assert not any(is_labelled)
            assert not any(has_brackets)
        else:
            assert sum(is_labelled) > len(shown) / 2
            assert any(has_brackets)


def test_familiar_sources_are_marked_where_a_move_names_them(graphecho: GraphEcho, dialogue: TinyDialogue) -> None:
    """Each mark is the alias of a labelled move, and 1 if an evidence line before it named that source."""
    labels, moves = [], 0
    for i in range(30):
        rng = np.random.default_rng([7, i])
        row = cloned_episode(graphecho, dialogue, FRESH, rng, confirm_probability=0.5, moves="labelled")
        words = [dialogue.decode([token]) for token in row.ids]
        for position, label in row.familiar:
            assert row.mask[position] == 0
            source, alias = words[position - 1 : position + 1]
            assert re.fullmatch(r"n\d+", alias)
            read = re.findall(r"(S\d+) : ", " ".join(words[:position]))
            assert label == int(source in read), f"{source} {alias} after {read}"
            labels.append(label)
        moves += len(re.findall(r"S\d+ n\d+", " ".join(footers(row, dialogue))))
    assert {0, 1} == set(labels)
    assert len(labels) == moves, "every labelled move is marked, and no preview"


def test_the_short_list_of_moves_names_nothing_to_be_familiar_with(
    graphecho: GraphEcho, dialogue: TinyDialogue
) -> None:
    for i in range(5):
        row = cloned_episode(graphecho, dialogue, FRESH, np.random.default_rng([8, i]), moves="aliases")
        assert row.familiar == []


def test_no_last_stage_is_a_stage_of_nothing(graphecho: GraphEcho, dialogue: TinyDialogue) -> None:
    """With ``confirm_steps: 0`` the earlier batches are the same, so that one can be compared with the other."""
    short = WarmStartConfig(drill_steps=1, clone_steps=3, confirm_steps=0, drill_rows=2, clone_rows=2)
    longer = short.model_copy(update={"confirm_steps": 2})
    first = [[s.ids for s in step] for step in batches(graphecho, dialogue, short)]
    both = [[s.ids for s in step] for step in batches(graphecho, dialogue, longer)]
    assert len(first) == 4
    assert both[:4] == first
    assert len(both) == 6


def test_half_of_the_episodes_have_their_aliases_shuffled(graphecho: GraphEcho, dialogue: TinyDialogue) -> None:
    """In order of discovery the first preview is n1; in random order it seldom is."""

    def first_is_n1(config: WarmStartConfig, i: int) -> bool:
        row = cloned_episode(graphecho, dialogue, config, np.random.default_rng([9, i]))
        found = re.search(r"\b(n\d+) observation", next(texts(row, dialogue, 0)))
        assert found is not None
        return found.group(1) == "n1"

    shares = {}
    for probability in (0.0, 0.5, 1.0):
        config = FRESH.model_copy(update={"shuffle_probability": probability})
        shares[probability] = sum(first_is_n1(config, i) for i in range(60)) / 60
    assert shares[0.0] == 1.0
    assert 0.3 < shares[0.5] < 0.7
    assert shares[1.0] < 0.1
