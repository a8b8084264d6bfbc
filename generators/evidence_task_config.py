"""Which evidence tasks are made: world, sizes, kinds of evidence, and how many units there are to see."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from provgym.envs.topology_tasks import EvidenceKind
from provgym.generators.evidence_conditions import MAX_UNITS, MIN_UNITS, can_conflict
from provgym.rewards.outcome import Verdict

EVIDENCE_KINDS: tuple[EvidenceKind, ...] = get_args(EvidenceKind)
QUESTION = (
    "{claim} Counting each distinct source once, do the sources support this claim, refute it, or are they mixed?"
)


class EvidenceTaskConfig(BaseModel):
    """Which tasks are made; the same configuration makes the same tasks.

    Attributes:
        world: GraphEcho-Syn, or SciFact (test split only).
        seed: What claims and evidence are drawn from.
        train_claims: Base claims asked about in the train split; each gives one task per kind.
        dev_claims: The same of the dev split.
        test_claims: The same of the test split.
        other_claims: Further claims of each split, never asked about, from which irrelevant units come; there are 16
            measures, so about 25 claims for each.
        kinds: Kinds of evidence, each once.
        num_units: Units near the question, and the retrieval depth that shows them all. 6 is the least at which echoes
            can contradict as well as blur; see :mod:`provgym.generators.evidence_conditions`.
        relevant_units: Of these, the units about the question under irrelevance.
        background_units: Units about other measures in each graph; they are found by deeper or random retrieval.
        verdicts: Gold verdicts of conflicting tasks, in equal parts; MIXED can be one of them. The other kinds are
            SUPPORT and REFUTE.
        scifact_claims: An official claims file with labels.
        scifact_corpus: The official corpus.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    world: Literal["graphecho", "scifact"] = "graphecho"
    seed: int = Field(default=42, ge=0)
    train_claims: int = Field(default=40, ge=0)
    dev_claims: int = Field(default=30, ge=0)
    test_claims: int = Field(default=60, ge=0)
    other_claims: int = Field(default=400, ge=0)
    kinds: tuple[EvidenceKind, ...] = EVIDENCE_KINDS
    num_units: int = Field(default=6, ge=MIN_UNITS, le=MAX_UNITS)
    relevant_units: int = Field(default=2, ge=1, le=5)
    background_units: int = Field(default=6, ge=0)
    verdicts: tuple[Verdict, ...] = (Verdict.SUPPORT, Verdict.REFUTE)
    scifact_claims: Path | None = None
    scifact_corpus: Path | None = None

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth_value(cls, value: Any) -> Any:
        # Pydantic would read true as 1, and no field here is one.
        if isinstance(value, bool):
            raise ValueError("found a truth value, expected a number, names or a path")
        return value

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if not self.kinds or len(set(self.kinds)) < len(self.kinds):
            raise ValueError(f"kinds {list(self.kinds)} must name at least one kind, each once")
        if not self.verdicts or len(set(self.verdicts)) < len(self.verdicts):
            raise ValueError(f"verdicts {list(self.verdicts)} must name at least one verdict, each once")
        if self.relevant_units >= self.num_units:
            raise ValueError(
                f"relevant_units={self.relevant_units} must be below num_units={self.num_units}: the rest is irrelevant"
            )
        return self

    @model_validator(mode="after")
    def _conflicts_can_be_laid_out(self) -> Self:
        # Every kind takes its layouts from conflicts: chance alone would decide whether tasks can be made.
        if self.world == "graphecho":
            for verdict in self.verdicts:
                if not can_conflict(verdict, self.num_units, self.relevant_units):
                    raise ValueError(
                        f"verdicts: no conflict of num_units={self.num_units} under {verdict.value} can be laid out "
                        f"alike with relevant_units={self.relevant_units}; choose other numbers, or leave "
                        f"{verdict.value} out"
                    )
        return self

    @model_validator(mode="after")
    def _scifact_is_whole(self) -> Self:
        if self.world == "scifact" and (self.scifact_claims is None or self.scifact_corpus is None):
            raise ValueError("world 'scifact' needs scifact_claims and scifact_corpus, the official files")
        if self.world == "scifact" and "conflict" in self.kinds:
            raise ValueError(
                "SciFact holds no claim with conflicting evidence; set kinds to agreement and irrelevance, or world to "
                "graphecho"
            )
        return self
