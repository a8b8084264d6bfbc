"""Methods over several training seeds: crossed intervals, every seed's own figure, and whether they agree in sign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provgym.eval.crossed import CrossedEstimate
from provgym.eval.significance import holm
from provgym.eval.table import ResultTable
from provgym.eval.topology_compare import MARGIN, Conclusion, Runs, align
from provgym.eval.topology_crossed import SeedColumn, crossed_mean, crossed_ratio
from provgym.eval.topology_estimates import Resampling
from provgym.eval.topology_metrics import COMPARED, HEADLINE, values_of
from provgym.eval.topology_names import DEBATE, UNTRAINED
from provgym.eval.topology_runs import MethodRun
from provgym.eval.topology_seed_teams import SeedTeams, seed_teams
from provgym.eval.topology_tables import crossed_cell, seeds_table
from provgym.generators.topology_targets import ScoreRule


@dataclass(frozen=True)
class PooledMethods:
    """Figures of methods over training seeds.

    Attributes:
        reference: The method that others are compared with.
        seeds: How many training seeds.
        methods: Method to metric to figure.
        differences: Other method to metric to the reference minus it, paired by seed and question; p corrected by Holm
            over the methods compared on one metric.
        teams: The reference's teams by kind of evidence; empty where tasks have no kinds.
        unscored: Method to its runs that ended in ``error``, over all seeds; methods without one are left out.
        tokens_ratio: The reference's tokens over debate's; None without debate.
        margin: By how much accuracy may be lower than debate's and still count as not inferior.
    """

    reference: str
    seeds: int
    methods: Mapping[str, Mapping[str, CrossedEstimate]]
    differences: Mapping[str, Mapping[str, CrossedEstimate]]
    teams: SeedTeams
    unscored: Mapping[str, int]
    tokens_ratio: CrossedEstimate | None = None
    margin: float = MARGIN

    @property
    def adaptation(self) -> Mapping[str, CrossedEstimate]:
        """Size of the reference's teams under conflicting or irrelevant evidence minus under agreeing evidence."""
        return self.teams.difference

    @property
    def non_inferiority(self) -> Conclusion:
        """Whether the reference is as accurate as debate up to the margin, by the crossed 95 % interval."""
        difference = self.differences.get(DEBATE, {}).get("accuracy")
        if difference is None or not difference.overall.has_interval:
            return "not available"
        if difference.overall.low > -self.margin:
            return "not inferior"
        return "inferior" if difference.overall.high < -self.margin else "undecided"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures has to know: errors, and where a simple baseline is no worse."""
        errors = [f"{name}: {count} runs ended in error and are not scored" for name, count in self.unscored.items()]
        plain = [
            note
            for name in UNTRAINED
            for metric in ("accuracy", "score")
            if (note := self._note_on(name, metric)) is not None
        ]
        return (*errors, *plain)

    def _note_on(self, name: str, metric: str) -> str | None:
        """Say where a baseline is no worse than the reference, on average or for some seed; None where it is worse."""
        found = self.differences.get(name, {}).get(metric)
        if found is None or not found.overall.is_available:
            return None
        ahead = sum(value <= 0.0 for value in found.by_seed)
        told = f"{self.reference} minus it {found.overall}; no worse for {ahead} of {self.seeds} seeds"
        if found.overall.value > 0.0:
            return (
                f"{name} has a lower {metric} than {self.reference}, but not for every seed: {told}" if ahead else None
            )
        verb = "has a higher" if found.overall.high < 0.0 else "has no lower"
        return f"{name} {verb} {metric} than {self.reference}: {told}"

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "reference": self.reference,
            "seeds": self.seeds,
            "methods": _as_json(self.methods),
            "differences": _as_json(self.differences),
            "adaptation": self.teams.to_json(),
            "tokens_ratio": None if self.tokens_ratio is None else self.tokens_ratio.to_json(),
            "margin": self.margin,
            "non_inferiority": self.non_inferiority,
            "unscored": dict(self.unscored),
            "notes": list(self.notes),
        }

    def tables(self) -> list[ResultTable]:
        """Return the tables in the order in which they are read."""
        tables = [seeds_table(self.methods, title=f"Methods over {self.seeds} training seeds")]
        if self.differences:
            title = f"{self.reference} minus each other method, paired by seed and question"
            tables.append(seeds_table(self.differences, title=title, is_difference=True))
        if self.tokens_ratio is not None:
            tables.append(self._debate_table(self.tokens_ratio))
        if self.teams.kinds:
            tables.append(self.teams.table(self.reference))
        return tables

    def _debate_table(self, tokens_ratio: CrossedEstimate) -> ResultTable:
        accuracy = crossed_cell(self.differences[DEBATE]["accuracy"], is_difference=True)
        ratio = crossed_cell(tokens_ratio, is_difference=False)
        row = (f"{self.reference} - {DEBATE}", accuracy, f"{self.margin:.3f}", self.non_inferiority, ratio)
        header = ("methods", "accuracy", "margin", "conclusion", "tokens ratio")
        caption = (
            "Not inferior: the whole crossed 95 % interval lies above minus the margin. Ratio: the first's tokens over "
            "the second's, on the same questions; mean over seeds."
        )
        return ResultTable("Against debate", header, (row,), caption)


def pool_methods(
    seeds: Sequence[Runs], rule: ScoreRule, *, reference: str, resampling: Resampling | None = None
) -> PooledMethods:
    """Pool evaluations of several training seeds; only methods that every seed has enter.

    Args:
        seeds: Method to runs of each training seed, at least two, all on the same questions.
        rule: Prices of structure.
        reference: The method that others are compared with.
        resampling: Seed and number of resamples.

    Raises:
        ValueError: If there are fewer than two seeds, one lacks the reference, or runs cannot be paired.
    """
    if len(seeds) < 2:
        raise ValueError(f"found {len(seeds)} training seed(s); a crossed interval needs at least two")
    names = [name for name in seeds[0] if all(name in seed for seed in seeds)]
    if reference not in names:
        raise ValueError(f"reference {reference!r} is not in every seed; all have {names}")
    for seed in seeds[1:]:
        align(seeds[0][reference], seed[reference])  # the same questions everywhere
    others = [name for name in names if name != reference]
    differences = {
        other: {m: crossed_mean(_columns(seeds, reference, other, m, rule), resampling) for m in COMPARED}
        for other in others
    }
    has_debate = DEBATE in others
    return PooledMethods(
        reference=reference,
        seeds=len(seeds),
        methods={
            name: {m: crossed_mean([_column(seed[name], m, rule) for seed in seeds], resampling) for m in HEADLINE}
            for name in names
        },
        differences=_holm_corrected(differences),
        teams=seed_teams([seed[reference] for seed in seeds], resampling),
        unscored=_unscored(seeds, names),
        tokens_ratio=crossed_ratio(_columns(seeds, reference, DEBATE, "tokens", rule), resampling)
        if has_debate
        else None,
    )


def _column(runs: Sequence[MethodRun], metric: str, rule: ScoreRule) -> SeedColumn:
    return SeedColumn([run.base_id for run in runs], values_of(runs, metric, rule))


def _columns(seeds: Sequence[Runs], first: str, second: str, metric: str, rule: ScoreRule) -> list[SeedColumn]:
    columns = []
    for seed in seeds:
        a, b = align(seed[first], seed[second])
        columns.append(_column(a, metric, rule)._replace(second=values_of(b, metric, rule)))
    return columns


def _unscored(seeds: Sequence[Runs], names: Sequence[str]) -> dict[str, int]:
    counts = {name: sum(not run.is_scored for seed in seeds for run in seed[name]) for name in names}
    return {name: count for name, count in counts.items() if count}


def _holm_corrected(
    differences: Mapping[str, Mapping[str, CrossedEstimate]],
) -> dict[str, dict[str, CrossedEstimate]]:
    """Correct p over the methods compared on one metric."""
    corrected = {name: dict(found) for name, found in differences.items()}
    for metric in COMPARED:
        adjusted = holm([found[metric].p for found in differences.values()])
        for name, p in zip(differences, adjusted, strict=True):
            corrected[name][metric] = replace(differences[name][metric], p=p)
    return corrected


def _as_json(found: Mapping[str, Mapping[str, CrossedEstimate]]) -> dict[str, dict[str, Any]]:
    return {label: {name: figure.to_json() for name, figure in row.items()} for label, row in found.items()}
