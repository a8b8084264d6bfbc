"""What a K-GAT run refuses at load, and how its keys are named."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.trainers.kgat_runs import make_config

from provgym.trainers import kgat, reinforce
from provgym.trainers.config_file import ConfigError, load_config
from provgym.trainers.kgat_config import KgatConfig
from provgym.trainers.kgat_learning_config import KgatOptimConfig
from provgym.trainers.kgat_optimisation import learning_rate_of


def load(tmp_path: Path, *overrides: str, **data: object) -> KgatConfig:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"name": "run", **data}))
    return load_config(KgatConfig, file, overrides)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--mining.replicatez", "3"), "did you mean 'mining.replicates'"),
        (("--lr", "1e-3"), "here it is 'optim.learning_rate'"),
        (("--n_max", "8"), "here it is 'generator.max_nodes'"),
        (("--mining.replicates", "0"), "greater than or equal to 1; found 0"),
        (("--mining.replicates", "1"), "can't be halved 1 times"),
        (("--mining.target_temperature", "0"), "greater than 0"),
        (("--curriculum.pi_first", "0.9"), "pi_last=0.6 is below pi_first=0.9"),
        (("--generator.max_nodes", "0"), "greater than or equal to 1"),
        (("--generator.role_names", "[Planner, Reasoner]"), "Answerer"),
        (("--reinforce.samples", "1"), "leaves no other sample for the baseline"),
        (("--agents.kind", "endpoint"), "needs the section endpoint"),
        (("--agents.kind", "hf"), "needs model"),
        (("--agents.skills", "{answer: {ecko: 1}}"), "rate 'ecko' is unknown"),
        (("--agents.skills", "{answer: {echo: 2}}"), "must be a probability"),
        (("--agents.cache", "memory", "--agents.cache_dir", "x"), "goes with cache: disk"),
        (("--evaluation.methods", "[kgat, luck]"), "expected some of kgat"),
        (("--name", "../x"), "String should match"),
    ],
)
def test_bad_values_stop_at_load(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    """Kind: config typing."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, *words)
    assert message in str(caught.value)


def test_numbers_in_either_form_and_the_command_line_wins(tmp_path: Path) -> None:
    """Kind: config typing."""
    config = load(tmp_path, "--optim.learning_rate", "5e-4", optim={"learning_rate": "1e-5"}, score={"node": "0.5"})
    assert (config.optim.learning_rate, config.score.node) == (5e-4, 0.5)
    assert load(tmp_path, "--agents.error_factor", "0").agents.error_model().answer.echo == 0.0
    changed = load(tmp_path, "--agents.skills.answer.echo", "0.1").agents.error_model()
    assert (changed.answer.echo, changed.reason.echo) == (0.1, 0.85)


def test_a_wrong_command_is_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for program in (kgat, reinforce):
        assert program.main(["--config", str(tmp_path / "nothing.yaml")]) == 2
        assert "does not exist" in capsys.readouterr().err


def test_only_what_decides_the_generator_is_hashed(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    for same in ({"name": "other"}, {"evaluation__replicates": 3}, {"reinforce__steps": 3}, {"num_processes": 1}):
        assert kgat.training_hash(make_config(tmp_path, **same)) == kgat.training_hash(config)
    for other in ({"seed": 43}, {"score__node": 0.1}, {"mining__p_min": 0.4}, {"conditioning": "query"}):
        assert kgat.training_hash(make_config(tmp_path, **other)) != kgat.training_hash(config)
    assert reinforce.training_hash(make_config(tmp_path, mining__p_min=0.4)) == reinforce.training_hash(config)
    assert reinforce.training_hash(make_config(tmp_path, reinforce__steps=3)) != reinforce.training_hash(config)


def test_second_generator_methods_go_with_the_control(tmp_path: Path) -> None:
    plain = make_config(tmp_path, evaluation={"methods": ["kgat", "query_conditioned"], "trains_query_control": False})
    assert plain.evaluation.played_methods() == ("kgat",)
    assert "query_conditioned" in make_config(tmp_path, evaluation={}).evaluation.played_methods()


def test_constant_schedule_after_warm_up() -> None:
    config = KgatOptimConfig(learning_rate=1.0, warmup_steps=0, schedule="constant")
    assert [learning_rate_of(step, 5, config) for step in range(5)] == [1.0] * 5
