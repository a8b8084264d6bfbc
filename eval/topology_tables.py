"""Tables of a topology evaluation: methods by metrics, adaptation to the evidence, Verifiers, endings, sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from provgym.eval.crossed import CrossedEstimate
from provgym.eval.estimate import Estimate
from provgym.eval.table import MISSING, ResultTable, endings_table, estimate_cell, p_cell
from provgym.eval.topology_adaptation import SIZES
from provgym.eval.topology_compare import NonInferiority
from provgym.eval.topology_metrics import HEADLINE
from provgym.eval.topology_names import WHAT_CHANGES
from provgym.eval.topology_summary import MethodSummary, TopologySummary

COLUMNS = (*HEADLINE, "latency_s")
INTERVALS = "95 % cluster-bootstrap intervals over base claims; n below each figure."


def method_table(methods: Mapping[str, MethodSummary], *, columns: Sequence[str] = COLUMNS) -> ResultTable:
    """Return methods by metrics."""
    rows = [(name, *(estimate_cell(found.metrics.get(c)) for c in columns)) for name, found in methods.items()]
    caption = (
        f"{INTERVALS} Tokens and calls: what a run takes by itself, stored replies included; latency: seconds along "
        "its slowest chain of calls. Runs that ended in error are not scored."
    )
    return ResultTable("Methods on the same questions, evidence and agents", ("method", *columns), tuple(rows), caption)


def kind_table(methods: Mapping[str, MethodSummary], *, columns: Sequence[str] = HEADLINE) -> ResultTable:
    """Return methods by metrics for each kind of evidence."""
    rows = [
        (f"{kind}: {name}", *(estimate_cell(metrics.get(c)) for c in columns))
        for kind in dict.fromkeys(kind for found in methods.values() for kind in found.by_kind)
        for name, found in methods.items()
        if (metrics := found.by_kind.get(kind)) is not None
    ]
    return ResultTable("By kind of evidence", ("evidence: method", *columns), tuple(rows), INTERVALS)


def ladder_table(names: Sequence[str]) -> ResultTable:
    """Return what each method changes against the reference."""
    rows = [(name, WHAT_CHANGES.get(name, MISSING)) for name in names]
    return ResultTable("What each method is", ("method", "one thing at a time"), tuple(rows))


def adaptation_table(methods: Mapping[str, MethodSummary]) -> ResultTable:
    """Return team sizes and roles by kind of evidence, and the difference between hard and agreeing evidence."""
    roles = sorted({role for m in methods.values() for t in m.adaptation.kinds.values() for role in t.roles})
    rows: list[tuple[str, ...]] = []
    for name, found in methods.items():
        for kind, teams in found.adaptation.kinds.items():
            sizes = " ".join(f"{size}:{share:.0%}" for size, share in teams.sizes.items())
            cells = [estimate_cell(teams.nodes), estimate_cell(teams.edges)]
            cells += [_short(teams.roles.get(role)) for role in roles]
            rows.append((f"{name}: {kind}", *cells, sizes, teams.teams[0][0] if teams.teams else MISSING))
        if any(found.adaptation.difference[size].is_available for size in SIZES):
            difference = [signed_cell(found.adaptation.difference[size]) for size in SIZES]
            blanks = [MISSING] * (len(roles) + 2)
            rows.append((f"{name}: conflict and irrelevance - agreement", *difference, *blanks))
    header = ("method: evidence", "nodes", "edges", *roles, "size:share", "most frequent team")
    caption = f"Mean number of nodes, edges and instances of each role in a team. {INTERVALS}"
    return ResultTable("Teams by kind of evidence", header, tuple(rows), caption)


def verifier_table(methods: Mapping[str, MethodSummary]) -> ResultTable:
    """Return what Verifiers did, one row per method that has any."""
    rows = []
    for name, found in methods.items():
        figures = found.verifier
        if figures.checked or figures.stopped:
            counts = [str(number) for number in figures.changes.values()]
            stopped = f"{figures.stopped} ({figures.stopped_answered} answered)"
            rows.append((name, *counts, estimate_cell(figures.spoiled), estimate_cell(figures.repaired), stopped))
    names = list(next((m.verifier.changes for m in methods.values()), {}))
    header = ("method", *(name.replace("_", " ") for name in names), "spoiled", "repaired", "stopped")
    caption = (
        "The unit is a Verifier in a scored run: its answer against the one that reached it. Spoiled: share of right "
        "answers made wrong; repaired: share of wrong answers made right. An answer taken away counts as wrong."
    )
    return ResultTable("Verifiers", header, tuple(rows), caption)


def coverage_table(methods: Mapping[str, MethodSummary]) -> ResultTable:
    """Return how runs ended, by method; ``error`` is counted and never scored."""
    return endings_table({name: found.endings for name, found in methods.items()})


def non_inferiority_table(found: NonInferiority) -> ResultTable:
    """Return accuracy within a margin, and what it takes."""
    row = (
        f"{found.first} - {found.second}",
        signed_cell(found.accuracy.difference),
        f"{found.margin:.3f}",
        found.conclusion,
        estimate_cell(found.tokens_ratio),
        estimate_cell(found.calls_ratio),
        estimate_cell(found.latency_ratio),
    )
    header = ("methods", "accuracy", "margin", "conclusion", "tokens ratio", "calls ratio", "latency ratio")
    caption = "Not inferior: the whole paired 95 % interval lies above minus the margin. Ratios: first over second."
    return ResultTable("Non-inferiority", header, (row,), caption)


def gain_table(gains: Mapping[str, Estimate]) -> ResultTable:
    """Return what evidence is worth: accuracy with it minus without it, same teams and agents."""
    rows = [(name, signed_cell(found)) for name, found in gains.items()]
    caption = "Open book minus closed book: the same teams, agents with and without the evidence. Paired intervals."
    return ResultTable("What the evidence is worth", ("method", "accuracy"), tuple(rows), caption)


def seeds_table(
    methods: Mapping[str, Mapping[str, CrossedEstimate]], *, title: str, is_difference: bool = False
) -> ResultTable:
    """Return figures over training seeds, every seed's own below them.

    Args:
        methods: Row label to metric to figure.
        title: Of the table.
        is_difference: Show signs and p.
    """
    columns = list(dict.fromkeys(name for found in methods.values() for name in found))
    rows = [
        (label, *(crossed_cell(found.get(column), is_difference=is_difference) for column in columns))
        for label, found in methods.items()
    ]
    caption = "Crossed 95 % intervals over training seeds and base claims; below: each seed's own figure."
    if is_difference:
        caption += " p: the larger one of the crossed bootstrap's and of a paired t test over seeds."
    return ResultTable(title, ("method", *columns), tuple(rows), caption)


def summary_tables(summary: TopologySummary) -> list[ResultTable]:
    """Return the tables of one evaluation in the order in which they are read, comparisons left out."""
    methods = summary.methods
    tables = [method_table(methods)]
    if any(len(found.by_kind) > 1 for found in methods.values()):
        tables.append(kind_table(methods))
    if any(found.adaptation.kinds for found in methods.values()):
        tables.append(adaptation_table({summary.reference: methods[summary.reference]}))
    if summary.non_inferiority is not None:
        tables.append(non_inferiority_table(summary.non_inferiority))
    if summary.evidence_gains:
        tables.append(gain_table(summary.evidence_gains))
    if any(found.verifier.checked or found.verifier.stopped for found in methods.values()):
        tables.append(verifier_table(methods))
    return [*tables, coverage_table(methods), ladder_table(list(methods))]


def signed_cell(estimate: Estimate) -> str:
    """Return a difference with its sign, its interval and its n, one per line.

    Example:
        >>> signed_cell(Estimate(0.05, 0.01, 0.09, 120)).splitlines()
        ['+0.050', '[+0.010, +0.090]', 'n=120']
    """
    if not estimate.is_available:
        return estimate_cell(estimate)
    interval = f"[{estimate.low:+.3f}, {estimate.high:+.3f}]" if estimate.has_interval else "no interval"
    return f"{estimate.value:+.3f}\n{interval}\nn={estimate.n}"


def crossed_cell(found: CrossedEstimate | None, *, is_difference: bool) -> str:
    """Return a figure over training seeds with interval and n, then every seed's own, then p of a difference."""
    if found is None:
        return MISSING
    sign = "+" if is_difference else ""
    seeds = " ".join(f"{value:{sign}.3f}" for value in found.by_seed)
    cell = signed_cell(found.overall) if is_difference else estimate_cell(found.overall)
    return f"{cell}\n{seeds}" + (f"\np={p_cell(found.p)}" if is_difference else "")


def _short(estimate: Estimate | None) -> str:
    return MISSING if estimate is None or not estimate.is_available else f"{estimate.value:.2f}"
