"""What a topology is conditioned on: the query and its retrieved evidence, embedded, padded, and pooled to one vector.

The pooled vector c_K stands in the role choice and in the edge choice of the generator. Without evidence (none was
retrieved, or it was removed for the query-conditioned control) a learned null vector takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from provgym.envs.evidence_units import EvidenceContext
from provgym.generators.retriever import Encoder, encode_checked

FloatArray = NDArray[np.float32]

_CONTENT_GAIN = 0.1
_RELATION_GAIN = 6.0
_NEAREST_SHARPNESS = 30.0


@dataclass(frozen=True, slots=True)
class EmbeddedContext:
    """One query and its K units.

    Attributes:
        query: (d,) float32, length 1.
        units: (K, d) float32, rows of length 1; K may be 0.
        sources: K source ids, which say what echoes what.

    Raises:
        ValueError: If the shapes do not fit together, or an embedding is not finite.
    """

    query: FloatArray
    units: FloatArray
    sources: tuple[str, ...]

    def __post_init__(self) -> None:
        expected = (len(self.sources), *self.query.shape)
        if self.query.ndim != 1 or self.units.shape != expected:
            raise ValueError(
                f"units have the shape {self.units.shape}, expected {expected}: one row per source id, as long as "
                f"the query's {self.query.shape}"
            )
        if not (np.isfinite(self.query).all() and np.isfinite(self.units).all()):
            raise ValueError("an embedding holds NaN or infinity; look at the encoder's output for this text")


@dataclass(frozen=True, slots=True)
class ContextBatch:
    """B queries with at most K units each.

    Attributes:
        query: (B, d) float.
        units: (B, K, d) float; rows outside the mask are not looked at.
        mask: (B, K) bool; False is padding.
        echoes: (B, K) float in [0, 1]: share of the other units of the row that have the same source. None: sources
            are not known, which reads as none shared.

    Raises:
        ValueError: If the shapes do not fit together, or the mask is not bool.
    """

    query: Tensor
    units: Tensor
    mask: Tensor
    echoes: Tensor | None = None

    def __post_init__(self) -> None:
        rows, width = self.mask.shape
        size = self.query.shape[-1]
        shapes = {
            "query": (self.query.shape, (rows, size)),
            "units": (self.units.shape, (rows, width, size)),
            "echoes": ((rows, width) if self.echoes is None else self.echoes.shape, (rows, width)),
        }
        for name, (found, expected) in shapes.items():
            if tuple(found) != expected:
                raise ValueError(
                    f"{name} has the shape {tuple(found)}, expected {expected} beside mask {(rows, width)}"
                )
        if self.mask.dtype != torch.bool:
            raise ValueError(f"mask is {self.mask.dtype}, expected torch.bool (True where there is a unit)")

    def __len__(self) -> int:
        return len(self.query)

    @classmethod
    def of(cls, contexts: Sequence[EmbeddedContext]) -> ContextBatch:
        """Pad contexts to one batch.

        Raises:
            ValueError: If there is none, or their embeddings differ in length.
        """
        sizes = sorted({len(context.query) for context in contexts})
        if len(sizes) != 1:
            raise ValueError(f"a batch needs contexts of one embedding length, found {sizes}; use one encoder for all")
        rows, width = len(contexts), max(len(context.sources) for context in contexts)
        units = np.zeros((rows, width, sizes[0]), dtype=np.float32)
        mask = np.zeros((rows, width), dtype=np.bool_)
        echoes = np.zeros((rows, width), dtype=np.float32)
        for row, context in enumerate(contexts):
            count = len(context.sources)
            units[row, :count] = context.units
            mask[row, :count] = True
            echoes[row, :count] = echo_shares(context.sources)
        query = np.stack([context.query for context in contexts]).astype(np.float32)
        return cls(torch.from_numpy(query), torch.from_numpy(units), torch.from_numpy(mask), torch.from_numpy(echoes))

    def without_evidence(self) -> ContextBatch:
        """Return the batch with its queries only: the query-conditioned control."""
        return ContextBatch(self.query, self.units[:, :0], self.mask[:, :0], None)

    def select(self, rows: Sequence[int]) -> ContextBatch:
        """Return some rows, in the order given; a row may be asked for more than once."""
        index = torch.tensor(list(rows), dtype=torch.long, device=self.query.device)
        echoes = None if self.echoes is None else self.echoes[index]
        return ContextBatch(self.query[index], self.units[index], self.mask[index], echoes)

    def to(self, device: torch.device | str) -> ContextBatch:
        """Return the batch on a device."""
        echoes = None if self.echoes is None else self.echoes.to(device)
        return ContextBatch(self.query.to(device), self.units.to(device), self.mask.to(device), echoes)


def echo_shares(sources: Sequence[str]) -> FloatArray:
    """Return, for each unit, the share of the other units that have its source.

    Example:
        >>> echo_shares(["a", "b", "a"]).tolist()
        [0.5, 0.0, 0.5]
    """
    names, counts = np.unique(np.array(sources, dtype=np.str_), return_counts=True)
    of = dict(zip(names.tolist(), counts.tolist(), strict=True))
    others = max(len(sources) - 1, 1)
    return np.array([(of[source] - 1) / others for source in sources], dtype=np.float32)


def embed_contexts(
    questions: Sequence[str], evidence: Sequence[EvidenceContext], encoder: Encoder
) -> list[EmbeddedContext]:
    """Embed queries and their evidence; all texts go to the encoder in one call.

    Args:
        questions: B queries.
        evidence: What was retrieved for each of them; may be empty.
        encoder: Turns texts into unit rows.

    Raises:
        ValueError: If the numbers differ, or the encoder does not give one finite row of length 1 for each text.
    """
    if len(questions) != len(evidence):
        raise ValueError(f"{len(questions)} questions and {len(evidence)} evidence contexts; expected one for each")
    if not questions:
        return []
    texts = list(questions) + [unit.linearised() for context in evidence for unit in context.units]
    rows = encode_checked(encoder, texts)
    embedded, start = [], len(questions)
    for query, context in zip(rows, evidence, strict=False):
        end = start + len(context.units)
        embedded.append(EmbeddedContext(query, rows[start:end], tuple(unit.source_id for unit in context.units)))
        start = end
    return embedded


class EvidencePooling(nn.Module):
    """Pools a query and its units to c_K: multi-head attention by the query, and how far the units lie apart.

    Each unit is read by what it says (its vector beside the query's) and by how it relates to the rest: how similar it
    is to the query, to the units nearest the query and to the others on average, and how much it echoes others. A
    weighted mean alone can't tell two units that disagree from two that say something in between, so the variance of
    the units' features stands beside it. Every activation is bounded, so that finite weights give finite scores.

    Relations count for more than content from the start. A vector of hundreds of numbers tells every training question
    from every other one, so a generator that learns fast from content learns its questions by heart.

    Args:
        encoder_size: d.
        hidden_size: H, length of c_K.
        heads: Divides H.
    """

    def __init__(self, encoder_size: int, hidden_size: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.query = nn.Linear(encoder_size, hidden_size)
        self.unit = nn.Linear(encoder_size, hidden_size)
        self.feature = nn.Linear(3 * hidden_size + 4, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.evidence = nn.Linear(2 * hidden_size, hidden_size)
        self.no_evidence = nn.Parameter(torch.zeros(hidden_size))
        self.out = nn.Linear(2 * hidden_size, hidden_size)

    def forward(self, contexts: ContextBatch) -> Tensor:
        """Return (B, H), entries in [-1, 1].

        Raises:
            ValueError: If the embeddings have another length than the weights.
        """
        expected = self.query.in_features
        if contexts.query.shape[-1] != expected:
            raise ValueError(
                f"embeddings have {contexts.query.shape[-1]} numbers, this generator was made for {expected}; "
                "use the encoder that it was trained with"
            )
        query = torch.tanh(self.query(contexts.query * _CONTENT_GAIN))  # (B, H)
        features = self._features(query, contexts)  # (B, K, H)
        present = contexts.mask[:, :, None].to(features.dtype)  # (B, K, 1)
        count = present.sum(dim=1).clamp(min=1.0)  # (B, 1)
        mean = (features * present).sum(dim=1) / count  # (B, H)
        spread = ((features - mean[:, None]).square() * present).sum(dim=1) / count  # (B, H)
        attended = self._attend(query, features, contexts.mask)  # (B, H)
        found = self.evidence(torch.cat([attended, spread], dim=-1))
        has_evidence = contexts.mask.any(dim=1)[:, None]
        evidence = torch.tanh(torch.where(has_evidence, found, self.no_evidence))  # (B, H)
        return torch.tanh(self.out(torch.cat([query, evidence], dim=-1)))

    def _features(self, query: Tensor, contexts: ContextBatch) -> Tensor:
        """Return (B, K, H): what each unit says beside the query, and how it relates to the rest."""
        # Padding may hold anything; it must not reach a product, where NaN would survive the mask.
        rows = torch.where(contexts.mask[:, :, None], contexts.units, 0.0)  # (B, K, d)
        unit = torch.tanh(self.unit(rows * _CONTENT_GAIN))  # (B, K, H)
        beside = query[:, None].expand_as(unit)
        relations = unit_relations(rows, contexts) * _RELATION_GAIN
        return torch.tanh(self.feature(torch.cat([unit, beside, unit * beside, relations], dim=-1)))

    def _attend(self, query: Tensor, features: Tensor, mask: Tensor) -> Tensor:
        rows, width, size = features.shape
        split = (rows, width, self._heads, size // self._heads)
        keys = torch.tanh(self.key(features)).view(split)
        by_head = query.view(rows, 1, *split[2:])
        scores = (keys * by_head).sum(dim=-1) / math.sqrt(split[-1])  # (B, K, heads)
        # A finite number: a row without units must stay finite until its null vector replaces it.
        weights = scores.masked_fill(~mask[:, :, None], -1e30).softmax(dim=1)
        return (features.view(split) * weights[..., None]).sum(dim=1).reshape(rows, size)


def unit_relations(rows: Tensor, contexts: ContextBatch) -> Tensor:
    """Return how each unit relates to the query and to the other units; the work grows linearly with K.

    Args:
        rows: (B, K, d) the units, zero where there is none.
        contexts: Where they come from.

    Returns:
        (B, K, 4), each in [-1, 1]: cosine with the query; with the units nearest the query (their mean, weighted by
        softmax so that no tie has to be broken); mean cosine with the other units; echo share. Zero where there is no
        unit.
    """
    similarity = (rows * contexts.query[:, None]).sum(dim=-1)  # (B, K)
    sharp = (similarity * _NEAREST_SHARPNESS).masked_fill(~contexts.mask, -1e30).softmax(dim=1)
    nearest = (rows * sharp[..., None]).sum(dim=1, keepdim=True)  # (B, 1, d)
    others = rows.sum(dim=1, keepdim=True) - rows  # (B, K, d)
    count = (contexts.mask.sum(dim=1, keepdim=True) - 1).clamp(min=1)
    to_others = (rows * others).sum(dim=-1) / count
    shares = torch.zeros_like(similarity) if contexts.echoes is None else contexts.echoes
    echoes = torch.where(contexts.mask, shares, 0.0)
    return torch.stack([similarity, (rows * nearest).sum(dim=-1), to_others, echoes], dim=-1)
