"""What a topology evaluation shows its reader: data, tables, comparisons, notes, files."""

from __future__ import annotations

from provgym.eval.report_text import Report, write_report_files
from provgym.eval.table import comparison_table
from provgym.eval.topology_prices import score_text
from provgym.eval.topology_result import TopologyEvalResult
from provgym.eval.topology_tables import summary_tables


def report_on_methods(result: TopologyEvalResult) -> Report:
    """Return the report on one evaluation, in the order in which it is read."""
    tables = summary_tables(result.summary)
    comparisons = result.summary.comparisons
    if comparisons:
        title = f"Paired differences, {result.summary.reference} minus each other method"
        tables.insert(1, comparison_table(comparisons, title=title))
    line = (
        f"{result.num_questions} questions of {result.num_claims} base claims, {len(result.runs)} methods; "
        f"{score_text(result.rule)}; seed {result.resampling.seed}"
    )
    return Report((line,), tuple(tables), result.summary.notes, comparisons)


def write_report(result: TopologyEvalResult, *, plots: bool = True) -> None:
    """Write ``report.md``, ``comparison.json`` and, if asked, ``plots/*.png``.

    Raises:
        OSError: If the folder cannot be written.
    """
    report = report_on_methods(result)
    write_report_files(report, str(result.header.get("config_hash", "")), result.out_dir)
    if plots:
        draw_plots(result)


def draw_plots(result: TopologyEvalResult) -> None:
    """Draw accuracy and score against tokens, and team sizes by kind of evidence where tasks have kinds."""
    from provgym.eval.topology_plots import plot_accuracy_tokens, plot_adaptation

    methods = result.summary.methods
    figures = {name: found.metrics for name, found in methods.items()}
    folder = result.out_dir / "plots"
    if any(found["accuracy"].is_available and found["tokens"].is_available for found in figures.values()):
        plot_accuracy_tokens(figures, folder / "accuracy_tokens.png")
        plot_accuracy_tokens(figures, folder / "score_tokens.png", metric="score")
    reference = methods[result.summary.reference].adaptation
    if reference.kinds:
        plot_adaptation({result.summary.reference: reference}, folder / "adaptation.png")
