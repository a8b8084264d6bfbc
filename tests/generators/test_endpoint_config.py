"""Where an endpoint's settings come from: file, command line, defaults; each refusal names its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from provgym.generators.endpoint_config import ENDPOINT_DIR, read_endpoint_config
from provgym.generators.policy_kinds import EndpointSpec
from provgym.generators.policy_spec import PolicyOptions, fingerprint_of, policy_spec

GIVEN = {"base_url": "http://agents.test/v1", "model": "m", "timeout_s": None}


def test_what_is_given_wins_over_the_file_and_the_folder_fills_in(tmp_path: Path) -> None:
    file = tmp_path / "endpoint.yaml"
    file.write_text("model: other\nmax_tokens: 9\nextra_body: {top_p: 0.5}\ntimeout_s: 5\n", encoding="utf-8")
    config = read_endpoint_config(file, tmp_path / "kept", GIVEN)
    assert (config.model, config.max_tokens, config.extra_body, config.timeout_s) == ("m", 9, {"top_p": 0.5}, 5.0)
    assert (config.cache_dir, config.ledger) == (tmp_path / "kept", tmp_path / "kept" / "ledger.jsonl")
    file.write_text("cache_dir: null\nledger: mine.jsonl\n", encoding="utf-8")
    config = read_endpoint_config(file, tmp_path, GIVEN)
    assert (config.cache_dir, config.ledger) == (None, Path("mine.jsonl"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- model", "endpoint.yaml holds list, expected fields"),
        ("", "endpoint.yaml holds NoneType, expected fields"),
        ("1: 2", "endpoint.yaml holds dict, expected fields"),
        ("model: [", "endpoint.yaml is no YAML"),
    ],
)
def test_a_file_without_fields_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "endpoint.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_endpoint_config(file, tmp_path, GIVEN)


def test_a_bad_field_names_field_and_file(tmp_path: Path) -> None:
    file = tmp_path / "endpoint.yaml"
    file.write_text("max_tokns: 9\n", encoding="utf-8")
    with pytest.raises(ValidationError, match="max_tokns") as caught:
        read_endpoint_config(file, tmp_path, GIVEN)
    assert "endpoint.yaml" in caught.value.__notes__[0]
    with pytest.raises(FileNotFoundError, match="missing.yaml"):
        read_endpoint_config(tmp_path / "missing.yaml", tmp_path, GIVEN)
    with pytest.raises(ValueError, match="lacks --base-url and --model, such as"):
        read_endpoint_config(None, tmp_path, {})


def test_the_command_lines_options_reach_the_endpoint(tmp_path: Path) -> None:
    file = tmp_path / "endpoint.yaml"
    file.write_text("max_tokens: 9\n", encoding="utf-8")
    plain = PolicyOptions(base_url="http://agents.test/v1", model="m")
    options = PolicyOptions(
        base_url="http://agents.test/v1",
        model="m",
        api_key_env="MY_KEY",
        timeout_s=7.0,
        endpoint_dir=tmp_path,
        endpoint_file=file,
        max_rows=3,
    )
    spec = policy_spec("endpoint", options)
    assert isinstance(spec, EndpointSpec)
    found = spec.endpoint
    assert (found.api_key_env, found.timeout_s, found.max_concurrency, found.max_tokens) == ("MY_KEY", 7.0, 3, 9)
    assert found.cache_dir == tmp_path
    default = policy_spec("endpoint", plain)
    assert isinstance(default, EndpointSpec)
    assert (default.endpoint.cache_dir, default.endpoint.max_concurrency) == (ENDPOINT_DIR, 16)
    assert fingerprint_of(spec) != fingerprint_of(default)  # another max_tokens answers otherwise


@pytest.mark.parametrize("name", ["api_key_env", "timeout_s", "endpoint_dir", "endpoint_file"])
def test_options_that_mean_nothing_to_a_policy_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} .* does nothing for policy 'naive'"):
        policy_spec("naive", PolicyOptions(**{name: 1}))  # type: ignore[arg-type]
