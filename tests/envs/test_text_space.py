"""The space of any text, and how vector environments carry texts between processes."""

import copy
import multiprocessing
from typing import Any

import pytest
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

from provgym.envs.text_space import AnyText

TEXTS = ["", "\n", "line\nline\r\n\ttab", "ὄρος Ελληνικά", "🙂👩‍👩‍👧", "\u2028", "\x00", "\ud800", "x" * 100_001]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_any_text_is_inside(text: str) -> None:
    """Fault "text space": empty, newline, Greek, emoji, 100,001 characters."""
    assert text in AnyText(1_000_000)


def test_what_is_outside() -> None:
    space = AnyText(10)
    assert "x" * 11 not in space
    for value in (None, 3, b"bytes", ["text"]):
        assert value not in space


def test_samples_are_inside_and_seeded() -> None:
    first, second = AnyText(100, seed=0), AnyText(100, seed=0)
    samples = [first.sample() for _ in range(200)]
    assert all(sample in first for sample in samples)
    assert samples == [second.sample() for _ in range(200)]
    assert len(set(samples)) > 100
    assert AnyText(0, seed=1).sample() == ""


def test_equality_is_by_length() -> None:
    assert AnyText(5) == AnyText(5)
    assert AnyText(5) != AnyText(6)
    assert hash(AnyText(5)) == hash(AnyText(5))
    assert copy.deepcopy(AnyText(5)) == AnyText(5)


def test_texts_pass_through_shared_memory_whole() -> None:
    """Gymnasium's own way for Text spaces loses every character that the space does not list."""
    space = AnyText(200_000)
    memory = create_shared_memory(space, n=2, ctx=multiprocessing)
    texts: Any = read_from_shared_memory(space, memory, n=2)
    write: Any = write_to_shared_memory
    assert tuple(texts) == ("", "")
    for text in TEXTS:
        write(space, 1, text, memory)
        kept = copy.deepcopy(texts)
        assert kept == ("", text)
    write(space, 0, "later", memory)
    assert kept[0] == ""  # a copy does not change
    assert texts[0] == "later"
    assert texts[0:2] == tuple(texts)
