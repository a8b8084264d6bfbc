"""What a K-GAT run left for an evaluation, all of one training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from provgym.eval.run_files import read_json_file

_SETTINGS_FILE = "generator.json"  # as kgat_folder names it, which would load torch


def parts_of_run(run: Path) -> dict[str, Path]:
    """Return the generators and the fixed team that a run left, by the evaluation's field.

    A run whose own generator is not there has not finished: it has none of them.

    Args:
        run: Its folder.

    Raises:
        ValueError: If they are of different trainings, or a file is damaged.
    """
    own = run / "generator" / _SETTINGS_FILE
    if not own.is_file():
        return {}
    files = {"query_generator": run / "query_generator" / _SETTINGS_FILE, "fixed_team": run / "fixed_team.json"}
    there = {name: file for name, file in files.items() if file.is_file()}
    wanted = _training_of(own)
    for file in there.values():
        found = _training_of(file)
        if wanted is not None and found is not None and found != wanted:
            raise ValueError(
                f"{file}: found training {found!r}, expected {wanted!r}, that of {own}: it is no control of this "
                "generator; give the run's command again, which makes it anew, or remove it"
            )
    return {"generator": own.parent} | {
        name: file.parent if file.name == _SETTINGS_FILE else file for name, file in there.items()
    }


def _training_of(file: Path) -> str | None:
    """Return the hash of the training that a file notes; None if it notes none."""

    def build(data: dict[str, Any]) -> str | None:
        found = (data["about"] if file.name == _SETTINGS_FILE else data).get("training_hash")
        return None if found is None else str(found)

    way_out = "remove it, and the run's command makes it anew"
    return read_json_file(file, build, expected="a file that a K-GAT run left", way_out=way_out)
