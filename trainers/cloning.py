"""Behaviour cloning: a scripted walker's episodes as the ids that a policy would have left, and their loss.

Token in, token out: world text is encoded by the dialogue as in the roll-out, actions as the model would write them,
end token included, and nothing is ever encoded again. The loss is the cross-entropy of action tokens alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from provgym.envs.walk_text import GraphWalkTextEnv
from provgym.generators.engine import Dialogue
from provgym.generators.scripted import Walker
from provgym.trainers.prefix_tree import PackedRows, pack_rows
from provgym.trainers.shared_prefix import SharedPrefix, base_of, find_hindrance
from provgym.trainers.step_record import RunStopped

STUMBLES = (60, 100)
"""Numbers of the aliases that stumbles walk to; no walk of a few steps shows so many nodes in order of discovery. Where
aliases are shuffled, a stumble can hit a node that is there: it is then a walk like others, and not cloned either."""


class WalkedTurn(NamedTuple):
    """What a walker was shown, and what it wrote.

    Attributes:
        lines: The observation.
        action: In the short grammar.
        is_cloned: False for a stumble, which is shown but not learned.
    """

    lines: tuple[str, ...]
    action: str
    is_cloned: bool


def walked_turns(
    env: GraphWalkTextEnv, walker: Walker, rng: np.random.Generator, stumble_probability: float = 0.0
) -> Iterator[WalkedTurn]:
    """Play an episode that was begun; each turn is yielded before its action is taken.

    Args:
        env: With its episode begun.
        walker: Who plays.
        rng: Of the walker's choices and the stumbles.
        stumble_probability: Chance before each action of an illegal move instead, while more than one walk is left: the
            policy learns to go on after a mistake of its own.
    """
    done = False
    while not done:
        has_room = env.walk is not None and env.walk.budget_left > 1
        stumbles = has_room and rng.random() < stumble_probability
        action = f"walk n{rng.integers(*STUMBLES)}" if stumbles else walker(env, rng)
        yield WalkedTurn(env.observation_lines, action, not stumbles)
        _, _, terminated, truncated, _ = env.step(action)
        done = terminated or truncated


class ClonedRow(NamedTuple):
    """One episode as ids.

    Attributes:
        prompt_ids: Everything before the first action.
        completion_ids: Actions and, between them, the world's ids.
        mask: 1 for the ids of a cloned action; as long as ``completion_ids``.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int]

    @property
    def length(self) -> int:
        """Tokens in all."""
        return len(self.prompt_ids) + len(self.completion_ids)


def write_row(
    dialogue: Dialogue, turns: Iterable[tuple[Sequence[str], Sequence[int], bool]], instructions: str
) -> ClonedRow:
    """Write an episode as the roll-out would have left it.

    Args:
        dialogue: Frames world text.
        turns: (observation lines, ids said in answer, whether they are cloned), in order.
        instructions: System text.

    Raises:
        ValueError: If nothing in it is cloned: 0 tokens would be trained.
    """
    row = ClonedRow([], [], [])
    for lines, said, is_cloned in turns:
        if not row.prompt_ids:
            row.prompt_ids.extend(dialogue.opening(lines, instructions))
        else:
            world = dialogue.reply(lines, ended=True)
            row.completion_ids.extend(world)
            row.mask.extend([0] * len(world))
        row.completion_ids.extend(said)
        row.mask.extend([int(is_cloned)] * len(said))
    if not any(row.mask):
        raise ValueError(f"an episode of {row.length} tokens has 0 trained tokens; expected a cloned action in it")
    return row


RowsLoss = Callable[[Sequence[ClonedRow]], Tensor]
"""Sums the cross-entropy of the cloned tokens of some rows."""


def separate_loss(model: PreTrainedModel, rows: Sequence[ClonedRow]) -> Tensor:
    """Return the summed cross-entropy of cloned tokens, each row on its own; for LMs that :func:`check_head` passes."""
    base = base_of(model)
    whole = [[*row.prompt_ids, *row.completion_ids] for row in rows]
    ids = _padded(whole).to(base.device)  # (B, L); what stands behind a row in a causal model is never seen by it
    masks = [[0] * len(row.prompt_ids) + row.mask for row in rows]
    places, columns = torch.nonzero(_padded(masks)[:, 1:].to(base.device), as_tuple=True)
    hidden = base.get_decoder()(input_ids=ids).last_hidden_state  # (B, L, d)
    return _summed_loss(base, hidden[places, columns], ids[places, columns + 1])


class SharedLoss:
    """Sums the same cross-entropy with each beginning that rows have in common computed once.

    Args:
        model: A causal LM, plain or with LoRA.

    Raises:
        ValueError: If its kind of attention can't share prefixes.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        hindrance = find_hindrance(model)
        if hindrance is not None:
            raise ValueError(f"prefixes cannot be shared: {hindrance}; set shared_prefix to false")
        self._base = base_of(model)
        self._hooks = SharedPrefix(model)

    def close(self) -> None:
        """Leave the model as it was."""
        self._hooks.remove()

    def __call__(self, rows: Sequence[ClonedRow]) -> Tensor:
        """Return the summed cross-entropy of cloned tokens."""
        packed = _packed(rows, self._base.device)
        hidden = self._base.get_decoder()(
            input_ids=packed.input_ids[None],
            position_ids=packed.positions[None],
            # Four dimensions: the model passes it on as it is, instead of building an (N, N) mask.
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self._base.device),
            packed_rows=packed,
        ).last_hidden_state  # (1, N, d)
        return _summed_loss(self._base, hidden[0, packed.places], packed.targets)


def _packed(rows: Sequence[ClonedRow], device: torch.device) -> PackedRows:
    prompts, completions = [row.prompt_ids for row in rows], [row.completion_ids for row in rows]
    ones = [_padded([[1] * len(ids) for ids in part]).to(device) for part in (prompts, completions)]
    wanted = _padded([row.mask for row in rows]).to(device)
    return pack_rows(_padded(prompts).to(device), ones[0], _padded(completions).to(device), ones[1], wanted)


def _summed_loss(base: PreTrainedModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """Return the summed cross-entropy of (S, d) hidden states, in float32."""
    logits = base.get_output_embeddings()(hidden).float()  # (S, V)
    return nn.functional.cross_entropy(logits, targets, reduction="sum")


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Return rows as one (B, L) tensor, zeros behind each; no id stands for padding: lengths are known beside."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])


@torch.no_grad()
def check_head(model: PreTrainedModel) -> None:
    """Check that logits are the output embeddings' product alone, as the losses here compute them.

    Raises:
        ValueError: If the model scales or caps its logits: another distribution than the roll-out's would be cloned.
    """
    base = base_of(model)
    ids = torch.arange(4, device=base.device)[None]  # (1, 4)
    found: Tensor = base.get_output_embeddings()(base.get_decoder()(input_ids=ids).last_hidden_state)  # (1, 4, V)
    wanted: Tensor = base(input_ids=ids).logits  # (1, 4, V)
    if not torch.allclose(found.float(), wanted.float(), rtol=0.01, atol=0.01 * float(wanted.abs().max())):
        raise ValueError(
            f"model type {base.config.model_type!r} scales or caps its logits, which cloning leaves out; it cannot be "
            "warm-started"
        )


def cosine_scale(step: int, steps: int, warmup_steps: int) -> float:
    """Return the learning rate of a step (from 0) as a share of its peak: linear warm-up times half a cosine.

    Example:
        >>> [round(cosine_scale(step, 4, 2), 3) for step in range(4)]
        [0.5, 0.854, 0.5, 0.146]
    """
    warmth = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    return warmth * 0.5 * (1 + math.cos(math.pi * step / steps))


def cloning_step(
    optimizer: torch.optim.Optimizer,
    loss_of: RowsLoss,
    rows: Sequence[ClonedRow],
    *,
    micro_batch: int,
    max_grad_norm: float = 1.0,
) -> float:
    """Take one step on the mean over all cloned tokens of the rows, whatever the micro-batch.

    Args:
        optimizer: Of the weights that learn.
        loss_of: Sums the loss of some rows.
        rows: Of the step.
        micro_batch: Rows per forward and backward pass; rows of similar length go together.
        max_grad_norm: Gradient clipping.

    Returns:
        The loss, in nats a token.

    Raises:
        RunStopped: If the gradient is not finite; nothing was changed.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    tokens = sum(sum(row.mask) for row in rows)
    by_length = sorted(rows, key=lambda row: row.length)
    optimizer.zero_grad()
    total = 0.0
    for start in range(0, len(by_length), micro_batch):
        loss = loss_of(by_length[start : start + micro_batch]) / tokens
        torch.autograd.backward(loss)
        total += float(loss.detach())
    norm = nn.utils.clip_grad_norm_(parameters, max_grad_norm)
    if not bool(torch.isfinite(norm)):
        raise RunStopped(
            f"the gradient's norm is {float(norm)} at a loss of {total:.3f}, expected a finite one: lower learning_rate"
        )
    optimizer.step()
    return total
