"""What is walked in which step: fixed by the seed, in equal parts, whatever the number of processes."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provgym.envs.presentation import PresentationConfig
from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL
from provgym.generators.episode import EpisodeTask
from provgym.trainers.papt_config import PaptConfig, WalkConfig
from provgym.trainers.papt_evaluation import walk_eval_config
from provgym.trainers.training_rows import TrainingRows, load_pool


def build(
    *, steps: int = 4, groups: int = 4, train: int = 20, share: float = 0.5, seed: int = 42, **other: Any
) -> TrainingRows:
    config = PaptConfig.model_validate(
        {
            "name": "rows",
            "seed": seed,
            "phases": [{"steps": steps}],
            "data": {"train_claims": train, "dev_claims": 2, "test_claims": 2, "general_share": share},
            "optim": {"groups_per_step": groups},
        }
        | other
    )
    return TrainingRows(config, load_pool(config.data))


def walked(rows: TrainingRows, first: int, last: int) -> list[Any]:
    return [rows.instance(row) for row in range(first, last)]


def content(task: EpisodeTask) -> tuple[Any, ...]:
    """Return all that a task says; graphs are compared by what they hold."""
    instance, graph = task.instance, task.instance.graph
    drawn = (instance.instance_id, instance.condition, instance.gold, graph.claims, graph.atoms, graph.routes)
    return (*drawn, task.budget, task.presentation, task.presentation_seed, task.sampling_seed, task.member)


def test_one_epoch_of_the_source_uses_each_claim_once() -> None:
    """500 train claims, 100 instances of each condition, none general."""
    rows = build(steps=25, groups=20, train=500, share=0.0)
    assert len(rows) == 500
    instances = walked(rows, 0, 500)
    assert len({i.base_claim.claim_id for i in instances}) == 500
    assert Counter(i.condition for i in instances) == dict.fromkeys(CONFLICT_CONDITIONS, 100)
    assert {i.split for i in instances} == {"train"}


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.25, 10), (0.5, 20), (1.0, 40)])
def test_general_share(share: float, expected: int) -> None:
    counts = Counter(i.condition for i in walked(build(train=40, share=share, steps=10), 0, 40))
    assert counts[GENERAL] == expected
    named = [counts[name] for name in CONFLICT_CONDITIONS]
    assert max(named) - min(named) <= 1, "equal parts"


def test_parts_stay_equal_over_epochs_that_do_not_divide() -> None:
    """7 claims, 5 conditions, a third general: what is left over is carried on."""
    instances = walked(build(train=7, share=1 / 3, steps=60), 0, 7 * 30)
    counts = Counter(i.condition for i in instances)
    assert counts[GENERAL] == 70
    assert {counts[name] for name in CONFLICT_CONDITIONS} == {28}
    for epoch in range(30):
        assert len({i.base_claim.claim_id for i in instances[7 * epoch : 7 * epoch + 7]}) == 7


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(1, 12),
    share=st.floats(0.0, 1.0),
    names=st.lists(st.sampled_from([*CONFLICT_CONDITIONS, "1S5P", "5S5P"]), unique=True),
    epochs=st.integers(1, 6),
)
def test_equal_parts_hold_for_any_mix(count: int, share: float, names: list[str], epochs: int) -> None:
    share = share if names else 1.0
    data = {"train_claims": count, "dev_claims": 1, "test_claims": 1, "general_share": share, "conditions": names}
    rows = build(steps=count * epochs, groups=1, data=data)
    counts = Counter(i.condition for i in walked(rows, 0, count * epochs))
    assert abs(counts[GENERAL] - share * count * epochs) <= 0.5 + 1e-9
    named = [counts[name] for name in names]
    assert not named or max(named) - min(named) <= 1


def test_epochs_differ_in_order_and_in_general_draws() -> None:
    rows = build(train=20, share=1.0, steps=20)
    first, second = walked(rows, 0, 20), walked(rows, 20, 40)
    assert [i.base_claim.claim_id for i in first] != [i.base_claim.claim_id for i in second]
    assert not {i.instance_id for i in first} & {i.instance_id for i in second}


def test_general_draws_are_not_those_of_the_evaluation() -> None:
    """Splits don't leak, and neither do draws: an evaluation of train claims would meet other general conditions."""
    rows = build(share=1.0)
    trained = {i.instance_id for i in walked(rows, 0, 20)}
    evaluated = {i.instance_id for i in rows.pool.of_split("train", (GENERAL,), 5)}
    assert len(evaluated) == 100
    assert not trained & evaluated


def test_same_seed_same_rows() -> None:
    one, two, other = build(), build(), build(seed=43)
    ids = [[i.instance_id for i in walked(rows, 0, 16)] for rows in (one, two, other)]
    assert ids[0] == ids[1]
    assert ids[0] != ids[2]
    assert content(one.task(5, 2)) == content(two.task(5, 2))


def test_neighbouring_seeds_are_unrelated() -> None:
    """Kind: correlated workers (seed 43 is not a shifted seed 42)."""
    ids = [[i.base_claim.claim_id for i in walked(build(seed=seed), 0, 20)] for seed in (42, 43)]
    assert all(ids[0][shift:] != ids[1][: 20 - shift] for shift in range(15))
    seeds = [{build(seed=seed).task(row, m).sampling_seed for row in range(16) for m in range(4)} for seed in (42, 43)]
    assert not seeds[0] & seeds[1]
    assert len(seeds[0]) == 64


def test_group_shares_presentation_and_budget() -> None:
    """Kind: correlated workers (within a group the instance is the same)."""
    rows = build(walk={"budgets": [3, 5, 8]})
    budgets = set()
    for row in range(16):
        members = [rows.task(row, member) for member in range(4)]
        assert len({m.instance.instance_id for m in members}) == 1
        assert len({m.presentation_seed for m in members}) == 1
        assert len({m.budget for m in members}) == 1
        assert len({m.sampling_seed for m in members}) == 4
        assert [m.member for m in members] == [0, 1, 2, 3]
        budgets.add(members[0].budget)
    assert budgets == {3, 5, 8}
    assert len({rows.task(row, 0).presentation_seed for row in range(16)}) == 16


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_rows_do_not_depend_on_the_processes(processes: int) -> None:
    """A process plays a slice of the step's rows; together they are the same tasks."""
    rows = build()
    repeated = [row for row in range(4) for _ in range(4)]
    share = len(repeated) // processes
    played = []
    for rank in range(processes):
        mine = repeated[rank * share : (rank + 1) * share]
        played += [content(rows.task(row, (rank * share + i) % 4)) for i, row in enumerate(mine)]
    alone = build()
    assert played == [content(alone.task(row, member)) for row in range(4) for member in range(4)]


def test_rows_belong_to_steps() -> None:
    rows = build(steps=3, groups=4)
    assert len(rows) == 12
    assert [rows.step_of(row) for row in range(12)] == [0] * 4 + [1] * 4 + [2] * 4


def test_global_random_state_is_left_alone() -> None:
    """Kind: global RNG."""
    before = str(np.random.get_state())  # noqa: NPY002 - the very state that must not be touched
    build().task(3, 1)
    assert str(np.random.get_state()) == before  # noqa: NPY002


def test_verdicts_of_general_conditions_are_balanced() -> None:
    """Each verdict is drawn with probability 1/3: within five standard deviations over 600 draws."""
    golds = Counter(i.gold.value for i in walked(build(train=200, share=1.0, steps=150), 0, 600))
    assert all(abs(golds[name] - 200) < 5 * (600 * 2 / 9) ** 0.5 for name in ("SUPPORT", "REFUTE", "MIXED"))


def own_file(folder: Path, splits: list[str]) -> Path:
    path = folder / "own.jsonl"
    lines = [
        {
            "id": f"own-{number}",
            "claim": f"Claim {number} holds.",
            "split": split,
            "evidence": [{"source": f"lab {number}", "stance": "SUPPORT", "text": f"It held {number} times."}],
        }
        for number, split in enumerate(splits)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_own_claim_file(tmp_path: Path) -> None:
    path = own_file(tmp_path, ["train", "train", "dev", "train", "test"])
    rows = build(steps=2, groups=3, data={"claims": str(path)})
    assert rows.pool.is_own
    assert sorted(i.instance_id for i in walked(rows, 0, 3)) == ["own-0", "own-1", "own-3"]
    assert sorted(i.instance_id for i in walked(rows, 3, 6)) == ["own-0", "own-1", "own-3"]
    for before, after in pairwise(range(6)):
        assert rows.task(before, 0).sampling_seed != rows.task(after, 0).sampling_seed
    assert [i.instance_id for i in rows.pool.of_split("dev", (), 0)] == ["own-2"]


@pytest.mark.parametrize("missing", ["train", "dev", "test"])
def test_own_claim_file_without_a_split_is_refused_before_training(tmp_path: Path, missing: str) -> None:
    path = own_file(tmp_path, [s for s in ("train", "dev", "test") if s != missing])
    with pytest.raises(ValueError, match=f"own.jsonl has no instance with split '{missing}'"):
        build(data={"claims": str(path)})


SHOWN = [{}, {"mitigation": "M3"}, {"mitigation": "M0", "moves": "aliases"}, {"preview_ids": "visited"}]


def test_a_group_is_shown_one_presentation_and_groups_differ() -> None:
    """Kind: correlated workers (within a group the instance, and how it is shown, are the same)."""
    rows = build(steps=10, walk={"presentations": SHOWN})
    allowed = rows.config.walk.training_presentations()
    drawn: list[PresentationConfig] = []
    for row in range(40):
        shown = {rows.task(row, member).presentation for member in range(4)}
        assert len(shown) == 1
        drawn += shown
    assert set(drawn) == set(allowed)
    assert [rows.task(row, 0).presentation for row in range(40)] == drawn, "the same each time"
    other = build(steps=10, seed=43, walk={"presentations": SHOWN})
    assert [other.task(row, 0).presentation for row in range(40)] != drawn


def test_presentations_are_drawn_with_equal_chances() -> None:
    """Within five standard deviations over 600 rows; an entry given twice is drawn twice as often."""
    rows = build(train=200, steps=150, walk={"presentations": [{}, {"mitigation": "M3"}, {"mitigation": "M3"}]})
    counts = Counter(rows.task(row, 0).presentation.mitigation for row in range(600))
    assert abs(counts["M1"] - 200) < 5 * (600 * 2 / 9) ** 0.5
    assert counts["M1"] + counts["M3"] == 600


def test_drawing_presentations_leaves_everything_else_as_it_was() -> None:
    """Off by default, and on: the same instances, budgets, orders and sampling seeds, so that arms can be compared."""
    plain, varied = (build(walk={"budgets": [3, 6], "presentations": presentations}) for presentations in ([], SHOWN))
    for row in range(16):
        one, two = plain.task(row, 1), varied.task(row, 1)
        assert one.presentation == WalkConfig().presentation()
        assert content(one)[:-4] == content(two)[:-4]
        assert content(one)[-3:] == content(two)[-3:]


def test_evaluation_keeps_the_plain_presentation() -> None:
    config = build(walk={"mitigation": "M2", "presentations": SHOWN}).config
    found = walk_eval_config(config, "dev", CONFLICT_CONDITIONS, 1, None)
    assert found.mitigations == ("M2",)
    assert found.presentation("M2") == config.walk.presentation()


def is_adversarial(instance: Any) -> bool:
    """Whether counting routes gives another verdict than the gold one, read from the graph itself."""
    graph = instance.graph
    stances = {atom.atom_id: atom.stance.value for atom in graph.atoms}
    routes = Counter(stances[route.atom_id] for route in graph.routes)
    majority = "MIXED" if routes["SUPPORT"] == routes["REFUTE"] else max(routes, key=lambda s: routes[s])
    return bool(majority != instance.gold.value)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_adversarial_share_of_general_conditions(share: float) -> None:
    """Exact over an epoch, carried over epochs; conflict conditions and the balance of verdicts are left alone."""
    data = {"train_claims": 100, "dev_claims": 1, "test_claims": 1, "general_share": 0.6, "adversarial_share": share}
    rows = build(steps=50, data=data)
    walked_rows = walked(rows, 0, 200)
    for epoch in (walked_rows[:100], walked_rows[100:]):
        general = [i for i in epoch if i.condition == GENERAL]
        assert len(general) == 60
        assert sum(map(is_adversarial, general)) == round(60 * share)
    plain = walked(build(steps=50, data={**data, "adversarial_share": None}), 0, 200)
    pairs = list(zip(walked_rows, plain, strict=True))
    assert [(a.base_claim.claim_id, a.condition) for a, _ in pairs] == [
        (b.base_claim.claim_id, b.condition) for _, b in pairs
    ]
    assert all(a.instance_id == b.instance_id for a, b in pairs if a.condition != GENERAL)


def test_adversarial_parts_are_carried_over_epochs() -> None:
    """Three general rows an epoch, half of them adversarial: 15 of 30 after ten epochs."""
    data = {"train_claims": 3, "dev_claims": 1, "test_claims": 1, "general_share": 1.0, "adversarial_share": 0.5}
    found = [is_adversarial(i) for i in walked(build(steps=30, groups=1, data=data), 0, 30)]
    assert sum(found) == 15
    assert {sum(found[i : i + 3]) for i in range(0, 30, 3)} == {1, 2}


def test_adversarial_share_leaves_evaluation_draws_alone() -> None:
    """Splits don't leak, and what is measured does not move with what is trained on."""
    data = {"train_claims": 4, "dev_claims": 8, "test_claims": 8, "general_share": 1.0}
    pools = [build(data={**data, "adversarial_share": share}).pool for share in (None, 1.0)]
    for split in ("dev", "test"):
        plain, other = ([i.instance_id for i in pool.of_split(split, (GENERAL,), 3)] for pool in pools)
        assert plain == other
