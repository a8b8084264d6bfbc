import json
import math

import pytest

from provgym.eval.estimate import Estimate


def test_json_round_trip_and_missing_is_null() -> None:
    estimate = Estimate(0.5, 0.25, 0.75, 8)
    assert Estimate.from_json(json.loads(json.dumps(estimate.to_json()))) == estimate
    missing = Estimate.missing()
    assert json.loads(json.dumps(missing.to_json(), allow_nan=False)) == {
        "value": None,
        "low": None,
        "high": None,
        "n": 0,
    }
    again = Estimate.from_json(missing.to_json())
    assert again.n == 0
    assert math.isnan(again.value)


def test_nothing_measured_can_not_carry_a_figure() -> None:
    """Kind: SciFact without evidence (n = 0 is never an invented 0 or 1)."""
    with pytest.raises(ValueError, match="n=0"):
        Estimate(0.0, 0.0, 0.0, 0)
    with pytest.raises(ValueError, match="n=-1"):
        Estimate(math.nan, math.nan, math.nan, -1)
    assert str(Estimate.missing()) == "not available (n=0)"


def test_value_without_interval_is_shown_without_one() -> None:
    assert str(Estimate(0.5, math.nan, math.nan, 3)) == "0.500 n=3"


def test_bad_stored_estimate_is_named() -> None:
    with pytest.raises(ValueError, match="not a stored estimate"):
        Estimate.from_json({"value": 1.0})
