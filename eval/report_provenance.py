"""Where every count and citation of an answer comes from: which sources were read, when, and at which node.

Everything follows from the stored trace and the instance; what the agent wrote is only ever compared with it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, NamedTuple

from provgym.envs.provenance import EvidenceGraph, Instance, Stance
from provgym.envs.walk import StepKind
from provgym.eval.report_replay import Replayed
from provgym.generators.episode import Episode

CitationStatus = Literal["read", "unread", "unknown"]


class SourceReading(NamedTuple):
    """What an agent did with one source of the claim.

    Attributes:
        source_id: As in the data.
        label: What the agent called it; None if it was never named.
        stance: What its observation says of the claim.
        routes: Routes by which it reaches the claim.
        read_step: Step (from 1) at which its evidence was first read; None if it never was.
        read_node: Node of that step, in the graph's numbers.
        echo_steps: Steps that met it again.
        cited: Times that the answer cites it.
    """

    source_id: str
    label: str | None
    stance: Stance
    routes: int
    read_step: int | None
    read_node: int | None
    echo_steps: tuple[int, ...]
    cited: int


class Citation(NamedTuple):
    """One source as the answer cites it.

    Attributes:
        label: As written.
        source_id: Whom that names; None for a name that was never shown.
        status: ``read``; ``unread`` (shown, its evidence never read); ``unknown`` (no such source was shown).
        times: How often the answer writes it.
    """

    label: str
    source_id: str | None
    status: CitationStatus
    times: int


class CountLine(NamedTuple):
    """One of the two counts.

    Attributes:
        stance: Of the sources counted.
        stated: By the answer; None without a valid one.
        acquired: Distinct sources read.
        available: Distinct sources of the instance.
        nodes_met: Evidence nodes walked to, echoes counted: what a counter of paths would state.
    """

    stance: Stance
    stated: int | None
    acquired: int
    available: int
    nodes_met: int


class AnswerProvenance(NamedTuple):
    """Everything behind an answer: counts (supporting, refuting), sources and citations."""

    counts: tuple[CountLine, CountLine]
    sources: tuple[SourceReading, ...]
    citations: tuple[Citation, ...]


def trace_answer(instance: Instance, episode: Episode, replayed: Replayed) -> AnswerProvenance:
    """Trace an answer's counts and citations back to steps and nodes.

    Args:
        instance: What was walked.
        episode: As stored.
        replayed: The same, walked again.

    Raises:
        ValueError: If the trace and the stored outcome disagree on what was acquired.
    """
    cited = _cited(episode)
    readings = _readings(instance, episode, replayed, cited)
    by_stance = {s: [r for r in readings if r.stance is s and r.read_step is not None] for s in Stance}
    outcome = episode.outcome
    found = tuple(len(by_stance[s]) for s in Stance)
    if found != (outcome.acquired_support, outcome.acquired_refute):
        raise ValueError(
            f"{episode.instance_id}: the trace acquires {found} supporting and refuting sources, the stored outcome "
            f"says {(outcome.acquired_support, outcome.acquired_refute)}; play it again"
        )
    judgement = outcome.judgement
    stated = (None, None) if judgement is None else (judgement.support_count, judgement.refute_count)
    available = (outcome.available_support, outcome.available_refute)
    met = [sum(1 + len(r.echo_steps) for r in by_stance[s]) for s in Stance]
    counts = tuple(CountLine(*line) for line in zip(Stance, stated, found, available, met, strict=True))
    return AnswerProvenance((counts[0], counts[1]), readings, _citations(cited, readings, replayed))


def _cited(episode: Episode) -> Counter[str]:
    judgement = episode.outcome.judgement
    return Counter() if judgement is None else Counter(judgement.cited_sources)  # in order of the first mention


def _readings(
    instance: Instance, episode: Episode, replayed: Replayed, cited: Counter[str]
) -> tuple[SourceReading, ...]:
    labels = {source: label for label, source in replayed.labels.items()}
    first: dict[str, int] = {}
    again: dict[str, list[int]] = {}
    for step, entry in enumerate(episode.trace, start=1):
        source = entry["source"]
        if source is None or entry["kind"] not in (StepKind.NEW, StepKind.ECHO):
            continue
        if source in first:
            again.setdefault(source, []).append(step)
        else:
            first[source] = step
    readings = []
    for (source, stance), routes in _routes_by_source(instance.graph, instance.claim).items():
        label, read_step = labels.get(source), first.get(source)
        node = None if read_step is None else replayed.nodes[read_step - 1]
        times = cited[label] if label is not None else 0
        echoes = tuple(again.get(source, ()))
        readings.append(SourceReading(source, label, stance, routes, read_step, node, echoes, times))
    return tuple(sorted(readings, key=lambda r: r.stance is Stance.REFUTE))


def _citations(cited: Counter[str], readings: tuple[SourceReading, ...], replayed: Replayed) -> tuple[Citation, ...]:
    read = {reading.source_id for reading in readings if reading.read_step is not None}
    citations = []
    for label, times in cited.items():
        source = replayed.labels.get(label)
        status: CitationStatus = "unknown" if source is None else "read" if source in read else "unread"
        citations.append(Citation(label, source, status, times))
    return tuple(citations)


def _routes_by_source(graph: EvidenceGraph, claim: int) -> Counter[tuple[str, Stance]]:
    """Count a claim's routes by source and stance, in the graph's order."""
    atoms = [graph.atoms[a] for a in graph.node_atom[len(graph.claims) + graph.claim_routes(claim)].tolist()]
    return Counter((atom.source_id, atom.stance) for atom in atoms)


def provenance_json(found: AnswerProvenance) -> dict[str, Any]:
    """Return JSON-ready data."""
    return {
        "counts": [line._asdict() for line in found.counts],
        "sources": [reading._asdict() for reading in found.sources],
        "citations": [citation._asdict() for citation in found.citations],
    }
