"""What a complete team needs, and all teams that meet it.

A valid topology has exactly one Answerer; it is the only node that sends to nobody, so every other node reaches it. It
uses known roles, has at most ``max_nodes`` nodes, and none gets more than ``max_in_degree`` messages.

Source: the decode constraints of K-GAT, arXiv:2608.27984 (defaults 6 nodes, in-degree 3); "exactly one Answerer, the
only sink" is our reading of "a valid answer node".
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import combinations

from provgym.envs.roles import ANSWERER, check_role_name
from provgym.envs.topology import MAX_NODES, Topology
from provgym.envs.topology_canonical import Edge, canonical_form
from provgym.envs.topology_faults import TopologyError, TopologyFault

__all__ = ["TopologyError", "TopologyFault", "TopologyRules", "enumerate_topologies"]

_Form = tuple[tuple[str, ...], tuple[Edge, ...]]  # roles and edges in canonical order


@dataclass(frozen=True, slots=True)
class TopologyRules:
    """The constraints that topologies are built under.

    Attributes:
        role_names: Distinct names, :data:`~provgym.envs.roles.ANSWERER` among them.
        max_nodes: N_max, in [1, 64].
        max_in_degree: d_max, >= 1; None for no limit, as baselines such as debate need.

    Raises:
        ValueError: If a value is out of range, a name repeats, or the Answerer is missing.

    Example:
        >>> rules = TopologyRules(("Reasoner", "Answerer"), max_nodes=2)
        >>> [topology.key for topology in enumerate_topologies(rules)]
        ['Answerer:', 'Reasoner+Answerer:0>1']
    """

    role_names: tuple[str, ...]
    max_nodes: int = 6
    max_in_degree: int | None = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "role_names", tuple(self.role_names))
        for name in self.role_names:
            check_role_name(name)
        if len(set(self.role_names)) != len(self.role_names):
            raise ValueError(f"role_names {list(self.role_names)} must be distinct")
        if ANSWERER not in self.role_names:
            raise ValueError(f"role_names {list(self.role_names)} must hold {ANSWERER!r}, which every topology needs")
        if not 1 <= self.max_nodes <= MAX_NODES:
            raise ValueError(f"max_nodes={self.max_nodes} must lie in [1, {MAX_NODES}]")
        if self.max_in_degree is not None and self.max_in_degree < 1:
            raise ValueError(f"max_in_degree={self.max_in_degree} must be >= 1, or None for no limit")

    @property
    def member_roles(self) -> tuple[str, ...]:
        """The roles other than the Answerer, in order."""
        return tuple(name for name in self.role_names if name != ANSWERER)

    @property
    def in_degree_limit(self) -> float:
        """d_max as a number: infinite if there is no limit."""
        return math.inf if self.max_in_degree is None else self.max_in_degree

    @property
    def most_edges(self) -> int:
        """Edges of the largest topology: a node gets one from every earlier node, up to ``max_in_degree``."""
        return sum(int(min(earlier, self.in_degree_limit)) for earlier in range(self.max_nodes))

    def absorbable(self, num_left: int) -> float:
        """Return how many nodes without a receiver ``num_left`` further nodes can still connect to the Answerer.

        The Answerer, which comes last, takes ``d_max`` of them; every other node takes ``d_max`` and leaves itself.

        Args:
            num_left: Nodes that may still be placed, >= 0, the Answerer included.

        Returns:
            ``d_max + (num_left - 1) (d_max - 1)``; 0 if none is left, infinite without a limit.
        """
        if num_left < 1:
            return 0.0
        limit = self.in_degree_limit
        return limit if num_left == 1 else limit + (num_left - 1) * (limit - 1)

    def check(self, topology: Topology) -> None:
        """Refuse a topology that breaks a rule.

        Raises:
            TopologyError: Naming the fault, the node and the way out.
        """
        self._check_nodes(topology)
        self._check_answerer(topology)
        if self.max_in_degree is None:
            return
        for node, role in enumerate(topology.roles):
            degree = topology.in_degree(node)
            if degree > self.max_in_degree:
                raise TopologyError(
                    TopologyFault.IN_DEGREE,
                    f"{role} ({node}) gets {degree} messages, at most max_in_degree={self.max_in_degree} are allowed",
                )

    def is_valid(self, topology: Topology) -> bool:
        """Whether :meth:`check` has nothing to say."""
        try:
            self.check(topology)
        except TopologyError:
            return False
        return True

    def _check_nodes(self, topology: Topology) -> None:
        if topology.num_nodes > self.max_nodes:
            raise TopologyError(
                TopologyFault.TOO_MANY_NODES,
                f"the topology has {topology.num_nodes} nodes, at most max_nodes={self.max_nodes} are allowed",
            )
        for node, role in enumerate(topology.roles):
            if role not in self.role_names:
                raise TopologyError(
                    TopologyFault.UNKNOWN_ROLE,
                    f"node {node} has role {role!r}, which is unknown; known are {list(self.role_names)}",
                )

    def _check_answerer(self, topology: Topology) -> None:
        answerers = [node for node, role in enumerate(topology.roles) if role == ANSWERER]
        if not answerers:
            raise TopologyError(
                TopologyFault.NO_ANSWERER, f"no node is the {ANSWERER}; the roles are {list(topology.roles)}"
            )
        if len(answerers) > 1:
            raise TopologyError(
                TopologyFault.SECOND_ANSWERER, f"nodes {answerers} are all {ANSWERER}; exactly one node may be"
            )
        sent_to = topology.successors(answerers[0])
        if sent_to:
            raise TopologyError(
                TopologyFault.ANSWERER_NOT_SINK,
                f"the {ANSWERER} ({answerers[0]}) sends to {list(sent_to)}; it comes last and sends to nobody",
            )
        for node in topology.sinks:  # in an acyclic graph every node reaches some sink
            if node != answerers[0]:
                raise TopologyError(
                    TopologyFault.DEAD_END,
                    f"{topology.roles[node]} ({node}) sends to nobody, so its work never reaches the {ANSWERER} "
                    f"({answerers[0]}); add an edge or remove the node",
                )


def enumerate_topologies(rules: TopologyRules) -> Iterator[Topology]:
    """Yield every valid topology once, up to renumbering, in canonical form, the small ones first.

    Teams grow a node at a time and those that differ in numbering alone are kept once, so the work follows the number
    of graphs, not of the orders in which they can be built. Their number grows very fast: with three roles beside the
    Answerer and no limit on in-degree there are 1, 3, 24, 379 and 11,961 of 1 to 5 nodes.
    """
    yield Topology((ANSWERER,), ())
    teams: list[_Form] = [((role,), ()) for role in rules.member_roles] if rules.max_nodes > 1 else []
    for num_nodes in range(2, rules.max_nodes + 1):
        for team in teams:
            # Without its Answerer each of these is this team: no other team can yield the same one.
            for roles, edges in dict.fromkeys(_grown(team, ANSWERER, rules, must_have=_sinks(team))):
                yield Topology(roles, edges)
        if num_nodes < rules.max_nodes:
            absorbable = rules.absorbable(rules.max_nodes - num_nodes)
            grown = (more for team in teams for role in rules.member_roles for more in _grown(team, role, rules))
            teams = list(dict.fromkeys(more for more in grown if len(_sinks(more)) <= absorbable))


def _grown(team: _Form, role: str, rules: TopologyRules, must_have: Collection[int] = ()) -> Iterator[_Form]:
    """Yield the team with one more node, in canonical form, for every allowed set of senders with ``must_have``."""
    roles, edges = team
    others = [node for node in range(len(roles)) if node not in must_have]
    most = int(min(rules.in_degree_limit, len(roles))) - len(must_have)
    for count in range(most + 1):
        for chosen in combinations(others, count):
            new = tuple((sender, len(roles)) for sender in (*must_have, *chosen))
            yield canonical_form((*roles, role), edges + new)


def _sinks(team: _Form) -> list[int]:
    senders = {sender for sender, _ in team[1]}
    return [node for node in range(len(team[0])) if node not in senders]
