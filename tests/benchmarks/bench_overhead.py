"""What share of a PAPT step is neither the model's forward pass, nor its backward pass, nor the optimiser.

Run by hand: ``python -m tests.benchmarks.bench_overhead tiny``; ``make bench`` calls :func:`measure`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from provgym.trainers import papt
from provgym.trainers.config_file import load_config
from provgym.trainers.launch import join_world
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.policy_loading import load_trainable
from provgym.trainers.trl_bridge import PaptTrainer

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGS = {"tiny": "configs/papt/tiny.yaml", "smollm2": "configs/papt/smollm2-135m.yaml"}
WARM_UP_STEPS = 3
RESAMPLES = 2_000

Part = Literal["forward", "backward", "optimiser"]


@dataclass
class StepClock:
    """Adds up the seconds of a step's useful parts; a part inside another counts once, for the outer one.

    Attributes:
        now: Seconds from some fixed moment.
        steps: For each finished step its seconds: those of each part, and ``step`` for all of it.
    """

    now: Callable[[], float] = time.perf_counter
    steps: list[dict[str, float]] = field(default_factory=list)
    _depth: int = 0
    _began: float = 0.0
    _step_began: float | None = None
    _parts: dict[str, float] = field(default_factory=dict)

    def enter(self) -> None:
        """A part begins."""
        if self._depth == 0:
            self._began = self.now()
        self._depth += 1

    def leave(self, part: Part) -> None:
        """A part ends."""
        self._depth -= 1
        if self._depth == 0:
            self._parts[part] = self._parts.get(part, 0.0) + self.now() - self._began

    def end_step(self) -> None:
        """A step ends, and the next begins; what came before the first call is not kept."""
        now = self.now()
        if self._step_began is not None:
            self.steps.append({**self._parts, "step": now - self._step_began})
        self._step_began, self._parts = now, {}


def overhead_share(steps: Sequence[dict[str, float]]) -> float:
    """Return 1 − (forward + backward + optimiser) / step time, over all given steps together."""
    useful = sum(seconds for step in steps for part, seconds in step.items() if part != "step")
    return 1.0 - useful / sum(step["step"] for step in steps)


def overhead_figure(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the share as ``{value, low, high, n}``: a 95 % bootstrap interval over n steps."""
    rng = np.random.default_rng(0)
    drawn = [
        overhead_share([steps[int(i)] for i in rng.integers(len(steps), size=len(steps))]) for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return {"value": overhead_share(steps), "low": float(low), "high": float(high), "n": len(steps)}


def clock_module(module: nn.Module, clock: StepClock) -> None:
    """Count a module's forward passes."""
    module.register_forward_pre_hook(lambda *_: clock.enter())
    module.register_forward_hook(lambda *_: clock.leave("forward"), always_call=True)


class _StepEnds(TrainerCallback):
    """Tells the clock where steps end, and when there is an optimiser to listen to."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        optimizer = kwargs["optimizer"]
        optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate's wrapper
        optimizer.register_step_pre_hook(lambda *_: self._clock.enter())
        optimizer.register_step_post_hook(lambda *_: self._clock.leave("optimiser"))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._clock.end_step()


def attach(clock: StepClock, trainer: PaptTrainer) -> None:
    """Make a trainer's model, backward passes, optimiser and steps tell the clock.

    The roll-out calls decoder and head apart, training calls the whole model (TRL computes log-probabilities and
    entropies inside that call): all three are listened to.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    for module in dict.fromkeys((trainer.model, model, base.get_decoder(), base.get_output_embeddings())):
        clock_module(module, clock)
    backward = trainer.accelerator.backward

    def clocked_backward(*args: Any, **kwargs: Any) -> None:
        clock.enter()
        try:
            backward(*args, **kwargs)
        finally:
            clock.leave("backward")

    trainer.accelerator.backward = clocked_backward
    trainer.add_callback(_StepEnds(clock))


@contextmanager
def clocked_training(clock: StepClock) -> Iterator[None]:
    """Let every trainer made inside tell the clock."""

    class ClockedTrainer(PaptTrainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            attach(clock, self)

    with mock.patch.object(papt, "PaptTrainer", ClockedTrainer):
        yield


def measure(policy: str, *, steps: int = 30, start: Path | None = None, adapter: Path | None = None) -> dict[str, Any]:
    """Train with the shipped configuration and return the overhead share and where the time went.

    Checkpoints are not written; everything else is as in a run, W&B (offline) and progress included.

    Args:
        policy: ``tiny`` or ``smollm2``.
        steps: Steps measured, after three for warm-up.
        start: A warm-started folder to use instead of the shipped one (``tiny`` only).
        adapter: A warm-started adapter to go on from (``smollm2`` only). Without one the model writes prose until its
            actions are spent: steps are longer, and the share is smaller than in a real run.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="provgym-bench-") as folder:
        total = steps + WARM_UP_STEPS
        begun = "null" if adapter is None else str(adapter)
        overrides = ["--runs_dir", folder, "--checkpoints.every", str(total + 1), "--model.adapter", begun]
        if start is not None:
            overrides += ["--model.path", str(start)]
        config = load_config(PaptConfig, str(REPOSITORY / CONFIGS[policy]), overrides)
        last = config.phases[-1].model_copy(update={"steps": total})
        config = config.model_copy(update={"phases": (last,)})
        clock = StepClock()
        with clocked_training(clock):
            papt.train(config, load_trainable(config.model), join_world(config), None)
    measured = clock.steps[WARM_UP_STEPS - 1 :]  # the first step has no beginning on the clock
    mean = {part: sum(s.get(part, 0.0) for s in measured) / len(measured) for part in ("step", *_PARTS)}
    return {"share": overhead_figure(measured), "seconds": mean}


_PARTS: tuple[Part, ...] = ("forward", "backward", "optimiser")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policy", choices=sorted(CONFIGS))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--start", type=Path, help="a warm-started folder instead of the shipped one (tiny)")
    parser.add_argument("--adapter", type=Path, help="a warm-started adapter to go on from (smollm2)")
    options = parser.parse_args()
    found = measure(options.policy, steps=options.steps, start=options.start, adapter=options.adapter)
    print(json.dumps(found, indent=2))
