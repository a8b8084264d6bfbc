"""Which role and which set of senders a growing topology may take next, so that it can always be completed.

A node is *open* while it has no receiver. A valid topology has one Answerer, placed last, and no other open node. So
with r nodes still to place (the Answerer among them) at most ``rules.absorbable(r)`` nodes may be open. This bound is
exact: a prefix that keeps it can be completed (place nodes that take as many open ones as they may until the Answerer
can take the rest), and one that breaks it can't. Masking by it loses no valid graph and keeps no other, and the
renormalised probabilities are those of exactly the valid graphs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from provgym.envs.roles import ANSWERER
from provgym.envs.topology_rules import TopologyRules

MAX_DECODED_NODES = 10
"""Largest N_max of the generator: a node's senders are one choice among up to 2^(N_max - 1) sets."""


@dataclass(frozen=True, slots=True)
class LookAhead:
    """The arithmetic of completion, for a topology that has placed nodes but no Answerer yet.

    Attributes:
        rules: What a valid topology is.
    """

    rules: TopologyRules

    @property
    def max_in_degree(self) -> int:
        """The limit d, or the largest in-degree there can be where there is no limit."""
        return int(min(self.rules.in_degree_limit, self.rules.max_nodes))

    def may_answer(self, num_open: int) -> bool:
        """Whether the Answerer may come next: it must receive from every open node."""
        return num_open <= self.max_in_degree

    def least_absorbed(self, num_placed: int, num_open: int) -> int:
        """Return how many open nodes the next node must receive from, if it is no Answerer; may be impossible."""
        # The node itself is open too; those after it have to cope with what is left.
        left = max(self.rules.max_nodes - num_placed - 1, 0)
        return int(max(num_open + 1 - self.rules.absorbable(left), 0))

    def may_go_on(self, num_placed: int, num_open: int) -> bool:
        """Whether a node other than the Answerer may come next."""
        return self.least_absorbed(num_placed, num_open) <= min(num_open, self.max_in_degree)


class DecodeMasks(nn.Module):
    """The same as tensors, for many growing topologies at once; moves with its model.

    Sets of placed nodes are integers: bit j is the j-th of the topology's nodes.

    Args:
        rules: What a valid topology is; ``rules.role_names`` gives the roles' numbers.

    Attributes:
        answerer: Number of the Answerer among the roles.
        bits: (2^(N_max - 1), N_max - 1) float; entry (A, j) is 1 if node j is in the set A.
        sizes: (2^(N_max - 1),) how many nodes are in the set.

    Raises:
        ValueError: If the rules allow more than :data:`MAX_DECODED_NODES` nodes.
    """

    bits: Tensor
    sizes: Tensor
    _least: Tensor
    _goes_on: Tensor
    _answers: Tensor
    _is_answerer: Tensor

    def __init__(self, rules: TopologyRules) -> None:
        super().__init__()
        nodes = rules.max_nodes
        if nodes > MAX_DECODED_NODES:
            raise ValueError(f"max_nodes={nodes} must be at most {MAX_DECODED_NODES} for a generated topology")
        look = LookAhead(rules)
        self.answerer = rules.role_names.index(ANSWERER)
        self._max_in_degree = look.max_in_degree
        bits = (torch.arange(2 ** (nodes - 1))[:, None] >> torch.arange(nodes - 1)) & 1  # (2^(N_max - 1), N_max - 1)
        numbers = range(nodes)  # of placed nodes, the Answerer aside, and of open ones
        tables = {
            "bits": bits.float(),
            "sizes": bits.sum(dim=1),
            "_least": torch.tensor([[look.least_absorbed(n, o) for o in numbers] for n in numbers]),
            "_goes_on": torch.tensor([[look.may_go_on(n, o) for o in numbers] for n in numbers]),
            "_answers": torch.tensor([look.may_answer(o) for o in numbers]),
            "_is_answerer": torch.arange(len(rules.role_names)) == self.answerer,
        }
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)

    def count(self, sets: Tensor) -> Tensor:
        """Return how many nodes are in each set.

        Args:
            sets: (...) long; bit j stands for node j.

        Returns:
            (...) long.
        """
        return self.sizes[sets]

    def legal_roles(self, placed: Tensor, open_: Tensor) -> Tensor:
        """Return which roles may come next.

        Args:
            placed: (M,) sets of placed nodes, no Answerer among them; fewer than N_max.
            open_: (M,) sets of open nodes.

        Returns:
            (M, R) bool; at least one role of each row, if its topology was grown under these masks.
        """
        num_placed, num_open = self.count(placed), self.count(open_)
        goes_on = self._goes_on[num_placed, num_open][:, None]
        answers = self._answers[num_open][:, None]
        return torch.where(self._is_answerer, answers, goes_on)

    def legal_senders(self, placed: Tensor, open_: Tensor, role: Tensor, width: int) -> Tensor:
        """Return which sets of nodes the next node may receive from.

        Args:
            placed: (M,) as above.
            open_: (M,) as above.
            role: (M,) number of the next node's role, legal there.
            width: W; no placed node has a number of W or more.

        Returns:
            (M, 2^W) bool; entry A stands for the set A.
        """
        sets = torch.arange(2**width, device=placed.device)
        num_open = self.count(open_)
        least = torch.where(role == self.answerer, num_open, self._least[self.count(placed), num_open])
        is_placed = (sets & ~placed[:, None]) == 0
        fits = self.sizes[: 2**width] <= self._max_in_degree
        absorbs = self.sizes[sets & open_[:, None]] >= least[:, None]
        return is_placed & fits & absorbs


def masked_log_softmax(logits: Tensor, legal: Tensor) -> Tensor:
    """Return log-probabilities over the legal entries of the last axis, renormalised.

    Args:
        logits: (..., C) float; those of illegal entries may be anything.
        legal: (..., C) bool, at least one True in each row.

    Returns:
        (..., C) float, -inf where not legal.

    Raises:
        ValueError: If a legal entry is NaN or infinite: no distribution follows from it.
    """
    masked = logits.masked_fill(~legal, -torch.inf)
    if not bool(torch.isfinite(torch.where(legal, logits, 0.0)).all()):
        raise ValueError(
            "the generator's scores hold NaN or infinity, so its weights are damaged; load an earlier checkpoint, or "
            "lower the learning rate"
        )
    return masked.log_softmax(dim=-1)
