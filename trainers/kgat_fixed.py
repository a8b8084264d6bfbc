"""The best single team for all questions, chosen on dev: what a designer that sees nothing at all could know.

A generator that is trained without evidence fits the targets of single tasks, and decodes the mode of a mixture; the
team with the best mean score can be another one. So both stand beside the generator that sees evidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from provgym.envs.topology import Topology
from provgym.envs.workflow import WorkflowRuntime
from provgym.eval.run_files import write_json_atomic
from provgym.eval.topology_data import is_fixed_team_of
from provgym.generators.topology_targets import TaskTarget
from provgym.generators.topology_templates import templates
from provgym.trainers.kgat_config import KgatConfig
from provgym.trainers.kgat_planted import scores_of
from provgym.trainers.kgat_state import RoundFolder
from provgym.trainers.kgat_training import pooled_targets
from provgym.trainers.kgat_world import KgatWorld
from provgym.trainers.step_record import RunStopped

FIXED_TEAM = "fixed_team.json"
MINED_TEAMS = 12
"""Mined teams that are tried, those of the most target mass (ours)."""


def choose_fixed_team(config: KgatConfig, world: KgatWorld, runtime: WorkflowRuntime, training_hash: str) -> Path:
    """Execute the templates and the commonest mined teams on the dev tasks, and store the best by mean raw score.

    One that was chosen by the same training is kept.

    Args:
        config: The run.
        world: Its dev tasks.
        runtime: Executes topologies.
        training_hash: Of the run's training.

    Returns:
        The JSON file: the team, its dev score, and how many teams were tried.

    Raises:
        RunStopped: If not one execution could be scored.
    """
    path = config.run_dir / FIXED_TEAM
    if is_fixed_team_of(path, training_hash):
        return path
    dev, train = world.splits["dev"].seen, world.splits["train"].seen
    rounds = range(config.curriculum.rounds)
    history = [RoundFolder(config.run_dir, number).read_targets(train.task_ids) or [] for number in rounds]
    tried = candidate_teams(config, pooled_targets(history, config))
    replicates, rule = config.checkpoints.dev_replicates, config.score.rule()
    scores = [scores_of([team] * len(dev), dev, runtime, rule, replicates) for team in tried]
    means = [math.nan if np.isnan(found).all() else float(np.nanmean(found)) for found in scores]
    if np.isnan(means).all():
        raise RunStopped(
            f"{path}: all executions of {len(tried)} teams on {len(dev)} dev tasks ended in error, expected at least "
            "one score; check the agents' section of the configuration, then give the same command again"
        )
    best = int(np.nanargmax(means))
    found = {
        "topology": tried[best].as_dict(),
        "dev_score": means[best],
        "tried": len(tried),
        "training_hash": training_hash,
    }
    write_json_atomic(path, found)
    return path


def candidate_teams(config: KgatConfig, targets: Sequence[TaskTarget]) -> list[Topology]:
    """Return the valid templates and the mined teams of the most target mass, each once, the cheapest first.

    Args:
        config: Limits of a team.
        targets: Pooled over rounds.
    """
    rules = config.generator.rules()
    found = {team.key: team.canonical() for team in templates(rules).values() if rules.is_valid(team)}
    mass: dict[str, float] = {}
    mined: dict[str, Topology] = {}
    for target in targets:
        for candidate in target.kept:
            mass[candidate.topology.key] = mass.get(candidate.topology.key, 0.0) + candidate.target
            mined[candidate.topology.key] = candidate.topology
    for key in sorted(mass, key=lambda key: (-mass[key], key))[:MINED_TEAMS]:
        found.setdefault(key, mined[key])
    return sorted(found.values(), key=lambda team: (team.num_nodes, team.num_edges, team.key))
