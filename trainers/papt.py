"""PAPT: provenance-aware post-training with GRPO.

``accelerate launch --config_file configs/accelerate/cpu1.yaml -m provgym.trainers.papt --config FILE``

Any field can be set on the command line: ``--optim.learning_rate 1e-4``. A run that was interrupted goes on from its
newest whole checkpoint when the same command is given again, and ends with the same adapter as without interruption.

Source: GraphEcho, arXiv:2609.17695, section 4.3.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import PreTrainedModel
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from provgym.eval.run_files import write_atomic, write_json_atomic
from provgym.eval.walk_config import config_hash
from provgym.generators.chat_actions import instructions_of
from provgym.generators.engine import Sampling
from provgym.generators.rollout import LanguageModelPolicy
from provgym.generators.weights_fingerprint import weights_fingerprint
from provgym.generators.writable_folder import check_writable
from provgym.trainers.callbacks import CheckpointMarker, Recorder, StepGuard
from provgym.trainers.checkpoints import (
    Checkpoint,
    Origin,
    choose_checkpoint,
    find_resume_point,
    whole_checkpoints,
)
from provgym.trainers.command_line import main_of_run
from provgym.trainers.config_file import changed_keys, dump_config, load_config
from provgym.trainers.launch import World, join_world, sole_trainer, throw_away
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.papt_evaluation import (
    SELECTION,
    check_evaluation,
    dev_score,
    final_results,
    show_results,
    summary_of,
)
from provgym.trainers.policy_loading import TrainablePolicy, load_trainable
from provgym.trainers.saved_policy import load_saved_policy, save_policy
from provgym.trainers.tracking import Tracker
from provgym.trainers.training_engine import engine_for
from provgym.trainers.training_rows import TrainingRows, load_pool
from provgym.trainers.trl_arguments import grpo_arguments, lora_config
from provgym.trainers.trl_bridge import PaptTrainer, without_trl_deprecations

NOT_TRAINING = ("name", "runs_dir", "evaluation", "tracking", "num_processes")
"""Keys that do not decide the trained weights, and may change between the segments of a run."""


def training_hash(config: PaptConfig) -> str:
    """Hash what decides the trained weights; names, folders, evaluation and tracking may change between segments."""
    kept = config.model_copy(
        update={
            "name": "run",
            "runs_dir": Path("runs"),
            "evaluation": type(config.evaluation)(),
            "tracking": type(config.tracking)(),
            "num_processes": None,
        }
    )
    return config_hash(kept)


def check_trainer(config: PaptConfig) -> None:
    """Refuse what TRL could not begin with: a step that does not divide, or an engine that is not installed.

    Raises:
        ValueError: If a step's trajectories do not divide among processes and micro-batches.
        ModuleNotFoundError: If vLLM is asked for and not installed.
    """
    grpo_arguments(config, config.run_dir / "checkpoints")
    if config.generation.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        raise ModuleNotFoundError(
            "generation.engine='vllm' needs the package vllm, which is not installed; pip install 'trl[vllm]', or set "
            "generation.engine to hf"
        )


def find_start(config: PaptConfig, world: World) -> Checkpoint | None:
    """Return the checkpoint to go on from, the same on every process; None is the beginning.

    Raises:
        ValueError: If the run was begun under another configuration, or by another number of processes.
    """
    folder = config.run_dir / "checkpoints"
    if world.is_main:
        changes = changed_keys(config.run_dir / "config.yaml", config, except_for=NOT_TRAINING)
        find_resume_point(folder, training_hash(config), changes)
    PartialState().wait_for_everyone()
    found = whole_checkpoints(folder)
    resume = found[-1] if found else None
    if resume is not None and resume.step < config.total_steps and resume.origin.world_size != world.size:
        raise ValueError(
            f"{resume.path} was made by {resume.origin.world_size} processes, this run has {world.size}: an exact "
            "resume needs as many, because each has random numbers of its own; launch that many, or start over with "
            "--fresh"
        )
    return resume


def train(
    config: PaptConfig,
    policy: TrainablePolicy,
    world: World,
    resume: Checkpoint | None,
    rows: TrainingRows | None = None,
) -> PaptTrainer:
    """Train from the start or from a checkpoint; returns the finished trainer.

    Args:
        config: The run.
        policy: What is trained.
        world: The processes that train.
        resume: Where to go on from; None is the beginning.
        rows: What is walked; read as the configuration says if None.
    """
    folder = config.run_dir / "checkpoints"
    rows = rows or TrainingRows(config, load_pool(config.data))
    trainer: PaptTrainer

    def player(model: PreTrainedModel) -> LanguageModelPolicy:
        engine = engine_for(trainer, model, config.generation)
        sampling, instructions = Sampling(config.optim.temperature), instructions_of(config.model.grammar)
        return LanguageModelPolicy("training", engine, policy.dialogue, sampling, instructions=instructions)

    with without_trl_deprecations():
        trainer = PaptTrainer(
            config,
            policy.model,
            policy.tokenizer,
            rows,
            lambda model, tasks: player(model).play(tasks),
            judge_again=lambda model, forks: player(model).judge_again(forks),
            lora=lora_config(config),
            output_dir=folder,
        )
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    hash_ = training_hash(config)
    resolved = config.model_dump(mode="json")
    tracker = Tracker(
        config.run_dir,
        config.tracking,
        resolved,
        training_hash=hash_,
        run_id=None if resume is None else resume.origin.wandb_id,
        is_main=world.is_main,
    )
    with tracker:
        group_size = config.optim.group_size
        trainer.add_callback(StepGuard(lambda: trainer.last_step, group_size))
        trainer.add_callback(
            Recorder(
                tracker,
                lambda: trainer.last_step,
                group_size=group_size,
                episodes_every=config.tracking.episodes_every,
                shows=world.is_main,
            )
        )
        origin = Origin(hash_, tracker.run_id, world.size)
        trainer.add_callback(CheckpointMarker(folder, origin, keep=config.checkpoints.keep, is_main=world.is_main))
        with without_trl_deprecations():
            trainer.train(resume_from_checkpoint=None if resume is None else str(resume.path))
    return trainer


def select(config: PaptConfig, policy: TrainablePolicy, world: World) -> tuple[int, dict[int, dict[str, float]]]:
    """Score the last kept checkpoints on dev claims and return the chosen step with every score."""
    folder = config.run_dir / "checkpoints"
    candidates = whole_checkpoints(folder)[-config.checkpoints.select_last :]
    scores: dict[int, dict[str, float]] = {}
    for candidate in candidates:
        model = load_saved_policy(candidate.path, config)
        out = config.run_dir / "dev" / f"step-{candidate.step}"
        scores[candidate.step] = dict(dev_score(config, model, policy.dialogue, out, shows=world.is_main))
    by_step = {step: found[SELECTION] for step, found in scores.items()}
    return choose_checkpoint(by_step, config.checkpoints.direction), scores


def run(config: PaptConfig, *, fresh: bool = False) -> dict[str, Any]:
    """Train, select, evaluate, and leave the run's files; returns what ``summary.json`` holds.

    Args:
        config: The run.
        fresh: Throw an earlier run of this name away instead of going on with it.
    """
    started = time.time()
    world = join_world(config)
    # Before anything is thrown away or trained: what is missing or doesn't fit costs no earlier run and no hours.
    check_writable(config.run_dir, "runs_dir")
    check_trainer(config)
    policy = load_trainable(config.model)
    rows = TrainingRows(config, load_pool(config.data))
    check_evaluation(config, policy.model)
    with sole_trainer(config, world):
        return _run_checked(config, policy, world, rows, started, fresh=fresh)


def _run_checked(
    config: PaptConfig, policy: TrainablePolicy, world: World, rows: TrainingRows, started: float, *, fresh: bool
) -> dict[str, Any]:
    if fresh and world.is_main:
        throw_away(config.run_dir)
    PartialState().wait_for_everyone()
    hash_ = training_hash(config)
    resume = find_start(config, world)
    if world.is_main:
        write_atomic(config.run_dir / "config.yaml", [dump_config(config).encode()])
    if resume is None or resume.step < config.total_steps:
        trainer = train(config, policy, world, resume, rows)
        del trainer
    chosen, scores = select(config, policy, world)
    start = load_trainable(config.model)
    trained = load_saved_policy(config.run_dir / "checkpoints" / f"checkpoint-{chosen}", config)
    if world.is_main:
        save_policy(config.run_dir / "policy", config.run_dir / "checkpoints" / f"checkpoint-{chosen}", policy)
    results = final_results(config, (start.model, start.dialogue), (trained, policy.dialogue), shows=world.is_main)
    summary = {
        "name": config.name,
        "seed": config.seed,
        "split": "test",
        "conditions": list(results["trained"].summary.by_condition),
        "config_hash": config_hash(config),
        "training_hash": hash_,
        "world_size": world.size,
        "wandb_run_id": whole_checkpoints(config.run_dir / "checkpoints")[-1].origin.wandb_id,
        "selected_step": chosen,
        "selected_by": config.checkpoints.select_by,
        "dev_scores": {
            str(step): {name: None if math.isnan(value) else value for name, value in found.items()}
            for step, found in scores.items()
        },
        "start_fingerprint": weights_fingerprint(start.model),
        "trained_fingerprint": weights_fingerprint(trained),
        "seconds_this_segment": round(time.time() - started, 1),
        **summary_of(results),
    }
    if world.is_main:
        write_json_atomic(config.run_dir / "summary.json", summary)
        show_results(config, results)
        print(f"\nRun files: {config.run_dir}/ (summary.json, metrics.jsonl, eval/, plots/, policy/)")
    return summary


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and run; returns the exit status."""
    return main_of_run(
        arguments,
        name="papt",
        text=__doc__,
        example="--config configs/papt/tiny.yaml --seed 43 --name papt-tiny-43",
        kind="PAPT",
        goes_on="goes on from the last checkpoint",
        train=lambda path, overrides, fresh: run(load_config(PaptConfig, path, overrides), fresh=fresh),
    )


if __name__ == "__main__":
    sys.exit(main())
