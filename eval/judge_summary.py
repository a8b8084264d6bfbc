"""What a judgement evaluation came to: figures by mitigation, group and condition, shifts, endings, probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provgym.envs.provenance import Instance
from provgym.eval.bootstrap import DEFAULT_RESAMPLES, DEFAULT_SEED, estimates
from provgym.eval.estimate import Estimate
from provgym.eval.judge_metrics import GROUPS, JUDGE_METRICS, split_by_group
from provgym.eval.judge_probes import group_probes
from provgym.eval.judge_shifts import Shift, shifts_of
from provgym.eval.metrics import count_endings
from provgym.eval.probes import Probe
from provgym.eval.walk_summary import Coverage, coverage_of
from provgym.generators.episode import Episode

Figures = Mapping[str, Estimate]


@dataclass(frozen=True)
class MitigationSummary:
    """Figures under one mitigation.

    Attributes:
        metrics: Name with its group's prefix (:data:`~provgym.eval.judge_metrics.GROUPS`) to estimate.
        by_condition: Condition label to metrics without prefix.
        shifts: Name to shift, of those whose two conditions were judged.
        endings: Ending to number of judgements.
    """

    metrics: Figures
    by_condition: Mapping[str, Figures]
    shifts: Mapping[str, Shift]
    endings: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data; what is not available is null with n = 0."""
        return {
            "metrics": {name: found.to_json() for name, found in self.metrics.items()},
            "by_condition": {
                condition: {name: found.to_json() for name, found in figures.items()}
                for condition, figures in self.by_condition.items()
            },
            "shifts": {name: shift.to_json() for name, shift in self.shifts.items()},
            "endings": dict(self.endings),
        }


@dataclass(frozen=True)
class JudgeSummary:
    """Figures of one policy.

    Attributes:
        by_mitigation: M0 to M3 to its figures.
        coverage: How much could be scored, of all judgements.
        probes: Group to what its instances yield without reading evidence.
        nodes: Condition label to the mean number of nodes of its graphs, a diagnostic.
    """

    by_mitigation: Mapping[str, MitigationSummary]
    coverage: Coverage
    probes: Mapping[str, Sequence[Probe]] = field(default_factory=dict)
    nodes: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "by_mitigation": {name: found.to_json() for name, found in self.by_mitigation.items()},
            "coverage": self.coverage.to_json(),
            "probes": {group: [probe.to_json() for probe in probes] for group, probes in self.probes.items()},
            "nodes": dict(self.nodes),
        }


def summarise_judgements(
    episodes: Sequence[Episode],
    instances: Sequence[Instance] = (),
    *,
    seed: int = DEFAULT_SEED,
    resamples: int = DEFAULT_RESAMPLES,
) -> JudgeSummary:
    """Compute every figure of a set of judgements; nothing is played.

    Args:
        episodes: In any order.
        instances: What was judged, for probes and node counts; without them there are none.
        seed: Run seed of the resampling.
        resamples: Bootstrap resamples.

    Example:
        >>> summarise_judgements([]).by_mitigation
        {}
    """
    by_mitigation: dict[str, list[Episode]] = {}
    for episode in episodes:
        by_mitigation.setdefault(episode.mitigation, []).append(episode)
    nodes: dict[str, list[int]] = {}
    for instance in instances:
        nodes.setdefault(instance.condition, []).append(instance.graph.num_nodes)
    return JudgeSummary(
        by_mitigation={name: _summarise(chosen, seed, resamples) for name, chosen in sorted(by_mitigation.items())},
        coverage=coverage_of(episodes),
        probes=group_probes(instances),
        nodes={condition: sum(found) / len(found) for condition, found in nodes.items()},
    )


def _summarise(episodes: Sequence[Episode], seed: int, resamples: int) -> MitigationSummary:
    metrics = tuple(JUDGE_METRICS.values())
    by_condition: dict[str, list[Episode]] = {}
    for episode in episodes:
        by_condition.setdefault(episode.condition, []).append(episode)
    return MitigationSummary(
        metrics={
            GROUPS[group] + name: found
            for group, chosen in split_by_group(episodes).items()
            for name, found in estimates(chosen, metrics, seed=seed, resamples=resamples).items()
        },
        by_condition={
            condition: estimates(chosen, metrics, seed=seed, resamples=resamples)
            for condition, chosen in by_condition.items()
        },
        shifts=shifts_of(episodes, seed=seed, resamples=resamples),
        endings=count_endings(episodes),
    )
