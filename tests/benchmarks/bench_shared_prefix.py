"""Training forward and backward with shared prefixes, against TRL's own padded one.

Run by hand: ``python -m tests.benchmarks.bench_shared_prefix tiny``; ``make bench`` calls :func:`measure`.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from tests.benchmarks.bench_rollout import speedup_figure
from tests.benchmarks.trl_tool_loop import Elapsed, Stopwatch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head, shuffle_sequence_dict, split_tensor_dict

from provgym.generators.engine import Sampling
from provgym.generators.episode import Episode, EpisodeTask
from provgym.generators.hf_engine import HFEngine
from provgym.generators.rollout import LanguageModelPolicy
from provgym.trainers.config_file import load_config
from provgym.trainers.micro_batches import split_by_length
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.policy_loading import load_trainable
from provgym.trainers.prefix_sharing import PrefixSharing
from provgym.trainers.training_rows import TrainingRows, load_pool
from provgym.trainers.trl_bridge import PaptTrainer

REPOSITORY = Path(__file__).resolve().parents[2]
LONG_PROMPT, LONG_COMPLETION, LONG_GROUP = 1024, 256, 8
SMOLLM2_SHAPE: dict[str, Any] = {
    # HuggingFaceTB/SmolLM2-135M's config.json; random weights take as long as trained ones
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
REPEATS = {"tiny": 5, "long": 2}
MAX_LOGPROB_GAP = 1e-3
MAX_GRADIENT_GAP = 1e-3

Slices = Sequence[dict[str, Any]]


class Workload(NamedTuple):
    """What both sides compute.

    Attributes:
        model: As TRL prepares it.
        batch: TRL's inputs of a step, the members of a group adjacent.
        slices: Micro-batches of separate rows.
        shared_slices: Micro-batches with shared prefixes.
    """

    model: PreTrainedModel
    batch: dict[str, Any]
    slices: int
    shared_slices: int


class Computed(NamedTuple):
    """What a side computed, and how long it took.

    Attributes:
        time: Of layout, forward and backward passes over all micro-batches.
        logprobs: Sum over trained tokens of log-probability times weight.
        gradient: All gradients as one vector.
    """

    time: Elapsed
    loss: float
    gradient: Tensor


def played_step(folder: Path) -> Workload:
    """Play the first step of a shipped configuration, one with one judgement of each walk, with the shipped start."""
    overrides = ["--runs_dir", str(folder), "--optim.shared_prefix", "off"]
    config = load_config(PaptConfig, str(REPOSITORY / "configs/papt/tiny-split.yaml"), overrides)
    policy = load_trainable(config.model)

    def play(model: PreTrainedModel, tasks: Sequence[EpisodeTask]) -> list[Episode]:
        engine = HFEngine(model, max_rows=config.generation.max_rows, max_length=config.generation.max_length)
        sampling = Sampling(config.optim.temperature)
        return LanguageModelPolicy("training", engine, policy.dialogue, sampling).play(tasks)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        rows = TrainingRows(config, load_pool(config.data))
        trainer: Any = PaptTrainer(
            config, policy.model, policy.tokenizer, rows, play, lora=None, output_dir=folder / "out"
        )
    groups = range(config.optim.groups_per_step)
    prompts = [{"prompt": str(row)} for row in groups for _ in range(config.optim.group_size)]
    trainer.model.train()
    batch = trainer._generate_and_score_completions(prompts)
    slices = trainer.args.steps_per_generation
    return Workload(trainer.model, batch, slices, slices)


def long_group(
    shape: dict[str, Any],
    prompt: int = LONG_PROMPT,
    completion: int = LONG_COMPLETION,
    group: int = LONG_GROUP,
    *,
    rows_at_once: int = 2,
) -> Workload:
    """Make one group of random ids, whose every completion token is trained.

    Args:
        shape: Of the Llama-type model, with random weights.
        prompt: P.
        completion: C, of every row.
        group: G.
        rows_at_once: Rows in a micro-batch of separate rows; all 8 at once would need 15 GB of activations.
    """
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**shape))
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    ids = torch.randint(shape["vocab_size"], (group, completion))
    batch = {
        "prompt_ids": torch.randint(shape["vocab_size"], (1, prompt)).repeat(group, 1),
        "prompt_mask": torch.ones(group, prompt, dtype=torch.long),
        "completion_ids": ids,
        "completion_mask": torch.ones_like(ids),
        "tool_mask": torch.ones_like(ids),
    }
    return Workload(model.train(), batch, group // rows_at_once, 1)


def token_bound(batch: dict[str, Any]) -> float:
    """Return how many times the tokens rows have that are padded and repeat the prompt: G(P+C_max) / (P + sum C_i).

    Summed over groups, each padded to its own widths; equal prompts are one group.
    """
    lengths: dict[tuple[int, ...], list[int]] = {}
    prompts = zip(batch["prompt_ids"], batch["prompt_mask"].bool(), strict=True)
    for (ids, mask), completion in zip(prompts, batch["completion_mask"].sum(dim=1).tolist(), strict=True):
        lengths.setdefault(tuple(ids[mask].tolist()), []).append(completion)
    padded = sum(len(found) * (len(prompt) + max(found)) for prompt, found in lengths.items())
    return padded / sum(len(prompt) + sum(found) for prompt, found in lengths.items())


def trl_logprobs(model: PreTrainedModel, part: dict[str, Any]) -> Tensor:
    """Return what TRL's own method returns for a micro-batch, (B, T)."""
    host = SimpleNamespace(
        accelerator=Accelerator(cpu=True), args=SimpleNamespace(report_to=[]), state=SimpleNamespace(global_step=0)
    )
    logprobs: Tensor = GRPOTrainer._get_per_token_logps_and_entropies(
        host,
        model,
        torch.cat([part["prompt_ids"], part["completion_ids"]], dim=1),
        torch.cat([part["prompt_mask"], part["completion_mask"]], dim=1),
        part["completion_ids"].shape[1],
        compute_entropy=True,
    )[0]
    return logprobs


def trl_split(batch: dict[str, Any], slices: int) -> Slices:
    """Split as TRL does: rows in random order, all as wide as the step's longest."""
    shuffled: Any = shuffle_sequence_dict(batch)
    return split_tensor_dict(shuffled, slices)


def compute(model: Any, split: Callable[[], Slices], logprobs: Callable[[dict[str, Any]], Tensor]) -> Computed:
    """Time the passes over all micro-batches that ``split`` makes; each token's loss has a weight of its own."""
    model.zero_grad(set_to_none=True)
    gc.collect()
    total = 0.0
    stopwatch = Stopwatch()
    for part in split():
        mask = part["completion_mask"] * part["tool_mask"]
        loss = (logprobs(part) * mask * part["weight"]).sum()
        loss.backward()
        total += loss.item()
    elapsed = stopwatch.read()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return Computed(elapsed, total, gradient)


def check_equal(ours: Computed, theirs: Computed) -> dict[str, float]:
    """Return how far apart both sides are.

    Raises:
        AssertionError: If loss or gradient differ by more than rounding explains.
    """
    loss_gap = abs(ours.loss - theirs.loss) / max(1.0, abs(theirs.loss))
    gradient_gap = float((ours.gradient - theirs.gradient).norm() / theirs.gradient.norm())
    assert loss_gap < MAX_LOGPROB_GAP, f"losses {ours.loss} and {theirs.loss} differ"
    assert gradient_gap < MAX_GRADIENT_GAP, f"gradients differ by {gradient_gap:.2g} of their norm"
    return {"loss_gap": loss_gap, "gradient_gap": gradient_gap}


def sides_of(work: Workload, *, separate: bool) -> dict[str, Callable[[], Computed]]:
    """Return what is measured, by name: TRL's way, ours, and if asked for our separate rows, ordered by length."""
    model, generator = work.model, torch.Generator().manual_seed(0)
    batch = work.batch | {"weight": torch.randn(work.batch["completion_ids"].shape, generator=generator)}
    sharing = PrefixSharing(model, "on")

    def from_trl(part: dict[str, Any]) -> Tensor:
        return trl_logprobs(model, part)

    def from_ours(part: dict[str, Any]) -> Tensor:
        return sharing.logprobs(model, part)[0]

    sides = {
        "trl": lambda: compute(model, lambda: trl_split(batch, work.slices), from_trl),
        "ours": lambda: compute(model, lambda: sharing.micro_batches(batch, work.shared_slices), from_ours),
    }
    if separate:
        sides["ours_separate"] = lambda: compute(model, lambda: split_by_length(batch, work.slices), from_trl)
    return sides


def tokens_of(work: Workload) -> dict[str, int]:
    """Return the tokens that TRL's side and ours compute, and those that are trained."""
    batch = work.batch
    shared = PrefixSharing(work.model, "on").micro_batches(batch, work.shared_slices)
    return {
        "trl": batch["prompt_ids"].numel() + batch["completion_ids"].numel(),
        "ours": sum(part["packed_rows"].num_tokens for part in shared),
        "trained": int((batch["completion_mask"] * batch["tool_mask"]).sum()),
    }


def compare(
    work: Workload, repeats: int, on_pass: Callable[[str, float], None] | None = None, *, separate: bool = True
) -> dict[str, Any]:
    """Check equality and measure the sides in turns.

    Args:
        work: What is computed.
        repeats: Times each side is measured.
        on_pass: Called with (side, seconds).
        separate: Also measure our separate rows (ordered by length, the head at every position).

    Returns:
        ``speedup`` over TRL's padded way; ``share_of_bound``; the sides' seconds, tokens and gaps.
    """
    torch.set_num_threads(1)
    sides = sides_of(work, separate=separate)
    times: dict[str, list[Elapsed]] = {name: [] for name in sides}
    gaps: dict[str, float] = {}
    for _ in range(repeats):
        computed = {name: side() for name, side in sides.items()}
        gaps = check_equal(computed["ours"], computed["trl"])
        for name, found in computed.items():
            times[name].append(found.time)
            if on_pass is not None:
                on_pass(name, found.time.seconds)
    seconds = {name: [t.seconds for t in found] for name, found in times.items()}
    cpu = {name: [t.cpu_seconds for t in found] for name, found in times.items()}
    speedup, bound = speedup_figure(seconds["ours"], seconds["trl"]), token_bound(work.batch)
    report = {
        "speedup": speedup,
        "speedup_in_cpu_time": speedup_figure(cpu["ours"], cpu["trl"]),
        "token_bound": bound,
        "share_of_bound": {key: v if key == "n" else v / bound for key, v in speedup.items()},
        "seconds": seconds,
        "cpu_seconds": cpu,
        "tokens": tokens_of(work),
    }
    if separate:
        report["speedup_over_rows_by_length"] = speedup_figure(cpu["ours"], cpu["ours_separate"])
    return report | gaps


def measure(name: str, on_pass: Callable[[str, float], None] | None = None) -> dict[str, Any]:
    """Measure one workload.

    Args:
        name: ``tiny`` (a step of the shipped configuration) or ``long`` (P=1024, C=256, G=8 in SmolLM2's shape).
        on_pass: Called with (side, seconds) after each.
    """
    torch.set_num_threads(1)
    if name == "long":
        return compare(long_group(SMOLLM2_SHAPE), REPEATS[name], on_pass, separate=False)
    with tempfile.TemporaryDirectory(prefix="provgym-bench-") as folder:
        return compare(played_step(Path(folder)), REPEATS[name], on_pass)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=sorted(REPEATS))
    options = parser.parse_args()
    print(json.dumps(measure(options.workload, on_pass=print), indent=2))
