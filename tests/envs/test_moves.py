"""The last line of every observation: walks left, and where a walk can lead.

Nodes of ``instance_of([2], [1])``: 0 the claim; 1, 2 observations of one source, 3 of another; 4, 5, 6 their
representations; 7, 8 the sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from provgym.envs.presentation import (
    MAX_LABELLED_MOVES,
    MITIGATIONS,
    Mitigation,
    MovesStyle,
    Presentation,
    PresentationConfig,
)
from provgym.envs.provenance import Instance
from provgym.envs.walk import Walk

InstanceOf = Callable[..., Instance]


def move(label: str, alias: str) -> str:
    """A move with its source's label, as a footer writes it."""
    return f"{label} {alias}"


class Shown:
    """A walk along given nodes, and the footers that it showed."""

    def __init__(self, instance: Instance, nodes: Sequence[int] = (), *, seed: int = 0, **options: Any) -> None:
        self.walk = Walk(instance, options.pop("budget", 20))
        self.presentation = Presentation(self.walk, PresentationConfig(**options), np.random.default_rng(seed))
        self.footers = [self.presentation.opening()[-1]]
        for node in nodes:
            self.footers.append(self.presentation.reply(self.walk.walk(node))[-1])

    def alias(self, node: int) -> str:
        """Return a node's alias."""
        found = self.presentation.alias_of(node)
        assert found is not None
        return found

    def order(self, nodes: Sequence[int]) -> list[int]:
        """Return nodes in order of their aliases."""
        return sorted(nodes, key=lambda node: int(self.alias(node)[1:]))

    def label(self, source: int) -> str:
        """Return a source's label."""
        return self.presentation.source_label(source)


@pytest.mark.parametrize("mitigation", MITIGATIONS)
@pytest.mark.parametrize("moves", ["labelled", "aliases"])
def test_the_opening_lists_aliases_alone(instance_of: InstanceOf, mitigation: Mitigation, moves: str) -> None:
    """Every preview stands right above it."""
    assert Shown(instance_of([2], [1]), mitigation=mitigation, moves=moves).footers == ["Left 20. Moves n1-n3."]


@pytest.mark.parametrize("mitigation", ["M1", "M2"])
@pytest.mark.parametrize("seed", range(6))
def test_unvisited_neighbours_carry_their_source_and_visited_ones_stand_in_brackets(
    instance_of: InstanceOf, mitigation: Mitigation, seed: int
) -> None:
    shown = Shown(instance_of([2], [1]), [1, 2], seed=seed, mitigation=mitigation)
    same, other = shown.label(0), shown.label(1)
    source = {2: same, 3: other, 4: same, 5: same}
    first = " ".join(move(source[n], shown.alias(n)) for n in shown.order([2, 3, 4]))
    assert shown.footers[1] == f"Left 19. Moves {first} [n0]."
    # At the second observation: the first one was visited too, and its representation is no neighbour of this one.
    second = " ".join(move(source[n], shown.alias(n)) for n in shown.order([3, 5]))
    back = {"n1": "n0-n1", "n2": "n0 n2", "n3": "n0 n3"}[shown.alias(1)]
    assert shown.footers[2] == f"Left 18. Moves {second} [{back}]."


def test_a_source_node_carries_its_label(instance_of: InstanceOf) -> None:
    shown = Shown(instance_of([2], [1]), [1, 4, 7])
    assert shown.footers[2] == f"Left 18. Moves {move(shown.label(0), shown.alias(7))} [{shown.alias(1)}]."
    # At the source: the other representation of it.
    assert shown.footers[3] == f"Left 17. Moves {move(shown.label(0), shown.alias(5))} [{shown.alias(4)}]."


def test_m0_lists_aliases_alone(instance_of: InstanceOf) -> None:
    """Under M0 an evidence node's source is not known before a source node is seen, and never named in the moves."""
    shown = Shown(instance_of([2], [1]), [1, 4, 7], mitigation="M0", seed=3)
    assert not any(re.search(r"\bS\d", footer) for footer in shown.footers)
    assert re.fullmatch(r"Left 19\. Moves n[\dn -]+ \[n0\]\.", shown.footers[1])
    assert shown.footers[2] == f"Left 18. Moves {shown.alias(7)} [{shown.alias(1)}]."


def test_m3_groups_unvisited_neighbours(instance_of: InstanceOf) -> None:
    shown = Shown(instance_of([2], [1]), [1, 4], mitigation="M3", seed=0)
    same, other = shown.label(0), shown.label(1)
    pair = " ".join(shown.alias(n) for n in shown.order([2, 4]))
    groups = {shown.order([2, 4])[0]: f"{same} x2: {pair}", 3: f"{other}: {shown.alias(3)}"}
    expected = "; ".join(groups[n] for n in shown.order(list(groups)))
    assert shown.footers[1] == f"Left 19. Moves {expected} [n0]."
    assert shown.footers[2] == f"Left 18. Moves source {same}: {shown.alias(7)} [{shown.alias(1)}]."


def test_hidden_ids_stay_hidden_in_the_moves(instance_of: InstanceOf) -> None:
    """With ``preview_ids: visited`` a move names a source once a node of it was visited, and no sooner."""
    shown = Shown(instance_of([2], [1]), [1, 3], preview_ids="visited")
    known = " ".join(move("S1", shown.alias(n)) for n in shown.order([2, 4]))
    assert shown.footers[1] == f"Left 19. Moves {shown.alias(3)} {known} [n0]."
    assert move("S2", shown.alias(6)) in shown.footers[2]


@pytest.mark.parametrize("mitigation", ["M1", "M2"])
@pytest.mark.parametrize("seed", range(8))
def test_no_move_without_a_label_follows_one_with_a_label(
    instance_of: InstanceOf, mitigation: Mitigation, seed: int
) -> None:
    """With ``preview_ids: visited`` a line can't be read as if a label held for several moves behind it."""
    shown = Shown(instance_of([3, 2], [4]), [1, 4], seed=seed, mitigation=mitigation, preview_ids="visited")
    for footer in shown.footers[1:]:
        fresh = footer.partition(" Moves ")[2].partition(" [")[0].split()
        labels = [place for place, word in enumerate(fresh) if word.startswith("S")]
        assert labels, footer
        assert [word[0] for word in fresh[labels[0] :]] == ["S", "n"] * len(labels), footer


def test_default_texts_stay_as_the_shipped_weights_read_them(instance_of: InstanceOf) -> None:
    """With ids shown, moves past the twelfth follow by alias alone, in order of discovery."""
    footer = Shown(instance_of([5, 5], [5, 5]), [1], seed=0).footers[1]
    words = footer.partition(" Moves ")[2].partition(" [")[0].split()
    assert [word[0] for word in words[:24]] == ["S", "n"] * 12
    assert all(word.startswith("n") for word in words[24:])
    assert aliases_in(" ".join(words)) == sorted(aliases_in(" ".join(words)))


@pytest.mark.parametrize("mitigation", MITIGATIONS)
def test_aliases_is_the_short_footer(instance_of: InstanceOf, mitigation: Mitigation) -> None:
    """No label, no bracket, all neighbours in one list; everything else is the same text."""
    short = Shown(instance_of([2], [1]), [1, 2], mitigation=mitigation, moves="aliases", seed=2)
    around = [0, 1, 3, 5]
    numbers = sorted(int(short.alias(node)[1:]) for node in around)
    # The other two observations have two of the aliases n1, n2, n3; the representation of node 2 was met fifth.
    expected = {"0 1 2 5": "n0-n2 n5", "0 1 3 5": "n0-n1 n3 n5", "0 2 3 5": "n0 n2-n3 n5"}
    assert short.footers[2] == f"Left 18. Moves {expected[' '.join(map(str, numbers))]}."


@pytest.mark.parametrize("mitigation", MITIGATIONS)
def test_the_footer_is_all_that_the_style_changes(instance_of: InstanceOf, mitigation: Mitigation) -> None:
    lines: list[list[str]] = []
    styles: tuple[MovesStyle, ...] = ("labelled", "aliases")
    for moves in styles:
        walk = Walk(instance_of([3, 1], [2]), 20)
        config = PresentationConfig(mitigation, moves=moves)
        presentation = Presentation(walk, config, np.random.default_rng(5))
        shown = presentation.opening() + [line for node in (1, 2) for line in presentation.reply(walk.walk(node))]
        lines.append([line for line in shown if not line.startswith("Left ")])
    assert lines[0] == lines[1]


def test_many_neighbours_are_labelled_up_to_a_limit(instance_of: InstanceOf) -> None:
    """The text of a turn is bounded: after the first twelve, aliases alone, as ranges."""
    assert MAX_LABELLED_MOVES == 12
    shown = Shown(instance_of([20], []), [1])
    # 19 other observations and the representation of the one visited, n21; the one visited lies somewhere in n1-n20.
    here = int(shown.alias(1)[1:])
    fresh = [k for k in range(1, 22) if k != here]
    labelled = " ".join(move("S1", f"n{k}") for k in fresh[:12])
    assert shown.footers[1].startswith(f"Left 19. Moves {labelled} n{fresh[12]}")
    assert shown.footers[1].count("S1") == 12
    rest = shown.footers[1].removeprefix(f"Left 19. Moves {labelled} ").removesuffix(" [n0].")
    assert "S" not in rest
    listed: list[int] = []
    for run in rest.split(" "):
        low, _, high = run.partition("-")
        listed += range(int(low[1:]), int((high or low)[1:]) + 1)
    assert listed == fresh[12:]


@pytest.mark.parametrize("moves", ["labelled", "aliases"])
def test_nowhere_to_go_and_nothing_left(bare_instance: Instance, instance_of: InstanceOf, moves: str) -> None:
    assert Shown(bare_instance, budget=2, moves=moves).footers == ["Left 2. Moves none."]
    assert Shown(instance_of([1], [1]), [1], budget=1, moves=moves).footers[-1] == "Left 0. Stop now."


def test_an_illegal_action_is_answered_with_the_moves(instance_of: InstanceOf) -> None:
    """After the opening's footer an answer to a mistake names sources as any other does."""
    shown = Shown(instance_of([2], [1]))
    lines = shown.presentation.reply(shown.walk.walk(8))  # no neighbour of the claim
    labels = {1: shown.label(0), 2: shown.label(0), 3: shown.label(1)}
    moves = " ".join(move(labels[n], shown.alias(n)) for n in shown.order([1, 2, 3]))
    assert lines == ["No such move.", f"Left 19. Moves {moves}."]
    assert shown.presentation.reply(shown.walk.reject()) == ["Not an action.", f"Left 18. Moves {moves}."]


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.lists(st.integers(1, 5), max_size=3),
    st.sampled_from(MITIGATIONS),
    st.sampled_from(["labelled", "aliases"]),
    st.sampled_from(["shown", "visited"]),
    st.integers(0, 2**32),
)
def test_every_neighbour_is_listed_once_and_nothing_else(
    instance_of: InstanceOf,
    supporting: list[int],
    refuting: list[int],
    mitigation: Mitigation,
    moves: str,
    preview_ids: str,
    seed: int,
) -> None:
    """Whatever the style, a footer names exactly the neighbours; brackets hold those visited; labels are right."""
    instance = instance_of(supporting, refuting)
    shown = Shown(instance, seed=seed, mitigation=mitigation, moves=moves, preview_ids=preview_ids)
    walk, rng = shown.walk, np.random.default_rng(seed)
    for _ in range(8):
        around = [int(n) for n in walk.neighbours()]
        footer = shown.presentation.reply(walk.walk(around[rng.integers(len(around))]))[-1]
        outside, _, inside = footer.removesuffix(".").partition(" Moves ")[2].partition("[")
        visited = [int(n) in walk.visited for n in walk.neighbours()]
        numbers = {int(n): int(shown.alias(int(n))[1:]) for n in walk.neighbours()}
        if moves == "labelled":
            assert aliases_in(inside) == sorted(k for (_, k), met in zip(numbers.items(), visited, strict=True) if met)
            for label, alias in re.findall(move(r"(S\d+)", r"(n\d+)"), outside):
                node = shown.presentation.node_of(alias)
                assert node is not None
                assert label == shown.label(int(walk.instance.graph.node_source[node]))
        assert sorted(aliases_in(outside) + aliases_in(inside)) == sorted(numbers.values())


def aliases_in(text: str) -> list[int]:
    """Return the numbers of all aliases in a list of moves, ranges written out."""
    found: list[int] = []
    for low, high in re.findall(r"n(\d+)(?:-n(\d+))?", text):
        found += range(int(low), int(high or low) + 1)
    return found
