"""After training: choose a checkpoint on dev, train the query-conditioned control, evaluate, and sum up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from provgym.envs.workflow import MemoryMessageCache, WorkflowRuntime
from provgym.eval.estimate import Estimate
from provgym.eval.processes import SingleProcess
from provgym.eval.topology import TopologyEvalResult, evaluate_methods
from provgym.eval.topology_data import TopologyData, ladder_parts
from provgym.eval.topology_ladder import build_methods
from provgym.eval.walk_config import config_hash
from provgym.generators.kgat_folder import SETTINGS_FILE, StoredGenerator, load_generator, save_generator
from provgym.generators.kgat_model import KgatModel
from provgym.generators.seeds import Purpose, derive_rng
from provgym.trainers.checkpoints import choose_checkpoint
from provgym.trainers.kgat_checkpoints import load_checkpoint
from provgym.trainers.kgat_config import KgatConfig, PlantedConfig
from provgym.trainers.kgat_dev import SELECTION, DevFigures, dev_figures, read_dev_figures
from provgym.trainers.kgat_optimisation import learning_rate_in_round, new_optimizer, optimise_step, tasks_of_step
from provgym.trainers.kgat_planted import (
    PlantedWorld,
    explore_world,
    planted_tasks,
    read_world,
    save_world,
    scores_of,
)
from provgym.trainers.kgat_state import RoundFolder
from provgym.trainers.kgat_training import KgatTrainer, checkpoint_of_round, pooled_targets
from provgym.trainers.kgat_world import KgatWorld, eval_config_of

GENERATOR, QUERY_GENERATOR = "generator", "query_generator"
"""Folders of the chosen generator, and of the control that was trained without evidence."""

_NOT_QUESTIONS = ("methods", "generator", "query_generator", "closed_generator", "fixed_team")


def select(trainer: KgatTrainer, config: KgatConfig) -> tuple[int, dict[int, DevFigures]]:
    """Load the best end of a round into the trainer's model; returns its step and every round's dev figures.

    Every process of the launch must call this.

    Raises:
        ValueError: If no checkpoint has a score that is a number.
    """
    per_round, rounds = config.optim.steps_per_round, config.curriculum.rounds
    folder = config.run_dir / "checkpoints"
    load_checkpoint(checkpoint_of_round(folder, rounds - 1, per_round), trainer.model)
    # The figures of a round are those of the generator that it began with.
    found = {rounds * per_round: trainer.dev(rounds)}
    found |= {number * per_round: _stored_dev(config, number) for number in range(1, rounds)}
    chosen = choose_checkpoint({step: figures.figures[SELECTION] for step, figures in found.items()}, "max")
    load_checkpoint(folder / f"checkpoint-{chosen}", trainer.model)
    return chosen, dict(sorted(found.items()))


def _stored_dev(config: KgatConfig, number: int) -> DevFigures:
    return read_dev_figures(RoundFolder(config.run_dir, number).dev_file)


def save_chosen(config: KgatConfig, world: KgatWorld, model: KgatModel, step: int, training_hash: str) -> Path:
    """Write the chosen generator's folder."""
    folder = config.run_dir / GENERATOR
    about = {"name": config.name, "seed": config.seed, "step": step, "training_hash": training_hash}
    about["agents_see_evidence"] = config.agents_see_evidence
    sees = config.conditioning == "evidence"
    save_generator(folder, StoredGenerator(model, world.encoder.fingerprint, sees, about))
    return folder


def train_query_control(
    config: KgatConfig, world: KgatWorld, runtime: WorkflowRuntime, training_hash: str, *, shows: bool
) -> Path:
    """Train a generator of the same shape on the same targets, shown no evidence; returns its folder.

    It takes as many steps over the same tasks as the run's own, and is chosen by the same figure. One that is there is
    kept.
    """
    folder = config.run_dir / QUERY_GENERATOR
    if (folder / SETTINGS_FILE).is_file() and load_generator(folder).about.get("training_hash") == training_hash:
        return folder
    model, optim = KgatModel(config.generator, seed=config.seed), config.optim
    optimizer = new_optimizer(model, optim)
    start = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    train, dev = world.splits["train"], world.splits["dev"]
    contexts = train.contexts.without_evidence()
    scores: dict[int, float] = {}
    weights: dict[int, dict[str, torch.Tensor]] = {}
    history = []
    with tqdm(total=config.total_steps, desc="query control", unit="step", disable=not shows, mininterval=2) as bar:
        for number in range(config.curriculum.rounds):
            history.append(RoundFolder(config.run_dir, number).read_targets(train.seen.task_ids) or [])
            targets = pooled_targets(history, config)
            usable = [task for task, target in enumerate(targets) if target.kept]
            if optim.restarts:
                model.load_state_dict(start)
                optimizer = new_optimizer(model, optim)
            for step in range(number * optim.steps_per_round, (number + 1) * optim.steps_per_round):
                chosen = tasks_of_step(step, usable, optim.tasks_per_step, config.seed)
                rate = learning_rate_in_round(step, config.curriculum.rounds, optim)
                optimise_step(model, optimizer, contexts.select(chosen), [targets[t] for t in chosen], optim, rate)
                bar.update(1)
            end = (number + 1) * optim.steps_per_round
            figures = dev_figures(
                folder / f"dev-{end}.json",
                model,
                dev.contexts.without_evidence(),
                dev.seen,
                runtime,
                config.score.rule(),
                config.checkpoints.dev_replicates,
                SingleProcess(),
            )
            scores[end] = figures.figures[SELECTION]
            weights[end] = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    best = choose_checkpoint(scores, "max")
    model.load_state_dict(weights[best])
    about = {"name": f"{config.name}, query control", "step": best, "training_hash": training_hash}
    save_generator(folder, StoredGenerator(model, world.encoder.fingerprint, sees_evidence=False, about=about))
    return folder


def evaluate_run(
    config: KgatConfig,
    world: KgatWorld,
    runtime: WorkflowRuntime,
    query_generator: Path | None,
    fixed_team: Path | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> TopologyEvalResult:
    """Play all methods on the test split with the harness; what was played before is kept."""
    given = {"generator": config.run_dir / GENERATOR, "query_generator": query_generator, "fixed_team": fixed_team}
    evaluation = eval_config_of(config).model_copy(update=given)
    split = world.splits["test"]
    seed = config.tasks.evidence.seed if evaluation.choice == "random" else evaluation.seed  # the run's own draw
    data = TopologyData(split.seen.tasks, world.encoder, evaluation.replicates, seed, evaluation.choice)
    questions = data.questions(evaluation.depth)
    methods = build_methods(config.evaluation.played_methods(), ladder_parts(evaluation, data))
    return evaluate_methods(
        methods,
        questions,
        runtime,
        config.run_dir / "eval",
        executor_fingerprint=world.agent.fingerprint,
        rule=evaluation.rule(),
        settings=evaluation.model_dump(mode="json"),
        config_hash=config_hash(evaluation.model_copy(update=dict.fromkeys(_NOT_QUESTIONS))),
        resampling=evaluation.resampling(),
        on_progress=on_progress,
    )


def explore_planted(config: KgatConfig, world: KgatWorld, *, shows: bool) -> PlantedWorld | None:
    """Execute the small rule set on held-out tasks, once per run; None if the configuration leaves it out.

    Raises:
        RunStopped: If topology hardly matters in this world.
    """
    planted = config.evaluation.planted
    if planted is None:
        return None
    path = config.run_dir / "planted.json"
    about = _about_planted(config, world, planted)
    stored = read_world(path, about)
    if stored is not None:
        return stored
    tasks = planted_tasks(world.splits["test"].seen, planted.tasks)
    with tqdm(desc="every small topology", unit="graph", disable=not shows, mininterval=2) as bar:

        def on_topology(done: int, total: int) -> None:
            bar.total = total
            bar.update(1)

        rules = config.generator.rules()
        explored = explore_world(rules, tasks, _apart(world, config), config.score.rule(), planted, on_topology)
    save_world(explored, path, about)
    return explored


def planted_ratio(config: KgatConfig, world: KgatWorld, planted: PlantedWorld, model: KgatModel) -> dict[str, Any]:
    """Return the share of the gap that the generator closes, with a bootstrap interval over base claims."""
    settings = config.evaluation.planted
    assert settings is not None
    tasks = planted_tasks(world.splits["test"].seen, settings.tasks)
    place = {task_id: number for number, task_id in enumerate(world.splits["test"].seen.task_ids)}
    rows = [place[task_id] for task_id in tasks.task_ids]
    contexts = world.splits["test"].contexts.select(rows)
    seen = contexts if config.conditioning == "evidence" else contexts.without_evidence()
    teams = [team.canonical() for team in model.decode(seen)]
    scores = scores_of(teams, tasks, _apart(world, config), config.score.rule(), settings.replicates)
    trained = planted.mean_of(scores)
    drawn = _resampled(planted, scores, [task.base_id for task in tasks.tasks], config.seed)
    ratio = _estimate(planted.ratio(trained), [again.ratio(score) for again, score in drawn], len(tasks))
    evidence = _estimate(
        planted.evidence_ratio(trained), [again.evidence_ratio(score) for again, score in drawn], len(tasks)
    )
    return {
        "planted_optimum_ratio": ratio.to_json(),
        "planted_evidence_ratio": evidence.to_json(),
        "planted": {
            "s_best": planted.best,
            "s_best_in_sample": planted.best_in_sample,
            "s_constant": planted.constant,
            "s_random": planted.random,
            "s_trained": trained,
            "topologies": len(planted.topologies),
            "best_of_kind": {kind: topology.key for kind, topology in planted.best_of_kind().items()},
        },
    }


def _resampled(
    planted: PlantedWorld, trained: np.ndarray[Any, np.dtype[np.float64]], bases: Sequence[str], seed: int
) -> list[tuple[PlantedWorld, float]]:
    """Return 500 draws of base claims: the world on them, and S_trained there; S_best's choice is part of each."""
    names = list(dict.fromkeys(bases))
    rows = {name: [n for n, base in enumerate(bases) if base == name] for name in names}
    rng = derive_rng(seed, Purpose.BOOTSTRAP, 2)
    found = []
    for _ in range(500):
        drawn = [row for number in rng.integers(len(names), size=len(names)) for row in rows[names[int(number)]]]
        again = PlantedWorld(
            planted.topologies,
            planted.scores[:, drawn],
            tuple(planted.kinds[row] for row in drawn),
            tuple(planted.folds[row] for row in drawn),
        )
        if len({(k, f) for k, f in zip(again.kinds, again.folds, strict=True)}) < 2 * len(set(planted.kinds)):
            continue  # a half without a task chooses nothing
        found.append((again, again.mean_of(trained[drawn])))
    return found


def _estimate(value: float, drawn: Sequence[float], n: int) -> Estimate:
    """Return a figure with its 95 % percentile interval, or without one where no draw has a value."""
    if math.isnan(value):
        return Estimate.missing()
    known = [found for found in drawn if not math.isnan(found)]
    low, high = np.quantile(known, [0.025, 0.975]) if known else (math.nan, math.nan)
    return Estimate(value, float(low), float(high), n)


def dev_scores_json(scores: Mapping[int, DevFigures]) -> dict[str, Any]:
    """Return dev figures by step, NaN as null."""
    return {str(step): figures.to_json()["figures"] for step, figures in scores.items()}


def _about_planted(config: KgatConfig, world: KgatWorld, planted: PlantedConfig) -> dict[str, Any]:
    """Return what decides the exhaustive scores; another world is explored anew."""
    tasks = planted_tasks(world.splits["test"].seen, planted.tasks)
    return {
        "settings": planted.model_dump(mode="json"),
        "rules": config.generator.model_dump(mode="json", include={"role_names", "max_nodes", "max_in_degree"}),
        "score": config.score.model_dump(mode="json"),
        "agent": world.agent.fingerprint,
        "tasks": list(tasks.task_ids),
        "units": [[unit.unit_id for unit in context.units] for context in tasks.evidence],
    }


def _apart(world: KgatWorld, config: KgatConfig) -> WorkflowRuntime:
    """Return a runtime with a memory of its own: hundreds of thousands of calls are not worth a disk."""
    return WorkflowRuntime(
        world.agent,
        roles=world.roles,
        cache=MemoryMessageCache(),
        max_concurrency=config.agents.max_concurrency,
    )
