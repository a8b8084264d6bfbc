"""Shared prefixes change what a step costs, not what it computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from trl.trainer.utils import add_fused_lm_head

from provgym.trainers.prefix_tree import pack_rows
from provgym.trainers.shared_prefix import SharedPrefix, find_hindrance, spread

VOCABULARY = 50
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
    "max_position_embeddings": 256,
}


def tiny(kind: str, implementation: str = "sdpa", **options: Any) -> Any:
    """Return a random model as TRL prepares it."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {**SHAPE, "attn_implementation": implementation, **options}
    model: Any
    if kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**settings, head_dim=16))
    else:
        model = LlamaForCausalLM(LlamaConfig(**settings))
    add_fused_lm_head(model, temperature=0.7, outputs=("log_probs", "entropy"))
    if kind == "lora":
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    return model.train()


Models = Callable[[str, str], tuple[Any, SharedPrefix]]


@pytest.fixture(scope="module")
def models() -> Models:
    """A function that returns a model and its shared forward, each made once."""
    made: dict[tuple[str, str], tuple[Any, SharedPrefix]] = {}

    def get(kind: str, implementation: str) -> tuple[Any, SharedPrefix]:
        key = kind, implementation
        if key not in made:
            model = tiny(kind, implementation)
            made[key] = model, SharedPrefix(model)
        return made[key]

    return get


def group(lengths: list[tuple[int, int]], *, seed: int = 0, prompts: int = 1) -> dict[str, Any]:
    """Return padded rows (prompt, completion lengths); row i has prompt ``i % prompts``, cut to its length."""
    generator = torch.Generator().manual_seed(seed)
    left, right = max(p for p, _ in lengths), max(c for _, c in lengths)
    texts = torch.randint(3, VOCABULARY, (prompts, left), generator=generator)
    batch = {
        "prompt_ids": torch.zeros(len(lengths), left, dtype=torch.long),
        "completion_ids": torch.randint(3, VOCABULARY, (len(lengths), right), generator=generator),
        "prompt_mask": torch.tensor([[0] * (left - p) + [1] * p for p, _ in lengths]),
        "completion_mask": torch.tensor([[1] * c + [0] * (right - c) for _, c in lengths]),
    }
    for row, (prompt, _) in enumerate(lengths):
        batch["prompt_ids"][row, left - prompt :] = texts[row % prompts, :prompt]
    batch["completion_ids"] *= batch["completion_mask"]
    batch["wanted"] = batch["completion_mask"] * (torch.rand(len(lengths), right, generator=generator) < 0.6)
    return batch


def gradient_of(model: Any) -> Tensor:
    """Return all gradients as one vector, zeros where there is none."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters() if p.requires_grad]
    return torch.cat([part.flatten() for part in parts])


def trl_way(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return (B, T) log-probabilities and entropies as TRL's ``_get_per_token_logps_and_entropies`` computes them."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    width = batch["completion_ids"].shape[1]
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :-width] = -100
    found = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    return found.log_probs[:, -width:], found.entropy[:, -width:]


def compare(model: Any, shared: SharedPrefix, batch: dict[str, Any], shortest_shared: int = 1) -> None:
    """Assert that wanted values, loss and gradient are equal."""
    wanted = batch["wanted"]
    weight = torch.linspace(-1.0, 2.0, wanted.numel()).reshape(wanted.shape)  # an advantage for each token
    sides = []
    rows = pack_rows(**batch, shortest_shared=shortest_shared)
    background = torch.zeros(wanted.shape)
    for way in ("shared", "trl"):
        model.zero_grad()
        if way == "shared":
            logprobs, entropies = (spread(v, rows, background) for v in shared(model, rows))
        else:
            logprobs, entropies = trl_way(model, batch)
        loss = ((logprobs + 0.1 * entropies) * weight * wanted).sum()
        loss.backward()
        sides.append((logprobs.detach() * wanted, entropies.detach() * wanted, loss.detach(), gradient_of(model)))
    for mine, other in zip(*sides, strict=True):
        torch.testing.assert_close(mine, other, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "lora"])
def test_loss_and_gradient_are_those_of_separate_rows(models: Models, kind: str, implementation: str) -> None:
    """A group of unequal lengths, with world tokens between the trained ones; grouped heads; temperature 0.7."""
    compare(*models(kind, implementation), group([(9, 12), (9, 5), (9, 1), (9, 17)]))


@pytest.mark.parametrize(
    ("lengths", "prompts"),
    [
        ([(1, 1), (1, 1)], 1),
        ([(1, 6), (1, 3)], 1),
        ([(12, 1), (12, 1), (12, 1)], 1),
        ([(6, 4)], 1),
        ([(5, 7), (9, 3), (5, 7), (9, 8), (5, 2)], 2),
    ],
    ids=["P=1,C=1", "P=1", "C=1", "alone", "two-prompts"],
)
def test_shapes_at_the_edge(models: Models, lengths: list[tuple[int, int]], prompts: int) -> None:
    batch = group(lengths, prompts=prompts)
    batch["wanted"] = batch["completion_mask"].clone()
    compare(*models("llama", "sdpa"), batch)


@settings(deadline=None, max_examples=15)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 9)), min_size=1, max_size=6),
    prompts=st.integers(1, 3),
    seed=st.integers(0, 99),
    shortest_shared=st.sampled_from([1, 3, 8]),
    copies=st.integers(0, 2),
)
def test_any_shape_gives_the_same(
    models: Models, lengths: list[tuple[int, int]], prompts: int, seed: int, shortest_shared: int, copies: int
) -> None:
    """Prompts may begin alike, be the beginning of one another, or of a row; rows may be equal."""
    batch = group(lengths, seed=seed, prompts=prompts)
    for row in range(min(copies, len(lengths) - 1)):
        for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask"):
            batch[name][row + 1] = batch[name][row]
        batch["wanted"][row + 1] *= batch["completion_mask"][row + 1]
    compare(*models("qwen3", "sdpa"), batch, shortest_shared)


def test_a_fully_masked_row_costs_nothing_and_changes_nothing(models: Models) -> None:
    """Kind: masked roll-outs in the normaliser."""
    batch = group([(6, 5), (6, 8), (6, 3)])
    batch["wanted"] = batch["completion_mask"].clone()
    batch["wanted"][1] = 0
    compare(*models("llama", "sdpa"), batch)
    assert pack_rows(**batch, shortest_shared=1).num_tokens == 6 + 4 + 2


def test_a_fully_masked_batch_supports_backward(models: Models) -> None:
    """Kind: masked roll-outs in the normaliser (only B): a loss of 0 with a gradient of 0."""
    model, shared = models("llama", "sdpa")
    batch = group([(6, 5), (6, 8)])
    batch["wanted"] = torch.zeros_like(batch["wanted"])
    model.zero_grad()
    rows = pack_rows(**batch)
    logprobs = spread(shared(model, rows)[0], rows, torch.zeros(2, 8))
    (logprobs * batch["wanted"]).sum().backward()
    assert float(gradient_of(model).abs().max()) == 0.0


@pytest.mark.parametrize("kind", ["llama", "lora"])
def test_gradient_checkpointing_runs_layers_again_in_the_same_way(kind: str) -> None:
    """The second run of a layer, during backward, has to see the layout too."""
    model = tiny(kind)
    shared = SharedPrefix(model)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    if kind == "lora":
        model.enable_input_require_grads()
    ran: list[str] = []
    decoder = (model.get_base_model() if kind == "lora" else model).model
    decoder.layers[0].self_attn.register_forward_pre_hook(
        lambda layer, _: ran.append(layer.config._attn_implementation)
    )
    compare(model, shared, group([(9, 12), (9, 5), (9, 7)]))
    assert ran == ["provgym_shared_prefix"] * 2 + ["sdpa"] * 2, "forward and again in backward, on both sides"


def test_calls_without_a_layout_are_left_alone(models: Models) -> None:
    """Bit by bit: the hooks act on nothing else, and leave the configuration as it was, after an error too."""
    plain = tiny("llama")
    model, shared = models("llama", "sdpa")
    batch = group([(9, 12), (9, 5)])
    shared(model, pack_rows(**batch))
    layout = pack_rows(**batch)
    with pytest.raises(RuntimeError):
        shared(model, dataclasses.replace(layout, mask=layout.mask[:2, :2]))
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(trl_way(model, batch)[0], trl_way(plain, batch)[0])
    shared.check(model)
    assert model.training


def test_prompt_is_computed_once() -> None:
    """Tokens that go through the first layer: P + the completions without their last tokens."""
    model = tiny("llama")
    shared = SharedPrefix(model)
    seen: list[int] = []
    model.model.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    batch = group([(9, 12), (9, 5), (9, 7)])
    batch["wanted"] = batch["completion_mask"].clone()
    shared(model, pack_rows(**batch))
    assert seen == [9 + 11 + 4 + 6]


def test_removed_hooks_leave_nothing() -> None:
    model = tiny("llama")
    SharedPrefix(model).remove()
    hooks = [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert hooks == []


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=9)), "no rotary position"),
        (
            lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=16)),
            "'mistral' has a sliding window of 16 tokens",
        ),
        (
            lambda: Qwen3ForCausalLM(
                Qwen3Config(**SHAPE, use_sliding_window=True, sliding_window=8, max_window_layers=1)
            ),
            "'full_attention', 'sliding_attention'",
        ),
        (lambda: tiny("llama", attention_dropout=0.1), "attention_dropout=0.1, expected 0"),
        (lambda: tiny("llama", "flex_attention"), "attention implementation 'flex_attention', expected one of"),
    ],
    ids=["gpt2", "mistral", "qwen3-sliding", "dropout", "flex"],
)
def test_what_it_cannot_do_is_refused_by_name(make: Callable[[], Any], named: str) -> None:
    model = make()
    assert named in str(find_hindrance(model))
    with pytest.raises(ValueError, match="set optim.shared_prefix to 'off'"):
        SharedPrefix(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("kind", ["llama", "lora"])
def test_numbers_that_differ_are_found_at_the_start(kind: str, dtype: torch.dtype) -> None:
    """Kind: bf16 on a CPU. A model whose attention does something that no configuration key tells, in every type."""
    model = tiny(kind).to(dtype)
    shared = SharedPrefix(model)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    shared.check(model)
    assert model.training
    for name, parameter in model.named_parameters():
        assert parameter.dtype == dtype
        assert torch.equal(parameter, before[name]), "the check leaves the weights alone"
    decoder = (model.get_base_model() if kind == "lora" else model).model
    decoder.layers[1].self_attn.register_forward_pre_hook(_shift_positions, with_kwargs=True)
    with pytest.raises(ValueError, match=r"differ by .* nats from those of separate rows, at most 0.001 is expected"):
        shared.check(model)


def test_a_small_error_is_found_under_the_rounding_of_bfloat16() -> None:
    """An eighth of a nat, which a bound of a quarter, wide enough for bfloat16's own rounding, would let pass."""
    model = tiny("llama").to(torch.bfloat16)
    shared = SharedPrefix(model)
    handle = model.model.layers[1].self_attn.register_forward_hook(_louder(1.05, only_in=None), with_kwargs=True)
    with pytest.raises(ValueError, match=r"differ by 0\.1\d* nats from those of separate rows"):
        shared.check(model)
    handle.remove()
    shared.check(model)


def test_what_goes_wrong_in_the_models_own_type_alone_is_measured_against_float32() -> None:
    """A kernel that is wrong in half precision, and right in the float32 copy."""
    model = tiny("llama").to(torch.bfloat16)
    shared = SharedPrefix(model)
    attention = model.model.layers[1].self_attn
    attention.register_forward_hook(_louder(1.5, only_in=torch.bfloat16), with_kwargs=True)
    with pytest.raises(ValueError, match=r"in bfloat16 from a float32 reference, separate rows by"):
        shared.check(model)


def _louder(factor: float, *, only_in: torch.dtype | None) -> Callable[..., Any]:
    """Scale what attention says, in packed calls alone."""

    def hook(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        said = output[0]
        is_meant = "packed_rows" in kwargs and only_in in (None, said.dtype)
        return (said * factor, *output[1:]) if is_meant else output

    return hook


def _shift_positions(module: Any, args: Any, kwargs: Any) -> Any:
    """Rotate by the place in the tensor instead of the position."""
    cos, sin = kwargs["position_embeddings"]
    return args, kwargs | {"position_embeddings": (cos.roll(1, dims=1), sin)}
