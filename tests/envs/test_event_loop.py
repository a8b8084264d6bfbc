"""Coroutines at once: one failure ends the others, before anybody closes what they use."""

from __future__ import annotations

import asyncio

import pytest

from provgym.envs.event_loop import all_of, run_to_end


def test_results_stand_in_order() -> None:
    async def after(pause: float, value: int) -> int:
        await asyncio.sleep(pause)
        return value

    async def both() -> list[int]:
        return await all_of([after(0.02, 1), after(0.0, 2)])

    assert run_to_end(both()) == [1, 2]


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_nothing_goes_on_after_a_failure_or_a_cancellation(is_cancelled: bool) -> None:
    """Gathered alone, siblings of a failure went on asking agents whose connections were closed meanwhile."""
    ended: list[str] = []

    async def long() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)  # such as to give a connection back
            ended.append("long")

    async def failing() -> None:
        await asyncio.sleep(60 if is_cancelled else 0.01)
        raise OSError("no space left")

    async def run() -> None:
        running = asyncio.ensure_future(all_of([long(), failing(), long()]))
        if is_cancelled:
            await asyncio.sleep(0.01)
            running.cancel()
        with pytest.raises(asyncio.CancelledError if is_cancelled else OSError):
            await running
        assert ended == ["long", "long"]

    run_to_end(run())
