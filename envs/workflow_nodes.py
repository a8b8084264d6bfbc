"""One call of one node: answered by a stored reply, or by the agent within the bound on calls in flight."""

from __future__ import annotations

import asyncio
import time
import weakref
from dataclasses import dataclass

from provgym.envs.workflow_cache import ReplyStore, StoredReply
from provgym.envs.workflow_key import content_digest, reply_key
from provgym.envs.workflow_ledger import TokenLedger
from provgym.envs.workflow_records import Agent, AgentFailure, AgentReply, CallRecord, NodeCall


@dataclass(frozen=True, slots=True)
class NodeReply:
    """A call that was answered.

    Attributes:
        reply: What the agent said.
        record: What it cost.
    """

    reply: AgentReply
    record: CallRecord


class NodeExecutor:
    """Answers calls, each at most once for all that ask the same.

    Args:
        agent: Plays the roles.
        cache: Replies that were had before; None asks the agent every time.
        ledger: Where calls are booked.
        max_concurrency: Calls that the agent works on at once, over all runs of one event loop.

    Raises:
        ValueError: If ``max_concurrency`` < 1.
    """

    def __init__(self, agent: Agent, cache: ReplyStore | None, ledger: TokenLedger, max_concurrency: int) -> None:
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency={max_concurrency} must be >= 1")
        self._agent, self._cache, self._ledger = agent, cache, ledger
        self._max_concurrency = max_concurrency
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )

    async def __call__(self, call: NodeCall, node: int) -> NodeReply:
        """Answer one call.

        Args:
            call: What the agent is told.
            node: Its number, for the record alone.

        Raises:
            AgentFailure: If no reply could be had; it is booked, and not stored.
        """
        key = reply_key(self._agent.fingerprint, content_digest(call))
        stored = None if self._cache is None else self._cache.get(key)
        is_paid = False
        if stored is None and self._cache is not None:
            async with self._cache.alone(key):
                stored = self._cache.get(key)
                if stored is None:
                    stored = await self._ask(call)
                    is_paid = not stored.reply.is_cached
                    self._cache.put(key, stored)
        elif stored is None:
            stored = await self._ask(call)
            is_paid = not stored.reply.is_cached
        record = _record(call, node, key, stored, is_paid)
        self._ledger.book(record)
        return NodeReply(stored.reply, record)

    async def _ask(self, call: NodeCall) -> StoredReply:
        loop = asyncio.get_running_loop()
        slots = self._slots.get(loop)
        if slots is None:  # a semaphore belongs to one event loop
            slots = self._slots[loop] = asyncio.Semaphore(self._max_concurrency)
        async with slots:
            start = time.monotonic()
            try:
                reply = await self._agent.reply(call)
            except AgentFailure:
                self._ledger.book_failure(call.phase)
                raise
            return StoredReply(reply, time.monotonic() - start)


def _record(call: NodeCall, node: int, key: str, stored: StoredReply, is_paid: bool) -> CallRecord:
    reply = stored.reply
    return CallRecord(
        node=node,
        role=call.role.name,
        phase=call.phase,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        is_cached=not is_paid,
        key=key,
        is_counted=reply.is_counted,
        seconds=stored.seconds,
    )
