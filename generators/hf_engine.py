"""The retained-cache engine: any Hugging Face causal LM, many rows, no token ever computed twice.

Each row keeps its keys and values across turns, rows that open with the same ids share one prefill, and a
pass touches only the rows that have something to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from provgym.generators.engine import LegalTokens, Sampled, Sampling
from provgym.generators.row_cache import RowCache


@dataclass(slots=True)
class _Row:
    """State of one live row."""

    sampling: Sampling
    uniforms: np.random.Generator
    length: int = 0  # tokens whose keys are stored
    pending: list[int] = field(default_factory=list)  # ids to feed next
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    max_new_tokens: int = 0
    end_ids: frozenset[int] = frozenset()
    wants_action: bool = False
    legal: LegalTokens | None = None  # of the next action


class HFEngine:
    """Samples actions from a Hugging Face causal LM with retained keys and values.

    Args:
        model: A causal LM, with or without a PEFT adapter; its training mode and weights are left alone.
        max_rows: Rows that can be live at once.
        max_length: Longest sequence of a row; at most the model's own limit.
        prefill_share: A prefill pass waits until this share of the live rows has new text to read (or none
            samples).

    Raises:
        ValueError: If ``max_rows`` < 1 or the model's limit is shorter than ``max_length``.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_rows: int = 64,
        max_length: int | None = None,
        prefill_share: float = 0.5,
    ) -> None:
        if max_rows < 1:
            raise ValueError(f"max_rows={max_rows} must be >= 1")
        config = model.config.get_text_config()
        limit = int(getattr(config, "max_position_embeddings", 0) or 2**31)
        if max_length is not None and not 1 <= max_length <= limit:
            raise ValueError(f"max_length={max_length} must lie in [1, {limit}], the model's own limit")
        self._model = model
        self._max_rows, self._max_length = max_rows, max_length or limit
        self._prefill_share = prefill_share
        self._decoder, self._head = _decoder_and_head(model)
        weight = _embedding_weight(self._decoder)
        self._device = weight.device
        self._last_position = limit - 1
        self._cache = RowCache(config, max_rows, self._device, weight.dtype)
        self._rows: dict[int, _Row] = {}
        self.forward_tokens = 0
        self.forward_passes = 0

    @property
    def max_rows(self) -> int:
        """Rows that can be live at once."""
        return self._max_rows

    @property
    def max_length(self) -> int:
        """Longest sequence a row may reach, in tokens."""
        return self._max_length

    def open_row(self, row: int, seed: int, sampling: Sampling) -> None:
        """Begin a new sequence in ``row``."""
        if not 0 <= row < self._max_rows or row in self._rows:
            raise ValueError(f"row {row} must be free and lie in [0, {self._max_rows})")
        self._rows[row] = _Row(sampling, np.random.default_rng(seed))

    def close_row(self, row: int) -> None:
        """Forget the row."""
        del self._rows[row]

    def submit(self, row: int, ids: Sequence[int], max_new_tokens: int, end_ids: frozenset[int]) -> None:
        """Append world ids to the row and ask for one action."""
        state = self._rows[row]
        if state.wants_action or max_new_tokens < 1 or not (ids or state.pending):
            raise ValueError(f"row {row} must be idle, with something to read and max_new_tokens >= 1")
        state.pending.extend(ids)
        state.ids, state.logprobs = [], []
        state.max_new_tokens, state.end_ids = max_new_tokens, end_ids
        state.wants_action = True

    def restrict(self, row: int, legal: LegalTokens) -> None:
        """Sample the row's next action from legal tokens only; its log-probabilities are of that distribution."""
        self._rows[row].legal = legal

    @torch.inference_mode()
    def poll(self) -> list[Sampled]:
        """Run one forward pass over the rows that need it; return the actions it completed."""
        asking = [row for row, state in self._rows.items() if state.wants_action]
        if not asking:
            return []
        reading = [row for row in asking if not self._rows[row].ids]
        sampling = [row for row in asking if self._rows[row].ids]
        if reading and (not sampling or len(reading) >= self._prefill_share * len(asking)):
            logits = self._read(reading)
        else:
            reading, logits = sampling, self._forward(sampling, [self._rows[row].pending for row in sampling])
        self._sample(reading, logits)
        done = [row for row in reading if self._is_complete(self._rows[row])]
        return [self._finish(row) for row in done]

    def _read(self, rows: list[int]) -> Tensor:
        """Prefill rows with new text; rows that open with the same ids are computed once."""
        leaders: dict[tuple[int, ...], int] = {}
        followers: dict[int, list[int]] = {}
        unique: list[int] = []
        place: list[int] = []
        for row in rows:
            state = self._rows[row]
            key = tuple(state.pending)
            if state.length == 0 and key in leaders:
                followers.setdefault(leaders[key], []).append(row)
                place.append(unique.index(leaders[key]))
                continue
            if state.length == 0:
                leaders[key] = row
            place.append(len(unique))
            unique.append(row)
        logits = self._forward(unique, [self._rows[row].pending for row in unique])  # (u, V)
        for leader, others in followers.items():
            length = self._rows[leader].length
            self._cache.copy_row(leader, others, length)
            for row in others:
                self._rows[row].length, self._rows[row].pending = length, []
        return logits[place] if followers else logits

    def _forward(self, rows: list[int], feeds: list[list[int]]) -> Tensor:
        """Feed each row its ids; return the logits after each row's last one, (n, V) float32."""
        order = sorted(range(len(rows)), key=lambda i: rows[i])
        rows_sorted = [rows[i] for i in order]
        feeds_sorted = [feeds[i] for i in order]
        counts = torch.tensor([len(feed) for feed in feeds_sorted])
        width = int(counts.max())
        ids = torch.tensor([feed + [0] * (width - len(feed)) for feed in feeds_sorted])  # (n, q)
        lengths = torch.tensor([self._rows[row].length for row in rows_sorted])
        positions = (lengths[:, None] + torch.arange(width)).to(self._device)  # (n, q)
        every = len(rows) == self._max_rows
        self._cache.select(None if every else torch.tensor(rows_sorted, device=self._device), positions)
        keys = torch.arange(int(positions.max()) + 1, device=self._device)
        mask = (keys <= positions[:, :, None])[:, None]  # (n, 1, q, width)
        hidden = self._decoder(
            input_ids=ids.to(self._device),
            attention_mask=mask,
            position_ids=positions.clamp(max=self._last_position),  # padding may reach over the model's limit
            cache=self._cache,
            use_cache=True,
        ).last_hidden_state  # (n, q, d)
        last = hidden[torch.arange(len(rows)), (counts - 1).to(self._device)]  # (n, d)
        logits: Tensor = self._head(last).float()  # (n, V)
        for row, feed in zip(rows_sorted, feeds_sorted, strict=True):
            self._rows[row].length += len(feed)
            self._rows[row].pending = []
        self.forward_tokens += int(counts.sum())
        self.forward_passes += 1
        back = torch.empty(len(rows), dtype=torch.long)
        back[order] = torch.arange(len(rows))
        return logits[back]

    def _sample(self, rows: list[int], logits: Tensor) -> None:
        """Choose one token for each row from its own stream of uniform numbers."""
        states = [self._rows[row] for row in rows]
        logits = _mask_illegal(logits, states)
        temperature = torch.tensor([s.sampling.temperature or 1.0 for s in states], device=logits.device)
        logprobs = torch.log_softmax(logits / temperature[:, None], dim=-1)  # (n, V)
        chosen = logits.argmax(dim=-1)
        if not all(s.sampling.is_greedy for s in states):
            uniform = torch.tensor([0.0 if s.sampling.is_greedy else s.uniforms.random() for s in states])
            cumulative = logprobs.double().exp().cumsum(dim=-1)
            target = uniform.to(logits.device, torch.float64)[:, None] * cumulative[:, -1:]
            drawn = torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=logits.shape[1] - 1)
            greedy = torch.tensor([s.sampling.is_greedy for s in states], device=logits.device)
            chosen = torch.where(greedy, chosen, drawn)
        picked = logprobs.gather(1, chosen[:, None])[:, 0].tolist()
        for state, token, logprob in zip(states, chosen.tolist(), picked, strict=True):
            state.ids.append(token)
            state.logprobs.append(logprob)
            state.pending = [token]

    def _is_complete(self, state: _Row) -> bool:
        return state.ids[-1] in state.end_ids or len(state.ids) >= state.max_new_tokens

    def _finish(self, row: int) -> Sampled:
        state = self._rows[row]
        state.wants_action, state.legal = False, None
        return Sampled(row, tuple(state.ids), tuple(state.logprobs), state.ids[-1] in state.end_ids)


def _mask_illegal(logits: Tensor, states: list[_Row]) -> Tensor:
    """Return (n, V) logits with -inf at illegal tokens of restricted rows; without such rows, the very same."""
    restricted = [(i, s.legal) for i, s in enumerate(states) if s.legal is not None]
    if not restricted:
        return logits
    masked = logits.clone()
    for i, legal in restricted:
        allowed = torch.tensor(list(legal(tuple(states[i].ids))), dtype=torch.long, device=logits.device)
        if allowed.numel() == 0:
            raise ValueError(f"no token is legal after {states[i].ids}; a constraint must leave at least one")
        masked[i] = -torch.inf
        masked[i, allowed] = logits[i, allowed]
    return masked


def _embedding_weight(decoder: nn.Module) -> Tensor:
    weight: Tensor = decoder.get_input_embeddings().weight  # type: ignore[operator]
    return weight


def _decoder_and_head(model: PreTrainedModel) -> tuple[PreTrainedModel, nn.Module]:
    """Split a causal LM into the part that yields hidden states and the head, checked on a few tokens.

    Raises:
        ValueError: If logits are more than the head applied to the last hidden state (for example
            soft-capped).
    """
    adapted: Any = model  # a PEFT model has get_base_model; a plain one does not
    base: PreTrainedModel = adapted.get_base_model() if hasattr(model, "get_base_model") else model
    decoder, head = base.get_decoder(), base.get_output_embeddings()
    device = _embedding_weight(decoder).device
    was_training = base.training
    base.eval()
    with torch.inference_mode():
        ids = torch.arange(3, device=device)[None]
        direct = base(input_ids=ids).logits[:, -1]
        split = head(decoder(input_ids=ids).last_hidden_state)[:, -1]  # of the same shape: the same kernels
    base.train(was_training)
    if not torch.allclose(direct, split, atol=1e-4, rtol=1e-3):
        raise ValueError(
            f"model type {base.config.model_type!r} changes its logits after the output head; the retained-cache "
            "engine supports plain heads only: use the vLLM engine for this model"
        )
    return decoder, head
