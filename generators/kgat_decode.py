"""Decoding: a whole batch grows its topologies together, one node of every unfinished one per step.

What is sampled is drawn by uniform numbers of the row's own seed, two per node (role, senders), so a row's topology
does not depend on which others are in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from provgym.envs.topology import Topology
from provgym.generators.kgat_scores import KgatScores
from provgym.generators.seeds import Purpose, derive_rng
from provgym.generators.token_choice import draw_by_uniforms
from provgym.generators.topology_orders import members

DecodeMode = Literal["greedy", "sample"]


@dataclass(frozen=True, slots=True)
class Growth:
    """M topologies that have all placed t nodes, numbered in the order of placing, and no Answerer yet.

    Attributes:
        row: (M,) context row of each.
        context: (M, H) its c_K.
        roles: (M, t) role numbers.
        senders: (M, t) set of each node's senders, bit j for node j.
        nodes: (M, t, H) node vectors.
        open: (M,) set of nodes without a receiver.
    """

    row: Tensor
    context: Tensor
    roles: Tensor
    senders: Tensor
    nodes: Tensor
    open: Tensor

    @classmethod
    def start(cls, context: Tensor) -> Growth:
        """Return empty topologies, one for each of (M, H) contexts."""
        count, size = context.shape
        rows = torch.arange(count, device=context.device)
        nothing = rows.new_zeros(count, 0)
        return cls(rows, context, nothing, nothing, context.new_zeros(count, 0, size), torch.zeros_like(rows))

    def __len__(self) -> int:
        return len(self.row)

    @property
    def placed(self) -> Tensor:
        """(M,) the set of placed nodes: all t."""
        return torch.full_like(self.row, 2 ** self.roles.shape[1] - 1)

    def select(self, index: Tensor) -> Growth:
        """Return some of them.

        Args:
            index: (M,) bool mask, or (n,) long places, which may repeat.
        """
        return Growth(
            self.row[index],
            self.context[index],
            self.roles[index],
            self.senders[index],
            self.nodes[index],
            self.open[index],
        )

    def with_node(self, role: Tensor, senders: Tensor, scores: KgatScores) -> Growth:
        """Return them with one more node each.

        Args:
            role: (M,) long, role number of the new node.
            senders: (M,) long, its set of senders among the placed nodes.
            scores: The generator's networks, which give the new node its vector.
        """
        placed = self.roles.shape[1]
        weights = scores.masks.bits[senders, None, :placed]  # (M, 1, t)
        vector = scores.place(self.context, role, torch.bmm(weights, self.nodes)[:, 0])
        return Growth(
            self.row,
            self.context,
            torch.cat([self.roles, role[:, None]], dim=1),
            torch.cat([self.senders, senders[:, None]], dim=1),
            torch.cat([self.nodes, vector[:, None]], dim=1),
            (self.open & ~senders) | 1 << placed,
        )


@lru_cache(maxsize=65_536)
def topology_of(role_names: tuple[str, ...], roles: tuple[int, ...], senders: tuple[int, ...]) -> Topology:
    """Return the topology whose nodes are numbered in the order of placing.

    Args:
        role_names: Name of each role number.
        roles: Role number of each node.
        senders: Each node's set of senders; bit j stands for node j.
    """
    edges = tuple((sender, node) for node, subset in enumerate(senders) for sender in members(subset))
    return Topology(tuple(role_names[role] for role in roles), edges)


@torch.no_grad()
def decode_batch(
    scores: KgatScores,
    context: Tensor,
    role_names: tuple[str, ...],
    *,
    mode: DecodeMode,
    temperature: float = 1.0,
    seeds: Sequence[int] | None = None,
) -> list[Topology]:
    """Decode one topology for each context, valid whatever the weights are.

    Args:
        scores: The generator's networks.
        context: (B, H) pooled contexts c_K.
        role_names: R names, by role number.
        mode: ``greedy`` takes the most likely role, then the most likely set of senders, and so on; ``sample`` draws
            both. At temperature 1 graphs are drawn with the probabilities of
            :func:`~provgym.generators.kgat_exact.graph_log_probs`.
        temperature: Divides all scores before they are masked; above 0. Greedy decoding does not look at it.
        seeds: B numbers >= 0, for sampling.

    Returns:
        B topologies, nodes numbered in the order of decoding: senders first, the Answerer last.

    Raises:
        ValueError: If the temperature or the seeds do not fit, or the scores are not finite.
    """
    max_nodes = scores.masks.bits.shape[1] + 1
    uniforms = _uniforms(mode, temperature, seeds, len(context), max_nodes).to(context.device)
    growth = Growth.start(context)
    found: dict[int, Topology] = {}
    for step in range(max_nodes):
        draws = None if mode == "greedy" else uniforms[growth.row, step]  # (M, 2)
        role, senders = _next_nodes(scores, growth, temperature, draws)
        ends = role == scores.masks.answerer
        found.update(_complete(growth.select(ends), senders[ends], scores.masks.answerer, role_names))
        if len(found) == len(context):
            break
        growth = growth.select(~ends).with_node(role[~ends], senders[~ends], scores)
    return [found[row] for row in range(len(context))]


def _next_nodes(scores: KgatScores, growth: Growth, temperature: float, draws: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return (M,) the next node's role and its set of senders; without draws, the most likely ones."""
    placed = growth.placed
    state = scores.state_of(growth.context, growth.nodes, placed, growth.open)
    temperature = 1.0 if draws is None else temperature
    role_logprobs = scores.role_logprobs(state, placed, growth.open, temperature)
    role = _choose(role_logprobs, None if draws is None else draws[:, 0])
    edge_logits = scores.edge_logits(state, growth.context, growth.nodes, growth.open, role)
    set_logprobs = scores.sender_logprobs(edge_logits, placed, growth.open, role, temperature)
    return role, _choose(set_logprobs, None if draws is None else draws[:, 1])


def _choose(logprobs: Tensor, uniforms: Tensor | None) -> Tensor:
    return logprobs.argmax(dim=-1) if uniforms is None else draw_by_uniforms(logprobs, uniforms)


def _complete(
    growth: Growth, senders: Tensor, answerer: int, role_names: tuple[str, ...]
) -> Iterator[tuple[int, Topology]]:
    """Yield (context row, topology) of those that an Answerer with (M,) senders completes."""
    lists = (growth.row.tolist(), growth.roles.tolist(), growth.senders.tolist(), senders.tolist())
    for row, roles, sets, last in zip(*lists, strict=True):
        yield row, topology_of(role_names, (*roles, answerer), (*sets, last))


def _uniforms(mode: DecodeMode, temperature: float, seeds: Sequence[int] | None, count: int, max_nodes: int) -> Tensor:
    """Return (B, N_max, 2) float64 in [0, 1), each row by its own seed; (0, N_max, 2) for greedy decoding."""
    if mode not in get_args(DecodeMode):
        raise ValueError(f"mode={mode!r} is unknown; expected one of {list(get_args(DecodeMode))}")
    if mode == "greedy":
        return torch.zeros(0, max_nodes, 2, dtype=torch.float64)
    if not 0.0 < temperature < math.inf:
        raise ValueError(f"temperature={temperature} must be a positive number; mode='greedy' takes the likeliest")
    if seeds is None or len(seeds) != count:
        found = "none" if seeds is None else len(seeds)
        raise ValueError(f"sampling {count} topologies needs one seed each, found {found}")
    draws = [derive_rng(int(seed), Purpose.SAMPLING).random((max_nodes, 2)) for seed in seeds]
    return torch.from_numpy(np.stack(draws)) if draws else torch.zeros(0, max_nodes, 2, dtype=torch.float64)
