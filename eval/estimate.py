"""A figure with its interval and its n; what was not measured says so and is never an invented number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NOT_AVAILABLE = "not available"


@dataclass(frozen=True, slots=True)
class Estimate:
    """One figure.

    Attributes:
        value: The figure; NaN when nothing was scored.
        low: Lower end of the 95 % interval; NaN when there is none (n = 0, or a single base claim).
        high: Upper end.
        n: Items that entered the figure (episodes, unless the metric says otherwise).

    Raises:
        ValueError: If ``n`` is negative, or a value stands beside n = 0.

    Example:
        >>> str(Estimate(0.9, 0.85, 0.94, 500)), str(Estimate.missing())
        ('0.900 [0.850, 0.940] n=500', 'not available (n=0)')
    """

    value: float
    low: float
    high: float
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError(f"n={self.n} must be >= 0")
        if self.n == 0 and not math.isnan(self.value):
            raise ValueError(f"value={self.value} with n=0: what was not measured must be NaN")

    @classmethod
    def missing(cls) -> Estimate:
        """Return the estimate of something that was never measured."""
        return cls(math.nan, math.nan, math.nan, 0)

    @property
    def is_available(self) -> bool:
        """Whether there is a figure."""
        return not math.isnan(self.value)

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval."""
        return not (math.isnan(self.low) or math.isnan(self.high))

    def to_json(self) -> dict[str, float | int | None]:
        """Return JSON-ready data; NaN becomes null, which strict readers accept."""
        return {
            "value": _number(self.value),
            "low": _number(self.low),
            "high": _number(self.high),
            "n": self.n,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Estimate:
        """Rebuild an estimate from :meth:`to_json`'s data.

        Raises:
            ValueError: If a key is missing.
        """
        try:
            value, low, high = (_float(data[key]) for key in ("value", "low", "high"))
            return cls(value, low, high, int(data["n"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a stored estimate: {dict(data)!r} ({error!r})") from error

    def __str__(self) -> str:
        if not self.is_available:
            return f"{NOT_AVAILABLE} (n={self.n})"
        interval = f" [{self.low:.3f}, {self.high:.3f}]" if self.has_interval else ""
        return f"{self.value:.3f}{interval} n={self.n}"


def _float(stored: float | None) -> float:
    return math.nan if stored is None else float(stored)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
