"""What a run logs: one JSON line per step on disk, and the same in Weights & Biases.

The file is the record; W&B mirrors it, see :mod:`provgym.trainers.wandb_mirror`. After a resume nothing is logged
twice: steps that the file already holds are replayed identically by the exact resume and skipped. Offline, one W&B run
id has one folder per segment under ``runs/NAME/wandb``; ``wandb sync --append`` joins them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from provgym.generators.episode import Episode
from provgym.generators.json_lines import BadLine, atomic_file, dump_json_line, read_json_lines
from provgym.trainers.papt_config import TrackingConfig
from provgym.trainers.wandb_mirror import STEP_KEY, WandbMirror, identify, open_mirror

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
        identity, is_known = identify(run_dir, training_hash, config.wandb, run_id)
        self.run_id = identity.run_id
        self._path = run_dir / "metrics.jsonl"
        self._is_main = is_main
        self._last_step = -1
        self._mirror: WandbMirror | None = None
        if not is_main:
            return
        run_dir.mkdir(parents=True, exist_ok=True)
        if not is_known:
            self._path.unlink(missing_ok=True)
        rows = _repaired_rows(self._path)
        self._last_step = max((int(row[STEP_KEY]) for row in rows), default=-1)
        identity.save(run_dir)
        self._mirror = open_mirror(run_dir, config, resolved, identity, rows)

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
        if self._mirror is not None:
            self._mirror.log(row)
        return True

    def log_episodes(self, step: int, episodes: Sequence[Episode], rewards: Sequence[float]) -> None:
        """Log whole episodes, with the provenance of every step, as a W&B table, unless they are there already."""
        if self._mirror is not None:
            rows = [_episode_row(step, e, r) for e, r in zip(episodes, rewards, strict=True)]
            self._mirror.log_table(step, "episodes", EPISODE_COLUMNS, rows)

    def log_pictures(self, step: int, pictures: Mapping[str, Path]) -> None:
        """Log picture files in W&B under their names, unless they are there already."""
        if self._mirror is not None:
            self._mirror.log_pictures(step, pictures)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._mirror is not None:
            self._mirror.finish(failed=kind is not None)


def _repaired_rows(path: Path) -> list[dict[str, Any]]:
    """Return what is on file; a last line that a kill left half-written is cut away.

    Raises:
        ValueError: If a line other than the last is damaged, or a line has no step.
    """
    if not path.is_file():
        return []
    lines = list(read_json_lines(path))
    bad = [line for line in lines if isinstance(line, BadLine)]
    if bad and bad != lines[-1:]:
        raise ValueError(f"{path}, line {bad[0].line}: {bad[0].problem}; the file was changed by hand: remove it")
    rows = [line.data for line in lines if not isinstance(line, BadLine)]
    for line in lines:
        if not isinstance(line, BadLine) and not isinstance(line.data.get(STEP_KEY), int):
            found = line.data.get(STEP_KEY, "nothing")
            raise ValueError(
                f"{path}, line {line.line}: found {found!r} as {STEP_KEY!r}, expected a whole number; the file was "
                "changed by hand: remove it"
            )
    if bad or not path.read_bytes().endswith(b"\n"):  # the next line must not be glued to a whole last one
        with atomic_file(path) as file:
            file.writelines(dump_json_line(row) for row in rows)
    return rows


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
