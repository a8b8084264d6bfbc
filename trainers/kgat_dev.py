"""What a generator is worth on held-out tasks: its greedy topologies, executed and scored."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provgym.envs.topology import Topology
from provgym.envs.workflow import RunRequest
from provgym.eval.metrics import mean_of_finite
from provgym.eval.processes import Processes
from provgym.eval.run_files import read_json_file, write_json_atomic
from provgym.eval.topology_methods import Executor, Question, record_of
from provgym.eval.topology_metrics import HEADLINE, values_of
from provgym.eval.topology_names import KGAT
from provgym.eval.topology_runs import MethodRun
from provgym.eval.walk_play import together
from provgym.generators.kgat_context import ContextBatch
from provgym.generators.kgat_model import KgatModel
from provgym.generators.topology_targets import ScoreRule
from provgym.trainers.kgat_rounds import TaskSet

SELECTION = "score"
"""The figure that checkpoints are chosen by: mean raw success less structural cost."""

_SHOWN_TEAMS = 5


@dataclass(frozen=True, slots=True)
class DevFigures:
    """What a generator came to on a split.

    Attributes:
        figures: Metric to its mean over scored runs; NaN if none was scored.
        by_kind: Kind of evidence to the same.
        teams: Kind of evidence to the commonest teams, each with its number of tasks.
        errors: Runs that ended in ``error``; they are in no figure.
        runs: All runs.
    """

    figures: Mapping[str, float]
    by_kind: Mapping[str, Mapping[str, float]]
    teams: Mapping[str, Sequence[tuple[Topology, int]]]
    errors: int
    runs: int

    def to_log(self) -> dict[str, float | int | None]:
        """Return the figures by the names that they are logged under."""
        found: dict[str, float | int | None] = {f"dev/{name}": value for name, value in self.figures.items()}
        for kind, figures in self.by_kind.items():
            found |= {f"dev/{kind}/{name}": figures[name] for name in ("score", "accuracy", "nodes")}
        return found | {"dev/errors": self.errors, "dev/runs": self.runs}

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data; NaN becomes null."""
        return {
            "figures": _nullable(self.figures),
            "by_kind": {kind: _nullable(figures) for kind, figures in self.by_kind.items()},
            "teams": {
                kind: [[topology.as_dict(), count] for topology, count in found] for kind, found in self.teams.items()
            },
            "errors": self.errors,
            "runs": self.runs,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DevFigures:
        """Rebuild what :meth:`to_json` wrote."""
        return cls(
            _numbers(data["figures"]),
            {kind: _numbers(figures) for kind, figures in data["by_kind"].items()},
            {kind: [(Topology.from_dict(t), n) for t, n in found] for kind, found in data["teams"].items()},
            data["errors"],
            data["runs"],
        )


def dev_figures(
    path: Path,
    model: KgatModel,
    contexts: ContextBatch,
    tasks: TaskSet,
    executor: Executor,
    rule: ScoreRule,
    replicates: int,
    processes: Processes,
) -> DevFigures:
    """Return a generator's figures, from file if they stand there.

    Every process of the launch must call this; each executes its share, all get the same.

    Args:
        path: JSON file of the figures.
        model: The generator.
        contexts: (B, ...) what it sees of the tasks.
        tasks: B tasks.
        executor: Runs topologies.
        rule: How outcomes are scored.
        replicates: Executions of each task's topology.
        processes: Who executes together.

    Raises:
        RuntimeError: If another process failed.
    """
    is_first = processes.rank == 0
    stored = processes.gather(together(processes, lambda: [_read(path)] if is_first else []))[0]
    if stored is not None:
        return stored
    teams = [topology.canonical() for topology in model.decode(contexts)]
    share = list(range(len(tasks)))[processes.rank :: processes.world_size]
    own = together(processes, lambda: _execute(teams, tasks, share, executor, replicates))
    runs = [run for _, run in sorted(processes.gather(own), key=lambda pair: (pair[0], pair[1].replicate))]
    found = figures_of(runs, teams, tasks, rule)
    together(processes, lambda: write_json_atomic(path, found.to_json()) if is_first else None)
    return found


def figures_of(runs: Sequence[MethodRun], teams: Sequence[Topology], tasks: TaskSet, rule: ScoreRule) -> DevFigures:
    """Average runs; a run that ended in ``error`` counts nowhere but among the errors.

    Args:
        runs: Of all tasks.
        teams: (B,) topology of each task.
        tasks: B tasks.
        rule: How outcomes are scored.
    """
    kinds = sorted({task.evidence_kind or "all" for task in tasks.tasks})
    by_kind = {kind: [run for run in runs if (run.evidence_kind or "all") == kind] for kind in kinds}
    shown = {kind: Counter[str]() for kind in kinds}
    topologies = {team.key: team for team in teams}
    for task, team in zip(tasks.tasks, teams, strict=True):
        shown[task.evidence_kind or "all"][team.key] += 1
    return DevFigures(
        _means(runs, rule),
        {kind: _means(found, rule) for kind, found in by_kind.items()},
        {
            kind: [(topologies[key], n) for key, n in sorted(c.items(), key=lambda i: (-i[1], i[0]))[:_SHOWN_TEAMS]]
            for kind, c in shown.items()
        },
        sum(not run.is_scored for run in runs),
        len(runs),
    )


def read_dev_figures(path: Path) -> DevFigures:
    """Return stored figures.

    Raises:
        BadFileError: If the file is damaged.
        OSError: If it can't be read.
    """
    way_out = "remove the file, and the generator is executed again (from the message cache)"
    return read_json_file(path, DevFigures.from_json, expected="a generator's dev figures", way_out=way_out)


def _read(path: Path) -> DevFigures | None:
    if not path.is_file():
        return None
    return read_dev_figures(path)


def _execute(
    teams: Sequence[Topology], tasks: TaskSet, share: Sequence[int], executor: Executor, replicates: int
) -> list[tuple[int, MethodRun]]:
    numbers = [(number, replicate) for number in share for replicate in range(replicates)]
    requests = [
        RunRequest(teams[number], tasks.tasks[number], tasks.evidence[number], replicate, "eval")
        for number, replicate in numbers
    ]
    return [
        (number, record_of(KGAT, Question(request.task, request.evidence, replicate), [run]))
        for (number, replicate), request, run in zip(numbers, requests, executor.run_many_sync(requests), strict=True)
    ]


def _means(runs: Sequence[MethodRun], rule: ScoreRule) -> dict[str, float]:
    return {name: mean_of_finite(values_of(runs, name, rule))[0] for name in HEADLINE}


def _nullable(figures: Mapping[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in figures.items()}


def _numbers(figures: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in figures.items()}
