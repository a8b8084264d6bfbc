"""A run is evaluated on what it held out, walked as it was trained, unless told otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from provgym.eval.run_defaults import walk_eval_config
from provgym.eval.walk_config import ClaimFiles, GraphEchoClaims, ScifactClaims


def run(name: str = "a", **data: Any) -> dict[str, Any]:
    return {
        "name": name,
        "data": {"claims": None, "seed": 7, "train_claims": 50, "dev_claims": 5, "test_claims": 9, **data},
        "walk": {"mitigation": "M2", "source_labels": "real", "preview_ids": "visited", "moves": "aliases"},
        "evaluation": {"conditions": ["C1", "1S5P"], "general_draws": 3, "budget": 5},
    }


def test_nothing_said_is_the_plain_default() -> None:
    config = walk_eval_config([], None, {})
    assert config.claims == GraphEchoClaims()
    assert config.mitigations == ("M1",)


def test_a_runs_own_held_out_claims() -> None:
    config = walk_eval_config([run(), run("b")], None, {})
    assert config.claims == GraphEchoClaims(seed=7, splits={"train": 50, "dev": 5, "test": 9})
    assert (config.mitigations, config.budgets, config.preview_ids) == (("M2",), (5,), "visited")
    assert (config.conditions, config.general_draws, config.source_labels) == (("C1", "1S5P"), 3, "real")
    assert config.moves == "aliases"


def test_a_run_from_before_moves_were_an_option_takes_the_default() -> None:
    old = run()
    del old["walk"]["moves"]
    assert walk_eval_config([old], None, {}).moves == "labelled"


def test_what_was_asked_for_wins() -> None:
    config = walk_eval_config([run()], None, {"budgets": [8], "mitigations": ["M0"], "moves": "labelled"})
    assert (config.budgets, config.mitigations, config.moves) == ((8,), ("M0",), "labelled")


def test_other_claims_keep_only_how_they_are_walked() -> None:
    config = walk_eval_config([run(), run("b", seed=8)], {"kind": "scifact", "folder": "x"}, {})
    assert isinstance(config.claims, ScifactClaims)
    assert (config.conditions, config.preview_ids, config.moves) == (None, "visited", "aliases")


def test_a_run_on_an_own_claim_file() -> None:
    config = walk_eval_config([run(claims="mine.jsonl")], None, {})
    assert isinstance(config.claims, ClaimFiles)
    assert [str(path) for path in config.claims.paths] == ["mine.jsonl"]
    assert config.conditions is None


def test_runs_on_different_claims_are_not_mixed() -> None:
    with pytest.raises(ValueError, match="run 'b' was trained on the claims .*'seed': 8"):
        walk_eval_config([run(), run("b", seed=8)], None, {})


def test_refused_fields_are_one_line_each_told_once() -> None:
    with pytest.raises(ValueError, match="budgets.0: Input should be greater than or equal to 1; found 0$"):
        walk_eval_config([], None, {"budgets": [0]})
