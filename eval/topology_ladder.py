"""From names to methods: the ladder of controls and the baselines, each one thing away from the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from provgym.envs.topology import Topology
from provgym.envs.topology_rules import TopologyRules
from provgym.eval.topology_generator import Designer
from provgym.eval.topology_methods import Method, Propose, Question, Show, TeamMethod, same_team, shown_nothing
from provgym.eval.topology_names import (
    BEST_FIXED,
    CLOSED_BOOK,
    EVIDENCE_REMOVED,
    FIXED_TEAMS,
    GENERATED,
    KGAT,
    METHODS,
    NO_EVIDENCE_AT_INFERENCE,
    NO_VERIFIER,
    RANDOM,
    RANDOM_RETRIEVAL,
    REACT,
    SECOND_GENERATOR,
    SELF_CONSISTENCY_CONSTANT,
    SINGLE_AGENT,
    SINGLE_AGENT_CLOSED_BOOK,
    THIRD_GENERATOR,
    TOKEN_MATCHED,
    WITH_VERIFIER,
)
from provgym.eval.topology_policies import LONE_ANSWERER, ReAct, Retrieve, SelfConsistency
from provgym.eval.walk_config import instance_number
from provgym.generators.seeds import Purpose, derive_rng
from provgym.generators.topology_sampler import random_topology
from provgym.generators.topology_templates import templates

T = TypeVar("T")

_TEMPLATE_OF = {SINGLE_AGENT: "single"}
"""Methods whose template has another name."""


@dataclass(frozen=True)
class LadderParts:
    """What methods are made from; a part may be missing where no method asked for needs it.

    Attributes:
        rules: What a feasible team is; templates are instantiated within them, random teams drawn from them.
        num_replicates: Repetitions of each question.
        seed: Run seed of random teams.
        designer: The trained generator.
        second: A generator that was trained without evidence.
        third: A generator of a run in which not even the agents saw evidence.
        fixed: The one team that does best on dev.
        show_random: Evidence drawn at random, as much as was retrieved.
        retrieve: Finds units step by step.
        verifier_roles: Roles that ``no_verifier`` masks.
        max_samples: Most samples of self-consistency.
        step_units: Units that ReAct adds at each step.
    """

    rules: TopologyRules
    num_replicates: int
    seed: int = 42
    designer: Designer | None = None
    second: Designer | None = None
    third: Designer | None = None
    fixed: Topology | None = None
    show_random: Show | None = None
    retrieve: Retrieve | None = None
    verifier_roles: tuple[str, ...] = ("Verifier",)
    max_samples: int = 64
    step_units: int = 1


def build_methods(names: Sequence[str], parts: LadderParts) -> list[Method]:
    """Return the methods behind names, in the order of :data:`~provgym.eval.topology_names.METHODS`.

    Args:
        names: What to build.
        parts: What to build it from.

    Raises:
        ValueError: If a name is unknown, or needs a part that is missing; the message says which.
    """
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        raise ValueError(f"methods {unknown} are unknown, expected some of {', '.join(METHODS)}")
    return [_method(name, parts) for name in METHODS if name in names]


def default_methods(parts: LadderParts) -> list[str]:
    """Return the names of all methods that the parts suffice for."""
    lacking: set[str] = set()
    if parts.designer is None:
        lacking |= {*GENERATED, *TOKEN_MATCHED}
    if parts.second is None:
        lacking |= set(SECOND_GENERATOR)
    if parts.third is None:
        lacking |= set(THIRD_GENERATOR)
    if parts.fixed is None or not parts.rules.is_valid(parts.fixed):
        lacking.add(BEST_FIXED)
    if parts.show_random is None:
        lacking.add(RANDOM_RETRIEVAL)
    if parts.retrieve is None:
        lacking.add(REACT)
    if any(role not in parts.rules.role_names for role in parts.verifier_roles):
        lacking |= {NO_VERIFIER, WITH_VERIFIER}
    return [name for name in METHODS if name not in lacking]


def _method(name: str, parts: LadderParts) -> Method:
    if name in GENERATED:
        return _generated(name, parts)
    if name == SINGLE_AGENT_CLOSED_BOOK:
        return _team(name, same_team(LONE_ANSWERER), f"{LONE_ANSWERER.key}/closed book", shown_nothing)
    if name in TOKEN_MATCHED:
        is_constant = name == SELF_CONSISTENCY_CONSTANT
        return SelfConsistency(parts.num_replicates, parts.max_samples, is_constant=is_constant)
    if name == REACT:
        return ReAct(_needed(parts.retrieve, name, "a retriever"), parts.step_units)
    if name == RANDOM:
        return _team(name, _RandomTeams(parts.rules, parts.seed), f"random/{parts.rules}/{parts.seed}")
    if name == BEST_FIXED:
        chosen = _needed(parts.fixed, name, "a run that chose a team on dev (its fixed_team.json)")
        if not parts.rules.is_valid(chosen):
            raise ValueError(
                f"method {name!r}: the team that was chosen on dev has {chosen.num_nodes} nodes and does not fit "
                f"{parts.rules}; leave it out, or allow more"
            )
        return _team(name, same_team(chosen), chosen.key)
    assert name in FIXED_TEAMS, name
    team = _template(name, parts.rules)
    return _team(name, same_team(team), team.key)


def _generated(name: str, parts: LadderParts) -> Method:
    designer = _needed(parts.designer, name, "a generator")
    if name in SECOND_GENERATOR:
        second = _needed(parts.second, name, "a second generator, trained without evidence").blind()
        return _team(name, second, second.fingerprint)
    if name in THIRD_GENERATOR:
        third = _needed(parts.third, name, "a generator that was mined and trained closed book")
        return _team(name, third, third.fingerprint)
    if name == EVIDENCE_REMOVED:
        blind = designer.blind()
        return _team(name, blind, blind.fingerprint)
    if name == NO_VERIFIER:
        masked = designer.without_roles(parts.verifier_roles)
        return _team(name, masked, masked.fingerprint)
    if name == NO_EVIDENCE_AT_INFERENCE:
        blind = designer.blind()
        return _team(name, blind, f"{blind.fingerprint}/closed book", shown_nothing)
    if name == CLOSED_BOOK:
        return _team(name, designer, f"{designer.fingerprint}/closed book", shown_nothing)
    if name == RANDOM_RETRIEVAL:
        show = _needed(parts.show_random, name, "evidence drawn at random")
        return _team(name, _OtherEvidence(designer, show), f"{designer.fingerprint}/random evidence", show)
    assert name == KGAT, name
    return _team(name, designer, designer.fingerprint)


@dataclass(frozen=True)
class _OtherEvidence:
    """Chooses teams by other evidence than the question's."""

    designer: Designer
    show: Show

    def __call__(self, questions: Sequence[Question]) -> list[Topology]:
        return self.designer.propose(questions, self.show(questions))


@dataclass(frozen=True)
class _RandomTeams:
    """Draws a feasible team for each question by a stream of its own."""

    rules: TopologyRules
    seed: int

    def __call__(self, questions: Sequence[Question]) -> list[Topology]:
        return [
            random_topology(
                self.rules,
                derive_rng(self.seed, Purpose.CANDIDATES, instance_number(question.task.task_id), question.replicate),
            )
            for question in questions
        ]


def _team(name: str, propose: Propose, fingerprint: str, show: Show | None = None) -> TeamMethod:
    return TeamMethod(name, propose, fingerprint) if show is None else TeamMethod(name, propose, fingerprint, show)


def _template(name: str, rules: TopologyRules) -> Topology:
    found = templates(rules)
    key = _TEMPLATE_OF.get(name, name)
    if key not in found:
        why = "needs the role Verifier" if name == WITH_VERIFIER else "does not fit"
        raise ValueError(
            f"method {name!r} {why}: with roles {list(rules.role_names)} and at most {rules.max_nodes} nodes the "
            f"templates are {list(found)}; leave it out, or allow more"
        )
    return found[key]


def _needed(part: T | None, name: str, what: str) -> T:
    if part is None:
        raise ValueError(f"method {name!r} needs {what}; give one, or leave the method out")
    return part
