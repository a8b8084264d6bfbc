"""Benchmarks as tasks: MMLU, MMLU-Pro, GPQA, StrategyQA, GSM8K, AQuA and HumanEval, from a local file or the hub.

A task's graph is empty, unless the benchmark brings evidence (StrategyQA's facts, one unit each) or a graph is handed
in, which then all tasks share. GPQA's authors ask that its questions be posted nowhere in plain text: it is read where
it lies, and what is written of it should hold ids only.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from provgym.envs.evidence_units import EvidenceUnit, KnowledgeGraph, Span
from provgym.envs.topology_tasks import TopologyTask
from provgym.generators.benchmark_rows import BenchmarkName, BenchmarkRow, read_benchmark_row
from provgym.generators.claim_files import read_rows
from provgym.generators.json_lines import BadFileError, BadLine, check_is_file
from provgym.generators.seeds import Purpose, derive_rng

HubLoader = Callable[..., Iterable[Mapping[str, Any]]]
"""``datasets.load_dataset``, or what stands in for it: called with (id, config, split=...)."""

_MMLU_HEADER = ("question", "A", "B", "C", "D", "answer")  # the official files have no header line


class HubSource(NamedTuple):
    """Where a benchmark lies on the hub.

    Attributes:
        hub_id: Owner and name.
        config: Name of the configuration, or None.
        split: The hub's split that is evaluated on.
    """

    hub_id: str
    config: str | None
    split: str


HUB_SOURCES: Mapping[BenchmarkName, HubSource] = {
    "mmlu": HubSource("cais/mmlu", "all", "test"),
    "mmlu_pro": HubSource("TIGER-Lab/MMLU-Pro", None, "test"),
    "gpqa": HubSource("Idavidrein/gpqa", "gpqa_diamond", "train"),
    "strategyqa": HubSource("ChilleD/StrategyQA", None, "test"),
    "gsm8k": HubSource("openai/gsm8k", "main", "test"),
    "aqua": HubSource("deepmind/aqua_rat", "raw", "test"),
    "humaneval": HubSource("openai/openai_humaneval", None, "test"),
}


def benchmark_from_file(
    name: BenchmarkName,
    path: Path,
    *,
    split: str = "test",
    graph: KnowledgeGraph | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> tuple[TopologyTask, ...]:
    """Return the tasks of a local file.

    Args:
        name: Of the benchmark.
        path: ``.csv``, ``.json`` (a list, or one object a line), ``.jsonl``, ``.jsonl.gz`` or ``.parquet``.
        split: Which split the tasks are to stand in.
        graph: What can be retrieved for every question, in place of the benchmark's own evidence.
        limit: A random sample of so many questions, in the order of the file; None takes all.
        seed: Of the sample.

    Raises:
        BadFileError: If the file or a row can't be read; the message names row and field.
        FileNotFoundError: If the file does not exist.
        ValueError: If the benchmark is unknown or ``limit`` < 1.
    """
    rows: list[BenchmarkRow] = []
    for number, data in _file_rows(path):
        try:
            rows.append(read_benchmark_row(name, data))
        except ValueError as error:
            raise BadFileError(path, f"row {number}: {error}; give a file of {name}") from error
    if not rows:
        raise BadFileError(path, f"holds no question of {name}, expected at least one row")
    return _tasks(name, path.stem.removesuffix(".jsonl"), rows, split, graph, limit, seed)


def benchmark_from_hub(
    name: BenchmarkName,
    source: HubSource | None = None,
    *,
    split: str = "test",
    graph: KnowledgeGraph | None = None,
    limit: int | None = None,
    seed: int = 0,
    load: HubLoader | None = None,
) -> tuple[TopologyTask, ...]:
    """Return the tasks of a data set on the Hugging Face hub (or in its local cache).

    Args:
        name: Of the benchmark.
        source: Where it lies; None takes :data:`HUB_SOURCES`.
        split: Which split the tasks are to stand in.
        graph: As in :func:`benchmark_from_file`.
        limit: As in :func:`benchmark_from_file`.
        seed: As in :func:`benchmark_from_file`.
        load: Stands in for ``datasets.load_dataset``.

    Raises:
        OSError: If the data set can't be had, such as without a network.
        ValueError: If the benchmark is unknown, a row can't be read, or ``limit`` < 1.
    """
    if name not in HUB_SOURCES:
        raise ValueError(f"benchmark {name!r} is unknown; choose one of {list(HUB_SOURCES)}")
    place = HUB_SOURCES[name] if source is None else source
    if load is None:
        from datasets import load_dataset  # takes a second to import; local files do not need it

        load = load_dataset
    try:
        data = list(load(place.hub_id, place.config, split=place.split))
    except (OSError, ValueError) as error:
        raise OSError(
            f"{place.hub_id} ({place.config or 'default'}, {place.split}) can't be had from the hub: {error}; check "
            "the name, the network and whether it asks for a login, or name a local file"
        ) from error
    rows: list[BenchmarkRow] = []
    for number, row in enumerate(data, start=1):
        try:
            rows.append(read_benchmark_row(name, row))
        except ValueError as error:
            raise ValueError(f"{place.hub_id}, row {number}: {error}; is it a copy of {name}?") from error
    if not rows:
        raise ValueError(f"{place.hub_id}: split {place.split!r} holds no question, expected at least one")
    return _tasks(name, place.config or place.split, rows, split, graph, limit, seed)


def _tasks(
    name: str,
    part: str,
    rows: list[BenchmarkRow],
    split: str,
    graph: KnowledgeGraph | None,
    limit: int | None,
    seed: int,
) -> tuple[TopologyTask, ...]:
    """Return a task for each chosen row; a question that stands in several rows is one base."""
    chosen: Sequence[int] = range(len(rows))
    if limit is not None:
        if limit < 1:
            raise ValueError(f"limit={limit} must be >= 1; leave it out to take all {len(rows)} questions")
        chosen = sorted(derive_rng(seed, Purpose.BENCHMARK, len(rows)).permutation(len(rows))[:limit].tolist())
    taken: set[str] = set()
    tasks = []
    for place in chosen:
        row = rows[place]
        task_id = f"{name}/{part}/{row.row_id or place + 1}"
        if task_id in taken:  # an id of the data set that stands twice
            task_id = f"{task_id}#{place + 1}"
        taken.add(task_id)
        base_id = f"{name}-{hashlib.sha256(row.question.encode('utf-8', 'replace')).hexdigest()[:16]}"
        evidence = _facts_graph(row, base_id) if graph is None else graph
        tasks.append(
            TopologyTask(task_id, base_id, split, row.question, row.gold, row.kind, row.choices, evidence, None)
        )
    return tuple(tasks)


def _facts_graph(row: BenchmarkRow, base_id: str) -> KnowledgeGraph:
    """Return the row's own facts as units: the annotators' list is the document, and the one source."""
    document = "\n".join(row.facts)
    units = []
    start = 0
    for number, fact in enumerate(row.facts, start=1):
        span = Span(base_id, start, start + len(fact), fact)
        units.append(EvidenceUnit(f"u{number}", row.topic or base_id, "fact", fact, span, base_id))
        start += len(fact) + 1
    return KnowledgeGraph(tuple(units), {base_id: document} if units else {})


def _file_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (number from 1, row) of a file in any of the formats."""
    check_is_file(path)
    if path.suffix == ".csv":
        yield from enumerate(_csv_rows(path), start=1)
    elif path.suffix == ".json" and _is_list(path):
        yield from enumerate(_list_rows(path), start=1)
    else:
        for line in read_rows(path):
            if isinstance(line, BadLine):
                raise BadFileError(path, f"{line.problem}; correct or remove the line", line.line)
            yield line.line, line.data


def _is_list(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["


def _list_rows(path: Path) -> list[Mapping[str, Any]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise BadFileError(path, f"found no readable JSON list ({error}); save it again") from error
    if not isinstance(data, list):
        raise BadFileError(path, f"found one {type(data).__name__}, expected a JSON list of questions")
    for number, row in enumerate(data, start=1):
        if not isinstance(row, dict):
            raise BadFileError(path, f"row {number}: found a {type(row).__name__}, expected an object")
    return data


def _csv_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.reader(file, strict=True) if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadFileError(path, f"found no readable CSV in UTF-8 ({error}); save it again") from error
    has_header = bool(rows) and any(cell.strip().lower() == "question" for cell in rows[0])
    header = rows[0] if has_header else list(_MMLU_HEADER)
    for number, row in enumerate(rows[has_header:], start=1):
        if len(row) != len(header):
            raise BadFileError(path, f"row {number}: found {len(row)} cells, expected {len(header)}: {header}")
        yield dict(zip(header, row, strict=True))
