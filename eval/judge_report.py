"""What a judgement evaluation shows its reader: data, tables by group of conditions, shifts, comparisons, notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from provgym.eval.compare import Comparison, compare_policies
from provgym.eval.curve_plots import plot_reliability
from provgym.eval.estimate import Estimate
from provgym.eval.judge import JudgeResult
from provgym.eval.judge_metrics import COMPARED, GROUPS, split_by_group
from provgym.eval.judge_shifts import SHIFTS, Shift
from provgym.eval.judge_summary import MitigationSummary
from provgym.eval.plots import plot_policies
from provgym.eval.reliability import reliability_of
from provgym.eval.report_text import Report, named_notes, write_report_files
from provgym.eval.table import (
    MISSING,
    ResultTable,
    comparison_table,
    condition_table,
    endings_table,
    estimate_cell,
    policy_table,
)
from provgym.eval.walk_tables import class_table
from provgym.generators.episode import Episode

TITLES: Mapping[str, str] = {
    "conflict": "Judgement, C1-C4 and C2R",
    "scifact": "SciFact judgement, all variants",
    "first_document": "SciFact judgement, first document only (one route)",
    "source_count": "Judgement, one side only (sSkP)",
    "other": "Judgement, other conditions",
    "general": "Judgement, general conditions",
}
COLUMNS = (
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    "count_mae",
    "invalid_rate",
    "brier",
    "ece",
    "prompt_tokens",
    "sampled_tokens",
)
CONDITION_COLUMNS = ("accuracy", "support_rate", "refute_rate", "mixed_rate", "count_mae", "invalid_rate")
SHOWN = COMPARED[0]
"""The metric whose comparisons stand in the report; where all evidence is on one side (sSkP) it says nothing."""
_TOKEN_COLUMNS = ("prompt_tokens", "sampled_tokens")

Rows = Mapping[str, Mapping[str, Estimate]]


def report_on_judges(results: Mapping[str, JudgeResult]) -> Report:
    """Report on policies that judged the same claims, compared pairwise under each mitigation.

    Args:
        results: Policy label to its result, at least one.

    Raises:
        ValueError: If there is no result, or the policies judged different claims.
    """
    notes = named_notes(results)
    first = next(iter(results.values()))
    tables = _group_tables(results)
    tables += _shift_tables(results)
    if len(results) == 1:
        for mitigation, found in first.summary.by_mitigation.items():
            title = f"By condition, {mitigation}"
            tables.append(condition_table(found.by_condition, columns=CONDITION_COLUMNS, title=title))
    compared = _comparisons(results)
    shown = [c for c in compared if c.metric.endswith(SHOWN) and GROUPS["source_count"] not in c.metric]
    if shown:
        tables.append(comparison_table(shown, title="Paired differences in accuracy (comparison.json: all metrics)"))
    tables.append(endings_table({label: found.endings for label, found in _by_label(results).items()}))
    return Report(tuple(_data_lines(first)), tuple(tables), notes, compared)


def write_judge_report(results: Mapping[str, JudgeResult], report: Report, folder: Path) -> None:
    """Write ``report.md``, ``comparison.json`` and, for each mitigation, plots of all policies side by side.

    Raises:
        OSError: If the folder cannot be written.
    """
    first = next(iter(results.values()))
    write_report_files(report, first.config_hash, folder)
    for mitigation in first.summary.by_mitigation:
        _plot(results, mitigation, folder / "plots")


def shift_table(rows: Mapping[str, Mapping[str, Shift]], *, title: str = "Shifts between conditions") -> ResultTable:
    """Return shifts by policy, each with its interval and the number of claims; the sound judge's stand below.

    Args:
        rows: Row label to shifts by name.
        title: Of the table.
    """
    kinds = [kind for kind in SHIFTS if any(kind.name in shifts for shifts in rows.values())]
    cells = [
        (label, *(estimate_cell(shifts[k.name].estimate) if k.name in shifts else MISSING for k in kinds))
        for label, shifts in rows.items()
    ]
    cells.append(("by sources alone", *(MISSING if k.sound is None else f"{k.sound:.0f}" for k in kinds)))
    caption = (
        "Each claim against itself, after minus before; 95 % cluster-bootstrap intervals; n = claims. Last row: what a "
        "judge that follows distinct sources alone does."
    )
    return ResultTable(title, ("policy", *(kind.name for kind in kinds)), tuple(cells), caption)


def _group_tables(results: Mapping[str, JudgeResult]) -> list[ResultTable]:
    """Return one table per group of conditions, and SciFact's classes."""
    rows = {label: found.metrics for label, found in _by_label(results).items()}
    probes = next(iter(results.values())).summary.probes
    tables = []
    for group, prefix in GROUPS.items():
        if group not in probes:
            continue
        has_tokens = any(_is_available(found, f"{prefix}prompt_tokens") for found in rows.values())
        columns = tuple(c for c in COLUMNS if has_tokens or c not in _TOKEN_COLUMNS)
        if any(_is_available(found, f"{prefix}unknown_token_rate") for found in rows.values()):
            columns += ("unknown_token_rate",)
        tables.append(policy_table(rows, prefix=prefix, columns=columns, probes=probes[group], title=TITLES[group]))
        if group in ("scifact", "first_document"):
            tables.append(class_table(rows, prefix=prefix, title=f"{TITLES[group]}, by class"))
    return tables


def _shift_tables(results: Mapping[str, JudgeResult]) -> list[ResultTable]:
    rows = {label: found.shifts for label, found in _by_label(results).items()}
    return [shift_table(rows)] if any(rows.values()) else []


def _comparisons(results: Mapping[str, JudgeResult]) -> tuple[Comparison, ...]:
    """Compare policies pairwise under each mitigation, and each policy's mitigations with its first one."""
    first = next(iter(results.values()))
    mitigations = first.config.mitigations
    by_label = {
        mitigation: {name: _under(result, mitigation) for name, result in results.items()} for mitigation in mitigations
    }
    found: list[Comparison] = []
    if len(results) > 1:
        for mitigation, episodes in by_label.items():
            found += _compare(episodes, None, first, f"{mitigation} " if len(mitigations) > 1 else "")
    if len(mitigations) > 1:
        for name in results:
            labelled = {f"{name} {mitigation}": by_label[mitigation][name] for mitigation in mitigations}
            found += _compare(labelled, f"{name} {mitigations[0]}", first, "")
    return tuple(found)


def _compare(
    episodes: Mapping[str, Sequence[Episode]], baseline: str | None, first: JudgeResult, prefix: str
) -> list[Comparison]:
    """Compare within each group of conditions; the group and the prefix join the metric's name."""
    groups: dict[str, dict[str, list[Episode]]] = {}
    for name, played in episodes.items():
        for group, chosen in split_by_group(played).items():
            groups.setdefault(group, {})[name] = chosen
    settings = {"seed": first.config.seed, "resamples": first.config.resamples}
    return [
        replace(comparison, metric=f"{prefix}{GROUPS[group]}{comparison.metric.removeprefix(GROUPS['general'])}")
        for group, chosen in groups.items()
        for comparison in compare_policies(chosen, metrics=COMPARED, baseline=baseline, **settings)
    ]


def _plot(results: Mapping[str, JudgeResult], mitigation: str, folder: Path) -> None:
    metrics = {name: result.summary.by_mitigation[mitigation].metrics for name, result in results.items()}
    first = next(iter(results.values()))
    probes = {GROUPS[group]: found for group, found in first.summary.probes.items() if group != "source_count"}
    plot_policies(metrics, folder / f"policies-{mitigation}.png", metrics=COMPARED[:2], probes=probes)
    config = first.config
    reliability = {
        name: reliability_of(_under(result, mitigation), seed=config.seed, resamples=config.resamples)
        for name, result in results.items()
    }
    if any(reliability.values()):
        plot_reliability(reliability, folder / f"reliability-{mitigation}.png")


def _under(result: JudgeResult, mitigation: str) -> list[Episode]:
    return [episode for episode in result.episodes if episode.mitigation == mitigation]


def _by_label(results: Mapping[str, JudgeResult]) -> dict[str, MitigationSummary]:
    """Return each policy's figures under each mitigation, by the label of their row."""
    several = len(next(iter(results.values())).config.mitigations) > 1
    return {
        f"{name} {mitigation}" if several else name: found
        for name, result in results.items()
        for mitigation, found in result.summary.by_mitigation.items()
    }


def _is_available(metrics: Mapping[str, Estimate], name: str) -> bool:
    return name in metrics and metrics[name].is_available


def _data_lines(result: JudgeResult) -> list[str]:
    """Say what was judged and what a loader left out."""
    config = result.config
    nodes = ", ".join(f"{condition} {number:.1f}" for condition, number in result.summary.nodes.items())
    return [
        *result.data_report.splitlines(),
        f"{len(result.episodes)} judgements of {result.num_claims} claims, split {config.split}, "
        f"{'/'.join(config.mitigations)}, all routes shown at once, {config.decoding}, seed {config.seed}, "
        f"configuration {result.config_hash}",
        *([f"mean nodes of a graph: {nodes}"] if nodes else []),
    ]
