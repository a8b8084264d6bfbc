"""Guesses of how an action goes on: learned by counting, given only where they are likely."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provgym.generators.action_guesser import ActionGuesser

ACTIONS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), max_size=12)


def test_a_repeated_action_is_guessed_whole_and_no_further() -> None:
    guesser = ActionGuesser(longest=16)
    guesser.learn([7, 8, 9, 2])
    assert guesser.guess([], 16) == [7, 8, 9, 2]
    assert guesser.guess([7, 8], 16) == [9, 2]
    assert guesser.guess([7, 8, 9, 2], 16) == []


def test_where_actions_part_nothing_is_guessed() -> None:
    """After 5 6 came 1 and 2, once each: a share of 0.5 is below 0.6. What follows either is certain."""
    guesser = ActionGuesser(longest=16)
    guesser.learn([5, 6, 1, 9])
    guesser.learn([5, 6, 2, 9])
    assert guesser.guess([], 16) == [5, 6]
    assert guesser.guess([5, 6], 16) == []
    assert guesser.guess([5, 6, 2], 16) == [9]
    guesser.learn([5, 6, 2, 9])  # now 2 of 3
    assert guesser.guess([5, 6], 16) == [2, 9]


def test_chances_multiply_along_a_guess() -> None:
    """0.75 for the first token and 0.75 for the second are 0.5625 together, below 0.6."""
    guesser = ActionGuesser(longest=16)
    for action in ([1, 2], [1, 2], [1, 3], [4, 0]):
        guesser.learn(action)
    assert guesser.guess([], 16) == [1]  # 3 of 4; then 2 follows 1 in 2 of 3
    assert guesser.guess([1], 16) == [2]


def test_an_unseen_context_falls_back_to_a_shorter_one() -> None:
    guesser = ActionGuesser(longest=16)
    guesser.learn([1, 2, 3, 4, 5, 6])
    assert guesser.guess([9, 9, 4, 5], 16) == [6]
    assert guesser.guess([9, 9, 9, 5], 16) == []


def test_limits_hold() -> None:
    guesser = ActionGuesser(longest=3)
    guesser.learn(list(range(10)))
    assert guesser.guess([], 8) == [0, 1, 2]
    assert guesser.guess([], 2) == [0, 1]
    assert guesser.guess([], 0) == guesser.guess([], -1) == []
    assert ActionGuesser(longest=0).guess([], 5) == []
    for bad in ({"longest": -1}, {"least_chance": 0.0}, {"least_chance": 1.1}):
        with pytest.raises(ValueError, match="must be >= 0"):
            ActionGuesser(**bad)


@given(ACTIONS, st.lists(st.integers(0, 5), max_size=6))
def test_every_guess_continues_as_some_learned_pair_did(actions: list[list[int]], begun: list[int]) -> None:
    guesser = ActionGuesser(longest=8)
    for action in actions:
        guesser.learn(action)
    guess = guesser.guess(begun, 8)
    assert guesser.guess(begun, 8) == guess  # guessing learns nothing
    pairs = {pair for action in actions for pair in zip([-1, *action], action, strict=False)}
    whole = [*begun, *guess]
    for place in range(len(begun), len(whole)):
        assert (whole[place - 1] if place else -1, whole[place]) in pairs
