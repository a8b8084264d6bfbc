"""How a trained run is evaluated unless told otherwise: on its own held-out claims, walked as in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from provgym.eval.problems import problems_of
from provgym.eval.walk_config import WalkEvalConfig


def walk_eval_config(
    runs: Sequence[Mapping[str, Any]], claims: Mapping[str, Any] | None, given: Mapping[str, Any]
) -> WalkEvalConfig:
    """Join what a user asked for with what the evaluated runs bring with them.

    Args:
        runs: Resolved configurations of the runs whose policies are evaluated; may be empty.
        claims: The field ``claims``; None takes the runs' held-out claims, or generated ones without a run. With other
            claims than the runs', only how they are walked is taken over.
        given: Further fields, which win.

    Raises:
        ValueError: If a field is refused (one line, all problems), or the runs' claims differ.
    """
    if claims is None:
        data = walk_eval_defaults(runs)
    else:
        of_claims = ("claims", "conditions", "general_draws")
        data = {k: v for k, v in walk_eval_defaults(runs[:1]).items() if k not in of_claims} | {"claims": claims}
    try:
        return WalkEvalConfig.model_validate(data | dict(given))
    except ValidationError as error:
        raise ValueError(problems_of(error)) from error


def walk_eval_defaults(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return fields of :class:`~provgym.eval.walk_config.WalkEvalConfig` that runs bring with them.

    The claims (seed and sizes of GraphEcho-Syn, or the claim file) decide what was held out, so they must be the same
    for all runs; how claims are walked is the first run's.

    Args:
        runs: Resolved run configurations (``runs/NAME/config.yaml``); may be empty.

    Raises:
        ValueError: If two runs were trained on different claims.

    Example:
        >>> walk_eval_defaults([])
        {}
    """
    if not runs:
        return {}
    claims = [_claims(run) for run in runs]
    for run, found in zip(runs, claims, strict=True):
        if found != claims[0]:
            raise ValueError(
                f"run {run.get('name')!r} was trained on the claims {found}, run {runs[0].get('name')!r} on "
                f"{claims[0]}: what one held out the other may have seen; evaluate them apart, or name claims that "
                "neither has seen"
            )
    first = runs[0]
    walk, evaluation = first.get("walk") or {}, first.get("evaluation") or {}
    defaults: dict[str, Any] = {"claims": claims[0]}
    defaults |= {key: walk[key] for key in ("source_labels", "preview_ids", "moves") if key in walk}
    if "mitigation" in walk:
        defaults["mitigations"] = [walk["mitigation"]]
    if "budget" in evaluation:
        defaults["budgets"] = [evaluation["budget"]]
    if claims[0]["kind"] == "graphecho":
        defaults |= {key: evaluation[key] for key in ("conditions", "general_draws") if key in evaluation}
    return defaults


def _claims(run: Mapping[str, Any]) -> dict[str, Any]:
    data = run.get("data") or {}
    if data.get("claims"):
        return {"kind": "files", "paths": [data["claims"]]}
    sizes = {split: data[f"{split}_claims"] for split in ("train", "dev", "test") if f"{split}_claims" in data}
    return {"kind": "graphecho", "seed": data.get("seed", 42), **({"splits": sizes} if sizes else {})}
