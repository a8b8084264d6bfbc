"""The typed result of a topology evaluation, and what ``summary.json`` says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provgym.eval.topology_estimates import Resampling
from provgym.eval.topology_runs import MethodRun
from provgym.eval.topology_summary import TopologySummary
from provgym.generators.topology_targets import ScoreRule


@dataclass(frozen=True)
class TopologyEvalResult:
    """A finished evaluation.

    Attributes:
        runs: Method to its runs, in the questions' order.
        summary: Every figure.
        rule: Prices of structure.
        resampling: Seed and number of resamples.
        header: What ``config.yaml`` holds; empty for stored runs that are scored again.
        out_dir: Where the files lie.
    """

    runs: Mapping[str, Sequence[MethodRun]]
    summary: TopologySummary
    rule: ScoreRule
    resampling: Resampling
    out_dir: Path
    header: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_questions(self) -> int:
        """Questions of each method, repetitions counted."""
        return len(next(iter(self.runs.values())))

    @property
    def num_claims(self) -> int:
        """Base claims among them: the unit that intervals are over."""
        return len({run.base_id for run in next(iter(self.runs.values()))})

    def to_json(self) -> dict[str, Any]:
        """Return what ``summary.json`` holds."""
        details = {
            **{key: self.header[key] for key in ("config_hash", "data_hash", "fingerprint") if key in self.header},
            "num_claims": self.num_claims,
            "num_questions": self.num_questions,
            "seed": self.resampling.seed,
            "resamples": self.resampling.resamples,
            "score": {
                "node": self.rule.weights.node,
                "edge": self.rule.weights.edge,
                "cost_weight": self.rule.cost_weight,
            },
            **self.summary.to_json(),
            "notes": list(self.summary.notes),
        }
        return self.summary.to_map() | {"details": details}
