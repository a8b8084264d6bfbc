"""Warm start of a chat model: an adapter that every consumer loads, an exact resume, and refusals by name."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.benchmarks.tool_call_policy import CloneConfig, untrained

from provgym.envs.actions import Stop, Unparsed, parse_action
from provgym.generators.backends import load_policy
from provgym.generators.chat import ChatDialogue
from provgym.generators.engine import WritingDialogue
from provgym.generators.policy_spec import PolicyOptions, policy_spec
from provgym.generators.seeds import Purpose, derive_rng
from provgym.trainers import chat_warm_start as module
from provgym.trainers.chat_warm_start import ChatWarmStartConfig, WarmStartKind, chat_warm_start, cloned_row
from provgym.trainers.config_file import ConfigError, load_config
from provgym.trainers.papt_config import ModelConfig, PaptConfig, PhaseConfig
from provgym.trainers.policy_loading import load_trainable
from provgym.trainers.training_rows import TrainingRows, load_pool

MakeStart = Callable[..., ChatWarmStartConfig]
DROPS_HISTORY = (
    "{% for m in messages %}{% if loop.last or m.role == 'system' %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved chat model of 60,000 random parameters."""
    folder = tmp_path_factory.mktemp("models") / "small-chat"
    policy = untrained(CloneConfig(vocabulary_size=600, hidden_size=32, num_layers=1))
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def make_start(base: Path, tmp_path: Path) -> MakeStart:
    """A function that returns a small warm start's configuration."""

    def make(**changes: Any) -> ChatWarmStartConfig:
        data: dict[str, Any] = {
            "out": tmp_path / "start",
            "model": {"kind": "hf", "path": str(base)},
            "data": {"train_claims": 6, "dev_claims": 2, "test_claims": 2, "general_share": 0.3},
            "walk": {"budgets": [1, 2]},
            "lora": {"r": 4, "alpha": 8},
            "steps": 4,
            "rows_per_step": 2,
            "micro_batch": 2,
            "learning_rate": 1e-2,
            "warmup_steps": 0,
            "max_length": 4096,
            "checkpoint_every": 2,
        }
        return ChatWarmStartConfig.model_validate(data | changes)

    return make


def adapter_bytes(folder: Path) -> bytes:
    return (folder / "adapter_model.safetensors").read_bytes()


def test_the_adapter_is_loaded_by_evaluation_and_by_papt(make_start: MakeStart, base: Path) -> None:
    """Fault kind: adapter never reaches the engine. Both consumers bind every tensor and see an effect."""
    config = make_start()
    steps: list[tuple[int, int]] = []
    folder = chat_warm_start(config, lambda step, total, loss: steps.append((step, total)))
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert folder == config.out / "policy"
    assert sorted(p.name for p in config.out.iterdir()) == ["config.yaml", "loss.json", "policy", "warm_start.json"]
    assert len(json.loads((config.out / "loss.json").read_text())) == 4
    for spec in (policy_spec(str(base), PolicyOptions(adapter=folder)), policy_spec(str(config.out))):
        assert getattr(spec, "adapter", None) == folder
        load_policy(spec)
    trainable = load_trainable(ModelConfig(kind="hf", path=str(base), adapter=str(folder)))
    trained = [name for name, p in trainable.model.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    assert load_config(ChatWarmStartConfig, config.out / "config.yaml") == config


def test_cloning_lowers_the_loss(make_start: MakeStart) -> None:
    config = make_start(steps=12, learning_rate=3e-2)
    chat_warm_start(config)
    losses = json.loads((config.out / "loss.json").read_text())
    assert sum(losses[-3:]) / 3 < 0.9 * losses[0]


@pytest.mark.parametrize("killed_at", [1, 3])
def test_a_killed_run_ends_with_the_same_adapter(make_start: MakeStart, tmp_path: Path, killed_at: int) -> None:
    """Fault kinds: resume, incomplete checkpoints. Killed before and after a checkpoint, and with half of one left."""
    whole = make_start(out=tmp_path / "whole")
    chat_warm_start(whole)
    config = make_start()
    seen: list[int] = []

    def kill(step: int, total: int, loss: float) -> None:
        seen.append(step)
        if step == killed_at and seen.count(step) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chat_warm_start(config, kill)
    half = config.out / "checkpoints" / "checkpoint-3"
    half.mkdir(parents=True)
    (half / "adapter_model.safetensors").write_bytes(b"half")
    with pytest.warns(UserWarning, match="checkpoint-3 was left half-written"):
        chat_warm_start(config, kill)
    assert seen == ([1, 1, 2, 3, 4] if killed_at == 1 else [1, 2, 3, 3, 4])
    assert adapter_bytes(config.out / "policy") == adapter_bytes(whole.out / "policy")
    assert (config.out / "loss.json").read_bytes() == (whole.out / "loss.json").read_bytes()


def test_the_adapter_depends_on_the_seed_alone(make_start: MakeStart, tmp_path: Path) -> None:
    """Fault kind: global RNG. Neither read nor written."""
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = chat_warm_start(make_start(out=tmp_path / "one", steps=2))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    again = chat_warm_start(make_start(out=tmp_path / "again", steps=2))
    other = chat_warm_start(make_start(out=tmp_path / "other", steps=2, seed=1))
    assert adapter_bytes(one) == adapter_bytes(again) != adapter_bytes(other)


def test_speed_settings_change_no_loss(make_start: MakeStart, tmp_path: Path) -> None:
    """Fault kind: gradient accumulation. One episode a pass or two, prefixes shared or not: one loss curve."""
    curves = []
    changes: tuple[dict[str, Any], ...] = ({}, {"micro_batch": 1}, {"shared_prefix": False})
    for number, change in enumerate(changes):
        config = make_start(out=tmp_path / str(number), **change)
        chat_warm_start(config)
        curves.append(json.loads((config.out / "loss.json").read_text()))
    for curve in curves[1:]:
        assert curve == pytest.approx(curves[0], rel=1e-3)


def test_a_finished_start_is_not_made_again_and_another_is_refused(make_start: MakeStart) -> None:
    config = make_start(steps=1)
    folder = chat_warm_start(config)
    before = adapter_bytes(folder)
    assert chat_warm_start(config, lambda *_: pytest.fail("nothing is left to do")) == folder
    with pytest.raises(ValueError, match=r"another configuration; changed: seed: 0 -> 3\. .*--out"):
        chat_warm_start(make_start(steps=1, seed=3))
    assert adapter_bytes(folder) == before


def test_a_full_disk_keeps_the_checkpoint_before(make_start: MakeStart, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to do, and the same command then goes on."""
    config = make_start()
    save, calls = torch.save, []

    def full(*args: Any, **kwargs: Any) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        save(*args, **kwargs)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match=r"checkpoint 4 could not be written .*No space left.*same command again"):
        chat_warm_start(config)
    steps: list[int] = []
    with pytest.warns(UserWarning, match="resumes from checkpoint-2"):
        chat_warm_start(config, lambda step, total, loss: steps.append(step))
    assert steps == [3, 4]


def test_only_train_claims_are_cloned_as_valid_actions(make_start: MakeStart, base: Path) -> None:
    """Splits don't leak. Every cloned action reads back, and an episode ends by a stop."""
    config = make_start(walk={"budgets": [3]}, stumble_probability=0.3)
    dialogue, pool = dialogue_of(config), load_pool(config.data)
    held_out = {
        name
        for split in ("dev", "test")
        for instance in pool.of_split(split, ("C1",), 1)
        for name in instance.base_claim.entities
    }
    for number in range(12):
        row = cloned_row(config, pool, dialogue, derive_rng(0, Purpose.CLONING, 0, number))
        text = dialogue.decode([*row.prompt_ids, *row.completion_ids])
        assert not held_out & set(re.findall(r"\w+", text))
        actions = [parse_action(action) for action in trained_texts(row.completion_ids, row.mask, dialogue)]
        assert not any(isinstance(action, Unparsed) for action in actions)
        assert isinstance(actions[-1], Stop)
        assert actions[-1].judgement is not None


def trained_texts(ids: list[int], mask: list[int], dialogue: WritingDialogue) -> list[str]:
    """Decode each cloned action, cut at its end token."""
    texts: list[str] = []
    current: list[int] = []
    for token, is_trained in zip(ids, mask, strict=True):
        if is_trained and token in dialogue.end_ids:
            texts.append(dialogue.decode(current))
            current = []
        elif is_trained:
            current.append(token)
    assert not current
    return texts


def dialogue_of(config: ChatWarmStartConfig) -> WritingDialogue:
    dialogue = load_trainable(config.model).dialogue
    assert isinstance(dialogue, ChatDialogue)
    return dialogue


def test_prompts_are_those_of_the_papt_run_that_follows(make_start: MakeStart) -> None:
    """The cloned prompts open with the very ids that PAPT's roll-out shows: instructions, template, presentation."""
    config = make_start(walk={"budgets": [2]})
    dialogue = dialogue_of(config)
    row = cloned_row(config, load_pool(config.data), dialogue, derive_rng(0, Purpose.CLONING, 0, 0))
    papt = PaptConfig(name="run", phases=(PhaseConfig(steps=1),), data=config.data, walk=config.walk)
    task = TrainingRows(papt, load_pool(papt.data)).task(0, 0)
    shown = dialogue.opening(["Claim: "], task.presentation.instructions)
    instructions = dialogue.decode(shown).split("Claim: ")[0]
    assert dialogue.decode(row.prompt_ids).startswith(instructions + "Claim: ")


def test_own_claims_are_cloned(make_start: MakeStart, base: Path, tmp_path: Path) -> None:
    """Long texts that outgrow ``max_length`` in every draw are refused with the shortest length."""
    line = {"claim": "Tea helps.", "evidence": [{"source": "A", "stance": "SUPPORT", "text": "It did. " * 30}]}
    names = {"train": "tea", "dev": "led", "test": "moss"}
    lines = [
        {**line, "id": n, "claim": f"{n} helps.", "split": s, "evidence": [{**line["evidence"][0], "source": n}]}  # type: ignore[dict-item]
        for s, n in names.items()
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in lines), encoding="utf-8")
    config = make_start(data={"claims": path}, stumble_probability=0.0)
    dialogue, pool = dialogue_of(config), load_pool(config.data)
    row = cloned_row(config, pool, dialogue, derive_rng(0, Purpose.CLONING, 0, 0))
    assert "tea helps." in dialogue.decode(row.prompt_ids)
    short = config.model_copy(update={"max_length": row.length // 2})
    with pytest.raises(ValueError, match=rf"max_length={row.length // 2} is too short: the shortest of 50 episodes"):
        cloned_row(short, pool, dialogue, derive_rng(0, Purpose.CLONING, 0, 0))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model.kind", "tiny"], "'tiny' has a warm start of its own"),
        (["--model.kind", "smollm2", "--model.adapter", "runs/x"], "a warm start makes a new adapter"),
        (["--model.kind", "hf"], "needs model.path"),
        (["--learing_rate", "1"], "did you mean 'learning_rate'"),
        (["--steps", "true"], "found a truth value"),
        (["--steps", "0"], "greater than or equal to 1"),
        (["--lora.dropout", "0.1"], "dropout must be 0"),
        (["--stumble_probability", "1"], "less than 1"),
    ],
)
def test_bad_configurations_stop_at_load(words: list[str], message: str) -> None:
    """Fault kind: config typing."""
    with pytest.raises(ConfigError, match=message):
        load_config(ChatWarmStartConfig, None, words)


def test_kind_is_read_alone() -> None:
    assert load_config(WarmStartKind, None, ["--model.kind", "hf"]).kind == "tiny"
    assert load_config(WarmStartKind, None, ["--kind", "chat"]).kind == "chat"
    with pytest.raises(ConfigError, match="Input should be 'tiny' or 'chat'; found 'smollm2'"):
        load_config(WarmStartKind, None, ["--kind", "smollm2"])


def test_models_that_cannot_be_cloned_are_refused(make_start: MakeStart, base: Path, tmp_path: Path) -> None:
    """Fault kind: template rewrites history; and a missing model. Nothing is left in the folder."""
    missing = make_start(model={"kind": "hf", "path": str(tmp_path / "nowhere")})
    with pytest.raises(FileNotFoundError, match="nowhere' can't be loaded"):
        chat_warm_start(missing)
    for template, message in ((DROPS_HISTORY, "drops, repeats or merges messages"), (None, "has no chat template")):
        folder = tmp_path / f"other-{template is None}"
        policy = load_trainable(ModelConfig(kind="hf", path=str(base)))
        policy.tokenizer.chat_template = template
        policy.model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
        with pytest.raises(ValueError, match=message):
            chat_warm_start(make_start(model={"kind": "hf", "path": str(folder)}))
    with pytest.raises(ValueError, match="[Tt]arget modules"):
        chat_warm_start(make_start(lora={"target_modules": ["no_such_layer"]}))
    assert not missing.out.exists()


def test_bfloat16_on_a_cpu_is_float32_with_a_warning(make_start: MakeStart, base: Path) -> None:
    """Fault kind: bf16 on a CPU."""
    if torch.cuda.is_available():
        pytest.skip("half precision is kept on a GPU")
    config = make_start(steps=1, model={"kind": "hf", "path": str(base), "dtype": "bfloat16"})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        chat_warm_start(config)
    assert sum("float32 is used instead" in str(w.message) for w in caught) == 1


def test_a_policy_without_encoding_of_actions_is_refused(
    make_start: MakeStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    def without(config: ModelConfig) -> Any:
        return dataclasses.replace(load_trainable(config), dialogue=object())  # type: ignore[arg-type]

    monkeypatch.setattr(module, "load_trainable", without)
    with pytest.raises(TypeError, match="needs encode_action"):
        chat_warm_start(make_start())


@pytest.mark.llm
def test_smollm2_rows_are_its_template_s_own_ids() -> None:
    """What SmolLM2 is taught decodes to whole JSON actions in its own template, and fits the default length."""
    config = ChatWarmStartConfig()
    dialogue, pool = dialogue_of(config), load_pool(config.data)
    for number in range(8):
        row = cloned_row(config, pool, dialogue, derive_rng(0, Purpose.CLONING, 0, number))
        assert row.length <= config.max_length
        texts = trained_texts(row.completion_ids, row.mask, dialogue)
        assert all(json.loads(text).keys() <= {"walk", "stop"} for text in texts)
