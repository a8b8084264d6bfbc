"""``provgym kgat`` and ``provgym reinforce``: topologies from evidence, and the comparison on the same world."""

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


def reinforce(context: typer.Context, config: ConfigFile, fresh: Fresh = False) -> None:
    """Train the same generator on the same world with REINFORCE, for comparison; the run is named NAME-reinforce.

    Any field of the configuration can follow, as --SECTION.FIELD VALUE. An interrupted run goes on from its last
    checkpoint when the same command is given again.
    """
    from provgym.trainers.reinforce import main

    raise typer.Exit(main(["--config", str(config), *(["--fresh"] if fresh else []), *context.args]))
