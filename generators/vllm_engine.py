"""An engine over anything that continues id sequences in batches: vLLM, TRL's wrapper of it, or a server.

The engine keeps each row's ids and sends all waiting rows as one batch; keys and values are the generator's
affair (vLLM has a prefix cache of its own). TRL's colocated or server vLLM is wrapped on the trainers' floor
and passed in.

The direct vLLM variant (:func:`load_vllm`) was written against vLLM's documented interface and tested with a
stand-in for the package; it has not been run on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from provgym.generators.engine import Sampled, Sampling


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to be continued.

    Attributes:
        ids: Everything so far.
        seed: Decides what is sampled; differs between rows and between the turns of a row.
        temperature: 0 is greedy.
        max_new_tokens: At least 1.
        end_ids: Generation stops behind the first of these, which is part of the result.
    """

    ids: tuple[int, ...]
    seed: int
    temperature: float
    max_new_tokens: int
    end_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Generated:
    """What one request gave.

    Attributes:
        ids: Sampled ids, the end token included.
        logprobs: Of each id at the sampling temperature; as long as ``ids``.
        error: Why nothing could be sampled, else None.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    error: str | None = None


class Generate(Protocol):
    """Continues a batch of sequences and answers in the same order."""

    def __call__(self, requests: Sequence[GenerationRequest]) -> Sequence[Generated]:
        """Return one result per request."""
        ...


@dataclass(slots=True)
class _Row:
    sampling: Sampling
    seeds: np.random.Generator
    ids: list[int] = field(default_factory=list)
    request: GenerationRequest | None = None


class VLLMEngine:
    """Samples actions through a batch generator that takes and returns ids.

    Args:
        generate: Continues a batch of sequences.
        max_length: Longest sequence of a row, such as vLLM's ``max_model_len``.
        max_rows: Rows that can be live at once.

    Raises:
        ValueError: If ``max_rows`` or ``max_length`` is below 1.
    """

    def __init__(self, generate: Generate, *, max_length: int, max_rows: int = 256) -> None:
        if max_rows < 1 or max_length < 1:
            raise ValueError(f"max_rows={max_rows} and max_length={max_length} must be >= 1")
        self._generate = generate
        self._max_rows, self._max_length = max_rows, max_length
        self._rows: dict[int, _Row] = {}

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
        if state.request is not None or max_new_tokens < 1 or not (ids or state.ids):
            raise ValueError(f"row {row} must be idle, with something to read and max_new_tokens >= 1")
        state.ids.extend(ids)
        seed = int(state.seeds.integers(2**31 - 1))
        state.request = GenerationRequest(tuple(state.ids), seed, state.sampling.temperature, max_new_tokens, end_ids)

    def poll(self) -> list[Sampled]:
        """Send every waiting row as one batch; return all their actions."""
        waiting = [(row, state.request) for row, state in self._rows.items() if state.request is not None]
        if not waiting:
            return []
        results = self._generate([request for _, request in waiting])
        if len(results) != len(waiting):
            raise RuntimeError(f"the generator answered {len(results)} of {len(waiting)} requests")
        done = []
        for (row, request), result in zip(waiting, results, strict=True):
            state = self._rows[row]
            state.request = None
            if result.error is None:
                _check(request, result)
                state.ids.extend(result.ids)
            ended = bool(result.ids) and result.ids[-1] in request.end_ids
            done.append(Sampled(row, result.ids, result.logprobs, ended, result.error))
        return done


def _check(request: GenerationRequest, result: Generated) -> None:
    """Refuse results that would break the token laws.

    Raises:
        RuntimeError: If ids and log-probabilities differ in length, nothing or too much was sampled, sampling
            went on behind an end token, or stopped early without one.
    """
    ids, limit = result.ids, request.max_new_tokens
    if len(ids) != len(result.logprobs):
        raise RuntimeError(f"the generator gave {len(ids)} ids but {len(result.logprobs)} log-probabilities")
    if not 1 <= len(ids) <= limit:
        raise RuntimeError(f"the generator gave {len(ids)} ids, expected 1 to {limit}")
    if any(token in request.end_ids for token in ids[:-1]):
        raise RuntimeError(f"the generator went on behind an end token (of {sorted(request.end_ids)}): {list(ids)}")
    if len(ids) < limit and ids[-1] not in request.end_ids:
        raise RuntimeError(
            f"the generator stopped after {len(ids)} of {limit} ids without an end token (of "
            f"{sorted(request.end_ids)}); it must return the end token it stopped at"
        )


class VLLMGenerate:
    """Continues sequences with an in-process ``vllm.LLM``.

    Args:
        llm: Made with ``logprobs_mode="processed_logprobs"``, so that log-probabilities are at the sampling
            temperature.
        sampling_params: ``vllm.SamplingParams``, passed in because vLLM is imported lazily.
        lora_request: ``vllm.lora.request.LoRARequest`` of an adapter, or None.
    """

    def __init__(self, llm: Any, sampling_params: Any, lora_request: Any | None = None) -> None:
        self._llm, self._sampling_params, self._lora = llm, sampling_params, lora_request

    def __call__(self, requests: Sequence[GenerationRequest]) -> Sequence[Generated]:
        """Return one result per request."""
        params = [
            self._sampling_params(
                temperature=request.temperature,
                max_tokens=request.max_new_tokens,
                stop_token_ids=sorted(request.end_ids),
                ignore_eos=True,  # only the dialogue's own end tokens end an action
                seed=request.seed,
                logprobs=0,  # of the sampled token alone
                detokenize=False,
            )
            for request in requests
        ]
        prompts = [{"prompt_token_ids": list(request.ids)} for request in requests]
        outputs = self._llm.generate(prompts, params, use_tqdm=False, lora_request=self._lora)
        return [_read_output(output.outputs[0]) for output in outputs]


def _read_output(output: Any) -> Generated:
    ids = tuple(int(token) for token in output.token_ids)
    chosen = zip(ids, output.logprobs, strict=True)
    return Generated(ids, tuple(float(at[token].logprob) for token, at in chosen))


def load_vllm(
    name_or_path: str,
    adapter: str | None = None,
    *,
    max_length: int,
    max_rows: int = 256,
    max_lora_rank: int = 64,
    gpu_memory_utilization: float = 0.9,
) -> VLLMEngine:
    """Load a model into vLLM for evaluation. Not verified on a GPU.

    Args:
        name_or_path: Folder or hub id.
        adapter: Folder of a LoRA adapter, or None.
        max_length: ``max_model_len``.
        max_rows: Rows that can be live at once, ``max_num_seqs``.
        max_lora_rank: Highest rank that an adapter may have.
        gpu_memory_utilization: Share of the GPU's memory for weights and cache.

    Raises:
        ModuleNotFoundError: If vLLM is not installed.
    """
    try:
        from vllm import LLM, SamplingParams
        from vllm.lora.request import LoRARequest
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the vLLM engine needs the package 'vllm' ({error}); install it on a machine with a GPU "
            "(`pip install vllm`), or use kind 'hf'"
        ) from error
    llm = LLM(
        model=name_or_path,
        max_model_len=max_length,
        max_num_seqs=max_rows,
        enable_prefix_caching=True,
        enable_lora=adapter is not None,
        max_lora_rank=max_lora_rank,
        gpu_memory_utilization=gpu_memory_utilization,
        logprobs_mode="processed_logprobs",
    )
    lora = None if adapter is None else LoRARequest("adapter", 1, adapter)
    return VLLMEngine(VLLMGenerate(llm, SamplingParams, lora), max_length=max_length, max_rows=max_rows)
