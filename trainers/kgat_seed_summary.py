"""Several training seeds of one K-GAT configuration as one result; reads what finished runs left and plays nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provgym.eval.crossed import CrossedEstimate, over_seeds
from provgym.eval.estimate import Estimate
from provgym.eval.forest_plot import plot_forest
from provgym.eval.table import ResultTable, estimate_cell
from provgym.eval.topology_metrics import HEADLINE
from provgym.eval.topology_names import KGAT
from provgym.eval.topology_plots import plot_accuracy_tokens, plot_adaptation
from provgym.eval.topology_prices import Prices, prices_for, score_text
from provgym.eval.topology_runs import MethodRun
from provgym.eval.topology_seeds import PooledMethods, pool_methods
from provgym.eval.topology_store import read_methods
from provgym.eval.topology_tables import seeds_table

OF_RUNS = ("planted_optimum_ratio", "calls_ratio_cached")
"""Figures that a run has one of: their interval is over seeds alone."""

_KEPT = ("selected_step", "config_hash", "training_hash", "wandb_run_id", "world_size", "seconds_this_segment")
_DRAWN = ("accuracy", "score")


@dataclass(frozen=True)
class KgatSeed:
    """One finished run.

    Attributes:
        seed: Its training seed.
        run_dir: Its folder.
        summary: Its ``summary.json``.
        runs: Method to its runs on the test split.
    """

    seed: int
    run_dir: Path
    summary: Mapping[str, Any]
    runs: Mapping[str, Sequence[MethodRun]]

    @property
    def eval_dir(self) -> Path:
        """Folder of its evaluation."""
        return self.run_dir / "eval"

    def estimate(self, name: str) -> Estimate:
        """Return one of :data:`OF_RUNS`; not available where the run left it out."""
        data = self.summary.get(name)
        return Estimate.missing() if data is None else Estimate.from_json(data)

    def of_kgat(self) -> dict[str, Estimate]:
        """Return metric to the figure of the run's own generator."""
        return {metric: Estimate.from_json(self.summary[KGAT][metric]) for metric in HEADLINE}

    def to_json(self) -> dict[str, Any]:
        """Return what the seeds' ``summary.json`` holds of this run."""
        figures = {name: self.estimate(name).to_json() for name in OF_RUNS}
        own = {metric: found.to_json() for metric, found in self.of_kgat().items()}
        kept = {key: self.summary[key] for key in _KEPT if key in self.summary}
        return {"run_dir": str(self.run_dir), **kept, KGAT: own, **figures}


@dataclass(frozen=True)
class PooledRuns:
    """What runs that differ in their seed alone come to together.

    Attributes:
        seeds: One per training seed, in order.
        methods: Methods over seeds, ``kgat`` the reference.
        prices: What the runs' own scores were made with.
    """

    seeds: tuple[KgatSeed, ...]
    methods: PooledMethods
    prices: Prices

    def of_runs(self) -> dict[str, CrossedEstimate]:
        """Return each of :data:`OF_RUNS` over seeds."""
        return {name: over_seeds([seed.estimate(name).value for seed in self.seeds]) for name in OF_RUNS}

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures has to know."""
        missing = [
            f"{name} is not available: {', '.join(str(seed.run_dir) for seed in self._without(name))} left it out"
            for name in OF_RUNS
            if self._without(name)
        ]
        return (*self.methods.notes, *missing)

    def _without(self, name: str) -> list[KgatSeed]:
        return [seed for seed in self.seeds if not seed.estimate(name).is_available]

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data; what was not measured is null."""
        return {
            **self.methods.to_json(),
            "seeds": [seed.seed for seed in self.seeds],
            "prices": self.prices.model_dump(),
            "notes": list(self.notes),
            **{name: found.to_json() for name, found in self.of_runs().items()},
            "runs": {str(seed.seed): seed.to_json() for seed in self.seeds},
        }

    def tables(self) -> list[ResultTable]:
        """Return the tables in the order in which they are read."""
        first, *rest = self.methods.tables()
        return [self._seed_table(), first, self._run_table(), *rest]

    def _seed_table(self) -> ResultTable:
        rows = [
            (
                f"seed {seed.seed}",
                *(estimate_cell(found) for found in seed.of_kgat().values()),
                *(estimate_cell(seed.estimate(name)) for name in OF_RUNS),
                str(seed.summary.get("selected_step", "-")),
            )
            for seed in self.seeds
        ]
        header = ("run", *HEADLINE, *(name.replace("_", " ") for name in OF_RUNS), "chosen step")
        caption = f"{KGAT} of each seed, its own 95 % intervals over base claims; n below each figure."
        return ResultTable("Every training seed", header, tuple(rows), caption)

    def _run_table(self) -> ResultTable:
        shown = {name.replace("_", " "): found for name, found in self.of_runs().items()}
        table = seeds_table({KGAT: shown}, title="Planted optimum and cost of mining")
        caption = (
            "t intervals over training seeds; below: each seed's own figure. Planted optimum ratio: (trained - random) "
            "/ (best - random) by exhaustive scores. Calls ratio cached: node calls paid in mining over those asked "
            "for."
        )
        return ResultTable(table.title, table.header, table.rows, caption)

    def headline(self) -> str:
        """Say in one line what was measured."""
        runs = next(iter(self.seeds[0].runs.values()))
        claims = len({run.base_id for run in runs})
        numbers = ", ".join(str(seed.seed) for seed in self.seeds)
        return (
            f"{len(self.seeds)} training seeds ({numbers}), {len(runs)} questions of {claims} base claims each; "
            f"{score_text(self.prices.rule())}."
        )


def read_run(run_dir: Path, seed: int) -> KgatSeed:
    """Read a finished run.

    Raises:
        FileNotFoundError: If the run left no summary, or no runs of its evaluation.
        ValueError: If its summary is damaged, of another seed, or lacks ``kgat``.
    """
    path = run_dir / "summary.json"
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        found = summary["seed"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no summary of a run ({error!r}); remove it and give the same command again"
        ) from error
    if found != seed:
        raise ValueError(f"{path} is of seed {found}, expected {seed}; was the folder renamed?")
    if KGAT not in summary:
        raise ValueError(
            f"{path} holds no figures of {KGAT!r}, which seeds are pooled for; add it to evaluation.methods, remove "
            f"{path} and give the same command again: what was played is kept"
        )
    return KgatSeed(seed, run_dir, summary, read_methods(run_dir / "eval"))


def pool_runs(seeds: Sequence[KgatSeed]) -> PooledRuns:
    """Pool runs that differ in their seed alone, under the prices that their evaluations were made with.

    Raises:
        ValueError: If there are fewer than two, their prices differ, or they were asked different questions.
    """
    prices = prices_for([seed.eval_dir for seed in seeds], {})
    methods = pool_methods([_in_order(seed) for seed in seeds], prices.rule(), reference=KGAT)
    return PooledRuns(tuple(seeds), methods, prices)


def draw_pooled(result: PooledRuns, folder: Path) -> None:
    """Draw accuracy and score against tokens, team sizes by kind of evidence, and ``kgat`` minus each other method."""
    pooled = result.methods
    figures = {name: {m: found.overall for m, found in row.items()} for name, row in pooled.methods.items()}
    if any(row["accuracy"].is_available and row["tokens"].is_available for row in figures.values()):
        for metric in _DRAWN:
            title = f"{metric} against tokens, {pooled.seeds} training seeds"
            plot_accuracy_tokens(figures, folder / f"{metric}_tokens.png", metric=metric, title=title)
    if pooled.teams.kinds:
        plot_adaptation({KGAT: pooled.teams.as_adaptation()}, folder / "adaptation.png")
    if pooled.differences:
        panels = {m: {name: row[m] for name, row in pooled.differences.items()} for m in _DRAWN}
        title = f"{KGAT} minus each other method: 95 % crossed interval, seeds as dots"
        plot_forest(panels, folder / "differences.png", title=title, marks=dict.fromkeys(panels, [0.0]))


def _in_order(seed: KgatSeed) -> dict[str, Sequence[MethodRun]]:
    """Return the runs in the order in which the run's summary shows its methods."""
    shown = [name for name in seed.summary if name in seed.runs]
    return {name: seed.runs[name] for name in shown}
