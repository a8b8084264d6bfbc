"""A policy over a scripted endpoint, which the tests of endpoints share."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx

from provgym.generators.endpoint import EndpointPolicy
from provgym.generators.endpoint_config import EndpointConfig
from provgym.generators.engine import Sampling
from provgym.generators.episode import EpisodeTask

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
