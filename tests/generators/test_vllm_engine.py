"""The batch engine over an injected generator, and the direct vLLM variant over a stand-in for the package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from provgym.generators.engine import Sampled, Sampling
from provgym.generators.hf_engine import HFEngine
from provgym.generators.rollout import LanguageModelPolicy
from provgym.generators.tiny import TinyDialogue, build_model, build_tokenizer
from provgym.generators.vllm_engine import Generated, GenerationRequest, VLLMEngine, load_vllm

END = frozenset([2])


class ModelGenerate:
    """Continues each sequence on its own, without any cache: the independent route."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.batches: list[list[GenerationRequest]] = []

    @torch.no_grad()
    def __call__(self, requests: Sequence[GenerationRequest]) -> list[Generated]:
        self.batches.append(list(requests))
        return [self._one(request) for request in requests]

    def _one(self, request: GenerationRequest) -> Generated:
        ids: list[int] = []
        logprobs: list[float] = []
        rng = torch.Generator().manual_seed(request.seed)
        while len(ids) < request.max_new_tokens and not (ids and ids[-1] in request.end_ids):
            logits = self.model(input_ids=torch.tensor([[*request.ids, *ids]])).logits[0, -1]
            table = torch.log_softmax(logits / (request.temperature or 1.0), dim=-1)
            greedy = request.temperature == 0.0
            token = int(table.argmax()) if greedy else int(torch.multinomial(table.exp(), 1, generator=rng))
            ids.append(token)
            logprobs.append(float(table[token]))
        return Generated(tuple(ids), tuple(logprobs))


def test_greedy_episodes_equal_the_retained_cache_engine(build_tasks: Any) -> None:
    tokenizer, model = build_tokenizer(), build_model(seed=3, hidden_size=32, num_layers=2).eval()
    tasks = build_tasks(conditions=[0, 2, 5])
    played = []
    for engine in (HFEngine(model, max_rows=2), VLLMEngine(ModelGenerate(model), max_length=2_048, max_rows=2)):
        policy = LanguageModelPolicy("tiny", engine, TinyDialogue(tokenizer), Sampling(0.0))
        played.append(policy.play(tasks))
    for one, other in zip(*played, strict=True):
        assert one.tokens is not None
        assert other.tokens is not None
        assert one.tokens.completion_ids == other.tokens.completion_ids
        assert one.tokens.logprobs == pytest.approx(other.tokens.logprobs, abs=1e-4)
        assert one.outcome == other.outcome


def test_waiting_rows_go_as_one_batch_with_their_own_seeds(build_model: Callable[..., PreTrainedModel]) -> None:
    generate = ModelGenerate(build_model("llama", 30))
    engine = VLLMEngine(generate, max_length=100, max_rows=3)
    for row in range(3):
        engine.open_row(row, row % 2, Sampling(1.0))
        engine.submit(row, [5, 6], 4, END)
    first = {s.row: s for s in engine.poll()}
    assert engine.poll() == []
    assert first[0].ids == first[2].ids  # one seed, one prompt
    assert [len(batch) for batch in generate.batches] == [3]
    for row in range(3):
        engine.submit(row, [7], 4, END)
    engine.poll()
    again = generate.batches[1]
    assert again[0].ids == (5, 6, *first[0].ids, 7)
    assert again[0].seed == again[2].seed != again[1].seed
    assert again[0].seed != generate.batches[0][0].seed
    engine.close_row(0)
    engine.open_row(0, 0, Sampling(1.0))
    engine.submit(0, [5, 6], 4, END)
    assert engine.poll()[0].ids == first[0].ids


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([], "answered 0 of 1 requests"),
        ([Generated((5, 2), (0.0,))], "2 ids but 1 log-probabilities"),
        ([Generated((), ())], "gave 0 ids, expected 1 to 3"),
        ([Generated((5, 5, 5, 5), (0.0,) * 4)], "gave 4 ids, expected 1 to 3"),
        ([Generated((2, 5), (0.0, 0.0))], "went on behind an end token"),
        ([Generated((5, 6), (0.0, 0.0))], "stopped after 2 of 3 ids without an end token"),
    ],
)
def test_generators_that_break_the_token_laws_are_named(results: list[Generated], message: str) -> None:
    """Fault kind: off-by-one mask; end tokens are always part of the row."""
    engine = VLLMEngine(lambda requests: results, max_length=10)
    engine.open_row(0, 0, Sampling(0.0))
    engine.submit(0, [1], 3, END)
    with pytest.raises(RuntimeError, match=message):
        engine.poll()


def test_failed_requests_fail_alone() -> None:
    """Fault kind: one failure loses its siblings."""

    def generate(requests: Sequence[GenerationRequest]) -> list[Generated]:
        return [Generated((), (), "worker lost") if r.ids == (1,) else Generated((2,), (-1.0,)) for r in requests]

    engine = VLLMEngine(generate, max_length=10)
    for row in range(2):
        engine.open_row(row, 0, Sampling(0.0))
        engine.submit(row, [row], 3, END)
    assert engine.poll() == [Sampled(0, (2,), (-1.0,), True), Sampled(1, (), (), False, "worker lost")]


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="max_rows=0"):
        VLLMEngine(lambda requests: [], max_length=1, max_rows=0)
    engine = VLLMEngine(lambda requests: [], max_length=9, max_rows=1)
    assert (engine.max_rows, engine.max_length) == (1, 9)
    engine.open_row(0, 0, Sampling(0.0))
    with pytest.raises(ValueError, match="must be free"):
        engine.open_row(0, 0, Sampling(0.0))
    with pytest.raises(ValueError, match="something to read"):
        engine.submit(0, [], 1, END)
    engine.submit(0, [1], 1, END)
    with pytest.raises(ValueError, match="must be idle"):
        engine.submit(0, [1], 1, END)


def test_constraints_need_an_engine_that_can_restrict() -> None:
    engine = VLLMEngine(lambda requests: [], max_length=9)
    tokenizer = build_tokenizer()
    from provgym.generators.action_grammar import TinyConstraint

    with pytest.raises(ValueError, match="VLLMEngine can't hold actions to legal tokens"):
        LanguageModelPolicy("x", engine, TinyDialogue(tokenizer), Sampling(0.0), constraint=TinyConstraint(tokenizer))


def test_direct_vllm_asks_for_processed_logprobs_and_its_own_end_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, Any] = {}

    class FakeLLM:
        def __init__(self, **kwargs: Any) -> None:
            calls["llm"] = kwargs

        def generate(self, prompts: Any, params: Any, **kwargs: Any) -> list[Any]:
            calls["generate"] = (prompts, params, kwargs)
            logprobs = [{7: SimpleNamespace(logprob=-0.25)}, {2: SimpleNamespace(logprob=-1.5)}]
            return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[7, 2], logprobs=logprobs)]) for _ in prompts]

    vllm, lora, request = ModuleType("vllm"), ModuleType("vllm.lora"), ModuleType("vllm.lora.request")
    vllm.LLM, vllm.SamplingParams = FakeLLM, lambda **kwargs: kwargs  # type: ignore[attr-defined]
    request.LoRARequest = lambda *arguments: arguments  # type: ignore[attr-defined]
    for name, module in (("vllm", vllm), ("vllm.lora", lora), ("vllm.lora.request", request)):
        monkeypatch.setitem(sys.modules, name, module)
    engine = load_vllm("some/model", "some/adapter", max_length=64, max_rows=2)
    engine.open_row(0, 11, Sampling(0.7))
    engine.submit(0, [4, 5], 8, END)
    assert engine.poll() == [Sampled(0, (7, 2), (-0.25, -1.5), True)]
    assert calls["llm"]["logprobs_mode"] == "processed_logprobs"
    assert calls["llm"]["enable_lora"] is True
    prompts, params, kwargs = calls["generate"]
    assert prompts == [{"prompt_token_ids": [4, 5]}]
    assert kwargs["lora_request"] == ("adapter", 1, "some/adapter")
    expected = {"temperature": 0.7, "max_tokens": 8, "stop_token_ids": [2], "ignore_eos": True, "logprobs": 0}
    assert {key: params[0][key] for key in expected} == expected


def test_missing_vllm_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ModuleNotFoundError, match="needs the package 'vllm'.*pip install vllm"):
        load_vllm("some/model", max_length=64)
