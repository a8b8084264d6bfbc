"""Topologies decoded per second: a batch of 256 contexts at once against one by one.

Run by hand: ``python -m tests.benchmarks.bench_kgat_decode``; ``make bench`` calls :func:`measure`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tests.benchmarks.bench_rollout import speedup_figure
from tests.benchmarks.trl_tool_loop import Stopwatch

from provgym.envs.topology import Topology
from provgym.generators.kgat_context import ContextBatch, EmbeddedContext
from provgym.generators.kgat_decode import DecodeMode, topology_of
from provgym.generators.kgat_model import KgatModel, KgatSettings
from provgym.generators.seeds import Purpose, derive_seed

CONTEXTS, UNITS, REPEATS = 256, 3, 5


def random_contexts(count: int, units: int, size: int) -> list[EmbeddedContext]:
    """Return contexts of random unit vectors; what they say makes no difference to the time."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(count, units + 1, size)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    return [EmbeddedContext(row[0], row[1:], tuple(f"s{i}" for i in range(units))) for row in rows]


def decode(model: KgatModel, batches: list[tuple[ContextBatch, list[int]]], mode: DecodeMode) -> list[Topology]:
    """Decode batches of (contexts, seeds) one after the other."""
    topology_of.cache_clear()  # neither side may profit from what the other one built
    return [topology for batch, seeds in batches for topology in model.decode(batch, mode=mode, seeds=seeds)]


def measure(
    *,
    contexts: int = CONTEXTS,
    repeats: int = REPEATS,
    on_play: Callable[[str, float], None] | None = None,
) -> dict[str, Any]:
    """Decode at once and one by one, in turns, with the default settings and fresh weights; both must agree.

    Returns:
        ``speedup`` of sampling (paired ratios of seconds, median and extremes over the repeats); for each mode the
        same, ``speedup_in_cpu_time``, which other processes disturb less, ``topologies_per_s``, and ``mean_nodes``,
        the mean number of nodes decoded.

    Raises:
        AssertionError: If a context's topology differs between the two.
    """
    torch.set_num_threads(1)
    model = KgatModel(KgatSettings(), seed=0).eval()
    batch = ContextBatch.of(random_contexts(contexts, UNITS, model.settings.encoder_size))
    seeds = [derive_seed(0, Purpose.SAMPLING, row) for row in range(contexts)]
    ways = {"at_once": [(batch, seeds)], "one_by_one": [(batch.select([r]), [seeds[r]]) for r in range(contexts)]}
    modes: tuple[DecodeMode, ...] = ("greedy", "sample")
    found: dict[str, Any] = {mode: _compare(model, ways, mode, repeats, on_play) for mode in modes}
    return {"speedup": found["sample"]["speedup"], "contexts": contexts, **found}


def _compare(
    model: KgatModel,
    ways: dict[str, list[tuple[ContextBatch, list[int]]]],
    mode: DecodeMode,
    repeats: int,
    on_play: Callable[[str, float], None] | None,
) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in ways}
    expected = decode(model, ways["at_once"], mode)  # warm-up
    for _ in range(repeats):
        for name, batches in ways.items():
            stopwatch = Stopwatch()
            found = decode(model, batches, mode)
            took = stopwatch.read()
            assert found == expected, f"{mode}: topologies differ between decoding at once and one by one"
            seconds[name].append(took.seconds)
            cpu_seconds[name].append(took.cpu_seconds)
            if on_play is not None:
                on_play(f"{mode}_{name}", took.seconds)
    return {
        "speedup": speedup_figure(seconds["at_once"], seconds["one_by_one"]),
        "speedup_in_cpu_time": speedup_figure(cpu_seconds["at_once"], cpu_seconds["one_by_one"]),
        "topologies_per_s": {name: len(expected) / statistics.median(taken) for name, taken in seconds.items()},
        "mean_nodes": statistics.mean(topology.num_nodes for topology in expected),
    }


if __name__ == "__main__":
    print(json.dumps(measure(on_play=print), indent=2))
