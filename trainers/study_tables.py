"""A study's tables: arms with their figures, differences to reference and start, every seed, and the dev claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from provgym.eval.metrics import GENERAL_PREFIX, HEADLINE
from provgym.eval.table import MISSING, ResultTable, estimate_cell, p_cell, policy_table
from provgym.trainers.study_plan import label_of
from provgym.trainers.study_results import DEV_METRICS, ArmResult, Difference, StudyResult

GROUPS = (("", "named"), (GENERAL_PREFIX, "general"))
NO_CHANGES = "as the base configuration"


def study_tables(result: StudyResult) -> list[ResultTable]:
    """Return every table of a study, in the order in which they are read; none while no arm is finished."""
    if not result.arms:
        return []
    tables = [arm_table(result.arms)]
    for prefix, group in GROUPS:
        if any(prefix + HEADLINE[0] in arm.pooled.trained for arm in result.arms):
            tables.append(figure_table(result, prefix, group))
            against = {arm.label: arm.to_reference for arm in result.arms if arm.to_reference}
            if against:
                title = f"{group.capitalize()} conditions: arm minus {result.study.reference!r}, paired"
                tables.append(difference_table(against, prefix, title))
            title = f"{group.capitalize()} conditions: trained minus start, paired"
            tables.append(difference_table({arm.label: arm.to_start for arm in result.arms}, prefix, title))
            tables.append(seed_table(result, prefix, group))
    return [*tables, dev_table(result)]


def arm_table(arms: Sequence[ArmResult]) -> ResultTable:
    """Return what each arm changes, and its training budget."""
    rows = [
        (
            arm.label,
            ", ".join(f"{key}: {value}" for key, value in arm.cell.changes.items()) or NO_CHANGES,
            str(arm.cell.config.total_steps),
            str(arm.cell.episodes),
        )
        for arm in arms
    ]
    return ResultTable("Arms", ("arm", "changes", "steps", "training episodes"), tuple(rows))


def figure_table(result: StudyResult, prefix: str, group: str) -> ResultTable:
    """Return each arm's trained policies pooled over seeds; with the start (where shared) and ceiling of each point."""
    first = result.arms[0].pooled
    measured = {
        name: {label_of(name, point): pooled.runs[0].estimates(name) for point, pooled in result.first_at_points}
        for name in ("start", "ceiling")
    }
    rows = measured["start"] if result.shares_start else {}
    rows |= {arm.label: {name: found.overall for name, found in arm.pooled.trained.items()} for arm in result.arms}
    rows |= measured["ceiling"]
    seeds = ", ".join(map(str, result.study.seeds))
    title = f"{result.study.name}, test claims, {group} conditions, seeds {seeds}"
    table = policy_table(rows, prefix=prefix, probes=first.probes.get(prefix, ()), title=title)
    caption = "Mean over seeds; 95 % intervals over seeds and base claims (crossed bootstrap); n below each figure."
    return replace(table, caption=caption)


def difference_table(rows: Mapping[str, Mapping[str, Difference]], prefix: str, title: str) -> ResultTable:
    """Return differences over seeds: interval, p over the arms, n, and how many seeds agree in sign."""
    cells = [(label, *(difference_cell(found.get(prefix + m)) for m in HEADLINE)) for label, found in rows.items()]
    caption = (
        "Same seeds and claims on both sides. p: the larger one of crossed bootstrap and paired t test over seeds, "
        "corrected over the arms on that metric (Holm); seeds: how many lie on the mean's side of zero."
    )
    return ResultTable(title, ("arm", *HEADLINE), tuple(cells), caption)


def seed_table(result: StudyResult, prefix: str, group: str) -> ResultTable:
    """Return every seed's own figures, in the order of the seeds."""
    rows = [
        (arm.label, *(_values(arm.pooled.trained[prefix + m].by_seed) for m in HEADLINE))
        for arm in result.arms
        if prefix + HEADLINE[0] in arm.pooled.trained
    ]
    seeds = ", ".join(map(str, result.study.seeds))
    title = f"{group.capitalize()} conditions: seeds {seeds} one below the other"
    return ResultTable(title, ("arm", *HEADLINE), tuple(rows))


def dev_table(result: StudyResult) -> ResultTable:
    """Return the chosen checkpoints' dev figures: arms are chosen here, never on the test claims."""
    names = [f"{p}{m}" for p, _ in GROUPS for m in DEV_METRICS if any(p + m in arm.dev for arm in result.arms)]
    rows = [(arm.label, *(_spread(arm.dev.get(name, ())) for name in names)) for arm in result.arms]
    caption = "Mean over seeds, lowest and highest seed below. Choose an arm by these figures, not by the test claims."
    return ResultTable("Dev claims, chosen checkpoints", ("arm", *names), tuple(rows), caption)


def difference_cell(found: Difference | None) -> str:
    """Return a difference as lines: figure, interval, corrected p, n and seeds that agree."""
    if found is None:
        return MISSING
    overall = found.crossed.overall
    if not overall.is_available:
        return estimate_cell(overall)
    interval = f"[{overall.low:+.3f}, {overall.high:+.3f}]" if overall.has_interval else "no interval"
    seeds = f"seeds {found.crossed.seeds_with_sign}/{len(found.crossed.by_seed)}"
    p = p_cell(found.holm_p)
    return f"{overall.value:+.3f}\n{interval}\np {p if p.startswith('<') else f'= {p}'}\nn={overall.n}\n{seeds}"


def _values(values: Sequence[float]) -> str:
    return "\n".join("not available" if math.isnan(value) else f"{value:.3f}" for value in values)


def _spread(values: Sequence[float]) -> str:
    finite = [value for value in values if not math.isnan(value)]
    if not finite:
        return MISSING
    lacking = "" if len(finite) == len(values) else f"\n{len(finite)} of {len(values)} seeds"
    return f"{fmean(finite):.3f}\n{min(finite):.3f} to {max(finite):.3f}{lacking}"
