"""What a study is told: arms as sets of changes to one PAPT configuration, seeds, and axes that cross every arm."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from provgym.trainers.config_file import ConfigError, Given, load_config
from provgym.trainers.papt_config import MAX_SEED, Strict

NAME = r"^\w[\w.-]*$"
Point = tuple[tuple[str, Any], ...]
"""One point of the axes: (key, value) of each; empty without axes."""


class StudyConfig(Strict):
    """A study: every arm under every seed, at every point of the axes.

    Attributes:
        name: Folder below ``runs_dir/studies``.
        base: YAML file of the PAPT run that the arms change, seen from the study's own file.
        seeds: Training seeds, fixed beforehand; at least two.
        reference: The arm that every other one is compared with.
        arms: Name to changes: dotted keys of a PAPT run, as on the command line, to values that replace what stands
            there; ``phases.*.variant`` changes every phase. An arm without changes is the base itself.
        axes: Further keys, each with values that every arm is run at, such as ``walk.mitigation: [M0, M1]``.
        runs_dir: Where runs go.
        allow_different_budgets: Whether arms may train on different numbers of steps or episodes.
    """

    name: str = Field(pattern=NAME)
    base: Path
    seeds: tuple[int, ...] = (42, 43, 44, 45, 46)
    reference: str
    arms: dict[str, dict[str, Any]] = Field(min_length=1)
    axes: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    runs_dir: Path = Path("runs")
    allow_different_budgets: bool = False

    @field_validator("arms", mode="before")
    @classmethod
    def _no_changes_written_as_nothing(cls, value: Any) -> Any:
        # `full:` with nothing behind it is YAML's null; it can only mean the base itself.
        return {k: {} if v is None else v for k, v in value.items()} if isinstance(value, dict) else value

    @field_validator("seeds")
    @classmethod
    def _several_distinct_seeds(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(value) < 2 or len(set(value)) < len(value) or min(value) < 0 or max(value) > MAX_SEED:
            raise ValueError(f"seeds {list(value)} must be at least two distinct whole numbers from 0 to {MAX_SEED}")
        return value

    @model_validator(mode="after")
    def _arms_and_axes_are_possible(self) -> Self:
        for arm in self.arms:
            if not re.fullmatch(r"\w[\w.-]*", arm, re.ASCII):
                raise ValueError(f"arm {arm!r} must be made of letters, digits, '_', '-' and '.': it names folders")
            if arm in ("start", "ceiling"):
                raise ValueError(f"arm {arm!r} would stand for the {arm} in every table; choose another name")
        if self.reference not in self.arms:
            raise ValueError(f"reference {self.reference!r} is none of the arms {list(self.arms)}")
        for key, values in self.axes.items():
            if not values or any(a == b for a, b in itertools.combinations(values, 2)):
                raise ValueError(f"axis {key!r} has the values {list(values)}; give at least one, each once")
            arms = [arm for arm, changes in self.arms.items() if any(_overlap(key, other) for other in changes)]
            if arms:
                raise ValueError(f"axis {key!r} is also set by the arms {arms}; only one of the two can have a say")
        return self

    @property
    def folder(self) -> Path:
        """Where the study's own files go."""
        return self.runs_dir / "studies" / self.name

    def points(self) -> list[Point]:
        """Return every combination of the axes' values, the last axis fastest; one empty point without axes."""
        keys = list(self.axes)
        return [tuple(zip(keys, values, strict=True)) for values in itertools.product(*self.axes.values())]


def load_study(path: Path, *, seeds: Sequence[int] = (), arms: Sequence[str] = ()) -> StudyConfig:
    """Read a study, or a part of it.

    Args:
        path: YAML file.
        seeds: In place of the file's.
        arms: Only these; the reference is always among them, so that there is something to compare with.

    Raises:
        ConfigError: If the file is refused, or an arm is unknown; the message names file, key and found value.
    """
    overrides = ["--seeds", str(list(seeds))] if seeds else []
    study = load_config(StudyConfig, path, overrides)
    for arm in arms:
        if arm not in study.arms:
            near = difflib.get_close_matches(arm, study.arms, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(study.arms)}"
            raise ConfigError(f"--arms {arm}: {path} has no such arm; {hint}")
    kept = {name: changes for name, changes in study.arms.items() if not arms or name in (*arms, study.reference)}
    base = study.base if study.base.is_absolute() else path.parent / study.base
    return study.model_copy(update={"arms": kept, "base": base})


def given_by(study: StudyConfig, path: Path, arm: str, point: Point) -> list[Given]:
    """Return what an arm at a point of the axes changes, each with who says so."""
    changes: Mapping[str, Any] = study.arms[arm]
    return [
        *(Given(key, value, f"{path}, arm {arm!r}") for key, value in changes.items()),
        *(Given(key, value, f"{path}, axis {key!r}") for key, value in point),
    ]


def _overlap(key: str, other: str) -> bool:
    """Whether one of two dotted keys lies in, or is, the other."""
    pairs = list(zip(key.split("."), other.split("."), strict=False))
    return all(a == b or "*" in (a, b) for a, b in pairs)
