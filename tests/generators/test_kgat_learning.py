"""What the generator learns from few tasks holds for questions that it has not seen."""

from __future__ import annotations

import numpy as np
import torch

from provgym.envs.topology import Topology
from provgym.generators.kgat_context import ContextBatch, EmbeddedContext
from provgym.generators.kgat_model import KgatModel, KgatSettings
from provgym.generators.topology_templates import templates

SIZE, UNITS = 64, 6


def context(kind: str, rng: np.random.Generator) -> EmbeddedContext:
    """A question about a topic of its own; its evidence agrees, disagrees, or is mostly about something else."""
    topic, stance = rng.normal(size=(2, SIZE))
    signs = np.array([1, 1, 1, 1, -1, -1]) if kind == "conflict" else np.ones(UNITS)
    about = topic + 0.5 * signs[:, None] * stance + 0.3 * rng.normal(size=(UNITS, SIZE))
    other = rng.normal(size=(UNITS, SIZE))
    units = np.where(np.arange(UNITS)[:, None] < 2, about, other) if kind == "irrelevance" else about
    rows = np.vstack([topic, rng.permutation(units)])
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return EmbeddedContext(rows[0], rows[1:], tuple(f"s{number}" for number in range(UNITS)))


def test_kinds_of_evidence_are_told_apart_on_held_out_questions() -> None:
    """Every topic and stance is new in the held-out tasks: only how units relate to each other can tell the kinds."""
    model = KgatModel(KgatSettings(encoder_size=SIZE, hidden_size=32, max_nodes=4), seed=0)
    hand_made = templates(model.rules)
    best: dict[str, Topology] = {
        "agreement": hand_made["single"],
        "conflict": hand_made["star"],
        "irrelevance": hand_made["with_verifier"],
    }
    rng = np.random.default_rng(0)
    train, held_out = (
        (ContextBatch.of([context(kind, rng) for kind in best for _ in range(count)]), count) for count in (40, 20)
    )
    targets = [graph for graph in best.values() for _ in range(train[1])]
    packed = model.pack(targets, num_contexts=len(targets))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(120):
        optimizer.zero_grad()
        (-model.log_prob(train[0], packed).mean()).backward()
        optimizer.step()
    expected = [graph.key for graph in best.values() for _ in range(held_out[1])]
    chosen = [graph.key for graph in model.decode(held_out[0])]
    assert np.mean([a == b for a, b in zip(chosen, expected, strict=True)]) >= 0.85
    # Without evidence there is nothing to go by: one team for all kinds would be right in a third of the cases.
    control = [graph.key for graph in model.decode(held_out[0].without_evidence())]
    assert np.mean([a == b for a, b in zip(control, expected, strict=True)]) <= 0.6
