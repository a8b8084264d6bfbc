"""One chat completion from any OpenAI-compatible server: retried, cached, counted, and failing by kind."""

from __future__ import annotations

import asyncio
import email.utils
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import diskcache
import httpx
import tenacity
from pydantic import BaseModel, ConfigDict, Field

FailureKind = Literal[
    "rate_limited",
    "timeout",
    "connection",
    "server",
    "refused",
    "too_long",
    "malformed",
    "no_choices",
    "no_content",
]
_RETRIED: frozenset[FailureKind] = frozenset(["rate_limited", "timeout", "connection", "server"])
Message = dict[str, str]


class EndpointConfig(BaseModel):
    """How an endpoint is reached.

    Attributes:
        base_url: Up to and including the version, such as ``http://localhost:8000/v1``.
        model: Name that the server knows.
        api_key_env: Environment variable that holds the key; unset or empty sends none. Keys are never
            stored.
        timeout_s: Of one attempt.
        max_attempts: Per completion, the first included.
        max_wait_s: Longest wait between attempts; a server that asks for more (Retry-After) counts as failed.
        max_concurrency: Requests in flight.
        max_tokens: Per completion.
        sends_seed: Whether the request names a seed; some servers refuse it. The cache always tells seeds
            apart.
        cache_dir: Folder of finished completions, so that none is paid for twice; None keeps none.
        extra_body: Further request fields, such as ``{"chat_template_kwargs": {"enable_thinking": false}}``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: str = Field(pattern=r"^https?://")
    model: str = Field(min_length=1)
    api_key_env: str = "OPENAI_API_KEY"
    timeout_s: float = Field(default=60.0, gt=0)
    max_attempts: int = Field(default=5, ge=1)
    max_wait_s: float = Field(default=60.0, ge=0)
    max_concurrency: int = Field(default=16, ge=1)
    max_tokens: int = Field(default=256, ge=1)
    sends_seed: bool = True
    cache_dir: Path | None = None
    extra_body: dict[str, Any] = Field(default_factory=dict)


class EndpointFailure(Exception):
    """A completion that could not be had.

    Attributes:
        kind: What went wrong.
        retry_after_s: What the server asked to wait, or None.
    """

    def __init__(self, kind: FailureKind, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer.

    Attributes:
        text: As written, also when it was cut at ``max_tokens``.
        usage: ``prompt_tokens`` and ``completion_tokens`` as the server counted them, ``usage_missing`` if it
            did not, ``cut`` if the text was cut, and ``attempts`` or ``cached``.
    """

    text: str
    usage: Mapping[str, int]


class ChatClient:
    """Asks for completions within one event loop; use as an async context manager.

    Args:
        config: How the endpoint is reached.
        transport: Network edge; None is the real one.
        sleep: Waits between attempts.
    """

    def __init__(
        self,
        config: EndpointConfig,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._config, self._sleep = config, sleep
        key = os.environ.get(config.api_key_env, "")
        self._http = httpx.AsyncClient(
            transport=transport,
            timeout=config.timeout_s,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            limits=httpx.Limits(max_connections=config.max_concurrency),
        )
        self._cache = None if config.cache_dir is None else diskcache.Cache(str(config.cache_dir))
        self._slots = asyncio.Semaphore(config.max_concurrency)

    async def __aenter__(self) -> ChatClient:
        """Return the client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close connections and cache."""
        await self._http.aclose()
        if self._cache is not None:
            self._cache.close()

    async def complete(self, messages: list[Message], temperature: float, seed: int, usage: Counter[str]) -> str:
        """Return the answer to a conversation.

        Args:
            messages: The conversation so far.
            temperature: 0 is greedy.
            seed: Tells replicates apart, and is sent if the config says so.
            usage: Every attempt, token and cache hit is added to it, also when the completion fails.

        Raises:
            EndpointFailure: If no answer could be had.
        """
        payload = {
            **self._config.extra_body,
            "model": self._config.model,
            "messages": messages,
            "temperature": temperature,
            "max_tokens": self._config.max_tokens,
        }
        key = _content_key(self._config.base_url, payload, seed)
        stored = None if self._cache is None else self._cache.get(key)
        if stored is not None:
            usage["cached"] += 1
            return str(stored)
        if self._config.sends_seed:
            payload["seed"] = seed
        async with self._slots:
            completion = await self._with_retries(payload, usage)
        usage.update(completion.usage)
        if self._cache is not None:
            self._cache.set(key, completion.text)
        return completion.text

    async def _with_retries(self, payload: Mapping[str, Any], usage: Counter[str]) -> Completion:
        retrying = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self._config.max_attempts),
            wait=self._wait,
            retry=tenacity.retry_if_exception(self._is_worth_retrying),
            sleep=self._sleep,
            reraise=True,
        )
        async for attempt in retrying:
            with attempt:
                usage["attempts"] += 1
                return await self._attempt(payload)
        raise AssertionError("tenacity either returns or raises")

    def _is_worth_retrying(self, error: BaseException) -> bool:
        if not isinstance(error, EndpointFailure) or error.kind not in _RETRIED:
            return False
        return error.retry_after_s is None or error.retry_after_s <= self._config.max_wait_s

    def _wait(self, state: tenacity.RetryCallState) -> float:
        """Return what the server asked for, else 1, 2, 4 ... seconds within the limit."""
        error = None if state.outcome is None else state.outcome.exception()
        if isinstance(error, EndpointFailure) and error.retry_after_s is not None:
            return error.retry_after_s
        return float(min(2.0 ** (state.attempt_number - 1), self._config.max_wait_s))

    async def _attempt(self, payload: Mapping[str, Any]) -> Completion:
        url = f"{self._config.base_url.rstrip('/')}/chat/completions"
        try:
            # The whole exchange has one deadline: a server that trickles bytes would never run into httpx's
            # own.
            async with asyncio.timeout(self._config.timeout_s):
                response = await self._http.post(url, json=payload)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise EndpointFailure("timeout", f"{url} gave no answer in {self._config.timeout_s:g} s") from error
        except httpx.HTTPError as error:
            raise EndpointFailure("connection", f"{url}: {type(error).__name__}: {error}") from error
        if response.status_code != 200:
            raise _status_failure(url, response)
        return _read_completion(url, response)


def _status_failure(url: str, response: httpx.Response) -> EndpointFailure:
    status = response.status_code
    detail = f"{url} answered HTTP {status}: {response.text[:300]}"
    if status == 429:
        return EndpointFailure("rate_limited", detail, _retry_after(response))
    if status in (408, 409, 425) or status >= 500:
        return EndpointFailure("server", detail, _retry_after(response))
    if status == 400 and any(mark in response.text for mark in ("context_length", "context length", "max_model_len")):
        return EndpointFailure("too_long", detail)
    return EndpointFailure("refused", detail)


def _retry_after(response: httpx.Response) -> float | None:
    """Return the Retry-After header in seconds; it holds seconds or a date."""
    value = response.headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _read_completion(url: str, response: httpx.Response) -> Completion:
    """Read a chat completion; tool calls become the JSON that the environment reads."""
    try:
        body = response.json()
        choices = body["choices"]
        choice = choices[0] if choices else None
        message = None if choice is None else choice["message"]
        calls = None if message is None else message.get("tool_calls")
        text = None if message is None else message.get("content")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EndpointFailure("malformed", f"{url}: no chat completion: {response.text[:300]}") from error
    if choice is None:
        raise EndpointFailure("no_choices", f"{url} answered HTTP 200 with an empty list of choices")
    if not text and isinstance(calls, list) and calls and isinstance(calls[0], dict):
        text = json.dumps(calls[0].get("function"))
    if not isinstance(text, str):
        raise EndpointFailure("no_content", f"{url} answered HTTP 200 with content {text!r}")
    # A lone surrogate is legal JSON but can't be sent back: it becomes a replacement character.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return Completion(text, _read_usage(body.get("usage"), choice.get("finish_reason") == "length"))


def _read_usage(usage: Any, is_cut: bool) -> dict[str, int]:
    counts = {"cut": 1} if is_cut else {}
    if not isinstance(usage, dict):
        return {**counts, "usage_missing": 1}
    for name in ("prompt_tokens", "completion_tokens"):
        if isinstance(usage.get(name), int):
            counts[name] = usage[name]
    return counts


def _content_key(base_url: str, payload: Mapping[str, Any], seed: int) -> str:
    text = json.dumps([base_url, payload, seed], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
