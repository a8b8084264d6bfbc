"""Tables of a walk evaluation beyond policies by metrics: verdict classes, kinds of evidence, budgets, confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from provgym.eval.condition_groups import CONDITION_GROUPS, Settings, parse_setting
from provgym.eval.estimate import Estimate
from provgym.eval.metrics import GENERAL_PREFIX
from provgym.eval.reliability import Reliability
from provgym.eval.table import ResultTable, estimate_cell
from provgym.rewards.outcome import Verdict

CLASS_FIGURES = ("precision", "recall", "f1")
GROUP_COLUMNS = ("accuracy", "echo_rate", "source_recall", "source_recall_budget", "walks", "count_mae", "invalid_rate")


def class_table(policies: Mapping[str, Mapping[str, Estimate]], *, prefix: str = "", title: str = "") -> ResultTable:
    """Return precision, recall and F1 of every verdict that gold has, and macro-F1 over these verdicts.

    Args:
        policies: Policy name to metrics.
        prefix: ``""`` for the named conditions, ``general_`` for the general ones.
        title: Of the table; ``Verdict classes`` if empty.
    """
    rows = []
    for name, metrics in policies.items():
        for verdict in Verdict:
            figures = [metrics.get(f"{prefix}{figure}_{verdict.value.lower()}") for figure in CLASS_FIGURES]
            if figures[1] is not None and figures[1].is_available:
                rows.append((name, verdict.value, *(estimate_cell(found) for found in figures)))
        rows.append((name, "macro-F1", "", "", estimate_cell(metrics.get(f"{prefix}macro_f1"))))
    caption = (
        "Classes that gold has; n of precision: answers of that verdict, of recall: episodes of that gold, of F1: "
        "scored episodes. An answer that gold lacks is wrong."
    )
    return ResultTable(title or "Verdict classes", ("policy", "verdict", *CLASS_FIGURES), tuple(rows), caption)


def group_table(policies: Mapping[str, Settings], *, columns: Sequence[str] = GROUP_COLUMNS) -> ResultTable:
    """Return active acquisition by kind of evidence: a row per policy, mitigation, budget and group of conditions.

    Args:
        policies: Policy name to setting to group to metrics.
        columns: Metric names.
    """
    rows = [
        (f"{group.replace('_', ' ')}: {name} {setting}", *(estimate_cell(found.get(c)) for c in columns))
        for group in CONDITION_GROUPS
        for name, settings in policies.items()
        for setting in sorted(settings, key=parse_setting)
        if (found := settings[setting].get(group)) is not None
    ]
    caption = "; ".join(
        f"{group.replace('_', ' ')}: {', '.join(conditions)}"
        for group, conditions in CONDITION_GROUPS.items()
        if group != "general"
    )
    title = "Active acquisition by kind of evidence, mitigation and budget"
    return ResultTable(title, ("conditions: policy", *columns), tuple(rows), f"{caption}.")


def confidence_table(policies: Mapping[str, Mapping[str, Reliability]]) -> ResultTable:
    """Return Brier score and ECE of the stated confidence, named and general conditions apart."""
    rows = [
        (
            name,
            "general" if prefix == GENERAL_PREFIX else "named",
            estimate_cell(reliability.brier),
            estimate_cell(reliability.ece),
            str(reliability.n),
        )
        for name, found in policies.items()
        for prefix, reliability in found.items()
    ]
    caption = "Valid judgements only. ECE over 10 equal-width bins; see plots/reliability.png for the bins."
    return ResultTable("Confidence", ("policy", "conditions", "Brier", "ECE", "judgements"), tuple(rows), caption)
