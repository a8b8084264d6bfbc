"""What a walk evaluation plays: its configuration, and its tasks with seeds.

What it shares with other evaluations stands in :mod:`provgym.eval.eval_config`; all can be imported from here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from provgym.envs.presentation import Mitigation, MovesStyle, PresentationConfig
from provgym.envs.provenance import Instance
from provgym.envs.walk import MAX_BUDGET
from provgym.envs.walk_names import AliasOrder
from provgym.eval.eval_config import (
    ClaimFiles,
    EvalConfig,
    GraphEchoClaims,
    LoadedInstances,
    ScifactClaims,
    SplitName,
    config_hash,
    instances_hash,
    load_instances,
)
from provgym.generators.episode import Episode, EpisodeTask
from provgym.generators.seeds import SPLIT_NUMBERS, Purpose, derive_seed

__all__ = [
    "ClaimFiles",
    "GraphEchoClaims",
    "LoadedInstances",
    "ScifactClaims",
    "SplitName",
    "TaskKey",
    "WalkEvalConfig",
    "build_tasks",
    "config_hash",
    "episode_key",
    "instance_number",
    "instances_hash",
    "load_instances",
    "task_key",
]

TaskKey = tuple[str, str, int, int]
"""(instance id, mitigation, budget, member): what makes an episode of one evaluation unique."""


class WalkEvalConfig(EvalConfig):
    """A walk evaluation; what is not named here is as in :class:`~provgym.eval.eval_config.EvalConfig`.

    Attributes:
        budgets: Walks allowed; each plays every instance.
        preview_ids: See :class:`~provgym.envs.presentation.PresentationConfig`.
        moves: See there.
        aliases: See there.
    """

    budgets: tuple[Annotated[int, Field(ge=1, le=MAX_BUDGET)], ...] = Field(default=(6,), min_length=1)
    preview_ids: Literal["shown", "visited"] = "shown"
    moves: MovesStyle = "labelled"
    aliases: AliasOrder = "discovery"

    def presentation(self, mitigation: Mitigation) -> PresentationConfig:
        """Return how walks are shown under one mitigation."""
        return PresentationConfig(
            mitigation, self.source_labels, self.preview_ids, self.moves, self.max_content_characters, self.aliases
        )


def build_tasks(config: WalkEvalConfig, instances: Sequence[Instance]) -> list[EpisodeTask]:
    """Return the tasks of an evaluation: mitigation by mitigation, budget by budget, instance by instance.

    The presentation depends on the run seed and the instance alone, so that policies, budgets and mitigations
    meet one instance in the same order of neighbours; sampling depends on everything that tells tasks apart.

    Raises:
        ValueError: If an instance id stands twice, or a split is unknown.
    """
    seen: set[str] = set()
    for instance in instances:
        if instance.instance_id in seen:
            raise ValueError(f"instance id {instance.instance_id!r} appears twice; give every instance its own")
        seen.add(instance.instance_id)
    return [
        _task(config, instance, mitigation, budget, member)
        for mitigation in config.mitigations
        for budget in config.budgets
        for instance in instances
        for member in range(config.samples)
    ]


def task_key(task: EpisodeTask) -> TaskKey:
    """Return what tells a task from the others of its evaluation."""
    return task.instance.instance_id, task.presentation.mitigation, task.budget, task.member


def episode_key(episode: Episode) -> TaskKey:
    """Return the key of the task that an episode played."""
    return episode.instance_id, episode.mitigation, episode.outcome.budget, episode.member


def instance_number(instance_id: str) -> int:
    """Return a stable 64-bit number of an instance id, for seed keys.

    Example:
        >>> instance_number("syn-00001/C1") == instance_number("syn-00001/C2")
        False
    """
    return int.from_bytes(hashlib.sha256(instance_id.encode("utf-8", "surrogatepass")).digest()[:8])


def _task(config: WalkEvalConfig, instance: Instance, mitigation: Mitigation, budget: int, member: int) -> EpisodeTask:
    if instance.split not in SPLIT_NUMBERS:
        raise ValueError(
            f"instance {instance.instance_id!r} is of split {instance.split!r}, expected one of {sorted(SPLIT_NUMBERS)}"
        )
    key = (SPLIT_NUMBERS[instance.split], instance_number(instance.instance_id))
    setting = (int(mitigation[1:]), budget, member)
    return EpisodeTask(
        instance=instance,
        budget=budget,
        presentation=config.presentation(mitigation),
        presentation_seed=derive_seed(config.seed, Purpose.PRESENTATION, *key),
        sampling_seed=derive_seed(config.seed, Purpose.SAMPLING, *key, *setting),
        member=member,
    )
