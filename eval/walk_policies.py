"""Several policies on the same tasks, one after the other, each in a folder of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from provgym.eval.walk import evaluate
from provgym.eval.walk_config import WalkEvalConfig
from provgym.eval.walk_result import WalkEvalResult
from provgym.generators.backends import load_policy
from provgym.generators.policy_kinds import PolicySpec, shown_name
from provgym.generators.policy_spec import fingerprint_of

Watch = Callable[[str, int, int], None]
"""Called with (policy's name, episodes this process has played, episodes it has to play)."""


def evaluate_policies(
    config: WalkEvalConfig,
    specs: Sequence[PolicySpec],
    folder: Path,
    *,
    parquet: bool = False,
    on_progress: Watch | None = None,
) -> dict[str, WalkEvalResult]:
    """Load and evaluate policies; a policy's files go to ``folder/NAME``.

    Args:
        config: What to play.
        specs: Whom to let play; a policy is loaded when its turn comes and let go afterwards.
        folder: Of all these evaluations.
        parquet: Also write ``episodes.parquet``.
        on_progress: Told after each episode.

    Returns:
        Policy name to result, in the order of ``specs``.

    Raises:
        ValueError: If two policies have one name, or ``folder`` holds another evaluation.
        FileNotFoundError: If a model or adapter is missing.
    """
    refuse_same_names([shown_name(spec) for spec in specs], "policies")
    results: dict[str, WalkEvalResult] = {}
    for spec in specs:
        policy = load_policy(spec)
        name = policy.name

        def watch(done: int, total: int, name: str = name) -> None:
            if on_progress is not None:
                on_progress(name, done, total)

        results[name] = evaluate(
            config,
            policy,
            folder / folder_name(name),
            fingerprint=fingerprint_of(spec),
            parquet=parquet,
            on_progress=watch,
        )
    return results


def folder_name(name: str) -> str:
    """Return the name of the folder for a policy's files.

    Example:
        >>> folder_name("owner/model: v2")
        'owner_model_v2'
    """
    return re.sub(r"[^\w.@+-]+", "_", name)


def refuse_same_names(names: Sequence[str], kind: str) -> None:
    """Refuse policies that would share a name or a folder, before the first of them plays.

    Args:
        names: As tables will show them.
        kind: What they are, in the plural, for the message.

    Raises:
        ValueError: If two would; the message names them.
    """
    seen: dict[str, str] = {}
    for name in names:
        place = folder_name(name)
        if place in seen:
            called = repr(name) if seen[place] == name else f"{seen[place]!r} and {name!r}, one folder for both"
            raise ValueError(f"two {kind} are called {called}; evaluate them apart, or copy one to another folder")
        seen[place] = name
