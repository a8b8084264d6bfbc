"""What a run logs: one JSON line per step on disk, and the same in Weights & Biases.

The file is the record; W&B mirrors it. After a resume nothing is logged twice: steps that the file already holds are
replayed identically by the exact resume and skipped. Offline, one W&B run id has one folder per segment under
``runs/NAME/wandb``; ``wandb sync --append`` joins them.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from provgym.eval.run_files import write_json_atomic
from provgym.generators.episode import Episode
from provgym.generators.json_lines import BadLine, atomic_file, dump_json_line, read_json_lines
from provgym.trainers.papt_config import TrackingConfig

STEP_KEY = "step"
_IDENTITY = "wandb_run.json"
EPISODE_COLUMNS = (
    "step",
    "instance",
    "condition",
    "ending",
    "verdict",
    "gold",
    "reward",
    "provenance",
    "transcript",
)


class Tracker:
    """Logs a run's figures to ``metrics.jsonl`` and to W&B; only the main process logs.

    Args:
        run_dir: The run's folder.
        config: W&B mode, project and how often.
        resolved: The run's resolved configuration, shown in W&B.
        training_hash: Of the configuration; a run that was killed before its first checkpoint goes on under its id if
            this is still the same.
        run_id: W&B run id of the checkpoint that the run resumes from; None when it starts from the beginning.
        is_main: False makes every call do nothing.
    """

    def __init__(
        self,
        run_dir: Path,
        config: TrackingConfig,
        resolved: Mapping[str, Any],
        *,
        training_hash: str,
        run_id: str | None,
        is_main: bool,
    ) -> None:
        known_id = run_id or _earlier_run_id(run_dir, training_hash)
        self.run_id = known_id or secrets.token_hex(4)
        self._path = run_dir / "metrics.jsonl"
        self._is_main = is_main
        self._last_step = -1
        self._wandb: Any = None
        if not is_main:
            return
        run_dir.mkdir(parents=True, exist_ok=True)
        if known_id is None:
            self._path.unlink(missing_ok=True)
        self._last_step = _last_logged_step(self._path)
        identity = {"run_id": self.run_id, "mode": config.wandb, "training_hash": training_hash}
        write_json_atomic(run_dir / _IDENTITY, identity)
        if config.wandb != "disabled":
            self._wandb = _start_wandb(run_dir, config, resolved, self.run_id)

    def log(self, step: int, values: Mapping[str, float | int | None], *, instances: Sequence[str] = ()) -> bool:
        """Log one step's figures; a step that is already on file is left alone.

        Args:
            step: Optimiser steps done, this one included.
            values: Name to figure; what is not finite is written as null.
            instances: Ids of the instances that the step walked; on file only.

        Returns:
            Whether the step was new.

        Raises:
            OSError: If the disk is full; a note on the error says what to do.
        """
        if not self._is_main or step <= self._last_step:
            return False
        figures = {k: v if v is not None and math.isfinite(v) else None for k, v in values.items()}
        row = {STEP_KEY: step, **figures, **({"instances": list(instances)} if instances else {})}
        try:
            with self._path.open("ab") as file:
                file.write(dump_json_line(row))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            error.add_note(f"{self._path} could not be written; free space, then give the same command again")
            raise
        self._last_step = step
        if self._wandb is not None:
            self._wandb.log({STEP_KEY: step} | {k: v for k, v in figures.items() if v is not None})
        return True

    def log_episodes(self, step: int, episodes: Sequence[Episode], rewards: Sequence[float]) -> None:
        """Log whole episodes, with the provenance of every step, as a W&B table."""
        if not self._is_main or self._wandb is None:
            return
        import wandb

        rows = [_episode_row(step, e, r) for e, r in zip(episodes, rewards, strict=True)]
        self._wandb.log({"episodes": wandb.Table(columns=list(EPISODE_COLUMNS), data=rows), STEP_KEY: step})

    def log_summary(self, values: Mapping[str, Any]) -> None:
        """Put final figures into the W&B run's summary."""
        if self._wandb is not None:
            self._wandb.summary.update(dict(values))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._wandb is not None:
            self._wandb.finish(exit_code=0 if kind is None else 1)


def _start_wandb(run_dir: Path, config: TrackingConfig, resolved: Mapping[str, Any], run_id: str) -> Any:
    """Begin W&B's part; without the package there is none, and one warning says so."""
    try:
        import wandb
    except ImportError as error:
        warnings.warn(
            f"Weights & Biases can't be imported ({error}): the run is logged to {run_dir / 'metrics.jsonl'} only. "
            "`pip install wandb` adds it, tracking.wandb: disabled silences this",
            stacklevel=3,
        )
        return None
    os.environ.setdefault("WANDB_SILENT", "true")
    run = wandb.init(
        id=run_id,
        name=run_dir.name,
        project=config.project,
        dir=str(run_dir),
        mode=config.wandb,
        resume="allow" if config.wandb == "online" else None,
        config=dict(resolved),
        settings=wandb.Settings(x_disable_stats=True, x_disable_meta=True),
    )
    # Our own step is the axis: W&B's counter starts again with every segment.
    run.define_metric(STEP_KEY)
    run.define_metric("*", step_metric=STEP_KEY)
    return run


def _earlier_run_id(run_dir: Path, training_hash: str) -> str | None:
    """Return the id under which an earlier start of this very run logged, if there was one."""
    path = run_dir / _IDENTITY
    if not path.is_file():
        return None
    identity = json.loads(path.read_text(encoding="utf-8"))
    return str(identity["run_id"]) if identity.get("training_hash") == training_hash else None


def _last_logged_step(path: Path) -> int:
    """Return the last step on file, -1 if none; a line that a kill left half-written is cut away.

    Raises:
        ValueError: If a line other than the last is damaged.
    """
    if not path.is_file():
        return -1
    lines = list(read_json_lines(path))
    bad = [line for line in lines if isinstance(line, BadLine)]
    if bad and bad != lines[-1:]:
        raise ValueError(f"{path}, line {bad[0].line}: {bad[0].problem}; the file was changed by hand: remove it")
    rows = [line.data for line in lines if not isinstance(line, BadLine)]
    if bad:
        with atomic_file(path) as file:
            file.writelines(json.dumps(row).encode() + b"\n" for row in rows)
    return max((int(row[STEP_KEY]) for row in rows), default=-1)


def _episode_row(step: int, episode: Episode, reward: float) -> list[Any]:
    judgement = episode.outcome.judgement
    provenance = "\n".join(
        f"{entry['kind']}: {entry['node']}" + (f" (source {entry['source']})" if entry["source"] else "")
        for entry in episode.trace
    )
    transcript = "\n".join(f"{turn.observation}\n> {turn.action}" for turn in episode.turns)
    return [
        step,
        episode.instance_id,
        episode.condition,
        episode.outcome.ending.value,
        None if judgement is None else judgement.verdict.value,
        episode.outcome.gold.value,
        None if math.isnan(reward) else reward,
        provenance,
        transcript,
    ]
