"""PAPT: provenance-aware post-training with GRPO.

``accelerate launch --config_file configs/accelerate/cpu1.yaml -m provgym.trainers.papt --config FILE``

Any field can be set on the command line: ``--optim.learning_rate 1e-4``. A run that was interrupted goes on from its
newest whole checkpoint when the same command is given again, and ends with the same adapter as without interruption.

Source: GraphEcho, arXiv:2609.17695, section 4.3.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from filelock import FileLock, Timeout
from transformers import PreTrainedModel
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from provgym.eval.problems import one_line
from provgym.eval.run_files import write_atomic, write_json_atomic
from provgym.eval.walk_config import config_hash
from provgym.generators.chat_actions import instructions_of
from provgym.generators.engine import Sampling
from provgym.generators.episode import Episode, EpisodeTask
from provgym.generators.rollout import LanguageModelPolicy
from provgym.generators.writable_folder import check_writable
from provgym.trainers.callbacks import CheckpointMarker, Recorder, StepGuard
from provgym.trainers.checkpoints import (
    Checkpoint,
    Origin,
    choose_checkpoint,
    find_resume_point,
    whole_checkpoints,
)
from provgym.trainers.config_file import ConfigError, changed_keys, dump_config, load_config
from provgym.trainers.papt_config import PaptConfig
from provgym.trainers.papt_evaluation import (
    SELECTION,
    check_evaluation,
    dev_score,
    final_results,
    show_results,
    summary_of,
    weights_fingerprint,
)
from provgym.trainers.policy_loading import TrainablePolicy, load_trainable
from provgym.trainers.saved_policy import load_saved_policy, save_policy
from provgym.trainers.step_record import RunStopped
from provgym.trainers.tracking import Tracker
from provgym.trainers.training_engine import engine_for
from provgym.trainers.training_rows import TrainingRows, load_pool
from provgym.trainers.trl_arguments import grpo_arguments
from provgym.trainers.trl_bridge import PaptTrainer, lora_config


@dataclass(frozen=True)
class World:
    """The processes of this launch."""

    size: int
    rank: int

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0


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


def join_world(config: PaptConfig) -> World:
    """Start the processes' state and check that there are as many as asked for.

    Raises:
        RunStopped: If the launcher announced, or the configuration asks for, another number.
    """
    announced = int(os.environ.get("WORLD_SIZE", "1"))
    on_cpu = not torch.cuda.is_available()
    # The first state made decides for accelerate and TRL: without cpu=True each CPU process believes it is alone.
    state = PartialState(cpu=on_cpu)
    if on_cpu and announced > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // announced))
    for wanted, who in (
        (announced, "the launcher announced"),
        (config.num_processes, "num_processes asks for"),
    ):
        if wanted is not None and state.num_processes != wanted:
            raise RunStopped(
                f"{who} {wanted} processes, but {state.num_processes} take part; on CPUs launch with "
                "`accelerate launch --config_file configs/accelerate/cpu2.yaml` (plain --num_processes starts one)"
            )
    return World(state.num_processes, state.process_index)


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


def throw_away(folder: Path) -> None:
    """Remove an earlier run's folder, if there is one.

    Raises:
        ValueError: If it holds something else than a run; nothing is removed.
    """
    if not folder.exists():
        return
    is_run = (folder / "config.yaml").is_file() or (folder / "checkpoints").is_dir()
    if not is_run and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"{folder} is no run: found neither config.yaml nor checkpoints/ in it, expected one of them; --fresh "
            "leaves it alone: choose another name or runs_dir"
        )
    shutil.rmtree(folder)


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

    def play(model: PreTrainedModel, tasks: Sequence[EpisodeTask]) -> list[Episode]:
        engine = engine_for(trainer, model, config.generation)
        sampling, instructions = Sampling(config.optim.temperature), instructions_of(config.model.grammar)
        player = LanguageModelPolicy("training", engine, policy.dialogue, sampling, instructions=instructions)
        return player.play(tasks)

    trainer = PaptTrainer(
        config, policy.model, policy.tokenizer, rows, play, lora=lora_config(config), output_dir=folder
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


@contextmanager
def sole_trainer(config: PaptConfig, world: World) -> Iterator[None]:
    """Keep other launches out of a run's folder, such as one after its study was killed and this run was not.

    Raises:
        BlockingIOError: If another process trains that run.
    """
    if not world.is_main:
        yield
        return
    path = config.runs_dir / f".{config.name}.lock"  # beside the run: --fresh throws away what lies in it
    path.parent.mkdir(parents=True, exist_ok=True)
    # The system lets go of the lock when a process dies, however it dies.
    lock = FileLock(path, blocking=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise BlockingIOError(
            f"{config.run_dir} is being trained by another process that is still running; wait for it or end it, or "
            "choose another name"
        ) from error
    try:
        yield
    finally:
        lock.release()
        path.unlink(missing_ok=True)


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
    parser = argparse.ArgumentParser(
        prog="provgym papt",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: provgym papt --config configs/papt/tiny.yaml --seed 43 --name papt-tiny-43",
        allow_abbrev=False,  # --fres must not throw a run away
    )
    parser.add_argument("--config", required=True, help="YAML file of a PAPT run")
    parser.add_argument("--fresh", action="store_true", help="throw an earlier run of this name away")
    known, overrides = parser.parse_known_args(arguments)
    try:
        config = load_config(PaptConfig, known.config, overrides)
        run(config, fresh=known.fresh)
    except (ConfigError, OSError, ValueError, ImportError, RunStopped) as error:
        if os.environ.get("PROVGYM_DEBUG"):
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
