"""Running a coroutine to its end from code that is not asynchronous, also where an event loop runs already."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


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
