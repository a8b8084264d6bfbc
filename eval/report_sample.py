"""Which walks a report page shows: a bounded, deterministic sample, the same walks for every policy.

Of every condition the page shows the first three walks, in the order of the tasks, of each of these kinds: right under
one policy and wrong under the other (both ways), and for every policy wrong ones, right ones, those with most echoes,
with the largest count error, with most actions that did nothing, and of every ending but ``answered``. Where that is
more than the page can hold, conditions take turns, first walks of a kind before second ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, zip_longest
from typing import NamedTuple

from provgym.eval.metric_kinds import is_scored
from provgym.eval.metrics import count_error
from provgym.eval.walk_config import TaskKey, episode_key
from provgym.generators.episode import Episode
from provgym.rewards.outcome import Ending

MAX_WALKS = 72
"""Walks on a page unless told otherwise (ours); each is shown for every policy."""
PER_KIND = 3
"""Walks of each kind in each condition (ours)."""

ByTask = Mapping[TaskKey, Episode]


class Pick(NamedTuple):
    """A walk to show.

    Attributes:
        key: Of its task.
        reasons: Why it was picked, such as ``trained: most echoes (4)``.
    """

    key: TaskKey
    reasons: tuple[str, ...]


def pick_walks(episodes: Mapping[str, Sequence[Episode]], max_walks: int = MAX_WALKS) -> list[Pick]:
    """Choose walks.

    Args:
        episodes: Policy name to its episodes; all of the same tasks, in the same order.
        max_walks: The most to choose.

    Returns:
        In the order of the tasks.

    Raises:
        ValueError: If ``max_walks`` < 1, or the policies played different tasks.
    """
    if max_walks < 1:
        raise ValueError(f"max_walks={max_walks} must be >= 1")
    by_policy = {name: {episode_key(e): e for e in found} for name, found in episodes.items()}
    order = _common_order(by_policy)
    conditions: dict[str, list[TaskKey]] = {}
    first = next(iter(by_policy.values()), {})
    for key in order:
        conditions.setdefault(first[key].condition, []).append(key)
    queues = [_queue(by_policy, keys) for keys in conditions.values()]
    reasons: dict[TaskKey, list[str]] = {}
    for turn in zip_longest(*queues):
        for key, reason in filter(None, turn):
            if key in reasons:
                reasons[key].append(reason)
            elif len(reasons) < max_walks:
                reasons[key] = [reason]
    number = {key: place for place, key in enumerate(order)}
    return [Pick(key, tuple(reasons[key])) for key in sorted(reasons, key=number.__getitem__)]


def _common_order(by_policy: Mapping[str, ByTask]) -> list[TaskKey]:
    names = list(by_policy)
    for name in names[1:]:
        if by_policy[name].keys() != by_policy[names[0]].keys():
            only = next(iter(by_policy[name].keys() ^ by_policy[names[0]].keys()))
            raise ValueError(
                f"policies {names[0]!r} and {name!r} played different tasks: {only} stands in one only; evaluate them "
                "together"
            )
    return list(by_policy[names[0]]) if names else []


def _queue(by_policy: Mapping[str, ByTask], keys: Sequence[TaskKey]) -> list[tuple[TaskKey, str]]:
    """Return (task, reason) within one condition, what tells most first."""
    kinds = list(_kinds(by_policy, keys))
    return [wish for turn in zip_longest(*kinds) for wish in filter(None, turn)]


def _kinds(by_policy: Mapping[str, ByTask], keys: Sequence[TaskKey]) -> Iterable[list[tuple[TaskKey, str]]]:
    """Yield each kind's walks, at most ``PER_KIND``."""
    for before, after in combinations(by_policy, 2):
        for loser, winner in ((before, after), (after, before)):
            found = [k for k in keys if _differs(by_policy[winner][k], by_policy[loser][k])]
            yield [(key, f"{winner} right, {loser} wrong") for key in found[:PER_KIND]]
    for name, episodes in by_policy.items():
        scored = [k for k in keys if is_scored(episodes[k])]
        for label, right in (("wrong", False), ("right", True)):
            found = [k for k in scored if episodes[k].outcome.is_correct is right]
            yield [(key, f"{name}: {label}") for key in found[:PER_KIND]]
        for label, measure in _MEASURES:
            yield _most(name, label, measure, {k: episodes[k] for k in scored})
        for ending in (Ending.INVALID, Ending.TRUNCATED, Ending.ERROR):
            found = [k for k in keys if episodes[k].outcome.ending is ending]
            yield [(key, f"{name}: {ending.value}") for key in found[:PER_KIND]]


_MEASURES: tuple[tuple[str, Callable[[Episode], float]], ...] = (
    ("most echoes", lambda e: float(e.outcome.echoes)),
    ("largest count error", lambda e: count_error(e.outcome, "acquired")),
    ("most actions that did nothing", lambda e: float(e.outcome.invalid_actions)),
)


def _most(name: str, label: str, measure: Callable[[Episode], float], found: ByTask) -> list[tuple[TaskKey, str]]:
    values = {key: measure(episode) for key, episode in found.items()}
    positive = [key for key, value in values.items() if value > 0]  # NaN, without a judgement, is not
    ranked = sorted(positive, key=lambda key: -values[key])  # stable: the first of equals
    return [(key, f"{name}: {label} ({values[key]:g})") for key in ranked[:PER_KIND]]


def _differs(winner: Episode, loser: Episode) -> bool:
    both = is_scored(winner) and is_scored(loser)
    return both and winner.outcome.is_correct and not loser.outcome.is_correct
