"""Which rows a pass touches, what rows begin with in common, and that neither changes what is sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedModel

from provgym.generators.engine import Sampled, Sampling
from provgym.generators.engine_rows import Row, common_length, slots_of_pass
from provgym.generators.hf_engine import HFEngine

BuildModel = Callable[..., PreTrainedModel]
VOCABULARY = 50
IDS = st.lists(st.integers(0, 2), max_size=6)


def test_idle_rows_are_computed_only_where_copying_costs_more() -> None:
    assert slots_of_pass([0, 1, 2], 40) == [0, 1, 2]
    assert slots_of_pass([4, 6], 1) == [4, 5, 6]  # one idle token against copies worth four
    assert slots_of_pass([4, 6], 4) == [4, 5, 6]
    assert slots_of_pass([4, 6], 5) == [4, 6]
    assert slots_of_pass([0, 9], 1) == [0, 9]


@given(IDS, IDS)
def test_common_length_is_the_longest_shared_beginning(first: list[int], second: list[int]) -> None:
    length = common_length(first, second)
    assert first[:length] == second[:length]
    assert first[: length + 1] != second[: length + 1] or length == min(len(first), len(second))


def test_uniform_numbers_are_used_in_order_however_many_are_looked_at() -> None:
    row = Row(0, Sampling(1.0), np.random.default_rng(3))
    expected = np.random.default_rng(3).random(4).tolist()
    assert row.next_uniforms(3) == expected[:3]
    del row.drawn[:1]
    assert row.next_uniforms(3) == expected[1:4]
    assert Row(0, Sampling(0.0), np.random.default_rng(3)).next_uniforms(2) == [0.0, 0.0]


def play(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], engine: HFEngine, turns: int = 3
) -> list[list[Sampled]]:
    """Play turns in which row i is closed after i + 1 of them, so that gaps open between rows."""
    for row, prompt in enumerate(prompts):
        engine.open_row(row, 100 + row, Sampling(1.0))
        engine.submit(row, prompt, 3 + row % 2, frozenset([2]))
    found: list[list[Sampled]] = [[] for _ in prompts]
    live = set(range(len(prompts)))
    while live:
        for sampled in engine.poll():
            found[sampled.row].append(sampled)
            if len(found[sampled.row]) > sampled.row % turns:
                engine.close_row(sampled.row)
                live.discard(sampled.row)
            else:
                engine.submit(sampled.row, [7, 8, 9][: 1 + sampled.row % 3], 4, frozenset([2]))
    return found


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_shared_beginnings_and_gaps_change_nothing(build_model: BuildModel, kind: str) -> None:
    """Fault kind: padding side. Rows alone, and together with a common prefix, gaps and idle rows: the same ids."""
    model = build_model(kind, VOCABULARY)
    rng = np.random.default_rng(1)
    prefix = [int(i) for i in rng.integers(3, VOCABULARY, size=40)]
    prompts = [[*prefix, *(int(i) for i in rng.integers(3, VOCABULARY, size=2 + n))] for n in range(6)]
    prompts[3] = prompts[1]
    prompts.append([5, 6])  # opens with something else
    together = play(model, prompts, HFEngine(model, max_rows=8))
    for row, prompt in enumerate(prompts):
        engine = HFEngine(model, max_rows=8, longest_guess=0)
        alone = play(model, [prompt if r == row else [4] for r in range(row + 1)], engine)[row]
        assert [s.ids for s in together[row]] == [s.ids for s in alone]
        for one, other in zip(together[row], alone, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_a_common_beginning_is_computed_once_also_for_rows_that_open_later(build_model: BuildModel) -> None:
    model = build_model("llama", VOCABULARY)
    prefix = [int(i) for i in np.random.default_rng(2).integers(3, VOCABULARY, size=33)]
    engine = HFEngine(model, max_rows=3)
    for row in range(2):
        engine.open_row(row, row, Sampling(0.0))
        engine.submit(row, [*prefix, 10 + row, 11], 1, frozenset())
    while len(engine.poll()) < 2:
        pass
    assert engine.forward_tokens == 33 + 2 + 2
    engine.open_row(2, 2, Sampling(0.0))
    engine.submit(2, [*prefix, 12], 1, frozenset())
    engine.poll()
    assert engine.forward_tokens == 33 + 2 + 2 + 1
    for row in range(3):
        engine.close_row(row)
    engine.open_row(0, 0, Sampling(0.0))  # nothing is live: the prefix was forgotten
    engine.submit(0, [*prefix, 12], 1, frozenset())
    engine.poll()
    assert engine.forward_tokens == 33 + 2 + 2 + 1 + 34
