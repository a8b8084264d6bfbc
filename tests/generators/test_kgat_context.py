"""The pooled context: padding and order say nothing, evidence and its sources do, and its absence is a state too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.generators.kgat_worlds import SIZE, contexts_of, embedded

from provgym.envs.evidence_units import EvidenceContext, EvidenceUnit, Span
from provgym.generators.kgat_context import (
    ContextBatch,
    EmbeddedContext,
    EvidencePooling,
    echo_shares,
    embed_contexts,
    unit_relations,
)


def pooling() -> EvidencePooling:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return EvidencePooling(SIZE, 16, 4).eval()


def pool(*contexts: EmbeddedContext) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = pooling()(ContextBatch.of(contexts))
    return found


def test_a_context_reads_the_same_alone_and_padded() -> None:
    """Fault kind "padding side"."""
    short, long = embedded(1, 2), embedded(2, 7)
    together = pool(short, long, embedded(3, 0))
    torch.testing.assert_close(together[:1], pool(short), atol=1e-6, rtol=0)
    torch.testing.assert_close(together[1:2], pool(long), atol=1e-6, rtol=0)
    torch.testing.assert_close(together[2:], pool(embedded(3, 0)), atol=1e-6, rtol=0)


def test_padding_may_hold_anything() -> None:
    batch = ContextBatch.of([embedded(1, 2), embedded(2, 4)])
    assert batch.echoes is not None
    units, echoes = batch.units.clone(), batch.echoes.clone()
    units[0, 2:] = torch.nan
    echoes[0, 2:] = torch.inf
    with torch.no_grad():
        expected, found = pooling()(batch), pooling()(ContextBatch(batch.query, units, batch.mask, echoes))
    assert torch.equal(expected, found)


def test_the_order_of_units_says_nothing() -> None:
    context = embedded(1, 5)
    order = [3, 0, 4, 1, 2]
    other = EmbeddedContext(context.query, context.units[order], tuple(context.sources[i] for i in order))
    torch.testing.assert_close(pool(context), pool(other), atol=1e-6, rtol=0)


def test_evidence_and_its_sources_make_a_difference() -> None:
    context = embedded(1, 3)
    apart = EmbeddedContext(context.query, context.units, ("a", "b", "c"))
    echoes = EmbeddedContext(context.query, context.units, ("a", "a", "a"))
    others = EmbeddedContext(context.query, -context.units, ("a", "b", "c"))
    assert (pool(apart) - pool(echoes)).abs().max() > 1e-3
    assert (pool(apart) - pool(others)).abs().max() > 1e-3


def test_disagreement_is_not_the_mean_of_its_sides() -> None:
    """Two units that cancel out read differently from two that both stand in the middle."""
    query = embedded(0, 0).query
    side = embedded(1, 1).units[0]
    middle = np.zeros_like(side)
    conflict = EmbeddedContext(query, np.stack([side, -side]), ("a", "b"))
    assert (pool(conflict) - pool(EmbeddedContext(query, np.stack([middle, middle]), ("a", "b")))).abs().max() > 1e-3


def test_without_evidence_every_evidence_reads_the_same() -> None:
    """The query-conditioned control: nothing of the evidence is left in c_K, not even that there was some."""
    query = embedded(0, 0).query
    batch = ContextBatch.of(
        [
            EmbeddedContext(query, embedded(seed, count).units, ("s",) * count)
            for seed, count in ((1, 4), (2, 1), (3, 0))
        ]
    )
    with torch.no_grad():
        control = pooling()(batch.without_evidence())
    torch.testing.assert_close(control, pool(embedded(0, 0)).expand(3, -1), atol=1e-6, rtol=0)
    assert (pooling()(batch)[0] - control[0]).abs().max() > 1e-3


def test_relations_by_hand() -> None:
    """Two units along the query from one source, one across it from another; a padded row beside."""
    along, across = [1.0, 0.0], [0.0, 1.0]
    query = np.array(along, dtype=np.float32)
    context = EmbeddedContext(query, np.array([along, along, across], dtype=np.float32), ("a", "a", "b"))
    lone = EmbeddedContext(query, np.array([across], dtype=np.float32), ("b",))
    batch = ContextBatch.of([context, lone])
    found = unit_relations(batch.units, batch)
    expected = [
        [[1.0, 1.0, 0.5, 0.5], [1.0, 1.0, 0.5, 0.5], [0.0, 0.0, 0.0, 0.0]],
        [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]],
    ]
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-6, rtol=0)


def test_no_evidence_is_a_learned_vector() -> None:
    layer = pooling()
    layer(ContextBatch.of([embedded(1, 0)])).sum().backward()
    assert layer.no_evidence.grad is not None
    assert layer.no_evidence.grad.abs().max() > 0
    layer.zero_grad()
    layer(contexts_of(2)).sum().backward()
    assert layer.no_evidence.grad is None or layer.no_evidence.grad.abs().max() == 0
    for parameter in layer.parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all()


def test_ten_thousand_units() -> None:
    found = pool(embedded(1, 10_000))
    assert found.shape == (1, 16)
    assert torch.isfinite(found).all()


def test_echo_shares_by_hand() -> None:
    assert echo_shares(()).tolist() == []
    assert echo_shares(("a",)).tolist() == [0.0]
    assert echo_shares(("a", "a", "b", "a")).tolist() == pytest.approx([2 / 3, 2 / 3, 0.0, 2 / 3])


def test_unknown_sources_read_as_none_shared() -> None:
    batch = ContextBatch.of([EmbeddedContext(embedded(1, 3).query, embedded(1, 3).units, ("a", "b", "c"))])
    with torch.no_grad():
        assert torch.equal(pooling()(batch), pooling()(ContextBatch(batch.query, batch.units, batch.mask)))


def test_rows_can_be_selected() -> None:
    batch = contexts_of(4)
    chosen = batch.select([2, 0, 2])
    assert len(chosen) == 3
    assert torch.equal(chosen.query, batch.query[[2, 0, 2]])
    assert torch.equal(chosen.units, batch.units[[2, 0, 2]])
    assert ContextBatch(batch.query, batch.units, batch.mask).select([1]).echoes is None


class CountingEncoder:
    """Unit rows that depend on the text; counts its calls."""

    def __init__(self, missing_rows: int = 0) -> None:
        self.calls: list[list[str]] = []
        self._missing_rows = missing_rows

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls.append(list(texts))
        rows = np.array([[len(text), sum(map(ord, text)) % 97, 1.0] for text in texts], dtype=np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows[: len(rows) - self._missing_rows]


def unit(number: int, source: str) -> EvidenceUnit:
    return EvidenceUnit(f"u{number}", "zinc", "raises", "yield", Span("d", 0, 4, "zinc"), source)


def test_all_texts_are_embedded_in_one_call() -> None:
    encoder = CountingEncoder()
    units = (unit(1, "a"), unit(2, "a"), unit(3, "b"))
    evidence = [EvidenceContext(units, (0.9, 0.8, 0.7)), EvidenceContext((), ())]
    first, second = embed_contexts(["Does zinc raise yield?", "Why?"], evidence, encoder)
    assert len(encoder.calls) == 1
    assert encoder.calls[0] == ["Does zinc raise yield?", "Why?", *(one.linearised() for one in units)]
    assert first.sources == ("a", "a", "b")
    assert first.units.shape == (3, 3)
    assert second.units.shape == (0, 3)
    np.testing.assert_array_equal(second.query, CountingEncoder().encode(["Why?"])[0])
    assert embed_contexts([], [], encoder) == []


def test_what_does_not_fit_is_refused() -> None:
    none = EvidenceContext((), ())
    with pytest.raises(ValueError, match="2 questions and 1 evidence contexts"):
        embed_contexts(["a", "b"], [none], CountingEncoder())
    with pytest.raises(ValueError, match="CountingEncoder"):
        embed_contexts(["a", "b"], [none, none], CountingEncoder(missing_rows=1))
    with pytest.raises(ValueError, match="one embedding length, found \\[\\]"):
        ContextBatch.of([])
    other = EmbeddedContext(np.ones(3, dtype=np.float32), np.zeros((0, 3), dtype=np.float32), ())
    with pytest.raises(ValueError, match=r"one embedding length, found \[3, 8\]"):
        ContextBatch.of([embedded(1, 1), other])
    with pytest.raises(ValueError, match="embeddings have 3 numbers, this generator was made for 8"):
        pooling()(ContextBatch.of([other]))
    with pytest.raises(ValueError, match="NaN or infinity"):
        EmbeddedContext(np.full(3, np.nan, dtype=np.float32), np.zeros((0, 3), dtype=np.float32), ())
    with pytest.raises(ValueError, match="one row per source id"):
        EmbeddedContext(np.ones(3, dtype=np.float32), np.zeros((2, 3), dtype=np.float32), ("a",))
    batch = contexts_of(2)
    with pytest.raises(ValueError, match="mask is torch.float32"):
        ContextBatch(batch.query, batch.units, batch.mask.float())
    with pytest.raises(ValueError, match=r"units has the shape \(1, 3, 8\), expected \(2, 3, 8\)"):
        ContextBatch(batch.query, batch.units[:1], batch.mask)
