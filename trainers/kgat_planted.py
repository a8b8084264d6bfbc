"""The planted optimum: how much of what can be gained by choosing topologies was gained, by exhaustive execution.

``planted_optimum_ratio = (S_trained - S_random) / (S_best - S_random)``. S_best is the best topology per kind of
evidence, S_random the mean over all distinct valid graphs of a small rule set. The best of several hundred noisy means
is lucky too, so it is chosen on one half of the tasks and scored on the other, and the other way round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from provgym.envs.topology import Topology
from provgym.envs.topology_executor import outcome_of_runs
from provgym.envs.topology_rules import TopologyRules, enumerate_topologies
from provgym.envs.workflow import RunRequest
from provgym.eval.run_files import read_json_file, write_json_atomic
from provgym.eval.topology_methods import Executor
from provgym.generators.topology_targets import ScoreRule
from provgym.trainers.kgat_config import PlantedConfig
from provgym.trainers.kgat_rounds import TaskSet
from provgym.trainers.step_record import RunStopped

Floats = NDArray[np.float64]
_RUNS_AT_ONCE = 4_000


@dataclass(frozen=True)
class PlantedWorld:
    """Every topology of a small rule set, executed on held-out tasks.

    Shapes: G topologies, N tasks.

    Attributes:
        topologies: (G,) all distinct valid ones.
        scores: (G, N) mean raw score of each on each task; NaN where nothing could be scored.
        kinds: (N,) kind of evidence.
        folds: (N,) 0 or 1; tasks of one base claim share it.
    """

    topologies: tuple[Topology, ...]
    scores: Floats
    kinds: tuple[str, ...]
    folds: tuple[int, ...]

    @property
    def random(self) -> float:
        """S_random."""
        return _mean_of_kinds(np.nanmean(self.scores, axis=0), self.kinds)

    @property
    def best(self) -> float:
        """S_best: chosen on one half, scored on the other."""
        found = np.full(len(self.kinds), np.nan)
        kinds, folds = np.array(self.kinds), np.array(self.folds)
        for kind in sorted(set(self.kinds)):
            for fold in (0, 1):
                here = (kinds == kind) & (folds == fold)
                found[here] = self.scores[self._best_on((kinds == kind) & (folds != fold)), here]
        return _mean_of_kinds(found, self.kinds)

    @property
    def gap(self) -> float:
        """S_best - S_random."""
        return self.best - self.random

    def best_of_kind(self) -> dict[str, Topology]:
        """Return the topology of the highest mean score for each kind of evidence, over all tasks."""
        kinds = np.array(self.kinds)
        return {kind: self.topologies[self._best_on(kinds == kind)] for kind in sorted(set(self.kinds))}

    def ratio(self, trained: float) -> float:
        """Return the share of the gap that a mean score of S_trained closes; above 1 if it beats the small rule set."""
        return (trained - self.random) / self.gap

    def mean_of(self, scores: Floats) -> float:
        """Return the mean of (N,) scores over the kinds, each kind counting alike."""
        return _mean_of_kinds(scores, self.kinds)

    def _best_on(self, chosen: NDArray[np.bool_]) -> int:
        return int(np.nanargmax(np.nanmean(self.scores[:, chosen], axis=1)))


def planted_tasks(tasks: TaskSet, per_kind: int) -> TaskSet:
    """Return the first tasks of every kind of evidence.

    Args:
        tasks: Held-out tasks.
        per_kind: Of each kind, at most.
    """
    counts: dict[str | None, int] = {}
    chosen = []
    for number, task in enumerate(tasks.tasks):
        counts[task.evidence_kind] = counts.get(task.evidence_kind, 0) + 1
        if counts[task.evidence_kind] <= per_kind:
            chosen.append(number)
    return TaskSet(tuple(tasks.tasks[n] for n in chosen), tuple(tasks.evidence[n] for n in chosen))


def explore_world(
    rules: TopologyRules,
    tasks: TaskSet,
    executor: Executor,
    rule: ScoreRule,
    config: PlantedConfig,
    on_topology: Callable[[int, int], None] | None = None,
) -> PlantedWorld:
    """Execute every topology of the rule set on every task.

    Args:
        rules: The generator's; their number of nodes is lowered to the small rule set's.
        tasks: N held-out tasks, see :func:`planted_tasks`.
        executor: Runs topologies.
        rule: Prices; success is the raw rate.
        config: Size and replicates.
        on_topology: Told (topologies executed, topologies in all).

    Raises:
        RunStopped: If topology matters too little here: S_best - S_random is below ``config.min_gap``.
    """
    small = TopologyRules(rules.role_names, min(rules.max_nodes, config.max_nodes), rules.max_in_degree)
    topologies = tuple(topology.canonical() for topology in enumerate_topologies(small))
    scores = np.full((len(topologies), len(tasks)), np.nan)
    for number, topology in enumerate(topologies):
        scores[number] = scores_of([topology] * len(tasks), tasks, executor, rule, config.replicates)
        if on_topology is not None:
            on_topology(number + 1, len(topologies))
    folds = {base: place % 2 for place, base in enumerate(dict.fromkeys(task.base_id for task in tasks.tasks))}
    kinds = tuple(task.evidence_kind or "all" for task in tasks.tasks)
    world = PlantedWorld(topologies, scores, kinds, tuple(folds[task.base_id] for task in tasks.tasks))
    if not world.gap >= config.min_gap:
        raise RunStopped(
            f"S_best - S_random = {world.gap:.3f} is below evaluation.planted.min_gap={config.min_gap}: topology "
            "hardly matters in this world, and the ratio would say nothing. Change agents or prices, or set "
            "evaluation.planted to null"
        )
    return world


def scores_of(
    teams: Sequence[Topology], tasks: TaskSet, executor: Executor, rule: ScoreRule, replicates: int
) -> Floats:
    """Return (N,) the mean raw score of each task's team over replicates; NaN where nothing could be scored.

    Args:
        teams: (N,) one topology per task.
        tasks: N tasks.
        executor: Runs topologies.
        rule: Prices; its estimator is not used.
        replicates: Executions of each.
    """
    raw = ScoreRule(rule.weights, rule.cost_weight, "raw")
    requests = [
        RunRequest(team, task, evidence, replicate, "eval")
        for team, task, evidence in zip(teams, tasks.tasks, tasks.evidence, strict=True)
        for replicate in range(replicates)
    ]
    runs = [
        run
        for start in range(0, len(requests), _RUNS_AT_ONCE)
        for run in executor.run_many_sync(requests[start : start + _RUNS_AT_ONCE])
    ]
    by_task = [runs[place * replicates : (place + 1) * replicates] for place in range(len(tasks))]
    return np.array([raw.score(outcome_of_runs(team, found)) for team, found in zip(teams, by_task, strict=True)])


def save_world(world: PlantedWorld, path: Path, about: Mapping[str, Any]) -> None:
    """Write a world, so that a resumed run explores it once.

    Args:
        world: What was explored.
        path: File to write, replaced as a whole.
        about: What the scores depend on, as JSON; :func:`read_world` asks for the same.
    """
    data = {
        "about": dict(about),
        "topologies": [topology.as_dict() for topology in world.topologies],
        "scores": [[None if math.isnan(score) else score for score in row] for row in world.scores.tolist()],
        "kinds": list(world.kinds),
        "folds": list(world.folds),
    }
    write_json_atomic(path, data)


def read_world(path: Path, about: Mapping[str, Any]) -> PlantedWorld | None:
    """Return what :func:`save_world` wrote; None if it is not there, or of another world.

    Raises:
        BadFileError: If the file is damaged.
    """
    if not path.is_file():
        return None
    way_out = "remove the file, and the world is explored again"
    return read_json_file(path, lambda d: _world_of(d, about), expected="an explored world", way_out=way_out)


def _world_of(data: Mapping[str, Any], about: Mapping[str, Any]) -> PlantedWorld | None:
    if data["about"] != dict(about):
        return None
    rows = [[math.nan if score is None else score for score in row] for row in data["scores"]]
    topologies = tuple(Topology.from_dict(topology) for topology in data["topologies"])
    return PlantedWorld(topologies, np.array(rows), tuple(data["kinds"]), tuple(data["folds"]))


def _mean_of_kinds(scores: Floats, kinds: Sequence[str]) -> float:
    names = np.array(kinds)
    return float(np.mean([np.nanmean(scores[names == kind]) for kind in sorted(set(kinds))]))
