"""The retained-cache engine against Hugging Face's own generate and forward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from provgym.generators.engine import Sampled, Sampling
from provgym.generators.hf_engine import HFEngine

BuildModel = Callable[..., PreTrainedModel]
VOCABULARY = 50
GREEDY = Sampling(0.0)
SHORT, LONG = [3, 14, 15], [9, 26, 5, 35, 8, 9, 7, 9, 32, 3, 8, 46]
END = frozenset([2])


def collect(engine: HFEngine, rows: int) -> dict[int, Sampled]:
    done: dict[int, Sampled] = {}
    while len(done) < rows:
        done.update({sampled.row: sampled for sampled in engine.poll()})
    return done


def sample_all(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling = GREEDY,
    *,
    seeds: Sequence[int] | None = None,
    tokens: int = 6,
    end_ids: frozenset[int] = END,
    max_rows: int = 8,
) -> list[Sampled]:
    engine = HFEngine(model, max_rows=max_rows)
    for row, prompt in enumerate(prompts):
        engine.open_row(row, row if seeds is None else seeds[row], sampling)
        engine.submit(row, prompt, tokens, end_ids)
    done = collect(engine, len(prompts))
    return [done[row] for row in range(len(prompts))]


def greedy_by_generate(model: PreTrainedModel, prompt: Sequence[int], tokens: int = 6) -> list[int]:
    generator: Any = model
    out = generator.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=tokens,
        eos_token_id=[2],
        pad_token_id=2,
    )
    return [int(i) for i in out[0, len(prompt) :]]


def logprobs_by_forward(
    model: PreTrainedModel, prompt: Sequence[int], ids: Sequence[int], temperature: float = 1.0
) -> list[float]:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    table = torch.log_softmax(logits.double() / temperature, dim=-1)
    return [float(table[i, token]) for i, token in enumerate(ids)]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("prompts", [[SHORT], [LONG], [SHORT, LONG], [LONG, SHORT], [LONG, SHORT, SHORT, LONG[:7]]])
def test_greedy_equals_generate_alone_batched_and_swapped(
    build_model: BuildModel, kind: str, prompts: list[list[int]]
) -> None:
    """Fault kind: padding side. The same ids each time, log-probabilities within 1e-4."""
    model = build_model(kind, VOCABULARY)
    for prompt, sampled in zip(prompts, sample_all(model, prompts), strict=True):
        assert list(sampled.ids) == greedy_by_generate(model, prompt)
        expected = logprobs_by_forward(model, prompt, sampled.ids)
        assert sampled.logprobs == pytest.approx(expected, abs=1e-4)


def test_many_turns_equal_one_long_forward(build_model: BuildModel) -> None:
    """Fault kind: re-tokenized turns. Each turn continues the very ids; nothing is fed twice."""
    model = build_model("llama", VOCABULARY)
    engine = HFEngine(model, max_rows=2)
    sequences = {0: list(SHORT), 1: list(LONG)}
    for row in sequences:
        engine.open_row(row, row, Sampling(0.8))
        engine.submit(row, sequences[row], 4, END)
    world = [[7, 7, 11], [40]]
    for turn in range(4):
        done = collect(engine, 2)
        for row, sampled in done.items():
            expected = logprobs_by_forward(model, sequences[row], sampled.ids, 0.8)
            assert sampled.logprobs == pytest.approx(expected, abs=1e-4)
            sequences[row] += [*sampled.ids, *world[(row + turn) % 2]]
            engine.submit(row, world[(row + turn) % 2], 4, END)
    final = collect(engine, 2)
    fed = sum(len(sequence) + len(final[row].ids) - 1 for row, sequence in sequences.items())
    assert engine.forward_tokens == fed


def test_positions_that_grow_over_the_first_buffer_are_kept(build_model: BuildModel) -> None:
    model = build_model("llama", VOCABULARY)
    rng = np.random.default_rng(0)
    prompt = [int(i) for i in rng.integers(3, VOCABULARY, size=60)]
    engine = HFEngine(model, max_rows=2)
    engine.open_row(0, 0, GREEDY)
    engine.submit(0, prompt, 30, frozenset())
    sampled = collect(engine, 1)[0]
    assert len(sampled.ids) == 30
    assert sampled.logprobs == pytest.approx(logprobs_by_forward(model, prompt, sampled.ids), abs=1e-4)
    engine.submit(0, [4] * 100, 3, frozenset())
    again = collect(engine, 1)[0]
    before = [*prompt, *sampled.ids, *[4] * 100]
    assert again.logprobs == pytest.approx(logprobs_by_forward(model, before, again.ids), abs=1e-4)


@pytest.mark.parametrize("max_rows", [1, 2, 3, 8])
def test_sampled_ids_depend_on_the_seed_alone(build_model: BuildModel, max_rows: int) -> None:
    model = build_model("llama", VOCABULARY)
    prompts = [SHORT, LONG, LONG[:5], SHORT[:2], [*SHORT, *LONG]]
    alone = [sample_all(model, [p], Sampling(1.0), seeds=[10 + i])[0].ids for i, p in enumerate(prompts)]
    engine = HFEngine(model, max_rows=max_rows)
    waiting = list(range(len(prompts)))[::-1]
    found: dict[int, tuple[int, ...]] = {}
    owner: dict[int, int] = {}
    while waiting or owner:
        while waiting and len(owner) < max_rows:
            row = next(r for r in range(max_rows) if r not in owner)
            owner[row] = waiting.pop()
            engine.open_row(row, 10 + owner[row], Sampling(1.0))
            engine.submit(row, prompts[owner[row]], 6, END)
        for sampled in engine.poll():
            found[owner.pop(sampled.row)] = sampled.ids
            engine.close_row(sampled.row)
    assert [found[i] for i in range(len(prompts))] == alone


def test_a_reused_row_remembers_nothing(build_model: BuildModel) -> None:
    model = build_model("qwen3", VOCABULARY)
    engine = HFEngine(model, max_rows=1)
    results = []
    for prompt in (LONG, SHORT, LONG):
        engine.open_row(0, 5, GREEDY)
        engine.submit(0, prompt, 6, END)
        results.append(collect(engine, 1)[0])
        engine.close_row(0)
    assert results[0] == results[2]
    assert list(results[1].ids) == greedy_by_generate(model, SHORT)


def test_a_group_shares_its_prefill(build_model: BuildModel) -> None:
    model = build_model("llama", VOCABULARY)
    engine = HFEngine(model, max_rows=8)
    for row in range(8):
        engine.open_row(row, row, Sampling(1.0))
        engine.submit(row, LONG if row < 6 else SHORT, 1, frozenset())
    collect(engine, 8)
    assert engine.forward_tokens == len(LONG) + len(SHORT)
    assert engine.forward_passes == 1
    shared = sample_all(model, [LONG] * 4, Sampling(1.0), seeds=[7, 8, 9, 10])
    apart = [sample_all(model, [LONG], Sampling(1.0), seeds=[seed])[0] for seed in (7, 8, 9, 10)]
    assert [s.ids for s in shared] == [s.ids for s in apart]
    assert len({s.ids for s in shared}) > 1


def test_end_tokens_and_limits(build_model: BuildModel) -> None:
    """Fault kind: pad = EOS. The end token is part of the action; a cut action has none."""
    model = build_model("llama", VOCABULARY)
    (free,) = sample_all(model, [SHORT], end_ids=frozenset(), tokens=5)
    assert len(free.ids) == 5
    assert not free.ended
    end = free.ids[2]
    first = free.ids.index(end)
    (stopped,) = sample_all(model, [SHORT], end_ids=frozenset([end]), tokens=5)
    assert stopped.ids == free.ids[: first + 1]
    assert stopped.ended
    (exact,) = sample_all(model, [SHORT], end_ids=frozenset([end]), tokens=first + 1)
    assert exact.ended
    assert len(exact.logprobs) == len(exact.ids)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampling_frequencies_match_the_softmax(build_model: BuildModel, temperature: float) -> None:
    model = build_model("llama", 12)
    draws, prompt = 4_000, [3, 1, 4]
    engine = HFEngine(model, max_rows=500)
    counts = np.zeros(12)
    for start in range(0, draws, 500):
        for row in range(500):
            engine.open_row(row, start + row, Sampling(temperature))
            engine.submit(row, prompt, 1, frozenset())
        for row, sampled in collect(engine, 500).items():
            counts[sampled.ids[0]] += 1
            engine.close_row(row)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt])).logits[0, -1].double()
    expected = torch.softmax(logits / temperature, dim=-1).numpy() * draws
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    keep = wanted > 0
    assert stats.chisquare(observed[keep], wanted[keep] * observed[keep].sum() / wanted[keep].sum()).pvalue > 1e-3


def test_logprobs_are_at_the_sampling_temperature(build_model: BuildModel) -> None:
    """Fault kind: temperature in the ratio."""
    model = build_model("llama", VOCABULARY)
    for temperature in (0.6, 1.0, 1.7):
        (sampled,) = sample_all(model, [LONG], Sampling(temperature))
        expected = logprobs_by_forward(model, LONG, sampled.ids, temperature)
        assert sampled.logprobs == pytest.approx(expected, abs=1e-4)


def test_restricted_rows_sample_legal_tokens_with_their_own_logprobs(build_model: BuildModel) -> None:
    model = build_model("llama", VOCABULARY)
    engine = HFEngine(model, max_rows=2)
    for row in range(2):
        engine.open_row(row, 3, Sampling(1.0))
        engine.submit(row, SHORT, 4, frozenset())
    seen: list[tuple[int, ...]] = []

    def legal(ids: tuple[int, ...]) -> list[int]:
        seen.append(ids)
        return [10 + len(ids), 30]

    engine.restrict(0, legal)
    done = collect(engine, 2)
    assert seen == [done[0].ids[:i] for i in range(4)]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*SHORT, *done[0].ids]])).logits[0, len(SHORT) - 1 : -1]
    for place, token in enumerate(done[0].ids):
        pair = logits[place, [10 + place, 30]]
        assert token in (10 + place, 30)
        expected = float(torch.log_softmax(pair, dim=-1)[[10 + place, 30].index(token)])
        assert done[0].logprobs[place] == pytest.approx(expected, abs=1e-4)
    (free,) = sample_all(model, [SHORT], Sampling(1.0), seeds=[3], tokens=4, end_ids=frozenset())
    assert done[1].ids == free.ids
    engine.submit(0, [5], 3, frozenset())
    collect(engine, 1)
    assert len(seen) == 4  # one action only


def test_a_constraint_that_forbids_everything_is_an_error(build_model: BuildModel) -> None:
    engine = HFEngine(build_model("llama", VOCABULARY), max_rows=1)
    engine.open_row(0, 0, GREEDY)
    engine.submit(0, SHORT, 1, frozenset())
    engine.restrict(0, lambda ids: [])
    with pytest.raises(ValueError, match="no token is legal"):
        engine.poll()


def test_misuse_is_refused(build_model: BuildModel) -> None:
    model = build_model("llama", VOCABULARY, max_length=64)
    with pytest.raises(ValueError, match="max_rows=0"):
        HFEngine(model, max_rows=0)
    with pytest.raises(ValueError, match="max_length=65 must lie in"):
        HFEngine(model, max_length=65)
    engine = HFEngine(model, max_rows=1)
    assert (engine.max_rows, engine.max_length, engine.poll()) == (1, 64, [])
    engine.open_row(0, 0, GREEDY)
    for row in (0, 1, -1):
        with pytest.raises(ValueError, match="must be free"):
            engine.open_row(row, 0, GREEDY)
    with pytest.raises(ValueError, match="something to read"):
        engine.submit(0, [], 1, END)
    with pytest.raises(ValueError, match="max_new_tokens >= 1"):
        engine.submit(0, [1], 0, END)
    engine.submit(0, [1], 1, END)
    with pytest.raises(ValueError, match="must be idle"):
        engine.submit(0, [1], 1, END)


@pytest.mark.parametrize("temperature", [-0.1, math.inf, math.nan])
def test_impossible_temperatures_are_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="must be finite and >= 0"):
        Sampling(temperature)


def test_learned_positions_stay_in_their_table_when_rows_are_padded() -> None:
    """A long feed beside a row near the model's limit: the padding must not look up positions that don't exist."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shape: dict[str, Any] = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
        model = GPT2LMHeadModel(GPT2Config(**shape, initializer_range=0.5, eos_token_id=None, bos_token_id=None)).eval()
    engine = HFEngine(model, max_rows=2)
    engine.open_row(0, 0, GREEDY)
    engine.submit(0, [5] * 28, 1, frozenset())
    first = collect(engine, 1)[0]
    engine.open_row(1, 1, GREEDY)
    engine.submit(0, [6], 1, frozenset())
    engine.submit(1, LONG, 1, frozenset())
    done = collect(engine, 2)
    before = [*[5] * 28, *first.ids, 6]
    assert done[0].logprobs == pytest.approx(logprobs_by_forward(model, before, done[0].ids), abs=1e-4)
    assert done[1].logprobs == pytest.approx(logprobs_by_forward(model, LONG, done[1].ids), abs=1e-4)


def test_model_and_its_mode_are_left_alone(build_model: BuildModel) -> None:
    model = build_model("llama", VOCABULARY).train()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    state = torch.random.get_rng_state()
    sample_all(model, [SHORT], Sampling(1.0))
    assert model.training
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_heads_that_change_their_logits_are_refused() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        final_logit_softcapping=0.5,
        initializer_range=0.5,
        layer_types=["full_attention"],
    )
    with pytest.raises(ValueError, match="changes its logits after the output head"):
        HFEngine(Gemma2ForCausalLM(config))


@pytest.mark.llm
def test_smollm2_greedy_equals_generate() -> None:
    from provgym.generators.smollm2 import load_smollm2

    model, tokenizer = load_smollm2()
    prompts = [
        tokenizer.encode("The capital of France is"),
        tokenizer.encode("One study, counted five times, is still"),
    ]
    for prompt, sampled in zip(prompts, sample_all(model, prompts, tokens=8), strict=True):
        assert list(sampled.ids) == greedy_by_generate(model, prompt, 8)
        assert sampled.logprobs == pytest.approx(logprobs_by_forward(model, prompt, sampled.ids), abs=1e-4)
