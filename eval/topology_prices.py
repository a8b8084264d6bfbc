"""The prices of structure that stored evaluations were made with, and those to score them again under."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from provgym.eval.problems import problems_of
from provgym.generators.topology_targets import ScoreRule
from provgym.rewards.topology_score import CostWeights

CONFIG_FILE = "config.yaml"
SUMMARY_FILE = "summary.json"


class Prices(BaseModel):
    """What structure costs: ``score = right - cost_weight x (node x nodes + edge x edges)``.

    Attributes:
        node: lambda_V, >= 0.
        edge: lambda_E, >= 0.
        cost_weight: lambda_C, >= 0.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    node: float = Field(ge=0.0, allow_inf_nan=False)
    edge: float = Field(ge=0.0, allow_inf_nan=False)
    cost_weight: float = Field(ge=0.0, allow_inf_nan=False)

    def rule(self) -> ScoreRule:
        """Return how a run is scored under these prices: by its raw success."""
        return ScoreRule(CostWeights(self.node, self.edge), self.cost_weight, "raw")


def score_text(rule: ScoreRule) -> str:
    """Say how a run is scored.

    Example:
        >>> score_text(Prices(node=0.03, edge=0.015, cost_weight=1.0).rule())
        'score = right - 1 x (0.03 x nodes + 0.015 x edges)'
    """
    weights = rule.weights
    return f"score = right - {rule.cost_weight:g} x ({weights.node:g} x nodes + {weights.edge:g} x edges)"


NAMES = tuple(Prices.model_fields)


def stored_prices(folder: Path) -> Prices:
    """Return the prices that an evaluation was made with.

    They stand in its ``config.yaml``; one that was called from Python without settings, or belongs to a sweep, has them
    in ``summary.json`` alone.

    Args:
        folder: Of a topology evaluation.

    Raises:
        FileNotFoundError: If the folder holds neither file with prices.
        ValueError: If a file is damaged; the message names it.
    """
    config = _read(folder / CONFIG_FILE).get("topology_eval")
    if not _has_prices(config):
        details = _read(folder / SUMMARY_FILE).get("details")
        found, path = details.get("score") if isinstance(details, dict) else None, folder / SUMMARY_FILE
    else:
        found, path = config, folder / CONFIG_FILE
    if not _has_prices(found):
        raise FileNotFoundError(
            f"{folder} says in no {CONFIG_FILE} or {SUMMARY_FILE} what its evaluation charged for nodes and edges; "
            "expected the folder of a topology evaluation, such as runs/NAME/eval, or --node, --edge and --cost-weight"
        )
    try:
        return Prices.model_validate(found)
    except ValidationError as error:
        raise ValueError(f"{path}: {problems_of(error)}; correct it, or give the prices as options") from error


def prices_for(folders: Sequence[Path], given: Mapping[str, float]) -> Prices:
    """Return the prices to score stored evaluations under: those given, and of the others those they were made with.

    Args:
        folders: Of topology evaluations, at least one.
        given: Some of ``node``, ``edge`` and ``cost_weight``; they win.

    Raises:
        FileNotFoundError: If a price is not given, and a folder does not say it.
        ValueError: If a price is not given, and the folders differ in it; or a given one is refused.
    """
    missing = [name for name in NAMES if name not in given]
    stored = {folder: stored_prices(folder) for folder in folders} if missing else {}
    found = dict(given)
    for name in missing:
        values = {folder: float(getattr(prices, name)) for folder, prices in stored.items()}
        if len(set(values.values())) > 1:
            told = ", ".join(f"{folder}: {value:g}" for folder, value in values.items())
            raise ValueError(
                f"the evaluations were made with different prices: {name} in {told}; give --{name.replace('_', '-')} "
                "to score all of them alike, or leave out those that differ"
            )
        found[name] = next(iter(values.values()))
    try:
        return Prices.model_validate(found)
    except ValidationError as error:
        raise ValueError(problems_of(error)) from error


def _has_prices(found: object) -> bool:
    return isinstance(found, dict) and all(name in found for name in NAMES)


def _read(path: Path) -> dict[str, Any]:
    """Return what a YAML or JSON file holds; nothing if it isn't there."""
    if not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path} can't be read ({error}); put it back, or give the prices as options") from error
    if not isinstance(found, dict):
        raise ValueError(
            f"{path} holds {type(found).__name__}, expected keys and values; put it back, or give the prices as options"
        )
    return found
