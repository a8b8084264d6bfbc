"""What a user may type for a policy: names, run folders, checkpoints, adapters, models, endpoints."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from peft import LoraConfig, get_peft_model

from provgym.generators.backends import EndpointSpec, HFSpec, ScriptedSpec, SmolLM2Spec, TinySpec, load_policy
from provgym.generators.policy_spec import PolicyOptions, fingerprint_of, policy_spec, run_config_of
from provgym.generators.tiny import build_model, build_tokenizer, load_tiny


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small-tiny"
    build_model(1, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def adapter_folder(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "adapter"
    model, tokenizer = load_tiny(tiny_folder)
    adapted = get_peft_model(model, LoraConfig(r=2, init_lora_weights=False, target_modules="all-linear"))
    adapted.save_pretrained(str(folder))
    tokenizer.save_pretrained(folder)
    return folder


def write_run(folder: Path, model: Mapping[str, object], weights: Path) -> Path:
    """What a finished run leaves of its policy."""
    folder.mkdir(parents=True)
    shutil.copytree(weights, folder / "policy")
    shutil.copytree(weights, folder / "checkpoints" / "checkpoint-20")
    config = {"name": folder.name, "phases": [{"steps": 20}], "model": dict(model), "generation": {"max_length": 512}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


@pytest.mark.parametrize("name", ["naive", "oracle", "random", "bfs"])
def test_walkers_by_name(name: str) -> None:
    spec = policy_spec(name)
    assert isinstance(spec, ScriptedSpec)
    assert load_policy(spec).name == name


def test_run_policy_and_checkpoint_folders(tmp_path: Path, tiny_folder: Path) -> None:
    run = write_run(tmp_path / "papt-x", {"kind": "tiny", "grammar": "json", "path": None}, tiny_folder)
    for text, name in (
        (run, "papt-x"),
        (run / "policy", "papt-x"),
        (run / "checkpoints" / "checkpoint-20", "papt-x@20"),
    ):
        spec = policy_spec(str(text))
        assert isinstance(spec, TinySpec)
        assert (spec.name, spec.max_length) == (name, 512)
        assert run_config_of(str(text)) is not None
    assert policy_spec(str(run), PolicyOptions(max_length=99)).max_length == 99  # type: ignore[union-attr]


def test_plain_tiny_folder_is_known_by_its_tokenizer(tiny_folder: Path) -> None:
    spec = policy_spec(str(tiny_folder), PolicyOptions(temperature=0.5, max_rows=3))
    assert isinstance(spec, TinySpec)
    assert (spec.name, spec.path, spec.temperature, spec.max_rows) == ("small-tiny", tiny_folder, 0.5, 3)
    assert run_config_of(str(tiny_folder)) is None


def test_adapter_of_a_tiny_run_plays(tmp_path: Path, tiny_folder: Path, adapter_folder: Path) -> None:
    run = write_run(tmp_path / "lora", {"kind": "tiny", "path": str(tiny_folder)}, adapter_folder)
    spec = policy_spec(str(run))
    assert isinstance(spec, TinySpec)
    assert (spec.path, spec.adapter) == (tiny_folder, run / "policy")
    assert load_policy(spec).name == "lora"
    # Without a run around it, the adapter itself says which weights it belongs to.
    alone = policy_spec(str(adapter_folder))
    assert isinstance(alone, TinySpec)
    assert alone.path == tiny_folder


def test_adapters_of_language_models(tmp_path: Path, adapter_folder: Path, tiny_folder: Path) -> None:
    settings = {"kind": "smollm2", "path": None, "grammar": "tool_call", "enable_thinking": False, "dtype": "float32"}
    spec = policy_spec(str(write_run(tmp_path / "smol", settings, adapter_folder)))
    assert isinstance(spec, HFSpec)
    assert (spec.path, spec.grammar, spec.adapter) == ("smollm2-135m", "tool_call", tmp_path / "smol" / "policy")
    spec = policy_spec(str(write_run(tmp_path / "qwen", {"kind": "hf", "path": "Qwen/Qwen3-4B"}, adapter_folder)))
    assert isinstance(spec, HFSpec)
    assert spec.path == "Qwen/Qwen3-4B"
    with pytest.raises(ValueError, match="is an adapter already"):
        policy_spec(str(tmp_path / "qwen"), PolicyOptions(adapter=adapter_folder))


def test_models_by_id_and_endpoints(tmp_path: Path) -> None:
    spec = policy_spec("Qwen/Qwen3-4B", PolicyOptions(adapter=tmp_path, grammar="tool_call"))
    assert isinstance(spec, HFSpec)
    assert (spec.path, spec.adapter, spec.grammar) == ("Qwen/Qwen3-4B", tmp_path, "tool_call")
    assert isinstance(policy_spec("smollm2"), SmolLM2Spec)
    spec = policy_spec("endpoint", PolicyOptions(base_url="http://localhost:1/v1", model="m", max_rows=4))
    assert isinstance(spec, EndpointSpec)
    assert (spec.endpoint.model, spec.endpoint.max_concurrency) == ("m", 4)


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("endpoint", PolicyOptions(model="m"), "lacks --base-url"),
        ("endpoint", PolicyOptions(), "lacks --base-url and --model"),
        ("tiny", PolicyOptions(model="m"), "belongs to the policy 'endpoint'"),
        ("naive", PolicyOptions(temperature=1.0), "does nothing for the scripted walker"),
        ("tiny", PolicyOptions(adapter=Path("a")), "needs a Hugging Face model"),
        ("endpoint", PolicyOptions(base_url="localhost", model="m"), "base_url"),
    ],
)
def test_options_that_would_be_ignored_are_refused(text: str, options: PolicyOptions, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        policy_spec(text, options)


@pytest.mark.parametrize(
    ("text", "said"), [("naiv", "did you mean naive"), ("./nowhere", "is no folder"), ("a/b/c", "hub id")]
)
def test_missing_policies_name_near_ones(text: str, said: str) -> None:
    with pytest.raises(FileNotFoundError, match=said):
        policy_spec(text)


def test_unfinished_run_names_its_checkpoint(tmp_path: Path, tiny_folder: Path) -> None:
    run = write_run(tmp_path / "half", {"kind": "tiny"}, tiny_folder)
    shutil.copytree(tiny_folder, run / "checkpoints" / "checkpoint-100")
    shutil.rmtree(run / "policy")
    with pytest.raises(FileNotFoundError, match="checkpoint-100"):  # the newest by number, not by name
        policy_spec(str(run))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no policy"):
        policy_spec(str(tmp_path / "empty"))
    with pytest.raises(FileNotFoundError, match="did you mean"):
        policy_spec(str(tmp_path / "hal"))


def test_fingerprint_tells_weights_and_settings_apart(tmp_path: Path, tiny_folder: Path) -> None:
    other = tmp_path / "small-tiny"
    build_model(2, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16).save_pretrained(other)
    build_tokenizer().save_pretrained(other)
    first = fingerprint_of(policy_spec(str(tiny_folder)))
    assert first == fingerprint_of(policy_spec(str(tiny_folder), PolicyOptions(max_rows=1)))  # speed alone
    assert first != fingerprint_of(policy_spec(str(other)))
    assert first != fingerprint_of(policy_spec(str(tiny_folder), PolicyOptions(temperature=1.0)))
    copy = shutil.copytree(tiny_folder, tmp_path / "copy")
    assert first == fingerprint_of(policy_spec(str(copy)))  # the same weights elsewhere
    urls = [PolicyOptions(base_url=f"http://{host}/v1", model="m") for host in ("a", "b")]
    assert len({fingerprint_of(policy_spec("endpoint", o)) for o in urls}) == 2


def test_half_written_checkpoints_are_not_suggested(tmp_path: Path) -> None:
    """Kind: incomplete or mis-sorted checkpoints; 1000 is newest, and a leftover's name breaks no message."""
    for name in ("checkpoint-900", "checkpoint-1000", "checkpoint-1100.tmp", "checkpoint-best"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"has not finished; name a checkpoint, such as \S+/checkpoint-1000$"):
        policy_spec(str(tmp_path))
