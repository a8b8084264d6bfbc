"""The ready queue and one call at a time come to the same run, which is what makes their times comparable."""

from __future__ import annotations

from tests.benchmarks.bench_topology_runtime import REPEATS, TEAM, measure, run_once


def test_both_ways_say_the_same_and_the_figure_is_paired() -> None:
    seen: list[str] = []
    found = measure(call_s=0.0, repeats=2, on_run=lambda name, seconds: seen.append(name))
    assert seen == ["ready_queue", "one_by_one"] * 2
    share = found["share_of_serial"]
    assert share["low"] <= share["value"] <= share["high"]
    assert share["n"] == 2 < REPEATS
    assert found["ideal_share"] == 2 / 6


def test_the_team_is_five_workers_and_one_answerer() -> None:
    _, run = run_once(5, 0.0)
    assert (TEAM.num_nodes, TEAM.in_degree(5)) == (6, 5)
    assert run.messages[5].text.startswith("Answerer 0 heard [Reasoner 0 heard []\nAnswer: SUPPORT, Reasoner 1")
