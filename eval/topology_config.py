"""What a topology evaluation asks: tasks, retrieval, generators, methods, prices, sweeps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from provgym.eval.eval_config import config_hash
from provgym.eval.problems import problems_of
from provgym.eval.topology_estimates import Resampling
from provgym.eval.topology_names import METHODS
from provgym.generators.benchmark_rows import BenchmarkName, check_run_code
from provgym.generators.evidence_task_config import EvidenceTaskConfig
from provgym.generators.sentence_encoder import MINILM
from provgym.generators.topology_targets import ScoreRule
from provgym.rewards.topology_score import CostWeights

HASHED = "hashed"
"""Name of the encoder without weights; see :mod:`provgym.generators.hashed_encoder`."""

BENCHMARKS: tuple[BenchmarkName, ...] = get_args(BenchmarkName)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EvidenceTasks(_Model):
    """Verdict questions over evidence that agrees, conflicts or is beside the point.

    Attributes:
        kind: Tells these tasks from others.
        made: Which ones; the same configuration as in training gives training's held-out splits.
    """

    kind: Literal["evidence"] = "evidence"
    made: EvidenceTaskConfig = EvidenceTaskConfig()


class BenchmarkTasks(_Model):
    """Questions of a benchmark, from a file or from the Hugging Face hub.

    Attributes:
        kind: Tells these tasks from others.
        name: Of the benchmark.
        path: Local file; None asks the hub.
        graph: Knowledge graph file that all questions retrieve from, in place of the benchmark's own evidence.
        sample: A random sample of so many questions; None takes all.
        sample_seed: Of the sample.
        run_code: Run what agents write to judge it (``humaneval``), in a sandbox that is no security boundary; off
            unless asked for.
    """

    kind: Literal["benchmark"] = "benchmark"
    name: BenchmarkName
    path: Path | None = None
    graph: Path | None = None
    sample: int | None = Field(default=None, ge=1)
    sample_seed: int = Field(default=0, ge=0)
    run_code: bool = False

    @model_validator(mode="after")
    def _runs_code_if_told(self) -> Self:
        check_run_code(self.name, self.run_code)
        return self


class TopologyEvalConfig(_Model):
    """A topology evaluation.

    Attributes:
        tasks: What is asked.
        split: Which split; benchmarks are ``test``.
        limit: Only the first so many base claims.
        replicates: Repetitions of each question; each is an independent draw of the agents.
        methods: Names of :data:`~provgym.eval.topology_names.METHODS`; None takes all that there are parts for.
        generator: Folder of a trained generator, or of the run that trained it; None evaluates baselines alone.
        query_generator: Folder of one that was trained without evidence, for ``query_conditioned``.
        closed_generator: Folder of one of a run in which not even the agents saw evidence, for
            ``no_evidence_in_training``.
        fixed_team: JSON file of the team that a run chose on dev, for ``best_fixed``.
        encoder: Sentence encoder of retrieval and generators: a name, a folder, or ``hashed`` (no weights).
        encoder_revision: Of a hub model.
        embeddings: Folder of stored embeddings; None keeps them in memory.
        choice: ``similar`` units, or ``random`` ones as a control.
        depth: K, units retrieved for each question (3 in the source, best 3 to 5; 6 shows all of a conflict in the
            evidence tasks).
        depths: Further depths to sweep over (the source: 1 to 10).
        max_nodes: N_max of all teams: of templates, random ones, and those that generators decode (at most 10). None
            takes the generator's own, or 6 without one.
        max_in_degree: d_max of the same; None takes the generator's own, or 3. Debate may exceed it.
        node: lambda_V of the score.
        edge: lambda_E of the score.
        cost_weight: lambda_C of the score.
        decoding: Teams of the generator: the greedy ones, or sampled.
        temperature: Of sampling.
        max_samples: Most samples of self-consistency on a question.
        step_units: Units that ReAct adds at each step.
        seed: Run seed of random teams and retrieval, sampling and resampling.
        resamples: Bootstrap resamples.
    """

    tasks: Annotated[EvidenceTasks | BenchmarkTasks, Field(discriminator="kind")] = Field(default_factory=EvidenceTasks)
    split: Literal["train", "dev", "test"] = "test"
    limit: int | None = Field(default=None, ge=1)
    replicates: int = Field(default=4, ge=1, le=1_000)
    methods: tuple[str, ...] | None = None
    generator: Path | None = None
    query_generator: Path | None = None
    closed_generator: Path | None = None
    fixed_team: Path | None = None
    encoder: str = MINILM
    encoder_revision: str | None = None
    embeddings: Path | None = Path("runs/embeddings")
    choice: Literal["similar", "random"] = "similar"
    depth: int = Field(default=6, ge=1)
    depths: tuple[Annotated[int, Field(ge=1)], ...] = ()
    max_nodes: int | None = Field(default=None, ge=1, le=64)
    max_in_degree: int | None = Field(default=None, ge=1)
    node: float = Field(default=0.04, ge=0.0, allow_inf_nan=False)
    edge: float = Field(default=0.01, ge=0.0, allow_inf_nan=False)
    cost_weight: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    decoding: Literal["greedy", "sample"] = "greedy"
    temperature: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    max_samples: int = Field(default=64, ge=1)
    step_units: int = Field(default=1, ge=1)
    seed: int = Field(default=42, ge=0)
    resamples: int = Field(default=2_000, ge=1)

    @field_validator("methods", "depths")
    @classmethod
    def _distinct(cls, value: tuple[object, ...] | None) -> tuple[object, ...] | None:
        if value is not None and len(set(value)) < len(value):
            raise ValueError(f"{list(value)} names something twice; name each once")
        return value

    @field_validator("methods")
    @classmethod
    def _known(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        unknown = [name for name in value or () if name not in METHODS]
        if unknown or value == ():
            raise ValueError(f"methods {list(value or ())}: expected some of {', '.join(METHODS)}")
        return value

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.query_generator is not None and self.generator is None:
            raise ValueError("query_generator is a control of generator, which is not given; give both")
        if self.closed_generator is not None and self.generator is None:
            raise ValueError("closed_generator is a control of generator, which is not given; give both")
        if isinstance(self.tasks, BenchmarkTasks) and self.split != "test":
            raise ValueError(f"benchmark tasks stand in split 'test', found {self.split!r}; leave split out")
        return self

    @property
    def runs_code(self) -> bool:
        """Whether what agents write may be run."""
        return isinstance(self.tasks, BenchmarkTasks) and self.tasks.run_code

    def rule(self) -> ScoreRule:
        """Return how a run is scored."""
        return ScoreRule(CostWeights(self.node, self.edge), self.cost_weight, "raw")

    def resampling(self) -> Resampling:
        """Return how intervals are drawn."""
        return Resampling(self.seed, self.resamples)

    @property
    def question_hash(self) -> str:
        """12 hexadecimal digits of what decides the questions and their evidence; methods may be added to these."""
        names = {"tasks", "split", "limit", "replicates", "encoder", "encoder_revision", "choice", "depth", "seed"}
        return config_hash(TopologyEvalConfig.model_validate(self.model_dump(include=names)))


def topology_eval_config(run: Mapping[str, Any] | None, given: Mapping[str, Any]) -> TopologyEvalConfig:
    """Join what a user asked for with what a trained run brings with it: its held-out tasks, retrieval and prices.

    Args:
        run: The resolved configuration of a K-GAT run (``runs/NAME/config.yaml``); None without one.
        given: Fields, which win.

    Raises:
        ValueError: If a field is refused; one line, all problems.
    """
    try:
        return TopologyEvalConfig.model_validate(_brought(run or {}) | dict(given))
    except ValidationError as error:
        raise ValueError(problems_of(error)) from error


def _brought(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields that a run's configuration decides; sections that it lacks bring nothing."""
    tasks, retrieval, score = (run.get(name) or {} for name in ("tasks", "retrieval", "score"))
    found: dict[str, Any] = {}
    if "evidence" in tasks:
        found["tasks"] = {"kind": "evidence", "made": tasks["evidence"]}
    renamed = {
        "encoder": "encoder",
        "revision": "encoder_revision",
        "choice": "choice",
        "depth": "depth",
        "cache": "embeddings",
    }
    found |= {renamed[key]: value for key, value in retrieval.items() if key in renamed}
    return found | {key: score[key] for key in ("node", "edge", "cost_weight") if key in score}
