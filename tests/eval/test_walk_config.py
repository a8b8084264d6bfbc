"""What an evaluation plays: configs refuse nonsense by name, seeds are derived, changed data shows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from provgym.envs.presentation import PresentationConfig
from provgym.eval.walk_config import (
    ClaimFiles,
    GraphEchoClaims,
    ScifactClaims,
    WalkEvalConfig,
    build_tasks,
    config_hash,
    instances_hash,
    load_instances,
)
from provgym.generators.claim_files import write_claims
from provgym.generators.graphecho import GraphEcho

SMALL = GraphEchoClaims(seed=1, splits={"train": 2, "dev": 2, "test": 3})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"budgts": [6]}, "budgts"),
        ({"budgets": [0]}, "greater than or equal to 1"),
        ({"budgets": []}, "at least 1"),
        ({"budgets": [6, 6]}, "names something twice"),
        ({"conditions": ["C9"]}, "'C9' is unknown"),
        ({"conditions": ["general"]}, "general_draws"),
        ({"conditions": [], "general_draws": 0}, "nothing to play"),
        ({"samples": 4}, "set decoding: sampled"),
        ({"mitigations": ["M7"]}, "M0"),
        ({"moves": "short"}, "'labelled' or 'aliases'"),
        ({"source_labels": "long"}, "'short', 'shuffled' or 'real'"),
        ({"split": "validation"}, "'train', 'dev' or 'test'"),
        ({"claims": {"kind": "csv"}}, "graphecho"),
        ({"claims": {"kind": "graphecho", "sed": 1}}, "sed"),
        ({"limit": 0}, "greater than or equal to 1"),
        ({"seed": -1}, "greater than or equal to 0"),
    ],
)
def test_bad_config_stops_at_load(fields: dict[str, Any], message: str) -> None:
    """Kind: config typing (an unknown key or bad value stops at load and names the key)."""
    with pytest.raises(ValidationError, match=message):
        WalkEvalConfig.model_validate(fields)


def test_default_is_the_five_conditions_and_one_general_draw() -> None:
    loaded = load_instances(WalkEvalConfig(claims=SMALL))
    assert [i.condition for i in loaded.instances[:5]] == ["C1", "C2", "C3", "C4", "C2R"]
    assert len(loaded.instances) == 3 * 5 + 3
    assert {i.split for i in loaded.instances} == {"test"}


def test_how_walks_are_shown_reaches_every_task() -> None:
    """Every field of the presentation is the evaluation's own, so that none can be forgotten on the way."""
    fields: dict[str, Any] = {
        "source_labels": "real",
        "preview_ids": "visited",
        "moves": "aliases",
        "max_content_characters": 99,
        "aliases": "shuffled",
    }
    config = WalkEvalConfig(claims=SMALL, mitigations=("M0", "M3"), **fields)
    tasks = build_tasks(config, load_instances(config).instances)
    assert {task.presentation for task in tasks} == {PresentationConfig(mitigation=m, **fields) for m in ("M0", "M3")}
    assert set(fields) | {"mitigation"} == {field.name for field in dataclasses.fields(PresentationConfig)}
    plain = PresentationConfig()
    assert WalkEvalConfig().presentation("M1") == plain
    assert (plain.source_labels, plain.preview_ids, plain.moves) == ("short", "shown", "labelled")


def test_limit_counts_base_claims_and_keeps_all_their_conditions() -> None:
    loaded = load_instances(WalkEvalConfig(claims=SMALL, limit=2, general_draws=2))
    claims = [i.base_claim.claim_id for i in loaded.instances]
    assert len(set(claims)) == 2
    assert all(claims.count(c) == 7 for c in claims)


def test_hash_follows_every_field_and_nothing_else() -> None:
    base = WalkEvalConfig()
    assert config_hash(base) == config_hash(WalkEvalConfig.model_validate({"budgets": [6]}))
    assert len(config_hash(base)) == 12
    for change in ({"seed": 43}, {"budgets": (3,)}, {"mitigations": ("M0",)}, {"limit": 5}):
        assert config_hash(base) != config_hash(base.model_copy(update=change))


def test_data_hash_follows_what_is_judged() -> None:
    instances = load_instances(WalkEvalConfig(claims=SMALL)).instances
    other = load_instances(WalkEvalConfig(claims=GraphEchoClaims(seed=2, splits=SMALL.splits))).instances
    assert instances_hash(instances) == instances_hash(list(instances))
    assert len({instances_hash(instances), instances_hash(other), instances_hash(instances[1:])}) == 3


def test_tasks_have_derived_seeds() -> None:
    """Kind: correlated workers (a group meets one presentation; everything else differs)."""
    config = WalkEvalConfig(claims=SMALL, budgets=(3, 6), mitigations=("M0", "M1"), samples=2, decoding="sampled")
    instances = load_instances(config).instances
    tasks = build_tasks(config, instances)
    assert len(tasks) == len(instances) * 8
    by_instance: dict[str, set[int]] = {}
    for task in tasks:
        by_instance.setdefault(task.instance.instance_id, set()).add(task.presentation_seed)
    assert all(len(seeds) == 1 for seeds in by_instance.values()), "policies and settings share a presentation"
    assert len({s for seeds in by_instance.values() for s in seeds}) == len(instances)
    assert len({task.sampling_seed for task in tasks}) == len(tasks)
    shifted = build_tasks(config.model_copy(update={"seed": 43}), instances)
    mine = {t.sampling_seed for t in tasks} | {t.presentation_seed for t in tasks}
    assert not mine & {t.sampling_seed for t in shifted}
    assert not mine & {t.presentation_seed for t in shifted}
    assert build_tasks(config, instances) == tasks


def test_seeds_of_an_instance_do_not_depend_on_the_others() -> None:
    config = WalkEvalConfig(claims=SMALL)
    instances = load_instances(config).instances
    alone = build_tasks(config, instances[4:5])[0]
    assert alone == build_tasks(config, instances)[4]


def test_members_of_a_group_are_adjacent() -> None:
    config = WalkEvalConfig(claims=SMALL, samples=3, decoding="sampled")
    tasks = build_tasks(config, load_instances(config).instances)
    assert [t.member for t in tasks[:6]] == [0, 1, 2, 0, 1, 2]
    assert tasks[0].instance is tasks[2].instance


def test_repeated_instance_id_is_refused() -> None:
    config = WalkEvalConfig(claims=SMALL)
    instance = load_instances(config).instances[0]
    with pytest.raises(ValueError, match="appears twice"):
        build_tasks(config, [instance, instance])


def test_claim_files_give_their_split_and_named_conditions(tmp_path: Path) -> None:
    data = GraphEcho.generate(1, {"dev": 2, "test": 2})
    path = tmp_path / "claims.jsonl"
    write_claims(path, data.instances("dev", ["C1", "C3"]) + data.instances("test", ["C1", "C2"]))
    config = WalkEvalConfig(claims=ClaimFiles(paths=(path,)), split="dev")
    assert {i.condition for i in load_instances(config).instances} == {"C1", "C3"}
    chosen = config.model_copy(update={"conditions": ("C3",)})
    assert {i.condition for i in load_instances(chosen).instances} == {"C3"}
    with pytest.raises(ValueError, match=r"no instance of conditions \['C2'\]; it has \['C1', 'C3'\]"):
        load_instances(config.model_copy(update={"conditions": ("C2",)}))
    with pytest.raises(ValueError, match="no instance of split 'train'"):
        load_instances(config.model_copy(update={"split": "train"}))


def test_scifact_dev_has_its_known_claims(shared_data: Path) -> None:
    folder = shared_data / "scifact"
    if not folder.is_dir():
        pytest.skip(f"no SciFact files at {folder}")
    loaded = load_instances(WalkEvalConfig(claims=ScifactClaims(folder=folder)))
    gold = {i.base_claim.claim_id: i.gold.value for i in loaded.instances}
    assert (len(loaded.instances), len(gold)) == (584, 188)
    assert list(gold.values()).count("SUPPORT") == 124
    assert "left out 112 claims" in loaded.report
    assert sum(loaded.left_out.values()) == 112
