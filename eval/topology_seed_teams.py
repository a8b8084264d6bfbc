"""Teams by kind of evidence over several training seeds: sizes with crossed intervals, every seed shown.

A team counts whatever became of its run, as in :mod:`provgym.eval.topology_adaptation`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provgym.envs.topology_tasks import EvidenceKind
from provgym.eval.crossed import CrossedEstimate
from provgym.eval.table import ResultTable
from provgym.eval.topology_adaptation import CONSISTENT, EVIDENCE_KINDS, SIZES, Adaptation, TeamsOfKind
from provgym.eval.topology_crossed import SeedColumn, crossed_groups, crossed_mean
from provgym.eval.topology_estimates import Resampling
from provgym.eval.topology_runs import MethodRun
from provgym.eval.topology_tables import crossed_cell


@dataclass(frozen=True, slots=True)
class SeedTeams:
    """The teams of one method over training seeds.

    Attributes:
        kinds: Kind of evidence to ``nodes`` and ``edges``; kinds that a seed has no team for are left out.
        sizes: The same kinds to number of nodes to the share of teams of that size, mean over seeds.
        difference: ``nodes`` and ``edges`` under conflicting or irrelevant evidence minus under agreeing evidence;
            empty unless both occur in every seed.
    """

    kinds: Mapping[EvidenceKind, Mapping[str, CrossedEstimate]]
    sizes: Mapping[EvidenceKind, Mapping[int, float]]
    difference: Mapping[str, CrossedEstimate]

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data: one key per kind, and ``difference``."""
        found: dict[str, Any] = {
            kind: {name: figure.to_json() for name, figure in figures.items()}
            | {"sizes": {str(size): share for size, share in self.sizes[kind].items()}}
            for kind, figures in self.kinds.items()
        }
        return found | {"difference": {name: figure.to_json() for name, figure in self.difference.items()}}

    def table(self, method: str) -> ResultTable:
        """Return a row per kind, and one for the difference."""
        rows = [
            (
                f"{method}: {kind}",
                *(crossed_cell(figures[name], is_difference=False) for name in SIZES),
                " ".join(f"{size}:{share:.0%}" for size, share in self.sizes[kind].items()),
            )
            for kind, figures in self.kinds.items()
        ]
        if self.difference:
            cells = (crossed_cell(self.difference[name], is_difference=True) for name in SIZES)
            rows.append((f"{method}: conflict and irrelevance - agreement", *cells, "-"))
        caption = (
            "Mean number of nodes and edges of a team, and the share of each size. Crossed 95 % intervals over "
            "training seeds and base claims; below: each seed's own figure."
        )
        return ResultTable(
            "Teams by kind of evidence", ("method: evidence", *SIZES, "size:share"), tuple(rows), caption
        )

    def as_adaptation(self) -> Adaptation:
        """Return the pooled figures as those of one evaluation, to be drawn; roles and teams are left out."""
        kinds = {
            kind: TeamsOfKind(figures["nodes"].overall, figures["edges"].overall, {}, self.sizes[kind])
            for kind, figures in self.kinds.items()
        }
        return Adaptation(kinds, {name: found.overall for name, found in self.difference.items()})


def seed_teams(seeds: Sequence[Sequence[MethodRun]], resampling: Resampling | None = None) -> SeedTeams:
    """Return the teams of one method by kind of evidence.

    Args:
        seeds: S >= 2 training seeds' runs, on the same questions; runs of tasks without a kind of evidence, and those
            that set nothing up, are left out.
        resampling: Seed and number of resamples.

    Raises:
        ValueError: If there are fewer than two seeds.
    """
    of_kind = [[run for run in runs if run.evidence_kind is not None and run.roles] for runs in seeds]
    kinds: dict[EvidenceKind, Mapping[str, CrossedEstimate]] = {}
    sizes: dict[EvidenceKind, Mapping[int, float]] = {}
    for kind in EVIDENCE_KINDS:
        chosen = [[run for run in runs if run.evidence_kind == kind] for runs in of_kind]
        if all(chosen):
            kinds[kind] = {name: crossed_mean([_column(runs, name) for runs in chosen], resampling) for name in SIZES}
            sizes[kind] = _shares(chosen)
    has_both = all(len({run.evidence_kind == CONSISTENT for run in runs}) == 2 for runs in of_kind)
    difference = {}
    if has_both:
        for name in SIZES:
            columns = [
                _column(runs, name)._replace(second=[float(run.evidence_kind != CONSISTENT) for run in runs])
                for runs in of_kind
            ]
            difference[name] = crossed_groups(columns, resampling)
    return SeedTeams(kinds, sizes, difference)


def _column(runs: Sequence[MethodRun], name: str) -> SeedColumn:
    values = [float(len(run.roles if name == "nodes" else run.edges)) for run in runs]
    return SeedColumn([run.base_id for run in runs], values)


def _shares(seeds: Sequence[Sequence[MethodRun]]) -> dict[int, float]:
    """Return the mean over seeds of the share of each team size, ascending."""
    counts = [Counter(len(run.roles) for run in runs) for runs in seeds]
    return {
        size: sum(count[size] / count.total() for count in counts) / len(counts)
        for size in sorted({size for count in counts for size in count})
    }
