"""Endpoints: retried, cached, counted; a failure is an error with a reason, never a wrong answer."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.generators.endpoint_plays import STOP, Played, answer, single

from provgym.generators.endpoint import EndpointPolicy
from provgym.generators.endpoint_config import EndpointConfig
from provgym.generators.endpoint_ledger import read_ledger
from provgym.generators.engine import Sampling
from provgym.generators.episode import Episode
from provgym.rewards.outcome import Ending


def test_an_episode_is_one_growing_conversation(build_tasks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    replies = ['{"walk": "n1"}', "hm", STOP]
    played = Played(lambda request, n: answer(replies[n]), api_key_env="MY_KEY", extra_body={"top_p": 0.9})
    (episode,) = played.policy.play(single(build_tasks))
    assert episode.outcome.ending is Ending.ANSWERED
    assert (episode.outcome.walks, episode.outcome.invalid_actions) == (1, 1)
    assert [turn.action for turn in episode.turns] == replies
    assert [len(p["messages"]) for p in played.payloads] == [2, 4, 6]
    assert played.payloads[2]["messages"][:4] == played.payloads[1]["messages"]
    assert played.payloads[0]["messages"][1]["content"] == episode.turns[0].observation
    assert {p["top_p"] for p in played.payloads} == {0.9}
    assert played.headers[0]["authorization"] == "Bearer secret"
    assert episode.usage == {"attempts": 3, "prompt_tokens": 300, "completion_tokens": 21}
    assert episode.tokens is None


def test_playing_twice_in_one_process_works_also_inside_a_loop(build_tasks: Any) -> None:
    """Fault kind: closed event loop."""
    played = Played(lambda request, n: answer(STOP))
    first = played.policy.play(single(build_tasks))
    assert played.policy.play(single(build_tasks)) == first

    async def notebook() -> list[Episode]:
        return played.policy.play(single(build_tasks))

    assert asyncio.run(notebook()) == first
    assert played.policy.usage["attempts"] == 3


def test_failures_are_errors_and_the_rest_is_played(build_tasks: Any) -> None:
    """Fault kinds: endpoint failure scored as wrong; one failure loses its siblings."""

    def handler(request: httpx.Request, n: int) -> httpx.Response:
        if "lowered" in request.content.decode():
            raise httpx.ReadTimeout("slow", request=request)
        return answer(STOP)

    def walk_first(request: httpx.Request, n: int) -> httpx.Response:
        messages = json.loads(request.content)["messages"]
        return handler(request, n) if len(messages) > 2 else answer('{"walk": "n1"}')

    seen: list[int] = []
    played = Played(walk_first)
    episodes = played.policy.play(build_tasks(members=2), lambda index, episode: seen.append(index))
    endings = [e.outcome.ending for e in episodes]
    assert sorted(seen) == list(range(12))
    assert set(endings) == {Ending.ANSWERED, Ending.ERROR}
    for episode in episodes:
        if episode.outcome.ending is Ending.ERROR:
            assert episode.error is not None
            assert episode.error.startswith("timeout: http://agents.test/v1/chat/completions")
            assert episode.usage["attempts"] == 1 + 3
            assert len(episode.turns) == 1


@pytest.mark.parametrize("style", ["seconds", "date"])
def test_retry_after_is_honoured(build_tasks: Any, style: str) -> None:
    """Fault kind: one failure loses its siblings (429 with Retry-After twice)."""
    when = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    header = {"retry-after": "7" if style == "seconds" else when}

    def handler(request: httpx.Request, n: int) -> httpx.Response:
        return httpx.Response(429, headers=header, text="slow down") if n < 2 else answer(STOP)

    played = Played(handler)
    (episode,) = played.policy.play(single(build_tasks))
    assert episode.outcome.ending is Ending.ANSWERED
    assert episode.usage["attempts"] == 3
    assert len(played.waits) == 2
    low, high = (7.0, 7.0) if style == "seconds" else (20.0, 30.0)
    assert all(low <= wait <= high for wait in played.waits)


@pytest.mark.parametrize(
    ("response", "kind", "attempts"),
    [
        (httpx.Response(429, text="slow down"), "rate_limited", 3),
        (httpx.Response(429, headers={"retry-after": "3600"}, text="tomorrow"), "rate_limited", 1),
        (httpx.Response(429, headers={"retry-after": "soon"}, text="?"), "rate_limited", 3),
        (httpx.Response(503, text="down"), "server", 3),
        (httpx.Response(401, text="no key"), "refused", 1),
        (httpx.Response(404, text="no such model"), "refused", 1),
        (httpx.Response(200, json={"choices": []}), "no_choices", 1),
        (httpx.Response(200, text="<html>"), "not_json", 3),
        (httpx.Response(200, json=[1]), "malformed", 1),
        (httpx.Response(200, json={"choices": [{"text": "x"}]}), "malformed", 1),
        (httpx.Response(200, json={"choices": "no"}), "malformed", 1),
        (httpx.Response(200, text="[" * 100_000), "not_json", 3),
        (httpx.Response(200, content=b" " * (17 * 1024 * 1024)), "malformed", 1),
        (httpx.Response(307, headers={"location": "http://elsewhere.test/"}), "refused", 1),
        (answer(None), "no_content", 1),
    ],
)
def test_every_failure_has_its_kind(build_tasks: Any, response: httpx.Response, kind: str, attempts: int) -> None:
    """Fault kind: one failure loses its siblings (HTTP 200 with ``choices: []``, null content)."""
    played = Played(
        lambda request, n: httpx.Response(response.status_code, headers=response.headers, content=response.content)
    )
    (episode,) = played.policy.play(single(build_tasks))
    assert episode.outcome.ending is Ending.ERROR
    assert episode.error is not None
    assert episode.error.startswith(f"{kind}: ")
    assert episode.usage["attempts"] == attempts == len(played.payloads)


def test_connection_errors_back_off_and_then_fail(build_tasks: Any) -> None:
    def handler(request: httpx.Request, n: int) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    played = Played(handler, max_attempts=4, max_wait_s=3)
    (episode,) = played.policy.play(single(build_tasks))
    assert episode.error is not None
    assert episode.error.startswith("connection: ")
    assert len(played.waits) == 3
    for wait, longest in zip(played.waits, [1.0, 2.0, 3.0], strict=True):
        assert longest / 2 < wait <= longest
    again = Played(handler, max_attempts=4, max_wait_s=3)
    again.policy.play(single(build_tasks))
    assert again.waits == played.waits


def test_a_conversation_that_no_longer_fits_is_truncated(build_tasks: Any) -> None:
    text = json.dumps({"error": {"code": "context_length_exceeded", "message": "maximum context length is 10"}})
    played = Played(lambda request, n: httpx.Response(400, text=text))
    (episode,) = played.policy.play(single(build_tasks))
    assert (episode.outcome.ending, episode.error) == (Ending.TRUNCATED, None)


def test_odd_but_usable_answers_are_used(build_tasks: Any) -> None:
    """Fault kind: one failure loses its siblings (no usage, ``finish_reason: length``)."""
    call = {"function": {"name": "walk", "arguments": '{"node": "n1"}'}}
    replies = [
        answer('{"walk": "n', finish_reason="length"),
        httpx.Response(200, json={"choices": [{"message": {"content": None, "tool_calls": [call]}}]}),
        answer("\ud800 lone".encode("utf-8", "surrogatepass").decode("utf-8", "replace") + STOP),
    ]
    raw = httpx.Response(200, content=b'{"choices": [{"message": {"content": "\\ud800"}}], "usage": null}')
    played = Played(lambda request, n: [replies[0], replies[1], raw, replies[2]][n])
    (episode,) = played.policy.play(single(build_tasks))
    assert [turn.action for turn in episode.turns[:3]] == ['{"walk": "n', json.dumps(call["function"]), "?"]
    assert episode.outcome.walks == 1
    assert episode.usage["cut"] == 1
    assert episode.usage["usage_missing"] == 2
    assert episode.usage["attempts"] == 4


def test_concurrency_is_bounded(build_tasks: Any) -> None:
    live, most = 0, 0

    class Transport(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            nonlocal live, most
            live += 1
            most = max(most, live)
            for _ in range(3):
                await asyncio.sleep(0)
            live -= 1
            return answer(STOP)

    config = EndpointConfig(base_url="http://agents.test/v1", model="m", max_concurrency=3)
    policy = EndpointPolicy("e", config, Sampling(0.0), transport=Transport())
    assert len(policy.play(build_tasks(members=3))) == 18
    assert most == 3


def test_a_failing_callback_stops_the_play(build_tasks: Any) -> None:
    def full_disk(index: int, episode: Episode) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        Played(lambda request, n: answer(STOP)).policy.play(build_tasks(), full_disk)


@pytest.mark.parametrize(
    "config",
    [
        {"base_url": "agents.test"},
        {"base_url": "http://"},
        {"base_url": "http://user:secret@agents.test/v1"},
        {"base_url": "http://agents.test/v1?key=secret"},
        {"base_url": "http://agents.test:99999/v1"},
        {"base_url": f"http://{'a' * 70}.test/v1"},
        {"model": ""},
        {"timeout_s": 0},
        {"deadline_s": float("inf")},
        {"max_attempts": 0},
        {"modle": "x"},
        {"extra_body": {"stream": True}},
        {"extra_body": {"messages": []}},
    ],
)
def test_impossible_configs_are_refused(config: dict[str, Any]) -> None:
    from pydantic import ValidationError

    with pytest.raises(ValidationError, match=next(iter(config))):
        EndpointConfig.model_validate({"base_url": "http://a.test/v1", "model": "m", **config})


def test_a_deadline_bounds_all_attempts_together(build_tasks: Any, tmp_path: Path) -> None:
    """Fault kind: one failure loses its siblings (a worker that never answers)."""

    class Silent(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.sleep(3600)
            raise AssertionError("never answers")

    path = tmp_path / "ledger.jsonl"
    config = EndpointConfig(base_url="http://agents.test/v1", model="m", deadline_s=0.05, ledger=path)
    (episode,) = EndpointPolicy("e", config, Sampling(0.0), transport=Silent()).play(single(build_tasks))
    assert str(episode.error).startswith(
        "deadline: http://agents.test/v1/chat/completions gave no answer within 0.05 s"
    )
    assert [e.outcome for e in read_ledger(path)] == ["cancelled"]
    waiting = Played(lambda request, n: httpx.Response(429, headers={"retry-after": "50"}), deadline_s=49)
    (episode,) = waiting.policy.play(single(build_tasks))
    assert str(episode.error).startswith("rate_limited: ")
    assert waiting.waits == []  # a wait beyond the deadline is not begun


def test_three_workers_end_each_in_its_own_way(build_tasks: Any, tmp_path: Path) -> None:
    """Fault kind: one failure loses its siblings: 10 ms; 429 with Retry-After twice; never answers."""
    tasks = [replace(build_tasks(conditions=[0])[0], member=member, sampling_seed=member) for member in range(3)]
    numbers: list[int] = []

    class Mixed(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            seed = json.loads(request.content)["seed"]
            if seed not in numbers:
                numbers.append(seed)
            worker = numbers.index(seed)
            if worker == 2:
                await asyncio.sleep(3600)
            limited = worker == 1 and len([e for e in read_ledger(path) if e.outcome == "rate_limited"]) < 2
            return httpx.Response(429, headers={"retry-after": "0"}) if limited else answer(STOP)

    path = tmp_path / "ledger.jsonl"
    config = EndpointConfig(
        base_url="http://agents.test/v1", model="m", timeout_s=0.3, max_attempts=3, max_wait_s=0.01, ledger=path
    )
    episodes = EndpointPolicy("e", config, Sampling(1.0), transport=Mixed()).play(tasks)
    assert sorted(e.outcome.ending for e in episodes) == [Ending.ANSWERED, Ending.ANSWERED, Ending.ERROR]
    outcomes = Counter(e.outcome for e in read_ledger(path))
    assert outcomes == {"answered": 2, "rate_limited": 2, "timeout": 3}


def test_a_dead_server_is_given_up_and_a_recovered_one_is_not(build_tasks: Any) -> None:
    down = Played(lambda request, n: httpx.Response(401, text="no"), give_up_after=3, max_concurrency=1)
    errors = [str(e.error) for e in down.policy.play(build_tasks())]
    assert len(down.payloads) == 3
    assert [error.split(":")[0] for error in errors] == ["refused"] * 3 + ["given_up"] * 3
    assert errors[3].startswith("given_up: 3 completions in a row failed, the last by refused: ")
    shaky = Played(
        lambda request, n: answer(STOP) if n % 3 == 2 else httpx.Response(401), give_up_after=3, max_concurrency=1
    )
    assert [e.outcome.ending for e in shaky.policy.play(build_tasks())].count(Ending.ANSWERED) == 2
    empty = Played(lambda request, n: httpx.Response(200, json={"choices": []}), give_up_after=2, max_concurrency=1)
    empty.policy.play(build_tasks())
    assert len(empty.payloads) == 6  # a server that answers is asked on


@pytest.mark.parametrize(
    "text",
    [
        f"Sure!\n```json\n{STOP}\n```\nDone.",
        f"```json {STOP}```",
        f"```json\n{STOP}",
        f"As {{sentence 2}} says: {STOP}",
    ],
)
def test_wrapped_actions_are_read(build_tasks: Any, text: str) -> None:
    """Fault kinds: fenced or wrapped JSON; braces and several objects."""
    (episode,) = Played(lambda request, n: answer(text)).policy.play(single(build_tasks))
    assert episode.outcome.ending is Ending.ANSWERED


@pytest.mark.parametrize("text", ["", "{" * 1_000_000, '{"stop": {"verdict": "SUP', "\x00", "\ud83d"])
def test_any_text_is_an_invalid_step_and_never_an_error(build_tasks: Any, text: str) -> None:
    """Fault kind: braces and several objects (never an exception)."""
    body = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
    (episode,) = Played(lambda request, n: httpx.Response(200, content=body)).policy.play(single(build_tasks))
    assert episode.outcome.ending is Ending.TRUNCATED
    assert episode.error is None


def test_two_of_ten_claims_time_out(tmp_path: Path) -> None:
    """Fault kind: endpoint failure scored as wrong. 8 of 8 scored, 2 errors, coverage 80 %."""
    from provgym.eval.walk import evaluate
    from provgym.eval.walk_config import WalkEvalConfig

    config = WalkEvalConfig.model_validate({"conditions": ["C1"], "general_draws": 0, "limit": 10, "resamples": 50})
    slow: list[str] = []

    def handler(request: httpx.Request, n: int) -> httpx.Response:
        claim = json.loads(request.content)["messages"][1]["content"].splitlines()[0]
        if len(slow) < 2:
            slow.append(claim)
        if claim in slow:
            raise httpx.ReadTimeout("slow", request=request)
        return answer(STOP)

    result = evaluate(config, Played(handler, max_attempts=1).policy, tmp_path, plots=False)
    accuracy = result.metrics["accuracy"]
    assert (accuracy.value, accuracy.n) == (1.0, 8)  # every gold verdict of C1 is MIXED
    assert result.summary.coverage.to_json() == {"episodes": 10, "scored": 8, "errors": 2, "share": 0.8}
    assert any("2 of 10 episodes ended in error and are not scored: coverage 80%" in note for note in result.notes)
    asked = "endpoint: 10 requests, 0 answers stored before; 800 prompt and 56 completion tokens in all answers"
    assert asked in result.notes
    resumed = evaluate(config, Played(lambda request, n: answer(STOP)).policy, tmp_path, plots=False)
    assert resumed.summary.coverage.to_json() == {"episodes": 10, "scored": 10, "errors": 0, "share": 1.0}
