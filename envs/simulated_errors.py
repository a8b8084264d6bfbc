"""How often simulated agents err, and in which way: the error model, with its rates.

What each rate means stands in :class:`Skill`; what a call does with it in :mod:`~provgym.envs.simulated_agents`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np

from provgym.envs.roles import RoleKind


@dataclass(frozen=True, slots=True)
class Skill:
    """Error rates of one kind of role: probabilities, each in [0, 1].

    Attributes:
        miss: A unit is overlooked (of a planner: a step is left out). Once per unit or step.
        misread: A relevant unit is read the wrong way round. Once per unit.
        stray: An irrelevant unit is taken as evidence, for the side that its text would speak for. Once per unit.
        echo: The call counts units instead of distinct sources. Once per call.
        heed: The call gives way to messages where numbers don't decide, and to what a verifier checked. Once per call.
            No error by itself: it is what lets a team mend, or mislead, its members.
        follow: The call follows a step of a plan. Once per step.

    Raises:
        ValueError: If a rate lies outside [0, 1].
    """

    miss: float = 0.0
    misread: float = 0.0
    stray: float = 0.0
    echo: float = 0.0
    heed: float = 0.0
    follow: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            rate = getattr(self, field.name)
            if not (math.isfinite(rate) and 0.0 <= rate <= 1.0):
                raise ValueError(f"{field.name}={rate} must be a probability in [0, 1]")

    def scaled(self, factor: float) -> Skill:
        """Return the skill with its errors (not heeding and following) ``factor`` times as likely, at most 1."""
        errors = ("miss", "misread", "stray", "echo")
        return replace(self, **{name: min(1.0, factor * getattr(self, name)) for name in errors})


@dataclass(frozen=True, slots=True)
class ErrorModel:
    """One skill for each kind of role; the default makes no errors.

    Attributes:
        plan: Of planners.
        reason: Of those that read evidence and argue.
        verify: Of Verifiers.
        answer: Of the Answerer.
    """

    plan: Skill = Skill()
    reason: Skill = Skill()
    verify: Skill = Skill()
    answer: Skill = Skill()

    def of(self, kind: RoleKind) -> Skill:
        """Return the skill of a kind of role."""
        skill: Skill = getattr(self, kind.value)
        return skill

    def scaled(self, factor: float) -> ErrorModel:
        """Return a model whose errors are ``factor`` times as likely, at most 1: 0 gives agents that never err.

        Raises:
            ValueError: If the factor is negative or not finite.

        Example:
            >>> DEFAULT_ERROR_MODEL.scaled(0.0).answer.echo, DEFAULT_ERROR_MODEL.scaled(0.0).answer.heed
            (0.0, 0.9)
        """
        if not (math.isfinite(factor) and factor >= 0.0):
            raise ValueError(f"factor={factor} must be finite and >= 0")
        return ErrorModel(**{kind.value: self.of(kind).scaled(factor) for kind in RoleKind})


DEFAULT_ERROR_MODEL = ErrorModel(
    plan=Skill(miss=0.1),
    reason=Skill(miss=0.02, misread=0.03, stray=0.05, echo=0.85, heed=0.9, follow=0.25),
    verify=Skill(miss=0.02, misread=0.02, stray=0.3, echo=0.05),
    answer=Skill(miss=0.02, misread=0.03, stray=0.65, echo=0.85, heed=0.9, follow=0.25),
)
"""Single readers count echoes and let irrelevant units in; a Reasoner filters, a Verifier compares provenance."""


class Draws:
    """The random numbers of one call, in a layout that no rate changes.

    So two error models meet the same luck in the same call, and a higher rate errs wherever a lower one does.

    Args:
        seed: Of the agent, >= 0.
        digest: Of the call, hexadecimal: calls that are told the same draw the same.
        num_units: Units of evidence.

    Attributes:
        miss: (num_units,) uniform in [0, 1).
        misread: The same.
        stray: The same.
        echo: One number, as are the rest.
        heed: One number.
        follow: One for each step of a plan.
        forget: The same, of a planner.
        guess: One number.
    """

    def __init__(self, seed: int, digest: str, num_units: int) -> None:
        words = [int(digest[place : place + 8], 16) for place in range(0, len(digest), 8)]
        rng = np.random.default_rng(np.random.SeedSequence([*words, seed]))
        call: list[float] = rng.random(7).tolist()
        self.echo, self.heed, self.guess = call[:3]
        self.follow, self.forget = call[3:5], call[5:7]
        units: list[list[float]] = rng.random((num_units, 3)).tolist()
        self.miss, self.misread, self.stray = ([unit[place] for unit in units] for place in range(3))
