"""The optimisation half of a round: the generator is drawn towards the targets by weighted cross-entropy.

``loss = -(1/B) sum over B tasks, sum over G of Q(G) log P(G | q, C_K)``, with the exact probability of the graph. Its
least value is the targets' mean entropy; what is logged as ``kl`` is the distance from there.

Everything a step depends on is derived from its number, so that a run resumed from a checkpoint takes the same steps.

Source: K-GAT, arXiv:2608.27984, equation 10.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from provgym.generators.kgat_context import ContextBatch
from provgym.generators.kgat_model import KgatModel
from provgym.generators.seeds import Purpose, derive_rng
from provgym.generators.topology_targets import TaskTarget
from provgym.trainers.kgat_learning_config import KgatOptimConfig


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What one optimiser step came to.

    Attributes:
        loss: Weighted cross-entropy of the step's tasks, in nats, >= their entropy.
        kl: Loss minus the targets' mean entropy: 0 if the generator matches them.
        grad_norm: Before clipping.
        learning_rate: Of this step.
        is_skipped: Whether the gradient was not finite, so that nothing changed.
    """

    loss: float
    kl: float
    grad_norm: float
    learning_rate: float
    is_skipped: bool

    def to_log(self) -> dict[str, float | int | None]:
        """Return the figures by the names that they are logged under."""
        return {
            "train/loss": self.loss,
            "train/kl": self.kl,
            "train/grad_norm": self.grad_norm,
            "train/learning_rate": self.learning_rate,
            "train/skipped_steps": int(self.is_skipped),
        }


def new_optimizer(model: KgatModel, config: KgatOptimConfig) -> torch.optim.AdamW:
    """Return the optimiser of a run."""
    return torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)


def learning_rate_of(step: int, total_steps: int, config: KgatOptimConfig) -> float:
    """Return the learning rate of a step.

    Args:
        step: Counted from 0 over the whole run.
        total_steps: Of all rounds.
        config: Peak, warm-up and schedule.

    Example:
        >>> config = KgatOptimConfig(learning_rate=1.0, warmup_steps=2, schedule="linear")
        >>> [round(learning_rate_of(step, 12, config), 2) for step in (0, 1, 2, 11)]
        [0.5, 1.0, 1.0, 0.1]
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    left = max(1, total_steps - config.warmup_steps - 1)
    return config.learning_rate * (1.0 - 0.9 * (step - config.warmup_steps) / left)


def learning_rate_in_round(step: int, rounds: int, config: KgatOptimConfig) -> float:
    """Return the learning rate of a step of the run, counted from 0, whether or not rounds restart.

    Example:
        >>> config = KgatOptimConfig(steps_per_round=10, learning_rate=1.0, warmup_steps=2)
        >>> [round(learning_rate_in_round(step, 3, config), 2) for step in (0, 2, 9, 10)]
        [0.5, 1.0, 0.1, 0.5]
    """
    if config.restarts:
        return learning_rate_of(step % config.steps_per_round, config.steps_per_round, config)
    return learning_rate_of(step, rounds * config.steps_per_round, config)


def tasks_of_step(step: int, usable: Sequence[int], per_step: int, run_seed: int) -> list[int]:
    """Return the tasks of a step counted from 0: epochs of shuffled tasks, cut into steps.

    Args:
        step: Since the start of the run.
        usable: Numbers of the tasks that have a target, ascending, at least one.
        per_step: Tasks in a step; fewer if there are not as many.
        run_seed: Of the run.
    """
    size = min(per_step, len(usable))
    steps_per_epoch = math.ceil(len(usable) / size)
    epoch, place = divmod(step, steps_per_epoch)
    order = derive_rng(run_seed, Purpose.TOPOLOGY_BATCHES, epoch, len(usable)).permutation(len(usable))
    chosen = order[place * size : (place + 1) * size]
    return sorted(usable[int(number)] for number in chosen)


def matching_loss(model: KgatModel, contexts: ContextBatch, targets: Sequence[TaskTarget]) -> tuple[Tensor, float]:
    """Return the weighted cross-entropy, and the targets' mean entropy, both in nats per task.

    Args:
        model: The generator.
        contexts: (B, ...) one row per target.
        targets: B targets, each with at least one kept candidate.

    Returns:
        A scalar with gradient, and its least value.
    """
    kept = [target.kept for target in targets]
    log_probs = model.log_prob(contexts, [[candidate.topology for candidate in row] for row in kept])  # (P,)
    shares = [candidate.target for row in kept for candidate in row]
    weights = torch.tensor(shares, dtype=log_probs.dtype, device=log_probs.device)  # (P,)
    entropy = -math.fsum(share * math.log(share) for share in shares) / len(targets)
    return -(weights * log_probs).sum() / len(targets), entropy


def optimise_step(
    model: KgatModel,
    optimizer: torch.optim.Optimizer,
    contexts: ContextBatch,
    targets: Sequence[TaskTarget],
    config: KgatOptimConfig,
    learning_rate: float,
) -> StepFigures:
    """Take one step; a gradient that is not finite changes nothing and is counted.

    Args:
        model: Changed in place.
        optimizer: Of its parameters.
        contexts: (B, ...) the step's tasks.
        targets: B targets.
        config: Clipping.
        learning_rate: Of this step.
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.zero_grad(set_to_none=True)
    loss, entropy = matching_loss(model, contexts, targets)
    loss.backward()
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm))
    is_finite = math.isfinite(norm) and math.isfinite(float(loss.detach()))
    if is_finite:
        optimizer.step()
    value = float(loss.detach())
    return StepFigures(value, value - entropy, norm, learning_rate, not is_finite)
