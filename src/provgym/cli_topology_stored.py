"""``provgym eval topology-rescore`` and ``topology-pool``: stored runs of teams under other prices, or over seeds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from provgym.cli_options import show_report, what_was_given

if TYPE_CHECKING:
    from collections.abc import Sequence

    from provgym.generators.topology_targets import ScoreRule

Node = Annotated[float | None, typer.Option(help="Price of a node; the evaluation's own unless given.")]
Edge = Annotated[float | None, typer.Option(help="Price of an edge; the evaluation's own unless given.")]
CostWeight = Annotated[
    float | None,
    typer.Option(help="What a unit of structural cost takes off the score; the evaluation's own unless given."),
]
IntervalSeed = Annotated[int, typer.Option(help="Of the intervals.")]
JsonFile = Annotated[Path | None, typer.Option(help="JSON file for all figures.")]


def add_topology_stored(group: typer.Typer) -> None:
    """Add the commands to a group of commands."""
    group.command(
        "topology-rescore",
        epilog="Example: provgym eval topology-rescore runs/topology/HASH --node 0.02 --edge 0.01",
    )(topology_rescore)
    group.command(
        "topology-pool",
        epilog="Example: provgym eval topology-pool runs/kgat-simulated-s42/eval runs/kgat-simulated-s43/eval "
        "--out pooled.json",
    )(topology_pool)


def topology_rescore(
    folder: Annotated[Path, typer.Argument(help="A topology evaluation's folder.")],
    node: Node = None,
    edge: Edge = None,
    cost_weight: CostWeight = None,
    reference: Annotated[str | None, typer.Option(help="Method to compare with; kgat unless given.")] = None,
    read_again: Annotated[bool, typer.Option("--read-again", help="Read answers anew from the last messages.")] = False,
    seed: IntervalSeed = 42,
    out: JsonFile = None,
) -> None:
    """Score stored runs again, under other prices or with their answers read anew; no agent is asked."""
    from provgym.eval.topology import rescore_methods
    from provgym.eval.topology_estimates import Resampling
    from provgym.eval.topology_report import report_on_methods

    _check_out(out)
    rule = _rule([folder], node, edge, cost_weight)
    result = rescore_methods(
        folder, rule, reference=reference, resampling=Resampling(seed=seed), reads_again=read_again
    )
    show_report(report_on_methods(result))
    _write(out, result.to_json())


def topology_pool(
    folders: Annotated[list[Path], typer.Argument(help="Evaluations of several training seeds, same questions.")],
    node: Node = None,
    edge: Edge = None,
    cost_weight: CostWeight = None,
    reference: Annotated[str, typer.Option(help="Method to compare with.")] = "kgat",
    seed: IntervalSeed = 42,
    out: JsonFile = None,
) -> None:
    """Pool evaluations of several training seeds: crossed intervals, every seed's own figure, agreement in sign.

    Scores are made with the prices that the evaluations were made with. Where these differ, say which to take.
    """
    from provgym.eval.table import print_tables
    from provgym.eval.topology_estimates import Resampling
    from provgym.eval.topology_prices import score_text
    from provgym.eval.topology_seeds import pool_methods
    from provgym.eval.topology_store import read_methods

    _check_out(out)
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ValueError(f"{', '.join(map(str, folders))}: a folder stands twice; name each seed's evaluation once")
    seeds = [read_methods(folder) for folder in folders]
    rule = _rule(folders, node, edge, cost_weight)
    pooled = pool_methods(seeds, rule, reference=reference, resampling=Resampling(seed=seed))
    typer.echo(score_text(rule))
    print_tables(pooled.tables())
    for note in pooled.notes:
        typer.echo(f"- {note}")
    _write(out, pooled.to_json())


def _rule(folders: Sequence[Path], node: float | None, edge: float | None, cost_weight: float | None) -> ScoreRule:
    """Return how stored runs are scored: as given, and else as they were."""
    from provgym.eval.topology_prices import prices_for

    return prices_for(folders, what_was_given({"node": node, "edge": edge, "cost_weight": cost_weight})).rule()


def _check_out(out: Path | None) -> None:
    from provgym.generators.writable_folder import check_file_writable

    if out is not None:
        check_file_writable(out, "--out", such_as="figures.json")


def _write(out: Path | None, data: dict[str, Any]) -> None:
    if out is None:
        return
    from provgym.eval.run_files import write_json_atomic

    write_json_atomic(out, data)
    typer.echo(str(out))
