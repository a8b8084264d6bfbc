"""A topology while it is being built, one decision at a time, such that every legal way leads to a valid one.

Nodes are placed in an order that runs senders first. After a node is placed, each earlier node is asked in turn
whether it sends to the new one; when the Answerer has been asked about too, the topology is complete. Decisions that
could not be completed within the rules are not legal: at every moment the nodes that send to nobody yet (the *open*
ones) are few enough for the nodes that may still come.

Source: the generator's grammar of K-GAT, arXiv:2608.27984; the look-ahead is ours.

Example:
    >>> rules = TopologyRules(("Reasoner", "Answerer"), max_nodes=2)
    >>> draft = TopologyDraft(rules)
    >>> draft.legal_roles
    ('Reasoner', 'Answerer')
    >>> draft = draft.with_role("Reasoner")
    >>> draft.legal_roles  # no room for a second Reasoner
    ('Answerer',)
    >>> draft = draft.with_role("Answerer")
    >>> draft.pending, draft.legal_edges  # the Reasoner's work must reach somebody
    ((0, 1), (True,))
    >>> draft.with_edge(True).topology().key
    'Reasoner+Answerer:0>1'
"""

from __future__ import annotations

from dataclasses import dataclass

from provgym.envs.roles import ANSWERER
from provgym.envs.topology import Topology
from provgym.envs.topology_rules import TopologyRules


@dataclass(frozen=True, slots=True)
class TopologyDraft:
    """A partial topology; every decision gives a new draft.

    Attributes:
        rules: What the finished topology keeps to.
        roles: Roles placed so far, in order.
        senders: One bit set per node: bit j of ``senders[t]`` is the edge from j to t.
        num_asked: Earlier nodes that were asked about the last node, in [0, len(roles) - 1].
    """

    rules: TopologyRules
    roles: tuple[str, ...] = ()
    senders: tuple[int, ...] = ()
    num_asked: int = 0

    @property
    def pending(self) -> tuple[int, int] | None:
        """The edge (sender, receiver) to decide next, or None if a role is to be placed or nothing is left."""
        receiver = len(self.roles) - 1
        return (self.num_asked, receiver) if self.num_asked < receiver else None

    @property
    def is_complete(self) -> bool:
        """Whether the Answerer stands and all its edges are decided."""
        return bool(self.roles) and self.roles[-1] == ANSWERER and self.pending is None

    @property
    def legal_roles(self) -> tuple[str, ...]:
        """The roles that may be placed next, in the rules' order; none while an edge is to be decided or at the end."""
        if self.pending is not None or self.is_complete:
            return ()
        num_open = self._open_before(len(self.roles)).bit_count()
        most = min(num_open, self.rules.in_degree_limit)
        return tuple(role for role in self.rules.role_names if self._due(role, len(self.roles), num_open) <= most)

    @property
    def legal_edges(self) -> tuple[bool, ...]:
        """The answers that may be given about :attr:`pending`, False before True; none if nothing is pending."""
        if self.pending is None:
            return ()
        sender, receiver = self.pending
        open_nodes = self._open_before(receiver)
        taken = self.senders[receiver]
        due = self._due(self.roles[receiver], receiver, open_nodes.bit_count()) - (taken & open_nodes).bit_count()
        room = self.rules.in_degree_limit - taken.bit_count()
        still_open = open_nodes >> sender
        is_open = still_open & 1
        answers = []
        if (still_open >> 1).bit_count() >= due:
            answers.append(False)
        if room >= 1 and room - 1 >= due - is_open:
            answers.append(True)
        return tuple(answers)

    def with_role(self, role: str) -> TopologyDraft:
        """Place a node.

        Raises:
            ValueError: If the role is not among :attr:`legal_roles`.
        """
        if role not in self.legal_roles:
            raise ValueError(f"role {role!r} can't be placed now; legal are {list(self.legal_roles)}")
        return TopologyDraft(self.rules, (*self.roles, role), (*self.senders, 0))

    def with_edge(self, is_sent: bool) -> TopologyDraft:
        """Decide the pending edge.

        Raises:
            ValueError: If the answer is not among :attr:`legal_edges`.
        """
        if is_sent not in self.legal_edges:
            raise ValueError(
                f"answer {is_sent} on edge {self.pending} is not legal; legal are {list(self.legal_edges)}"
            )
        last = self.senders[-1] | (is_sent << self.num_asked)
        return TopologyDraft(self.rules, self.roles, (*self.senders[:-1], last), self.num_asked + 1)

    def edges(self) -> tuple[tuple[int, int], ...]:
        """Return the edges decided for so far, sorted."""
        return tuple(
            (sender, receiver)
            for sender in range(len(self.roles))
            for receiver in range(sender + 1, len(self.roles))
            if self.senders[receiver] >> sender & 1
        )

    def topology(self) -> Topology:
        """Return the finished topology.

        Raises:
            ValueError: If it is not complete.
        """
        if not self.is_complete:
            raise ValueError(
                f"the topology is not complete: roles {list(self.roles)}, next edge {self.pending}, next roles "
                f"{list(self.legal_roles)}"
            )
        return Topology(self.roles, self.edges())

    def _open_before(self, receiver: int) -> int:
        """Return the nodes before ``receiver`` that send to none before it, as bits."""
        sending = 0
        for senders in self.senders[:receiver]:
            sending |= senders
        return ((1 << receiver) - 1) & ~sending

    def _due(self, role: str, place: int, num_open: int) -> float:
        """Return how many open nodes a node of that role must take in when placed with ``num_open`` before it."""
        if role == ANSWERER:
            return num_open
        return max(0.0, num_open + 1 - self.rules.absorbable(self.rules.max_nodes - place - 1))
