"""Completions from any OpenAI-compatible server: retried, cached, entered in a ledger, and failing by kind."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import httpx
import tenacity

from provgym.generators.endpoint_cache import CACHE_FORMAT, CompletionCache
from provgym.generators.endpoint_config import EndpointConfig
from provgym.generators.endpoint_entry import CallTag, LedgerEntry, finished, new_entry
from provgym.generators.endpoint_ledger import Ledger
from provgym.generators.endpoint_reply import (
    RETRIED,
    Completion,
    EndpointFailure,
    FailureKind,
    Reply,
    read_reply,
)

Message = dict[str, str]
MAX_REPLY_BYTES = 16 * 1024 * 1024
"""A longer reply is no chat completion."""

_JSON = {"content-type": "application/json"}
_SAYS_SERVER_WORKS: frozenset[FailureKind] = frozenset(["too_long", "malformed", "no_choices", "no_content"])


class _Call(NamedTuple):
    """One completion that is being asked for."""

    key: str
    payload: Mapping[str, Any]
    tag: CallTag
    usage: Counter[str]


class ChatClient:
    """Asks for completions within one event loop; use as an async context manager.

    Args:
        config: How the endpoint is reached.
        transport: Network edge; None is the real one.
        sleep: Waits between attempts.

    Raises:
        ValueError: If the key's variable is unset, or cache or ledger are of another format.
        OSError: If cache or ledger can't be written.
    """

    def __init__(
        self,
        config: EndpointConfig,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._config, self._sleep = config, sleep
        self._url = f"{config.base_url}/chat/completions"
        self._key = config.read_key()
        self._cache = None if config.cache_dir is None else CompletionCache(config.cache_dir)
        self._ledger = None if config.ledger is None else Ledger(config.ledger)
        self._http = httpx.AsyncClient(
            transport=transport,
            timeout=config.timeout_s,
            follow_redirects=False,  # the key goes to base_url and nowhere else
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            limits=httpx.Limits(max_connections=config.max_concurrency),
        )
        self._slots = asyncio.Semaphore(config.max_concurrency)
        self._failed_in_a_row = 0
        self._last_failure = ""

    async def __aenter__(self) -> ChatClient:
        """Return the client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close connections, cache and ledger."""
        await self._http.aclose()
        for file in (self._cache, self._ledger):
            if file is not None:
                file.close()

    async def complete(
        self,
        messages: list[Message],
        temperature: float,
        seed: int,
        usage: Counter[str],
        tag: CallTag | None = None,
    ) -> str:
        """Return the answer to a conversation.

        Args:
            messages: The conversation so far.
            temperature: 0 is greedy.
            seed: Tells samples apart, and is sent if the config says so.
            usage: Tallied, also when the completion fails: ``attempts``; of the answer, whether it was asked for now or
                stored before, ``prompt_tokens`` and ``completion_tokens`` as the server counted them, or
                ``usage_missing``; ``cut`` if it was cut at the token limit; ``cached`` if it was stored before.
            tag: For what, and which repeat; repeats are never answered by each other's stored completion.

        Raises:
            EndpointFailure: If no answer could be had.
            OSError: If an answer can't be stored, such as on a full disk.
        """
        call = self._call(messages, temperature, seed, usage, tag or CallTag())
        completion = self._stored(call)
        if completion is None and self._cache is not None:
            async with self._cache.alone(call.key):
                completion = self._stored(call) or await self._ask(call)
        elif completion is None:
            completion = await self._ask(call)
        usage.update(completion.counts)
        return completion.text

    def _call(self, messages: list[Message], temperature: float, seed: int, usage: Counter[str], tag: CallTag) -> _Call:
        config = self._config
        payload: dict[str, Any] = {
            **config.extra_body,
            "model": config.model,
            "messages": list(messages),
            config.max_tokens_field: config.max_tokens,
        }
        if config.sends_temperature:
            payload["temperature"] = temperature
        # The digest holds temperature, seed and replicate whether they are sent or not.
        text = json.dumps(
            [CACHE_FORMAT, config.base_url, payload, temperature, seed, tag.replicate], sort_keys=True, allow_nan=False
        )
        if config.sends_seed:
            payload["seed"] = seed
        return _Call(hashlib.sha256(text.encode("ascii")).hexdigest(), payload, tag, usage)

    def _stored(self, call: _Call) -> Completion | None:
        found = None if self._cache is None else self._cache.get(call.key)
        if found is not None:
            call.usage["cached"] += 1
        return found

    async def _ask(self, call: _Call) -> Completion:
        """Ask the server, within the bounds on requests in flight and on time."""
        async with self._slots:
            if self._failed_in_a_row >= self._config.give_up_after:
                raise EndpointFailure(
                    "given_up", f"{self._failed_in_a_row} completions in a row failed, the last by {self._last_failure}"
                )
            try:
                async with asyncio.timeout(self._config.deadline_s):
                    completion = await self._with_retries(call)
            except (EndpointFailure, TimeoutError) as error:
                failure = error if isinstance(error, EndpointFailure) else self._deadline_passed()
                works = failure.kind in _SAYS_SERVER_WORKS
                self._failed_in_a_row = 0 if works else self._failed_in_a_row + 1
                self._last_failure = str(failure)
                raise failure from None
            self._failed_in_a_row = 0
            return completion

    def _deadline_passed(self) -> EndpointFailure:
        detail = f"{self._url} gave no answer within {self._config.deadline_s:g} s, all attempts together"
        return EndpointFailure("deadline", detail)

    async def _with_retries(self, call: _Call) -> Completion:
        retrying = tenacity.AsyncRetrying(
            stop=tenacity.stop_any(
                tenacity.stop_after_attempt(self._config.max_attempts),
                tenacity.stop_before_delay(self._config.deadline_s),
            ),
            wait=lambda state: self._wait(state, call.key),
            retry=tenacity.retry_if_exception(self._is_worth_retrying),
            sleep=self._sleep,
            reraise=True,
        )
        async for attempt in retrying:
            with attempt:
                return await self._attempt(call, attempt.retry_state.attempt_number)
        raise AssertionError("tenacity either returns or raises")

    def _is_worth_retrying(self, error: BaseException) -> bool:
        if not isinstance(error, EndpointFailure) or error.kind not in RETRIED:
            return False
        return error.retry_after_s is None or error.retry_after_s <= self._config.max_wait_s

    def _wait(self, state: tenacity.RetryCallState, key: str) -> float:
        """Return what the server asked for, else 1, 2, 4 ... seconds within the limit, less up to half of it.

        What is taken off comes from the call's digest: calls that failed together come back apart, and repeatably.
        """
        error = None if state.outcome is None else state.outcome.exception()
        if isinstance(error, EndpointFailure) and error.retry_after_s is not None:
            return error.retry_after_s
        longest = float(min(2.0 ** (state.attempt_number - 1), self._config.max_wait_s))
        return longest * (1.0 - int(key[:8], 16) / 2**33)

    async def _attempt(self, call: _Call, number: int) -> Completion:
        """Send one request; its ledger line stands before it leaves and is filled in after the answer is stored."""
        entry = new_entry(call.key, number, call.tag, self._config.model, self._url)
        if self._ledger is not None:
            self._ledger.open_line(entry)
        call.usage["attempts"] += 1
        start = time.monotonic()
        result: Completion | EndpointFailure | None = None
        try:
            result = read_reply(await self._exchange(call.payload))
            if self._cache is not None:
                self._cache.put(call.key, result)
            return result
        except EndpointFailure as failure:
            result = failure.without(self._key)
            raise result from None
        finally:
            self._close_line(finished(entry, time.monotonic() - start, result))

    def _close_line(self, entry: LedgerEntry) -> None:
        if self._ledger is not None:
            self._ledger.close_line(entry)

    async def _exchange(self, payload: Mapping[str, Any]) -> Reply:
        content = json.dumps(payload).encode("ascii")  # whatever a text holds, lone surrogates too, can be sent
        body = bytearray()
        try:
            # The whole exchange has one deadline: a server that trickles bytes would never run into httpx's own.
            async with (
                asyncio.timeout(self._config.timeout_s),
                self._http.stream("POST", self._url, content=content, headers=_JSON) as response,
            ):
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_REPLY_BYTES:
                        detail = f"{self._url} answered with more than {MAX_REPLY_BYTES} bytes"
                        raise EndpointFailure("malformed", detail, None, response.status_code)
        except (TimeoutError, httpx.TimeoutException):
            raise EndpointFailure("timeout", f"{self._url} gave no answer in {self._config.timeout_s:g} s") from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise EndpointFailure("connection", f"{self._url}: {type(error).__name__}: {error}") from None
        return Reply(self._url, response.status_code, response.headers, bytes(body))
