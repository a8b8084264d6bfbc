"""The training forward with shared prefixes: log-probabilities of a batch, each token computed once.

TRL runs every row on its own: a group's prompt G times, padding, and (off the GPU) the output head for every position.
Here the rows go through the model as one packed sequence (:mod:`provgym.trainers.prefix_tree`), in which each segment
attends to the segments before it on its path (:mod:`provgym.trainers.prefix_attention`). The gradients of all rows meet
in the shared segments' keys and values, so loss and gradient are those of the rows computed one by one. The head sees
the wanted places only.

Works with decoders that rotate positions (Llama, Qwen2, Qwen3, SmolLM2, ...), plain or with LoRA;
:func:`find_hindrance` says by name what it does not work with.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from provgym.trainers.prefix_attention import LAYOUT_KEY, AttentionSwitch
from provgym.trainers.prefix_tree import PackedRows, pack_rows

_IMPLEMENTATIONS = ("sdpa", "eager")
_TOLERANCE = 1e-3  # nats, of the check at the start, in float32, whose rounding is below 1e-5
_ERROR_FACTOR = 3.0  # the check's in the model's own type: times the error that separate rows have there


def base_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return the causal LM under a PEFT adapter, or the model itself."""
    adapted: Any = model
    base: PreTrainedModel = adapted.get_base_model() if hasattr(model, "get_base_model") else model
    return base


def find_hindrance(model: PreTrainedModel) -> str | None:
    """Return why a model cannot share prefixes, or None.

    Looks at what the configuration says; :meth:`SharedPrefix.check` compares numbers.
    """
    base = base_of(model)
    config = base.config.get_text_config()
    kinds = sorted(set(getattr(config, "layer_types", None) or ["full_attention"]))
    implementation = config._attn_implementation
    layers = getattr(base.get_decoder(), "layers", None)
    attention = [getattr(layer, "self_attn", None) for layer in layers or ()]
    peft = next(iter(getattr(model, "peft_config", {}).values()), None)
    hindrances = {
        f"layers of type {kinds}, expected 'full_attention' throughout": kinds != ["full_attention"],
        f"a sliding window of {getattr(config, 'sliding_window', None)} tokens": bool(
            getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
        ),
        f"attention implementation {implementation!r}, expected one of {list(_IMPLEMENTATIONS)}": (
            implementation not in _IMPLEMENTATIONS
        ),
        "no rotary position embedding (learned, relative or no positions)": not hasattr(
            base.get_decoder(), "rotary_emb"
        ),
        "no attention layers at decoder.layers[i].self_attn": not attention or None in attention,
        f"attention_dropout={getattr(config, 'attention_dropout', 0.0)}, expected 0": bool(
            getattr(config, "attention_dropout", 0.0)
        ),
        "a router (mixture of experts), whose load-balancing loss needs whole rows": hasattr(
            config, "output_router_logits"
        ),
        "a prompt-learning adapter, expected LoRA or none": bool(getattr(peft, "is_prompt_learning", False)),
        "weights that are not here (sharded or on the meta device)": any(
            p.is_meta or p.numel() == 0 for p in model.parameters()
        ),
    }
    found = next((what for what, is_so in hindrances.items() if is_so), None)
    return None if found is None else f"model type {config.model_type!r} has {found}"


class SharedPrefix:
    """Lets a causal LM with TRL's fused head compute packed rows.

    The model itself is not changed: hooks of its attention layers and its decoder act on calls that carry a layout, and
    on no others. They also act when gradient checkpointing runs a layer again.

    Args:
        model: The model, plain or with LoRA, after TRL added its fused head.

    Raises:
        ValueError: If the model cannot share prefixes, naming why.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        hindrance = find_hindrance(model)
        if hindrance is not None:
            raise ValueError(f"shared prefixes cannot be computed: {hindrance}; set optim.shared_prefix to 'off'")
        decoder: Any = base_of(model).get_decoder()
        self._dtype = decoder.dtype
        self._at_work: PackedRows | None = None
        self._handles = [decoder.register_forward_hook(self._keep_wanted, with_kwargs=True)]
        for layer in decoder.layers:
            self._handles += AttentionSwitch(layer.self_attn).handles

    def remove(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()

    def __call__(self, model: nn.Module, rows: PackedRows) -> tuple[Tensor, Tensor]:
        """Compute packed rows.

        Args:
            model: The model as training calls it (wrapped for several processes, say).
            rows: S wanted log-probabilities.

        Returns:
            (S,) log-probabilities of the targets at TRL's temperature, and (S,) entropies.
        """
        self._at_work = rows
        try:
            found = model(
                input_ids=rows.input_ids[None],
                position_ids=rows.positions[None],
                # Four dimensions: the model passes it on as it is, instead of building an (N, N) mask.
                attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=rows.input_ids.device),
                shift_labels=rows.targets[None],
                fused_lm_head=True,
                **{LAYOUT_KEY: rows},
            )
        finally:
            self._at_work = None
        return found.log_probs[0], found.entropy[0]

    def _keep_wanted(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        """Leave the head only the hidden states it needs, (1, S, d); in our own calls, for others may share a model."""
        if self._at_work is not None:
            output.last_hidden_state = output.last_hidden_state[:, self._at_work.places]
        return output

    @torch.no_grad()
    def check(self, model: PreTrainedModel) -> None:
        """Compare with TRL's way on four short rows that share six tokens and part at the seventh and ninth.

        Rounding in half precision would hide an error of the layout, so the two ways are compared in float32: on a copy
        in host memory (4 bytes per parameter and process, for the moment of the check) if the model has another
        type. The model's own type is measured against that float32 reference: shared prefixes may be as far from it
        as separate rows are, and a little further.

        It finds layers that see what they should not, or at other positions: any difference of a thousandth of a nat
        in float32. It cannot find what eleven tokens do not show (a window or a scaling of positions that begins
        later), what only gradients show, what a kernel gets wrong by less than its own rounding, or what another
        layout of rows would show; and it says nothing of training mode.

        Raises:
            ValueError: If log-probabilities differ by more than rounding explains.
        """
        was_training = model.training
        model.eval()
        try:
            packed, plain = self._both_ways(model, model)
            exact_packed, exact = packed, plain
            if self._dtype != torch.float32:
                exact_packed, exact = self._both_ways(model, _Float32Copy(model))
        finally:
            model.train(was_training)
        gap = float((exact_packed - exact).abs().max())
        if not gap <= _TOLERANCE:
            raise ValueError(
                self._differs(model, f"{gap:.3g} nats from those of separate rows, at most {_TOLERANCE:g}")
            )
        if self._dtype == torch.float32:
            return
        error, usual = (float((found.float().cpu() - exact.cpu()).square().mean().sqrt()) for found in (packed, plain))
        bound = _ERROR_FACTOR * usual + torch.finfo(self._dtype).eps
        if not error <= bound:
            name = str(self._dtype).removeprefix("torch.")
            raise ValueError(
                self._differs(
                    model,
                    f"{error:.3g} nats (root mean square) in {name} from a float32 reference, separate rows by "
                    f"{usual:.3g}, at most {bound:.3g}",
                )
            )

    def _both_ways(self, model: PreTrainedModel, called: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the check's wanted log-probabilities, packed and from separate rows, both (S,)."""
        base: Any = base_of(model)
        vocabulary = base.get_input_embeddings().weight.shape[0]
        device = "cpu" if isinstance(called, _Float32Copy) else base.get_input_embeddings().weight.device
        ids = torch.arange(44, device=device).reshape(4, 11) % vocabulary  # (4, 11)
        ids[:, :6] = ids[0, :6]
        ids[:2, :8] = ids[0, :8]
        ones = torch.ones_like(ids)
        rows = pack_rows(ids[:, :4], ones[:, :4], ids[:, 4:], ones[:, 4:], ones[:, 4:], shortest_shared=1)
        packed, _ = self(called, rows)
        plain = called(input_ids=ids, attention_mask=ones, labels=ids, fused_lm_head=True).log_probs[:, 3:]  # (4, 7)
        return packed, plain[rows.rows, rows.columns]

    @staticmethod
    def _differs(model: PreTrainedModel, how: str) -> str:
        return (
            f"shared prefixes cannot be computed: model type {base_of(model).config.model_type!r} gives "
            f"log-probabilities that differ by {how} is expected; set optim.shared_prefix to 'off'"
        )


class _Float32Copy(nn.Module):
    """A model's float32 copy in host memory: the same modules and hooks, called with other tensors."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self._call: Callable[..., Any] = partial(functional_call, model, _in_float32(model), ())

    def forward(self, **inputs: Any) -> Any:
        return self._call(inputs)


def _in_float32(model: nn.Module) -> dict[str, Tensor]:
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    return {
        name: tensor.detach().to("cpu", torch.float32 if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in tensors
    }


def spread(values: Tensor, rows: PackedRows, background: Tensor) -> Tensor:
    """Put wanted values into a padded batch.

    Args:
        values: (S,).
        rows: Where they belong.
        background: (B, T), kept elsewhere.

    Returns:
        (B, T), differentiable in ``values``.
    """
    return background.to(values.dtype).index_put((rows.rows, rows.columns), values)
