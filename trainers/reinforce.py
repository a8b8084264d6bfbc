"""REINFORCE with a baseline on K-GAT's world: the comparison with what G-Designer and its family do.

``accelerate launch --config_file configs/accelerate/cpu1.yaml -m provgym.trainers.reinforce --config FILE``

Tasks, agents, prices and generator are those of :mod:`provgym.trainers.kgat`; what a step does stands in
:mod:`provgym.trainers.reinforce_step`. One process; the run is named ``NAME-reinforce``. Killed and started again, it
goes on from its newest checkpoint and ends the same.

Source: Williams 1992, doi:10.1007/BF00992696.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from provgym.envs.workflow import WorkflowRuntime
from provgym.eval.processes import SingleProcess
from provgym.eval.run_files import write_atomic, write_json_atomic
from provgym.eval.walk_config import config_hash
from provgym.generators.kgat_folder import StoredGenerator, save_generator
from provgym.generators.weights_fingerprint import weights_fingerprint
from provgym.trainers.checkpoints import Origin, choose_checkpoint, find_resume_point, whole_checkpoints
from provgym.trainers.command_line import main_of_run
from provgym.trainers.config_file import changed_keys, dump_config, load_config
from provgym.trainers.kgat_checkpoints import load_checkpoint, read_notes, save_checkpoint
from provgym.trainers.kgat_config import KgatConfig, KgatEvaluationConfig
from provgym.trainers.kgat_dev import SELECTION, DevFigures, dev_figures
from provgym.trainers.kgat_training import seen_by_generator
from provgym.trainers.kgat_world import KgatWorld, build_world
from provgym.trainers.launch import join_world, sole_trainer, throw_away
from provgym.trainers.papt_config import TrackingConfig
from provgym.trainers.reinforce_step import ReinforceTrainer
from provgym.trainers.step_record import RunStopped
from provgym.trainers.tracking import Tracker

SUFFIX = "-reinforce"
NOT_TRAINING = ("name", "runs_dir", "evaluation", "tracking", "num_processes", "curriculum", "mining", "optim")
"""Keys that do not decide what REINFORCE learns."""

_PER_RUN = ("steps", "tasks_per_step", "samples", "replicates")


def training_hash(config: KgatConfig) -> str:
    """Hash what decides the trained generator."""
    plain = KgatConfig(name="run")
    kept = {key: getattr(plain, key) for key in NOT_TRAINING if key not in ("optim", "evaluation", "tracking")}
    kept |= {"evaluation": KgatEvaluationConfig(), "tracking": TrackingConfig()}
    kept["optim"] = plain.optim.model_copy(
        update={"max_grad_norm": config.optim.max_grad_norm, "threads": config.optim.threads}
    )
    return config_hash(config.model_copy(update=kept))


def train(config: KgatConfig, world: KgatWorld, runtime: WorkflowRuntime, *, shows: bool = False) -> ReinforceTrainer:
    """Train from the newest checkpoint, or from the start, to the last step.

    Args:
        config: The run.
        world: Tasks and what is seen of them.
        runtime: Executes topologies.
        shows: Whether to show a progress bar.

    Raises:
        RunStopped: If going on would be wasted.
        ValueError: If the run was begun under another configuration.
    """
    hash_, folder, steps = training_hash(config), config.run_dir / "checkpoints", config.reinforce.steps
    changes = changed_keys(config.run_dir / "config.yaml", config, except_for=NOT_TRAINING)
    resume = find_resume_point(folder, hash_, changes)
    write_atomic(config.run_dir / "config.yaml", [dump_config(config).encode()])
    trainer, start = ReinforceTrainer(config, world, runtime), 0
    if resume is not None:
        load_checkpoint(resume.path, trainer.model, trainer.optimizer)
        stored = read_notes(resume.path)["running_mean"]
        trainer.running_mean, start = math.nan if stored is None else stored, resume.step
    tracker = Tracker(
        config.run_dir,
        config.tracking,
        config.model_dump(mode="json"),
        training_hash=hash_,
        run_id=None if resume is None else resume.origin.wandb_id,
        is_main=True,
    )
    with tracker, tqdm(total=steps, initial=start, desc="reinforce", disable=not shows, mininterval=2) as bar:
        origin = Origin(hash_, tracker.run_id, 1)
        for step in range(start, steps):
            figures = trainer.step(step)
            tracker.log(step + 1, figures.to_log())
            bar.update(1)
            if (step + 1) % config.checkpoints.every == 0 or step + 1 == steps:
                mean = None if math.isnan(trainer.running_mean) else trainer.running_mean
                notes = {"running_mean": mean}
                save_checkpoint(folder, step + 1, trainer.model, trainer.optimizer, origin, notes)
    return trainer


def run(config: KgatConfig, *, fresh: bool = False) -> dict[str, Any]:
    """Train, choose a checkpoint on dev, and measure; leaves the generator's folder and ``summary.json``.

    ``provgym eval topology --run RUN --generator RUN-reinforce`` plays it beside the baselines, with intervals.

    Args:
        config: The run; its name gets the suffix ``-reinforce``.
        fresh: Throw an earlier run of this name away instead of going on with it.

    Returns:
        What ``summary.json`` holds.

    Raises:
        RunStopped: If several processes were launched, or going on would be wasted.
        ValueError: If the run was begun under another configuration.
    """
    config = config.model_copy(update={"name": config.name + SUFFIX})
    launched = join_world(config)
    if launched.size > 1:
        raise RunStopped(
            f"REINFORCE runs in one process, found {launched.size}; launch with configs/accelerate/cpu1.yaml"
        )
    torch.set_num_threads(config.optim.threads)
    world = build_world(config)
    with sole_trainer(config, launched):
        if fresh:
            throw_away(config.run_dir)
        runtime = world.open_runtime(config)
        trainer = train(config, world, runtime, shows=True)
        trained = runtime.ledger.totals("train")
        chosen = _select(config, world, runtime, trainer)
        about = {"name": config.name, "seed": config.seed, "training_hash": training_hash(config)}
        sees = config.conditioning == "evidence"
        stored = StoredGenerator(trainer.model, world.encoder.fingerprint, sees, about)
        save_generator(config.run_dir / "generator", stored)
        figures = {split: _measure(config, world, runtime, trainer, split) for split in ("dev", "test")}
        summary = {
            "name": config.name,
            "seed": config.seed,
            "config_hash": config_hash(config),
            "training_hash": training_hash(config),
            "trained_fingerprint": weights_fingerprint(trainer.model),
            "steps": config.reinforce.steps,
            "selected_step": chosen,
            "executions": math.prod(getattr(config.reinforce, name) for name in _PER_RUN),
            "calls_this_segment": {"paid": trained.paid_calls, "cached": trained.cached_calls},
            **{split: found.to_json() for split, found in figures.items()},
        }
        write_json_atomic(config.run_dir / "summary.json", summary)
    test = figures["test"].figures
    shown = ", ".join(f"{name} {test[name]:.3f}" for name in ("accuracy", "score", "nodes", "tokens"))
    print(f"{config.name}, test, greedy teams: {shown}\nRun files: {config.run_dir}/")
    return summary


def _select(config: KgatConfig, world: KgatWorld, runtime: WorkflowRuntime, trainer: ReinforceTrainer) -> int:
    """Load the checkpoint of the best dev score, as K-GAT chooses among its rounds; returns its step."""
    scores = {}
    for checkpoint in whole_checkpoints(config.run_dir / "checkpoints"):
        load_checkpoint(checkpoint.path, trainer.model)
        scores[checkpoint.step] = _measure(config, world, runtime, trainer, "dev").figures[SELECTION]
    chosen = choose_checkpoint(scores, "max")
    load_checkpoint(config.run_dir / "checkpoints" / f"checkpoint-{chosen}", trainer.model)
    return chosen


def _measure(
    config: KgatConfig, world: KgatWorld, runtime: WorkflowRuntime, trainer: ReinforceTrainer, split: str
) -> DevFigures:
    chosen = world.splits[split]
    path: Path = config.run_dir / f"{split}-{weights_fingerprint(trainer.model)}.json"
    replicates = config.checkpoints.dev_replicates if split == "dev" else config.evaluation.replicates
    return dev_figures(
        path,
        trainer.model,
        seen_by_generator(chosen.contexts, config),
        chosen.seen,
        runtime,
        config.score.rule(),
        replicates,
        SingleProcess(),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and run; returns the exit status."""
    return main_of_run(
        arguments,
        name="reinforce",
        text=__doc__,
        example="--config configs/kgat/simulated.yaml --reinforce.steps 50",
        kind="K-GAT",
        goes_on="goes on from the last checkpoint",
        train=lambda path, overrides, fresh: run(load_config(KgatConfig, path, overrides), fresh=fresh),
    )


if __name__ == "__main__":
    sys.exit(main())
