"""Mining with and without savings: the same targets, never more calls, and the counts of three observers agree."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
from tests.benchmarks import bench_mining_calls
from tests.benchmarks.bench_mining_calls import (
    BUDGETS,
    CONFIGS,
    G_DESIGNER_CALLS,
    make_load,
    measure,
    mine,
)

from provgym.generators.topology_trials import TrialAccount
from provgym.trainers.config_file import load_config
from provgym.trainers.kgat_config import KgatConfig

HASHED = {"retrieval": {"encoder": "hashed", "cache": None}}
TASKS = 4


@lru_cache(maxsize=1)
def measured() -> dict[str, Any]:
    return measure(num_tasks=TASKS, changes=HASHED)


@pytest.mark.parametrize("budget", BUDGETS)
def test_savings_never_cost_calls_and_every_spared_call_is_explained(budget: str) -> None:
    """That targets are the same, and that agent, account and ledger agree, is asserted inside."""
    found = measured()[budget]
    calls, ratio = found["calls"], found["ratio"]
    assert 0 < calls["incremental"] < calls["naive"]
    assert calls["naive"] - calls["incremental"] == sum(found["spared_by"].values())
    assert all(spared >= 0 for spared in found["spared_by"].values())
    for way, total in calls.items():
        assert sum(part[way] for part in found["parts"].values()) == total
    for part in found["parts"].values():
        assert part["incremental"] <= part["naive"]
    assert ratio["value"] == calls["incremental"] / calls["naive"]
    assert ratio["low"] <= ratio["value"] <= ratio["high"]
    assert found["beyond_g_designer"] == [calls["incremental"] - calls_ for calls_ in G_DESIGNER_CALLS[::-1]]


def test_the_two_budgets_are_the_papers_and_the_default_runs() -> None:
    plans = {
        name: (config := load_config(KgatConfig, CONFIGS / file)).mining.plan(config.score.rule())
        for name, file in BUDGETS.items()
    }
    source, default = plans["source"], plans["default"]
    assert (source.replicates, source.rungs, source.rescore_replicates) == (2, 1, 0)
    assert source.pruning is not None
    assert default.replicates > source.replicates
    assert default.rescore_replicates > 0
    assert measured()["source"]["parts"]["rescoring"] == {"incremental": 0, "naive": 0}
    assert measured()["default"]["parts"]["rescoring"]["incremental"] > 0


@pytest.mark.parametrize("what", ["targets", "agent"])
def test_a_difference_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Targets that differ, and an account that says other than what reached the agent, are caught."""
    if what == "targets":
        real = bench_mining_calls.mine

        def other(load: Any, *, saves: bool) -> Any:
            found = real(load, saves=saves)
            return found if saves else bench_mining_calls.Mined((), found.account, found.parts, 1, found.per_task)

        monkeypatch.setattr(bench_mining_calls, "mine", other)
    else:
        monkeypatch.setattr(bench_mining_calls, "total_account", lambda accounts: TrialAccount(paid_calls=1))
    with pytest.raises(AssertionError, match="other targets" if what == "targets" else "do not|the agent was asked"):
        measure(budgets=("source",), num_tasks=1, changes=HASHED)


def test_too_few_tasks_and_a_generator_are_refused() -> None:
    config = load_config(KgatConfig, CONFIGS / "source.yaml")
    with pytest.raises(ValueError, match="has 42 training tasks, expected 43"):
        make_load(config, 43)
    pi = config.curriculum.model_copy(update={"pi_first": 0.5})
    with pytest.raises(ValueError, match="pi_first=0.5, expected 0"):
        make_load(config.model_copy(update={"curriculum": pi}), 1)


def test_a_load_is_the_same_every_time() -> None:
    config = load_config(KgatConfig, CONFIGS / "source.yaml")
    config = config.model_copy(update={"retrieval": config.retrieval.model_copy(update=HASHED["retrieval"])})
    first, again = (make_load(config, 2) for _ in range(2))
    assert first.proposals == again.proposals
    assert mine(first, saves=True) == mine(again, saves=True)
