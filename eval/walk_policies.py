"""Several policies on the same tasks, one after the other, each in a folder of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from provgym.eval.walk import evaluate
from provgym.eval.walk_config import WalkEvalConfig
from provgym.eval.walk_result import WalkEvalResult
from provgym.generators.backends import load_policy
from provgym.generators.policy_kinds import PolicySpec
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
    results: dict[str, WalkEvalResult] = {}
    for spec in specs:
        policy = load_policy(spec)
        name = policy.name
        if name in results:
            raise ValueError(f"two policies are called {name!r}; evaluate them apart, or copy one to another folder")

        def watch(done: int, total: int, name: str = name) -> None:
            if on_progress is not None:
                on_progress(name, done, total)

        place = folder / re.sub(r"[^\w.@+-]+", "_", name)
        results[name] = evaluate(
            config, policy, place, fingerprint=fingerprint_of(spec), parquet=parquet, on_progress=watch
        )
    return results
