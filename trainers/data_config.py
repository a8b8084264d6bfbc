"""What a PAPT run is told of its claims and of how they are walked, with where each default comes from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from provgym.envs.presentation import Mitigation, MovesStyle, PresentationConfig
from provgym.envs.walk_names import AliasOrder, SourceLabels
from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL, parse_condition
from provgym.trainers.strict_config import Strict


class DataConfig(Strict):
    """What is walked.

    Attributes:
        claims: A claim file (JSONL) of one's own; None generates GraphEcho-Syn.
        seed: GraphEcho-Syn's seed; the claims are the same for every training seed.
        train_claims: Base claims of the train split (500 in the source).
        dev_claims: Base claims of the dev split (100).
        test_claims: Base claims of the test split (200).
        conditions: Trained on in equal parts (the source: C1, C2, C3, C4, C2R).
        general_share: Share of training instances with a general condition (ours; the source has none).
        adversarial_share: Share of these in which the majority over paths contradicts the one over sources (ours); None
            takes them as they fall. Evaluations draw as ever.
    """

    claims: Path | None = None
    seed: int = Field(default=42, ge=0)
    train_claims: int = Field(default=500, ge=1)
    dev_claims: int = Field(default=100, ge=1)
    test_claims: int = Field(default=200, ge=1)
    conditions: tuple[str, ...] = CONFLICT_CONDITIONS
    general_share: float = Field(default=0.0, ge=0.0, le=1.0)
    adversarial_share: float | None = Field(default=None, ge=0.0, le=1.0)

    @model_validator(mode="after")
    def _conditions_are_known(self) -> Self:
        if not self.conditions and self.general_share < 1.0:
            raise ValueError("conditions is empty; name at least one, or set general_share to 1")
        for name in self.conditions:
            if name != GENERAL:
                parse_condition(name)
        return self

    @model_validator(mode="after")
    def _adversarial_share_has_an_effect(self) -> Self:
        if self.adversarial_share is not None and (self.claims is not None or not self.general_share):
            raise ValueError(
                f"adversarial_share={self.adversarial_share} is a share of generated general conditions, and there are "
                f"none: claims={self.claims}, general_share={self.general_share}; leave it out, or set general_share "
                "above 0 without a claim file"
            )
        return self


class PresentationChoice(Strict):
    """One way to show a walk in training; what is left out is as in ``walk``.

    Attributes:
        mitigation: See :class:`~provgym.envs.presentation.PresentationConfig`.
        source_labels: See there.
        preview_ids: See there.
        moves: See there.
        aliases: See there.
    """

    mitigation: Mitigation | None = None
    source_labels: SourceLabels | None = None
    preview_ids: Literal["shown", "visited"] | None = None
    moves: MovesStyle | None = None
    aliases: AliasOrder | None = None


class WalkConfig(Strict):
    """How claims are walked in training.

    Attributes:
        budgets: Walk budgets, drawn per instance (6 in the source).
        mitigation: M1 in training, ours.
        source_labels: See :class:`~provgym.envs.presentation.PresentationConfig`.
        preview_ids: See there.
        moves: See there.
        presentations: Ways to show a walk, drawn per instance with equal chances in training (ours); ``{}`` is the
            plain one, an entry given twice is drawn twice as often. Empty: the plain one, as in every evaluation.
    """

    budgets: tuple[int, ...] = (6,)
    mitigation: Mitigation = "M1"
    source_labels: SourceLabels = "short"
    preview_ids: Literal["shown", "visited"] = "shown"
    moves: MovesStyle = "labelled"
    presentations: tuple[PresentationChoice, ...] = ()

    @model_validator(mode="after")
    def _budgets_are_possible(self) -> Self:
        if not self.budgets or any(not 1 <= b <= 10_000 for b in self.budgets):
            raise ValueError(f"budgets {list(self.budgets)} must hold numbers of walks from 1 to 10000")
        return self

    def presentation(self) -> PresentationConfig:
        """Return the plain presentation: that of every evaluation, and of training unless others are drawn."""
        return PresentationConfig(self.mitigation, self.source_labels, self.preview_ids, self.moves)

    def training_presentations(self) -> tuple[PresentationConfig, ...]:
        """Return what training draws from, at least one."""
        plain = self.presentation()
        return tuple(
            dataclasses.replace(plain, **choice.model_dump(exclude_none=True)) for choice in self.presentations
        ) or (plain,)
