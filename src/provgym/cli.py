"""The command line: ``provgym papt``, ``provgym eval walk``, ``provgym data graphecho`` and the others.

A mistake in what was asked for ends with one line, ``error: ...``, and exit status 2; ``PROVGYM_DEBUG=1`` shows the
traceback instead. Everything heavy is imported inside the command that needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from provgym.eval.walk_config import WalkEvalConfig
    from provgym.generators.policy_spec import PolicyOptions

USER_ERRORS = (ValueError, OSError, ImportError, RuntimeError)
"""What a wrong request, a missing file or package, or a full disk raises; anything else is our own bug."""


class _OneLineErrors(TyperGroup):
    """Runs a command; what it raises about a request becomes one line."""

    def invoke(self, ctx: Any) -> Any:  # typer's own type for it is private
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):  # both are RuntimeErrors
            raise
        except KeyboardInterrupt:
            typer.echo("\ninterrupted; finished work is kept, the same command goes on from there", err=True)
            raise typer.Exit(130) from None
        except USER_ERRORS as error:
            if os.environ.get("PROVGYM_DEBUG"):
                raise
            typer.echo(f"error: {_one_line(error)}", err=True)
            raise typer.Exit(2) from None


def _new_group(text: str) -> typer.Typer:
    return typer.Typer(
        cls=_OneLineErrors,
        help=text,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )


app = _new_group("Train and evaluate evidence-first agents.")
eval_app = _new_group("Evaluate policies, and score stored episodes again.")
data_app = _new_group("Make and check claim files.")
app.add_typer(eval_app, name="eval")
app.add_typer(data_app, name="data")

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
) -> None:
    """Train one configuration under several seeds and reward variants, and pool the results.

    Finished runs are skipped: the same command given again does what is missing. Any field of the configuration can
    follow, as --SECTION.FIELD VALUE.
    """
    from provgym.trainers.papt_seeds import main

    words = ["--config", str(config), "--seeds", seeds, "--variants", variants, "--jobs", str(jobs)]
    words += [] if accelerate is None else ["--accelerate", str(accelerate)]
    raise typer.Exit(main([*words, *context.args]))


@app.command(
    "warm-start",
    context_settings=_PASSED_ON,
    epilog="Example: provgym warm-start --config configs/papt/warm-start.yaml --out runs/warm-start --seed 1",
)
def warm_start(context: typer.Context, config: ConfigFile) -> None:
    """Clone the naive walker into a new tiny policy, the start that PAPT improves on.

    Any field of the configuration can follow, as --FIELD VALUE.
    """
    from tqdm.auto import tqdm

    from provgym.trainers.config_file import load_config
    from provgym.trainers.warm_start import WarmStartConfig
    from provgym.trainers.warm_start import warm_start as make_warm_start

    settings = load_config(WarmStartConfig, config, context.args)
    with tqdm(desc="warm start", unit="step", mininterval=1) as bar:

        def on_step(step: int, total: int, action_loss: float, stance_loss: float) -> None:
            bar.total = total
            bar.set_postfix(action_loss=f"{action_loss:.3f}", stance_loss=f"{stance_loss:.3f}", refresh=False)
            bar.update(step - bar.n)

        folder = make_warm_start(settings, on_step)
    typer.echo(f"{folder}: train on it with --model.path {folder}")


@app.command(epilog="Example: provgym version")
def version() -> None:
    """Print the version."""
    from provgym import __version__

    typer.echo(f"provgym {__version__}")


@eval_app.command(
    epilog="Example: provgym eval walk --policy runs/papt-tiny --policy tiny --limit 20 | "
    "provgym eval walk --policy smollm2 --scifact DIR --limit 20 | "
    "provgym eval walk --policy endpoint --base-url http://localhost:8000/v1 --model NAME"
)
def walk(
    policies: Annotated[
        list[str],
        typer.Option(
            "--policy",
            "-p",
            help="naive, oracle, random or bfs (scripted); tiny; smollm2; endpoint; a run's or checkpoint's folder; "
            "a Hugging Face model's folder or id. Repeatable: several are compared pairwise.",
            show_default=False,
        ),
    ],
    claims: Annotated[
        list[Path] | None, typer.Option(help="Claim file, instead of generated claims; repeatable.")
    ] = None,
    scifact: Annotated[Path | None, typer.Option(help="Folder with claims_dev.jsonl and corpus.jsonl.")] = None,
    split: Annotated[str | None, typer.Option(help="train, dev or test; test unless given.")] = None,
    conditions: Annotated[str | None, typer.Option(help="Names by commas, such as C1,C3,1S5P; '' for none.")] = None,
    general_draws: Annotated[int | None, typer.Option(help="General instances of each generated claim.")] = None,
    mitigation: Annotated[list[str] | None, typer.Option(help="M0, M1, M2 or M3; repeatable.")] = None,
    budget: Annotated[list[int] | None, typer.Option(help="Walks allowed; repeatable.")] = None,
    sampled: Annotated[bool, typer.Option("--sampled/--greedy", help="Sample, or take the likeliest token.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Of sampling; 1 unless given.")] = None,
    samples: Annotated[int | None, typer.Option(help="Episodes per instance, with --sampled.")] = None,
    adapter: Annotated[Path | None, typer.Option(help="LoRA adapter for smollm2 or a Hugging Face model.")] = None,
    base_url: Annotated[str | None, typer.Option(help="Of the endpoint, such as http://localhost:8000/v1.")] = None,
    model: Annotated[str | None, typer.Option(help="Model name that the endpoint knows.")] = None,
    grammar: Annotated[str | None, typer.Option(help="json or tool_call, for language models.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many claims.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results; runs/eval/HASH unless given.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of presentation, sampling and intervals; 42 unless given.")] = None,
    data_seed: Annotated[int | None, typer.Option(help="Of generated claims; the run's, or 42, unless given.")] = None,
    preview_ids: Annotated[str | None, typer.Option(help="shown, or visited: hide sources until visited.")] = None,
    source_labels: Annotated[str | None, typer.Option(help="short, shuffled or real.")] = None,
    parquet: Annotated[bool, typer.Option("--parquet", help="Also write episodes.parquet.")] = False,
    max_rows: Annotated[int, typer.Option(help="Episodes played at once.")] = 32,
    max_length: Annotated[int | None, typer.Option(help="Longest episode in tokens.")] = None,
    lenient: Annotated[bool, typer.Option("--lenient", help="Leave bad lines out and count them.")] = False,
) -> None:
    """Let policies walk held-out claims, and report accuracy, echoes, recall and more, with intervals.

    A trained run is evaluated on its own held-out claims, walked as in training, unless told otherwise. An interrupted
    evaluation goes on where it stopped when the same command is given again.
    """
    from provgym.eval.run_defaults import walk_eval_config
    from provgym.generators.policy_spec import PolicyOptions, run_config_of

    if temperature is not None and not sampled:
        raise ValueError(f"--temperature {temperature} does nothing with greedy decoding; add --sampled")
    given = {
        "split": split,
        "conditions": None if conditions is None else [name for name in conditions.split(",") if name],
        "general_draws": general_draws,
        "mitigations": mitigation,
        "budgets": budget,
        "preview_ids": preview_ids,
        "source_labels": source_labels,
        "decoding": "sampled" if sampled else None,
        "samples": samples,
        "seed": seed,
        "limit": limit,
    }
    runs = [run for text in policies if (run := run_config_of(text)) is not None]
    source = _claims_of(claims, scifact, data_seed, lenient)
    config = walk_eval_config(runs, source, {key: value for key, value in given.items() if value is not None})
    degrees = (1.0 if temperature is None else temperature) if sampled else 0.0
    options = PolicyOptions(adapter, base_url, model, degrees, max_rows, max_length, grammar)
    _evaluate_all(config, policies, options, out, parquet=parquet)


@eval_app.command(epilog="Example: provgym eval rescore runs/papt-tiny/eval/trained --variant verdict_only")
def rescore(
    path: Annotated[Path, typer.Argument(help="An evaluation's folder, or its episodes.jsonl or .parquet.")],
    variant: Annotated[str, typer.Option(help="full, no_echo, no_coverage or verdict_only.")] = "full",
    weight: Annotated[list[str] | None, typer.Option(help="TERM=NUMBER, such as coverage=1.2; repeatable.")] = None,
    count_basis: Annotated[str, typer.Option(help="acquired or available.")] = "acquired",
    coverage_basis: Annotated[str, typer.Option(help="budget or available.")] = "budget",
    out: Annotated[Path | None, typer.Option(help="JSON file for all figures.")] = None,
) -> None:
    """Score stored episodes under another reward; nothing is played."""
    from pydantic import TypeAdapter

    from provgym.eval.metrics import GENERAL_PREFIX
    from provgym.eval.run_files import write_json_atomic
    from provgym.eval.table import policy_table, print_tables
    from provgym.eval.walk import rescore as score_again
    from provgym.rewards.papt import CountBasis, CoverageBasis
    from provgym.rewards.rubric import Variant, papt_rubric

    rubric = papt_rubric(
        _checked(TypeAdapter(Variant).validate_python, variant, "--variant"),
        weights=_weights(weight or []),
        count_basis=_checked(TypeAdapter(CountBasis).validate_python, count_basis, "--count-basis"),
        coverage_basis=_checked(TypeAdapter(CoverageBasis).validate_python, coverage_basis, "--coverage-basis"),
    )
    summary = score_again(path, rubric)
    columns = ("accuracy", "reward", *(f"reward_{term}" for term in rubric.terms))
    for prefix, group in (("", "named"), (GENERAL_PREFIX, "general")):
        if f"{prefix}reward" in summary.metrics:
            title = f"{path}, {variant}, {group} conditions"
            print_tables([policy_table({"stored": summary.metrics}, prefix=prefix, columns=columns, title=title)])
    if out is not None:
        write_json_atomic(out, summary.to_json())
        typer.echo(str(out))


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
    from pydantic import TypeAdapter

    from provgym.generators.export import ExportFormat, export_graphecho

    export = export_graphecho(
        out,
        seed,
        {"train": train, "dev": dev, "test": test},
        [name for name in conditions.split(",") if name],
        general_draws,
        _checked(TypeAdapter(ExportFormat).validate_python, file_format, "--format"),
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
    if report.bad_total or not instances:
        raise ValueError(f"{report.bad_total} bad lines, {len(instances)} instances; see docs/claim_files.md")


def _claims_of(
    files: Sequence[Path] | None, scifact: Path | None, data_seed: int | None, lenient: bool
) -> dict[str, Any] | None:
    """Return where instances come from; None if nothing was said."""
    said = [name for name, value in (("--claims", files), ("--scifact", scifact), ("--data-seed", data_seed)) if value]
    if len(said) > 1:
        raise ValueError(f"{' and '.join(said)} exclude each other; give one")
    mode = {"mode": "lenient"} if lenient else {}
    if files:
        return {"kind": "files", "paths": list(files), **mode}
    if scifact is not None:
        return {"kind": "scifact", "folder": scifact, **mode}
    return None if data_seed is None else {"kind": "graphecho", "seed": data_seed}


def _evaluate_all(
    config: WalkEvalConfig, policies: Sequence[str], options: PolicyOptions, out: Path | None, *, parquet: bool
) -> None:
    """Evaluate policies with progress bars and report on them; under a launcher, the first process speaks."""
    from tqdm.auto import tqdm

    from provgym.eval.table import print_tables
    from provgym.eval.walk_config import config_hash
    from provgym.eval.walk_policies import evaluate_policies
    from provgym.eval.walk_report import report_on, write_report
    from provgym.generators.policy_spec import policy_spec

    is_first = os.environ.get("RANK", "0") == "0"
    folder = out or Path("runs") / "eval" / config_hash(config)
    specs = [policy_spec(text, options) for text in policies]  # all are checked before the first one plays
    bars: dict[str, Any] = {}

    def on_progress(name: str, done: int, total: int) -> None:
        if name not in bars:
            bars[name] = tqdm(desc=name, total=total, unit="episode", disable=not is_first, mininterval=1)
        bars[name].update(done - bars[name].n)
        if done == total:
            bars[name].close()

    results = evaluate_policies(config, specs, folder, parquet=parquet, on_progress=on_progress)
    if not is_first:
        return
    report = report_on(results)
    for line in report.before:
        typer.echo(line)
    print_tables(report.tables)
    for line in report.after:
        typer.echo(f"note: {line}")
    write_report(results, report, folder)
    typer.echo(f"files: {folder}/ (report.md, plots/, POLICY/summary.json, POLICY/episodes.jsonl)")


def _weights(words: Sequence[str]) -> dict[str, float]:
    weights = {}
    for word in words:
        name, _, number = word.partition("=")
        try:
            weights[name] = float(number)
        except ValueError as error:
            raise ValueError(f"--weight {word}: expected TERM=NUMBER, such as coverage=1.2") from error
    return weights


def _checked(validate: Any, value: str, option: str) -> Any:
    from pydantic import ValidationError

    try:
        return validate(value)
    except ValidationError as error:
        raise ValueError(f"{option} {value!r}: {error.errors()[0]['msg']}") from error


def _one_line(error: BaseException) -> str:
    from pydantic import ValidationError

    from provgym.eval.problems import problems_of

    text = problems_of(error) if isinstance(error, ValidationError) else str(error) or type(error).__name__
    return " ".join(" ".join([text, *getattr(error, "__notes__", ())]).split())


if __name__ == "__main__":
    sys.exit(app())
