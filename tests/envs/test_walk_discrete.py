"""The array face: what slots and context hold, what they must not, and that copies are whole."""

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from provgym.envs.presentation import MITIGATIONS, Mitigation
from provgym.envs.provenance import Atom, Claim, EvidenceGraph, Instance, NodeKind, Route, Stance
from provgym.envs.scale import merged_instances
from provgym.envs.slots import NUM_SLOTS, SlotFeature
from provgym.envs.walk_discrete import JUDGEMENTS, NUM_ACTIONS, SLOT_SHAPE, SLOT_SIZE, Context, GraphWalkEnv
from provgym.rewards.outcome import Verdict

InstanceOf = Callable[..., Instance]
Floats = NDArray[np.float32]


def slots_of(observation: Floats) -> Floats:
    return observation[:SLOT_SIZE].reshape(SLOT_SHAPE)


def one_hot(observation: Floats, start: int, size: int) -> int:
    """Index of the single 1 in a block, -1 if the block is empty."""
    block = observation[SLOT_SIZE + start : SLOT_SIZE + start + size]
    assert block.sum() in (0.0, 1.0)
    return int(block.argmax()) if block.any() else -1


def slot_of(env: GraphWalkEnv, node: int) -> int:
    return [int(n) for n in env.slot_nodes()].index(node)


def walk_along(env: GraphWalkEnv, *nodes: int) -> Floats:
    for node in nodes:
        observation, *_ = env.step(slot_of(env, node))
    return observation


def test_sizes_and_stop_actions_by_hand() -> None:
    env = GraphWalkEnv()
    assert (env.action_space.n, NUM_ACTIONS) == (172, 172)  # type: ignore[attr-defined]
    assert env.observation_space.shape == (616,)
    judgement = JUDGEMENTS[36 * 1 + 6 * 2 + 4]
    assert (judgement.verdict, judgement.support_count, judgement.refute_count) == (Verdict.REFUTE, 2, 4)
    assert {j.confidence for j in JUDGEMENTS} == {1.0}
    env.reset(seed=0, options={"instance": "demo-1/C1"})
    *_, info = env.step(NUM_SLOTS + 36 * 2 + 6 * 1 + 1)
    assert (info["outcome"].judgement, info["terms"]["verdict"]) == (JUDGEMENTS[36 * 2 + 7], 1.0)


def test_mask_slots_and_neighbours_agree(instance_of: InstanceOf) -> None:
    env = GraphWalkEnv([instance_of([2], [1])], budget=2)
    observation, info = env.reset(seed=0)
    for neighbours in ([1, 2, 3], [0, 2, 3, 4]):
        assert sorted(env.slot_nodes().tolist()) == neighbours
        filled = [k < len(neighbours) for k in range(NUM_SLOTS)]
        assert slots_of(observation)[:, SlotFeature.WALKABLE].tolist() == filled
        assert info["action_mask"].tolist() == env.action_masks().tolist() == filled + [True] * 108
        assert env.action_masks().dtype == np.bool_
        observation, _, _, _, info = env.step(slot_of(env, 1) if 1 in neighbours else slot_of(env, 2))
    # No walk is left: nothing to walk to, every stop.
    assert info["budget_left"] == 0
    assert not slots_of(observation).any()
    assert info["action_mask"].tolist() == [0] * 64 + [1] * 108
    assert observation[SLOT_SIZE + Context.LAST_CALL] == 1.0


def test_an_empty_slot_is_an_illegal_action_charged_one_walk(instance_of: InstanceOf) -> None:
    env = GraphWalkEnv([instance_of([2], [1])], budget=3)
    before, _ = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(3)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert (info["last_step"], info["budget_left"]) == ("illegal", 2)
    assert np.array_equal(slots_of(observation), slots_of(before))  # it reveals nothing
    assert one_hot(observation, Context.LAST, 4) == 3


def test_slot_features_by_hand(instance_of: InstanceOf) -> None:
    # 1, 2 observations of atom 0, 3 of atom 1; 4, 5, 6 representations; 7, 8 sources
    env = GraphWalkEnv([instance_of([2], [1])])
    env.reset(seed=0)
    observation = walk_along(env, 1)
    slots = slots_of(observation)
    rows = {node: slots[slot_of(env, node)] for node in (0, 2, 3, 4)}

    def shown(node: int) -> set[str]:
        return {f.name for f in SlotFeature if f is not SlotFeature.LABEL and rows[node][f]}

    assert shown(0) == {"WALKABLE", "CLAIM", "VISITED"}
    assert shown(2) == {"WALKABLE", "OBSERVATION", "READ_SOURCE"}  # another node of the source just read
    assert shown(3) == {"WALKABLE", "OBSERVATION", "NEW_SOURCE"}
    assert shown(4) == {"WALKABLE", "REPRESENTATION", "READ_SOURCE"}
    labels = {node: rows[node][SlotFeature.LABEL] * 64 for node in rows}
    assert labels[0] == 0
    assert labels[2] == labels[4] != labels[3]
    assert {labels[2], labels[3]} == {1, 2}


def test_context_by_hand(instance_of: InstanceOf) -> None:
    env = GraphWalkEnv([instance_of([2], [1])], budget=8)
    observation, _ = env.reset(seed=0)
    evidence, repeat, connector = 0, 1, 2

    def context(seen: Floats) -> tuple[int, int, int, list[int], list[int], float]:
        return (
            one_hot(seen, Context.HERE, 4),
            one_hot(seen, Context.LAST, 4),
            one_hot(seen, Context.STANCE, 2),
            [one_hot(seen, Context.SOURCES + k, 7) for k in (0, 7)],
            [one_hot(seen, Context.NODES + k, 7) for k in (0, 7)],
            round(float(seen[SLOT_SIZE + Context.LEFT]) * 8),
        )

    kinds = {kind.name: int(kind) for kind in NodeKind}
    assert context(observation) == (kinds["CLAIM"], -1, -1, [0, 0], [0, 0], 8)
    expected = [
        (1, (kinds["OBSERVATION"], evidence, 0, [1, 0], [1, 0], 7)),
        (2, (kinds["OBSERVATION"], repeat, 0, [1, 0], [2, 0], 6)),
        (5, (kinds["REPRESENTATION"], repeat, 0, [1, 0], [3, 0], 5)),
        (7, (kinds["SOURCE"], connector, -1, [1, 0], [3, 0], 4)),
        (5, (kinds["REPRESENTATION"], repeat, 0, [1, 0], [3, 0], 3)),  # a node read before is not counted again
        (2, (kinds["OBSERVATION"], repeat, 0, [1, 0], [3, 0], 2)),
        (3, (kinds["OBSERVATION"], evidence, 1, [1, 1], [3, 1], 1)),
    ]
    for node, wanted in expected:
        assert context(walk_along(env, node)) == wanted


def test_m0_hides_sources(instance_of: InstanceOf) -> None:
    env = GraphWalkEnv([instance_of([2], [1])], mitigation="M0", budget=9)
    observation, _ = env.reset(seed=0)
    for node in (1, 2, 5, 7, 5, 2, 3):
        observation = walk_along(env, node)
        slots = slots_of(observation)
        assert not slots[:, [SlotFeature.READ_SOURCE, SlotFeature.NEW_SOURCE]].any()
        is_source = slots[:, SlotFeature.SOURCE] == 1.0
        assert (slots[:, SlotFeature.LABEL] > 0).tolist() == is_source.tolist()
        assert one_hot(observation, Context.SOURCES, 7) == one_hot(observation, Context.SOURCES + 7, 7) == -1
        # An echo can't be told from new evidence.
        assert one_hot(observation, Context.LAST, 4) == (2 if node == 7 else 0)
    assert [one_hot(observation, Context.NODES + k, 7) for k in (0, 7)] == [3, 1]


def test_m2_and_m3_are_m1_in_arrays(instance_of: InstanceOf) -> None:
    seen = []
    for mitigation in ("M1", "M2", "M3"):
        env = GraphWalkEnv([instance_of([2], [1])], mitigation=mitigation)
        env.reset(seed=4)
        seen.append(walk_along(env, 1, 3))
    assert np.array_equal(seen[0], seen[1])
    assert np.array_equal(seen[0], seen[2])


@pytest.mark.parametrize("mitigation", MITIGATIONS)
def test_nothing_depends_on_evidence_that_was_not_read(instance_of: InstanceOf, mitigation: Mitigation) -> None:
    """With every stance turned round, the same seed shows the same slots in the same order."""
    plain, turned = (
        GraphWalkEnv([instance_of([2, 1], [1], swap=swap)], mitigation=mitigation) for swap in (False, True)
    )
    for seed in range(20):
        assert np.array_equal(plain.reset(seed=seed)[0], turned.reset(seed=seed)[0])
        for slot in (2, 1, 3, 0):
            one, other = (env.step(slot)[0] for env in (plain, turned))
            assert np.array_equal(slots_of(one), slots_of(other))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 9), max_size=6), st.sampled_from(MITIGATIONS))
def test_unread_atoms_leave_no_trace(seed: int, slots: list[int], mitigation: Mitigation) -> None:
    """Turn the stance of exactly those atoms that a walk did not read: every observation stays the same."""
    stances = [Stance.SUPPORT, Stance.SUPPORT, Stance.REFUTE, Stance.SUPPORT]

    def play(chosen: list[Stance]) -> tuple[list[Floats], set[int]]:
        atoms = tuple(Atom(f"a{k}", f"s{k}", stance, f"{stance} {k}") for k, stance in enumerate(chosen))
        routes = tuple(Route(f"r{k}", "c", f"a{k % 4}", "result") for k in range(7))
        graph = EvidenceGraph((Claim("c", "It holds."),), atoms, routes)
        env = GraphWalkEnv([Instance("i", graph, "test", Verdict.MIXED)], mitigation=mitigation)
        seen = [env.reset(seed=seed)[0]]
        seen += [env.step(slot)[0] for slot in slots]
        assert env.walk is not None
        return seen, set(env.walk.acquired_atoms)

    first, read = play(stances)
    other = {Stance.SUPPORT: Stance.REFUTE, Stance.REFUTE: Stance.SUPPORT}
    second, _ = play([stance if k in read else other[stance] for k, stance in enumerate(stances)])
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_order_is_shuffled_between_episodes_and_fixed_within_one(instance_of: InstanceOf) -> None:
    instance = instance_of([3, 2], [2, 1])
    env = GraphWalkEnv([instance], budget=50)
    first = []
    for seed in range(300):
        env.reset(seed=seed)
        first.append(int(env.slot_nodes()[0]))
        if seed % 10:
            continue
        before: dict[tuple[int, int], bool] = {}
        rng = np.random.default_rng(seed)
        for _ in range(40):
            nodes = env.slot_nodes().tolist()
            for place, node in enumerate(nodes):
                for later in nodes[place + 1 :]:
                    assert before.setdefault((node, later), True)
                    assert (later, node) not in before
            env.step(int(rng.integers(len(nodes))))
    supporting = sum(instance.graph.atoms[instance.graph.node_atom[n]].stance is Stance.SUPPORT for n in first)
    assert 300 * 5 / 8 - 30 < supporting < 300 * 5 / 8 + 30  # five of eight observations support
    assert set(first) == set(range(1, 9))


def test_labels_are_independent_of_stance(instance_of: InstanceOf) -> None:
    env = GraphWalkEnv([instance_of([1], [1])])
    labels = []
    for seed in range(400):
        observation, _ = env.reset(seed=seed)
        labels.append(int(slots_of(observation)[slot_of(env, 1), SlotFeature.LABEL] * 64))
    assert 160 < labels.count(1) < 240
    assert set(labels) == {1, 2}


def test_evidence_of_another_claim(merged_instance: Instance) -> None:
    env = GraphWalkEnv([merged_instance], budget=9)
    env.reset(seed=0)
    observation = walk_along(env, 2, 6, 10, 8)  # over the shared source to the other claim's representation
    assert one_hot(observation, Context.LAST, 4) == 2  # a connector move
    assert one_hot(observation, Context.STANCE, 2) == -1
    assert slots_of(observation)[slot_of(env, 4), SlotFeature.READ_SOURCE] == 1.0  # the shared source was read
    observation = walk_along(env, 4)
    assert slots_of(observation)[slot_of(env, 5), SlotFeature.NEW_SOURCE] == 1.0  # source `two`
    assert round(float(slots_of(observation)[slot_of(env, 5), SlotFeature.LABEL]) * 64) == 3
    observation = walk_along(env, 5)  # read, but it says nothing of this claim
    assert [one_hot(observation, Context.SOURCES + k, 7) for k in (0, 7)] == [1, 0]
    assert one_hot(observation, Context.HERE, 4) == NodeKind.OBSERVATION


def test_nothing_is_left_of_the_last_episode(merged_instance: Instance, instance_of: InstanceOf) -> None:
    """Scratch arrays are shared between episodes and graphs; an episode must not see an earlier one."""
    many = merged_instances(400, seed=1, largest_claim=90)
    pool = [merged_instance, instance_of([2], [1]), *many]
    env = GraphWalkEnv(pool, budget=30)
    rng = np.random.default_rng(0)
    for round_number in range(60):
        wanted = int(rng.integers(len(pool))) if round_number % 3 else 2
        fresh = GraphWalkEnv(pool, budget=30)
        ours, theirs = (e.reset(seed=round_number, options={"instance": wanted})[0] for e in (env, fresh))
        assert np.array_equal(ours, theirs)
        for _ in range(30):
            if not env.slot_nodes().size:
                break
            action = int(rng.integers(len(env.slot_nodes())))
            ours, theirs = env.step(action)[0], fresh.step(action)[0]
            assert np.array_equal(ours, theirs)


def test_a_claim_with_more_sources_than_labels_are_scaled_to() -> None:
    (instance, *_) = merged_instances(1, largest_claim=150)
    env = GraphWalkEnv([instance], budget=10)
    observation, info = env.reset(seed=0)
    assert info["action_mask"][:NUM_SLOTS].all()
    assert observation in env.observation_space
    for _ in range(10):
        observation, *_ = env.step(int(np.argmax(slots_of(observation)[:, SlotFeature.NEW_SOURCE])))
        assert observation in env.observation_space
    assert env.walk is not None
    assert env.walk.acquired_sources[0] >= 3
    assert one_hot(observation, Context.SOURCES, 7) == min(env.walk.acquired_sources[0], 6)


@pytest.mark.parametrize("copy_of", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_in_mid_episode_goes_on_alike(copy_of: Callable[[GraphWalkEnv], GraphWalkEnv]) -> None:
    env = GraphWalkEnv(budget=10)
    env.reset(seed=5)
    env.step(0)
    twin = copy_of(env)
    for action in (1, 63, 0, 1):
        ours, theirs = env.step(action), twin.step(action)
        assert np.array_equal(ours[0], theirs[0])
        assert list(ours[4]["trace"]) == list(theirs[4]["trace"])
    assert np.array_equal(env.reset()[0], twin.reset()[0])


@pytest.mark.parametrize(
    ("action", "error"), [(-1, ValueError), (172, ValueError), (1.5, TypeError), ("walk", TypeError)]
)
def test_what_is_no_action_at_all(action: object, error: type[Exception]) -> None:
    env = GraphWalkEnv()
    env.reset(seed=0)
    with pytest.raises(error):
        env.step(action)  # type: ignore[arg-type]
    assert env.walk is not None
    assert env.walk.budget_left == 6


def test_an_unknown_mitigation_is_named() -> None:
    with pytest.raises(ValueError, match="mitigation 'M4' is unknown"):
        GraphWalkEnv(mitigation="M4")  # type: ignore[arg-type]
