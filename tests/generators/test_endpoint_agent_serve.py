"""Teams played by a real server with a real model: ``transformers serve`` with SmolLM2-135M, over loopback."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.envs.workflow_worlds import CHAIN, PAIR, SINGLE, agreement, conflict, request
from tests.generators.test_endpoint_serve import (  # noqa: F401 - fixtures
    PATIENCE_S,
    Tapped,
    assert_prompts_are_counted_right,
    model_folder,
    server,
)

from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.workflow import MessageCache, WorkflowRuntime
from provgym.generators.endpoint_agent import EndpointAgent
from provgym.generators.endpoint_config import EndpointConfig
from provgym.generators.endpoint_entry import ledger_totals
from provgym.generators.endpoint_ledger import read_ledger
from provgym.generators.engine import Sampling
from provgym.rewards.outcome import Ending

pytestmark = pytest.mark.llm


def test_teams_of_a_real_model_cost_what_the_server_says(
    tmp_path: Path,
    model_folder: Path,  # noqa: F811
    server: str,  # noqa: F811
) -> None:
    config = EndpointConfig(
        base_url=server,
        model=str(model_folder),
        timeout_s=PATIENCE_S,
        deadline_s=PATIENCE_S,
        max_tokens=24,
        cache_dir=tmp_path,
        ledger=tmp_path / "ledger.jsonl",
    )
    requests = [request(team, task) for task in (agreement(), conflict()) for team in (SINGLE, PAIR, CHAIN)]
    tap = Tapped()
    agent = EndpointAgent(config, Sampling(0.0), transport=tap)
    engine = WorkflowRuntime(agent, roles=DEFAULT_ROLES, cache=MessageCache(tmp_path), max_concurrency=2)
    runs = engine.run_many_sync(requests)

    assert Ending.ERROR not in {run.ending for run in runs}
    assert sum(len(run.calls) for run in runs) == 2 * (1 + 2 + 3)
    # PAIR and CHAIN begin with one Reasoner that is told the same: it was asked once for each question.
    assert len(tap.usages) == 2 * 5
    entries = read_ledger(tmp_path / "ledger.jsonl")
    assert Counter((e.prompt_tokens, e.completion_tokens) for e in entries) == Counter(
        (usage["prompt_tokens"], usage["completion_tokens"]) for usage in tap.usages
    )
    ours, theirs = engine.ledger.totals("eval"), ledger_totals(entries, "eval")
    for name in ("prompt_tokens", "completion_tokens"):
        by_server = sum(usage[name] for usage in tap.usages)
        assert getattr(ours, name) == getattr(theirs, name) == by_server > 0
    assert (ours.paid_calls, ours.cached_calls, ours.failed) == (10, 2, 0)
    assert_prompts_are_counted_right(model_folder, tap)

    again = Tapped()
    resumed = WorkflowRuntime(
        EndpointAgent(config, Sampling(0.0), transport=again), roles=DEFAULT_ROLES, cache=MessageCache(tmp_path)
    ).run_many_sync(requests)
    assert again.usages == []
    assert [run.messages for run in resumed] == [run.messages for run in runs]
    print({run.topology_key: (run.ending.value, run.answer, run.is_correct) for run in runs})
