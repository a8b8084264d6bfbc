"""Derived seeds: stable, keyed by all their parts, and no neighbour's shifted copy."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from provgym.generators.graphecho import GraphEcho
from provgym.generators.seeds import SPLIT_NUMBERS, Purpose, derive_rng, derive_seed, text_key

KEYS = st.lists(st.integers(0, 2**40), max_size=4).map(tuple)


def test_a_seed_is_numpy_s_own_of_the_whole_key() -> None:
    state = np.random.SeedSequence([3, 42, 1, 7]).generate_state(1, np.uint64)
    assert derive_seed(42, Purpose.CLAIMS, 7) == int(state[0]) // 2


def test_purposes_and_splits_keep_their_numbers() -> None:
    """They are part of stored data: a renumbered purpose would change every data set."""
    assert {purpose.name: purpose.value for purpose in Purpose} == {
        "CLAIMS": 1,
        "CONDITION": 2,
        "PRESENTATION": 3,
        "SAMPLING": 4,
        "TRAINING_MIX": 5,
        "BOOTSTRAP": 6,
        "SCRIPTED": 7,
        "INITIALISATION": 8,
        "CLONING": 9,
        "RETRIEVAL": 10,
        "EVIDENCE": 11,
        "BENCHMARK": 12,
        "CANDIDATES": 14,
        "TOPOLOGY_BATCHES": 15,
    }
    assert SPLIT_NUMBERS == {"train": 0, "dev": 1, "test": 2}


@given(st.integers(0, 2**40), st.sampled_from(Purpose), KEYS)
def test_the_same_key_gives_the_same_seed_in_range(run_seed: int, purpose: Purpose, key: tuple[int, ...]) -> None:
    seed = derive_seed(run_seed, purpose, *key)
    assert seed == derive_seed(run_seed, purpose, *key)
    assert 0 <= seed < 2**63


@given(st.integers(0, 1000), KEYS, st.sampled_from(Purpose), st.sampled_from(Purpose))
def test_the_purpose_is_part_of_the_key(run_seed: int, key: tuple[int, ...], one: Purpose, other: Purpose) -> None:
    same = derive_seed(run_seed, one, *key) == derive_seed(run_seed, other, *key)
    assert same == (one is other)


@given(KEYS)
def test_a_trailing_zero_is_part_of_the_key(key: tuple[int, ...]) -> None:
    assert derive_seed(1, Purpose.SAMPLING, *key) != derive_seed(1, Purpose.SAMPLING, *key, 0)


def test_neighbouring_run_seeds_are_no_shifted_copies() -> None:
    """Fault kind "correlated workers": seed 6 is not a shifted seed 5."""
    five = [derive_seed(5, Purpose.SAMPLING, 0, i, m) for i in range(50) for m in range(8)]
    six = [derive_seed(6, Purpose.SAMPLING, 0, i, m) for i in range(50) for m in range(8)]
    assert len(set(five) | set(six)) == 800


def test_zero_is_a_seed() -> None:
    """Fault kind "global RNG": seed 0 is a seed like any other."""
    first = derive_rng(0, Purpose.CLAIMS).integers(1 << 60, size=4)
    assert (first == derive_rng(0, Purpose.CLAIMS).integers(1 << 60, size=4)).all()
    assert (first != derive_rng(1, Purpose.CLAIMS).integers(1 << 60, size=4)).any()


@pytest.mark.parametrize("key", [(-1,), (3, -2)])
def test_a_negative_part_is_refused(key: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="integers >= 0"):
        derive_seed(42, Purpose.SAMPLING, *key)
    with pytest.raises(ValueError, match="integers >= 0"):
        derive_seed(-42, Purpose.SAMPLING)


def test_generation_neither_reads_nor_writes_global_generators() -> None:
    """Fault kind "global RNG"."""
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the global generator is what the test is about
    before = (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]  # noqa: NPY002
    one = GraphEcho.generate(3, {"test": 5}).instances("test", ["general"])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]  # noqa: NPY002
    random.seed(2)
    np.random.seed(2)  # noqa: NPY002
    other = GraphEcho.generate(3, {"test": 5}).instances("test", ["general"])
    assert [i.instance_id for i in one] == [i.instance_id for i in other]


def test_a_text_s_part_of_a_key_is_the_same_in_every_process() -> None:
    """Python's own hash of a text differs from process to process."""
    assert text_key("") == 16_476_032_584_258_269_876
    assert text_key("a") != text_key("b")
    assert derive_seed(1, Purpose.RETRIEVAL, text_key("half \ud800 pair")) >= 0
