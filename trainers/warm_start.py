"""Warm start of the tiny policy: a reading drill, then cloning of a deliberately naive walker.

The result knows the action grammar, reads stances, and answers by the majority over *paths* among what it walked:
it counts echoes. Nothing in it was taught about distinct sources; that is left for PAPT to learn.

``provgym warm-start --config configs/papt/warm-start.yaml`` rebuilds the shipped weights.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from provgym.eval.run_files import write_json_atomic
from provgym.generators.graphecho import GraphEcho
from provgym.generators.seeds import Purpose, derive_seed
from provgym.generators.tiny import PAD, TinyDialogue, build_model, build_tokenizer, vocabulary
from provgym.generators.writable_folder import check_writable
from provgym.trainers.warm_start_config import WarmStartConfig
from provgym.trainers.warm_start_rows import WarmStartRow, batches

MICRO_BATCH = 12


def cloning_loss(
    model: LlamaForCausalLM, readout: Readout, batch: list[WarmStartRow], pad_id: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the summed cross-entropies of the action tokens, of the stances and of the familiar sources."""
    width = max(len(s.ids) for s in batch)
    ids = torch.tensor([s.ids + [pad_id] * (width - len(s.ids)) for s in batch])  # (B, T)
    mask = torch.tensor([s.mask + [0] * (width - len(s.mask)) for s in batch])[:, 1:].float()  # (B, T-1)
    attention = torch.tensor([[1] * len(s.ids) + [0] * (width - len(s.ids)) for s in batch])  # (B, T)
    states = model.model(input_ids=ids, attention_mask=attention, output_hidden_states=True).hidden_states
    hidden, middle = states[-1], states[len(states) // 2]  # (B, T, d); decisions can only use what came before them
    rows, columns = torch.nonzero(mask, as_tuple=True)
    logits = model.lm_head(hidden[rows, columns])  # (number of action tokens, V)
    action_loss = nn.functional.cross_entropy(logits, ids[rows, columns + 1], reduction="sum")
    stance_loss = _readout_loss(readout.stance, hidden, [q.stances for q in batch])
    return action_loss, stance_loss, _readout_loss(readout.familiar, middle, [q.familiar for q in batch])


def _readout_loss(head: nn.Linear, hidden: Tensor, places: list[list[tuple[int, int]]]) -> Tensor:
    """Return the summed cross-entropy of a linear read-out at the marked positions of (B, T, d) states."""
    flat = [(b, position, label) for b, marked in enumerate(places) for position, label in marked]
    if not flat:
        return hidden.new_zeros(())
    b, position, label = (torch.tensor(column) for column in zip(*flat, strict=True))
    return nn.functional.cross_entropy(head(hidden[b, position]), label, reduction="sum")


class Readout(nn.Module):
    """Linear read-outs of what was read; trained along and thrown away."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.stance = nn.Linear(hidden_size, 2)
        self.familiar = nn.Linear(hidden_size, 2)


def warm_start(config: WarmStartConfig, on_step: Callable[[int, int, float, float], None] | None = None) -> Path:
    """Train the naive start and save it with its tokenizer.

    Args:
        config: What to do.
        on_step: Called with (step, steps in all, action loss, stance loss).

    Returns:
        The folder, ``config.out``.

    Raises:
        OSError: If that folder cannot be written; it is asked about first.
    """
    check_writable(config.out, "--out")
    tokenizer = build_tokenizer()
    dialogue = TinyDialogue(tokenizer)
    model = build_model(
        derive_seed(config.seed, Purpose.INITIALISATION) % 2**31,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        initializer_range=config.initializer_range,
    )
    stream = batches(GraphEcho.generate(config.data_seed), dialogue, config)
    first_stage = config.drill_steps + config.clone_steps
    history: list[tuple[float, float, float]] = []
    for steps, peak in ((first_stage, config.learning_rate), (config.confirm_steps, config.confirm_learning_rate)):
        stage = _Stage(model, config, steps, peak)
        for batch in itertools.islice(stream, steps):
            history.append(stage.step(batch))
            if on_step is not None:
                on_step(len(history), first_stage + config.confirm_steps, *history[-1][:2])
    config.out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(config.out)
    tokenizer.save_pretrained(config.out)
    write_json_atomic(config.out / "warm_start.json", config.model_dump(mode="json", exclude={"out"}))
    write_json_atomic(config.out / "loss.json", history)
    return config.out


class _Stage:
    """An optimiser, a cosine schedule and a stance read-out of their own."""

    def __init__(self, model: LlamaForCausalLM, config: WarmStartConfig, steps: int, peak: float) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self._readout = Readout(config.hidden_size)
        self._model, self._steps, self._peak = model, steps, peak
        self._stance_loss_weight = config.stance_loss_weight
        self._familiar_loss_weight = config.familiar_loss_weight
        self._parameters = [*model.parameters(), *self._readout.parameters()]
        self._optimizer = torch.optim.AdamW(self._parameters, lr=peak, betas=(0.9, 0.98), weight_decay=0.01)
        self._done = 0

    def step(self, batch: list[WarmStartRow]) -> tuple[float, float, float]:
        """Take one step; returns the losses of actions, stances and familiar sources."""
        cosine = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * self._done / self._steps))
        for group in self._optimizer.param_groups:
            group["lr"] = self._peak * min(1.0, (self._done + 1) / 30) * cosine
        self._done += 1
        sizes = [sum(sum(q.mask[1:]) for q in batch)]
        sizes += [max(1, sum(len(q.stances) for q in batch)), max(1, sum(len(q.familiar) for q in batch))]
        weights = (1.0, self._stance_loss_weight, self._familiar_loss_weight)
        by_length = sorted(batch, key=lambda q: len(q.ids))  # little padding within a part
        totals = [0.0, 0.0, 0.0]
        self._optimizer.zero_grad()
        for start in range(0, len(by_length), MICRO_BATCH):
            part = by_length[start : start + MICRO_BATCH]
            found = cloning_loss(self._model, self._readout, part, vocabulary().index(PAD))
            losses = [loss / size for loss, size in zip(found, sizes, strict=True)]
            weighted = [w * loss for w, loss in zip(weights, losses, strict=True)]
            torch.autograd.backward(sum(weighted[1:], start=weighted[0]))
            totals = [t + float(loss.detach()) for t, loss in zip(totals, losses, strict=True)]
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        return totals[0], totals[1], totals[2]
