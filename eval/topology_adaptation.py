"""Does the team follow the evidence: size and roles of the teams set up for agreeing, conflicting, irrelevant evidence.

What a method sets up does not depend on how the run ended, so runs that ended in an ``error`` count here too.

Shapes: N runs.

Source:
    The comparison of team sizes by kind of evidence is K-GAT's (arXiv 2608.27984): 2.02 nodes under consistent evidence
    against 2.66 under conflicting or irrelevant evidence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from provgym.envs.topology_tasks import EvidenceKind
from provgym.eval.estimate import Estimate
from provgym.eval.topology_estimates import Resampling, group_difference, mean_estimate
from provgym.eval.topology_runs import MethodRun

EVIDENCE_KINDS: tuple[EvidenceKind, ...] = get_args(EvidenceKind)
CONSISTENT: EvidenceKind = "agreement"
SIZES = ("nodes", "edges")


@dataclass(frozen=True, slots=True)
class TeamsOfKind:
    """The teams set up for one kind of evidence.

    Attributes:
        nodes: Mean number of nodes.
        edges: Mean number of edges.
        roles: Role to mean number of instances in a team; roles that no method of the evaluation used are left out.
        sizes: Number of nodes to share of teams of that size, ascending.
        teams: The most frequent teams as text (``Reasoner, Answerer: 0>1``) with their number of runs.
    """

    nodes: Estimate
    edges: Estimate
    roles: Mapping[str, Estimate]
    sizes: Mapping[int, float]
    teams: tuple[tuple[str, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "nodes": self.nodes.to_json(),
            "edges": self.edges.to_json(),
            "roles": {role: found.to_json() for role, found in self.roles.items()},
            "sizes": {str(size): share for size, share in self.sizes.items()},
            "teams": [{"team": team, "runs": number} for team, number in self.teams],
        }


@dataclass(frozen=True, slots=True)
class Adaptation:
    """How the teams of one method differ between kinds of evidence.

    Attributes:
        kinds: Kind of evidence to its teams; kinds without a run are left out.
        difference: ``nodes`` and ``edges`` under conflicting or irrelevant evidence minus under agreeing evidence, base
            claims resampled with all their kinds; not available unless both groups occur.
    """

    kinds: Mapping[EvidenceKind, TeamsOfKind]
    difference: Mapping[str, Estimate]

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data: one key per kind, and ``difference``."""
        kinds: dict[str, Any] = {kind: teams.to_json() for kind, teams in self.kinds.items()}
        return kinds | {"difference": {name: found.to_json() for name, found in self.difference.items()}}


def adaptation_of(runs: Sequence[MethodRun], resampling: Resampling | None = None) -> Adaptation:
    """Return team sizes and roles by kind of evidence of one method's runs.

    Args:
        runs: In any order; runs of tasks without a kind of evidence are left out.
        resampling: Seed and number of resamples.
    """
    of_kind = [run for run in runs if run.evidence_kind is not None]
    roles = sorted({role for run in of_kind for role in run.roles})
    claims = [run.base_id for run in of_kind]
    harder = [run.evidence_kind != CONSISTENT for run in of_kind]
    return Adaptation(
        kinds={
            kind: _teams([run for run in of_kind if run.evidence_kind == kind], roles, resampling)
            for kind in EVIDENCE_KINDS
            if any(run.evidence_kind == kind for run in of_kind)
        },
        difference={
            name: group_difference([_size(run, name) for run in of_kind], harder, claims, resampling) for name in SIZES
        },
    )


def team_text(run: MethodRun) -> str:
    """Return a team as one line: roles by number of node, then edges.

    Example:
        ``Reasoner, Verifier, Answerer: 0>1 1>2``
    """
    edges = " ".join(f"{sender}>{receiver}" for sender, receiver in run.edges)
    return f"{', '.join(run.roles)}: {edges}" if edges else ", ".join(run.roles)


def _teams(runs: Sequence[MethodRun], roles: Sequence[str], resampling: Resampling | None) -> TeamsOfKind:
    claims = [run.base_id for run in runs]
    sizes = Counter(len(run.roles) for run in runs)
    return TeamsOfKind(
        nodes=mean_estimate([_size(run, "nodes") for run in runs], claims, resampling),
        edges=mean_estimate([_size(run, "edges") for run in runs], claims, resampling),
        roles={
            role: mean_estimate([float(run.roles.count(role)) for run in runs], claims, resampling) for role in roles
        },
        sizes={size: sizes[size] / len(runs) for size in sorted(sizes)},
        teams=tuple(sorted(Counter(map(team_text, runs)).items(), key=lambda item: (-item[1], item[0]))[:3]),
    )


def _size(run: MethodRun, name: str) -> float:
    if not run.roles:  # nothing was set up: a method that could not begin
        return math.nan
    return float(len(run.roles) if name == "nodes" else len(run.edges))
