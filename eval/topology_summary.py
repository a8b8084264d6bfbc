"""What an evaluation of methods came to: figures of each, comparisons, adaptation to the evidence, endings apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provgym.envs.code_sandbox import CodeOutcome
from provgym.eval.compare import Comparison
from provgym.eval.estimate import Estimate
from provgym.eval.topology_adaptation import EVIDENCE_KINDS, Adaptation, adaptation_of
from provgym.eval.topology_code import code_outcomes
from provgym.eval.topology_compare import NonInferiority, Runs, compare_methods, compare_runs, non_inferiority
from provgym.eval.topology_estimates import Resampling
from provgym.eval.topology_metrics import HEADLINE, estimate_runs
from provgym.eval.topology_names import (
    DEBATE,
    EVIDENCE_PAIRS,
    KGAT,
    RESERVED_NAMES,
    TOKEN_MATCHED,
    UNTRAINED,
)
from provgym.eval.topology_runs import MethodRun
from provgym.eval.topology_verifier import VerifierFigures, verifier_figures
from provgym.eval.walk_summary import Coverage
from provgym.generators.topology_targets import ScoreRule
from provgym.rewards.outcome import Ending

_VERBS = {
    "accuracy": ("is more accurate than", "is no less accurate than"),
    "score": ("scores higher than", "scores no lower than"),
}
"""Metric to what is said of a baseline whose interval lies above the reference, and of one that is no worse."""


@dataclass(frozen=True, slots=True)
class MethodSummary:
    """Figures of one method.

    Attributes:
        metrics: Every metric over all questions.
        by_kind: Kind of evidence to the metrics of its questions; kinds without a question are left out.
        endings: Ending to number of runs; the four are never merged.
        coverage: How many runs could be scored.
        verifier: What its Verifiers did.
        adaptation: How its teams differ between kinds of evidence.
        first_error: Why the first run that ended in ``error`` did so; None without one.
        code: What became of its answers in code; empty where none was run.
    """

    metrics: Mapping[str, Estimate]
    by_kind: Mapping[str, Mapping[str, Estimate]]
    endings: Mapping[str, int]
    coverage: Coverage
    verifier: VerifierFigures
    adaptation: Adaptation
    first_error: str | None = None
    code: Mapping[CodeOutcome, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "metrics": _as_json(self.metrics),
            "by_kind": {kind: _as_json(found) for kind, found in self.by_kind.items()},
            "endings": dict(self.endings),
            "coverage": self.coverage.to_json(),
            "verifier": self.verifier.to_json(),
            "adaptation": self.adaptation.to_json(),
            "first_error": self.first_error,
            **({"code": dict(self.code)} if self.code else {}),
        }


@dataclass(frozen=True)
class TopologySummary:
    """Figures of several methods on the same questions.

    Attributes:
        reference: The method that others are compared with.
        methods: Method to its figures, in the order of play.
        comparisons: The reference minus each other method.
        non_inferiority: The reference against debate; None unless both were played.
        evidence_gains: Method to its accuracy with evidence minus the same method's without: open against closed book.
    """

    reference: str
    methods: Mapping[str, MethodSummary]
    comparisons: tuple[Comparison, ...]
    non_inferiority: NonInferiority | None
    evidence_gains: Mapping[str, Estimate]

    def to_map(self) -> dict[str, Any]:
        """Return what a run's ``summary.json`` holds of an evaluation.

        Method to ``accuracy``, ``score``, ``tokens``, ``calls``, ``nodes`` and ``edges``, each with ``value``, ``low``,
        ``high`` and ``n``; and ``adaptation`` of the reference: kind of evidence to sizes and roles of its teams.
        """
        methods: dict[str, Any] = {
            name: _as_json({metric: found.metrics[metric] for metric in HEADLINE})
            for name, found in self.methods.items()
        }
        return methods | {"adaptation": self.methods[self.reference].adaptation.to_json()}

    def to_json(self) -> dict[str, Any]:
        """Return every figure as JSON-ready data; what is not available is null with n = 0."""
        return {
            "reference": self.reference,
            "methods": {name: found.to_json() for name, found in self.methods.items()},
            "comparisons": [comparison.to_json() for comparison in self.comparisons],
            "non_inferiority": None if self.non_inferiority is None else self.non_inferiority.to_json(),
            "evidence_gains": _as_json(self.evidence_gains),
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures has to know."""
        code = [
            f"code of {name}: " + ", ".join(f"{number} {outcome}" for outcome, number in found.code.items())
            for name, found in self.methods.items()
            if found.code
        ]
        return (*_error_notes(self.methods), *code, *_baseline_notes(self))


def summarise_methods(
    runs: Runs, rule: ScoreRule, *, reference: str = KGAT, resampling: Resampling | None = None
) -> TopologySummary:
    """Compute every figure of methods that answered the same questions; nothing is executed.

    Args:
        runs: Method to its runs, at least one method.
        rule: Prices of structure; figures come from the raw success rate.
        reference: The method that others are compared with.
        resampling: Seed and number of resamples.

    Raises:
        ValueError: If there is no method, the reference is not among them, a name is reserved, or the methods answered
            different questions.
    """
    if reference not in runs:
        raise ValueError(f"reference {reference!r} is none of the methods {list(runs)}; name one of them")
    taken = [name for name in runs if name in RESERVED_NAMES]
    if taken:
        raise ValueError(f"methods {taken} have names that summaries use for other things; rename them")
    has_debate = DEBATE in runs and reference != DEBATE
    return TopologySummary(
        reference=reference,
        methods={name: summarise_method(found, rule, resampling) for name, found in runs.items()},
        comparisons=compare_methods(runs, reference, rule, resampling=resampling),
        non_inferiority=non_inferiority(runs, reference, DEBATE, rule, resampling=resampling) if has_debate else None,
        evidence_gains={
            name: compare_runs(runs[name], runs[closed], "accuracy", rule, resampling).difference
            for name, closed in EVIDENCE_PAIRS.items()
            if name in runs and closed in runs
        },
    )


def summarise_method(runs: Sequence[MethodRun], rule: ScoreRule, resampling: Resampling | None = None) -> MethodSummary:
    """Compute every figure of one method.

    Args:
        runs: Of one method.
        rule: How runs are scored.
        resampling: Of the intervals; the default one if None.
    """
    scored = sum(run.is_scored for run in runs)
    of_kind = {kind: [run for run in runs if run.evidence_kind == kind] for kind in EVIDENCE_KINDS}
    return MethodSummary(
        metrics=estimate_runs(runs, rule, resampling),
        by_kind={kind: estimate_runs(chosen, rule, resampling) for kind, chosen in of_kind.items() if chosen},
        endings={ending.value: sum(run.ending is ending for run in runs) for ending in Ending},
        coverage=Coverage(len(runs), scored, len(runs) - scored),
        verifier=verifier_figures(runs, resampling),
        adaptation=adaptation_of(runs, resampling),
        first_error=next((run.error for run in runs if run.error is not None), None),
        code=code_outcomes(runs),
    )


def _error_notes(methods: Mapping[str, MethodSummary]) -> list[str]:
    notes = []
    for name, found in methods.items():
        coverage = found.coverage
        if not coverage.episodes:
            notes.append(f"{name}: n = 0, not available: there was nothing to answer")
        elif coverage.errors:
            notes.append(
                f"{name}: {coverage.errors} of {coverage.episodes} runs ended in error and are not scored: coverage "
                f"{coverage.scored / coverage.episodes:.0%}; the first: {found.first_error}; the same command plays "
                "them again"
            )
        unanswered = found.endings[Ending.INVALID.value] + found.endings[Ending.TRUNCATED.value]
        if unanswered and unanswered == coverage.scored:
            notes.append(f"{name}: none of {coverage.scored} scored runs gave an answer that could be read")
    return notes


def _baseline_notes(summary: TopologySummary) -> list[str]:
    """Say plainly where a simple baseline is as good as the reference, and whether tokens were really matched."""
    notes = []
    for comparison in summary.comparisons:
        verbs = _VERBS.get(comparison.metric)
        if verbs is not None and comparison.second in UNTRAINED:
            difference = comparison.paired.difference
            if difference.is_available and difference.value <= 0.0:
                verb = verbs[0] if comparison.paired.is_below_zero else verbs[1]
                notes.append(f"{comparison.second} {verb} {comparison.first}: {comparison.first} minus it {difference}")
    for comparison in summary.comparisons:
        if comparison.metric == "tokens" and comparison.second in TOKEN_MATCHED:
            ratio = comparison.paired.b / comparison.paired.a if comparison.paired.a else float("nan")
            notes.append(f"{comparison.second} takes {ratio:.2f} times the tokens of {comparison.first}")
    return notes


def _as_json(found: Mapping[str, Estimate]) -> dict[str, dict[str, float | int | None]]:
    return {name: estimate.to_json() for name, estimate in found.items()}
