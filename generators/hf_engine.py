"""The retained-cache engine: any Hugging Face causal LM, many rows, no token ever computed twice.

Each row keeps its keys and values across turns, what rows have in common at their beginning is prefilled once, and a
pass touches only the rows that have something to do. Along with a sampled token, a pass may feed a guess of how the
action goes on; what the policy then samples decides how much of the guess is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from provgym.generators.action_guesser import ActionGuesser
from provgym.generators.engine import LegalTokens, Sampled, Sampling
from provgym.generators.engine_rows import Row, common_length, padded, slots_of_pass
from provgym.generators.row_cache import RowCache
from provgym.generators.token_choice import choose_tokens, mask_illegal

_SHORTEST_SHARED_PREFIX = 32  # tokens; a shorter one saves less than its own pass costs
_MOST_LOGITS = 2**26  # numbers in one pass's logits; guesses are shortened to stay below


class HFEngine:
    """Samples actions from a Hugging Face causal LM with retained keys and values.

    Args:
        model: A causal LM, with or without a PEFT adapter; its training mode and weights are left alone.
        max_rows: Rows that can be live at once.
        max_length: Longest sequence of a row; at most the model's own limit.
        prefill_share: A prefill pass waits until this share of the live rows has new text to read (or none
            samples).
        longest_guess: Most tokens of an action that are guessed in one pass; 0 turns guessing off. It decides
            how fast tokens are sampled, never which.

    Attributes:
        forward_tokens: Tokens computed and kept; each token of a sequence counts once.
        forward_passes: Forward passes.
        missed_guesses: Guessed tokens that were computed and thrown away.

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
        longest_guess: int = 16,
    ) -> None:
        if max_rows < 1:
            raise ValueError(f"max_rows={max_rows} must be >= 1")
        config = model.config.get_text_config()
        limit = int(getattr(config, "max_position_embeddings", 0) or 2**31)
        if max_length is not None and not 1 <= max_length <= limit:
            raise ValueError(f"max_length={max_length} must lie in [1, {limit}], the model's own limit")
        self._max_rows, self._max_length = max_rows, max_length or limit
        self._prefill_share = prefill_share
        self._decoder, self._head = _decoder_and_head(model)
        weight = _embedding_weight(self._decoder)
        self._device, self._dtype = weight.device, weight.dtype
        self._last_position = limit - 1
        self._most_places = _MOST_LOGITS // int(weight.shape[0])
        self._cache = RowCache(config, max_rows + 1, self._device, weight.dtype)
        self._rows: dict[int, Row] = {}
        self._prefix: list[int] = []  # what rows begin with; its keys and values are in the slot behind all rows
        self._guesser = ActionGuesser(longest_guess)
        self.forward_tokens = self.forward_passes = self.missed_guesses = 0

    @property
    def max_rows(self) -> int:
        """Rows that can be live at once."""
        return self._max_rows

    @property
    def max_length(self) -> int:
        """Longest sequence a row may reach, in tokens."""
        return self._max_length

    def learn_action(self, ids: Sequence[int]) -> None:
        """Learn an action that is likely to come, so that it can be guessed before it was ever sampled."""
        self._guesser.learn(ids)

    def open_row(self, row: int, seed: int, sampling: Sampling) -> None:
        """Begin a new sequence in ``row``."""
        if not 0 <= row < self._max_rows or row in self._rows:
            raise ValueError(f"row {row} must be free and lie in [0, {self._max_rows})")
        taken = {state.slot for state in self._rows.values()}
        slot = next(slot for slot in range(self._max_rows) if slot not in taken)
        self._rows[row] = Row(slot, sampling, np.random.default_rng(seed))

    def close_row(self, row: int) -> None:
        """Forget the row."""
        del self._rows[row]
        if not self._rows:
            self._prefix = []  # the weights may change before the next row

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
        asking = {row: state for row, state in self._rows.items() if state.wants_action}
        if not asking:
            return []
        at_work = {row: state for row, state in asking.items() if not state.ids}
        if len(at_work) < len(asking) and len(at_work) < self._prefill_share * len(asking):
            at_work = {row: state for row, state in asking.items() if state.ids}
        states = list(at_work.values())
        self._close_gaps()
        self._copy_prefix([state for state in states if state.length == 0])
        self._guess(states)
        self._sample(states, self._read(states))
        return [self._finish(row, state) for row, state in at_work.items() if state.is_complete]

    def _copy_prefix(self, opening: list[Row]) -> None:
        """Give opening rows the keys and values of the text that they have in common."""
        distinct = {tuple(state.pending) for state in opening}
        if not self._prefix and len(distinct) > 1:
            # In sorted order, the outermost two have the least in common.
            self._prefix = opening[0].pending[: common_length(min(distinct), max(distinct))]
            if len(self._prefix) < _SHORTEST_SHARED_PREFIX:
                self._prefix = []
                return
            holder = Row(self._max_rows, Sampling(0.0), np.random.default_rng(0), pending=list(self._prefix))
            self._forward([holder])
            self.forward_tokens += len(self._prefix)
        targets: dict[int, list[int]] = {}
        for state in opening:
            length = min(common_length(self._prefix, state.pending), len(state.pending) - 1)
            if length >= _SHORTEST_SHARED_PREFIX:
                targets.setdefault(length, []).append(state.slot)
                state.length, state.pending = length, state.pending[length:]
        for length, slots in targets.items():
            self._cache.copy_row(self._max_rows, slots, length)

    def _guess(self, states: list[Row]) -> None:
        """Guess how each action goes on, up to its end token: what follows is the world's."""
        for state in states:
            # Opening rows may share their pass, and a rule is asked once for each sampled token.
            if state.is_opening or state.legal is not None:
                continue
            room = min(
                state.max_new_tokens - len(state.ids) - 1,
                self._max_length - state.length - len(state.pending) - 1,
                self._most_places // len(states) - 1,
            )
            guess = self._guesser.guess(state.ids, room)
            end = next((i for i, token in enumerate(guess) if token in state.end_ids), len(guess))
            state.guess = guess[:end]

    def _read(self, states: list[Row]) -> Tensor:
        """Feed rows their pending ids and guesses; rows that open with the same ids are computed once.

        Returns:
            (N, V) float32 logits: for each row, those behind its last pending id and behind each guessed one.
        """
        leaders: dict[tuple[int, ...], Row] = {}
        followers: dict[int, list[int]] = {}
        unique: list[Row] = []
        line: dict[int, int] = {}  # slot -> place in the pass
        for state in states:
            # What rows that open have before their pending ids is the prefix, cut at the same length.
            key = (state.length, *state.pending) if state.is_opening else (-1, state.slot)
            leader = leaders.setdefault(key, state)
            if leader is state:
                line[state.slot] = len(unique)
                unique.append(state)
            else:
                line[state.slot] = line[leader.slot]
                followers.setdefault(leader.slot, []).append(state.slot)
        hidden = self._forward(unique)  # (u, q, d)
        for leader in unique:
            if leader.slot in followers:
                self._cache.copy_row(leader.slot, followers[leader.slot], leader.length + len(leader.pending))
        self.forward_tokens += sum(len(state.pending) for state in unique)
        places = [(line[s.slot], len(s.pending) - 1 + i) for s in states for i in range(len(s.guess) + 1)]
        rows, columns = torch.tensor(places, device=self._device).T
        logits: Tensor = self._head(hidden[rows, columns]).float()  # (N, V)
        return logits

    def _forward(self, states: list[Row]) -> Tensor:
        """Feed each row its pending ids and guess; return the hidden states, (n, q, d)."""
        fed = {state.slot: [*state.pending, *state.guess] for state in states}
        width = max(len(feed) for feed in fed.values())
        slots = slots_of_pass(sorted(fed), width)
        lengths = dict.fromkeys(slots, 0) | {s.slot: s.length for s in (*self._rows.values(), *states)}
        begin = torch.tensor([lengths[slot] for slot in slots])
        positions = (begin[:, None] + torch.arange(width)).to(self._device)  # (m, q)
        run = slice(slots[0], slots[-1] + 1)
        is_run = len(slots) == run.stop - run.start
        self._cache.select(run if is_run else torch.tensor(slots, device=self._device), positions)
        keys = torch.arange(int(positions.max()) + 1, device=self._device)
        hidden: Tensor = self._decoder(
            input_ids=padded([fed.get(slot, []) for slot in slots], width).to(self._device),
            # Additive, which every attention implementation takes as it is.
            attention_mask=torch.where(keys <= positions[:, :, None], 0.0, -torch.inf)[:, None].to(self._dtype),
            position_ids=positions.clamp(max=self._last_position),  # padding may reach over the model's limit
            cache=self._cache,
            use_cache=True,
        ).last_hidden_state  # (m, q, d)
        self.forward_passes += 1
        order = [slots.index(state.slot) for state in states]
        return hidden if order == list(range(len(slots))) else hidden[order]

    def _sample(self, states: list[Row], logits: Tensor) -> None:
        """Choose tokens behind pending and guessed ids, each row by its own stream of uniform numbers."""
        counts = [len(state.guess) + 1 for state in states]
        # A restricted row has no guess, so its rule is asked once.
        rules = [s.legal and (s.legal, tuple(s.ids)) for s, c in zip(states, counts, strict=True) for _ in range(c)]
        chosen = choose_tokens(
            mask_illegal(logits, rules),
            [s.sampling.temperature for s, count in zip(states, counts, strict=True) for _ in range(count)],
            [u for s, count in zip(states, counts, strict=True) for u in s.next_uniforms(count)],
        )
        start = 0
        for state, count in zip(states, counts, strict=True):
            self._keep(state, chosen.tokens[start : start + count], chosen.logprobs[start : start + count])
            start += count

    def _keep(self, state: Row, tokens: list[int], logprobs: list[float]) -> None:
        """Take the sampled tokens up to the first that was not guessed; what was fed behind it counts for nothing."""
        right = 0
        while right < len(state.guess) and tokens[right] == state.guess[right]:
            right += 1
        state.ids += tokens[: right + 1]
        state.logprobs += logprobs[: right + 1]
        state.length += len(state.pending) + right
        self.forward_tokens += right
        self.missed_guesses += len(state.guess) - right
        state.pending, state.guess = [tokens[right]], []
        state.is_opening = False
        del state.drawn[: right + 1]

    def _finish(self, row: int, state: Row) -> Sampled:
        state.wants_action, state.legal = False, None
        ended = state.ids[-1] in state.end_ids
        if ended:
            self._guesser.learn(state.ids)
        return Sampled(row, tuple(state.ids), tuple(state.logprobs), ended)

    def _close_gaps(self) -> None:
        """Move rows from the last slots to free ones, so that a pass over all rows needs no copies."""
        by_slot = {state.slot: state for state in self._rows.values()}
        gaps = [slot for slot in range(len(by_slot)) if slot not in by_slot]
        for gap, slot in zip(gaps, sorted(by_slot, reverse=True), strict=False):
            self._cache.copy_row(slot, [gap], by_slot[slot].length)
            by_slot[slot].slot = gap


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
