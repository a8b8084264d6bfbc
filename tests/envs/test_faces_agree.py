"""One dynamics, two faces: the same moves come to the same outcome, step by step."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provgym.envs.presentation import MITIGATIONS, Mitigation, PresentationConfig
from provgym.envs.provenance import Instance
from provgym.envs.scale import merged_instances
from provgym.envs.slots import NUM_SLOTS
from provgym.envs.walk_discrete import JUDGEMENTS, GraphWalkEnv
from provgym.envs.walk_text import GraphWalkTextEnv

INSTANCES = merged_instances(300, seed=7, shared_share=0.5)
ILLEGAL = 64


def act(text: GraphWalkTextEnv, array: GraphWalkEnv, choice: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Take the same act on both faces: a walk to the chosen neighbour, or an illegal one."""
    assert text.walk is not None
    assert text.presentation is not None
    around = text.walk.neighbours()
    if choice == ILLEGAL or len(around) == 0 or text.walk.budget_left == 0:
        return text.step("walk n99999"), array.step(NUM_SLOTS - 1)
    node = int(around[choice % len(around)])
    slot = array.slot_nodes().tolist().index(node)
    return text.step(f"walk {text.presentation.alias_of(node)}"), array.step(slot)


@settings(max_examples=150, deadline=None)
@given(
    instance=st.integers(0, len(INSTANCES) - 1),
    budget=st.integers(1, 8),
    moves=st.lists(st.integers(0, ILLEGAL), max_size=10),
    stop=st.integers(0, len(JUDGEMENTS) - 1),
    mitigation=st.sampled_from(MITIGATIONS),
    seeds=st.tuples(st.integers(0, 2**31), st.integers(0, 2**31)),
)
def test_the_same_moves_have_the_same_outcome(
    instance: int, budget: int, moves: list[int], stop: int, mitigation: Mitigation, seeds: tuple[int, int]
) -> None:
    text = GraphWalkTextEnv(INSTANCES, presentation=PresentationConfig(mitigation=mitigation))
    array = GraphWalkEnv(INSTANCES, mitigation=mitigation)
    options = {"instance": instance, "budget": budget}
    text.reset(seed=seeds[0], options=options)
    array.reset(seed=seeds[1], options=options)
    ours: tuple[Any, ...] = ()
    for choice in moves:
        ours, theirs = act(text, array, choice)
        compare(ours, theirs)
        if ours[2] or ours[3]:
            break
    if not ours or not (ours[2] or ours[3]):
        judgement = JUDGEMENTS[stop]
        written = f"stop +{judgement.support_count} -{judgement.refute_count} {judgement.verdict.value} 1.0"
        ours, theirs = text.step(written), array.step(NUM_SLOTS + stop)
        compare(ours, theirs)
    assert text.outcome() == array.outcome()


def compare(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> None:
    assert ours[1:4] == theirs[1:4]  # reward, terminated, truncated
    shared = set(ours[4]) & set(theirs[4])
    assert set(theirs[4]) - shared == {"action_mask"}
    assert set(ours[4]) == shared
    for key in shared - {"trace"}:
        assert ours[4][key] == theirs[4][key], key
    assert list(ours[4]["trace"]) == list(theirs[4]["trace"])


def test_every_neighbour_in_text_is_a_slot_and_the_other_way_round(merged_instance: Instance) -> None:
    text, array = GraphWalkTextEnv([merged_instance], budget=50), GraphWalkEnv([merged_instance], budget=50)
    text.reset(seed=0)
    array.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(50):
        assert text.walk is not None
        assert sorted(array.slot_nodes().tolist()) == text.walk.neighbours().tolist()
        act(text, array, int(rng.integers(ILLEGAL)))


@pytest.mark.parametrize("face", [GraphWalkTextEnv, GraphWalkEnv])
def test_both_take_the_same_options(face: Any) -> None:
    env = face(INSTANCES, budget=3)
    assert env.reset(options={"instance": "scale-2"})[1]["instance_id"] == "scale-2"
