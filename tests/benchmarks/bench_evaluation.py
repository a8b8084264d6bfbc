"""Evaluation episodes per second: the walk harness as ``provgym eval walk`` calls it, and the same one by one.

Run by hand: ``python -m tests.benchmarks.bench_evaluation``; ``make bench`` calls :func:`measure`.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.bench_rollout import speedup_figure
from tests.benchmarks.trl_tool_loop import Stopwatch

from provgym.eval.episode_store import read_episodes
from provgym.eval.walk_config import WalkEvalConfig
from provgym.eval.walk_play import EPISODES_FILE
from provgym.eval.walk_policies import evaluate_policies
from provgym.generators.policy_spec import PolicyOptions, policy_spec

CLAIMS, REPEATS = 20, 5


def play(claims: int, max_rows: int | None, folder: Path) -> tuple[float, list[Any]]:
    """Evaluate the shipped tiny policy; return the seconds and what every episode did.

    Args:
        claims: Base claims of the test split; each is played under the five conditions and once under a general one.
        max_rows: Episodes played at once; None takes what the command takes.
        folder: Where the evaluation leaves its files, all of them.
    """
    config = WalkEvalConfig(limit=claims)
    options = PolicyOptions() if max_rows is None else PolicyOptions(max_rows=max_rows)
    stopwatch = Stopwatch()
    evaluate_policies(config, [policy_spec("tiny", options)], folder)
    elapsed = stopwatch.read()
    (place,) = folder.glob(f"*/{EPISODES_FILE}")
    return elapsed.seconds, [[turn.action for turn in episode.turns] for episode in read_episodes(place)]


def measure(
    *, claims: int = CLAIMS, repeats: int = REPEATS, on_play: Callable[[str, float], None] | None = None
) -> dict[str, Any]:
    """Play at once and one by one, in turns; both must act alike.

    Returns:
        ``episodes_per_s`` with median, smallest and largest over the repeats, ``speedup_vs_one_by_one`` likewise
        (paired), ``episodes``.

    Raises:
        AssertionError: If an episode went another way when it was played alone.
    """
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {"at_once": [], "one_by_one": []}
    acted: list[Any] = []
    for _ in range(repeats):
        for name, max_rows in (("at_once", None), ("one_by_one", 1)):
            with tempfile.TemporaryDirectory(prefix="provgym-bench-") as folder:
                took, actions = play(claims, max_rows, Path(folder))
            acted = acted or actions
            assert actions == acted, "episodes differ between plays at once and one by one"
            seconds[name].append(took)
            if on_play is not None:
                on_play(name, took)
    rates = [len(acted) / took for took in seconds["at_once"]]
    rate = {"value": statistics.median(rates), "low": min(rates), "high": max(rates), "n": len(rates)}
    speedup = speedup_figure(seconds["at_once"], seconds["one_by_one"])
    return {"episodes_per_s": rate, "speedup_vs_one_by_one": speedup, "episodes": len(acted), "seconds": seconds}


if __name__ == "__main__":
    print(json.dumps(measure(on_play=print), indent=2))
