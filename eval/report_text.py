"""What an evaluation shows its reader, in the order in which it is read, and the files that hold it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from provgym.eval.compare import Comparison
from provgym.eval.finished import FinishedEvaluation
from provgym.eval.run_files import write_atomic, write_json_atomic
from provgym.eval.table import ResultTable

Results = Mapping[str, FinishedEvaluation[Any, Any]]


class Report(NamedTuple):
    """A report in the order in which it is read.

    Attributes:
        before: Lines about the data.
        tables: Figures.
        after: Lines that a reader of the figures has to know.
        comparisons: Every pair of policies by every metric; empty for a single policy.
    """

    before: tuple[str, ...]
    tables: tuple[ResultTable, ...]
    after: tuple[str, ...]
    comparisons: tuple[Comparison, ...] = ()

    def to_markdown(self) -> str:
        """Return the whole report as Markdown."""
        blocks = ["\n".join(f"- {line}" for line in lines) for lines in (self.before, self.after)]
        parts = [blocks[0], *(table.to_markdown() for table in self.tables), blocks[1]]
        return "\n".join(f"{part.rstrip()}\n" for part in parts if part.strip())


def named_notes(results: Results) -> tuple[str, ...]:
    """Return what a reader of the figures has to know, each line with the policy it is about.

    Raises:
        ValueError: If there is no result.
    """
    if not results:
        raise ValueError("results is empty; evaluate at least one policy")
    return tuple(f"{name}: {note}" for name, result in results.items() for note in result.notes)


def write_report_files(report: Report, config_hash: str, folder: Path) -> None:
    """Write ``report.md``, and ``comparison.json`` where policies are compared.

    Raises:
        OSError: If the folder cannot be written.
    """
    write_atomic(folder / "report.md", [report.to_markdown().encode("utf-8", "replace")])
    if report.comparisons:
        rows = [comparison.to_json() for comparison in report.comparisons]
        write_json_atomic(folder / "comparison.json", {"config_hash": config_hash, "comparisons": rows})
