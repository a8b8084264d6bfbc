"""What every training run is told, whatever it trains: a name, a place, a seed."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from provgym.trainers.strict_config import Strict

MAX_SEED = 2**32 - 1
"""Largest training seed: NumPy's generator, which transformers seeds, takes no larger one."""


class RunConfig(Strict):
    """The base of a training run's configuration.

    Attributes:
        trainer: Module that trains such a run: ``python -m TRAINER --config FILE`` starts it, and its ``training_hash``
            tells trainings apart.
        name: Folder below ``runs_dir``.
        runs_dir: Folder of all runs.
        seed: Training seed.
    """

    trainer: ClassVar[str]

    name: str = Field(pattern=r"^\w[\w.-]*$")  # `..` with --fresh would remove what lies around the runs
    runs_dir: Path = Path("runs")
    seed: int = Field(default=42, ge=0, le=MAX_SEED)

    @property
    def run_dir(self) -> Path:
        """Where the run's files go."""
        return self.runs_dir / self.name
