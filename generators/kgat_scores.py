"""The networks that score the next role and the next node's senders, and the probabilities that follow from them.

The state that both choices are made from is a function of the *set* of nodes placed so far and of the edges among
them, whatever the order they were placed in: a node's vector depends on its role, its senders' vectors and the
context; the state pools the vectors of all placed nodes and of the open ones among them. That is what makes the sum
over a graph's decode orders exact by going through sets (:mod:`provgym.generators.topology_orders`).

A node's senders are one choice among sets. Each earlier node j has a logit, ``MLP([h_j; v_t; state; c_K])``, and the
set A has the probability ``prod_{j in A} p_j prod_{j not in A} (1 - p_j)`` with ``p_j = sigmoid(logit_j)``, divided by
the sum of the same over all sets that the constraints allow. Without constraints that is one independent sigmoid per
edge; with them it is the same conditioned on a legal outcome: what deciding the edges one by one comes to, each masked
and renormalised by all legal ways to go on, and it does not depend on the order of the earlier nodes.

Source: K-GAT, arXiv:2608.27984, equations 3 and 4, where the state is the last step's and constraints are applied to
the decoded graph; the set-valued state and the exact renormalisation are ours.
"""

from __future__ import annotations

import math

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.topology_rules import TopologyRules
from provgym.generators.kgat_constraints import MAX_DECODED_NODES, DecodeMasks, masked_log_softmax
from provgym.generators.kgat_context import EvidencePooling


class KgatSettings(BaseModel):
    """Shape and constraints of a generator.

    Attributes:
        role_names: Roles it chooses from, the Answerer among them; the order is that of its weights.
        max_nodes: N_max.
        max_in_degree: d_max; None for no limit.
        encoder_size: Length of the encoder's vectors (384 for all-MiniLM-L6-v2).
        hidden_size: Length of c_K, of node vectors and of states.
        heads: Of the pooling of evidence; divides ``hidden_size``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    role_names: tuple[str, ...] = DEFAULT_ROLES.names
    max_nodes: int = Field(default=6, strict=True, ge=1, le=MAX_DECODED_NODES)
    max_in_degree: int | None = Field(default=3, strict=True, ge=1)
    encoder_size: int = Field(default=384, strict=True, ge=1)
    hidden_size: int = Field(default=64, strict=True, ge=1)
    heads: int = Field(default=4, strict=True, ge=1)

    @model_validator(mode="after")
    def _fits_together(self) -> KgatSettings:
        if self.hidden_size % self.heads:
            raise ValueError(f"heads={self.heads} must divide hidden_size={self.hidden_size}")
        self.rules()
        return self

    def rules(self) -> TopologyRules:
        """Return the constraints on their own."""
        return TopologyRules(self.role_names, self.max_nodes, self.max_in_degree)


class KgatScores(nn.Module):
    """Scores of the next role and of the next node's senders.

    Shapes: M growing topologies (they may share contexts), W earlier nodes at most, R roles, H hidden size.

    Every activation is bounded, so that any finite weights below 1e30 give finite scores. A set of nodes is a number:
    bit j stands for node j.
    """

    def __init__(self, settings: KgatSettings) -> None:
        super().__init__()
        hidden = settings.hidden_size
        self.masks = DecodeMasks(settings.rules())
        self.pooling = EvidencePooling(settings.encoder_size, hidden, settings.heads)
        self.roles = nn.Embedding(len(settings.role_names), hidden)
        self.node = nn.Linear(3 * hidden, hidden)
        self.state = nn.Sequential(nn.Linear(3 * hidden + 2, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.sender = nn.Linear(hidden, hidden)
        self.receiver = nn.Linear(3 * hidden, hidden)
        self.is_open = nn.Linear(1, hidden, bias=False)
        self.edge = nn.Linear(hidden, 1)
        self._role_scale = 1.0 / math.sqrt(hidden)

    def place(self, context: Tensor, role: Tensor, sender_sum: Tensor) -> Tensor:
        """Return the vectors of new nodes.

        Args:
            context: (M, H) c_K.
            role: (M,) number of each node's role.
            sender_sum: (M, H) sum of its senders' vectors.

        Returns:
            (M, H) in [-1, 1].
        """
        return torch.tanh(self.node(torch.cat([self.roles(role), sender_sum, context], dim=-1)))

    def state_of(self, context: Tensor, nodes: Tensor, placed: Tensor, open_: Tensor) -> Tensor:
        """Return what the next choices are made from.

        Args:
            context: (M, H) c_K.
            nodes: (M, W, H) vectors of the earlier nodes; those outside ``placed`` are not looked at.
            placed: (M,) set of placed nodes.
            open_: (M,) set of those without a receiver.

        Returns:
            (M, H) in [-1, 1].
        """
        width = nodes.shape[1]
        sets = torch.stack([placed, open_], dim=1)  # (M, 2)
        pooled = torch.bmm(self.masks.bits[sets, :width], nodes)  # (M, 2, H)
        sizes = torch.log1p(self.masks.count(sets).to(nodes.dtype))  # (M, 2)
        state: Tensor = self.state(torch.cat([pooled.flatten(1), sizes, context], dim=-1))
        return state

    def role_logprobs(self, state: Tensor, placed: Tensor, open_: Tensor, temperature: float = 1.0) -> Tensor:
        """Return log-probabilities of the next role.

        END needs no entry of its own: nothing can follow the Answerer, and nothing is complete before it, so END is
        certain after the Answerer and impossible before. Choosing the Answerer is choosing to end.

        Args:
            state: (M, H) of :meth:`state_of`.
            placed: (M,) set of placed nodes.
            open_: (M,) set of those without a receiver.
            temperature: > 0; 1 is the model itself.

        Returns:
            (M, R) float, -inf where a role is not legal.
        """
        logits = state @ self.roles.weight.T * (self._role_scale / temperature)  # (M, R)
        return masked_log_softmax(logits, self.masks.legal_roles(placed, open_))

    def edge_logits(self, state: Tensor, context: Tensor, nodes: Tensor, open_: Tensor, role: Tensor) -> Tensor:
        """Return a logit for the edge from each earlier node to the next one.

        Args:
            state: (M, H) of :meth:`state_of`.
            context: (M, H) c_K.
            nodes: (M, W, H) vectors of the earlier nodes.
            open_: (M,) set of nodes without a receiver.
            role: (M,) number of the next node's role.

        Returns:
            (M, W) float; entries of nodes that were not placed mean nothing.
        """
        width = nodes.shape[1]
        receiver = self.receiver(torch.cat([self.roles(role), state, context], dim=-1))  # (M, H)
        is_open = self.is_open(self.masks.bits[open_, :width, None])  # (M, W, H)
        logits: Tensor = self.edge(torch.tanh(self.sender(nodes) + is_open + receiver[:, None]))[..., 0]
        return logits

    def sender_logprobs(
        self, edge_logits: Tensor, placed: Tensor, open_: Tensor, role: Tensor, temperature: float = 1.0
    ) -> Tensor:
        """Return log-probabilities of the next node's set of senders.

        Args:
            edge_logits: (M, W) of :meth:`edge_logits`.
            placed: (M,) set of placed nodes.
            open_: (M,) set of those without a receiver.
            role: (M,) number of the next node's role, legal there.
            temperature: > 0; 1 is the model itself.

        Returns:
            (M, 2^W) float, -inf where a set is not legal; entry A stands for the set A.
        """
        width = edge_logits.shape[1]
        bits = self.masks.bits[: 2**width, :width]  # (2^W, W)
        # log p_j - log(1 - p_j) is the logit; the factor prod_j (1 - p_j) is common to all sets and cancels.
        scores = edge_logits @ bits.T / temperature  # (M, 2^W)
        return masked_log_softmax(scores, self.masks.legal_senders(placed, open_, role, width))
