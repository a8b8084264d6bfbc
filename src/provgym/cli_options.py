"""What ``provgym eval walk`` and ``provgym eval judge`` share: options, how they are read, how results are shown."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from provgym.eval.report_text import Report

FILES = "report.md, plots/, POLICY/summary.json, POLICY/episodes.jsonl"
"""What lies in the folder of an evaluation, for the last line that its command prints."""

Claims = Annotated[list[Path] | None, typer.Option(help="Claim file, instead of generated claims; repeatable.")]
Scifact = Annotated[Path | None, typer.Option(help="Folder with claims_dev.jsonl and corpus.jsonl.")]
Split = Annotated[str | None, typer.Option(help="train, dev or test; test unless given.")]
GeneralDraws = Annotated[int | None, typer.Option(help="General instances of each generated claim.")]
Mitigations = Annotated[list[str] | None, typer.Option(help="M0, M1, M2 or M3; repeatable.")]
Sampled = Annotated[bool, typer.Option("--sampled/--greedy", help="Sample, or take the likeliest token.")]
Temperature = Annotated[float | None, typer.Option(help="Of sampling; 1 unless given.")]
Adapter = Annotated[Path | None, typer.Option(help="LoRA adapter for smollm2 or a Hugging Face model.")]
BaseUrl = Annotated[str | None, typer.Option(help="Of the endpoint, such as http://localhost:8000/v1.")]
ModelName = Annotated[str | None, typer.Option(help="Model name that the endpoint knows.")]
ApiKeyEnv = Annotated[
    str | None, typer.Option(help="Environment variable with the endpoint's key; none is sent without.")
]
TimeoutS = Annotated[float | None, typer.Option(help="Seconds for one request to the endpoint; 60.")]
EndpointDir = Annotated[
    Path | None, typer.Option(help="Folder of the endpoint's cache and ledger; runs/endpoint unless given.")
]
EndpointFile = Annotated[Path | None, typer.Option(help="YAML with more settings: docs/endpoints.md.")]
Limit = Annotated[int | None, typer.Option(help="Only the first so many claims.")]
Seed = Annotated[int | None, typer.Option(help="Of presentation, sampling and intervals; 42 unless given.")]
DataSeed = Annotated[int | None, typer.Option(help="Of generated claims; the run's, or 42, unless given.")]
SourceLabelsName = Annotated[str | None, typer.Option(help="short, shuffled or real.")]
Parquet = Annotated[bool, typer.Option("--parquet", help="Also write episodes.parquet.")]
Lenient = Annotated[bool, typer.Option("--lenient", help="Leave bad lines out and count them.")]


def is_first_process() -> bool:
    """Whether this process speaks: under a launcher, the first one alone."""
    return os.environ.get("RANK", "0") == "0"


def what_was_given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the command line said anything about.

    Example:
        >>> what_was_given({"seed": 0, "split": None})
        {'seed': 0}
    """
    return {key: value for key, value in fields.items() if value is not None}


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


def folder_for(out: Path | None, default: Path, endpoint_dir: Path | None = None) -> Path:
    """Return the folder that holds one folder for each policy, checked before anything is loaded.

    Args:
        out: As given.
        default: Where to otherwise.
        endpoint_dir: Checked too, if given.

    Raises:
        ValueError: If it is a run's or a single policy's own folder, whose files would be mixed with the report's.
        OSError: If no file can be written there.
    """
    from provgym.generators.writable_folder import check_writable

    folder = default if out is None else out
    check_writable(folder, "--out")
    if endpoint_dir is not None:
        check_writable(endpoint_dir, "--endpoint-dir")
    own = [name for name in ("config.yaml", "config.json", "checkpoints") if (folder / name).exists()]
    if own:
        raise ValueError(
            f"--out {folder} is the folder of a run, a model or a single evaluation (it holds {own[0]}), expected one "
            f"of its own; name another one, such as {folder / 'eval'}"
        )
    return folder


def show_report(report: Report) -> None:
    """Print what an evaluation came to."""
    from provgym.eval.table import print_tables

    for line in report.before:
        typer.echo(line)
    print_tables(report.tables)
    for line in report.after:
        typer.echo(f"note: {line}")


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
