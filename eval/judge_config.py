"""What a judgement evaluation asks: its configuration, the instances, and their tasks with seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

from pydantic import Field, ValidationError

from provgym.envs.presentation import Mitigation
from provgym.envs.provenance import Instance
from provgym.eval.eval_config import EvalConfig, GraphEchoClaims
from provgym.eval.problems import problems_of
from provgym.eval.run_defaults import walk_eval_config
from provgym.eval.walk_config import WalkEvalConfig, build_tasks, instance_number
from provgym.generators.conditions import CONFLICT_CONDITIONS
from provgym.generators.episode import EpisodeTask
from provgym.generators.judge_env import JudgePresentationConfig, JudgeTask, judge_budget
from provgym.generators.seeds import SPLIT_NUMBERS, Purpose, derive_seed

SOURCE_COUNT_CONDITIONS = ("1S1P", "1S5P", "5S5P")
JUDGE_CONDITIONS = (*CONFLICT_CONDITIONS, *SOURCE_COUNT_CONDITIONS)
"""What is judged of every generated claim unless asked otherwise."""


class JudgeEvalConfig(EvalConfig):
    """A judgement evaluation; what is not named here is as in :class:`~provgym.eval.eval_config.EvalConfig`.

    Attributes:
        max_prompt_characters: Longest prompt; see :class:`~provgym.generators.judge_env.JudgePresentationConfig`.
    """

    default_conditions: ClassVar[tuple[str, ...]] = JUDGE_CONDITIONS

    max_prompt_characters: int = Field(default=16_000, ge=1_000)

    def as_walk(self) -> WalkEvalConfig:
        """Return the walk evaluation of the same instances: its tasks, and their seeds, are those of judgements."""
        shared = self.model_dump(include=set(EvalConfig.model_fields))
        if isinstance(self.claims, GraphEchoClaims):
            shared["conditions"] = self.graphecho_conditions
        return WalkEvalConfig.model_validate(shared | {"budgets": (1,)})

    def presentation(self, mitigation: Mitigation) -> JudgePresentationConfig:
        """Return how evidence is shown under one mitigation."""
        return JudgePresentationConfig(
            mitigation=mitigation,
            source_labels=self.source_labels,
            max_content_characters=self.max_content_characters,
            max_prompt_characters=self.max_prompt_characters,
        )


def judge_eval_config(
    runs: Sequence[Mapping[str, Any]], claims: Mapping[str, Any] | None, given: Mapping[str, Any]
) -> JudgeEvalConfig:
    """Join what a user asked for with what the evaluated runs bring with them: held-out claims, and how they are shown.

    Args:
        runs: Resolved configurations of the runs whose policies judge; may be empty.
        claims: The field ``claims``; None takes the runs' held-out claims, or generated ones without a run.
        given: Further fields, which win.

    Raises:
        ValueError: If a field is refused (one line, all problems), or the runs' claims differ.

    Example:
        >>> judge_eval_config([], None, {"mitigations": ["M0"]}).mitigations
        ('M0',)
    """
    brought = walk_eval_config(runs, claims, {})
    data = brought.model_dump(include={"claims", "mitigations", "source_labels", "general_draws"})
    try:
        return JudgeEvalConfig.model_validate(data | dict(given))
    except ValidationError as error:
        raise ValueError(problems_of(error)) from error


def build_judge_tasks(config: JudgeEvalConfig, instances: Sequence[Instance]) -> list[EpisodeTask]:
    """Return the tasks of an evaluation: mitigation by mitigation, instance by instance.

    The order of routes depends on the run seed and the base claim alone: conditions of one claim with equally many
    routes (1S5P and 5S5P) show the same lines in the same order, and differ in their sources only.

    Raises:
        ValueError: If an instance id stands twice, or a split is unknown.
    """
    return [_judge_task(config, task) for task in build_tasks(config.as_walk(), instances)]


def _judge_task(config: JudgeEvalConfig, task: EpisodeTask) -> JudgeTask:
    instance = task.instance
    key = (SPLIT_NUMBERS[instance.split], instance_number(instance.base_claim.claim_id))
    same = {f.name: getattr(task, f.name) for f in fields(task)}
    changed = {
        "budget": judge_budget(instance),
        "presentation": config.presentation(task.presentation.mitigation),
        "presentation_seed": derive_seed(config.seed, Purpose.PRESENTATION, *key),
    }
    return JudgeTask(**same | changed)
