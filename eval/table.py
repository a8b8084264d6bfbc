"""Result tables: policies in rows, metrics in columns, probes and comparisons beside.

One plain record, :class:`ResultTable`, is rendered for the terminal and as Markdown: both say the same.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from provgym.eval.compare import Comparison
from provgym.eval.estimate import NOT_AVAILABLE, Estimate
from provgym.eval.metrics import GENERAL_PREFIX, HEADLINE
from provgym.eval.probes import Probe

PROBE_COLUMNS = ("accuracy", "balanced_accuracy", "macro_f1")
MISSING = "-"
FILE_WIDTH = 200
"""Characters of a line where tables go to a file or a pipe."""


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A table of text.

    Attributes:
        title: What is shown, and over what.
        header: Column names.
        rows: Cells, as many per row as there are columns.
        caption: What a reader has to know; may be empty.

    Raises:
        ValueError: If a row has another number of cells than the header.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"row {row} has {len(row)} cells, the header {self.header} {len(self.header)}")

    def to_rich(self) -> Table:
        """Return the table for a terminal."""
        table = Table(title=escape(self.title), caption=escape(self.caption) or None, title_justify="left")
        for number, name in enumerate(self.header):
            table.add_column(escape(name), justify="left" if number == 0 else "right", no_wrap=number > 0)
        for row in self.rows:
            table.add_row(*(escape(cell) for cell in row))
        return table

    def to_markdown(self) -> str:
        """Return the table as Markdown, with title and caption around it."""
        lines = [f"**{self.title}**", "", _markdown_row(self.header)]
        lines.append(_markdown_row(["---"] + ["---:"] * (len(self.header) - 1)))
        lines += [_markdown_row([cell.replace("\n", "<br>") for cell in row]) for row in self.rows]
        return "\n".join([*lines, *(["", self.caption] if self.caption else [])]) + "\n"


def policy_table(
    policies: Mapping[str, Mapping[str, Estimate]],
    *,
    prefix: str = "",
    columns: Sequence[str] = HEADLINE,
    probes: Sequence[Probe] = (),
    title: str = "",
) -> ResultTable:
    """Return policies by metrics, each with its 95 % interval and n, and the probes below.

    Args:
        policies: Row label to metrics, as in :class:`~provgym.eval.walk_summary.WalkSummary`.
        prefix: ``""`` for the named conditions, ``general_`` for the general ones.
        columns: Metric names without prefix.
        probes: What can be scored without reading evidence, shown as rows of their own.
        title: Of the table; one that names the group of conditions if empty.

    Raises:
        ValueError: If no policy has a column's metric.
    """
    unknown = [c for c in columns if policies and not any(prefix + c in m for m in policies.values())]
    if unknown:
        raise ValueError(f"no policy has the metrics {[prefix + name for name in unknown]}")
    rows = [
        (name, *(estimate_cell(metrics.get(prefix + column)) for column in columns))
        for name, metrics in policies.items()
    ]
    rows += [(f"probe: {p.name}", *(_probe_cell(p, column) for column in columns)) for p in probes]
    group = "general conditions" if prefix == GENERAL_PREFIX else "named conditions"
    caption = "95 % cluster-bootstrap intervals over base claims; n below each figure."
    if probes:
        caption += " Probes read no evidence text, or one node: accuracy below theirs shows no counting."
    return ResultTable(title or f"Walk evaluation, {group}", ("policy", *columns), tuple(rows), caption)


def metric_table(
    policies: Mapping[str, Mapping[str, Estimate]],
    gains: Mapping[str, Estimate],
    *,
    prefix: str = "",
    rows: Sequence[str] = HEADLINE,
    probes: Sequence[Probe] = (),
    title: str = "",
) -> ResultTable:
    """Return metrics by policies: the narrow form of :func:`policy_table`, for a terminal of 80 columns.

    Args:
        policies: Column label to metrics.
        gains: Metric name, with its prefix, to a paired difference; shown in the last column.
        prefix: ``""`` for the named conditions, ``general_`` for the general ones.
        rows: Metric names without prefix.
        probes: Their accuracies stand in the caption.
        title: Of the table.
    """
    cells = [
        (
            name,
            *(_flat_cell(metrics.get(prefix + name)) for metrics in policies.values()),
            _signed(gains[prefix + name]).replace(" ", "\n", 1) if prefix + name in gains else MISSING,
        )
        for name in rows
    ]
    sizes = {estimate.n for m in policies.values() if (estimate := m.get(prefix + "accuracy")) is not None}
    caption = f"n={'/'.join(map(str, sorted(sizes)))} episodes; 95 % cluster-bootstrap intervals over base claims."
    if probes:
        caption += " Accuracy without reading evidence, or with one node: "
        caption += ", ".join(f"{p.name} {p.accuracy:.3f}" for p in probes)
        caption += ". Below the best of them, accuracy shows no counting."
    return ResultTable(title, ("metric", *policies, "gain (paired)"), tuple(cells), caption)


def condition_table(
    by_condition: Mapping[str, Mapping[str, Estimate]],
    *,
    columns: Sequence[str] = HEADLINE,
    title: str = "By condition",
) -> ResultTable:
    """Return one policy's conditions by metrics."""
    rows = [
        (name, *(estimate_cell(metrics.get(column)) for column in columns)) for name, metrics in by_condition.items()
    ]
    return ResultTable(title, ("condition", *columns), tuple(rows))


def comparison_table(comparisons: Sequence[Comparison], *, title: str = "Paired differences") -> ResultTable:
    """Return differences with paired intervals and p values, one comparison a row."""
    rows = [
        (
            f"{c.first} - {c.second}",
            c.metric,
            _number(c.paired.a),
            _number(c.paired.b),
            _signed(c.paired.difference),
            p_cell(c.paired.p),
            p_cell(c.holm_p),
            f"{c.paired.sign.wins}:{c.paired.sign.losses}:{c.paired.sign.ties}",
            p_cell(c.paired.sign.p),
            p_cell(c.holm_sign_p),
            str(c.paired.difference.n),
            str(c.paired.left_out),
        )
        for c in comparisons
    ]
    header = ("policies", "metric", "first", "second", "difference [95 %]", "p", "Holm p", "claims", "sign p")
    caption = (
        "Same claims on both sides; first minus second. p: cluster bootstrap. claims: on which the first is higher, "
        "lower, the same; sign p: exact sign test on them. Holm: corrected for the pairs of policies on that metric."
    )
    return ResultTable(title, (*header, "Holm sign p", "n", "errors left out"), tuple(rows), caption)


def endings_table(endings: Mapping[str, Mapping[str, int]], *, title: str = "Endings") -> ResultTable:
    """Return how episodes ended, by policy or condition; ``error`` is counted and never scored."""
    names = list(next(iter(endings.values()), {}))
    rows = [(label, *(str(counts[name]) for name in names)) for label, counts in endings.items()]
    return ResultTable(title, ("", *names), tuple(rows))


def print_tables(tables: Sequence[ResultTable], console: Console | None = None) -> None:
    """Print tables to a terminal; one that is wider than the terminal comes in several parts, no figure is cut.

    Args:
        tables: What to print, in order.
        console: Where to; None is standard output, taken to be ``FILE_WIDTH`` wide where it is no terminal.
    """
    shown = console or (Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=FILE_WIDTH))
    for table in tables:
        for part in split_to_width(table, shown.width):
            shown.print(part.to_rich())


def split_to_width(table: ResultTable, width: int) -> list[ResultTable]:
    """Split a table by columns into parts that fit a width; each part repeats the first column.

    Args:
        table: What to split.
        width: Characters of a line; a part holds at least one column beside the first, fitting or not.

    Example:
        >>> table = ResultTable("t", ("policy", "accuracy", "walks"), (("naive", "0.500", "6.0"),))
        >>> [part.header for part in split_to_width(table, 24)]
        [('policy', 'accuracy'), ('policy', 'walks')]
    """
    columns = list(zip(table.header, *table.rows, strict=True))
    # A column's longest line, two spaces around it and a border.
    widths = [max(len(line) for cell in column for line in cell.splitlines() or [""]) + 3 for column in columns]
    groups: list[list[int]] = []
    for number in range(1, len(columns)):
        if groups and 1 + widths[0] + sum(widths[i] for i in (*groups[-1], number)) <= width:
            groups[-1].append(number)
        else:
            groups.append([number])
    if len(groups) < 2:
        return [table]
    return [
        ResultTable(
            table.title if part == 0 else f"{table.title} (continued)",
            tuple(table.header[i] for i in (0, *group)),
            tuple(tuple(row[i] for i in (0, *group)) for row in table.rows),
            table.caption if part == len(groups) - 1 else "",
        )
        for part, group in enumerate(groups)
    ]


def estimate_cell(estimate: Estimate | None) -> str:
    """Return a figure, its interval and its n, one per line.

    Example:
        >>> estimate_cell(Estimate(0.9, 0.85, 0.94, 500)).splitlines()
        ['0.900', '[0.850, 0.940]', 'n=500']
    """
    if estimate is None:
        return MISSING
    if not estimate.is_available:
        return f"{NOT_AVAILABLE}\nn=0"
    interval = f"[{estimate.low:.3f}, {estimate.high:.3f}]" if estimate.has_interval else "no interval"
    return f"{estimate.value:.3f}\n{interval}\nn={estimate.n}"


def p_cell(p: float) -> str:
    """Return a p value with three digits.

    Example:
        >>> p_cell(0.0123), p_cell(0.00001), p_cell(math.nan)
        ('0.012', '<0.001', '-')
    """
    if math.isnan(p):
        return MISSING
    return "<0.001" if p < 0.0005 else f"{p:.3f}"


def _flat_cell(estimate: Estimate | None) -> str:
    """Return a figure and its interval, on two lines."""
    return estimate_cell(estimate).rsplit("\nn=", 1)[0]


def _probe_cell(probe: Probe, column: str) -> str:
    if column not in PROBE_COLUMNS:
        return MISSING
    value: float = getattr(probe, column)
    return NOT_AVAILABLE if math.isnan(value) else f"{value:.3f}"


def _signed(estimate: Estimate) -> str:
    if not estimate.is_available:
        return NOT_AVAILABLE
    interval = f"[{estimate.low:+.3f}, {estimate.high:+.3f}]" if estimate.has_interval else "no interval"
    return f"{estimate.value:+.3f} {interval}"


def _number(value: float) -> str:
    return NOT_AVAILABLE if math.isnan(value) else f"{value:.3f}"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
