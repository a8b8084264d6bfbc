"""Who samples in training: the retained-cache engine on the training weights, or the vLLM that TRL keeps in step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel

from provgym.generators.engine import Engine
from provgym.generators.hf_engine import HFEngine
from provgym.trainers.papt_config import GenerationConfig
from provgym.trainers.trl_bridge import PaptTrainer

if TYPE_CHECKING:
    from provgym.generators.vllm_engine import Generate, Generated, GenerationRequest


def engine_for(trainer: PaptTrainer, model: PreTrainedModel, generation: GenerationConfig) -> Engine:
    """Return who samples: the retained-cache engine on the training weights, or TRL's vLLM.

    Not yet verified on a GPU: the vLLM path is written against TRL 1.16 and tested with a stand-in for vLLM itself.

    Raises:
        ValueError: If weights are sharded over processes (FSDP) and the engine is ``hf``, or several processes would
            share one vLLM server.
    """
    if generation.engine == "vllm":
        from provgym.generators.vllm_engine import VLLMEngine

        generate = trl_vllm_generate(trainer)
        return VLLMEngine(generate, max_rows=generation.max_rows, max_length=generation.max_length)
    if trainer.is_fsdp_enabled:
        raise ValueError("generation.engine 'hf' cannot sample from weights sharded by FSDP; set it to 'vllm'")
    return HFEngine(model, max_rows=generation.max_rows, max_length=generation.max_length)


def trl_vllm_generate(trainer: PaptTrainer) -> Generate:
    """Wrap TRL's vLLM, whose weights TRL syncs before each roll-out, as a batch generator.

    Raises:
        ValueError: If several processes would share one server: TRL pairs their turns by position, and processes
            that need another number of turns would wait for each other forever.
    """
    from provgym.generators.vllm_engine import VLLMGenerate

    wrapped = trainer.vllm_generation
    if wrapped.mode == "colocate":
        from vllm import SamplingParams

        return VLLMGenerate(wrapped.llm, SamplingParams)
    if trainer.accelerator.num_processes > 1:
        raise ValueError(
            f"vllm_mode 'server' serves one training process, found {trainer.accelerator.num_processes}; "
            "use vllm_mode: colocate"
        )
    return ServerGenerate(wrapped.vllm_client)


class ServerGenerate:
    """Continues sequences on TRL's vLLM server, one call per set of equal settings."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __call__(self, requests: Sequence[GenerationRequest]) -> Sequence[Generated]:
        """Return one result per request; the server has one seed for all, so runs are not repeatable there."""
        from provgym.generators.vllm_engine import Generated

        results: dict[int, Generated] = {}
        settings = {(r.temperature, r.max_new_tokens, r.end_ids) for r in requests}
        for temperature, max_tokens, end_ids in sorted(settings, key=repr):
            numbers = [
                i
                for i, r in enumerate(requests)
                if (r.temperature, r.max_new_tokens, r.end_ids) == (temperature, max_tokens, end_ids)
            ]
            answer = self._client.generate(
                prompts=[list(requests[i].ids) for i in numbers],
                n=1,
                temperature=temperature,
                max_tokens=max_tokens,
                logprobs=0,
                generation_kwargs={"stop_token_ids": sorted(end_ids), "ignore_eos": True},
            )
            for i, ids, logprobs in zip(numbers, answer["completion_ids"], answer["logprobs"], strict=True):
                results[i] = Generated(tuple(ids), tuple(float(at[0]) for at in logprobs))
        return [results[i] for i in range(len(requests))]
