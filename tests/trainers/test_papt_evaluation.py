"""After training: selection on dev, measurement on test, and the policy that is left behind."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from provgym.envs.presentation import PresentationConfig
from provgym.eval.episode_store import read_episodes
from provgym.generators.episode import EpisodeTask
from provgym.generators.tiny import TinyDialogue, build_model, build_tokenizer
from provgym.generators.weights_fingerprint import weights_fingerprint
from provgym.rewards.outcome import Ending
from provgym.rewards.rubric import papt_rubric
from provgym.trainers.papt_config import DataConfig, ModelConfig, PaptConfig
from provgym.trainers.papt_evaluation import (
    CURVES,
    SELECTION,
    SUMMARY_METRICS,
    dev_score,
    final_results,
    greedy_policy,
    show_results,
    start_label,
    summary_of,
    walk_eval_config,
)
from provgym.trainers.policy_loading import load_trainable
from provgym.trainers.saved_policy import load_saved_policy, save_policy
from provgym.trainers.training_rows import load_pool

MakeConfig = Callable[..., PaptConfig]


def test_fingerprint_tells_weights_apart(start_folder: Path, make_config: MakeConfig) -> None:
    one, two = (load_trainable(make_config().model).model for _ in range(2))
    assert weights_fingerprint(one) == weights_fingerprint(two)
    assert len(weights_fingerprint(one)) == 12
    with torch.no_grad():
        next(two.parameters())[3, 3] += 1e-6
    assert weights_fingerprint(one) != weights_fingerprint(two)


def test_evaluation_walks_as_training_does(make_config: MakeConfig) -> None:
    config = make_config(
        walk={"mitigation": "M2", "preview_ids": "visited", "source_labels": "real", "moves": "aliases"},
        evaluation={"budget": 4, "conditions": ["C1"]},
    )
    found = walk_eval_config(config, "test", ("C1",), 3, 2)
    assert found.presentation("M2") == config.walk.presentation()
    assert found.mitigations == ("M2",)
    assert found.budgets == (4,)
    assert (found.split, found.conditions, found.general_draws, found.limit) == ("test", ("C1",), 3, 2)
    claims: Any = found.claims
    assert (claims.kind, claims.seed) == ("graphecho", 42)
    assert claims.splits == {"train": 20, "dev": 4, "test": 4}


def test_evaluation_of_own_claims_takes_all_of_the_split(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(data={"claims": str(tmp_path / "own.jsonl")})
    found: Any = walk_eval_config(config, "dev", ("C1",), 1, None)
    assert found.conditions is None
    assert found.claims.paths == (tmp_path / "own.jsonl",)


@pytest.mark.parametrize("variant", ["full", "verdict_only"])
def test_selection_is_the_full_objective_over_all_dev_episodes(
    make_config: MakeConfig, tmp_path: Path, variant: str
) -> None:
    """Scored again from the stored episodes: the full rubric, whatever was trained, general conditions included."""
    config = make_config(
        phases=[{"steps": 1, "variant": variant}], checkpoints={"dev_conditions": ["C1", "C3", "general"]}
    )
    policy = load_trainable(config.model)
    scores = dev_score(config, policy.model, policy.dialogue, tmp_path / "dev", shows=False)
    episodes = read_episodes(tmp_path / "dev" / "episodes.jsonl")
    assert {e.split for e in episodes} == {"dev"}
    assert [sum(e.condition == c for e in episodes) for c in ("C1", "C3", "general")] == [4, 4, 4]
    rewards = np.array([papt_rubric().score(e.outcome).total for e in episodes])
    is_general = np.array([e.condition == "general" for e in episodes])
    assert scores[SELECTION] == pytest.approx(rewards.mean())
    assert scores["reward"] == pytest.approx(rewards[~is_general].mean())
    assert scores["general_reward"] == pytest.approx(rewards[is_general].mean())
    assert {f"{p}{m}" for p in ("", "general_") for m in SUMMARY_METRICS} < set(scores)


def test_selection_without_general_conditions(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(checkpoints={"dev_conditions": ["C1"], "select_by": "echo_rate", "direction": "min"})
    policy = load_trainable(config.model)
    scores = dev_score(config, policy.model, policy.dialogue, tmp_path / "dev", shows=False)
    assert scores[SELECTION] == scores["echo_rate"]
    assert not any(name.startswith("general_") for name in scores)


def test_selection_that_nothing_entered_is_not_a_number(make_config: MakeConfig, tmp_path: Path) -> None:
    """A policy that never answers has no count error: NaN, which is never chosen, and not 0, which would win."""
    config = make_config(
        checkpoints={"dev_conditions": ["C1", "general"], "select_by": "count_mae", "direction": "min"}
    )
    model = build_model(3, hidden_size=16, num_layers=1, intermediate_size=16)
    scores = dev_score(config, model, TinyDialogue(build_tokenizer()), tmp_path / "dev", shows=False)
    endings = {e.outcome.ending for e in read_episodes(tmp_path / "dev" / "episodes.jsonl")}
    assert Ending.ANSWERED not in endings
    assert math.isnan(scores[SELECTION])


@pytest.fixture
def finished(make_config: MakeConfig) -> tuple[PaptConfig, dict[str, Any], dict[str, Any]]:
    """A start, a policy that differs a little, the ceiling, and the summary of all three."""
    config = make_config()
    start, trained = load_trainable(config.model), load_trainable(config.model)
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.mul_(1.1)
    results = final_results(config, (start.model, start.dialogue), (trained.model, trained.dialogue), shows=False)
    return config, dict(results), summary_of(results)


def test_summary_holds_every_figure(finished: tuple[PaptConfig, dict[str, Any], dict[str, Any]]) -> None:
    """Each figure is value, low, high, n; gains are paired: trained minus start on the same instances."""
    _, results, summary = finished
    text = json.dumps(summary, allow_nan=False)
    assert json.loads(text) == summary
    for who in ("start", "trained", "ceiling"):
        assert set(summary[who]) == {p + m for p in ("", "general_") for m in SUMMARY_METRICS}
        assert all(set(figure) == {"value", "low", "high", "n"} for figure in summary[who].values())
        assert summary[who]["accuracy"]["n"] == 8
        assert summary[who]["general_accuracy"]["n"] == 4
    assert summary["ceiling"]["echo_rate"]["value"] == 0.0
    instances = [[e.instance_id for e in results[who].episodes] for who in ("start", "trained", "ceiling")]
    assert instances[0] == instances[1] == instances[2]
    for metric, gain in summary["gain"].items():
        if metric.endswith("accuracy") and "balanced" not in metric:
            expected = summary["trained"][metric]["value"] - summary["start"][metric]["value"]
            assert gain["value"] == pytest.approx(expected)
    # C1 is MIXED and C3 SUPPORT: the best constant is right in half; two sources or six tell them apart.
    constant = next(v for k, v in summary["probes"].items() if k.startswith("constant"))
    assert constant == 0.5
    assert summary["probes"]["structure"] == 1.0


def test_results_are_shown(
    finished: tuple[PaptConfig, dict[str, Any], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    config, results, _ = finished
    config.run_dir.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": step} | dict.fromkeys(CURVES, step / 10)) for step in range(1, 5)]
    (config.run_dir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    show_results(config, results)
    text = capsys.readouterr().out
    for word in ("start: start", "PAPT", "scripted ceiling", "conditions C1, C3", "general conditions"):
        assert word in text
    assert "naive start" not in text, "this run starts from a folder of the user's own"
    assert (config.run_dir / "plots" / "policies.png").stat().st_size > 1000
    assert (config.run_dir / "plots" / "training.png").stat().st_size > 1000


def test_every_test_episode_invalid_is_said(
    make_config: MakeConfig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Untrained weights write nothing that can be read; a table of zeros must not pass for one that judges badly."""
    config = make_config(evaluation={"conditions": ["C1"], "general_draws": 0})
    dialogue = TinyDialogue(build_tokenizer())
    start, trained = (build_model(seed, hidden_size=16, num_layers=1, intermediate_size=16) for seed in (3, 4))
    results = final_results(config, (start, dialogue), (trained, dialogue), shows=False)
    for plot in ("plot_policies", "plot_training"):
        monkeypatch.setattr(f"provgym.trainers.papt_evaluation.{plot}", lambda *_, **__: None)
    show_results(config, results)
    said = " ".join(capsys.readouterr().out.split())
    for who in ("start: start", "PAPT"):
        assert f"note: {who}: not one of 4 scored episodes ends with a judgement (" in said
    assert "note: scripted ceiling" not in said


@pytest.mark.parametrize(
    ("model", "label"),
    [
        ({}, "naive start"),
        ({"path": "runs/warm/policy"}, "start: warm"),
        ({"path": "runs/x/checkpoints/checkpoint-40"}, "start: checkpoint-40"),
        ({"adapter": "runs/first/policy"}, "start: tiny + first"),
        ({"kind": "smollm2"}, "start: SmolLM2-135M"),
        ({"kind": "smollm2", "adapter": "runs/clone/policy/"}, "start: SmolLM2-135M + clone"),
        ({"kind": "hf", "path": "Qwen/Qwen3-4B"}, "start: Qwen3-4B"),
        ({"kind": "hf", "path": "."}, "start: ."),
    ],
)
def test_a_start_is_called_what_it_is(model: dict[str, Any], label: str) -> None:
    """Only the shipped weights are the naive start."""
    assert start_label(ModelConfig.model_validate(model)) == label


# ---------------------------------------------------------------- what is left behind


@pytest.mark.parametrize("lora", [None, {"r": 4, "alpha": 8}], ids=["full", "lora"])
def test_policy_that_is_left_behind_loads(
    make_config: MakeConfig, make_trainer: Callable[..., Any], tmp_path: Path, lora: dict[str, int] | None
) -> None:
    """Kind: best checkpoint deleted (what is left exists, loads, and is the chosen one); no optimiser in it."""
    config = make_config(lora=lora, phases=[{"steps": 2}], optim__learning_rate=0.01)
    trainer = make_trainer(config)
    trainer.train()
    checkpoint = tmp_path / "out" / "checkpoint-2"
    chosen = weights_fingerprint(load_saved_policy(checkpoint, config))
    assert chosen != weights_fingerprint(load_trainable(config.model).model)

    target = tmp_path / "policy"
    target.mkdir()
    (target / "old.txt").write_text("of an earlier run")
    save_policy(target, checkpoint, load_trainable(config.model))
    names = {p.name for p in target.iterdir()}
    assert "tokenizer.json" in names
    assert not names & {"old.txt", "optimizer.pt", "trainer_state.json", "rng_state.pth", "training_args.bin"}
    assert weights_fingerprint(load_saved_policy(target, config)) == chosen
    path = str(config.model.path)
    model = {"path": str(target)} if lora is None else {"path": path, "adapter": str(target)}
    again = load_trainable(make_config(model=model).model)
    ids = torch.arange(5, 30)[None]
    expected = load_saved_policy(checkpoint, config)(input_ids=ids).logits
    assert torch.equal(again.model.eval()(input_ids=ids).logits, expected)


def test_folder_without_a_policy_is_named(make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds neither a model"):
        load_saved_policy(tmp_path, make_config())
    with pytest.raises(FileNotFoundError, match="holds no tiny policy"):
        load_trainable(make_config(model={"path": str(tmp_path)}).model)


def test_adapter_of_another_base_model_is_refused(
    make_config: MakeConfig, make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    """Kind: adapter never reaches the engine: of another base model, or without any effect, it is refused by name."""
    config = make_config(lora={"r": 4, "alpha": 8}, phases=[{"steps": 2}], optim__learning_rate=0.01)
    trainer = make_trainer(config)
    trainer.model.save_pretrained(str(tmp_path / "untrained"))
    path = str(config.model.path)
    with pytest.raises(ValueError, match="has no effect"):
        load_trainable(make_config(model={"path": path, "adapter": str(tmp_path / "untrained")}).model)
    trainer.train()
    trainer.model.save_pretrained(str(tmp_path / "adapter"))
    other = tmp_path / "elsewhere" / "other"
    build_model(3, hidden_size=16, num_layers=1, intermediate_size=16).save_pretrained(str(other))
    build_tokenizer().save_pretrained(str(other))
    with pytest.raises(ValueError, match="was made for"):
        load_trainable(make_config(model={"path": str(other), "adapter": str(tmp_path / "adapter")}).model)


@pytest.mark.parametrize(("grammar", "says_json"), [("json", True), ("tool_call", False)])
def test_a_run_s_grammar_has_its_own_instructions(grammar: str, says_json: bool) -> None:
    """Training, its evaluation and `provgym eval walk` tell a model alike how to write."""

    class Watched(TinyDialogue):
        told = ""

        def opening(self, lines: Any, instructions: str) -> list[int]:
            self.told = instructions
            return super().opening(lines, instructions)

    config = PaptConfig.model_validate(
        {"name": "x", "phases": [{"steps": 1}], "model": {"kind": "hf", "path": "m", "grammar": grammar}}
    )
    dialogue = Watched(build_tokenizer())
    policy = greedy_policy(config, "x", build_model(hidden_size=16, num_layers=1), dialogue)
    instance = load_pool(DataConfig(train_claims=1, dev_claims=1, test_claims=1)).draw(0, "C1", 0)
    policy.play([EpisodeTask(instance, 1, PresentationConfig(), 0, 0)])
    assert ("exactly one JSON object" in dialogue.told) == says_json
    assert ("exactly one tool call" in dialogue.told) != says_json
