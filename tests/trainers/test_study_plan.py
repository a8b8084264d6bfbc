"""What a study is told and the grid that follows from it: keys, arms, axes, budgets, what is finished."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from provgym.trainers.config_file import ConfigError, Given
from provgym.trainers.papt import training_hash
from provgym.trainers.run_grid import duration
from provgym.trainers.study_config import StudyConfig, load_study
from provgym.trainers.study_plan import describe_plan, label_of, plan_study, reuse_finished

BASE = {"name": "base", "phases": [{"steps": 3}, {"steps": 2, "weights": {"coverage": 1.2}}]}


def write_study(folder: Path, **fields: Any) -> Path:
    """A study of two arms and two seeds beside its base; fields replace its keys, None drops one."""
    data: dict[str, Any] = {
        "name": "trial",
        "base": "base.yaml",
        "seeds": [1, 2],
        "reference": "full",
        "arms": {"full": None, "echoes": {"phases.*.variant": "no_echo"}},
        "runs_dir": str(folder / "runs"),
    }
    folder.mkdir(exist_ok=True)
    (folder / "base.yaml").write_text(yaml.safe_dump(BASE))
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in (data | fields).items() if v is not None}, sort_keys=False))
    return path


def refusal(path: Path, overrides: tuple[Given, ...] = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        plan_study(load_study(path), path, overrides)
    return str(caught.value)


def test_arms_change_what_they_say_and_nothing_else(tmp_path: Path) -> None:
    path = write_study(
        tmp_path,
        arms={"full": None, "echoes": {"phases.*.variant": "no_echo"}, "rate": {"optim.learning_rate": 1e-3}},
    )
    full, echoes, rate = plan_study(load_study(path), path)
    assert [phase.variant for phase in echoes.config.phases] == ["no_echo", "no_echo"]
    assert echoes.config.phases[1].weights == {"coverage": 1.2}
    assert echoes.config.model_copy(update={"phases": full.config.phases, "name": full.config.name}) == full.config
    assert rate.config.optim.learning_rate == 1e-3
    assert [(r.seed, r.config.seed) for r in rate.runs] == [(1, 1), (2, 2)]
    assert [r.run_dir for r in full.runs] == [
        tmp_path / "runs" / "studies" / "trial" / "runs" / f"trial-full-s{seed}" for seed in (1, 2)
    ]
    assert (rate.label, rate.episodes) == ("rate", 5 * 16 * 4)


def test_axes_cross_every_arm(tmp_path: Path) -> None:
    path = write_study(tmp_path, axes={"walk.mitigation": ["M0", "M1"], "evaluation.budget": [3, 6]})
    cells = plan_study(load_study(path), path)
    assert len(cells) == 8
    assert len({cell.config.name for cell in cells}) == 8
    assert cells[1].label == "echoes, mitigation=M0, budget=3"
    assert cells[1].config.name == "trial-echoes-mitigation-M0-budget-3-s1"
    assert (cells[-1].config.walk.mitigation, cells[-1].config.evaluation.budget) == ("M1", 6)


@settings(max_examples=20)
@given(arms=st.integers(1, 4), seeds=st.integers(2, 4), first=st.integers(1, 3), second=st.integers(1, 3))
def test_the_grid_is_complete(
    tmp_path_factory: pytest.TempPathFactory, arms: int, seeds: int, first: int, second: int
) -> None:
    """Every arm at every point under every seed, each once, whatever the sizes."""
    path = write_study(
        tmp_path_factory.mktemp("grid"),
        arms={"full": None, **{f"a{i}": {"optim.learning_rate": 1e-3 * (i + 1)} for i in range(arms - 1)}},
        seeds=list(range(10, 10 + seeds)),
        axes={
            "optim.temperature": [1.0 + i for i in range(first)],
            "evaluation.budget": [3 + i for i in range(second)],
        },
    )
    cells = plan_study(load_study(path), path)
    runs = [(c.arm, c.point, r.seed) for c in cells for r in c.runs]
    assert len(runs) == len(set(runs)) == arms * seeds * first * second
    assert len({r.run_dir for c in cells for r in c.runs}) == len(runs)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"arm": {}}, "study.yaml: key 'arm' is unknown; did you mean 'arms'?"),
        ({"reference": "ful"}, "reference 'ful' is none of the arms ['full', 'echoes']"),
        ({"reference": None}, "key 'reference': Field required"),
        ({"seeds": [1]}, "seeds [1] must be at least two distinct"),
        ({"seeds": [1, 1]}, "at least two distinct"),
        ({"seeds": [1, True]}, "truth value"),
        ({"name": "../out"}, "key 'name': String should match pattern"),
        ({"arms": {}}, "key 'arms'"),
        ({"arms": {"full": None, "a/b": None}}, "arm 'a/b' must be made of letters"),
        ({"arms": {"full": None, "ceiling": None}}, "arm 'ceiling' would stand for the ceiling in every table"),
        ({"axes": {"walk.mitigation": []}}, "give at least one, each once"),
        ({"axes": {"walk.mitigation": ["M0", "M0"]}}, "give at least one, each once"),
        ({"axes": {"phases.0.variant": ["full"]}}, "is also set by the arms ['echoes']"),
        ({"base": "nowhere.yaml"}, "nowhere.yaml does not exist"),
        ({"base": "bas.yaml"}, "did you mean"),
    ],
)
def test_a_bad_study_is_refused_by_key(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    """Config typing: unknown keys and bad values stop at load and name key, file and expectation."""
    path = write_study(tmp_path, **fields)
    with pytest.raises(ConfigError) as caught:
        plan_study(load_study(path), path)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optim.learing_rate": 1}, "arm 'echoes': key 'optim.learing_rate' is unknown; did you mean"),
        ({"optim.group_size": 1}, "arm 'echoes': key 'optim.group_size': Input should be greater"),
        ({"phases.5.steps": 1}, "arm 'echoes': phases.5.steps: '5' must be an index below 2"),
        ({"walk.*.x": 1}, "arm 'echoes': walk.*.x: 'walk' holds None, expected a list"),
        ({"phases.*.variant": "half"}, "arm 'echoes': key 'phases.0.variant': Input should be 'full'"),
        ({"seed": 5}, "arm 'echoes': seed: is decided by the study"),
        ({"runs_dir": "x"}, "is decided by the study"),
        ({}, "'full' and 'echoes' come to the same run"),
        ({"tracking.project": "p"}, "come to the same run"),
        ({"phases.0.steps": 4}, "'full' trains 5 steps on 320 episodes, 'echoes' 6 steps on 384"),
        ({"optim.group_size": 8}, "'full' trains 5 steps on 320 episodes, 'echoes' 5 steps on 640"),
        ({"evaluation.budget": 3}, "'echoes' is measured with evaluation.budget 3, 'full' with 6"),
        ({"data.seed": 7}, "'echoes' is measured with data.seed 7, 'full' with 42"),
        ({"walk.moves": "aliases"}, "'echoes' is measured with walk.moves 'aliases', 'full' with 'labelled'"),
    ],
)
def test_a_bad_arm_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    assert said in refusal(write_study(tmp_path, arms={"full": None, "echoes": changes}))


def test_other_budgets_only_when_asked_for(tmp_path: Path) -> None:
    path = write_study(tmp_path, arms={"full": None, "longer": {"phases.0.steps": 9}}, allow_different_budgets=True)
    assert [cell.config.total_steps for cell in plan_study(load_study(path), path)] == [5, 11]


def test_the_command_line_beats_arms_and_leaves_the_study_as_it_was(tmp_path: Path) -> None:
    """Mutable defaults: a value that goes into an arm's own list does not change the arm."""
    path = write_study(tmp_path, arms={"full": None, "one": {"phases": [{"steps": 5}], "optim.learning_rate": 1e-3}})
    study = load_study(path)
    before = study.model_dump()
    overrides = (Given("phases.0.variant", "no_echo"), Given("optim.temperature", 2.0))
    cells = plan_study(study, path, overrides)
    assert [cell.config.phases[0].variant for cell in cells] == ["no_echo", "no_echo"]
    assert {cell.config.optim.temperature for cell in cells} == {2.0}
    assert study.model_dump() == before
    assert "command line: --name: is decided by the study" in refusal(path, (Given("name", "x"),))
    # What makes two arms the same is refused, whoever said it.
    assert "come to the same run" in refusal(
        write_study(tmp_path, arms={"full": None, "rate": {"optim.learning_rate": 1e-3}}),
        (Given("optim.learning_rate", 1e-4),),
    )


def test_part_of_a_study_keeps_its_reference(tmp_path: Path) -> None:
    path = write_study(tmp_path, arms={"a": {"optim.clip": 0.1}, "full": None, "b": {"optim.clip": 0.3}})
    study = load_study(path, seeds=[7, 8, 9], arms=["b"])
    assert (list(study.arms), study.seeds) == (["full", "b"], (7, 8, 9))
    with pytest.raises(ConfigError, match="--arms fulll: .* has no such arm; did you mean 'full'"):
        load_study(path, arms=["fulll"])
    with pytest.raises(ConfigError, match="command line: key 'seeds'"):
        load_study(path, seeds=[7])


def finish(folder: Path, training: str, evaluation: dict[str, Any], seconds: float = 60.0) -> None:
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps({"training_hash": training, "seconds_this_segment": seconds}))
    (folder / "config.yaml").write_text(yaml.safe_dump(BASE | {"evaluation": evaluation}))


def test_plan_says_what_is_finished_and_how_long_the_rest_takes(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    cells = plan_study(load_study(path), path)
    assert describe_plan(cells, 1)[-1] == "4 runs: 0 finished, 4 to do, no finished run to estimate the time from"
    for run, seconds in zip(cells[0].runs, (600.0, 1200.0), strict=True):
        finish(run.run_dir, training_hash(run.config), {}, seconds)
    lines = describe_plan(cells, 2)
    assert [line.rsplit(": ", 1)[1] for line in lines[:4]] == ["finished", "finished", "to do", "to do"]
    assert lines[-1] == "4 runs: 2 finished, 2 to do, about 15 min (15 min a run, by 2 finished)"
    assert describe_plan(cells[:1], 1)[-1] == "2 runs: 2 finished, 0 to do, nothing to do"


def test_finished_runs_elsewhere_count_only_if_trained_and_measured_alike(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    cells = plan_study(load_study(path), path)
    first, second = cells[0].runs
    finish(tmp_path / "old" / "same", training_hash(first.config), {})
    finish(tmp_path / "old" / "otherwise-measured", training_hash(second.config), {"budget": 3})
    (tmp_path / "old" / "broken").mkdir()
    (tmp_path / "old" / "broken" / "summary.json").write_text("[1]")
    (tmp_path / "old" / "half").mkdir()
    (tmp_path / "old" / "half" / "summary.json").write_text("{")
    found = reuse_finished(cells, [tmp_path / "old"])
    assert found[0].runs[0].run_dir == tmp_path / "old" / "same"
    assert found[0].runs[0].seed == 1
    assert [r.run_dir for c in found for r in c.runs][1:] == [r.run_dir for c in cells for r in c.runs][1:]
    first.run_dir.mkdir(parents=True)  # what was begun here goes on here
    assert reuse_finished(cells, [tmp_path / "old"])[0].runs[0].run_dir == first.run_dir
    with pytest.raises(ConfigError, match="--reuse .*gone is no folder"):
        reuse_finished(cells, [tmp_path / "gone"])


def test_shipped_studies_are_comparable(repository: Path) -> None:
    """Every arm of a shipped study loads, differs from the others, and has the same training budget."""
    for path in sorted((repository / "configs" / "studies").glob("*.yaml")):
        study = load_study(path)
        assert not study.allow_different_budgets
        cells = plan_study(study, path)
        assert [cell.arm for cell in cells] == list(study.arms)
        assert len(study.seeds) == 5
    ablations = StudyConfig.model_validate(
        yaml.safe_load((repository / "configs" / "studies" / "papt-ablations.yaml").read_text())
    )
    assert list(ablations.arms) == ["full", "no_echo", "no_coverage", "verdict_only", "ours_phases", "ours_split"]


def test_labels_and_durations() -> None:
    assert label_of("a", ()) == "a"
    assert [duration(s) for s in (0.4, 89.6, 91, 5399, 5400)] == ["0 s", "90 s", "2 min", "90 min", "1.5 h"]
