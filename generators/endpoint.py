"""A policy behind any OpenAI-compatible endpoint, for evaluation.

The server applies its own chat template, so how it treats control-token strings inside evidence is its
affair; our own back-ends never let world text yield control tokens. Episodes hold no token ids and can't be
trained on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import httpx
import numpy as np

from provgym.envs.event_loop import run_to_end
from provgym.generators.endpoint_client import ChatClient, Message
from provgym.generators.endpoint_config import EndpointConfig
from provgym.generators.endpoint_entry import CallTag, Phase
from provgym.generators.endpoint_reply import EndpointFailure
from provgym.generators.engine import Sampling
from provgym.generators.episode import Episode, EpisodeTask, Turn
from provgym.generators.scripted import finish_episode, start_episode
from provgym.rewards.outcome import Ending


class EndpointPolicy:
    """Plays episodes through a chat endpoint, many at once.

    A failed completion ends its own episode with ``error`` and the reason; the others go on. A conversation
    that no longer fits the server's context ends ``truncated``. An episode's ``usage`` tallies its answers, stored ones
    included, so that a resumed evaluation shows the figures of an uninterrupted one; what was paid is in the ledger.

    Args:
        name: Shown in tables.
        config: How the endpoint is reached.
        sampling: Greedy or at a temperature.
        instructions: System text, or None for the presentation's own.
        phase: What the ledger books the requests under.
        transport: Network edge; None is the real one.
        sleep: Waits between attempts.

    Attributes:
        usage: The episodes' tallies, summed over everything played so far.

    Raises:
        ValueError: If the environment variable that should hold the key does not.
    """

    def __init__(
        self,
        name: str,
        config: EndpointConfig,
        sampling: Sampling,
        *,
        instructions: str | None = None,
        phase: Phase = "eval",
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.name = name
        self.usage: Counter[str] = Counter()
        config.read_key()  # a missing key is an error now, not one error per episode later
        self._config, self._sampling, self._instructions, self._phase = config, sampling, instructions, phase
        self._transport, self._sleep = transport, sleep

    def play(
        self, tasks: Sequence[EpisodeTask], on_episode: Callable[[int, Episode], None] | None = None
    ) -> list[Episode]:
        """Play every task; see :class:`~provgym.generators.episode.Policy`.

        May be called any number of times, also from code that runs in an event loop.
        """
        return run_to_end(self._play_all(tasks, on_episode))

    async def _play_all(
        self, tasks: Sequence[EpisodeTask], on_episode: Callable[[int, Episode], None] | None
    ) -> list[Episode]:
        # The client belongs to this event loop alone: one kept over two calls would meet a closed loop.
        async with ChatClient(self._config, self._transport, self._sleep) as client:
            slots = asyncio.Semaphore(self._config.max_concurrency)

            async def play(index: int, task: EpisodeTask) -> Episode:
                async with slots:  # finished episodes come early, instead of all at the end
                    episode = await self._play_one(client, task)
                if on_episode is not None:
                    on_episode(index, episode)
                return episode

            running = [asyncio.ensure_future(play(index, task)) for index, task in enumerate(tasks)]
            try:
                return list(await asyncio.gather(*running))
            finally:
                for future in running:
                    future.cancel()
                await asyncio.gather(*running, return_exceptions=True)

    async def _play_one(self, client: ChatClient, task: EpisodeTask) -> Episode:
        env = start_episode(task)
        instructions = task.presentation.instructions if self._instructions is None else self._instructions
        messages: list[Message] = [{"role": "system", "content": instructions}]
        turns: list[Turn] = []
        usage: Counter[str] = Counter()
        error = None
        done = False
        while not done:
            observation = "\n".join(env.observation_lines)
            messages.append({"role": "user", "content": observation})
            seed = int(np.random.SeedSequence([task.sampling_seed, len(turns)]).generate_state(1)[0] >> 1)
            try:
                text = await client.complete(
                    messages, self._sampling.temperature, seed, usage, self._tag(task, len(turns))
                )
            except EndpointFailure as failure:
                env.abort(Ending.TRUNCATED if failure.kind == "too_long" else Ending.ERROR)
                error = None if failure.kind == "too_long" else str(failure)
                break
            messages.append({"role": "assistant", "content": text})
            turns.append(Turn(observation, text))
            _, _, terminated, truncated, _ = env.step(text)
            done = terminated or truncated
        self.usage.update(usage)
        return replace(finish_episode(env, task, turns, error), usage=dict(usage))

    def _tag(self, task: EpisodeTask, turn: int) -> CallTag:
        item = f"{task.instance.instance_id} {task.presentation.mitigation}/B{task.budget} turn {turn}"
        return CallTag(self._phase, task.member, item)
