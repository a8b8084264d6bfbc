"""The configuration of a PAPT run: what it refuses, and what its parts mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

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
