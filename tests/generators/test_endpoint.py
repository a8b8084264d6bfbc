"""Endpoints: retried, cached, counted; a failure is an error with a reason, never a wrong answer."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from provgym.generators.endpoint import EndpointPolicy
from provgym.generators.endpoint_client import EndpointConfig
from provgym.generators.engine import Sampling
from provgym.generators.episode import Episode, EpisodeTask
from provgym.rewards.outcome import Ending

STOP = '{"stop": {"support_count": 1, "refute_count": 1, "verdict": "MIXED", "confidence": 0.8}}'
Handler = Callable[[httpx.Request, int], httpx.Response]


def answer(text: str | None, **more: Any) -> httpx.Response:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop", **more}
    usage = {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}
    return httpx.Response(200, json={"choices": [choice], "usage": usage})


class Played:
    """One policy over a scripted transport; counts requests and waits."""

    def __init__(self, handler: Handler, temperature: float = 0.0, **config: Any) -> None:
        self.payloads: list[dict[str, Any]] = []
        self.headers: list[httpx.Headers] = []
        self.waits: list[float] = []
        self._handler = handler
        settings = {"base_url": "http://agents.test/v1", "model": "m", "max_attempts": 3, **config}
        self.policy = EndpointPolicy(
            "endpoint",
            EndpointConfig.model_validate(settings),
            Sampling(temperature),
            transport=httpx.MockTransport(self._handle),
            sleep=self._sleep,
        )

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        self.payloads.append(json.loads(request.content))
        self.headers.append(request.headers)
        return self._handler(request, len(self.payloads) - 1)

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


def single(build_tasks: Any) -> list[EpisodeTask]:
    return list(build_tasks(conditions=[0]))


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
        (httpx.Response(200, text="<html>"), "malformed", 1),
        (httpx.Response(200, json=[1]), "malformed", 1),
        (httpx.Response(200, json={"choices": [{"text": "x"}]}), "malformed", 1),
        (httpx.Response(200, json={"choices": "no"}), "malformed", 1),
        (httpx.Response(200, text="[" * 100_000), "malformed", 1),
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
    assert played.waits == [1.0, 2.0, 3.0]


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
    assert [e.outcome.ending for e in resumed] == [Ending.ANSWERED] * 5
    assert len(second.payloads) == 2
    assert [e.usage.get("cached", 0) for e in resumed] == [1, 1, 1, 0, 0]
    other = Played(lambda request, n: answer(STOP), temperature=0.5, cache_dir=tmp_path, sends_seed=False)
    other.policy.play(tasks)
    assert len(other.payloads) == 5
    assert all("seed" not in p for p in other.payloads)


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
    "config", [{"base_url": "agents.test"}, {"model": ""}, {"timeout_s": 0}, {"max_attempts": 0}, {"modle": "x"}]
)
def test_impossible_configs_are_refused(config: dict[str, Any]) -> None:
    from pydantic import ValidationError

    with pytest.raises(ValidationError, match=next(iter(config))):
        EndpointConfig.model_validate({"base_url": "http://a.test/v1", "model": "m", **config})


class _Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        assert json.loads(self.rfile.read(length))["model"] == "m"
        if self.path != "/v1/chat/completions":
            hang: threading.Event = self.server.hang  # type: ignore[attr-defined]
            hang.wait(20)
            return
        body = answer(STOP).content
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[str]:
    service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    service.hang = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=service.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{service.server_address[1]}"
    service.hang.set()  # type: ignore[attr-defined]
    service.shutdown()
    service.server_close()


def test_a_real_server_answers_and_a_hanging_one_times_out(build_tasks: Any, server: str) -> None:
    tasks = build_tasks(conditions=[0, 1])
    policy = EndpointPolicy("e", EndpointConfig(base_url=f"{server}/v1", model="m"), Sampling(0.0))
    assert [e.outcome.ending for e in policy.play(tasks)] == [Ending.ANSWERED] * 2
    hanging = EndpointConfig(base_url=f"{server}/hang", model="m", timeout_s=0.2, max_attempts=1)
    episodes = EndpointPolicy("e", hanging, Sampling(0.0)).play(tasks)
    assert [e.outcome.ending for e in episodes] == [Ending.ERROR] * 2
    assert {str(e.error).split(":")[0] for e in episodes} == {"timeout"}
