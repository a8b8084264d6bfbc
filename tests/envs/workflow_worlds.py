"""Small tasks whose evidence can be read by hand, topologies by name, and agents that do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from provgym.envs.evidence_units import EvidenceContext, EvidenceUnit, KnowledgeGraph, Span
from provgym.envs.topology import Topology
from provgym.envs.topology_tasks import EvidenceKind, TopologyTask
from provgym.envs.workflow import AgentFailure, AgentReply, NodeCall, Phase, RunRequest

A, R, V, P = "Answerer", "Reasoner", "Verifier", "Planner"
SINGLE = Topology((A,), ())
PAIR = Topology((R, A), ((0, 1),))
CHAIN = Topology((R, V, A), ((0, 1), (1, 2)))
STAR = Topology((R, R, R, A), ((0, 3), (1, 3), (2, 3)))

QUESTION = "In agriculture, bolnan raises the yield of dalkon. Do the sources support this claim or refute it?"


def unit(number: int, verb: str, source: str, names: tuple[str, str] = ("bolnan", "dalkon")) -> EvidenceUnit:
    """A unit such as "bolnan raised the yield of dalkon by 7 percent."."""
    text = f"{names[0]} {verb} the yield of {names[1]} by 7 percent."
    return EvidenceUnit(
        f"u{number}", names[0], verb, f"the yield of {names[1]}", Span(f"d{number}", 0, len(text), text), source
    )


def task_of(
    units: Sequence[EvidenceUnit], gold: str = "SUPPORT", name: str = "t", kind: EvidenceKind | None = None
) -> TopologyTask:
    """A verdict task over units that are documents of their own."""
    documents = {u.span.document_id: u.span.text for u in units}
    graph = KnowledgeGraph(tuple(units), documents)
    return TopologyTask(name, name, "test", QUESTION, gold, "verdict", (), graph, kind)


def agreement() -> TopologyTask:
    """Three sources for, one unit each, and one against."""
    verbs = ("raised", "increased", "boosted", "lowered")
    return task_of([unit(n, verb, f"s{n}") for n, verb in enumerate(verbs, 1)], "SUPPORT", "agreement", "agreement")


def conflict() -> TopologyTask:
    """Five units of one source for, and one each of two sources against: units mislead."""
    echoes = [unit(n, "raised", "s1") for n in range(1, 6)]
    return task_of([*echoes, unit(6, "lowered", "s2"), unit(7, "cut", "s3")], "REFUTE", "conflict", "conflict")


def irrelevance() -> TopologyTask:
    """Two sources for, and four units about something else that point the other way."""
    others = [unit(n, "lowered", f"s{n}", ("karden", "mevtor")) for n in range(3, 7)]
    own = [unit(1, "raised", "s1"), unit(2, "improved", "s2")]
    return task_of([*own, *others], "SUPPORT", "irrelevance", "irrelevance")


def request(
    topology: Topology, task: TopologyTask | None = None, replicate: int = 0, phase: Phase = "eval"
) -> RunRequest:
    """A run over all units of a task."""
    task = task or agreement()
    units = task.graph.units
    return RunRequest(topology, task, EvidenceContext(units, (0.5,) * len(units)), replicate, phase)


Says = Callable[[NodeCall], AgentReply]


def plain(text: str, prompt_tokens: int = 10, completion_tokens: int = 2) -> Says:
    """A behaviour: always the same words."""
    return lambda call: AgentReply(text, prompt_tokens, completion_tokens)


def fails(kind: str) -> Says:
    """A behaviour: the infrastructure fails."""

    def say(call: NodeCall) -> AgentReply:
        raise AgentFailure(kind, "as told")

    return say


@dataclass
class ScriptedAgent:
    """Behaves by role; keeps what it was asked, and how many calls it worked on at once."""

    roles: Mapping[str, Says] = field(default_factory=dict)
    default: Says = plain("Answer: SUPPORT")
    fingerprint: str = "scripted"
    pauses: Mapping[str, float] = field(default_factory=dict)
    calls: list[NodeCall] = field(default_factory=list)
    live: int = 0
    most_live: int = 0

    async def reply(self, call: NodeCall) -> AgentReply:
        """Answer as told."""
        self.calls.append(call)
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        try:
            await asyncio.sleep(self.pauses.get(call.role.name, 0.0))
            return self.roles.get(call.role.name, self.default)(call)
        finally:
            self.live -= 1
