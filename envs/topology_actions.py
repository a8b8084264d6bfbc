"""The discrete actions of building a topology: their numbers, which are legal, and what each does to a draft."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from provgym.envs.topology_draft import TopologyDraft
from provgym.envs.topology_rules import TopologyRules

ActionKind = Literal["role", "end", "edge"]


class BuildActions:
    """Numbers for the actions of one set of rules.

    With R roles: 0 to R-1 place a role, R is END, R+1 "no edge" and R+2 "edge", both about the pending pair of nodes.

    Args:
        rules: Whose roles are numbered, in their order.

    Attributes:
        end: The number of END, R.

    Example:
        >>> rules = TopologyRules(("Reasoner", "Answerer"), max_nodes=2)
        >>> actions = BuildActions(rules)
        >>> draft = actions.apply(TopologyDraft(rules), 0)
        >>> len(actions), actions.mask(draft).tolist()
        (5, [0, 1, 0, 0, 0])
    """

    def __init__(self, rules: TopologyRules) -> None:
        self._role_names = rules.role_names
        self.end = len(rules.role_names)

    def __len__(self) -> int:
        return self.end + 3

    def kind_of(self, action: int) -> ActionKind:
        """Return what an action in [0, R+3) decides."""
        if action == self.end:
            return "end"
        return "role" if action < self.end else "edge"

    def mask(self, draft: TopologyDraft) -> NDArray[np.int8]:
        """Return (R+3,) 1 for each action that is legal for a draft."""
        mask = np.zeros(len(self), dtype=np.int8)
        for role in draft.legal_roles:
            mask[self._role_names.index(role)] = 1
        mask[self.end] = draft.is_complete
        for is_sent in draft.legal_edges:
            mask[self.end + 1 + is_sent] = 1
        return mask

    def apply(self, draft: TopologyDraft, action: int) -> TopologyDraft:
        """Return the draft after a legal action other than END, which builds nothing."""
        if self.kind_of(action) == "role":
            return draft.with_role(self._role_names[action])
        return draft.with_edge(action == self.end + 2)
