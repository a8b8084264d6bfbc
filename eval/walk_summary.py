"""What a walk evaluation came to: metrics by group, condition and setting, endings, coverage and probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provgym.eval.bootstrap import DEFAULT_RESAMPLES, DEFAULT_SEED, estimates
from provgym.eval.condition_groups import Settings, estimate_groups, setting_of
from provgym.eval.estimate import Estimate
from provgym.eval.metric_kinds import Metric, is_scored
from provgym.eval.metrics import METRICS, count_endings, reward_metrics, split_by_prefix
from provgym.eval.probes import Probe
from provgym.eval.reliability import Reliability, reliability_of
from provgym.generators.episode import Episode
from provgym.rewards.outcome import Ending
from provgym.rewards.rubric import Rubric, papt_rubric


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of what was played could be scored.

    Attributes:
        episodes: Episodes played.
        scored: Those that did not end in ``error``.
        errors: Those that did: counted, never scored as wrong.
    """

    episodes: int
    scored: int
    errors: int

    @property
    def share(self) -> float | None:
        """Scored over played; None when nothing was played."""
        return self.scored / self.episodes if self.episodes else None

    def to_json(self) -> dict[str, float | int | None]:
        """Return JSON-ready data."""
        return {"episodes": self.episodes, "scored": self.scored, "errors": self.errors, "share": self.share}


@dataclass(frozen=True)
class WalkSummary:
    """Figures of one set of episodes.

    Attributes:
        metrics: Name to estimate: without prefix over the named conditions together, with ``general_`` over
            the general ones; names of a group that was not played are left out.
        by_condition: Condition label to its metrics.
        by_setting: ``M1/B6`` (mitigation and budget) to metrics, named as in ``metrics``.
        endings: Condition label to ending to number of episodes.
        coverage: Of all episodes.
        probes: Metric prefix to the probes of its instances; see :mod:`provgym.eval.probes`.
        by_group: Setting to group of conditions to metrics; see :mod:`provgym.eval.condition_groups`.
        reliability: Metric prefix to accuracy by stated confidence; see :mod:`provgym.eval.reliability`.
    """

    metrics: Mapping[str, Estimate]
    by_condition: Mapping[str, Mapping[str, Estimate]]
    by_setting: Mapping[str, Mapping[str, Estimate]]
    endings: Mapping[str, Mapping[str, int]]
    coverage: Coverage
    probes: Mapping[str, Sequence[Probe]] = field(default_factory=dict)
    by_group: Settings = field(default_factory=dict)
    reliability: Mapping[str, Reliability] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data; what is not available is null with n = 0."""
        return {
            "metrics": _as_json(self.metrics),
            "by_condition": {name: _as_json(found) for name, found in self.by_condition.items()},
            "by_setting": {name: _as_json(found) for name, found in self.by_setting.items()},
            "by_group": {
                setting: {group: _as_json(found) for group, found in groups.items()}
                for setting, groups in self.by_group.items()
            },
            "reliability": {prefix or "conditions": found.to_json() for prefix, found in self.reliability.items()},
            "endings": {name: dict(counts) for name, counts in self.endings.items()},
            "coverage": self.coverage.to_json(),
            "probes": {
                prefix or "conditions": [probe.to_json() for probe in probes] for prefix, probes in self.probes.items()
            },
        }


def summarise(
    episodes: Sequence[Episode],
    *,
    rubric: Rubric | None = None,
    seed: int = DEFAULT_SEED,
    resamples: int = DEFAULT_RESAMPLES,
    probes: Mapping[str, Sequence[Probe]] | None = None,
) -> WalkSummary:
    """Compute every metric of a set of episodes; nothing is played.

    Args:
        episodes: In any order.
        rubric: Reported as ``reward`` (total) and ``reward_TERM``; the full PAPT rubric if None.
        seed: Run seed of the resampling.
        resamples: Bootstrap resamples.
        probes: Shown beside the figures.
    """
    metrics = (*METRICS.values(), *reward_metrics(rubric or papt_rubric()))
    by_label = _group(episodes, [episode.condition for episode in episodes])
    by_setting = _group(episodes, [setting_of(episode) for episode in episodes])
    overall = _prefixed(episodes, metrics, seed, resamples)
    return WalkSummary(
        metrics=overall,
        by_condition={
            name: estimates(chosen, metrics, seed=seed, resamples=resamples) for name, chosen in by_label.items()
        },
        by_setting={
            name: overall if len(by_setting) == 1 else _prefixed(chosen, metrics, seed, resamples)
            for name, chosen in by_setting.items()
        },
        endings={name: count_endings(chosen) for name, chosen in by_label.items()},
        coverage=coverage_of(episodes),
        probes=dict(probes or {}),
        by_group=estimate_groups(episodes, seed=seed, resamples=resamples),
        reliability=reliability_of(episodes, seed=seed, resamples=resamples),
    )


def coverage_of(episodes: Sequence[Episode]) -> Coverage:
    """Count what was scored."""
    scored = sum(is_scored(episode) for episode in episodes)
    return Coverage(len(episodes), scored, len(episodes) - scored)


def total_endings(summary: WalkSummary) -> dict[str, int]:
    """Return the number of episodes of each ending, over all conditions."""
    names = [ending.value for ending in Ending]
    return {name: sum(counts[name] for counts in summary.endings.values()) for name in names}


def _prefixed(episodes: Sequence[Episode], metrics: Sequence[Metric], seed: int, resamples: int) -> dict[str, Estimate]:
    # Without any episode the plain names still stand there, as "not available".
    groups = split_by_prefix(episodes) or {"": []}
    return {
        prefix + name: found
        for prefix, chosen in groups.items()
        for name, found in estimates(chosen, metrics, seed=seed, resamples=resamples).items()
    }


def _group(episodes: Sequence[Episode], labels: Sequence[str]) -> dict[str, list[Episode]]:
    groups: dict[str, list[Episode]] = {}
    for label, episode in zip(labels, episodes, strict=True):
        groups.setdefault(label, []).append(episode)
    return groups


def _as_json(found: Mapping[str, Estimate]) -> dict[str, dict[str, float | int | None]]:
    return {name: estimate.to_json() for name, estimate in found.items()}
