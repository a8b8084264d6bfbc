"""Finished PAPT runs without training: what a run leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from provgym.eval.walk import evaluate
from provgym.eval.walk_config import GraphEchoClaims, WalkEvalConfig
from provgym.generators.baseline_walkers import random_walker
from provgym.generators.scripted import ScriptedPolicy, Walker, echo_avoiding_oracle, naive_path_counter
from provgym.trainers.papt import training_hash
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.papt_evaluation import summary_of
from provgym.trainers.run_grid import PlannedRun


def base_config(runs_dir: Path, **fields: Any) -> PaptConfig:
    data = {"name": "run", "runs_dir": str(runs_dir), "phases": [{"steps": 3}, {"steps": 2}]}
    return PaptConfig.model_validate(data | fields)


def write_finished(
    folder: Path, run: PlannedRun[PaptConfig], limit: int = 4, trained: Walker | None = None, **fields: Any
) -> None:
    """What a run leaves behind; unless given, a seed's policy is perfect (even seeds) or random (odd ones)."""
    config = WalkEvalConfig(claims=GraphEchoClaims(splits={"train": 2, "dev": 1, "test": 4}), limit=limit, resamples=50)
    trained = trained or (echo_avoiding_oracle if run.seed % 2 == 0 else random_walker)
    walkers = {"start": naive_path_counter, "trained": trained, "ceiling": echo_avoiding_oracle}
    results = {
        name: evaluate(config, ScriptedPolicy(name, walker), folder / "eval" / name, plots=False)
        for name, walker in walkers.items()
    }
    summary = {
        "name": run.config.name,
        "seed": run.seed,
        "training_hash": training_hash(run.config),
        "config_hash": "0" * 12,
        "selected_step": 3,
        "start_fingerprint": "same",
        "dev_scores": {"3": {"selection": 1.0 + run.seed, "accuracy": 0.5, "general_accuracy": None}},
        "seconds_this_segment": 100.0 * run.seed,
        **summary_of(results),
        **fields,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
