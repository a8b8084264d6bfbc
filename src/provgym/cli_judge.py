"""``provgym eval judge``: judgements of held-out claims with every route shown at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provgym.cli_group import names_of, progress_bars
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
    from collections.abc import Sequence

    from provgym.eval.judge_config import JudgeEvalConfig
    from provgym.generators.policy_spec import PolicyOptions

_EPILOG = (
    "Example: provgym eval judge --policy oracle --policy naive --policy structure --policy tiny --limit 50 | "
    "provgym eval judge --policy smollm2 --mitigation M0 --mitigation M1 --conditions C1,C2,C3 --limit 50 | "
    "provgym eval judge --policy runs/papt-tiny --policy tiny | "
    "provgym eval judge --policy smollm2 --scifact DIR --limit 20 | "
    "provgym eval judge --policy endpoint --base-url http://localhost:8000/v1 --model NAME"
)


def add_judge(group: typer.Typer) -> None:
    """Add the command ``judge`` to a group of commands."""
    group.command(epilog=_EPILOG)(judge)


def judge(
    policies: Annotated[
        list[str],
        typer.Option(
            "--policy",
            "-p",
            help="oracle (majority over sources), naive (majority over paths), constant-support, constant-refute, "
            "constant-mixed, structure, structure+node (scripted); tiny; smollm2; endpoint; a run's or checkpoint's "
            "folder; a Hugging Face model's folder or id. Repeatable: several are compared pairwise.",
            show_default=False,
        ),
    ],
    claims: Claims = None,
    scifact: Scifact = None,
    split: Split = None,
    conditions: Annotated[
        str | None,
        typer.Option(help="Names by commas, such as C1,2S6P; '' for none; C1-C4, C2R, 1S1P, 1S5P, 5S5P unless given."),
    ] = None,
    general_draws: GeneralDraws = None,
    mitigation: Mitigations = None,
    sampled: Sampled = False,
    temperature: Temperature = None,
    samples: Annotated[int | None, typer.Option(help="Judgements per instance, with --sampled.")] = None,
    adapter: Adapter = None,
    base_url: BaseUrl = None,
    model: ModelName = None,
    api_key_env: ApiKeyEnv = None,
    timeout_s: TimeoutS = None,
    endpoint_dir: EndpointDir = None,
    endpoint_file: EndpointFile = None,
    grammar: Annotated[str | None, typer.Option(help="json, for language models that were trained otherwise.")] = None,
    limit: Limit = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results; runs/judge/HASH unless given.")] = None,
    seed: Seed = None,
    data_seed: DataSeed = None,
    source_labels: SourceLabelsName = None,
    max_content_characters: Annotated[int | None, typer.Option(help="Longest piece of evidence; 2000.")] = None,
    max_prompt_characters: Annotated[
        int | None, typer.Option(help="Longest prompt; what is longer is cut at sentences, visibly; 16000.")
    ] = None,
    parquet: Parquet = False,
    max_rows: Annotated[
        int | None, typer.Option(help="Judgements made (requests sent) at once; 32 (16) unless given.")
    ] = None,
    max_length: Annotated[int | None, typer.Option(help="Longest prompt with its answer, in tokens.")] = None,
    lenient: Lenient = False,
) -> None:
    """Let policies judge held-out claims from all their evidence at once: verdicts, counts, shifts, with intervals.

    Where only routes are added to a source (C1 to C2), a sound judge does not move; the shifts show who does. An
    interrupted evaluation goes on where it stopped when the same command is given again.
    """
    from provgym.eval.judge_config import judge_eval_config
    from provgym.generators.policy_spec import PolicyOptions, run_config_of

    degrees = temperature_of(temperature, sampled, samples)
    given = {
        "split": split,
        "conditions": None if conditions is None else names_of(conditions, "--conditions"),
        "general_draws": general_draws,
        "mitigations": mitigation,
        "source_labels": source_labels,
        "max_content_characters": max_content_characters,
        "max_prompt_characters": max_prompt_characters,
        "decoding": "sampled" if sampled else None,
        "samples": samples,
        "seed": seed,
        "limit": limit,
    }
    runs = [run for text in policies if (run := run_config_of(text)) is not None]
    source = claims_of(claims, scifact, data_seed, lenient)
    config = judge_eval_config(runs, source, what_was_given(given))
    endpoint = (api_key_env, timeout_s, endpoint_dir, endpoint_file)
    options = PolicyOptions(adapter, base_url, model, degrees, max_rows, max_length, grammar, *endpoint)
    _judge_all(config, policies, options, out, parquet=parquet)


def _judge_all(
    config: JudgeEvalConfig, policies: Sequence[str], options: PolicyOptions, out: Path | None, *, parquet: bool
) -> None:
    """Evaluate judges with progress bars and report on them; under a launcher, the first process speaks."""
    from provgym.eval.judge_policies import evaluate_judges, judges_named
    from provgym.eval.judge_report import report_on_judges, write_judge_report
    from provgym.eval.walk_config import config_hash

    folder = folder_for(out, Path("runs") / "judge" / config_hash(config), options.endpoint_dir)
    judges = judges_named(policies, options)  # all are checked before the first one judges
    bars = progress_bars("judgement", is_shown=is_first_process())
    results = evaluate_judges(config, judges, folder, parquet=parquet, on_progress=bars)
    if not is_first_process():
        return
    report = report_on_judges(results)
    show_report(report)
    write_judge_report(results, report, folder)
    typer.echo(f"files: {folder}/ ({FILES})")
    refuse_if_unscored(results)
