"""A stored walk, walked again along its own trace: where it stood, and what the agent called each node and source.

Nothing is decided anew. Each stored step is checked against the walk dynamics and each stored observation against
the text that the stored configuration gives, so that a page never shows names that the agent did not see.
"""

from __future__ import annotations

from dataclasses import dataclass

from provgym.envs.presentation import Presentation
from provgym.envs.provenance import EvidenceGraph
from provgym.envs.walk import Step, StepKind, Walk
from provgym.envs.walk_text import TraceEntry, trace_entry
from provgym.generators.episode import Episode, EpisodeTask
from provgym.generators.scripted import start_episode

_WALKS = (StepKind.NEW, StepKind.ECHO, StepKind.CONNECTOR)


class ReplayError(ValueError):
    """A stored walk that cannot be walked again; the message names it and the step."""


@dataclass(frozen=True)
class Replayed:
    """A stored walk in terms of its graph.

    Attributes:
        nodes: (A,) node after each action.
        aliases: Node to (alias, step at which it was first listed), the claim at step 0.
        labels: Label shown to the agent to source id, for sources that have one.
    """

    nodes: tuple[int, ...]
    aliases: dict[int, tuple[str, int]]
    labels: dict[str, str]


def replay(task: EpisodeTask, episode: Episode) -> Replayed:
    """Walk a stored episode again.

    Args:
        task: The task that it played, rebuilt from the stored configuration.
        episode: As stored.

    Raises:
        ReplayError: If a step or an observation differs from what is stored.
    """
    env = start_episode(task)
    if env.walk is None or env.presentation is None:
        raise RuntimeError("no episode was started")
    walk, presentation = env.walk, env.presentation
    graph = task.instance.graph
    numbers = {graph.node_id(node): node for node in _nodes_around(walk)}
    aliases: dict[int, tuple[str, int]] = {}
    lines = env.observation_lines
    nodes: list[int] = []
    for number, entry in enumerate(episode.trace):
        _note_aliases(presentation, walk, number, aliases)
        if number < len(episode.turns) and "\n".join(lines) != episode.turns[number].observation:
            raise ReplayError(
                f"{_name(episode)}, step {number + 1}: the stored observation differs from the one that the stored "
                "configuration gives; another version of the presentation wrote it: evaluate again"
            )
        numbers |= {graph.node_id(int(node)): int(node) for node in walk.neighbours()}
        step = _take(walk, entry, numbers, episode)
        if trace_entry(task.instance, step) != entry:
            raise ReplayError(f"{_name(episode)}, step {number + 1}: stored {entry}, walked again {step}")
        nodes.append(step.node)
        if not walk.is_over:
            lines = tuple(presentation.reply(step))
    _note_aliases(presentation, walk, len(episode.trace), aliases)
    return Replayed(tuple(nodes), aliases, _labels(presentation, task, graph))


def _take(walk: Walk, entry: TraceEntry, numbers: dict[str, int], episode: Episode) -> Step:
    kind = StepKind(entry["kind"])
    if walk.is_over:
        raise ReplayError(f"{_name(episode)}: stored a step {entry} after the walk had ended")
    if kind is StepKind.STOP:
        return walk.stop(episode.outcome.judgement)
    if kind in _WALKS:
        if entry["node"] not in numbers:
            raise ReplayError(f"{_name(episode)}: stored a walk to {entry['node']!r}, which is no neighbour")
        return walk.walk(numbers[entry["node"]])
    return walk.reject(StepKind.UNPARSED if kind is StepKind.LATE else kind)


def _nodes_around(walk: Walk) -> list[int]:
    return [walk.position, *(int(node) for node in walk.neighbours())]


def _note_aliases(presentation: Presentation, walk: Walk, step: int, aliases: dict[int, tuple[str, int]]) -> None:
    """Remember what has been named by now: the position and its neighbours are all that a step can name."""
    for node in _nodes_around(walk):
        alias = presentation.alias_of(node)
        if alias is not None:
            aliases.setdefault(node, (alias, step))


def _labels(presentation: Presentation, task: EpisodeTask, graph: EvidenceGraph) -> dict[str, str]:
    """Return the labels that were given; asking for one gives none."""
    if task.presentation.source_labels == "real":
        routes = graph.claim_routes(task.instance.claim)
        ids = [graph.sources[source] for source in graph.node_source[len(graph.claims) + routes].tolist()]
        return {source: source for source in dict.fromkeys(ids)}
    found: dict[str, str] = {}
    while source := presentation.source_ids((f"S{len(found) + 1}",)):  # numbers are given without a gap
        found[f"S{len(found) + 1}"] = source[0]
    return found


def _name(episode: Episode) -> str:
    return f"{episode.instance_id} ({episode.mitigation}, budget {episode.outcome.budget}, member {episode.member})"
