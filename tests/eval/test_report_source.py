"""Which folders a report reads, and what it says of the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.eval.report_runs import write_hostile_run, write_training_run

from provgym.eval.report_credit import objectives_of
from provgym.eval.report_source import read_source
from provgym.eval.report_walks import collect_walks
from provgym.generators.json_lines import BadFileError


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training_run(tmp_path_factory.mktemp("training"))


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    return write_hostile_run(tmp_path)


def test_a_training_run_is_read_in_the_order_start_trained_ceiling(training: Path) -> None:
    source = read_source(training)
    assert (source.kind, source.name) == ("training", "small")
    assert [policy.name for policy in source.policies] == ["start", "trained", "ceiling"]
    assert [len(policy.episodes()) for policy in source.policies] == [16, 16, 16]
    assert len(source.phases) == 2
    assert source.metrics_file == training / "metrics.jsonl"


def test_an_evaluation_and_one_policy_of_it(evaluation: Path) -> None:
    assert len(read_source(evaluation).policies) == 2
    one = read_source(evaluation / "p1")
    assert (one.kind, [policy.name for policy in one.policies]) == ("evaluation", ["naive"])


def test_the_order_of_policies_is_that_of_the_stored_comparison(evaluation: Path) -> None:
    names = [policy.name for policy in read_source(evaluation).policies]
    rows = [{"first": names[0], "second": names[1], "metric": "walks", "difference": {}}]
    (evaluation / "comparison.json").write_text(json.dumps({"comparisons": rows}), encoding="utf-8")
    assert [policy.name for policy in read_source(evaluation).policies] == names[::-1]


def test_a_missing_folder_names_near_ones(training: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"does not exist; did you mean .*small"):
        read_source(training.parent / "smal")


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({}, ValueError, "neither a training run"),
        ({"config.yaml": "phases: []"}, FileNotFoundError, "it has not finished"),
        ({"config.yaml": "phases: ["}, BadFileError, "config.yaml: found no valid YAML"),
        ({"config.yaml": "[1]"}, BadFileError, "config.yaml: the file is list, expected a mapping"),
        ({"summary.json": "{", "config.yaml": "phases: []"}, BadFileError, "summary.json: found no valid JSON"),
        ({"summary.json": "{}", "config.yaml": "phases: []"}, FileNotFoundError, "holds none of start, trained"),
        ({"config.yaml": "judge_eval: {}"}, ValueError, "judgements, which have no walk"),
        (
            {"summary.json": '{"variants": {"full": {"seeds": {"42": {"run_dir": "runs/a-s42"}}}}}'},
            ValueError,
            "name one of them, such as runs/a-s42",
        ),
    ],
)
def test_other_folders_are_refused_by_name(
    tmp_path: Path, files: dict[str, str], error: type[Exception], message: str
) -> None:
    """Fault kinds: config typing; one line names file, found, expected, way out."""
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(error, match=message):
        read_source(tmp_path)


def test_a_file_in_the_place_of_a_folder(training: Path) -> None:
    with pytest.raises(NotADirectoryError, match="name the folder"):
        read_source(training / "summary.json")


def test_an_evaluation_that_has_not_finished(evaluation: Path) -> None:
    (evaluation / "p1" / "summary.json").unlink()
    with pytest.raises(FileNotFoundError, match="has not finished"):
        read_source(evaluation)


@pytest.mark.parametrize("kept", [0, 2])
def test_episodes_that_are_not_those_of_the_summary_are_named(evaluation: Path, kept: int) -> None:
    """An emptied or cut file is the cause, and neither the policies nor the claims: file, found, expected, way out."""
    path = evaluation / "p1" / "episodes.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:kept]))
    expected = rf"p1/episodes.jsonl: found {kept} episodes, expected the 4 that .*p1/summary.json counts: .* again"
    for folder in (evaluation, evaluation / "p1"):
        source = read_source(folder)
        with pytest.raises(BadFileError, match=expected):
            collect_walks(source, objectives_of([])[0])


def test_policies_of_different_tasks_are_not_put_side_by_side(evaluation: Path) -> None:
    path = evaluation / "p1" / "config.yaml"
    header = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump(header | {"data_hash": "0" * 12}), encoding="utf-8")
    with pytest.raises(ValueError, match="different tasks"):
        read_source(evaluation)


def test_a_malformed_figure_names_file_and_key(evaluation: Path) -> None:
    policy = read_source(evaluation / "p1").policies[0]
    broken = {"metrics": {"accuracy": {"value": 1.0}}}
    with pytest.raises(BadFileError, match=r"summary.json: key 'accuracy' is .* expected value, low, high and n"):
        type(policy)(**{**vars(policy), "summary": broken}).estimates("metrics")
