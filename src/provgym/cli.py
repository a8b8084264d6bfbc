"""The command line: ``provgym papt``, ``provgym eval walk``, ``provgym data graphecho`` and the others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from provgym.cli_eval import eval_app
from provgym.cli_group import checked, names_of, new_group
from provgym.cli_judge import add_judge
from provgym.cli_kgat import add_kgat
from provgym.cli_knowledge import add_knowledge
from provgym.cli_report import add_report
from provgym.cli_study import add_study
from provgym.cli_topology import add_topology
from provgym.cli_topology_run import run_app
from provgym.cli_topology_stored import add_topology_stored

app = new_group("Train and evaluate evidence-first agents.")
data_app = new_group("Make and check claim files and knowledge graphs.")
add_judge(eval_app)
add_topology(eval_app)
add_topology_stored(eval_app)
add_kgat(app)
add_study(app)
add_report(app)
add_knowledge(data_app)
app.add_typer(eval_app, name="eval")
app.add_typer(data_app, name="data")
app.add_typer(run_app, name="run")

_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
ConfigFile = Annotated[Path, typer.Option("--config", help="YAML file.", show_default=False)]


@app.command(
    context_settings=_PASSED_ON,
    epilog="Example: provgym papt --config configs/papt/tiny.yaml --seed 43 --name papt-43 --optim.learning_rate 1e-4",
)
def papt(
    context: typer.Context,
    config: ConfigFile,
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw an earlier run of this name away.")] = False,
) -> None:
    """Train a policy with PAPT. Any field of the configuration can follow, as --SECTION.FIELD VALUE.

    An interrupted run goes on from its last checkpoint when the same command is given again.
    """
    from provgym.trainers.papt import main

    raise typer.Exit(main(["--config", str(config), *(["--fresh"] if fresh else []), *context.args]))


@app.command(
    "papt-seeds",
    context_settings=_PASSED_ON,
    epilog="Example: provgym papt-seeds --config configs/papt/tiny.yaml "
    "--variants full,no_echo,no_coverage,verdict_only",
)
def papt_seeds(
    context: typer.Context,
    config: ConfigFile,
    seeds: Annotated[str, typer.Option(help="Training seeds, by commas.")] = "42,43,44,45,46",
    variants: Annotated[str, typer.Option(help="Reward variants, by commas; none: the configuration's own.")] = "",
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    accelerate: Annotated[Path | None, typer.Option(help="Accelerate file to launch each run with.")] = None,
    stall_hours: Annotated[float, typer.Option(help="Hours without a trace after which a run is ended.")] = 6,
) -> None:
    """Train one configuration under several seeds and reward variants, and pool the results.

    Finished runs are skipped: the same command given again does what is missing. Any field of the configuration can
    follow, as --SECTION.FIELD VALUE.
    """
    from provgym.trainers.papt_seeds import main

    # With "=", a value that begins with "-" is a value too, and is refused in one line if it is none.
    words = [f"--config={config}", f"--seeds={seeds}", f"--variants={variants}", f"--jobs={jobs}"]
    words += [f"--stall-hours={stall_hours}"]
    words += [] if accelerate is None else [f"--accelerate={accelerate}"]
    raise typer.Exit(main([*words, *context.args]))


@app.command(
    "warm-start",
    context_settings=_PASSED_ON,
    epilog="Example: provgym warm-start --config configs/papt/warm-start.yaml --out runs/warm-start --seed 1 | "
    "provgym warm-start --config configs/papt/smollm2-warm-start.yaml --model.kind hf --model.path FOLDER_OR_ID",
)
def warm_start(context: typer.Context, config: ConfigFile) -> None:
    """Clone the naive walker: into a new tiny policy, or into a LoRA adapter of a chat model (kind: chat in the file).

    It is the start that PAPT improves on. Any field of the configuration can follow, as --FIELD VALUE. An interrupted
    chat warm start goes on from its last checkpoint when the same command is given again.
    """
    from provgym.trainers.chat_warm_start import ChatWarmStartConfig, WarmStartKind, chat_warm_start
    from provgym.trainers.config_file import load_config
    from provgym.trainers.warm_start import warm_start as make_warm_start
    from provgym.trainers.warm_start_config import WarmStartConfig

    if load_config(WarmStartKind, config, context.args).kind == "chat":
        chat_settings = load_config(ChatWarmStartConfig, config, context.args)
        folder = chat_warm_start(chat_settings, _step_bar())
        typer.echo(f"{folder}: train on it with --model.adapter {folder}")
        return
    folder = make_warm_start(load_config(WarmStartConfig, config, context.args), _step_bar())
    typer.echo(f"{folder}: train on it with --model.path {folder}")


def _step_bar() -> Callable[..., None]:
    """Return what draws a warm start's progress: called with (step, steps in all, loss, perhaps more losses)."""
    from tqdm.auto import tqdm

    bar: list[Any] = []

    def on_step(step: int, total: int, loss: float, *_: float) -> None:
        if not bar:
            bar.append(tqdm(desc="warm start", unit="step", total=total, initial=step - 1, mininterval=1))
        bar[0].set_postfix(loss=f"{loss:.3f}", refresh=False)
        bar[0].update(step - bar[0].n)
        if step == total:
            bar[0].close()

    return on_step


@app.command(epilog="Example: provgym version")
def version() -> None:
    """Print the version."""
    from provgym import __version__

    typer.echo(f"provgym {__version__}")


@data_app.command(epilog="Example: provgym data graphecho --out data/graphecho --train 50 --dev 10 --test 20")
def graphecho(
    out: Annotated[Path, typer.Option(help="Folder of the claim files.", show_default=False)],
    seed: Annotated[int, typer.Option(help="What the claims are generated from.")] = 42,
    train: Annotated[int, typer.Option(help="Train claims.")] = 500,
    dev: Annotated[int, typer.Option(help="Dev claims.")] = 100,
    test: Annotated[int, typer.Option(help="Test claims.")] = 200,
    conditions: Annotated[str, typer.Option(help="Names by commas.")] = "C1,C2,C3,C4,C2R,general",
    general_draws: Annotated[int, typer.Option(help="General instances of each claim.")] = 1,
    file_format: Annotated[str, typer.Option("--format", help="jsonl, parquet or both.")] = "jsonl",
) -> None:
    """Write generated claims (GraphEcho-Syn) as claim files, one per split, with a card."""
    from provgym.generators.export import ExportFormat, export_graphecho

    export = export_graphecho(
        out,
        seed,
        {"train": train, "dev": dev, "test": test},
        names_of(conditions, "--conditions"),
        general_draws,
        checked(ExportFormat, file_format, "--format"),
    )
    for split, card in export.card["splits"].items():
        typer.echo(f"{split}: {card['claims']} claims, {card['instances']} instances")
    typer.echo(f"{len(export.files)} files and dataset.json in {export.folder}")


@data_app.command(epilog="Example: provgym data check my_claims.jsonl")
def check(
    files: Annotated[list[Path], typer.Argument(help="Claim files that make one data set.", show_default=False)],
) -> None:
    """Check claim files: every bad line is named; splits that leak are refused."""
    from collections import Counter

    from provgym.generators.claim_files import read_claims

    instances, report = read_claims(*files, mode="lenient")
    typer.echo(report.text())
    for split in sorted({instance.split for instance in instances}):
        chosen = [instance for instance in instances if instance.split == split]
        claims = len({instance.base_claim.claim_id for instance in chosen})
        gold = ", ".join(f"{n} {name}" for name, n in sorted(Counter(i.gold.value for i in chosen).items()))
        conditions = ", ".join(f"{n} {name}" for name, n in sorted(Counter(i.condition for i in chosen).items()))
        typer.echo(f"{split}: {claims} claims, {len(chosen)} instances; gold: {gold}; conditions: {conditions}")
    names = ", ".join(str(file) for file in files)
    if report.bad_total:
        raise ValueError(
            f"{names}: {report.bad_total} bad lines, {len(instances)} instances; the first: {report.bad_lines[0]}. "
            "Correct them (docs/claim_files.md), or let --lenient leave them out where the file is used"
        )
    if not instances:
        raise ValueError(f"{names}: no line with a claim, expected at least one; see docs/claim_files.md")


if __name__ == "__main__":
    sys.exit(app())
