"""``provgym report``: a run or an evaluation as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def add_report(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command(
        epilog="Example: provgym report runs/papt-tiny | provgym report runs/eval/HASH --out walks.html --max-walks 20"
    )(report)


def report(
    run: Annotated[
        Path, typer.Argument(help="Folder of a training run, an evaluation, or one policy in it.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option(help="File to write; RUN/report.html unless given.")] = None,
    max_walks: Annotated[int, typer.Option(help="The most walks to show, each for every policy.")] = 72,
) -> None:
    """Write one self-contained HTML page: results with intervals, training curves, and walks to step through.

    It opens from the disk in any browser and loads nothing from a network.
    """
    from provgym.eval.report_page import write_report_page

    written = write_report_page(run, out, max_walks=max_walks)
    for note in written.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"{written.path}: {written.size / 1e6:.1f} MB, {written.walks} walks; open it in a browser")
