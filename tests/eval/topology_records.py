"""Tasks, questions, runs and an executor by hand, for the tests of the topology harness."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, get_args

from provgym.envs.evidence_units import EvidenceContext, EvidenceUnit, KnowledgeGraph, Span
from provgym.envs.topology_tasks import EvidenceKind, TopologyTask
from provgym.envs.verifier import VerifierAccount
from provgym.envs.workflow_records import (
    STOPPED_BY_VERIFIER,
    AgentMessage,
    CallRecord,
    NodeAccount,
    NodeFailure,
    RunRequest,
    TopologyRun,
)
from provgym.eval.topology_methods import Question
from provgym.eval.topology_runs import MethodRun, VerifierCheck
from provgym.generators.topology_targets import ScoreRule
from provgym.rewards.outcome import Ending
from provgym.rewards.topology_score import CostWeights

RULE = ScoreRule(CostWeights(node=0.04, edge=0.01), cost_weight=1.0, estimator="posterior_mean")
KINDS: tuple[EvidenceKind, ...] = get_args(EvidenceKind)
VERDICTS = ("SUPPORT", "REFUTE", "MIXED")


def make_unit(number: int, task: str = "t") -> EvidenceUnit:
    text = f"{task} unit {number} says that orvelin raises hardness"
    return EvidenceUnit(
        f"{task}-u{number}",
        "orvelin",
        "raises",
        "hardness",
        Span(f"{task}-d{number}", 0, len(text), text),
        f"s{number % 3}",
    )


def make_task(
    name: str = "t0",
    *,
    base: str = "b0",
    gold: str = "SUPPORT",
    kind: EvidenceKind | None = None,
    units: int = 4,
    **more: Any,
) -> TopologyTask:
    chosen = tuple(make_unit(number, name) for number in range(units))
    graph = KnowledgeGraph(chosen, {unit.span.document_id: unit.span.text for unit in chosen})
    fields: dict[str, Any] = {"split": "test", "question": f"What of {name}?", "answer_kind": "verdict", "choices": ()}
    return TopologyTask(name, base, gold=gold, graph=graph, evidence_kind=kind, **(fields | more))


def make_question(name: str = "t0", *, shown: int = 3, replicate: int = 0, **fields: Any) -> Question:
    task = make_task(name, **fields)
    units = task.graph.units[:shown]
    return Question(task, EvidenceContext(units, tuple(0.9 - 0.1 * i for i in range(len(units)))), replicate)


def make_questions(bases: int = 4, replicates: int = 2) -> list[Question]:
    """Every base claim under every kind of evidence, each asked several times."""
    return [
        make_question(f"b{base}-{kind}", base=f"b{base}", kind=kind, gold=VERDICTS[base % 3], replicate=replicate)
        for base in range(bases)
        for kind in KINDS
        for replicate in range(replicates)
    ]


def make_run(method: str = "kgat", **fields: Any) -> MethodRun:
    """Return a record; a right answer by one Answerer unless told otherwise."""
    given: dict[str, Any] = {
        "method": method,
        "setup": "",
        "task_id": "t0",
        "base_id": "b0",
        "split": "test",
        "evidence_kind": None,
        "replicate": 0,
        "answer_kind": "verdict",
        "choices": (),
        "gold": "SUPPORT",
        "ending": Ending.ANSWERED,
        "reason": None,
        "answer": "SUPPORT",
        "roles": ("Answerer",),
        "edges": (),
        "prompt_tokens": 80,
        "completion_tokens": 20,
        "calls": 1,
        "latency_s": 0.5,
    }
    given |= fields
    if given["ending"] is not Ending.ANSWERED:
        given["answer"] = None
    if given["ending"] is Ending.ERROR:
        given.setdefault("error", "Answerer: timeout")
    return MethodRun(**given)


def random_runs(method: str, seed: int, *, bases: int = 6, replicates: int = 2, errors: float = 0.1) -> list[MethodRun]:
    """Return runs of every kind and ending on one set of questions; other methods differ in all but the questions."""
    rng = Random(f"{method}/{seed}")
    found = []
    for question in make_questions(bases, replicates):
        team = rng.choice([("Answerer",), ("Reasoner", "Answerer"), ("Reasoner", "Reasoner", "Verifier", "Answerer")])
        edges = tuple((node, len(team) - 1) for node in range(len(team) - 1))
        luck = rng.random()
        if luck < errors:
            ending = Ending.ERROR
        else:
            ending = rng.choices(list(Ending)[:3], [8, 1, 1])[0]
        calls = rng.randrange(1, 6)
        tokens = rng.randrange(20, 400), rng.randrange(5, 90)
        has_verifier = "Verifier" in team
        checks = (
            VerifierCheck(
                2, rng.choice([*VERDICTS, None]), rng.choice([*VERDICTS, None]), *(rng.randrange(4) for _ in range(4))
            ),
        )
        stopped = has_verifier and rng.random() < 0.3 and ending is not Ending.ERROR
        task = question.task
        found.append(
            make_run(
                method,
                task_id=task.task_id,
                base_id=task.base_id,
                evidence_kind=task.evidence_kind,
                replicate=question.replicate,
                gold=task.gold,
                ending=ending,
                reason=STOPPED_BY_VERIFIER if stopped else None,
                answer=rng.choice(VERDICTS),
                roles=team,
                edges=edges,
                prompt_tokens=tokens[0],
                completion_tokens=tokens[1],
                calls=calls,
                cached_calls=rng.randrange(calls + 1),
                paid_tokens=rng.randrange(sum(tokens) + 1),
                is_counted=rng.random() < 0.9,
                latency_s=rng.random(),
                checks=checks if has_verifier else (),
                messages=(AgentMessage("Answerer", len(team) - 1, "so Verdict: SUPPORT\u2028\ud800"),),
            )
        )
    return found


Script = Callable[[RunRequest], str | None]
"""What the Answerer says to a request; None is an infrastructure failure."""


class ScriptedExecutor:
    """Runs teams by a script: every node costs 10 prompt tokens, 2 completion tokens and a tenth of a second."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[RunRequest] = []

    def run_many_sync(
        self, requests: Sequence[RunRequest], on_done: Callable[[int, TopologyRun], None] | None = None
    ) -> list[TopologyRun]:
        runs = []
        for number, request in enumerate(requests):
            self.requests.append(request)
            runs.append(self.run(request))
            if on_done is not None:
                on_done(number, runs[-1])
        return runs

    def run(self, request: RunRequest) -> TopologyRun:
        team, task = request.topology.canonical(), request.task
        said = self.script(request)
        answer = said if said in VERDICTS else None
        ending = Ending.ERROR if said is None else Ending.ANSWERED if answer else Ending.INVALID
        last = team.num_nodes - 1
        nodes = range(team.num_nodes if said is not None else last)
        return TopologyRun(
            task.task_id,
            team.key,
            request.replicate,
            request.phase,
            team,
            ending,
            None,
            answer,
            None if said is None else answer == task.gold,
            tuple(AgentMessage(team.roles[n], n, f"Answer: {said}" if n == last else "hm") for n in nodes),
            tuple(CallRecord(n, team.roles[n], "eval", 10, 2, False, "0" * 64, seconds=0.1) for n in nodes),
            () if said is not None else (NodeFailure(last, "Answerer", "timeout", "no reply"),),
            tuple(
                NodeAccount(n, VerifierAccount((), "REFUTE", "SUPPORT")) for n in nodes if team.roles[n] == "Verifier"
            ),
            0.1 * team.num_nodes,
        )


def draw_of(request: RunRequest, choices: Sequence[str] = VERDICTS) -> str:
    """Return a choice that depends on task, team and replicate alone."""
    text = f"{request.task.task_id}/{request.topology.key}/{request.replicate}/{len(request.evidence.units)}"
    return choices[hashlib.sha256(text.encode()).digest()[0] % len(choices)]
