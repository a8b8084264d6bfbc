"""After training: choose a checkpoint on dev, then measure start, trained policy and ceiling on the test split."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from pydantic import ValidationError
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from provgym.eval.compare import compare_policies
from provgym.eval.metrics import GENERAL_PREFIX
from provgym.eval.plots import plot_policies, plot_training
from provgym.eval.problems import problems_of
from provgym.eval.table import metric_table, print_tables
from provgym.eval.walk import evaluate
from provgym.eval.walk_config import ClaimFiles, GraphEchoClaims, SplitName, WalkEvalConfig
from provgym.eval.walk_result import WalkEvalResult
from provgym.generators.chat_actions import instructions_of
from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL
from provgym.generators.engine import Dialogue, Sampling
from provgym.generators.episode import Policy
from provgym.generators.hf_engine import HFEngine
from provgym.generators.rollout import LanguageModelPolicy
from provgym.generators.scripted import ScriptedPolicy, echo_avoiding_oracle
from provgym.generators.weights_fingerprint import weights_fingerprint
from provgym.rewards.rubric import papt_rubric
from provgym.trainers.papt_config import ModelConfig, PaptConfig

SUMMARY_METRICS = (
    "accuracy",
    "echo_rate",
    "balanced_accuracy",
    "source_recall",
    "count_mae",
    "invalid_rate",
    "walks",
)
SELECTION = "selection"
"""Name of the figure that checkpoints are chosen by."""

CURVES = ("rollout/reward", "rollout/accuracy", "rollout/echo_rate", "rollout/source_recall", "rollout/walks")


def walk_eval_config(
    config: PaptConfig, split: SplitName, conditions: tuple[str, ...], general_draws: int, limit: int | None
) -> WalkEvalConfig:
    """Return the evaluation of a run's claims, walked as in training but with the evaluation's one budget."""
    data = config.data
    claims: GraphEchoClaims | ClaimFiles
    if data.claims is None:
        splits = {"train": data.train_claims, "dev": data.dev_claims, "test": data.test_claims}
        claims = GraphEchoClaims(seed=data.seed, splits=splits)
    else:
        claims = ClaimFiles(paths=(data.claims,))
    return WalkEvalConfig(
        claims=claims,
        split=split,
        conditions=conditions if data.claims is None else None,
        general_draws=general_draws,
        mitigations=(config.walk.mitigation,),
        budgets=(config.evaluation.budget,),
        source_labels=config.walk.source_labels,
        preview_ids=config.walk.preview_ids,
        moves=config.walk.moves,
        limit=limit,
    )


def check_evaluation(config: PaptConfig, model: PreTrainedModel) -> None:
    """Refuse an evaluation that could not be played after training: unknown conditions, too long episodes.

    Raises:
        ValueError: If so; the message names the key.
    """
    dev = tuple(c for c in config.checkpoints.dev_conditions if c != GENERAL)
    draws = int(GENERAL in config.checkpoints.dev_conditions)
    evaluation = config.evaluation
    asked: tuple[tuple[str, SplitName, tuple[str, ...], int], ...] = (
        ("checkpoints.dev_conditions", "dev", dev, draws),
        ("evaluation", "test", evaluation.conditions, evaluation.general_draws),
    )
    for key, split, conditions, general_draws in asked:
        try:
            walk_eval_config(config, split, conditions, general_draws, None)
        except ValidationError as error:
            raise ValueError(f"{key}: {problems_of(error)}") from error
    if config.generation.engine == "hf":
        try:
            HFEngine(model, max_rows=1, max_length=config.generation.max_length)
        except ValueError as error:
            raise ValueError(f"generation.{error}") from error


def greedy_policy(config: PaptConfig, name: str, model: PreTrainedModel, dialogue: Dialogue) -> Policy:
    """Return a policy that plays greedily with a model as it is now."""
    engine = HFEngine(model, max_rows=config.evaluation.max_rows, max_length=config.generation.max_length)
    return LanguageModelPolicy(
        name, engine, dialogue, Sampling(0.0), instructions=instructions_of(config.model.grammar)
    )


def evaluate_policy(
    config: PaptConfig,
    policy: Policy,
    eval_config: WalkEvalConfig,
    out_dir: Path,
    fingerprint: str,
    *,
    shows: bool,
) -> WalkEvalResult:
    """Play one policy with a progress bar; an interrupted evaluation goes on where it stopped."""
    with tqdm(desc=f"evaluate {policy.name}", unit="episode", disable=not shows, mininterval=2) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return evaluate(
            eval_config,
            policy,
            out_dir,
            fingerprint=fingerprint,
            rubric=papt_rubric(),
            plots=False,
            on_progress=progress,
        )


def dev_score(
    config: PaptConfig, model: PreTrainedModel, dialogue: Dialogue, out_dir: Path, *, shows: bool
) -> Mapping[str, float]:
    """Return a model's dev metrics, general ones with their prefix, and under :data:`SELECTION` what is selected by.

    That is ``checkpoints.select_by`` over all dev conditions together, named ones and general ones alike.
    """
    conditions = tuple(c for c in config.checkpoints.dev_conditions if c != GENERAL)
    draws = int(GENERAL in config.checkpoints.dev_conditions)
    eval_config = walk_eval_config(config, "dev", conditions, draws, None)
    policy = greedy_policy(config, "dev", model, dialogue)
    result = evaluate_policy(config, policy, eval_config, out_dir, weights_fingerprint(model), shows=shows)
    groups = [p for p in ("", GENERAL_PREFIX) if f"{p}reward" in result.metrics]
    scores = {f"{p}{m}": result.metrics[f"{p}{m}"].value for p in groups for m in (*SUMMARY_METRICS, "reward")}
    found = [result.metrics[f"{p}{config.checkpoints.select_by}"] for p in groups]
    # One weight per episode, so that a condition counts as often as it was played.
    total = sum(e.n for e in found)
    scores[SELECTION] = sum(e.value * e.n for e in found if e.n) / total if total else math.nan
    return scores


def final_results(
    config: PaptConfig,
    start: tuple[PreTrainedModel, Dialogue],
    trained: tuple[PreTrainedModel, Dialogue],
    *,
    shows: bool,
) -> dict[str, WalkEvalResult]:
    """Measure the start, the trained policy and the scripted ceiling on the same test instances."""
    evaluation = config.evaluation
    eval_config = walk_eval_config(
        config, "test", evaluation.conditions, evaluation.general_draws, evaluation.limit_claims
    )
    folder = config.run_dir / "eval"
    results = {}
    for name, (model, dialogue) in (("start", start), ("trained", trained)):
        policy = greedy_policy(config, name, model, dialogue)
        results[name] = evaluate_policy(
            config, policy, eval_config, folder / name, weights_fingerprint(model), shows=shows
        )
    ceiling = ScriptedPolicy("ceiling", echo_avoiding_oracle)
    results["ceiling"] = evaluate_policy(config, ceiling, eval_config, folder / "ceiling", "", shows=shows)
    return results


def summary_of(results: Mapping[str, WalkEvalResult]) -> dict[str, Any]:
    """Return each policy's metrics as ``{value, low, high, n}``, and the paired gains of the trained policy."""
    summary: dict[str, Any] = {}
    for name, result in results.items():
        wanted = [p + m for p in ("", GENERAL_PREFIX) for m in SUMMARY_METRICS]
        summary[name] = {m: result.metrics[m].to_json() for m in wanted if m in result.metrics}
    pair = {name: results[name].episodes for name in ("start", "trained")}
    gains = compare_policies(pair, metrics=SUMMARY_METRICS, baseline="start")
    summary["gain"] = {c.metric: c.paired.difference.to_json() for c in gains}
    summary["probes"] = {
        prefix + probe.name: probe.accuracy
        for prefix, probes in results["trained"].summary.probes.items()
        for probe in probes
    }
    return summary


def start_label(model: ModelConfig) -> str:
    """Return what tables call the policy that a run starts from, by what it is.

    Example:
        >>> start_label(ModelConfig()), start_label(ModelConfig(kind="hf", path="Qwen/Qwen3-4B"))
        ('naive start', 'start: Qwen3-4B')
    """
    if model.kind == "tiny" and model.path is None and model.adapter is None:
        return "naive start"  # the shipped weights, cloned from the naive walker
    base = {"tiny": "tiny", "smollm2": "SmolLM2-135M", "hf": "model"}[model.kind]
    if model.path is not None:
        base = _telling_name(model.path)
    return f"start: {base}" if model.adapter is None else f"start: {base} + {_telling_name(model.adapter)}"


def _telling_name(path: str) -> str:
    """Return the last part of a path or hub id that names something: of ``runs/x/policy`` that is ``x``."""
    parts = [part for part in PurePath(path).parts if part not in ("policy", "checkpoints", ".", "..", "/")]
    return parts[-1] if parts else path


def show_results(config: PaptConfig, results: Mapping[str, WalkEvalResult]) -> None:
    """Print the tables and what a reader of them has to know, and draw the plots of the run."""
    labels = {"start": start_label(config.model), "trained": "PAPT", "ceiling": "scripted ceiling"}
    metrics = {labels[name]: result.metrics for name, result in results.items()}
    probes = results["trained"].summary.probes
    pair = {labels[name]: results[name].episodes for name in ("start", "trained")}
    compared = compare_policies(pair, metrics=SUMMARY_METRICS, baseline=labels["start"])
    gains = {c.metric: c.paired.difference for c in compared}
    named = [name for name in results["trained"].summary.by_condition if name != GENERAL]
    played = "five conflict conditions" if set(named) == set(CONFLICT_CONDITIONS) else _condition_list(named)
    titles = {"": f"Test claims, {played}", GENERAL_PREFIX: "Test claims, general conditions"}
    print_tables(
        [
            metric_table(
                metrics, gains, prefix=prefix, rows=SUMMARY_METRICS, probes=probes.get(prefix, ()), title=title
            )
            for prefix, title in titles.items()
            if any(prefix + "accuracy" in m for m in metrics.values())
        ]
    )
    for name, result in results.items():
        for note in result.notes:
            print(f"note: {labels[name]}: {note}")
    plots = config.run_dir / "plots"
    plot_policies(metrics, plots / "policies.png", probes=probes)
    metrics_file = config.run_dir / "metrics.jsonl"
    plot_training(metrics_file, plots / "training.png", keys=CURVES, smooth=10, title=f"PAPT, {config.name}")


def _condition_list(names: Sequence[str]) -> str:
    """Return the names of the conditions played, or their number where a claim file names many."""
    if len(names) > 5:
        return f"{len(names)} conditions"
    return f"condition{'s' if len(names) > 1 else ''} {', '.join(names)}"
