"""Beam search over partial graphs.

Prefixes that are the same graph have the same future, whatever order they were built in, so they are merged and their
probabilities added: a place of the beam is never spent on a second order of a graph that is there already.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from provgym.envs.topology import Topology
from provgym.generators.kgat_decode import Growth, topology_of
from provgym.generators.kgat_scores import KgatScores

MERGE_POOL = 4
"""Prefixes kept for each place of the beam until equal ones are merged."""

Found = dict[str, tuple[float, Topology]]


@torch.no_grad()
def search_beam(scores: KgatScores, context: Tensor, role_names: tuple[str, ...], width: int) -> list[list[Topology]]:
    """Return up to ``width`` complete topologies for each context, those first that the search found likelier.

    The best ``width`` prefixes of every size are grown; complete topologies take no place from them. With a beam as
    wide as there are prefixes nothing is lost, and every valid topology is found.

    Args:
        scores: The generator's networks.
        context: (B, H) pooled contexts c_K.
        role_names: R names, by role number.
        width: At least 1.

    Raises:
        ValueError: If the width is below 1.
    """
    if width < 1:
        raise ValueError(f"width={width} must be >= 1")
    found: list[Found] = [{} for _ in range(len(context))]
    growth, total = Growth.start(context), context.new_zeros(len(context))  # (M,) log-probability of each prefix
    for _ in range(scores.masks.bits.shape[1] + 1):
        if not len(growth):
            break
        state = scores.state_of(growth.context, growth.nodes, growth.placed, growth.open)
        roles = total[:, None] + scores.role_logprobs(state, growth.placed, growth.open)  # (M, R)
        answers = roles[:, scores.masks.answerer].clone()
        roles[:, scores.masks.answerer] = -torch.inf
        _finish(scores, growth, state, answers, role_names, width, found)
        growth, total = _grow(scores, growth, state, roles, role_names, width)
    return [[topology for _, topology in _likeliest(row, width)] for row in found]


def _finish(
    scores: KgatScores,
    growth: Growth,
    state: Tensor,
    answers: Tensor,
    role_names: tuple[str, ...],
    width: int,
    found: list[Found],
) -> None:
    """Complete every prefix that may be, in its likeliest ways, and add what comes out to ``found``.

    Args:
        scores: The generator's networks.
        growth: M prefixes.
        state: (M, H).
        answers: (M,) log-probability of the prefix and then the Answerer; -inf where it may not come.
        role_names: R names.
        width: Of the beam.
        found: For each context row; added to.
    """
    may = torch.isfinite(answers)
    growth, state, answers = growth.select(may), state[may], answers[may]
    role = torch.full_like(growth.row, scores.masks.answerer)
    prefix, senders, total = _sender_choices(scores, growth, state, role, answers, MERGE_POOL * width)
    grown = growth.select(prefix)
    lists = (grown.row.tolist(), grown.roles.tolist(), grown.senders.tolist(), senders.tolist(), total.tolist())
    for row, roles, sets, last, logprob in zip(*lists, strict=True):
        topology = topology_of(role_names, (*roles, scores.masks.answerer), (*sets, last))
        _merge(found[row], topology, logprob)


def _grow(
    scores: KgatScores, growth: Growth, state: Tensor, roles: Tensor, role_names: tuple[str, ...], width: int
) -> tuple[Growth, Tensor]:
    """Return the best prefixes with one node more, equal graphs merged, and their log-probabilities."""
    prefix, role = _best(growth.row, roles, width)
    growth, state, total = growth.select(prefix), state[prefix], roles[prefix, role]
    place, senders, total = _sender_choices(scores, growth, state, role, total, MERGE_POOL * width)
    growth, role = growth.select(place), role[place]
    merged: dict[int, Found] = {}
    number: dict[tuple[int, str], int] = {}
    lists = (growth.row.tolist(), growth.roles.tolist(), role.tolist(), growth.senders.tolist(), senders.tolist())
    for candidate, (row, before, new, sets, last) in enumerate(zip(*lists, strict=True)):
        graph = topology_of(role_names, (*before, new), (*sets, last))
        key = _merge(merged.setdefault(row, {}), graph, float(total[candidate]))
        number.setdefault((row, key), candidate)
    kept = [
        (number[row, graph.key], logprob)
        for row, graphs in merged.items()
        for logprob, graph in _likeliest(graphs, width)
    ]
    index = torch.tensor([candidate for candidate, _ in kept], dtype=torch.long, device=growth.row.device)
    grown = growth.select(index).with_node(role[index], senders[index], scores)
    return grown, torch.tensor([logprob for _, logprob in kept], device=total.device)


def _sender_choices(
    scores: KgatScores, growth: Growth, state: Tensor, role: Tensor, total: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best ``count`` choices of senders in each context row: prefix, set, log-probability."""
    logits = scores.edge_logits(state, growth.context, growth.nodes, growth.open, role)
    totals = total[:, None] + scores.sender_logprobs(logits, growth.placed, growth.open, role)  # (M, 2^t)
    prefix, senders = _best(growth.row, totals, count)
    return prefix, senders, totals[prefix, senders]


def _best(row: Tensor, totals: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return (n,) places along both axes of the ``count`` largest finite entries of every context row.

    Args:
        row: (M,) context row of each prefix.
        totals: (M, V) log-probabilities.
        count: Entries kept of each context row.
    """
    prefix, choice = torch.nonzero(torch.isfinite(totals), as_tuple=True)
    rows: NDArray[np.int64] = row[prefix].cpu().numpy()
    # Stable: of equal entries the one that stands first is kept, as argmax does.
    order = np.lexsort((-totals[prefix, choice].cpu().numpy(), rows))
    sorted_rows = rows[order]
    rank = np.arange(len(order)) - np.searchsorted(sorted_rows, sorted_rows)
    kept = torch.from_numpy(order[rank < count]).to(row.device)
    return prefix[kept], choice[kept]


def _merge(found: Found, topology: Topology, logprob: float) -> str:
    """Add a way to a graph; of equal graphs the first stays. Returns the graph's key."""
    key = topology.key
    before, kept = found.get(key, (-math.inf, topology))
    found[key] = (float(np.logaddexp(before, logprob)), kept)
    return key


def _likeliest(found: Found, width: int) -> list[tuple[float, Topology]]:
    return sorted(found.values(), key=lambda entry: -entry[0])[:width]
