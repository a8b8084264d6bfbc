"""What a user may type for a policy: names, run folders, checkpoints, adapters, models, endpoints."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from peft import LoraConfig, get_peft_model

from provgym.generators.backends import load_policy
from provgym.generators.policy_kinds import EndpointSpec, HFSpec, ScriptedSpec, SmolLM2Spec, TinySpec
from provgym.generators.policy_spec import PolicyOptions, fingerprint_of, policy_spec, policy_specs, run_config_of
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


def test_a_chat_warm_start_brings_the_grammar_it_was_taught(tmp_path: Path, adapter_folder: Path) -> None:
    """Else an adapter that writes tool calls would be read as JSON, and every action of it be invalid."""
    base, out = tmp_path / "base", tmp_path / "my-start"
    base.mkdir()
    (base / "config.json").write_text("{}")
    shutil.copytree(adapter_folder, out / "policy")
    model = {"kind": "hf", "path": str(base), "grammar": "tool_call"}
    (out / "config.yaml").write_text(yaml.safe_dump({"kind": "chat", "model": model, "walk": {"mitigation": "M2"}}))
    for folder in (out, out / "policy"):
        spec = policy_spec(str(folder))
        assert isinstance(spec, HFSpec)
        assert (spec.name, spec.path, spec.grammar) == ("my-start", str(base), "tool_call")
        run = run_config_of(str(folder))
        assert run is not None
        assert run["walk"] == {"mitigation": "M2"}


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


def test_models_by_id_and_endpoints(adapter_folder: Path) -> None:
    spec = policy_spec("Qwen/Qwen3-4B", PolicyOptions(adapter=adapter_folder, grammar="tool_call"))
    assert isinstance(spec, HFSpec)
    assert (spec.path, spec.adapter, spec.grammar) == ("Qwen/Qwen3-4B", adapter_folder, "tool_call")
    assert isinstance(policy_spec("smollm2"), SmolLM2Spec)
    spec = policy_spec("endpoint", PolicyOptions(base_url="http://localhost:1/v1", model="m", max_rows=4))
    assert isinstance(spec, EndpointSpec)
    assert (spec.endpoint.model, spec.endpoint.max_concurrency) == ("m", 4)


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("endpoint", PolicyOptions(model="m"), "lacks --base-url"),
        ("endpoint", PolicyOptions(), "lacks --base-url and --model"),
        ("tiny", PolicyOptions(model="m"), "--model m does nothing for policy 'tiny'.*it is for: endpoint"),
        ("naive", PolicyOptions(temperature=1.0), "--sampled, at temperature 1.0 does nothing for policy 'naive'"),
        ("naive", PolicyOptions(max_length=5), "--max-length 5 does nothing for policy 'naive'"),
        ("naive", PolicyOptions(max_rows=4), "--max-rows 4 does nothing for policy 'naive'"),
        ("naive", PolicyOptions(grammar="json"), "--grammar json does nothing for policy 'naive'"),
        ("tiny", PolicyOptions(grammar="json"), "--grammar json does nothing for policy 'tiny'"),
        ("tiny", PolicyOptions(grammar="prose"), "--grammar prose does nothing for policy 'tiny'"),
        ("smollm2", PolicyOptions(grammar="prose"), "'json' or 'tool_call'"),
        ("smollm2", PolicyOptions(max_rows=10**9), "less than or equal to 4096"),
        (
            "endpoint",
            PolicyOptions(base_url="http://a.test/v1", model="m", max_length=9),
            "--max-length 9 does nothing",
        ),
        ("endpoint", PolicyOptions(base_url="localhost", model="m"), "base_url"),
    ],
)
def test_options_that_would_be_ignored_are_refused(text: str, options: PolicyOptions, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        policy_spec(text, options)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("naiv", "did you mean naive"),
        ("./nowhere", "is no folder"),
        ("a/b/c", "hub id"),
        ("", "policy '' is no folder"),
        ("  ", "names are naive, oracle"),
        ("a b/c", "hub id"),
    ],
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
    for name in ("checkpoint-900", "checkpoint-1000", "checkpoint-1050", "checkpoint-1100.tmp", "checkpoint-best"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        if name != "checkpoint-1050":  # killed before its weights were there
            (tmp_path / "checkpoints" / name / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"has not finished; name a checkpoint, such as \S+/checkpoint-1000$"):
        policy_spec(str(tmp_path))


def test_an_option_goes_to_the_policies_that_it_is_for() -> None:
    """A scripted walker, a model and an endpoint stand side by side, each with what concerns it."""
    options = PolicyOptions(
        base_url="http://a.test/v1", model="m", temperature=0.5, max_rows=3, max_length=99, grammar="tool_call"
    )
    naive, tiny, chat, endpoint = policy_specs(["naive", "tiny", "smollm2", "endpoint"], options)
    assert isinstance(naive, ScriptedSpec)
    assert isinstance(tiny, TinySpec)
    assert isinstance(chat, SmolLM2Spec)
    assert isinstance(endpoint, EndpointSpec)
    assert (tiny.temperature, tiny.max_rows, tiny.max_length) == (0.5, 3, 99)
    assert (chat.grammar, chat.max_length) == ("tool_call", 99)
    assert (endpoint.endpoint.max_concurrency, endpoint.temperature) == (3, 0.5)
    with pytest.raises(ValueError, match="--grammar tool_call does nothing for policy 'naive', 'tiny'"):
        policy_specs(["naive", "tiny"], PolicyOptions(grammar="tool_call"))


def test_the_random_walker_can_be_sampled() -> None:
    assert isinstance(policy_spec("random", PolicyOptions(temperature=1.0)), ScriptedSpec)


def test_an_adapter_is_looked_for_before_anything_plays(tmp_path: Path, adapter_folder: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=rf"--adapter {place} holds no adapter"):
            policy_specs(["naive", "smollm2"], PolicyOptions(adapter=place))
    with pytest.raises(ValueError, match=r"--adapter .* does nothing for policy 'tiny'.*a Hugging Face model"):
        policy_spec("tiny", PolicyOptions(adapter=adapter_folder))


def test_an_adapter_beside_a_tiny_folder_is_refused_by_name(tiny_folder: Path, adapter_folder: Path) -> None:
    """Kind: adapter never reaches the engine. It is not dropped silently, whatever else is asked for."""
    for options in (PolicyOptions(adapter=adapter_folder), PolicyOptions(adapter=adapter_folder, grammar="json")):
        with pytest.raises(ValueError, match=f"--adapter {adapter_folder} needs .* tiny policy in {tiny_folder}"):
            policy_spec(str(tiny_folder), options)


@pytest.mark.parametrize("text", ["{", "[]", "", "null"])
def test_a_damaged_adapter_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(ValueError, match=r"adapter_config\.json .*download that folder again"):
        policy_spec(str(tmp_path))


def test_a_damaged_run_configuration_is_named(tmp_path: Path, tiny_folder: Path) -> None:
    run = write_run(tmp_path / "run", {"kind": "tiny"}, tiny_folder)
    (run / "config.yaml").write_text("phases: [")
    for read in (policy_spec, run_config_of):
        with pytest.raises(ValueError, match=r"config\.yaml is not valid YAML"):
            read(str(run))
