"""An agent behind any OpenAI-compatible endpoint, with a store of completions and a ledger of requests of its own.

Above it, the runtime's message cache answers what was asked before; below, the endpoint's own store has every
completion on the disk before it is used. So a run that is killed at any moment pays no completion twice, and the
ledger has a line for each request that left, whoever asked.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from provgym.envs.agent_prompts import PROMPT_FORMAT, agent_prompt
from provgym.envs.workflow_records import AgentFailure, AgentReply, NodeCall
from provgym.generators.agent_replies import call_seed, reply_of
from provgym.generators.endpoint_client import ChatClient, Message
from provgym.generators.endpoint_config import EndpointConfig
from provgym.generators.endpoint_entry import CallTag
from provgym.generators.endpoint_reply import EndpointFailure
from provgym.generators.engine import Sampling


@dataclass
class _Open:
    """A client that is open in one event loop, and how many blocks hold it."""

    client: ChatClient
    holders: int = 0


class EndpointAgent:
    """Plays every role through a chat endpoint.

    Args:
        config: How the endpoint is reached. Its bound on requests in flight holds beside the runtime's.
        sampling: Greedy or at a temperature.
        seed: Of sampling; with the call's content it makes the seed that a request names.
        transport: Network edge; None is the real one.
        sleep: Waits between attempts.

    Raises:
        ValueError: If the environment variable that should hold the key does not.
    """

    def __init__(
        self,
        config: EndpointConfig,
        sampling: Sampling,
        *,
        seed: int = 0,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        config.read_key()  # a missing key is an error now, not one error per call later
        self._config, self._sampling, self._seed = config, sampling, seed
        self._transport, self._sleep = transport, sleep
        # A client belongs to its event loop: one kept over two loops would meet a closed one.
        self._open: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Open] = weakref.WeakKeyDictionary()

    @property
    def fingerprint(self) -> str:
        """Endpoint, model, sampling, seed and prompt format; never the key."""
        return json.dumps(["endpoint", PROMPT_FORMAT, self._config.identity, self._sampling.temperature, self._seed])

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        """Keep connections, store and ledger open for a block; blocks of one event loop share them."""
        loop = asyncio.get_running_loop()
        held = self._open.get(loop)
        if held is None:
            held = self._open[loop] = _Open(ChatClient(self._config, self._transport, self._sleep))
        held.holders += 1
        try:
            yield
        finally:
            held.holders -= 1
            if not held.holders:
                del self._open[loop]
                await held.client.__aexit__()

    async def reply(self, call: NodeCall) -> AgentReply:
        """Answer one call.

        Raises:
            AgentFailure: If no completion could be had; its kind is the endpoint's.
            OSError: If an answer can't be stored, such as on a full disk.
        """
        prompt = agent_prompt(call)
        messages: list[Message] = [
            {"role": "system", "content": prompt.system},
            {"role": "user", "content": prompt.user},
        ]
        usage: Counter[str] = Counter()
        async with self.session():
            client = self._open[asyncio.get_running_loop()].client
            try:
                text = await client.complete(
                    messages, self._sampling.temperature, call_seed(call, self._seed), usage, _tag(call)
                )
            except EndpointFailure as failure:
                raise AgentFailure(failure.kind, failure.detail) from failure
        return reply_of(
            call,
            text,
            prompt_tokens=usage["prompt_tokens"],
            completion_tokens=usage["completion_tokens"],
            is_counted=not usage["usage_missing"],
            is_cached=bool(usage["cached"]),
        )


def _tag(call: NodeCall) -> CallTag:
    return CallTag(call.phase, call.replicate, f"{call.task_id} {call.role.name}/{call.sibling}")
