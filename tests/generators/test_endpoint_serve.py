"""A real server with a real model: ``transformers serve`` with SmolLM2-135M, played over loopback."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from provgym.envs.presentation import PresentationConfig
from provgym.generators.endpoint import EndpointPolicy
from provgym.generators.endpoint_config import EndpointConfig
from provgym.generators.endpoint_entry import ledger_totals
from provgym.generators.endpoint_ledger import read_ledger
from provgym.generators.engine import Sampling
from provgym.generators.smollm2 import convert_smollm2
from provgym.rewards.outcome import Ending

pytestmark = pytest.mark.llm
START = "import sys; from transformers.cli.transformers import main; sys.exit(main())"
PATIENCE_S = 600.0


class Tapped(httpx.AsyncBaseTransport):
    """The real network edge; keeps what went out and the usage in what came back, read apart from our client."""

    def __init__(self) -> None:
        self.messages: list[list[dict[str, str]]] = []
        self.usages: list[dict[str, int]] = []
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.messages.append(json.loads(request.content)["messages"])
        response = await self._inner.handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        body = b"".join([chunk async for chunk in response.stream])
        await response.aclose()
        self.usages.append(json.loads(body)["usage"])
        return httpx.Response(response.status_code, headers=response.headers, content=body)


@pytest.fixture(scope="module")
def model_folder() -> Path:
    for package in ("fastapi", "uvicorn", "openai"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package {package} is missing; pip install 'provgym[serve]'")
    return convert_smollm2()


@pytest.fixture(scope="module")
def server(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("serve") / "log.txt"
    command = [sys.executable, "-c", START, "serve", str(model_folder), "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as stream:
        process = subprocess.Popen([*command, "--device", "cpu"], stdout=stream, stderr=subprocess.STDOUT)
        try:
            wait_until_healthy(f"http://127.0.0.1:{port}/health", process, log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text(encoding="utf-8")[-3000:]
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.5)
    pytest.fail(
        f"transformers serve was not healthy within {PATIENCE_S:g} s: {log.read_text(encoding='utf-8')[-3000:]}"
    )


def test_walks_through_a_real_server_are_counted_as_it_counts_them(
    build_tasks: Any, tmp_path: Path, model_folder: Path, server: str
) -> None:
    config = EndpointConfig(
        base_url=server,
        model=str(model_folder),
        timeout_s=PATIENCE_S,
        deadline_s=PATIENCE_S,
        max_tokens=24,
        max_concurrency=2,
        cache_dir=tmp_path,
        ledger=tmp_path / "ledger.jsonl",
    )
    tasks = build_tasks(conditions=[0, 1, 2], budget=1, presentation=PresentationConfig(moves="aliases"))
    tap = Tapped()
    policy = EndpointPolicy("smollm2", config, Sampling(0.0), transport=tap)
    episodes = policy.play(tasks)

    assert Ending.ERROR not in {e.outcome.ending for e in episodes}
    assert all(turn.action for episode in episodes for turn in episode.turns)
    turns = sum(len(episode.turns) for episode in episodes)
    assert len(tap.usages) == turns >= 3
    entries = read_ledger(tmp_path / "ledger.jsonl")
    assert Counter((e.prompt_tokens, e.completion_tokens) for e in entries) == Counter(
        (usage["prompt_tokens"], usage["completion_tokens"]) for usage in tap.usages
    )
    totals = ledger_totals(entries, "eval")
    assert (totals.requests, totals.answered, totals.uncounted) == (turns, turns, 0)
    for name in ("prompt_tokens", "completion_tokens"):
        by_server = sum(usage[name] for usage in tap.usages)
        assert getattr(totals, name) == by_server == sum(e.usage[name] for e in episodes) == policy.usage[name]
    assert_prompts_are_counted_right(model_folder, tap)

    again = Tapped()
    resumed = EndpointPolicy("smollm2", config, Sampling(0.0), transport=again).play(tasks)
    assert again.usages == []
    assert [e.turns for e in resumed] == [e.turns for e in episodes]
    assert len(read_ledger(tmp_path / "ledger.jsonl")) == turns


def assert_prompts_are_counted_right(model_folder: Path, tap: Tapped) -> None:
    """The server's prompt counts are the lengths of the conversations under the model's own template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    for messages in tap.messages:
        text = str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
        assert len(tokenizer.encode(text, add_special_tokens=False)) in {usage["prompt_tokens"] for usage in tap.usages}


def test_a_model_that_the_server_does_not_have_is_an_error_that_says_so(build_tasks: Any, server: str) -> None:
    """Fault kind: endpoint failure scored as wrong."""
    config = EndpointConfig(base_url=server, model="no-such-model", timeout_s=PATIENCE_S)
    (episode,) = EndpointPolicy("m", config, Sampling(0.0)).play(build_tasks(conditions=[0]))
    assert episode.outcome.ending is Ending.ERROR
    assert str(episode.error).startswith("refused: ")
    assert "no-such-model" in str(episode.error)
