"""The walks of a page as data: each task once with its graph, and beside it what every policy did there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from provgym.eval.report_credit import Objective, earned_by_step
from provgym.eval.report_layout import Layout, lay_out
from provgym.eval.report_provenance import provenance_json, trace_answer
from provgym.eval.report_replay import Replayed, replay
from provgym.eval.report_sample import MAX_WALKS, Pick, pick_walks
from provgym.eval.report_source import ReportSource
from provgym.eval.walk_config import TaskKey, build_tasks, episode_key, instances_hash, load_instances, task_key
from provgym.generators.episode import Episode, EpisodeTask

MAX_TEXT = 4_000
"""Longer texts are cut, with a visible mark (ours): a page shows walks, it does not store them."""
MAX_BYTES = 2_400_000
"""Of all walks as JSON; what would exceed it is left out and counted."""
_DIGITS = 6
_NAMED = 3


class WalkData(NamedTuple):
    """What the viewer shows.

    Attributes:
        walks: JSON-ready, in the order of the tasks.
        picked: Walks that the sampling rule chose; more than ``walks`` if some did not fit.
        played: Tasks that each policy played.
        notes: What a reader has to know, such as walks that could not be shown and why.
    """

    walks: list[dict[str, Any]]
    picked: int
    played: int
    notes: tuple[str, ...]


def collect_walks(source: ReportSource, objectives: Sequence[Objective], max_walks: int = MAX_WALKS) -> WalkData:
    """Choose walks and describe them.

    Where the instances cannot be had again, or are not those that were played, no walk is shown and a note says why:
    the figures of the page do not depend on them.

    Args:
        source: A run.
        objectives: What rewards are split under.
        max_walks: The most to show.

    Raises:
        ValueError: If episodes cannot be read, or the policies played different tasks.
        FileNotFoundError: If there are no episodes.
    """
    episodes = {policy.name: policy.episodes() for policy in source.policies}
    picks = pick_walks(episodes, max_walks)
    played = len(next(iter(episodes.values())))
    try:
        tasks = _tasks(source)
    except (ValueError, OSError) as error:
        return WalkData([], len(picks), played, (f"Walks are not shown: {error}",))
    by_policy = {name: {episode_key(e): e for e in found} for name, found in episodes.items()}
    walks, notes = _describe(picks, tasks, by_policy, objectives)
    return WalkData(walks, len(picks), played, tuple(notes))


def _describe(
    picks: Sequence[Pick],
    tasks: Mapping[TaskKey, EpisodeTask],
    by_policy: Mapping[str, Mapping[TaskKey, Episode]],
    objectives: Sequence[Objective],
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the chosen walks as far as they fit, and notes on those that are not shown."""
    walks: list[dict[str, Any]] = []
    notes: list[str] = []
    size = 0
    for place, pick in enumerate(picks):
        played = {name: found[pick.key] for name, found in by_policy.items()}
        try:
            walk = _walk(_task_of(pick, tasks), pick, played, objectives)
        except ValueError as error:
            notes.append(f"A walk is not shown: {error}")
            continue
        size += len(json.dumps(walk, separators=(",", ":")))
        if size > MAX_BYTES:
            notes.append(f"{len(picks) - place} of {len(picks)} chosen walks are left out to keep the page small")
            break
        walks.append(walk)
    if len(notes) > _NAMED:
        notes[_NAMED:] = [f"{len(notes) - _NAMED} more notes of this kind are left out"]
    return walks, notes


def _task_of(pick: Pick, tasks: Mapping[TaskKey, EpisodeTask]) -> EpisodeTask:
    if pick.key not in tasks:
        raise ValueError(f"(instance, mitigation, budget, member) = {pick.key} is not asked for by the configuration")
    return tasks[pick.key]


def clip(text: str, limit: int = MAX_TEXT) -> str:
    """Cut a long text, with a visible mark.

    Example:
        >>> clip("abcdef", 4)
        'abcd … [2 more characters]'
    """
    return text if len(text) <= limit else f"{text[:limit]} … [{len(text) - limit:,} more characters]"


def _tasks(source: ReportSource) -> dict[TaskKey, EpisodeTask]:
    """Build the tasks again from the stored configuration.

    Raises:
        ValueError: If the instances differ from those that were played.
    """
    policy = source.policies[0]
    instances = load_instances(policy.config).instances
    found = instances_hash(instances)
    if found != policy.data_hash:
        raise ValueError(
            f"the claims that {policy.folder / 'config.yaml'} names have the hash {found}, those that were played "
            f"had {policy.data_hash}: the claims, or how they are made, have changed since; evaluate again"
        )
    return {task_key(task): task for task in build_tasks(policy.config, instances)}


def _walk(
    task: EpisodeTask, pick: Pick, by_policy: Mapping[str, Episode], objectives: Sequence[Objective]
) -> dict[str, Any]:
    instance = task.instance
    replays = {name: replay(task, episode) for name, episode in by_policy.items()}
    layout = lay_out(instance, [node for found in replays.values() for node in found.nodes])
    support, refute = instance.source_counts
    return {
        "id": clip(instance.instance_id),
        "condition": clip(instance.condition, 40),
        "mitigation": task.presentation.mitigation,
        "budget": task.budget,
        "member": task.member,
        "gold": instance.gold.value,
        "claim": clip(instance.base_claim.text),
        "available": [support, refute],
        "routes": instance.graph.n_path(instance.claim),
        "reasons": list(pick.reasons),
        "graph": _graph(task, layout),
        "episodes": [_episode(task, by_policy[name], replays[name], layout, objectives) for name in by_policy],
    }


def _graph(task: EpisodeTask, layout: Layout) -> dict[str, Any]:
    graph = task.instance.graph
    return {
        "nodes": [[int(n.kind), n.x, n.y, n.source, n.word, clip(graph.node_id(n.node), 120)] for n in layout.nodes],
        "edges": [list(edge) for edge in layout.edges],
        "sources": [[clip(s.source_id, 120), s.stance.value, s.routes] for s in layout.sources],
        "hiddenRoutes": layout.hidden_routes,
        "joinsAll": layout.joins_all,
        "radius": layout.radius,
    }


def _episode(
    task: EpisodeTask, episode: Episode, replayed: Replayed, layout: Layout, objectives: Sequence[Objective]
) -> dict[str, Any]:
    place = {drawn.node: number for number, drawn in enumerate(layout.nodes)}
    outcome, judgement = episode.outcome, episode.outcome.judgement
    provenance = provenance_json(trace_answer(task.instance, episode, replayed))
    for reading in provenance["sources"]:
        node = reading.pop("read_node")
        reading["alias"] = None if node is None else replayed.aliases[node][0]
        reading["source_id"] = clip(reading["source_id"], 120)
    for citation in provenance["citations"]:
        citation["label"] = clip(citation["label"], 120)
    return {
        "ending": outcome.ending.value,
        "right": outcome.is_correct if judgement is not None else None,
        "verdict": None if judgement is None else judgement.verdict.value,
        "confidence": None if judgement is None else judgement.confidence,
        "rationale": "" if judgement is None else clip(judgement.rationale),
        "error": None if episode.error is None else clip(episode.error),
        "cut": episode.cut_characters,
        "unknown": episode.unknown_tokens,
        "counts": [outcome.walks, outcome.echoes, outcome.connector_moves, outcome.invalid_actions],
        "opening": clip(episode.turns[0].observation) if episode.turns else "",
        "names": [[place[n], alias, step] for n, (alias, step) in replayed.aliases.items() if n in place],
        "labels": [[clip(label, 120), clip(source, 120)] for label, source in replayed.labels.items()],
        "steps": _steps(episode, replayed, place),
        "rewards": [_reward(episode, objective) for objective in objectives],
        "provenance": provenance,
    }


def _steps(episode: Episode, replayed: Replayed, place: Mapping[int, int]) -> list[dict[str, Any]]:
    turns = episode.turns
    return [
        {
            "kind": entry["kind"],
            "node": place[node],
            "left": entry["budget_left"],
            "source": None if entry["source"] is None else clip(entry["source"], 120),
            "action": clip(turns[number].action) if number < len(turns) else None,
            "seen": clip(turns[number + 1].observation) if number + 1 < len(turns) else None,
        }
        for number, (entry, node) in enumerate(zip(episode.trace, replayed.nodes, strict=True))
    ]


def _reward(episode: Episode, objective: Objective) -> dict[str, Any] | None:
    earned = earned_by_step(episode, objective.rubric)
    if earned is None:
        return None
    return {
        "total": round(earned.total, _DIGITS),
        "terms": [round(earned.terms[name], _DIGITS) for name in objective.rubric.terms],
        "credit": earned.credit.round(_DIGITS).tolist(),
    }
