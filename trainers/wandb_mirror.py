"""W&B's copy of what a run logs, complete after any kill.

W&B writes its offline file in large pieces: of a segment that was killed, hardly anything is on disk. So a segment
counts once it has ended cleanly. One that has not is set aside (``wandb/unfinished-...``), and the next one begins by
logging its steps again from ``metrics.jsonl``. ``wandb_run.json`` remembers how far W&B has come.
"""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from provgym.eval.run_files import read_json_file, write_json_atomic
from provgym.trainers.papt_config import TrackingConfig

STEP_KEY = "step"
IDENTITY_FILE = "wandb_run.json"
_FOLDER = "offline-run-"


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Who a run is in W&B, and how far W&B's copy of it goes.

    Attributes:
        run_id: W&B run id, the same in all segments.
        mode: ``offline``, ``online`` or ``disabled``.
        training_hash: Of the configuration.
        mirrored_through: Last step in segments that ended cleanly; -1 if none.
        open_segment: Folder of the segment that is being written, or was when the run was killed.
    """

    run_id: str
    mode: str
    training_hash: str
    mirrored_through: int = -1
    open_segment: str | None = None

    def save(self, run_dir: Path) -> None:
        """Write it in one step."""
        write_json_atomic(run_dir / IDENTITY_FILE, asdict(self))


def identify(run_dir: Path, training_hash: str, mode: str, run_id: str | None) -> tuple[RunIdentity, bool]:
    """Return who the run is, and whether it was begun before.

    Args:
        run_dir: The run's folder; it may be a moved one.
        training_hash: Of the configuration. An earlier start under another one was another run.
        mode: W&B mode of this segment.
        run_id: Of the checkpoint that the run resumes from; None when it starts from the beginning, which it also
            does after a kill before its first checkpoint.

    Raises:
        BadFileError: If the file is damaged.
    """
    path = run_dir / IDENTITY_FILE
    if path.is_file():
        way_out = "remove it: a checkpoint knows the run's id too, and W&B's copy is written again from the first step"
        known = read_json_file(path, lambda d: RunIdentity(**d), expected="who the run is in W&B", way_out=way_out)
        if known.run_id == run_id or (run_id is None and known.training_hash == training_hash):
            return replace(known, mode=mode, training_hash=training_hash), True
    return RunIdentity(run_id or secrets.token_hex(4), mode, training_hash), run_id is not None


class WandbMirror:
    """One segment of a run in W&B.

    Args:
        run_dir: The run's folder.
        config: W&B mode and project.
        resolved: The run's resolved configuration, shown in W&B.
        identity: Who the run is.
        rows: What is on file so far, in order of steps.
    """

    def __init__(
        self,
        run_dir: Path,
        config: TrackingConfig,
        resolved: Mapping[str, Any],
        identity: RunIdentity,
        rows: Sequence[Mapping[str, Any]],
    ) -> None:
        self._run_dir = run_dir
        if identity.open_segment is not None:
            _set_aside(run_dir / "wandb" / identity.open_segment)
        self._run = _start(run_dir, config, resolved, identity.run_id)
        if config.wandb == "online":
            # The server may have more than the segments that ended cleanly.
            known = self._run.summary.get(STEP_KEY)
            identity = replace(identity, mirrored_through=max(identity.mirrored_through, int(known or -1)))
        self.mirrored_through = identity.mirrored_through
        folder = Path(str(self._run.dir)).parent.name
        self._identity = replace(identity, open_segment=folder if folder.startswith(_FOLDER) else None)
        self._identity.save(run_dir)
        self._last_step = -1
        for row in rows:
            if row[STEP_KEY] > self.mirrored_through:
                self.log(row)

    def log(self, row: Mapping[str, Any]) -> None:
        """Log one row of ``metrics.jsonl``; figures alone, without those that are null."""
        self._run.log({k: v for k, v in row.items() if isinstance(v, int | float)})
        self._last_step = int(row[STEP_KEY])

    def log_table(self, step: int, name: str, columns: Sequence[str], data: Sequence[Sequence[Any]]) -> None:
        """Log a table, unless it is in W&B already."""
        import wandb

        if step > self.mirrored_through:
            self._run.log({name: wandb.Table(columns=list(columns), data=[list(r) for r in data]), STEP_KEY: step})

    def log_pictures(self, step: int, pictures: Mapping[str, Path]) -> None:
        """Log picture files, unless they are in W&B already."""
        import wandb

        if step > self.mirrored_through:
            self._run.log({**{name: wandb.Image(str(path)) for name, path in pictures.items()}, STEP_KEY: step})

    def finish(self, *, failed: bool) -> None:
        """End the segment; from now on its steps count as being in W&B."""
        self._run.finish(exit_code=int(failed))
        through = max(self.mirrored_through, self._last_step)
        replace(self._identity, mirrored_through=through, open_segment=None).save(self._run_dir)


def open_mirror(
    run_dir: Path,
    config: TrackingConfig,
    resolved: Mapping[str, Any],
    identity: RunIdentity,
    rows: Sequence[Mapping[str, Any]],
) -> WandbMirror | None:
    """Begin a segment in W&B; None if W&B is disabled, or not installed, which one warning says."""
    if config.wandb == "disabled":
        return None
    try:
        import wandb  # noqa: F401 - whether it is there
    except ImportError as error:
        warnings.warn(
            f"Weights & Biases can't be imported ({error}): the run is logged to {run_dir / 'metrics.jsonl'} only. "
            "`pip install wandb` adds it, tracking.wandb: disabled silences this",
            stacklevel=3,
        )
        return None
    return WandbMirror(run_dir, config, resolved, identity, rows)


def _start(run_dir: Path, config: TrackingConfig, resolved: Mapping[str, Any], run_id: str) -> Any:
    import wandb

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


def _set_aside(folder: Path) -> None:
    """Rename an unfinished segment, so that ``wandb sync`` and its offline pattern pass it by; nothing is deleted."""
    if folder.is_dir():
        folder.rename(folder.with_name(f"unfinished-{folder.name}"))
