"""Everything a K-GAT run can be told, with where each default comes from.

The world (tasks, retrieval, agents) has a module of its own, :mod:`provgym.trainers.kgat_world_config`; so has how the
weights are learned, :mod:`provgym.trainers.kgat_learning_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from provgym.eval.topology_names import METHODS, SECOND_GENERATOR
from provgym.generators.kgat_scores import KgatSettings
from provgym.generators.task_mining import MiningPlan
from provgym.generators.topology_pruning import PruningRule
from provgym.generators.topology_targets import ScoreRule
from provgym.rewards.topology_score import CostWeights, SuccessEstimator
from provgym.trainers.kgat_learning_config import KgatCheckpointConfig, KgatOptimConfig, ReinforceConfig
from provgym.trainers.kgat_world_config import AgentsConfig, RetrievalConfig, TasksConfig
from provgym.trainers.papt_config import TrackingConfig
from provgym.trainers.run_config import RunConfig
from provgym.trainers.strict_config import Strict


class ScoreConfig(Strict):
    """``Score(G) = p - lambda_C (lambda_V |V| + lambda_E |E|)``; the source gives no values for the weights.

    Attributes:
        node: lambda_V, in units of score where ``cost_weight`` is 1.
        edge: lambda_E.
        cost_weight: lambda_C.
        estimator: ``posterior_mean`` (Beta(1, 1), ours) or ``raw`` (the source).
    """

    node: float = Field(default=0.03, ge=0.0)
    edge: float = Field(default=0.015, ge=0.0)
    cost_weight: float = Field(default=1.0, ge=0.0)
    estimator: SuccessEstimator = "posterior_mean"

    def rule(self) -> ScoreRule:
        """Return how outcomes are scored."""
        return ScoreRule(CostWeights(self.node, self.edge), self.cost_weight, self.estimator)


class CurriculumConfig(Strict):
    """Rounds of mining and optimisation, and what candidates are drawn from.

    Attributes:
        rounds: Mining rounds, each followed by optimisation.
        pi_first: Share of the generator's own samples in round 0. It knows nothing yet (ours: 0).
        pi_last: The same in the last round.
        candidates: Draws per task and round (5 in the source).
        template_share: Share of templates in the rest; the others are random feasible DAGs.
        temperature: Of the generator's samples.
    """

    rounds: int = Field(default=4, ge=1, le=1000)
    pi_first: float = Field(default=0.0, ge=0.0, le=1.0)
    pi_last: float = Field(default=0.6, ge=0.0, le=1.0)
    candidates: int = Field(default=6, ge=1)
    template_share: float = Field(default=0.5, ge=0.0, le=1.0)
    temperature: float = Field(default=1.0, gt=0.0)

    @model_validator(mode="after")
    def _pi_grows(self) -> Self:
        if self.pi_last < self.pi_first:
            raise ValueError(f"pi_last={self.pi_last} is below pi_first={self.pi_first}; pi grows over rounds")
        return self


class MiningConfig(Strict):
    """How candidates are executed, pruned and turned into targets.

    Attributes:
        replicates: R, executions per candidate (2 in the source).
        rungs: Of successive halving (ours); 1 executes every candidate R times (the source).
        rescore_replicates: Fresh executions that score what is kept (ours); 0 is the source.
        prunes: Whether successful candidates are pruned.
        p_min: Least success rate of what pruning leaves (the source names none).
        pruning_keeps_score: Whether a deletion must not lower the score either (ours).
        keeps_unpruned: Whether a candidate stays beside what pruning left of it (ours; the source puts the pruned one
            in its place): pruning goes by few executions, and fresh ones then decide between the two.
        target_temperature: beta_q of the targets, in units of score (the source names none). Greedy decoding follows
            the total weight of all teams that begin alike: at 0.1, several teams that are a little worse outweigh the
            best one; a smaller value lets the best one win.
        memory: Which rounds a task's target is made of: ``round`` (the source) or ``all`` so far (ours).
        incremental: False executes everything that is asked for again; only for measuring what memory is worth.
    """

    replicates: int = Field(default=4, ge=1)
    rungs: int = Field(default=2, ge=1)
    rescore_replicates: int = Field(default=4, ge=0)
    prunes: bool = True
    p_min: float = Field(default=0.5, ge=0.0, le=1.0)
    pruning_keeps_score: bool = True
    keeps_unpruned: bool = True
    target_temperature: float = Field(default=0.04, gt=0.0)
    memory: Literal["round", "all"] = "all"
    incremental: bool = True

    def plan(self, score: ScoreRule) -> MiningPlan:
        """Return the plan.

        Raises:
            ValueError: If R can't be halved as often as asked for.
        """
        return MiningPlan(
            replicates=self.replicates,
            score=score,
            temperature=self.target_temperature,
            rungs=self.rungs,
            rescore_replicates=self.rescore_replicates,
            keeps_unpruned=self.keeps_unpruned,
            pruning=PruningRule(self.p_min, self.pruning_keeps_score) if self.prunes else None,
        )


class PlantedConfig(Strict):
    """The exhaustive check: every topology of a small rule set executed, to know the best and the average one.

    Attributes:
        max_nodes: Of the rule set; the number of graphs grows fast (28 for 3, several hundred for 4).
        tasks: Held-out tasks per evidence kind.
        replicates: Executions of every topology on every task.
        min_gap: Least S_best - S_random; a world in which topology matters less is refused.
    """

    max_nodes: int = Field(default=3, ge=1, le=5)
    tasks: int = Field(default=16, ge=2)
    replicates: int = Field(default=4, ge=1)
    min_gap: float = Field(default=0.1, gt=0.0)


class KgatEvaluationConfig(Strict):
    """What is measured after training, on the test split.

    Attributes:
        methods: Names of :data:`~provgym.eval.topology_names.METHODS`; None takes all.
        replicates: Executions of every method on every task.
        trains_query_control: Whether a second generator, of the same shape and on the same targets, is trained without
            evidence: the query-conditioned designer to compare with.
        planted: The exhaustive check; None leaves it out.
    """

    methods: tuple[str, ...] | None = None
    replicates: int = Field(default=4, ge=1)
    trains_query_control: bool = True
    planted: PlantedConfig | None = PlantedConfig()

    @field_validator("methods")
    @classmethod
    def _are_known(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        unknown = [name for name in value or () if name not in METHODS]
        if unknown or value == ():
            raise ValueError(f"methods {list(value or ())}: expected some of {', '.join(METHODS)}")
        return value

    def played_methods(self) -> tuple[str, ...]:
        """Return the methods to play, those left out that need a second generator where none is trained."""
        return tuple(
            name for name in self.methods or METHODS if self.trains_query_control or name not in SECOND_GENERATOR
        )


_FOREIGN = MappingProxyType(
    {
        "beta_q": "mining.target_temperature",
        "lambda_v": "score.node",
        "lambda_e": "score.edge",
        "lambda_c": "score.cost_weight",
        "d_max": "generator.max_in_degree",
        "n_max": "generator.max_nodes",
        "pi": "curriculum.pi_last",
        "top_k": "retrieval.depth",
        "k": "retrieval.depth",
        "num_candidates": "curriculum.candidates",
        "lr": "optim.learning_rate",
        "report_to": "tracking.wandb",
    }
)


class KgatConfig(RunConfig):
    """A K-GAT run.

    Attributes:
        trainer: See :class:`~provgym.trainers.run_config.RunConfig`.
        foreign_names: What the paper and other libraries call some of these keys, for the hint of an error.
        name: Folder below ``runs_dir``.
        seed: Training seed.
        conditioning: What the generator sees: the query and its evidence, or the query alone (the control). The agents
            get the evidence either way.
        agents_see_evidence: False withholds it from them, in training and in dev scoring (the control).
        generator: Shape and constraints of the generator.
        num_processes: World size the run is meant for; None takes what it is launched with.
    """

    trainer: ClassVar[str] = "provgym.trainers.kgat"
    foreign_names: ClassVar[Mapping[str, str]] = _FOREIGN

    conditioning: Literal["evidence", "query"] = "evidence"
    agents_see_evidence: bool = True
    tasks: TasksConfig = TasksConfig()
    retrieval: RetrievalConfig = RetrievalConfig()
    agents: AgentsConfig = AgentsConfig()
    generator: KgatSettings = KgatSettings()
    score: ScoreConfig = ScoreConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    mining: MiningConfig = MiningConfig()
    optim: KgatOptimConfig = KgatOptimConfig()
    reinforce: ReinforceConfig = ReinforceConfig()
    checkpoints: KgatCheckpointConfig = KgatCheckpointConfig()
    evaluation: KgatEvaluationConfig = KgatEvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()
    num_processes: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _plan_is_possible(self) -> Self:
        self.mining.plan(self.score.rule())
        return self

    @property
    def total_steps(self) -> int:
        """Optimiser steps of all rounds."""
        return self.curriculum.rounds * self.optim.steps_per_round
