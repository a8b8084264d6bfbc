"""``provgym eval``: walks of held-out claims, and stored episodes under another reward."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provgym.cli_group import checked, names_of, new_group, progress_bars
from provgym.cli_options import (
    FILES,
    Adapter,
    ApiKeyEnv,
    BaseUrl,
    Claims,
    DataSeed,
    EndpointDir,
    EndpointFile,
    GeneralDraws,
    Lenient,
    Limit,
    Mitigations,
    ModelName,
    Parquet,
    Sampled,
    Scifact,
    Seed,
    SourceLabelsName,
    Split,
    Temperature,
    TimeoutS,
    claims_of,
    folder_for,
    is_first_process,
    refuse_if_unscored,
    show_report,
    temperature_of,
    what_was_given,
)

if TYPE_CHECKING:
    from provgym.eval.walk_config import WalkEvalConfig
    from provgym.generators.policy_spec import PolicyOptions

eval_app = new_group("Evaluate policies, and score stored episodes again.")


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
    claims: Claims = None,
    scifact: Scifact = None,
    split: Split = None,
    conditions: Annotated[str | None, typer.Option(help="Names by commas, such as C1,C3,1S5P; '' for none.")] = None,
    general_draws: GeneralDraws = None,
    mitigation: Mitigations = None,
    budget: Annotated[list[int] | None, typer.Option(help="Walks allowed; repeatable.")] = None,
    sampled: Sampled = False,
    temperature: Temperature = None,
    samples: Annotated[int | None, typer.Option(help="Episodes per instance, with --sampled.")] = None,
    adapter: Adapter = None,
    base_url: BaseUrl = None,
    model: ModelName = None,
    api_key_env: ApiKeyEnv = None,
    timeout_s: TimeoutS = None,
    endpoint_dir: EndpointDir = None,
    endpoint_file: EndpointFile = None,
    grammar: Annotated[str | None, typer.Option(help="json or tool_call, for language models.")] = None,
    limit: Limit = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results; runs/eval/HASH unless given.")] = None,
    seed: Seed = None,
    data_seed: DataSeed = None,
    preview_ids: Annotated[str | None, typer.Option(help="shown, or visited: hide sources until visited.")] = None,
    source_labels: SourceLabelsName = None,
    moves: Annotated[str | None, typer.Option(help="labelled: name sources in every turn; or aliases.")] = None,
    parquet: Parquet = False,
    max_rows: Annotated[
        int | None, typer.Option(help="Episodes played (requests sent) at once; 32 (16) unless given.")
    ] = None,
    max_length: Annotated[int | None, typer.Option(help="Longest episode in tokens.")] = None,
    lenient: Lenient = False,
) -> None:
    """Let policies walk held-out claims, and report accuracy, echoes, recall and more, with intervals.

    A trained run is evaluated on its own held-out claims, walked as in training, unless told otherwise. An interrupted
    evaluation goes on where it stopped when the same command is given again.
    """
    from provgym.eval.run_defaults import walk_eval_config
    from provgym.generators.policy_spec import PolicyOptions, run_config_of

    degrees = temperature_of(temperature, sampled, samples)
    given = {
        "split": split,
        "conditions": None if conditions is None else names_of(conditions, "--conditions"),
        "general_draws": general_draws,
        "mitigations": mitigation,
        "budgets": budget,
        "preview_ids": preview_ids,
        "source_labels": source_labels,
        "moves": moves,
        "decoding": "sampled" if sampled else None,
        "samples": samples,
        "seed": seed,
        "limit": limit,
    }
    runs = [run for text in policies if (run := run_config_of(text)) is not None]
    source = claims_of(claims, scifact, data_seed, lenient)
    config = walk_eval_config(runs, source, what_was_given(given))
    endpoint = (api_key_env, timeout_s, endpoint_dir, endpoint_file)
    options = PolicyOptions(adapter, base_url, model, degrees, max_rows, max_length, grammar, *endpoint)
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
    from provgym.eval.metrics import GENERAL_PREFIX
    from provgym.eval.run_files import write_json_atomic
    from provgym.eval.table import policy_table, print_tables
    from provgym.eval.walk import rescore as score_again
    from provgym.generators.writable_folder import check_file_writable
    from provgym.rewards.papt import CountBasis, CoverageBasis
    from provgym.rewards.rubric import Variant, papt_rubric

    rubric = papt_rubric(
        checked(Variant, variant, "--variant"),
        weights=_weights(weight or []),
        count_basis=checked(CountBasis, count_basis, "--count-basis"),
        coverage_basis=checked(CoverageBasis, coverage_basis, "--coverage-basis"),
    )
    if out is not None:
        check_file_writable(out, "--out", such_as="rescored.json")
    summary = score_again(_stored_at(path), rubric)
    if not any(estimate.n for estimate in summary.metrics.values()):
        raise ValueError(f"{path}: no episode with a score, expected at least one; there is nothing to score again")
    columns = ("accuracy", "reward", *(f"reward_{term}" for term in rubric.terms))
    for prefix, group in (("", "named"), (GENERAL_PREFIX, "general")):
        if f"{prefix}reward" in summary.metrics:
            title = f"{path}, {variant}, {group} conditions"
            print_tables([policy_table({"stored": summary.metrics}, prefix=prefix, columns=columns, title=title)])
    if out is not None:
        write_json_atomic(out, summary.to_json())
        typer.echo(str(out))


def _stored_at(path: Path) -> Path:
    """Return the file or folder of one evaluation's episodes.

    Raises:
        FileNotFoundError: If a folder holds none of its own; the message names folders below that do, or says that
            the evaluation has not finished.
    """
    if not path.is_dir() or (path / "episodes.jsonl").is_file():
        return path
    below = sorted(str(file.parent) for file in path.glob("*/episodes.jsonl"))
    if below:
        found = f"it holds one folder for each policy; name one: {', '.join(below[:8])}"
    elif any(path.glob("episodes.part-*.jsonl")):
        found = "that evaluation has not finished; give its command again, then score it"
    else:
        found = "expected an evaluation's folder, such as runs/NAME/eval/trained"
    raise FileNotFoundError(f"{path} holds no episodes.jsonl; {found}")


def _evaluate_all(
    config: WalkEvalConfig, policies: Sequence[str], options: PolicyOptions, out: Path | None, *, parquet: bool
) -> None:
    """Evaluate policies with progress bars and report on them; under a launcher, the first process speaks."""
    from provgym.eval.walk_config import config_hash
    from provgym.eval.walk_policies import evaluate_policies
    from provgym.eval.walk_report import report_on, write_report
    from provgym.generators.policy_spec import policy_specs

    folder = folder_for(out, Path("runs") / "eval" / config_hash(config), options.endpoint_dir)
    specs = policy_specs(policies, options)  # all are checked before the first one plays
    bars = progress_bars("episode", is_shown=is_first_process())
    results = evaluate_policies(config, specs, folder, parquet=parquet, on_progress=bars)
    if not is_first_process():
        return
    report = report_on(results)
    show_report(report)
    write_report(results, report, folder)
    typer.echo(f"files: {folder}/ ({FILES})")
    refuse_if_unscored(results)


def _weights(words: Sequence[str]) -> dict[str, float]:
    weights: dict[str, float] = {}
    for word in words:
        name, _, number = word.partition("=")
        try:
            value = float(number)
        except ValueError as error:
            raise ValueError(f"--weight {word}: expected TERM=NUMBER, such as coverage=1.2") from error
        if name in weights:
            raise ValueError(f"--weight {word}: {name} has {weights[name]} already; name each term once")
        weights[name] = value
    return weights
