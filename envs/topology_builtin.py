"""Three hand-written tasks and a tiny team that works on them, so that ``gymnasium.make`` works without a generator.

The team really passes units along the edges, and what comes out depends on who stood in between. It makes no random
errors: with agreeing evidence the Answerer alone is right, echoes call for a Verifier, and units of something else for
a Reasoner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from provgym.envs.evidence_units import EvidenceUnit, KnowledgeGraph, Span
from provgym.envs.roles import ANSWERER
from provgym.envs.topology import Topology
from provgym.envs.topology_tasks import EvidenceKind, TopologyTask
from provgym.rewards.answers import is_correct
from provgym.rewards.outcome import Verdict
from provgym.rewards.topology_score import TopologyOutcome

_QUESTION = "Does orvelin raise the hardness of tamrite? Answer SUPPORT or REFUTE."
_TASKS: dict[EvidenceKind, tuple[str, str]] = {
    # One letter per unit: upper case is about tamrite and lower case about something else; then its source.
    "agreement": ("RRRRRL", "123456"),
    "conflict": ("RRRRLL", "111123"),
    "irrelevance": ("RRlllL", "123456"),
}
_GOLD: dict[EvidenceKind, Verdict] = {
    "agreement": Verdict.SUPPORT,
    "conflict": Verdict.REFUTE,
    "irrelevance": Verdict.SUPPORT,
}

Units = tuple[EvidenceUnit, ...]


@cache
def demo_topology_tasks() -> tuple[TopologyTask, ...]:
    """Return one hand-written verdict task of six units per evidence kind, all with the same question."""
    return tuple(_build(kind, *letters) for kind, letters in _TASKS.items())


def demo_features(tasks: Sequence[TopologyTask]) -> NDArray[np.float32]:
    """Return what there is to see of a demo task's evidence.

    Returns:
        (tasks, 3) float32 in [0, 1]: distinct sources per unit, share of the units about what is asked, and share of
        the units that say ``raises``.
    """
    rows = [
        (
            len({unit.source_id for unit in task.graph.units}) / len(task.graph.units),
            len(_about_the_question(task, task.graph.units)) / len(task.graph.units),
            sum(unit.relation == "raises" for unit in task.graph.units) / len(task.graph.units),
        )
        for task in tasks
    ]
    return np.array(rows, dtype=np.float32)


class DemoExecutor:
    """Runs a topology of Planners, Reasoners, Verifiers and an Answerer on a demo task, without chance.

    A node without predecessors reads all units; any other reads what its predecessors pass on, taken together. A
    Reasoner passes on the units about what is asked, a Verifier the first unit of every source, others what they read.
    The Answerer counts units for and against.
    """

    def execute(self, task: TopologyTask, topology: Topology, seed: int) -> TopologyOutcome:
        """Run the topology once; ``seed`` changes nothing, for nothing is drawn.

        Args:
            task: One of :func:`demo_topology_tasks`, or one whose relations are ``raises`` and ``lowers``.
            topology: Who passes units to whom.
            seed: Unused.
        """
        passed: dict[int, Units] = {}
        for node in topology.topological_order():
            read = [unit.unit_id for sender in topology.predecessors(node) for unit in passed[sender]]
            units = tuple(unit for unit in task.graph.units if unit.unit_id in read or not topology.predecessors(node))
            passed[node] = _PASS_ON.get(topology.roles[node], _everything)(task, units)
        answerer = topology.roles.index(ANSWERER)
        raising = sum(unit.relation == "raises" for unit in passed[answerer])
        verdict = Verdict.from_counts(raising, len(passed[answerer]) - raising)
        is_right = is_correct(task.answer_kind, f"Answer: {verdict.value}", task.gold, choices=task.choices)
        return TopologyOutcome(int(is_right), 1, topology.num_nodes, topology.num_edges)


def _everything(task: TopologyTask, units: Units) -> Units:
    return units


def _about_the_question(task: TopologyTask, units: Units) -> Units:
    return tuple(unit for unit in units if unit.head in task.question and unit.tail in task.question)


def _first_of_each_source(task: TopologyTask, units: Units) -> Units:
    first = {unit.source_id: unit for unit in reversed(units)}
    return tuple(unit for unit in units if first[unit.source_id] is unit)


_PASS_ON: dict[str, Callable[[TopologyTask, Units], Units]] = {
    "Reasoner": _about_the_question,
    "Verifier": _first_of_each_source,
}


def _build(kind: EvidenceKind, letters: str, sources: str) -> TopologyTask:
    units: list[EvidenceUnit] = []
    documents: dict[str, str] = {}
    for number, (letter, source) in enumerate(zip(letters, sources, strict=True), start=1):
        relation = "raises" if letter.upper() == "R" else "lowers"
        tail = "the hardness of tamrite" if letter.isupper() else "the hardness of velmine"
        text = f"orvelin {relation} {tail}"
        document_id = f"{kind}-d{number}"
        documents[document_id] = f"In study {source}, {text}."
        start = documents[document_id].index(text)
        span = Span(document_id, start, start + len(text), text)
        units.append(EvidenceUnit(f"{kind}-u{number}", "orvelin", relation, tail, span, f"study-{source}"))
    graph = KnowledgeGraph(tuple(units), documents)
    return TopologyTask(
        f"demo-{kind}", f"demo-{kind}", "train", _QUESTION, _GOLD[kind].value, "verdict", (), graph, kind
    )
