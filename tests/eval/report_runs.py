"""Small finished runs for the tests of report pages: scripted policies on claims whose texts attack the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from provgym.envs.walk_text import GraphWalkTextEnv
from provgym.eval.compare import compare_policies
from provgym.eval.metrics import GENERAL_PREFIX
from provgym.eval.run_files import write_json_atomic
from provgym.eval.walk import evaluate
from provgym.eval.walk_config import ClaimFiles, GraphEchoClaims, WalkEvalConfig
from provgym.eval.walk_result import WalkEvalResult
from provgym.generators.scripted import ScriptedPolicy, Walker, echo_avoiding_oracle, naive_walker

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028<!-- & \"'"
SUMMARY_METRICS = ("accuracy", "echo_rate", "balanced_accuracy", "source_recall", "count_mae", "invalid_rate", "walks")
CONDITIONS = ("C1", "C2", "C3")
SPLITS = {"train": 3, "dev": 2, "test": 4}
PHASES = [
    {"steps": 6, "variant": "full", "weights": {"coverage": 1.5}, "count_basis": "available"},
    {"steps": 6, "variant": "verdict_only"},
]


def clumsy(env: GraphWalkTextEnv, rng: np.random.Generator) -> str:
    """Make every mistake there is: illegal, unparsed, an echo, wrong counts, citations of the unread and unknown."""
    walk = env.walk
    assert walk is not None
    script = ["walk n1", "walk n99", HOSTILE, "walk n0", "walk n1", "stop +3 -0 SUPPORT 0.7 S1 S2 S9 S1"]
    return script[len(walk.trace)] if len(walk.trace) < len(script) else "nothing"


def claim_line(number: int, condition: str, hostile: str = HOSTILE) -> dict[str, Any]:
    """Return a claim-file line: two routes of one supporting source, one of a refuting one."""
    evidence = [
        {
            "source": f"A{number} {hostile}",
            "stance": "SUPPORT",
            "text": f"It rose. {hostile}",
            "routes": ["table", "<u>"],
        },
        {"source": f"B{number}", "stance": "REFUTE", "text": "It fell."},
    ]
    return {
        "id": f"i{number} {hostile}",
        "claim": f"Claim {number} {hostile}",
        "split": "test",
        "condition": condition,
        "evidence": evidence,
    }


def write_hostile_run(folder: Path) -> Path:
    """Write the evaluation of two policies on hostile claims; return its folder."""
    claims = folder / "claims.jsonl"
    lines = [claim_line(number, f"own <u>{number % 2}</u>") for number in range(4)]
    claims.write_text("\n".join(json.dumps(line) for line in lines) + "\n", encoding="utf-8")
    config = WalkEvalConfig(claims=ClaimFiles(paths=(claims,)), resamples=50)
    out = folder / "eval"
    for place, (name, walker) in enumerate(((f"clumsy {HOSTILE}", clumsy), ("naive", naive_walker()))):
        evaluate(config, ScriptedPolicy(name, walker), out / f"p{place}", plots=False)
    return out


def write_training_run(folder: Path) -> Path:
    """Write a training run's files, with scripted policies in the place of trained ones; return its folder."""
    claims = GraphEchoClaims(seed=7, splits=SPLITS)
    config = WalkEvalConfig(claims=claims, conditions=CONDITIONS, general_draws=1, resamples=50)
    walkers: Mapping[str, Walker] = {
        "start": naive_walker(0.1, 0.8),
        "trained": naive_walker(0.3),
        "ceiling": echo_avoiding_oracle,
    }
    run = folder / "runs" / "small"
    results = {
        name: evaluate(config, ScriptedPolicy(name, walker), run / "eval" / name, plots=False)
        for name, walker in walkers.items()
    }
    (run / "config.yaml").write_text(yaml.safe_dump({"name": "small", "phases": PHASES}), encoding="utf-8")
    rng = np.random.default_rng(0)
    rows = [
        {"step": step, "rollout/reward": float(rng.random()), "rollout/accuracy": step / 12, "train/loss": None}
        for step in range(1, 13)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    write_json_atomic(run / "summary.json", _summary(results))
    return run


def _summary(results: Mapping[str, WalkEvalResult]) -> dict[str, Any]:
    names = [prefix + metric for prefix in ("", GENERAL_PREFIX) for metric in SUMMARY_METRICS]
    summary: dict[str, Any] = {"name": "small", "seed": 42, "selected_step": 8, "config_hash": "0123456789ab"}
    for name, result in results.items():
        summary[name] = {metric: result.metrics[metric].to_json() for metric in names}
    pair = {name: results[name].episodes for name in ("start", "trained")}
    gains = compare_policies(pair, metrics=SUMMARY_METRICS, baseline="start", resamples=50)
    summary["gain"] = {c.metric: c.paired.difference.to_json() for c in gains}
    return summary
