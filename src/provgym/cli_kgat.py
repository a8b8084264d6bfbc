"""``provgym kgat``, ``kgat-seeds`` and ``reinforce``: teams from evidence, over seeds, and compared on one world."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
ConfigFile = Annotated[Path, typer.Option("--config", help="YAML file of a K-GAT run.", show_default=False)]
Fresh = Annotated[bool, typer.Option("--fresh", help="Throw an earlier run of this name away.")]


def add_kgat(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(
        context_settings=_PASSED_ON,
        epilog="Example: provgym kgat --config configs/kgat/simulated.yaml --seed 43 --name kgat-43 | "
        "provgym kgat --config configs/kgat/endpoint.yaml --agents.endpoint.model NAME",
    )(kgat)
    app.command(
        "kgat-seeds",
        context_settings=_PASSED_ON,
        epilog="Example: provgym kgat-seeds --config configs/kgat/simulated.yaml --seeds 42,43,44 | "
        "provgym kgat-seeds --config configs/kgat/simulated.yaml --jobs 2 --mining.replicates 8 --name kgat-more",
    )(kgat_seeds)
    app.command(
        context_settings=_PASSED_ON,
        epilog="Example: provgym reinforce --config configs/kgat/simulated.yaml --reinforce.steps 50",
    )(reinforce)


def kgat(context: typer.Context, config: ConfigFile, fresh: Fresh = False) -> None:
    """Train a generator of agent teams with K-GAT. Any field of the configuration can follow, as --SECTION.FIELD VALUE.

    An interrupted run, in mining or in optimisation, goes on when the same command is given again; no finished call is
    paid twice.
    """
    from provgym.trainers.kgat import main

    raise typer.Exit(main(["--config", str(config), *(["--fresh"] if fresh else []), *context.args]))


def kgat_seeds(
    context: typer.Context,
    config: ConfigFile,
    seeds: Annotated[str, typer.Option(help="Training seeds, by commas.")] = "42,43,44,45,46",
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    accelerate: Annotated[Path | None, typer.Option(help="Accelerate file to launch each run with.")] = None,
    stall_hours: Annotated[float, typer.Option(help="Hours without a trace after which a run is ended.")] = 6,
) -> None:
    """Train one K-GAT configuration under several seeds, and pool the results: figures, team sizes, cost of mining.

    Finished runs are skipped and an interrupted one goes on: the same command given again does what is missing. Any
    field of the configuration can follow, as --SECTION.FIELD VALUE.
    """
    from provgym.trainers.kgat_seeds import main

    # With "=", a value that begins with "-" is a value too, and is refused in one line if it is none.
    words = [f"--config={config}", f"--seeds={seeds}", f"--jobs={jobs}", f"--stall-hours={stall_hours}"]
    words += [] if accelerate is None else [f"--accelerate={accelerate}"]
    raise typer.Exit(main([*words, *context.args]))


def reinforce(context: typer.Context, config: ConfigFile, fresh: Fresh = False) -> None:
    """Train the same generator on the same world with REINFORCE, for comparison; the run is named NAME-reinforce.

    Any field of the configuration can follow, as --SECTION.FIELD VALUE. An interrupted run goes on from its last
    checkpoint when the same command is given again.
    """
    from provgym.trainers.reinforce import main

    raise typer.Exit(main(["--config", str(config), *(["--fresh"] if fresh else []), *context.args]))
