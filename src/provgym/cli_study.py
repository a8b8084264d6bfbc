"""``provgym study``: one file, a grid of training runs, one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def add_study(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        epilog="Example: provgym study --config configs/studies/papt-ablations.yaml --dry-run | "
        "provgym study --config configs/studies/papt-ablations.yaml | "
        "provgym study --config configs/studies/papt-recipes.yaml --arms default,source_reward --seeds 42,43",
    )(study)


def study(
    context: typer.Context,
    config: Annotated[Path, typer.Option("--config", help="YAML file of a study.", show_default=False)],
    arms: Annotated[str, typer.Option(help="Only these, by commas; the reference is always among them.")] = "",
    seeds: Annotated[str, typer.Option(help="In place of the file's, by commas.")] = "",
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    accelerate: Annotated[Path | None, typer.Option(help="Accelerate file to launch each run with.")] = None,
    stall_hours: Annotated[float, typer.Option(help="Hours without a trace after which a run is ended.")] = 6,
    reuse: Annotated[
        list[Path] | None, typer.Option(help="Folder of run folders: finished ones of the same training count.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run and how long it may take.")] = False,
) -> None:
    """Train every arm of a study under every seed, and compare the arms.

    Finished runs are skipped: the same command given again does what is missing. A run that fails is named, the others
    go on, and the exit status is 1. Any field of a PAPT configuration can follow, as --SECTION.FIELD VALUE, and holds
    for every arm.
    """
    from provgym.trainers.study import main

    # With "=", a value that begins with "-" is a value too, and is refused in one line if it is none.
    words = [f"--config={config}", f"--arms={arms}", f"--seeds={seeds}", f"--jobs={jobs}"]
    words += [f"--stall-hours={stall_hours}"]
    words += [] if accelerate is None else [f"--accelerate={accelerate}"]
    words += [f"--reuse={folder}" for folder in reuse or []]
    words += ["--dry-run"] if dry_run else []
    raise typer.Exit(main([*words, *context.args]))
