"""Several training seeds as one result: every seed shown, seeds and base claims resampled together.

Reads what finished runs left behind (``summary.json`` and the stored episodes) and plays nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from provgym.eval.crossed import CrossedEstimate, crossed_difference, crossed_estimate
from provgym.eval.episode_store import read_episodes
from provgym.eval.estimate import Estimate
from provgym.eval.metrics import GENERAL_PREFIX, HEADLINE, metrics_named, split_by_prefix
from provgym.eval.probes import Probe
from provgym.eval.table import ResultTable, policy_table
from provgym.generators.episode import Episode

_KEPT = ("start", "trained", "gain", "selected_step", "config_hash", "training_hash", "wandb_run_id", "world_size")
_CAPTION = (
    "95 % intervals: of one seed over base claims, of the pooled row over seeds and base claims (crossed bootstrap); "
    "n below each figure."
)


@dataclass(frozen=True)
class SeedResult:
    """One finished run.

    Attributes:
        seed: Its training seed.
        run_dir: Its folder.
        summary: Its ``summary.json``.
        start: Episodes of the policy it started from, on the test split.
        trained: Episodes of the trained policy, on the same tasks.
    """

    seed: int
    run_dir: Path
    summary: Mapping[str, Any]
    start: Sequence[Episode]
    trained: Sequence[Episode]

    def estimates(self, name: str) -> dict[str, Estimate]:
        """Return one map of estimates of the summary: ``start``, ``trained``, ``ceiling`` or ``gain``."""
        return {metric: Estimate.from_json(data) for metric, data in self.summary[name].items()}


@dataclass(frozen=True)
class PooledResult:
    """The runs of one objective.

    Attributes:
        label: Name of the objective.
        runs: One per seed, in the order of the seeds.
        trained: Metric to its mean over seeds with the crossed interval, and each seed's figure.
        gain: The same for trained minus start, paired.
        probes: Metric prefix to probes.
    """

    label: str
    runs: tuple[SeedResult, ...]
    trained: Mapping[str, CrossedEstimate]
    gain: Mapping[str, CrossedEstimate]
    probes: Mapping[str, tuple[Probe, ...]]

    def to_json(self) -> dict[str, Any]:
        """Return what the seeds' ``summary.json`` holds of this objective."""
        first = self.runs[0].summary
        return {
            "seeds": {
                str(run.seed): {"run_dir": str(run.run_dir), **{k: run.summary[k] for k in _KEPT if k in run.summary}}
                for run in self.runs
            },
            "start": first["start"] if self.shares_start else None,
            "ceiling": first["ceiling"],
            "trained": {name: found.to_json() for name, found in self.trained.items()},
            "gain": {name: found.to_json() for name, found in self.gain.items()},
            "probes": {
                prefix or "conditions": [probe.to_json() for probe in probes] for prefix, probes in self.probes.items()
            },
        }

    @property
    def shares_start(self) -> bool:
        """Whether every seed began from the same weights."""
        return len({run.summary["start_fingerprint"] for run in self.runs}) == 1

    @property
    def disagreeing(self) -> tuple[str, ...]:
        """Metrics whose gain has another sign for some seeds."""
        return tuple(name for name, found in self.gain.items() if not found.agrees_in_sign)


def read_seed(run_dir: Path, seed: int) -> SeedResult:
    """Read a finished run.

    Raises:
        FileNotFoundError: If the run left no summary or no episodes.
        ValueError: If its summary is damaged or of another seed.
    """
    path = run_dir / "summary.json"
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no JSON ({error}); remove it and run the same command again") from error
    if summary.get("seed") != seed:
        raise ValueError(f"{path} is of seed {summary.get('seed')}, expected {seed}; was the folder renamed?")
    start, trained = (read_episodes(run_dir / "eval" / name / "episodes.jsonl") for name in ("start", "trained"))
    return SeedResult(seed, run_dir, summary, start, trained)


def pool(label: str, runs: Sequence[SeedResult]) -> PooledResult:
    """Pool runs that differ in their seed alone.

    Raises:
        ValueError: If there are fewer than two, or they were not evaluated alike; the message names the run.
    """
    if len(runs) < 2:
        raise ValueError(f"found {len(runs)} seed of {label!r}; an interval over seeds needs at least two")
    evaluations = [_evaluation_of(run.run_dir) for run in runs]
    for run, found in zip(runs, evaluations, strict=True):
        if found != evaluations[0]:
            raise ValueError(
                f"{run.run_dir}/eval has the hashes {found} of config and data, "
                f"{runs[0].run_dir}/eval has {evaluations[0]}; "
                "remove the eval folder and the summary.json of the stale one and run the same command again"
            )
    trained, gain = {}, {}
    groups = [(split_by_prefix(run.start), split_by_prefix(run.trained)) for run in runs]
    for prefix in groups[0][1]:
        starts, ends = [g[0][prefix] for g in groups], [g[1][prefix] for g in groups]
        for metric in metrics_named(HEADLINE):
            trained[prefix + metric.name] = crossed_estimate(ends, metric)
            gain[prefix + metric.name] = crossed_difference(ends, starts, metric)
    return PooledResult(label, tuple(runs), trained, gain, _probes_of(runs[0].run_dir))


def seed_tables(result: PooledResult, name: str) -> list[ResultTable]:
    """Return an objective's tables: figures and gains, a row per seed and a pooled one, each group apart."""
    tables = []
    for prefix, group in _groups(result.trained):
        rows = {f"seed {run.seed}": run.estimates("trained") for run in result.runs}
        rows["pooled"] = {metric: found.overall for metric, found in result.trained.items()}
        start = {"start": result.runs[0].estimates("start")} if result.shares_start else {}
        ceiling = {"ceiling": result.runs[0].estimates("ceiling")}
        title = f"{name}, {result.label}, {group} conditions, {len(result.runs)} seeds"
        table = policy_table(start | rows | ceiling, prefix=prefix, probes=result.probes.get(prefix, ()), title=title)
        tables.append(replace(table, caption=_CAPTION))
        gains = {f"seed {run.seed}": run.estimates("gain") for run in result.runs}
        gains["pooled"] = {metric: found.overall for metric, found in result.gain.items()}
        title = f"{name}, {result.label}, {group} conditions: trained minus start, paired"
        tables.append(replace(policy_table(gains, prefix=prefix, title=title), caption=_sign_note(result, prefix)))
    return tables


def variant_tables(results: Sequence[PooledResult], name: str) -> list[ResultTable]:
    """Return objectives side by side, pooled over their seeds; none for a single objective."""
    if len(results) < 2:
        return []
    tables = []
    for prefix, group in _groups(results[0].trained):
        rows = {r.label: {metric: found.overall for metric, found in r.trained.items()} for r in results}
        title = f"{name}, {group} conditions: reward variants, pooled over seeds"
        table = policy_table(rows, prefix=prefix, probes=results[0].probes.get(prefix, ()), title=title)
        tables.append(replace(table, caption=_CAPTION))
    return tables


def _groups(trained: Mapping[str, CrossedEstimate]) -> list[tuple[str, str]]:
    found = [("", "named"), (GENERAL_PREFIX, "general")]
    return [(prefix, group) for prefix, group in found if prefix + HEADLINE[0] in trained]


def _sign_note(result: PooledResult, prefix: str) -> str:
    names = [m for m in HEADLINE if prefix + m in result.disagreeing]
    return (
        f"Seeds do not agree in sign (zero has none) on: {', '.join(names)}."
        if names
        else "All seeds agree in sign on every metric."
    )


def _evaluation_of(run_dir: Path) -> tuple[str, str]:
    path = run_dir / "eval" / "trained" / "config.yaml"
    stored = yaml.safe_load(path.read_text(encoding="utf-8"))
    return str(stored["config_hash"]), str(stored["data_hash"])


def _probes_of(run_dir: Path) -> dict[str, tuple[Probe, ...]]:
    stored = json.loads((run_dir / "eval" / "trained" / "summary.json").read_text(encoding="utf-8"))["probes"]
    return {
        "" if prefix == "conditions" else prefix: tuple(_probe(data) for data in probes)
        for prefix, probes in stored.items()
    }


def _probe(data: Mapping[str, Any]) -> Probe:
    accuracy, balanced, f1 = (
        math.nan if data[key] is None else float(data[key]) for key in ("accuracy", "balanced_accuracy", "macro_f1")
    )
    return Probe(str(data["name"]), accuracy, balanced, f1, int(data["n"]))
