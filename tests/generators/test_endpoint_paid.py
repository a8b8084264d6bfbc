"""What an endpoint is paid for: each answer once, each attempt booked once, keys never written."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.generators.endpoint_plays import STOP, Played, answer, single

from provgym.generators.endpoint import EndpointPolicy
from provgym.generators.endpoint_config import EndpointConfig
from provgym.generators.endpoint_entry import ledger_totals
from provgym.generators.endpoint_ledger import read_ledger
from provgym.generators.engine import Sampling
from provgym.rewards.outcome import Ending


def test_nothing_is_paid_for_twice_and_replicates_are_told_apart(build_tasks: Any, tmp_path: Path) -> None:
    """Fault kind: one failure loses its siblings (killed after some items, resumed)."""

    def handler(request: httpx.Request, n: int) -> httpx.Response:
        return answer(STOP) if n < 3 else httpx.Response(500, text="killed")

    tasks = build_tasks(conditions=[0], members=5)
    first = Played(handler, temperature=1.0, cache_dir=tmp_path, max_concurrency=1, max_attempts=1)
    episodes = first.policy.play(tasks)
    assert [e.outcome.ending for e in episodes] == [Ending.ANSWERED] * 3 + [Ending.ERROR] * 2
    assert len({p["seed"] for p in first.payloads}) == 5
    second = Played(lambda request, n: answer(STOP), temperature=1.0, cache_dir=tmp_path)
    resumed = second.policy.play(tasks)
    # Stored answers count with their tokens: a resumed evaluation shows the figures of an uninterrupted one.
    assert [e.usage["completion_tokens"] for e in resumed] == [7] * 5
    assert [e.outcome.ending for e in resumed] == [Ending.ANSWERED] * 5
    assert len(second.payloads) == 2
    assert [e.usage.get("cached", 0) for e in resumed] == [1, 1, 1, 0, 0]
    other = Played(lambda request, n: answer(STOP), temperature=0.5, cache_dir=tmp_path, sends_seed=False)
    other.policy.play(tasks)
    assert len(other.payloads) == 5
    assert all("seed" not in p for p in other.payloads)


def test_greedy_repeats_are_entries_of_their_own(build_tasks: Any, tmp_path: Path) -> None:
    """A repeat of one request is another completion, whatever the server makes of its seed."""
    tasks = [replace(task, sampling_seed=5) for task in build_tasks(conditions=[0], members=3)]
    played = Played(lambda request, n: answer(STOP), cache_dir=tmp_path, sends_seed=False)
    assert played.policy.play(tasks)[0].usage == {"attempts": 1, "prompt_tokens": 100, "completion_tokens": 7}
    assert len(played.payloads) == 3
    assert len({json.dumps(payload) for payload in played.payloads}) == 1


def test_equal_requests_at_once_are_asked_once(build_tasks: Any, tmp_path: Path) -> None:
    (task,) = single(build_tasks)
    played = Played(lambda request, n: answer(STOP), cache_dir=tmp_path)
    episodes = played.policy.play([task] * 4)
    assert len(played.payloads) == 1
    assert sorted(e.usage.get("cached", 0) for e in episodes) == [0, 1, 1, 1]
    assert {e.usage["completion_tokens"] for e in episodes} == {7}


def test_every_attempt_is_in_the_ledger_once(build_tasks: Any, tmp_path: Path) -> None:
    """Fault kind: one failure loses its siblings (every attempt in the ledger once)."""
    path = tmp_path / "ledger.jsonl"
    replies = [httpx.Response(429), answer('{"walk": "n1"}'), httpx.Response(503, text="down"), answer(STOP)]
    played = Played(lambda request, n: replies[n], temperature=1.0, ledger=path)
    (task,) = single(build_tasks)
    played.policy.play([replace(task, member=3)])
    entries = read_ledger(path)
    assert [(e.outcome, e.status, e.attempt) for e in entries] == [
        ("rate_limited", 429, 1),
        ("answered", 200, 2),
        ("server", 503, 1),
        ("answered", 200, 2),
    ]
    assert [len({e.call for e in pair}) for pair in (entries[:2], entries[2:], entries)] == [1, 1, 2]
    assert {(e.phase, e.replicate, e.model) for e in entries} == {("eval", 3, "m")}
    assert entries[0].item == f"{task.instance.instance_id} M1/B3 turn 0"
    totals = ledger_totals(entries)
    assert (totals.requests, totals.answered, totals.failed) == (4, 2, 2)
    assert (totals.prompt_tokens, totals.completion_tokens) == (200, 14)


def test_training_and_evaluation_are_booked_apart(build_tasks: Any, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    config = EndpointConfig(base_url="http://agents.test/v1", model="m", ledger=path)
    for phase in ("train", "eval", "eval"):
        transport = httpx.MockTransport(lambda request: answer(STOP))
        EndpointPolicy("e", config, Sampling(0.0), phase=phase, transport=transport).play(single(build_tasks))
    assert [ledger_totals(read_ledger(path), phase).requests for phase in ("train", "eval")] == [1, 2]


def test_no_key_is_written_anywhere(
    build_tasks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_KEY", " sk-topsecret\n")
    caplog.set_level(logging.DEBUG)

    def handler(request: httpx.Request, n: int) -> httpx.Response:
        sent = request.headers["authorization"]
        if n == 0:
            raise httpx.ConnectError(f"refused {sent}", request=request)
        return answer('{"walk": "n1"}') if n == 1 else httpx.Response(403, text=f"bad key: {sent}")

    folder = tmp_path / "kept"
    played = Played(handler, api_key_env="MY_KEY", cache_dir=folder, ledger=folder / "ledger.jsonl")
    (episode,) = played.policy.play(single(build_tasks))
    assert played.headers[0]["authorization"] == "Bearer sk-topsecret"
    assert str(episode.error).endswith("bad key: Bearer ***")
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"bad key: Bearer ***" in written
    assert b"topsecret" not in written
    assert "topsecret" not in json.dumps(episode.to_json()) + caplog.text


def test_a_key_that_cannot_be_had_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EndpointConfig(base_url="http://agents.test/v1", model="m", api_key_env="MY_KEY")
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(ValueError, match="the environment variable MY_KEY is unset or empty; export it"):
        EndpointPolicy("e", config, Sampling(0.0))
    for value in ("two words", "schl\u00fcssel", "a\nb"):
        monkeypatch.setenv("MY_KEY", value)
        with pytest.raises(ValueError, match="MY_KEY holds no key: found") as caught:
            EndpointPolicy("e", config, Sampling(0.0))
        assert value not in str(caught.value)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-elsewhere")
    played = Played(lambda request, n: answer(STOP))
    assert played.policy.name == "endpoint"
    assert EndpointConfig(base_url="http://agents.test/v1", model="m").read_key() == ""


def test_what_decides_answers_is_the_identity() -> None:
    base = {"base_url": "http://agents.test/v1/", "model": "m"}
    first = EndpointConfig.model_validate(base)
    same = EndpointConfig.model_validate({**base, "base_url": "http://agents.test/v1", "timeout_s": 5, "ledger": "l"})
    assert first.identity == same.identity
    for other in ({"model": "n"}, {"max_tokens": 9}, {"extra_body": {"top_p": 0.9}}, {"sends_temperature": False}):
        assert EndpointConfig.model_validate({**base, **other}).identity != first.identity


def test_fields_that_a_server_does_not_know_are_left_out(build_tasks: Any) -> None:
    played = Played(
        lambda request, n: answer(STOP),
        sends_seed=False,
        sends_temperature=False,
        max_tokens_field="max_completion_tokens",
    )
    played.policy.play(single(build_tasks))
    assert set(played.payloads[0]) == {"model", "messages", "max_completion_tokens"}
