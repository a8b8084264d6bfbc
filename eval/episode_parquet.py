"""Episodes as a Parquet table: one row per episode, typed columns.

Reading gives back what was written, but for lone surrogates in a model's text, which UTF-8 cannot hold: they
become question marks (JSON lines keep them).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from provgym.generators.episode import Episode
from provgym.generators.json_lines import atomic_file

_COUNTS = (
    "budget",
    "walks",
    "invalid_actions",
    "echoes",
    "connector_moves",
    "available_support",
    "available_refute",
    "acquired_support",
    "acquired_refute",
)


def episode_schema() -> Any:
    """Return the table's Arrow schema; ``usage`` is JSON text, since its keys are a server's own."""
    text, number, real = pa.string(), pa.int64(), pa.float64()
    judgement = pa.struct(
        [
            ("verdict", text),
            ("support_count", number),
            ("refute_count", number),
            ("confidence", real),
            ("cited_sources", pa.list_(text)),
            ("rationale", text),
        ]
    )
    outcome = pa.struct(
        [("gold", text), ("ending", text), ("judgement", judgement), *((name, number) for name in _COUNTS)]
    )
    step = pa.struct([("kind", text), ("node", text), ("budget_left", number), ("atom", text), ("source", text)])
    tokens = pa.struct(
        [
            ("prompt_ids", pa.list_(number)),
            ("completion_ids", pa.list_(number)),
            ("mask", pa.list_(number)),
            ("logprobs", pa.list_(real)),
        ]
    )
    return pa.schema(
        [
            *((name, text) for name in ("instance_id", "claim_id", "condition", "split", "mitigation")),
            ("member", number),
            ("outcome", outcome),
            ("trace", pa.list_(step)),
            ("turns", pa.list_(pa.struct([("observation", text), ("action", text)]))),
            ("cited_source_ids", pa.list_(text)),
            ("tokens", tokens),
            ("unknown_tokens", number),
            ("cut_characters", number),
            ("error", text),
            ("usage", text),
        ]
    )


def write_parquet(path: Path, episodes: Sequence[Episode]) -> None:
    """Write episodes to one Parquet file, in one step.

    Raises:
        OSError: If the disk is full or the folder cannot be written.
    """
    rows = [{**(data := episode.to_json()), "usage": json.dumps(data["usage"])} for episode in episodes]
    table = pa.Table.from_pylist([_without_surrogates(row) for row in rows], schema=episode_schema())
    with atomic_file(path) as file:
        pq.write_table(table, file)


def read_parquet(path: Path) -> list[Episode]:
    """Read episodes that :func:`write_parquet` wrote.

    Raises:
        ValueError: If the file is no Parquet table of episodes; the message names it.
    """
    try:
        rows = pq.read_table(path).to_pylist()
        return [Episode.from_json({**row, "usage": json.loads(row["usage"])}) for row in rows]
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no table of stored episodes ({error})") from error


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {key: _without_surrogates(item) for key, item in value.items()}
    return [_without_surrogates(item) for item in value] if isinstance(value, list) else value
