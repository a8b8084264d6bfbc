"""GraphEcho-Syn as files: one claim file per split, and a card that says what is in them.

``dataset.json``, the card, is written last: a folder with a card is whole. Its token and node counts are a
diagnostic of how much text each condition shows (tokens are separated by white space, no tokenizer is meant).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from provgym.envs.provenance import Instance
from provgym.generators.claim_files import read_claims, write_claims
from provgym.generators.claim_records import instance_to_record
from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL, parse_condition
from provgym.generators.graphecho import SPLITS, GraphEcho
from provgym.generators.json_lines import BadFileError, atomic_file, check_is_file, dump_json_line
from provgym.generators.splits import check_instances
from provgym.generators.writable_folder import check_writable

ExportFormat = Literal["jsonl", "parquet", "both"]
CARD_NAME = "dataset.json"
UNFINISHED = ".dataset.unfinished"
"""Stands where the card will, until it is written: what lies beside it may be half an export."""
MAX_INSTANCES = 1_000_000
"""Most instances of one export: a split's are held in memory."""
FORMAT_VERSION = 1
_SUFFIXES = (".jsonl", ".parquet")
DEFAULT_CONDITIONS = (*CONFLICT_CONDITIONS, GENERAL)


class Export(NamedTuple):
    """What was written.

    Attributes:
        folder: Where.
        files: Claim files, in the order of the splits.
        card: The card's contents, as in ``dataset.json``.
    """

    folder: Path
    files: tuple[Path, ...]
    card: Mapping[str, Any]


def export_graphecho(
    folder: Path,
    seed: int = 42,
    splits: Mapping[str, int] = SPLITS,
    conditions: Sequence[str] = DEFAULT_CONDITIONS,
    general_draws: int = 1,
    file_format: ExportFormat = "jsonl",
) -> Export:
    """Generate claims and write their instances, one claim file per split.

    Args:
        folder: Where to; made if it is missing. The files of an earlier export there are replaced, and those that
            this one doesn't have are removed.
        seed: What the claims are generated from, >= 0.
        splits: Base claims per split; a split of size 0 gets no file.
        conditions: Names of :mod:`provgym.generators.conditions`, each once.
        general_draws: Instances of condition ``general`` per claim, >= 1.
        file_format: ``jsonl``, ``parquet`` or ``both``.

    Raises:
        ValueError: If a size, a condition, ``general_draws`` or ``file_format`` is impossible; then
            nothing is written.
        FileExistsError: If the folder holds claim files that are of no export.
        OSError: If the disk is full or the folder cannot be written; no half file is left.
    """
    _check_request(splits, conditions, general_draws, file_format)
    check_writable(folder, "--out")
    generated = GraphEcho.generate(seed, splits)
    suffixes = ("jsonl", "parquet") if file_format == "both" else (file_format,)
    earlier = _open_folder(folder)
    files: list[Path] = []
    cards: dict[str, Any] = {}
    for split in (name for name, size in splits.items() if size):
        instances = _instances(generated, split, conditions, general_draws)
        written = [folder / f"{split}.{suffix}" for suffix in suffixes]
        for path in written:
            write_claims(path, instances)
        files += written
        cards[split] = _split_card(instances, written)
    card = {
        "name": "GraphEcho-Syn",
        "format_version": FORMAT_VERSION,
        "seed": seed,
        "conditions": list(conditions),
        "general_draws": general_draws if GENERAL in conditions else 0,
        "splits": cards,
    }
    for path in earlier - set(files):
        path.unlink()
    with atomic_file(folder / CARD_NAME) as file:
        file.write(json.dumps(card, indent=2, ensure_ascii=False).encode("utf-8") + b"\n")
    (folder / UNFINISHED).unlink()
    return Export(folder, tuple(files), card)


def _open_folder(folder: Path) -> set[Path]:
    """Make the folder, and return the claim files that an earlier export, finished or not, left in it."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{split}{suffix}" for split in SPLITS for suffix in _SUFFIXES]
    found = [path for path in paths if path.is_file()]
    if found and not (folder / CARD_NAME).is_file() and not (folder / UNFINISHED).is_file():
        raise FileExistsError(
            f"{folder} holds {found[0].name}, and no {CARD_NAME} that says it was exported here; choose another "
            "folder, or move that file away"
        )
    (folder / UNFINISHED).touch()
    (folder / CARD_NAME).unlink(missing_ok=True)  # an old card must not vouch for new files
    return set(found)


def load_export(folder: Path) -> dict[str, list[Instance]]:
    """Read an exported folder back, and check it against its card.

    Returns:
        Split name to instances, in the order they were generated.

    Raises:
        BadFileError: If the card cannot be read, a file differs from it, or a line is bad.
        FileNotFoundError: If the card or a file is missing.
        ValueError: If splits leak.
    """
    path = folder / CARD_NAME
    check_is_file(path)
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
        hashes = {split: dict(entry["files"]) for split, entry in card["splits"].items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadFileError(path, f"found no readable card ({error!r}); export the data set again") from error
    loaded: dict[str, list[Instance]] = {}
    for split, files in hashes.items():
        name = min(files)  # JSON lines where there are both
        check_is_file(folder / name)
        found = _sha256_of(folder / name)
        if found != files[name]:
            raise BadFileError(
                folder / name,
                f"found contents with SHA-256 {found[:12]}..., expected {files[name][:12]}... as its card "
                "says; export again, or read the file alone with read_claims",
            )
        loaded[split] = read_claims(folder / name).instances
    check_instances(instance for instances in loaded.values() for instance in instances)
    return loaded


def _check_request(splits: Mapping[str, int], conditions: Sequence[str], general_draws: int, file_format: str) -> None:
    if file_format not in get_args(ExportFormat):
        raise ValueError(f"file_format {file_format!r} is unknown; choose one of {list(get_args(ExportFormat))}")
    if general_draws < 1:
        raise ValueError(f"general_draws={general_draws} must be >= 1; leave out '{GENERAL}' to have none")
    unknown = [name for name in splits if name not in SPLITS]
    if unknown:
        raise ValueError(f"splits {unknown} are unknown; the splits are {list(SPLITS)}")
    if not conditions:
        raise ValueError(f"conditions is empty; name at least one, such as {', '.join(DEFAULT_CONDITIONS)}")
    twice = [name for name, count in Counter(conditions).items() if count > 1]
    if twice:
        raise ValueError(f"conditions {twice} are named more than once; name each once")
    for name in conditions:
        if name != GENERAL:
            parse_condition(name)
    each = sum(general_draws if name == GENERAL else 1 for name in conditions)
    if sum(splits.values()) * each > MAX_INSTANCES:
        raise ValueError(
            f"{sum(splits.values())} claims with {each} instances each are {sum(splits.values()) * each}, expected at "
            f"most {MAX_INSTANCES} in all: ask for fewer claims, conditions or general draws"
        )


def _instances(generated: GraphEcho, split: str, conditions: Sequence[str], general_draws: int) -> list[Instance]:
    """Return a split's instances, claim by claim, condition by condition, draw by draw."""
    return [
        generated.instance(base, name, draw=draw)
        for base in generated.of_split(split)
        for name in conditions
        for draw in range(general_draws if name == GENERAL else 1)
    ]


def _split_card(instances: Sequence[Instance], files: Sequence[Path]) -> dict[str, Any]:
    by_condition: dict[str, list[Instance]] = {}
    for instance in instances:
        by_condition.setdefault(instance.condition, []).append(instance)
    content = hashlib.sha256()
    for instance in instances:
        content.update(dump_json_line(instance_to_record(instance)))
    return {
        "claims": len({i.base_claim.claim_id for i in instances}),
        "instances": len(instances),
        "conditions": {name: _condition_card(members) for name, members in by_condition.items()},
        "content_sha256": content.hexdigest(),
        "files": {path.name: _sha256_of(path) for path in files},
    }


def _condition_card(instances: Sequence[Instance]) -> dict[str, Any]:
    tokens = [_shown_tokens(i) for i in instances]
    nodes = [i.graph.num_nodes for i in instances]
    return {
        "instances": len(instances),
        "gold": dict(sorted(Counter(i.gold.value for i in instances).items())),
        "tokens": {"mean": round(sum(tokens) / len(tokens), 3), "min": min(tokens), "max": max(tokens)},
        "nodes": {"mean": round(sum(nodes) / len(nodes), 3), "min": min(nodes), "max": max(nodes)},
    }


def _shown_tokens(instance: Instance) -> int:
    """Count the words of the claim and of every route's evidence: what a static judge is shown."""
    graph = instance.graph
    words = {atom.atom_id: len(atom.text.split()) for atom in graph.atoms}
    return len(instance.base_claim.text.split()) + sum(words[route.atom_id] for route in graph.routes)


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
