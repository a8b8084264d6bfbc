"""Running a coroutine to its end from code that is not asynchronous, also where an event loop runs already."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


async def all_of(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines at the same time and return their results in order.

    Once one fails, or this is cancelled, the others are cancelled and waited for: none goes on unseen, such as without
    the connections that its caller closes.

    Raises:
        BaseException: Whatever the first that fails raises.
    """
    running = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*running))
    finally:
        left = [future for future in running if not future.done()]
        for future in left:
            if not future.cancelling():  # twice would cut short what it does on its way out
                future.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def run_to_end(coroutine: Coroutine[None, None, T]) -> T:
    """Run a coroutine to its end, on a thread of its own if this one already runs an event loop.

    Each call has an event loop of its own: nothing that belongs to a loop may be kept over two calls.

    Example:
        >>> async def answer() -> int:
        ...     return 42
        >>> run_to_end(answer()), run_to_end(answer())
        (42, 42)
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
