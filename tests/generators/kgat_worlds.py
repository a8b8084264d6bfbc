"""Small generators, contexts and an independent enumeration of decode sequences, for the tests of K-GAT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import networkx as nx
import numpy as np
import torch

from provgym.envs.roles import ANSWERER, DEFAULT_ROLES
from provgym.envs.topology import Topology
from provgym.envs.topology_rules import TopologyRules
from provgym.generators.kgat_context import ContextBatch, EmbeddedContext
from provgym.generators.kgat_decode import Growth
from provgym.generators.kgat_model import KgatModel, KgatSettings

SIZE = 8
TWO, THREE, FOUR = ("Reasoner", ANSWERER), ("Planner", "Reasoner", ANSWERER), DEFAULT_ROLES.names

Node = tuple[str, frozenset[int]]
"""One step of a sequence: a role, and which earlier steps it hears."""


def rules_of(roles: Sequence[str], max_nodes: int, max_in_degree: int | None) -> TopologyRules:
    return TopologyRules(tuple(roles), max_nodes, max_in_degree)


def model_of(rules: TopologyRules, seed: int = 0, sharpness: float = 3.0) -> KgatModel:
    """A generator with random weights, sharper than fresh ones, so that probabilities differ widely."""
    model = KgatModel(
        KgatSettings(
            role_names=rules.role_names,
            max_nodes=rules.max_nodes,
            max_in_degree=rules.max_in_degree,
            encoder_size=SIZE,
            hidden_size=16,
            heads=2,
        ),
        seed=seed,
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(sharpness)
    return model


def embedded(seed: int, num_units: int) -> EmbeddedContext:
    rng = np.random.default_rng([seed, num_units])
    rows = rng.normal(size=(num_units + 1, SIZE))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return EmbeddedContext(rows[0], rows[1:], tuple(f"s{number}" for number in rng.integers(3, size=num_units)))


def contexts_of(count: int, num_units: int = 3, seed: int = 0) -> ContextBatch:
    return ContextBatch.of([embedded(seed + row, num_units) for row in range(count)])


def sequences_of(topology: Topology) -> set[tuple[Node, ...]]:
    """All distinct sequences that decode to a topology, from networkx's topological sorts."""
    found = set()
    for order in nx.all_topological_sorts(topology.to_networkx()):
        place = {node: number for number, node in enumerate(order)}
        found.add(
            tuple(
                (topology.roles[node], frozenset(place[sender] for sender in topology.predecessors(node)))
                for node in order
            )
        )
    return found


def all_sequences(rules: TopologyRules) -> Iterator[tuple[Node, ...]]:
    """All sequences of valid topologies, by trying every role and every set of senders and asking the rules."""
    prefixes: list[tuple[Node, ...]] = [()]
    for size in range(rules.max_nodes):
        sets = [frozenset(chosen) for count in range(size + 1) for chosen in combinations(range(size), count)]
        prefixes = [(*prefix, (role, heard)) for prefix in prefixes for role in rules.role_names for heard in sets]
        yield from (prefix for prefix in prefixes if rules.is_valid(graph_of(prefix)))
        prefixes = [prefix for prefix in prefixes if prefix[-1][0] != ANSWERER]


def graph_of(sequence: Sequence[Node]) -> Topology:
    edges = tuple((sender, node) for node, (_, heard) in enumerate(sequence) for sender in heard)
    return Topology(tuple(role for role, _ in sequence), edges)


def sequence_log_prob(
    model: KgatModel, context: torch.Tensor, sequence: Sequence[Node], temperature: float = 1.0
) -> float:
    """The chain rule along one sequence, by the scores that decoding looks at.

    Args:
        context: (1, H) c_K.
    """
    scores, growth, total = model.scores, Growth.start(context), 0.0
    for name, heard in sequence:
        role = torch.tensor([model.settings.role_names.index(name)])
        senders = torch.tensor([sum(1 << sender for sender in heard)])
        placed = growth.placed
        state = scores.state_of(growth.context, growth.nodes, placed, growth.open)
        total += float(scores.role_logprobs(state, placed, growth.open, temperature)[0, role])
        logits = scores.edge_logits(state, growth.context, growth.nodes, growth.open, role)
        total += float(scores.sender_logprobs(logits, placed, growth.open, role, temperature)[0, senders])
        if name != ANSWERER:
            growth = growth.with_node(role, senders, scores)
    return total
