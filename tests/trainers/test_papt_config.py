"""The configuration of a PAPT run: what it refuses, and what its parts mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from provgym.envs.presentation import PresentationConfig
from provgym.trainers.papt_config import CheckpointConfig, PaptConfig, PhaseConfig


def make(**fields: Any) -> PaptConfig:
    return PaptConfig.model_validate(
        {"name": "run", "phases": [{"steps": 3}, {"steps": 2, "variant": "no_echo"}], **fields}
    )


def refused(**fields: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        make(**fields)
    return str(caught.value)


def test_phases_follow_each_other() -> None:
    config = make()
    assert config.total_steps == 5
    assert [config.phase_of_step(i).variant for i in range(5)] == ["full", "full", "full", "no_echo", "no_echo"]
    with pytest.raises(ValueError, match="past the last of 5"):
        config.phase_of_step(5)


def test_rubric_of_a_phase() -> None:
    def weights(**fields: Any) -> dict[str, float]:
        return {name: w for name, w in PhaseConfig(steps=1, **fields).rubric().weights.items() if w}

    found = weights(variant="no_coverage", weights={"echo": -0.8, "coverage": 1.2})
    assert found == {"verdict": 1.0, "count": 0.4, "echo": -0.8, "cost": -0.05}
    assert weights(variant="verdict_only") == {"verdict": 1.0}


def test_best_checkpoint_cannot_be_deleted() -> None:
    """Best checkpoint deleted: keeping fewer than selection looks at is refused."""
    with pytest.raises(ValidationError, match="keep=2 is below select_last=3"):
        CheckpointConfig(keep=2, select_last=3)
    assert CheckpointConfig(keep=-1, select_last=50).keep == -1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"data": {"conditions": ["C9"]}}, "condition 'C9' is unknown"),
        ({"data": {"conditions": ["6S6P"]}}, "at most 5"),
        ({"data": {"conditions": []}}, "conditions is empty"),
        ({"walk": {"budgets": [0]}}, "from 1 to 10000"),
        ({"walk": {"budgets": []}}, "from 1 to 10000"),
        ({"walk": {"mitigation": "M4"}}, "'M0', 'M1', 'M2' or 'M3'"),
        ({"walk": {"moves": "short"}}, "'labelled' or 'aliases'"),
        ({"walk": {"source_labels": "long"}}, "'short', 'shuffled' or 'real'"),
        ({"model": {"kind": "hf"}}, "needs model.path"),
        ({"model": {"kind": "smollm2", "path": "x"}}, "brings its own weights"),
        ({"phases": []}, "at least 1"),
        ({"phases": [{"steps": 1, "weights": {"ecko": 1}}]}, r"weights \['ecko'\] are unknown"),
        ({"optim": {"group_size": 1}}, "greater than or equal to 2"),
        ({"name": "a/b"}, "should match pattern"),
        ({"name": ""}, "should match pattern"),
        ({"name": "."}, "should match pattern"),  # --fresh would remove every run
        ({"name": ".."}, "should match pattern"),  # or the folder that holds them
        ({"generation": {"vllm_gpu_memory": 1.0}}, "less than 1"),
        ({"walk": {"presentations": [{"mitigation": "M4"}]}}, "'M0', 'M1', 'M2' or 'M3'"),
        ({"walk": {"presentations": [{"budget": 3}]}}, "Extra inputs"),
        ({"phases": [{"steps": 2, "weights_to": {"ecko": 1}}]}, r"weights_to \['ecko'\] are unknown"),
        ({"phases": [{"steps": 1, "weights_to": {"echo": 1}}]}, "2 steps or more to change over, found steps=1"),
        ({"phases": [{"steps": 2, "weights_to": {"echo": True}}]}, "truth value"),
        ({"phases": [{"steps": 1, "shaping": {"weight": 1}}]}, "phases.0.shaping needs credit for single actions"),
        (
            {"phases": [{"steps": 1, "shaping": {"weight": 1, "per": 0}}], "optim": {"credit": "step"}},
            "greater than or equal to 1",
        ),
        ({"data": {"adversarial_share": 0.5}}, "there are none: claims=None, general_share=0.0"),
        ({"data": {"adversarial_share": 0.5, "general_share": 1, "claims": "own.jsonl"}}, "claims=own.jsonl"),
        ({"data": {"adversarial_share": 1.5, "general_share": 1}}, "less than or equal to 1"),
        ({"optim": {"scale_advantages": "row"}}, "'group', 'batch' or 'none'"),
        ({"optim": {"scale_advantages": None}}, "'group', 'batch' or 'none'"),
        ({"optim": {"discount": 1.5}}, "less than or equal to 1"),
        ({"optim": {"step_weight": -1}}, "greater than or equal to 0"),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        make(**fields)


def test_general_conditions_alone_need_no_named_ones() -> None:
    assert make(data={"conditions": [], "general_share": 1.0}).data.conditions == ()


def test_nothing_is_shared_between_two_configurations() -> None:
    """Mutable defaults: defaults are frozen, and a caller's own data is not changed."""
    data: dict[str, Any] = {"name": "run", "phases": [{"steps": 1, "weights": {"echo": -1.0}}]}
    first = PaptConfig.model_validate(data)
    data["phases"][0]["weights"]["echo"] = 5.0
    assert first.phases[0].weights["echo"] == -1.0
    with pytest.raises(ValidationError, match="frozen"):
        setattr(first.optim, "group_size", 8)  # noqa: B010 - assignment is what is refused
    assert PhaseConfig(steps=1).weights is not PhaseConfig(steps=1).weights


def test_run_folder() -> None:
    assert make(runs_dir="elsewhere").run_dir == Path("elsewhere/run")


def test_seed_zero_is_a_seed() -> None:
    """Global RNG: seed 0 is a seed."""
    assert make(seed=0).seed == 0
    assert "greater than or equal to 0" in refused(seed=-1)


@pytest.mark.parametrize(
    ("given", "meant"),
    [(True, "group"), (False, "none"), ("no", "none"), ("yes", "group"), *((s, s) for s in ("group", "batch", "none"))],
)
def test_a_truth_value_is_a_scale_of_advantages(given: Any, meant: str) -> None:
    """Config typing: false is false, written as before there was a third choice; and one meaning has one hash."""
    assert make(optim={"scale_advantages": given}) == make(optim={"scale_advantages": meant})
    assert make(optim={"scale_advantages": given}).optim.scale_advantages == meant


def test_weights_change_linearly_over_a_phase() -> None:
    """From the first step's weight to the last one's; what is not named stays, and phases know only their own steps."""
    fields = {"weights": {"cost": 0.0, "coverage": 1.2}, "weights_to": {"cost": -0.2, "echo": -0.8}}
    config = make(phases=[{"steps": 2}, {"steps": 5, **fields}, {"steps": 1}])
    found = [config.rubric_of_step(step).weights for step in range(8)]
    assert [w["cost"] for w in found] == pytest.approx([-0.05, -0.05, 0.0, -0.05, -0.1, -0.15, -0.2, -0.05])
    assert [w["echo"] for w in found] == pytest.approx([-0.4, -0.4, -0.4, -0.5, -0.6, -0.7, -0.8, -0.4])
    assert [w["coverage"] for w in found] == [0.4, 0.4, 1.2, 1.2, 1.2, 1.2, 1.2, 0.4]
    assert found[6]["cost"] == -0.2, "the end is exact"
    assert {w["verdict"] for w in found} == {1.0}


def test_a_variant_drops_a_term_whatever_it_changes_to() -> None:
    phase = PhaseConfig(steps=3, variant="no_echo", weights_to={"echo": -2.0})
    assert [phase.rubric(step).weights["echo"] for step in range(3)] == [0.0, 0.0, 0.0]


def test_a_phase_without_change_has_one_rubric() -> None:
    phase = PhaseConfig(steps=9, weights={"echo": -0.7})
    assert dict(phase.rubric(8).weights) == dict(phase.rubric().weights)


def test_presentations_fill_in_the_plain_one() -> None:
    walk = make(
        walk={
            "mitigation": "M2",
            "preview_ids": "visited",
            "presentations": [{}, {"mitigation": "M0"}, {"moves": "aliases"}],
        }
    ).walk
    plain = PresentationConfig("M2", "short", "visited", "labelled")
    assert walk.presentation() == plain
    assert walk.training_presentations() == (plain, replace(plain, mitigation="M0"), replace(plain, moves="aliases"))
    assert make().walk.training_presentations() == (make().walk.presentation(),)
