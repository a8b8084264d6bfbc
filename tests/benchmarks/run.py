"""Measure everything, print one table, and write ``runs/bench/summary.json``: what ``make bench`` runs.

``python tests/benchmarks/run.py --only rollout-tiny env`` measures some parts; figures of other parts keep what the
last run of them left in the summary. Parts that need SmolLM2 are skipped, by name, where its package is not
installed.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# One thread, no network: set before torch is imported.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")
REPOSITORY = Path(__file__).resolve().parents[2]
if str(REPOSITORY) not in sys.path:  # run as a script, not as a module
    sys.path.insert(0, str(REPOSITORY))

import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from tests.benchmarks.bench_envs import measure as measure_envs  # noqa: E402

from provgym.eval.run_files import write_json_atomic  # noqa: E402
from provgym.generators.smollm2 import find_gguf  # noqa: E402

Figure = float | dict[str, float] | None

FIGURES: Mapping[str, tuple[str, str]] = {
    # figure -> (part that measures it, what is good)
    "rollout_speedup_vs_trl": ("rollout-tiny", ">= 5"),
    "rollout_speedup_vs_trl_smollm2": ("rollout-smollm2", "higher"),
    "papt_overhead_share": ("overhead-tiny", "lower"),
    "papt_overhead_share_smollm2": ("overhead-smollm2", "<= 0.10"),
    "env_steps_vs_cartpole": ("env", ">= 0.5"),
    "env_step_growth": ("env", "<= 2"),
    "evaluation_episodes_per_s": ("evaluation", "higher"),
    "evaluation_speedup_vs_one_by_one": ("evaluation", "higher"),
    "topology_share_of_serial": ("topology", "<= 0.367"),
    "shared_prefix_speedup": ("prefix-tiny", "higher"),
    "shared_prefix_speedup_long": ("prefix-long", ">= 2"),
    "shared_prefix_share_of_bound": ("prefix-long", ">= 0.8"),
    "kgat_decode_speedup": ("kgat-decode", ">= 20"),
    "mining_calls_ratio": ("mining-calls", "<= 0.333"),
    "mining_calls_ratio_default": ("mining-calls", "<= 0.333"),
}
MINED = {"source": "", "default": "_default"}
"""Budget of mining -> how its figure's name ends."""
PARTS = tuple(dict.fromkeys(part for part, _ in FIGURES.values()))
VERSIONS = ("provgym", "torch", "transformers", "trl", "peft", "accelerate", "gymnasium", "numpy")
SMOLLM2_STEPS = 8


class Report:
    """What was measured so far, in the console and in the summary."""

    def __init__(
        self, folder: Path, console: Console, smollm2_steps: int, start: Path | None, adapter: Path | None
    ) -> None:
        self.folder, self.console = folder, console
        self._smollm2_steps, self._start, self._adapter = smollm2_steps, start, adapter

    def measure(self, part: str) -> tuple[dict[str, Figure], dict[str, Any]]:
        """Return a part's figures and the details behind them."""
        kind, _, policy = part.partition("-")
        if kind == "env":
            found = measure_envs()
            return {name: found[name] for name in ("env_steps_vs_cartpole", "env_step_growth")}, dict(found)
        suffix = "" if policy == "tiny" else f"_{policy}"
        if kind == "topology":
            from tests.benchmarks.bench_topology_runtime import measure as measure_topology  # imports TRL

            found = measure_topology(on_run=self._on_play)
            return {"topology_share_of_serial": found["share_of_serial"]}, found
        if kind == "evaluation":
            from tests.benchmarks.bench_evaluation import measure as measure_evaluation  # imports TRL

            found = measure_evaluation(on_play=self._on_play)
            return {f"evaluation_{name}": found[name] for name in ("episodes_per_s", "speedup_vs_one_by_one")}, found
        if kind == "prefix":
            from tests.benchmarks.bench_shared_prefix import measure as measure_prefix  # imports TRL

            found = measure_prefix(policy, on_pass=self._on_play)
            share = {"shared_prefix_share_of_bound": found["share_of_bound"]} if policy == "long" else {}
            return {f"shared_prefix_speedup{suffix}": found["speedup"], **share}, found
        if part == "kgat-decode":
            from tests.benchmarks.bench_kgat_decode import measure as measure_decode

            found = measure_decode(on_play=self._on_play)
            return {"kgat_decode_speedup": found["speedup"]}, found
        if part == "mining-calls":
            from tests.benchmarks.bench_mining_calls import measure as measure_mining  # imports TRL

            mined = measure_mining(on_mined=lambda name, calls: self.console.print(f"  {name}: {calls} calls"))
            return {f"mining_calls_ratio{tail}": mined[budget]["ratio"] for budget, tail in MINED.items()}, mined
        if kind == "rollout":
            from tests.benchmarks.bench_rollout import measure as measure_rollout  # imports TRL

            found = measure_rollout(policy, self.folder / "policies", on_step=self._on_step, on_play=self._on_play)
            return {f"rollout_speedup_vs_trl{suffix}": found["speedup"]}, found
        from tests.benchmarks.bench_overhead import measure as measure_overhead

        steps = 30 if policy == "tiny" else self._smollm2_steps
        begun = {"start": self._start} if policy == "tiny" else {"adapter": self._adapter}
        found = measure_overhead(policy, steps=steps, **begun)
        return {f"papt_overhead_share{suffix}": found["share"]}, found

    def _on_step(self, step: int, loss: float) -> None:
        if step % 10 == 0 or step == 1:
            self.console.print(f"  cloning the policy for this benchmark: step {step}, loss {loss:.3f}")

    def _on_play(self, name: str, seconds: float) -> None:
        self.console.print(f"  {name.replace('_', ' ')}: {seconds:.2f} s")


def reason_to_skip(part: str, find_package: Callable[[], Path] = find_gguf) -> str | None:
    """Return why a part can't be measured here, or None."""
    if not part.endswith("smollm2"):
        return None
    try:
        find_package()
    except ModuleNotFoundError as error:
        return str(error)
    return None


def machine() -> dict[str, Any]:
    """Return where and with what the figures were measured."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in VERSIONS},
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def read_summary(path: Path) -> dict[str, Any]:
    """Return the figures that an earlier run left, all null where there was none."""
    empty: dict[str, Any] = {**dict.fromkeys(FIGURES), "skipped": {}, "parts": {}}
    if not path.is_file():
        return empty
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return empty | found


def figures_table(summary: Mapping[str, Any]) -> Table:
    """Return one row per figure: value, interval, n, what is good, and why it is missing."""
    table = Table(title="make bench: one thread; low and high are the interval that docs/benchmarks.md names")
    for column in ("figure", "value", "low", "high", "n", "aim", "note"):
        table.add_column(column, justify="left" if column in ("figure", "aim", "note") else "right")
    for name, (part, aim) in FIGURES.items():
        figure = summary[name]
        found = figure if isinstance(figure, dict) else {"value": figure}
        cells = [_cell(found.get(key)) for key in ("value", "low", "high")]
        note = summary["skipped"].get(part, "" if figure is not None else "not measured yet")
        table.add_row(name, *cells, f"{found['n']:.0f}" if "n" in found else "", aim, note)
    return table


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the wanted parts; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to measure")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "runs" / "bench", help="folder of summary.json")
    parser.add_argument("--smollm2-steps", type=int, default=SMOLLM2_STEPS, help="PAPT steps measured for SmolLM2")
    parser.add_argument("--smollm2-adapter", type=Path, help="warm-started adapter that SmolLM2's steps go on from")
    parser.add_argument("--start", type=Path, help="warm-started folder for overhead-tiny; default: the shipped one")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    console = Console()
    report = Report(options.out, console, options.smollm2_steps, options.start, options.smollm2_adapter)
    path = options.out / "summary.json"
    summary = read_summary(path)
    for part in options.only:
        reason = reason_to_skip(part)
        summary["skipped"].pop(part, None)
        if reason is not None:
            console.print(f"[bold]{part}[/]: skipped: {reason}")
            summary["skipped"][part] = reason
            summary |= {name: None for name, (owner, _) in FIGURES.items() if owner == part}
        else:
            console.print(f"[bold]{part}[/]")
            figures, details = report.measure(part)
            summary |= figures
            summary["parts"][part] = {**details, "machine": machine()}
        summary["machine"] = machine()
        write_json_atomic(path, summary)  # after each part: an interrupted run keeps what it measured
    console.print(figures_table(summary))
    console.print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
