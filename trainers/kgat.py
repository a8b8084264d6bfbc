"""K-GAT: topologies from evidence, learned by matching the distribution of those that worked.

``accelerate launch --config_file configs/accelerate/cpu1.yaml -m provgym.trainers.kgat --config FILE``

Any field can be set on the command line: ``--score.cost_weight 2``. A run that was interrupted, in mining or in
optimisation, goes on when the same command is given again, pays no finished call twice, and ends with the same targets
and the same generator.

Source: K-GAT, arXiv:2608.27984.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from provgym.envs.workflow import WorkflowRuntime
from provgym.eval.estimate import Estimate
from provgym.eval.processes import Processes, current_processes
from provgym.eval.run_files import write_atomic, write_json_atomic
from provgym.eval.topology import TopologyEvalResult
from provgym.eval.walk_config import config_hash
from provgym.eval.walk_play import together
from provgym.generators.weights_fingerprint import weights_fingerprint
from provgym.generators.writable_folder import check_writable
from provgym.trainers.checkpoints import Checkpoint, Origin, find_resume_point, whole_checkpoints
from provgym.trainers.command_line import main_of_run
from provgym.trainers.config_file import changed_keys, dump_config, load_config
from provgym.trainers.kgat_config import KgatConfig, KgatEvaluationConfig
from provgym.trainers.kgat_costs import mining_totals
from provgym.trainers.kgat_fixed import choose_fixed_team
from provgym.trainers.kgat_learning_config import ReinforceConfig
from provgym.trainers.kgat_results import (
    dev_scores_json,
    evaluate_run,
    explore_planted,
    planted_ratio,
    save_chosen,
    select,
    train_query_control,
)
from provgym.trainers.kgat_training import KgatTrainer
from provgym.trainers.kgat_world import KgatWorld, build_world
from provgym.trainers.launch import World, join_world, sole_trainer, throw_away
from provgym.trainers.papt_config import TrackingConfig
from provgym.trainers.tracking import Tracker

NOT_TRAINING = ("name", "runs_dir", "evaluation", "reinforce", "tracking", "num_processes")
"""Keys that do not decide the trained generator, and may change between the segments of a run."""


def training_hash(config: KgatConfig) -> str:
    """Hash what decides the targets and the trained generator."""
    kept = {
        "name": "run",
        "runs_dir": Path("runs"),
        "evaluation": KgatEvaluationConfig(),
        "reinforce": ReinforceConfig(),
        "tracking": TrackingConfig(),
        "num_processes": None,
    }
    return config_hash(config.model_copy(update=kept))


def find_start(config: KgatConfig, world: World) -> Checkpoint | None:
    """Return the checkpoint to go on from, the same on every process; None is the beginning.

    A checkpoint holds no random state: it may be resumed by another number of processes.

    Raises:
        ValueError: If the run was begun under another configuration.
    """
    folder = config.run_dir / "checkpoints"
    if world.is_main:
        changes = changed_keys(config.run_dir / "config.yaml", config, except_for=NOT_TRAINING)
        find_resume_point(folder, training_hash(config), changes)
    PartialState().wait_for_everyone()
    found = whole_checkpoints(folder)
    return found[-1] if found else None


def run(config: KgatConfig, *, fresh: bool = False) -> dict[str, Any]:
    """Train, select, evaluate, and leave the run's files; returns what ``summary.json`` holds.

    Args:
        config: The run.
        fresh: Throw an earlier run of this name away instead of going on with it.

    Raises:
        RunStopped: If going on would be wasted; the message says why.
        ValueError: If the run was begun under another configuration, or its world can't be built.
    """
    started = time.time()
    launched = join_world(config)
    torch.set_num_threads(config.optim.threads)  # results depend on it, so it is fixed, not taken from the machine
    # Before anything is thrown away: what is missing or doesn't fit costs no earlier run.
    check_writable(config.run_dir, "runs_dir")
    world = build_world(config)
    with sole_trainer(config, launched):
        if fresh and launched.is_main:
            throw_away(config.run_dir)
        PartialState().wait_for_everyone()
        resume = find_start(config, launched)
        if launched.is_main:
            _refuse_other_begun_run(config)
            write_atomic(config.run_dir / "config.yaml", [dump_config(config).encode()])
        PartialState().wait_for_everyone()
        runtime = world.open_runtime(config)
        return _run_checked(config, world, runtime, launched, resume, started)


def train(
    config: KgatConfig,
    world: KgatWorld,
    runtime: WorkflowRuntime,
    launched: World,
    resume: Checkpoint | None,
    *,
    processes: Processes | None = None,
) -> tuple[KgatTrainer, str]:
    """Train from the start or from a checkpoint.

    Args:
        config: The run.
        world: Tasks and what is seen of them.
        runtime: Executes topologies.
        launched: This process's place among those of the run.
        resume: Where to go on from; None is the start.
        processes: How processes share what they found; the launched ones if None.

    Returns:
        The trainer after its last step, and the W&B run id.

    Raises:
        RunStopped: If going on would be wasted.
    """
    hash_ = training_hash(config)
    tracker = Tracker(
        config.run_dir,
        config.tracking,
        config.model_dump(mode="json"),
        training_hash=hash_,
        run_id=None if resume is None else resume.origin.wandb_id,
        is_main=launched.is_main,
    )
    trainer = KgatTrainer(config, world, runtime, processes or current_processes(), shows=launched.is_main)
    with tracker:
        trainer.train(resume, tracker, Origin(hash_, tracker.run_id, launched.size))
    return trainer, tracker.run_id


def _refuse_other_begun_run(config: KgatConfig) -> None:
    """Refuse to mix mining of two configurations, where a run was killed before its first checkpoint.

    Raises:
        ValueError: If the folder holds rounds of another configuration.
    """
    changes = changed_keys(config.run_dir / "config.yaml", config, except_for=NOT_TRAINING)
    if changes and (config.run_dir / "rounds").is_dir():
        raise ValueError(
            f"{config.run_dir} was begun under another configuration; changed: {', '.join(changes)}. An exact resume "
            "needs the same one: choose another name, or start over with --fresh"
        )


def _run_checked(
    config: KgatConfig,
    world: KgatWorld,
    runtime: WorkflowRuntime,
    launched: World,
    resume: Checkpoint | None,
    started: float,
) -> dict[str, Any]:
    planted = together(
        current_processes(), lambda: explore_planted(config, world, shows=True) if launched.is_main else None
    )
    trainer, run_id = train(config, world, runtime, launched, resume)
    chosen, scores = select(trainer, config)
    if not launched.is_main:
        return {}
    hash_ = training_hash(config)
    save_chosen(config, world, trainer.model, chosen, hash_)
    has_control = config.evaluation.trains_query_control and config.conditioning == "evidence"
    control = train_query_control(config, world, runtime, hash_, shows=True) if has_control else None
    fixed = choose_fixed_team(config, world, runtime, hash_)
    result = evaluate_run(config, world, runtime, control, fixed)
    summary = {
        "name": config.name,
        "seed": config.seed,
        "split": "test",
        "config_hash": config_hash(config),
        "training_hash": hash_,
        "world_size": launched.size,
        "wandb_run_id": run_id,
        "selected_step": chosen,
        "selected_by": "score",
        "dev_scores": dev_scores_json(scores),
        "trained_fingerprint": weights_fingerprint(trainer.model),
        "seconds_this_segment": round(time.time() - started, 1),
        **mining_totals(config, {task.task_id: task.base_id for task in world.splits["train"].seen.tasks}),
        "planted_optimum_ratio": None,
        "planted_evidence_ratio": None,
        **({} if planted is None else planted_ratio(config, world, planted, trainer.model)),
        **result.to_json(),
    }
    write_json_atomic(config.run_dir / "summary.json", summary)
    _show(config, summary, result)
    return summary


def _show(config: KgatConfig, summary: dict[str, Any], result: TopologyEvalResult) -> None:
    from provgym.eval.table import print_tables
    from provgym.eval.topology_tables import method_table, summary_tables

    methods = result.summary.methods
    scores = {name: found.metrics["score"] for name, found in methods.items()}
    best_first = sorted(methods, key=lambda name: (not scores[name].is_available, -scores[name].value))
    short = method_table({name: methods[name] for name in best_first}, columns=("accuracy", "score", "tokens", "nodes"))
    print_tables([*summary_tables(result.summary), short])  # the short one last: it is what a reader looks for
    for note in result.summary.notes:
        print(f"- {note}")
    mined, share = summary["mining"], Estimate.from_json(summary["calls_ratio_cached"])
    print(f"\nMining: {mined['paid_calls']} node calls paid of {mined['calls']} asked for: share {share}")
    print(f"Step {summary['selected_step']} chosen by dev score")
    if summary["planted_optimum_ratio"] is not None:
        print(
            f"Planted optimum ratio: {Estimate.from_json(summary['planted_optimum_ratio'])}; of what seeing the",
            end=" ",
        )
        print(f"evidence is worth: {Estimate.from_json(summary['planted_evidence_ratio'])}")
    print(f"Run files: {config.run_dir}/ (summary.json, metrics.jsonl, rounds/, eval/, pictures/, generator/)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and run; returns the exit status."""
    return main_of_run(
        arguments,
        name="kgat",
        text=__doc__,
        example="--config configs/kgat/simulated.yaml --seed 43 --name kgat-simulated-43",
        kind="K-GAT",
        goes_on="goes on where it stopped",
        train=lambda path, overrides, fresh: run(load_config(KgatConfig, path, overrides), fresh=fresh),
    )


if __name__ == "__main__":
    sys.exit(main())
