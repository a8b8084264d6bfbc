"""``provgym eval``: walks of held-out claims, and stored episodes under another reward."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from provgym.cli_group import checked, names_of, new_group, progress_bars

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
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the endpoint's key; none is sent without.")
    ] = None,
    timeout_s: Annotated[float | None, typer.Option(help="Seconds for one request to the endpoint; 60.")] = None,
    endpoint_dir: Annotated[
        Path | None, typer.Option(help="Folder of the endpoint's cache and ledger; runs/endpoint unless given.")
    ] = None,
    endpoint_file: Annotated[Path | None, typer.Option(help="YAML with more settings: docs/endpoints.md.")] = None,
    grammar: Annotated[str | None, typer.Option(help="json or tool_call, for language models.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many claims.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results; runs/eval/HASH unless given.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of presentation, sampling and intervals; 42 unless given.")] = None,
    data_seed: Annotated[int | None, typer.Option(help="Of generated claims; the run's, or 42, unless given.")] = None,
    preview_ids: Annotated[str | None, typer.Option(help="shown, or visited: hide sources until visited.")] = None,
    source_labels: Annotated[str | None, typer.Option(help="short, shuffled or real.")] = None,
    moves: Annotated[str | None, typer.Option(help="labelled: name sources in every turn; or aliases.")] = None,
    parquet: Annotated[bool, typer.Option("--parquet", help="Also write episodes.parquet.")] = False,
    max_rows: Annotated[
        int | None, typer.Option(help="Episodes played (requests sent) at once; 32 (16) unless given.")
    ] = None,
    max_length: Annotated[int | None, typer.Option(help="Longest episode in tokens.")] = None,
    lenient: Annotated[bool, typer.Option("--lenient", help="Leave bad lines out and count them.")] = False,
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
        "conditions": None if conditions is None else names_of(conditions),
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
    config = walk_eval_config(runs, source, {key: value for key, value in given.items() if value is not None})
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
    from provgym.rewards.papt import CountBasis, CoverageBasis
    from provgym.rewards.rubric import Variant, papt_rubric

    rubric = papt_rubric(
        checked(Variant, variant, "--variant"),
        weights=_weights(weight or []),
        count_basis=checked(CountBasis, count_basis, "--count-basis"),
        coverage_basis=checked(CoverageBasis, coverage_basis, "--coverage-basis"),
    )
    if out is not None and out.is_dir():
        raise IsADirectoryError(f"--out {out} is a folder, expected a file; name one, such as {out / 'rescored.json'}")
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


def temperature_of(temperature: float | None, sampled: bool, samples: int | None) -> float:
    """Return the temperature to play at: 0 is greedy.

    Raises:
        ValueError: If a temperature or a number of samples is asked for without sampling, or sampling at 0.
    """
    if not sampled:
        if temperature is not None:
            raise ValueError(f"--temperature {temperature} does nothing with greedy decoding; add --sampled")
        if samples is not None and samples > 1:
            raise ValueError(f"--samples {samples} would play one episode {samples} times; add --sampled")
        return 0.0
    if temperature == 0:
        raise ValueError("--temperature 0 is greedy decoding, found --sampled beside it; leave both out")
    return 1.0 if temperature is None else temperature


def claims_of(
    files: Sequence[Path] | None, scifact: Path | None, data_seed: int | None, lenient: bool
) -> dict[str, Any] | None:
    """Return where instances come from; None if nothing was said."""
    given = (("--claims", files or None), ("--scifact", scifact), ("--data-seed", data_seed))
    said = [name for name, value in given if value is not None]
    if len(said) > 1:
        raise ValueError(f"{' and '.join(said)} exclude each other; give one")
    if lenient and not files and scifact is None:
        raise ValueError("--lenient is about the lines of files, found neither --claims nor --scifact; leave it out")
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
    from provgym.eval.table import print_tables
    from provgym.eval.walk_config import config_hash
    from provgym.eval.walk_policies import evaluate_policies
    from provgym.eval.walk_report import report_on, write_report
    from provgym.generators.policy_spec import policy_specs

    is_first = os.environ.get("RANK", "0") == "0"
    folder = folder_for(out, Path("runs") / "eval" / config_hash(config))
    specs = policy_specs(policies, options)  # all are checked before the first one plays
    bars = progress_bars("episode", is_shown=is_first)
    results = evaluate_policies(config, specs, folder, parquet=parquet, on_progress=bars)
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
    refuse_if_unscored(results)


def folder_for(out: Path | None, default: Path) -> Path:
    """Return the folder that holds one folder for each policy, checked before anything is loaded.

    Raises:
        ValueError: If it is a run's or a single policy's own folder, whose files would be mixed with the report's.
        NotADirectoryError: If a file is in the way.
    """
    folder = default if out is None else out
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise NotADirectoryError(f"--out {folder}: {place} is a file, expected a folder; name another one")
    own = [name for name in ("config.yaml", "config.json", "checkpoints") if (folder / name).exists()]
    if own:
        raise ValueError(
            f"--out {folder} is the folder of a run, a model or a single evaluation (it holds {own[0]}), expected one "
            f"of its own; name another one, such as {folder / 'eval'}"
        )
    return folder


def refuse_if_unscored(results: Mapping[str, Any]) -> None:
    """Stop if a policy has episodes and all ended in an error: there is no figure to read.

    Args:
        results: Policy to result; its ``episodes`` tell how they ended.

    Raises:
        RuntimeError: If so; the first error is in the message.
    """
    from provgym.eval.metric_kinds import is_scored

    for name, result in results.items():
        if result.episodes and not any(is_scored(episode) for episode in result.episodes):
            raise RuntimeError(
                f"{name}: all {len(result.episodes)} episodes ended in an error, so nothing was measured; the first: "
                f"{result.episodes[0].error}. Put that right and give the same command again: they are played anew"
            )


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
