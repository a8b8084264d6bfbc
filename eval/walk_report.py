"""What a walk evaluation of one or several policies shows its reader: data, tables, comparisons, notes, files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from provgym.eval.compare import Comparison, compare_policies
from provgym.eval.curve_plots import plot_budgets, plot_reliability
from provgym.eval.metrics import GENERAL_PREFIX, HEADLINE
from provgym.eval.plots import plot_policies
from provgym.eval.report_text import Report, named_notes, write_report_files
from provgym.eval.table import (
    ResultTable,
    comparison_table,
    condition_table,
    endings_table,
    policy_table,
)
from provgym.eval.walk_config import ScifactClaims
from provgym.eval.walk_result import WalkEvalResult
from provgym.eval.walk_summary import total_endings
from provgym.eval.walk_tables import class_table, confidence_table, group_table

COLUMNS = (*HEADLINE[:2], "macro_f1", *HEADLINE[2:])
"""What the tables show of every policy; ``unknown_token_rate`` joins where a policy has tokens."""


def report_on(results: Mapping[str, WalkEvalResult]) -> Report:
    """Report on policies that played the same tasks, compared pairwise if there are several.

    Args:
        results: Policy label to its result, at least one.

    Raises:
        ValueError: If there is no result, or the policies played different tasks.
    """
    notes = named_notes(results)
    first = next(iter(results.values()))
    tables = _policy_tables(results)
    if isinstance(first.config.claims, ScifactClaims):
        tables.append(class_table({name: r.metrics for name, r in results.items()}, title="SciFact, by class"))
    if len(results) == 1 and len(first.summary.by_condition) > 1:
        columns = tuple(c for c in COLUMNS if c in next(iter(first.summary.by_condition.values()), {}))
        tables.append(condition_table(first.summary.by_condition, columns=columns))
    tables += _setting_tables(results)
    compared: tuple[Comparison, ...] = ()
    if len(results) > 1:
        compared = compare_policies({name: r.episodes for name, r in results.items()}, seed=first.config.seed)
        tables.append(comparison_table(compared))
    if first.episodes:
        tables.append(confidence_table({name: r.summary.reliability for name, r in results.items()}))
    tables.append(endings_table({name: total_endings(r.summary) for name, r in results.items()}))
    return Report(tuple(_data_lines(first)), tuple(tables), notes, compared)


def write_report(results: Mapping[str, WalkEvalResult], report: Report, folder: Path) -> None:
    """Write ``report.md``, ``comparison.json`` and ``plots/*.png`` over all policies of an evaluation.

    Raises:
        OSError: If the folder cannot be written.
    """
    first = next(iter(results.values()))
    write_report_files(report, first.config_hash, folder)
    plots = folder / "plots"
    plot_policies({name: r.metrics for name, r in results.items()}, plots / "policies.png", probes=first.summary.probes)
    if any(r.summary.reliability for r in results.values()):
        plot_reliability({name: r.summary.reliability for name, r in results.items()}, plots / "reliability.png")
    if len(first.config.budgets) > 1 and first.summary.by_group:
        plot_budgets({name: r.summary.by_group for name, r in results.items()}, plots / "budgets.png")


def _policy_tables(results: Mapping[str, WalkEvalResult]) -> list[ResultTable]:
    """Return one table per group of conditions; the group without a figure anywhere is left out."""
    metrics = {name: result.metrics for name, result in results.items()}
    first = next(iter(results.values()))
    tables = []
    for prefix in ("", GENERAL_PREFIX):
        if not any(prefix + "accuracy" in found for found in metrics.values()):
            continue
        has_tokens = any(
            (rate := found.get(f"{prefix}unknown_token_rate")) is not None and rate.is_available
            for found in metrics.values()
        )
        columns = (*COLUMNS, *(["unknown_token_rate"] if has_tokens else []))
        probes = first.summary.probes.get(prefix, ())
        title = "SciFact" if isinstance(first.config.claims, ScifactClaims) else ""
        tables.append(policy_table(metrics, prefix=prefix, columns=columns, probes=probes, title=title))
    return tables


def _setting_tables(results: Mapping[str, WalkEvalResult]) -> list[ResultTable]:
    """Return figures by mitigation and budget where several were played, and by kind of evidence."""
    tables: list[ResultTable] = []
    if all(len(r.summary.by_setting) < 2 for r in results.values()):
        return tables
    for prefix, group in (("", "named"), (GENERAL_PREFIX, "general")):
        rows = {
            setting if len(results) == 1 else f"{name} {setting}": found
            for name, result in results.items()
            for setting, found in result.summary.by_setting.items()
            if prefix + "accuracy" in found
        }
        if rows:
            title = f"By mitigation and budget, {group} conditions"
            tables.append(policy_table(rows, prefix=prefix, columns=COLUMNS, title=title))
    by_group = {name: r.summary.by_group for name, r in results.items() if r.summary.by_group}
    return [*tables, group_table(by_group)] if by_group else tables


def _data_lines(result: WalkEvalResult) -> list[str]:
    """Say what was played and what a loader left out."""
    config = result.config
    played = len(result.episodes)
    lines = result.data_report.splitlines()
    lines.append(
        f"{played} episodes of {result.num_claims} claims, split {config.split}, {'/'.join(config.mitigations)}, "
        f"budget {'/'.join(map(str, config.budgets))}, {config.decoding}, seed {config.seed}, "
        f"configuration {result.config_hash}"
    )
    return lines
