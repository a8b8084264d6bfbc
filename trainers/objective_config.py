"""What a PAPT run is told of its objective: phases, weights that change, shaping."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from provgym.rewards.papt import CountBasis, CoverageBasis
from provgym.rewards.rubric import PAPT_WEIGHTS, Rubric, Variant, papt_rubric
from provgym.trainers.strict_config import Strict


class ShapingConfig(Strict):
    """A reward for each source that is new, beside the objective (ours); it needs credit for single actions.

    The potential of a state is the share of sources acquired there. See :func:`provgym.rewards.credit.shaping_rewards`.

    Attributes:
        weight: Of the potential, in reward units.
        per: What acquired sources are divided by: ``available`` in the instance, or a fixed number of them, so that a
            source is worth the same everywhere.
        is_repaid: Whether the last action pays the potential back, which leaves the best policy as it was.
    """

    weight: float
    per: Literal["available"] | Annotated[int, Field(ge=1)] = "available"
    is_repaid: bool = False


class PhaseConfig(Strict):
    """A stretch of training under one objective.

    Attributes:
        steps: Optimiser steps.
        variant: ``full``, ``no_echo``, ``no_coverage`` or ``verdict_only``, as in the source.
        weights: Overrides of single weights of equation 3.
        weights_to: Weights that change over the phase, linearly from their value at its first step to this one at its
            last (ours); the others stay.
        count_basis: ``acquired`` (source) or ``available`` (ours).
        coverage_basis: ``budget`` (source) or ``available`` (ours).
        shaping: Reward for each new source, on top of the objective; None has none (the source).
    """

    steps: int = Field(ge=1)
    variant: Variant = "full"
    weights: dict[str, float] = Field(default_factory=dict)
    weights_to: dict[str, float] = Field(default_factory=dict)
    count_basis: CountBasis = "acquired"
    coverage_basis: CoverageBasis = "budget"
    shaping: ShapingConfig | None = None

    @model_validator(mode="after")
    def _weights_are_known(self) -> Self:
        for key, weights in (("weights", self.weights), ("weights_to", self.weights_to)):
            unknown = sorted(set(weights) - set(PAPT_WEIGHTS))
            if unknown:
                raise ValueError(f"{key} {unknown} are unknown; the terms are {sorted(PAPT_WEIGHTS)}")
        if self.weights_to and self.steps < 2:
            raise ValueError(f"weights_to needs a phase of 2 steps or more to change over, found steps={self.steps}")
        return self

    def weights_at(self, step: int) -> dict[str, float]:
        """Return the weights that differ from equation 3 at a step of the phase, counted from 0.

        Example:
            >>> PhaseConfig(steps=5, weights={"cost": 0.0}, weights_to={"cost": -0.2}).weights_at(1)
            {'cost': -0.05}
        """
        done = step / max(1, self.steps - 1)
        start = {**PAPT_WEIGHTS, **self.weights}
        return self.weights | {name: (1 - done) * start[name] + done * end for name, end in self.weights_to.items()}

    def rubric(self, step: int = 0) -> Rubric:
        """Return the objective at a step of the phase, counted from 0."""
        return papt_rubric(
            self.variant,
            weights=self.weights_at(step),
            count_basis=self.count_basis,
            coverage_basis=self.coverage_basis,
        )
