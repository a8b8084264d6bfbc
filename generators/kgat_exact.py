"""Exact probabilities of graphs: the sum over all decode orders, for many (context, topology) pairs at once.

For every pair, ``alpha(S)`` is the probability of reaching the prefix graph on the down-set S by some order:
``alpha(S + v) = sum over v of alpha(S) P(v | S) P(senders(v) | S, v)``, from the empty set to the whole graph. Orders
that an automorphism maps to each other are one sequence, so the graph's probability is the last alpha divided by the
number of automorphisms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from provgym.envs.topology import Topology
from provgym.envs.topology_rules import TopologyRules
from provgym.generators.kgat_scores import KgatScores
from provgym.generators.topology_orders import IntArray, OrderPlan, order_plan


@dataclass(frozen=True, slots=True)
class PackedTopologies:
    """P topologies with the context row that each belongs to, ready to be scored; may be reused over training steps.

    S down-sets of all pairs by size (the empty ones first), T steps by the size of the set they lead to, W the largest
    number of nodes minus one; sets are integers, bit j is the j-th node of the pair's own topological order.

    Attributes:
        row: (P,) context row.
        roles: (P, W + 1) role numbers, 0 behind the last node.
        senders: (P, W + 1, W + 1) float; entry (p, i, j) is 1 if j sends to i.
        log_automorphisms: (P,) float.
        set_pair: (S,) the pair that a down-set belongs to.
        placed: (S,) the down-set.
        open: (S,) its nodes without a receiver in it.
        step_source: (T,) number of the down-set that a step starts from.
        step_role: (T,) role of the node it adds.
        step_senders: (T,) that node's set of senders.
        incoming: (S, W + 1) steps that lead to each down-set, T where there are fewer.
        set_bounds: (W + 3,) where the down-sets of each size begin.
        last: (P,) the pair's whole graph among the down-sets.
    """

    row: Tensor
    roles: Tensor
    senders: Tensor
    log_automorphisms: Tensor
    set_pair: Tensor
    placed: Tensor
    open: Tensor
    step_source: Tensor
    step_role: Tensor
    step_senders: Tensor
    incoming: Tensor
    set_bounds: tuple[int, ...]
    last: Tensor

    def __len__(self) -> int:
        return len(self.row)

    def to(self, device: torch.device | str) -> PackedTopologies:
        """Return the pack on a device."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **moved)


def pack_topologies(topologies: Sequence[Topology], rows: Sequence[int], rules: TopologyRules) -> PackedTopologies:
    """Prepare pairs of a topology and a context row.

    Args:
        topologies: P of them, in any numbering of their nodes.
        rows: (P,) context row of each.
        rules: The generator's constraints.

    Raises:
        TopologyError: If a topology is outside the generator's support; its probability would be 0.
        ValueError: If there is no topology, or not one row for each.
    """
    number = {name: place for place, name in enumerate(rules.role_names)}
    plans = _checked_plans(topologies, rows, rules)
    width = max(topology.num_nodes for topology in topologies)
    sets = [len(plan.placed) for plan in plans]
    first_set = np.concatenate([[0], np.cumsum(sets)[:-1]])
    placed = np.concatenate([plan.placed for plan in plans])
    sizes = np.bitwise_count(placed).astype(np.int64)
    by_size = np.argsort(sizes, kind="stable")
    place = np.empty_like(by_size)
    place[by_size] = np.arange(len(by_size))  # where each down-set went
    source, role, senders, incoming = _steps(plans, first_set, place, number, width)
    arrays = {
        "row": np.array(rows, dtype=np.int64),
        "roles": _padded([[number[role] for role in plan.roles] for plan in plans], width),
        "set_pair": np.repeat(np.arange(len(plans)), sets)[by_size],
        "placed": placed[by_size],
        "open": np.concatenate([plan.open for plan in plans])[by_size],
        "step_source": source,
        "step_role": role,
        "step_senders": senders,
        "incoming": incoming,
        "last": place[first_set + np.array(sets) - 1],
    }
    node_senders = _padded([plan.senders.tolist() for plan in plans], width)
    return PackedTopologies(
        senders=torch.from_numpy((node_senders[:, :, None] >> np.arange(width)) & 1).float(),
        log_automorphisms=torch.tensor([plan.log_automorphisms for plan in plans], dtype=torch.float32),
        set_bounds=tuple(np.searchsorted(sizes[by_size], np.arange(width + 2)).tolist()),
        **{name: torch.from_numpy(array) for name, array in arrays.items()},
    )


def _checked_plans(topologies: Sequence[Topology], rows: Sequence[int], rules: TopologyRules) -> list[OrderPlan]:
    if not topologies or len(topologies) != len(rows):
        raise ValueError(
            f"{len(topologies)} topologies and {len(rows)} rows; expected at least one, and a row for each"
        )
    for topology in topologies:
        rules.check(topology)
    return [order_plan(topology) for topology in topologies]


def graph_log_probs(scores: KgatScores, context: Tensor, packed: PackedTopologies) -> Tensor:
    """Return the log-probability of each pair's graph, with gradients.

    Args:
        scores: The generator's networks.
        context: (B, H) pooled contexts c_K.
        packed: P pairs, with the same rules as the networks.

    Returns:
        (P,) float, each at most 0 up to rounding.
    """
    nodes = _node_vectors(scores, context[packed.row], packed)  # (P, W, H)
    steps = _step_log_probs(scores, context, nodes, packed)  # (T,)
    padded = torch.cat([steps, steps.new_full((1,), -torch.inf)])
    alphas = [steps.new_zeros(packed.set_bounds[1])]  # the empty sets
    source = torch.cat([packed.step_source, packed.step_source.new_zeros(1)])
    for start, end in zip(packed.set_bounds[1:-1], packed.set_bounds[2:], strict=True):
        reached = torch.cat(alphas)
        incoming = packed.incoming[start:end]
        alphas.append(torch.logsumexp(reached[source[incoming]] + padded[incoming], dim=1))
    return torch.cat(alphas)[packed.last] - packed.log_automorphisms


def _node_vectors(scores: KgatScores, context: Tensor, packed: PackedTopologies) -> Tensor:
    """Return (P, W, H): the vector of every node but the last, which is the Answerer and decides nothing more.

    A node's vector depends on the nodes that reach it alone, so one pass serves all orders.
    """
    width = packed.roles.shape[1] - 1
    vectors: list[Tensor] = []
    for node in range(width):
        if vectors:
            weights = packed.senders[:, None, node, :node].to(context.dtype)  # (P, 1, node)
            sender_sum = torch.bmm(weights, torch.stack(vectors, dim=1))[:, 0]
        else:
            sender_sum = torch.zeros_like(context)
        vectors.append(scores.place(context, packed.roles[:, node], sender_sum))
    return torch.stack(vectors, dim=1) if vectors else context.new_zeros(len(context), 0, context.shape[1])


def _step_log_probs(scores: KgatScores, context: Tensor, nodes: Tensor, packed: PackedTopologies) -> Tensor:
    """Return (T,) log P(role | set) + log P(senders | set, role) of each step.

    The choices are scored once per set that a step starts from; a complete graph starts none.
    """
    is_source = torch.zeros(len(packed.placed), dtype=torch.bool, device=packed.placed.device)
    is_source[packed.step_source] = True
    rank = is_source.long().cumsum(dim=0) - 1
    source = rank[packed.step_source]  # (T,) among the sets that are scored
    pair, placed, open_ = packed.set_pair[is_source], packed.placed[is_source], packed.open[is_source]
    c_k = context[packed.row[pair]]
    state = scores.state_of(c_k, nodes[pair], placed, open_)
    role_logprobs = scores.role_logprobs(state, placed, open_)[source, packed.step_role]
    placed, open_, role = placed[source], open_[source], packed.step_role
    edge_logits = scores.edge_logits(state[source], c_k[source], nodes[pair[source]], open_, role)
    senders = scores.sender_logprobs(edge_logits, placed, open_, role)
    return role_logprobs + senders.gather(1, packed.step_senders[:, None])[:, 0]


def _steps(
    plans: Sequence[OrderPlan], first_set: IntArray, place: IntArray, number: dict[str, int], width: int
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return source, role and senders of all pairs' steps, and the table of steps that lead to each down-set."""
    counts = [len(plan.node) for plan in plans]
    shift = np.repeat(first_set, counts)
    source = place[np.concatenate([plan.source for plan in plans]) + shift]
    target = place[np.concatenate([plan.target for plan in plans]) + shift]
    node = np.concatenate([plan.node for plan in plans])
    role = np.concatenate([np.array([number[name] for name in plan.roles])[plan.node] for plan in plans])
    senders = np.concatenate([plan.senders[plan.node] for plan in plans])
    # A set is left by one node at most once, so the node tells the steps that lead to it apart.
    incoming = np.full((len(place), width), len(source), dtype=np.int64)
    incoming[target, node] = np.arange(len(source))
    return source, role, senders, incoming


def _padded(lists: Sequence[Sequence[int]], width: int) -> IntArray:
    table = np.zeros((len(lists), width), dtype=np.int64)
    for row, values in enumerate(lists):
        table[row, : len(values)] = values
    return table
