"""Episodes by hand for the tests of the evaluation floor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from provgym.generators.episode import Episode, EpisodeTask, Tokens
from provgym.generators.scripted import ScriptedPolicy, finish_episode, start_episode
from provgym.rewards.outcome import Ending, Judgement, Verdict, WalkOutcome

MakeEpisode = Callable[..., Episode]


def build_episode(
    claim: str = "c0",
    *,
    gold: str = "MIXED",
    answer: str | None = "MIXED",
    ending: str | None = None,
    counts: tuple[int, int] = (1, 1),
    confidence: float = 1.0,
    budget: int = 6,
    walks: int = 2,
    invalid_actions: int = 0,
    echoes: int = 0,
    connectors: int = 0,
    available: tuple[int, int] = (1, 1),
    acquired: tuple[int, int] = (1, 1),
    condition: str = "C1",
    instance: str | None = None,
    member: int = 0,
    tokens: Tokens | None = None,
    **fields: Any,
) -> Episode:
    """Return an episode; ``answer=None`` is an invalid stop unless ``ending`` says otherwise."""
    end = Ending(ending) if ending else (Ending.INVALID if answer is None else Ending.ANSWERED)
    judgement = None
    if end is Ending.ANSWERED:
        assert answer is not None
        judgement = Judgement(Verdict(answer), *counts, confidence=confidence)
    outcome = WalkOutcome(
        gold=Verdict(gold),
        judgement=judgement,
        ending=end,
        budget=budget,
        walks=walks,
        invalid_actions=invalid_actions,
        echoes=echoes,
        connector_moves=connectors,
        available_support=available[0],
        available_refute=available[1],
        acquired_support=acquired[0],
        acquired_refute=acquired[1],
    )
    return Episode(
        instance_id=instance or f"{claim}/{condition}",
        claim_id=claim,
        condition=condition,
        split="test",
        mitigation=fields.pop("mitigation", "M1"),
        member=member,
        outcome=outcome,
        trace=(),
        turns=(),
        tokens=tokens,
        error="time out" if end is Ending.ERROR else None,
        **fields,
    )


def random_episodes(seed: int, count: int = 60, claims: int = 12) -> list[Episode]:
    """Return episodes of every kind of ending, verdict and count, without repeating a key."""
    rng = np.random.default_rng(seed)
    verdicts = ["SUPPORT", "REFUTE", "MIXED"]
    found = []
    for number in range(count):
        ending = ["answered", "answered", "answered", "invalid", "truncated", "error"][rng.integers(6)]
        walks = int(rng.integers(0, 6))
        available = (int(rng.integers(0, 6)), int(rng.integers(0, 6)))
        found.append(
            build_episode(
                f"c{rng.integers(claims)}",
                gold=verdicts[rng.integers(3)],
                answer=verdicts[rng.integers(3)],
                ending=ending,
                counts=(int(rng.integers(0, 6)), int(rng.integers(0, 6))),
                confidence=round(float(rng.random()), 2),
                walks=walks,
                invalid_actions=int(rng.integers(0, 7 - walks)),
                echoes=int(rng.integers(0, walks + 1)),
                available=available,
                acquired=(int(rng.integers(0, available[0] + 1)), int(rng.integers(0, available[1] + 1))),
                condition=["C1", "C2", "C2R", "general"][rng.integers(4)],
                instance=f"i{number}",
            )
        )
    return found


class FlakyPolicy:
    """Plays a scripted policy, but ends chosen tasks in ``error``, or dies after some episodes."""

    def __init__(self, inner: ScriptedPolicy, *, errors: Sequence[int] = (), dies_after: int | None = None) -> None:
        self.name = inner.name
        self.inner = inner
        self.errors = set(errors)
        self.dies_after = dies_after
        self.played: list[str] = []

    def play(
        self, tasks: Sequence[EpisodeTask], on_episode: Callable[[int, Episode], None] | None = None
    ) -> list[Episode]:
        """Play the tasks last to first, as a batched policy might end them."""
        episodes: dict[int, Episode] = {}
        for index in reversed(range(len(tasks))):
            if self.dies_after is not None and len(self.played) >= self.dies_after:
                raise ConnectionError("the server went away")
            if index in self.errors:
                env = start_episode(tasks[index])
                assert env.walk is not None
                env.walk.abort(Ending.ERROR)
                episodes[index] = finish_episode(env, tasks[index], [], "time out")
            else:
                (episodes[index],) = self.inner.play([tasks[index]])
            self.played.append(tasks[index].instance.instance_id)
            if on_episode is not None:
                on_episode(index, episodes[index])
        return [episodes[index] for index in range(len(tasks))]


@pytest.fixture(scope="session")
def make_episode() -> MakeEpisode:
    """A function that builds one episode by hand."""
    return build_episode


@pytest.fixture(scope="session")
def make_random() -> Callable[..., list[Episode]]:
    """A function that draws episodes of every kind."""
    return random_episodes


@pytest.fixture(scope="session")
def flaky() -> type[FlakyPolicy]:
    """A policy that fails in chosen ways."""
    return FlakyPolicy
