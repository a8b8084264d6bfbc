"""Active acquisition by kind of evidence: balanced, redundant support, distinct support, general, each apart.

What a condition asks of a walker differs: under *balanced* (C1) there is nothing but one source on each side, under
*redundant support* (C2, and C2R, its mirror) many routes lead to one of them and repetition looks like agreement,
under *distinct support* (C3, and C4 for the other side) agreement is real. *General* conditions are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from provgym.eval.bootstrap import DEFAULT_RESAMPLES, DEFAULT_SEED, estimates
from provgym.eval.estimate import Estimate
from provgym.eval.metrics import HEADLINE, metrics_named
from provgym.generators.conditions import GENERAL
from provgym.generators.episode import Episode

CONDITION_GROUPS: Mapping[str, tuple[str, ...]] = {
    "balanced": ("C1",),
    "redundant_support": ("C2", "C2R"),
    "distinct_support": ("C3", "C4"),
    "general": (GENERAL,),
}
"""Name of a group to its conditions; other conditions (1S5P, SciFact's) belong to none."""

GROUP_METRICS = (*HEADLINE, "source_recall_budget", "echo_share", "connector_moves")

Settings = Mapping[str, Mapping[str, Mapping[str, Estimate]]]
"""Setting (``M1/B6``) to group to metrics."""


def setting_of(episode: Episode) -> str:
    """Return an episode's mitigation and budget, such as ``M1/B6``."""
    return f"{episode.mitigation}/B{episode.outcome.budget}"


def parse_setting(setting: str) -> tuple[str, int]:
    """Return mitigation and budget of a setting's name.

    Example:
        >>> parse_setting("M1/B6")
        ('M1', 6)
    """
    mitigation, _, budget = setting.partition("/B")
    return mitigation, int(budget)


def estimate_groups(
    episodes: Sequence[Episode], *, seed: int = DEFAULT_SEED, resamples: int = DEFAULT_RESAMPLES
) -> dict[str, dict[str, dict[str, Estimate]]]:
    """Return :data:`GROUP_METRICS` of every setting and group of conditions that was played.

    Args:
        episodes: In any order.
        seed: Run seed of the resampling.
        resamples: Bootstrap resamples.

    Returns:
        Setting to group to metric to estimate; a setting without any of these groups is left out.

    Example:
        >>> estimate_groups([])
        {}
    """
    by_cell: dict[str, dict[str, list[Episode]]] = {}
    group_of = {condition: group for group, conditions in CONDITION_GROUPS.items() for condition in conditions}
    for episode in episodes:
        group = group_of.get(episode.condition)
        if group is not None:
            by_cell.setdefault(setting_of(episode), {}).setdefault(group, []).append(episode)
    metrics = metrics_named(GROUP_METRICS)
    return {
        setting: {
            group: estimates(groups[group], metrics, seed=seed, resamples=resamples)
            for group in CONDITION_GROUPS
            if group in groups
        }
        for setting, groups in by_cell.items()
    }


def lines_of(settings: Settings, group: str, metric: str) -> dict[str, list[tuple[int, Estimate]]]:
    """Return mitigation to (budget, figure), by ascending budget; what was not played or measured is left out."""
    lines: dict[str, list[tuple[int, Estimate]]] = {}
    for setting, cells in settings.items():
        mitigation, budget = parse_setting(setting)
        found = cells.get(group, {}).get(metric)
        if found is not None and found.is_available:
            lines.setdefault(mitigation, []).append((budget, found))
    return {name: sorted(points, key=lambda point: point[0]) for name, points in lines.items()}
