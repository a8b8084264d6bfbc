"""Configuration files: scalars mean what they look like, mistakes are named, the command line wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from provgym.trainers.config_file import ConfigError, dump_config, load_config
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.plain_yaml import dump_plain_yaml, load_plain_yaml
from provgym.trainers.warm_start_config import WarmStartConfig

SMALL = "name: small\nphases: [{steps: 4}]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


def refusal(path: Path | None, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(PaptConfig, path, overrides)
    return str(caught.value)


@pytest.mark.parametrize("text", ["1e-5", "1.0e-5", "0.00001", "1E-5", "'1e-5'", ".00001"])
def test_numbers_come_in_either_form(tmp_path: Path, text: str) -> None:
    """Config typing: YAML `1e-5`."""
    path = tmp_path / "a.yaml"
    path.write_text(f"{SMALL}optim: {{learning_rate: {text}}}\n")
    assert load_config(PaptConfig, path).optim.learning_rate == 1e-5


def test_no_is_false_for_a_truth_value_and_never_a_number(tmp_path: Path, file: Path) -> None:
    """Config typing: YAML `no`; and the neighbouring kind, true read as 1."""
    for word in ("no", "False", "off"):
        assert load_config(PaptConfig, file, ["--model.enable_thinking", word]).model.enable_thinking is False
    for word in ("no", "true", "True", "yes"):
        assert "key 'seed'" in refusal(file, "--seed", word)
    assert "truth value" in refusal(file, "--walk.budgets", "[6, true]")
    assert "truth value" in refusal(file, "--phases.0.weights", "{echo: false}")


def test_leading_zeros_are_decimal(file: Path) -> None:
    """Config typing: YAML `007`; `010` is ten, not eight."""
    assert load_config(PaptConfig, file, ["--seed", "007"]).seed == 7
    assert load_config(PaptConfig, file, ["--seed", "010"]).seed == 10
    assert "valid string" in refusal(file, "--name", "007")


def test_unknown_key_names_file_key_and_way_out(tmp_path: Path) -> None:
    """Config typing: `learing_rate`."""
    path = tmp_path / "a.yaml"
    path.write_text(f"{SMALL}optim:\n  learing_rate: 1e-5\n")
    message = refusal(path)
    assert message == f"{path}: key 'optim.learing_rate' is unknown; did you mean 'optim.learning_rate'?"
    path.write_text(f"{SMALL}learing_rate: 1e-5\n")
    assert "did you mean 'optim.learning_rate'?" in refusal(path)
    path.write_text(f"{SMALL}lora: {{zzz: 1}}\n")
    assert "known keys: alpha, dropout, r, target_modules" in refusal(path)


def test_group_of_one_is_refused_under_both_names(file: Path) -> None:
    """Config typing: `num_generations: 1`; identical rewards: a group of one is refused at load."""
    assert "here it is 'optim.group_size'" in refusal(file, "--optim.num_generations", "1")
    message = refusal(file, "--optim.group_size", "1")
    assert "key 'optim.group_size': Input should be greater than or equal to 2; found 1" in message


def test_every_problem_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("name: a\nseed: -1\nphases: [{steps: 0}]\n")
    lines = refusal(path).splitlines()
    assert len(lines) == 2
    assert "key 'seed'" in lines[0]
    assert "key 'phases.0.steps'" in lines[1]


def test_command_line_beats_file_and_is_named_in_errors(file: Path) -> None:
    """Config typing: CLI beats file."""
    found = load_config(PaptConfig, file, ["--name", "other", "--phases.0.steps=9", "--data.general-share", "0.5"])
    assert (found.name, found.phases[0].steps, found.data.general_share) == ("other", 9, 0.5)
    assert refusal(file, "--optim.clip", "-1").startswith("command line: key 'optim.clip'")
    assert refusal(file, "--lora.r", "0").startswith("command line: key 'lora.r'")


def test_null_and_mappings_from_the_command_line(file: Path) -> None:
    assert load_config(PaptConfig, file, ["--lora", "null"]).lora is None
    found = load_config(PaptConfig, file, ["--lora", "{r: 4, alpha: 8}"])
    assert found.lora is not None
    assert (found.lora.r, found.lora.alpha) == (4, 8)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["--seed"], "--seed lacks a value"),
        (["seed", "1"], "expected --key value, found 'seed'"),
        (["--"], "expected --key value"),
        (["--phases.1.steps", "3"], "'1' must be an index below 1"),
        (["--phases.x.steps", "3"], "'x' must be an index below 1"),
        (["--name.first", "a"], "holds 'small', not a mapping"),
        (["--data", "{a"], "is not a YAML value"),
    ],
)
def test_malformed_overrides(file: Path, overrides: list[str], said: str) -> None:
    assert said in refusal(file, *overrides)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[1, 2]", "must hold a mapping of keys, found list"),
        (b"name: a: b", "is not valid YAML"),
        (b"name: \xff\xfe", "is not valid YAML"),
        (b"seed: 1\nseed: 2", "key 'seed' a second time"),
        (b"", "key 'name': Field required"),
    ],
)
def test_malformed_files(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    message = refusal(path)
    assert said in message
    assert str(path) in message


def test_missing_file_names_near_ones(file: Path) -> None:
    message = refusal(file.with_name("rum.yaml"))
    assert "does not exist" in message
    assert str(file) in message


def test_byte_order_mark_and_crlf_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
    assert load_config(PaptConfig, path).name == "small"


@pytest.mark.parametrize("model", [PaptConfig, WarmStartConfig])
def test_resolved_configuration_reloads_equal(tmp_path: Path, file: Path, model: Any) -> None:
    """Config typing: the resolved configuration is saved, and is the same run when it is read again."""
    overrides = ["--optim.learning_rate", "1e-5", "--name", "'no'", "--data.claims", "a b.jsonl"]
    config = load_config(model, file, overrides) if model is PaptConfig else model()
    saved = tmp_path / "saved.yaml"
    saved.write_text(dump_config(config), encoding="utf-8")
    assert load_config(model, saved) == config
    assert model.model_validate(yaml.safe_load(saved.read_text())) == config  # any other YAML reader agrees


floats = st.floats(allow_nan=False, allow_infinity=False, width=32)
# PyYAML's own writer loses these three line breaks in a plain key or word.
letters = st.characters(exclude_characters="\x85\u2028\u2029", exclude_categories=["Cs"])
scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.text(letters, max_size=12), floats
)


@given(
    st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(letters, max_size=8), inner, max_size=4),
    )
)
def test_what_is_written_is_read_as_it_was(data: Any) -> None:
    """Independent route: PyYAML's own 1.1 reader agrees with ours on whatever we write (a text such as 0E0 too)."""
    text = dump_plain_yaml(data)
    assert load_plain_yaml(text) == data
    assert yaml.safe_load(text) == data


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_python_floats_are_numbers(value: float) -> None:
    assert load_plain_yaml(f"x: {value!r}") == {"x": value}
