"""What a study's finished runs come to: every arm pooled over its seeds, against its start and the reference arm.

Reads what the runs left behind and plays nothing. An arm enters only with all its seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provgym.eval.crossed import CrossedEstimate, crossed_difference
from provgym.eval.metrics import HEADLINE, metrics_named, split_by_prefix
from provgym.eval.significance import holm
from provgym.trainers.run_grid import is_finished
from provgym.trainers.seed_summary import PooledResult, pool, read_seed
from provgym.trainers.study_config import Point, StudyConfig
from provgym.trainers.study_plan import Cell, label_of

DEV_METRICS = ("selection", "accuracy", "balanced_accuracy", "echo_rate", "source_recall", "count_mae", "walks")


@dataclass(frozen=True)
class Difference:
    """A difference over training seeds, and its p corrected for the arms that are compared.

    Attributes:
        crossed: Mean over seeds with the crossed interval, p, and each seed's figure.
        holm_p: P corrected by Holm's method over the study's arms, on this metric; NaN without a test.
    """

    crossed: CrossedEstimate
    holm_p: float = math.nan

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {**self.crossed.to_json(), **({} if math.isnan(self.holm_p) else {"holm_p": self.holm_p})}


@dataclass(frozen=True)
class ArmResult:
    """One cell of the study, all its seeds finished.

    Attributes:
        cell: What was run.
        pooled: Figures of the trained policies and their gains over the start, on the test claims.
        to_start: Metric to trained minus start.
        to_reference: Metric to this arm minus the reference arm, seed by seed; empty for the reference itself, and
            while the reference is unfinished.
        dev: Metric to each seed's figure of the chosen checkpoint on the dev claims; what an arm may be chosen by.
    """

    cell: Cell
    pooled: PooledResult
    to_start: Mapping[str, Difference]
    to_reference: Mapping[str, Difference]
    dev: Mapping[str, tuple[float, ...]]

    @property
    def label(self) -> str:
        """Arm and point of the axes."""
        return self.cell.label

    def to_json(self) -> dict[str, Any]:
        """Return what the study's ``summary.json`` holds of this arm."""
        return {
            "arm": self.cell.arm,
            "point": dict(self.cell.point),
            "changes": dict(self.cell.changes),
            "steps": self.cell.config.total_steps,
            "training_episodes": self.cell.episodes,
            **self.pooled.to_json(),
            "gain": {name: found.to_json() for name, found in self.to_start.items()},
            "to_reference": {name: found.to_json() for name, found in self.to_reference.items()},
            "dev": {name: [None if math.isnan(v) else v for v in values] for name, values in self.dev.items()},
        }


@dataclass(frozen=True)
class StudyResult:
    """A study as far as it is finished.

    Attributes:
        study: What was asked for.
        arms: Finished cells, in the study's order.
        unfinished: Label of every other cell to the names of its runs that are missing.
    """

    study: StudyConfig
    arms: tuple[ArmResult, ...]
    unfinished: Mapping[str, tuple[str, ...]]

    @property
    def shares_start(self) -> bool:
        """Whether every run of every arm began from the same weights."""
        starts = {run.summary["start_fingerprint"] for arm in self.arms for run in arm.pooled.runs}
        return len(starts) == 1

    @property
    def first_at_points(self) -> list[tuple[Point, PooledResult]]:
        """The first arm at every point of the axes: a point can change how start and ceiling are measured."""
        found: list[tuple[Point, PooledResult]] = []
        for arm in self.arms:
            if all(arm.cell.point != point for point, _ in found):
                found.append((arm.cell.point, arm.pooled))
        return found


def collect(study: StudyConfig, cells: Sequence[Cell]) -> StudyResult:
    """Read and pool what is finished.

    Raises:
        ValueError: If a run's files are damaged, or runs were measured on other claims; the message names the run.
    """
    unfinished: dict[str, tuple[str, ...]] = {}
    pooled: dict[str, PooledResult] = {}
    for cell in cells:
        missing = tuple(run.config.name for run in cell.runs if not is_finished(run))
        if missing:
            unfinished[cell.label] = missing
        else:
            pooled[cell.label] = pool(cell.label, [read_seed(run.run_dir, run.seed) for run in cell.runs])
    done = [cell for cell in cells if cell.label in pooled]
    to_start = _corrected({c.label: pooled[c.label].gain for c in done})
    against = {}
    for cell in done:
        reference = label_of(study.reference, cell.point)
        is_reference = cell.label == reference
        if reference in pooled and not is_reference:
            against[cell.label] = _differences(pooled[cell.label], pooled[reference])
    to_reference = _corrected(against)
    arms = [
        ArmResult(
            cell, pooled[cell.label], to_start[cell.label], to_reference.get(cell.label, {}), _dev(pooled[cell.label])
        )
        for cell in done
    ]
    return StudyResult(study, tuple(arms), unfinished)


def _differences(arm: PooledResult, reference: PooledResult) -> dict[str, CrossedEstimate]:
    """Return arm minus reference, the same seed and the same claims on both sides."""
    here = [split_by_prefix(run.trained) for run in arm.runs]
    there = [split_by_prefix(run.trained) for run in reference.runs]
    try:
        return {
            prefix + metric.name: crossed_difference([g[prefix] for g in here], [g[prefix] for g in there], metric)
            for prefix in here[0]
            for metric in metrics_named(HEADLINE)
        }
    except ValueError as error:
        raise ValueError(f"{arm.label!r} against {reference.label!r}: {error}") from error


def _corrected(found: Mapping[str, Mapping[str, CrossedEstimate]]) -> dict[str, dict[str, Difference]]:
    """Correct p over the arms, metric by metric."""
    labels = list(found)
    corrected: dict[str, dict[str, Difference]] = {label: {} for label in labels}
    for metric in dict.fromkeys(metric for differences in found.values() for metric in differences):
        crossed = [found[label][metric] for label in labels]
        for label, difference, p in zip(labels, crossed, holm([c.p for c in crossed]), strict=True):
            corrected[label][metric] = Difference(difference, p)
    return corrected


def _dev(pooled: PooledResult) -> dict[str, tuple[float, ...]]:
    """Return each seed's dev figures of the checkpoint that was chosen."""
    scores = [run.summary["dev_scores"][str(run.summary["selected_step"])] for run in pooled.runs]
    names = [name for name in (*DEV_METRICS, *(f"general_{m}" for m in DEV_METRICS)) if name in scores[0]]
    return {name: tuple(math.nan if s[name] is None else float(s[name]) for s in scores) for name in names}
