"""What a report page is made from: the files of a finished training run, or of an evaluation."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from provgym.eval.episode_store import read_episodes
from provgym.eval.estimate import Estimate
from provgym.eval.problems import problems_of
from provgym.eval.walk_config import WalkEvalConfig
from provgym.eval.walk_play import EPISODES_FILE
from provgym.generators.episode import Episode
from provgym.generators.json_lines import BadFileError, check_is_file

TRAINING_POLICIES = ("start", "trained", "ceiling")
"""Folders under a training run's ``eval/``, in the order in which they are shown."""


@dataclass(frozen=True)
class EvaluatedPolicy:
    """One policy's finished evaluation.

    Attributes:
        name: As it is shown.
        folder: Where its files lie.
        config: What was played.
        config_hash: Of ``config``.
        data_hash: Of the instances that were played; what is loaded again must have the same.
        summary: Contents of its ``summary.json``.
    """

    name: str
    folder: Path
    config: WalkEvalConfig
    config_hash: str
    data_hash: str
    summary: Mapping[str, Any]

    def episodes(self) -> list[Episode]:
        """Read the stored episodes.

        Raises:
            FileNotFoundError: If they are not there.
            ValueError: If a line is no episode, or the file holds another number of them than ``summary.json`` says;
                the message names file and line.
        """
        path = self.folder / EPISODES_FILE
        found = read_episodes(path)
        counted = self.summary.get("num_episodes", len(found))
        if len(found) != counted:
            raise BadFileError(
                path,
                f"found {len(found)} episodes, expected the {counted} that {self.folder / 'summary.json'} counts: the "
                "file was emptied, cut or replaced. Give the evaluation's command again: it plays what is missing",
            )
        return found

    def estimates(self, group: str, key: str | None = None) -> dict[str, Estimate]:
        """Return stored figures: ``estimates("metrics")``, or ``estimates("by_condition", "C2")``.

        Raises:
            BadFileError: If the file does not hold them.
        """
        path = self.folder / "summary.json"
        found = _mapping(self.summary.get(group), path, group)
        return read_estimates(found if key is None else _mapping(found.get(key), path, f"{group}.{key}"), path)


@dataclass(frozen=True)
class ReportSource:
    """What a page reports on.

    Attributes:
        kind: ``training``, or ``evaluation`` without one.
        name: Of the run; the folder's name for an evaluation.
        folder: What was named by the user.
        policies: At least one; all played the same tasks.
        summary: A training run's ``summary.json``; empty for an evaluation.
        phases: A training run's phases as configured; empty for an evaluation.
        metrics_file: A training run's curves; None if there are none.
        comparisons: Stored pairwise differences of an evaluation of several policies.
    """

    kind: Literal["training", "evaluation"]
    name: str
    folder: Path
    policies: tuple[EvaluatedPolicy, ...]
    summary: Mapping[str, Any]
    phases: tuple[Mapping[str, Any], ...] = ()
    metrics_file: Path | None = None
    comparisons: tuple[Mapping[str, Any], ...] = ()


def read_source(folder: Path) -> ReportSource:
    """Read what lies in the folder of a training run, of an evaluation, or of one policy within an evaluation.

    Raises:
        FileNotFoundError: If the folder does not exist, or its run has not finished; the message says what to do.
        ValueError: If it is another kind of folder, or a file in it cannot be used; the message names it.
    """
    _check_folder(folder)
    summary_file = folder / "summary.json"
    summary = _read_json(summary_file) if summary_file.is_file() else None
    config = _read_yaml(folder / "config.yaml")
    if summary is not None and "variants" in summary:
        raise ValueError(f"{folder} pools several runs; name one of them, such as {_runs_of(summary)}")
    if "phases" in config:
        return _training(folder, config, summary)
    if "walk_eval" in config:
        return ReportSource("evaluation", folder.resolve().name, folder, (_policy(folder, None),), {})
    if "judge_eval" in config or any("judge_eval" in _read_yaml(path) for path in folder.glob("*/config.yaml")):
        raise ValueError(
            f"{folder} holds judgements, which have no walk to step through; its report.md has their tables"
        )
    names = [p for p in sorted(folder.iterdir()) if "walk_eval" in _read_yaml(p / "config.yaml")]
    if not names:
        raise ValueError(
            f"{folder} is neither a training run (config.yaml with 'phases', summary.json) nor an evaluation "
            f"(config.yaml with 'walk_eval', or folders with one); it holds {_inside(folder)}. Name runs/NAME or "
            "runs/eval/HASH"
        )
    comparisons = _comparisons(folder / "comparison.json")
    # Stored pairs are (later policy, earlier one): they remember the order in which the user named the policies.
    order = [str(pair[side]) for pair in comparisons for side in ("second", "first")]
    found = [_policy(path, None) for path in names]
    found.sort(key=lambda policy: order.index(policy.name) if policy.name in order else len(order))
    return ReportSource("evaluation", folder.resolve().name, folder, _alike(found), {}, comparisons=comparisons)


def read_estimates(found: Mapping[str, Any], path: Path) -> dict[str, Estimate]:
    """Return stored figures by name.

    Raises:
        BadFileError: If one is no estimate; the message names file and key.
    """
    estimates = {}
    for name, stored in found.items():
        try:
            estimates[name] = Estimate.from_json(stored)
        except (ValueError, TypeError, AttributeError) as error:
            raise BadFileError(
                path, f"key {name!r} is {stored!r}, expected value, low, high and n ({error})"
            ) from error
    return estimates


def _training(folder: Path, config: Mapping[str, Any], summary: Mapping[str, Any] | None) -> ReportSource:
    if summary is None:
        raise FileNotFoundError(
            f"{folder} is a training run without summary.json: it has not finished. Give its command again to finish "
            "it, or name an evaluation, such as one of its dev/step-N folders"
        )
    found = [_policy(folder / "eval" / name, name) for name in TRAINING_POLICIES if (folder / "eval" / name).is_dir()]
    if not found:
        raise FileNotFoundError(
            f"{folder}/eval holds none of {', '.join(TRAINING_POLICIES)}; it holds {_inside(folder)}"
        )
    phases = config["phases"]
    if not isinstance(phases, list) or not all(isinstance(phase, dict) for phase in phases):
        raise BadFileError(folder / "config.yaml", f"'phases' is {phases!r}, expected a list of mappings")
    metrics_file = folder / "metrics.jsonl"
    return ReportSource(
        "training",
        str(summary.get("name") or folder.resolve().name),
        folder,
        _alike(found),
        summary,
        tuple(phases),
        metrics_file if metrics_file.is_file() else None,
    )


def _policy(folder: Path, name: str | None) -> EvaluatedPolicy:
    """Read one policy's evaluation; its stored name is shown unless another is given."""
    header = _read_yaml(folder / "config.yaml")
    path = folder / "config.yaml"
    missing = [key for key in ("policy", "config_hash", "data_hash", "walk_eval") if key not in header]
    if missing:
        raise BadFileError(path, f"found no {', '.join(missing)}, expected the header of an evaluation")
    summary_file = folder / "summary.json"
    if not summary_file.is_file():
        raise FileNotFoundError(
            f"{folder} has no summary.json: this evaluation has not finished. Give its command again to finish it"
        )
    try:
        config = WalkEvalConfig.model_validate(header["walk_eval"])
    except ValidationError as error:
        raise BadFileError(path, f"walk_eval: {problems_of(error)}") from error
    return EvaluatedPolicy(
        name or str(header["policy"]),
        folder,
        config,
        str(header["config_hash"]),
        str(header["data_hash"]),
        _read_json(summary_file),
    )


def _alike(policies: list[EvaluatedPolicy]) -> tuple[EvaluatedPolicy, ...]:
    """Refuse policies that played different things: side by side their figures would say nothing."""
    first = policies[0]
    for other in policies[1:]:
        if (other.config_hash, other.data_hash) != (first.config_hash, first.data_hash):
            raise ValueError(
                f"{other.folder} and {first.folder} were evaluated on different tasks (configuration "
                f"{other.config_hash} and {first.config_hash}, data {other.data_hash} and {first.data_hash}); "
                "name one policy's folder"
            )
    return tuple(policies)


def _comparisons(path: Path) -> tuple[Mapping[str, Any], ...]:
    if not path.is_file():
        return ()
    rows = _read_json(path).get("comparisons")
    needed = {"first", "second", "metric", "difference"}
    if not isinstance(rows, list) or not all(isinstance(row, dict) and needed <= set(row) for row in rows):
        raise BadFileError(path, f"'comparisons' must be a list of objects with the keys {sorted(needed)}")
    return tuple(rows)


def _read_json(path: Path) -> dict[str, Any]:
    check_is_file(path)
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadFileError(path, f"found no valid JSON ({error}), expected one object") from error
    return dict(_mapping(data, path, "the file"))


def _read_yaml(path: Path) -> dict[str, Any]:
    """Return a YAML file's mapping; an absent file is an empty one."""
    if not path.is_file():
        return {}
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadFileError(path, f"found no valid YAML ({error}), expected a mapping") from error
    return dict(_mapping(data, path, "the file"))


def _mapping(data: Any, path: Path, what: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise BadFileError(path, f"{what} is {type(data).__name__}, expected a mapping")
    return data


def _check_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    if folder.exists():
        raise NotADirectoryError(f"{folder} is a file; name the folder of a training run or of an evaluation")
    around = [p.name for p in folder.parent.iterdir() if p.is_dir()] if folder.parent.is_dir() else []
    near = difflib.get_close_matches(folder.name, around, n=3)
    hint = f"did you mean {', '.join(str(folder.parent / name) for name in near)}?" if near else "check the path"
    raise FileNotFoundError(f"{folder} does not exist; {hint}")


def _inside(folder: Path) -> str:
    return ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"


def _runs_of(summary: Mapping[str, Any]) -> str:
    variants = summary["variants"]
    seeds = [s for v in variants.values() for s in v.get("seeds", {}).values()] if isinstance(variants, dict) else []
    return next((str(s["run_dir"]) for s in seeds if isinstance(s, dict) and "run_dir" in s), "runs/NAME-sSEED")
