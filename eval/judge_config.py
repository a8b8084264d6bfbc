"""What a judgement evaluation asks: its configuration, the instances, and their tasks with seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from provgym.envs.presentation import Mitigation, SourceLabels
from provgym.envs.provenance import Instance
from provgym.eval.problems import problems_of
from provgym.eval.run_defaults import walk_eval_config
from provgym.eval.walk_config import (
    ClaimFiles,
    GraphEchoClaims,
    LoadedInstances,
    ScifactClaims,
    SplitName,
    WalkEvalConfig,
    build_tasks,
    instance_number,
    load_instances,
)
from provgym.generators.conditions import CONFLICT_CONDITIONS
from provgym.generators.episode import EpisodeTask
from provgym.generators.judge_env import JudgePresentationConfig, JudgeTask, judge_budget
from provgym.generators.seeds import SPLIT_NUMBERS, Purpose, derive_seed

SOURCE_COUNT_CONDITIONS = ("1S1P", "1S5P", "5S5P")
JUDGE_CONDITIONS = (*CONFLICT_CONDITIONS, *SOURCE_COUNT_CONDITIONS)
"""What is judged of every generated claim unless asked otherwise."""


class JudgeEvalConfig(BaseModel):
    """A judgement evaluation; fields mean what they mean in :class:`~provgym.eval.walk_config.WalkEvalConfig`.

    Attributes:
        claims: Where instances come from.
        split: Which split is judged; SciFact claims count as ``test``.
        conditions: Condition names. None means ``JUDGE_CONDITIONS`` for generated claims, and every instance of the
            split for files and SciFact.
        general_draws: General instances of each generated claim, beside ``conditions``; 0 for none.
        mitigations: M0 to M3; every instance is judged under each.
        source_labels: See :class:`~provgym.envs.presentation.PresentationConfig`.
        max_content_characters: Longest piece of evidence.
        max_prompt_characters: Longest prompt; see :class:`~provgym.generators.judge_env.JudgePresentationConfig`.
        decoding: How the policy is to choose tokens; whoever builds the policy follows it.
        samples: Judgements per instance; above 1 only when sampled.
        seed: Run seed of presentation, sampling and resampling.
        limit: Only the first so many base claims.
        resamples: Bootstrap resamples.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    claims: Annotated[GraphEchoClaims | ClaimFiles | ScifactClaims, Field(discriminator="kind")] = Field(
        default_factory=GraphEchoClaims
    )
    split: SplitName = "test"
    conditions: tuple[str, ...] | None = None
    general_draws: int = Field(default=1, ge=0, le=1_000)
    mitigations: tuple[Mitigation, ...] = Field(default=("M1",), min_length=1)
    source_labels: SourceLabels = "short"
    max_content_characters: int = Field(default=2_000, ge=40)
    max_prompt_characters: int = Field(default=16_000, ge=1_000)
    decoding: Literal["greedy", "sampled"] = "greedy"
    samples: int = Field(default=1, ge=1)
    seed: int = Field(default=42, ge=0)
    limit: int | None = Field(default=None, ge=1)
    resamples: int = Field(default=2_000, ge=1)

    @field_validator("conditions", "mitigations")
    @classmethod
    def _distinct(cls, value: tuple[object, ...] | None) -> tuple[object, ...] | None:
        if value is not None and len(set(value)) < len(value):
            raise ValueError(f"{list(value)} names something twice; name each once")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        try:
            self.as_walk()
        except ValidationError as error:
            raise ValueError(problems_of(error)) from error
        return self

    def as_walk(self) -> WalkEvalConfig:
        """Return the walk evaluation of the same instances, whose loaders and checks are used here too.

        Raises:
            ValidationError: If there is nothing to judge, a condition is unknown, or greedy decoding is to be sampled.
        """
        shared = self.model_dump(exclude={"conditions", "max_prompt_characters"})
        conditions = self.conditions
        if conditions is None and isinstance(self.claims, GraphEchoClaims):
            conditions = JUDGE_CONDITIONS
        return WalkEvalConfig.model_validate(shared | {"conditions": conditions, "budgets": (1,)})

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


def load_judge_instances(config: JudgeEvalConfig) -> LoadedInstances:
    """Return the instances that a config asks for; see :func:`~provgym.eval.walk_config.load_instances`."""
    return load_instances(config.as_walk())


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
