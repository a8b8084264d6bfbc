"""The roll-out: a language model plays many episodes at once.

Rows of the engine are refilled from the queue as episodes end; an action may take as many tokens as the
longest legal one; ids go in as they came out, with the world's ids appended, and are never tokenized again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from provgym.envs.walk_text import GraphWalkTextEnv
from provgym.generators.engine import (
    ActionConstraint,
    Dialogue,
    Engine,
    GuessingEngine,
    RestrictingEngine,
    Sampled,
    Sampling,
    WritingDialogue,
)
from provgym.generators.episode import Episode, EpisodeTask, Tokens, Turn, last_action
from provgym.generators.scripted import finish_episode, start_episode
from provgym.rewards.outcome import Ending

# What engines that guess are shown beforehand: two of each kind, so that what differs is not guessed.
_EXAMPLES = ("walk n1", "walk n2", "stop +1 -0 SUPPORT 0.9 S1", "stop +0 -2 REFUTE 0.8 S2 S3")


@dataclass(frozen=True, slots=True)
class Fork:
    """A walk that was played, and is to be judged once more.

    Attributes:
        task: Of the new episode: as that of the walk, but for its own member and sampling seed.
        walked: The walk, with tokens; its last action states a judgement.
        decided: Leading tokens of that action that are kept, >= 1: those that decide to stop.
    """

    task: EpisodeTask
    walked: Episode
    decided: int


@dataclass(slots=True)
class _Live:
    """An episode in progress."""

    index: int
    task: EpisodeTask
    env: GraphWalkTextEnv
    prompt_ids: list[int]
    unknown_tokens: int
    completion_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    """Tokens that the next action begins with, whatever is sampled."""

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)

    def append(self, ids: Sequence[int], logprobs: Sequence[float] | None) -> None:
        """Append sampled ids (with log-probabilities) or the world's (None)."""
        self.completion_ids.extend(ids)
        self.mask.extend([0 if logprobs is None else 1] * len(ids))
        self.logprobs.extend([0.0] * len(ids) if logprobs is None else logprobs)


class LanguageModelPolicy:
    """Plays episodes with an engine and a dialogue format.

    Args:
        name: Shown in tables.
        engine: Samples actions.
        dialogue: Turns text into ids and back.
        sampling: Greedy or at a temperature.
        instructions: System text, or None for the presentation's own.
        constraint: Holds actions to legal tokens; None (the default) lets the model write anything.

    Raises:
        ValueError: If a constraint is given and the engine can't restrict what it samples.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        dialogue: Dialogue,
        sampling: Sampling,
        *,
        instructions: str | None = None,
        constraint: ActionConstraint | None = None,
    ) -> None:
        self.name = name
        self._engine, self._dialogue, self._sampling = engine, dialogue, sampling
        self._instructions = instructions
        if constraint is not None and not isinstance(engine, RestrictingEngine):
            raise ValueError(f"{type(engine).__name__} can't hold actions to legal tokens; leave the constraint out")
        self._constraint = constraint
        if isinstance(engine, GuessingEngine) and isinstance(dialogue, WritingDialogue):
            for text in _EXAMPLES:
                engine.learn_action(dialogue.encode_action(text))

    def play(
        self, tasks: Sequence[EpisodeTask], on_episode: Callable[[int, Episode], None] | None = None
    ) -> list[Episode]:
        """Play every task; see :class:`~provgym.generators.episode.Policy`."""
        return self._play(tasks, on_episode)

    def judge_again(self, forks: Sequence[Fork]) -> list[Episode]:
        """Sample another judgement of each walk; returns whole episodes in the order of ``forks``.

        What was walked, and the words that decided to stop, are taken over as they were, and masked: an episode's
        sampled tokens are those of its own judgement (and of further actions, where what it wrote is no judgement).

        Raises:
            ValueError: If actions are held to a grammar, which would have to begin in the middle of one.
        """
        if self._constraint is not None:
            raise ValueError("judgements cannot be sampled again under a constraint; leave the constraint out")
        return self._play(forks)

    def _play(
        self,
        starts: Sequence[EpisodeTask] | Sequence[Fork],
        on_episode: Callable[[int, Episode], None] | None = None,
    ) -> list[Episode]:
        queue: deque[tuple[int, EpisodeTask | Fork]] = deque(enumerate(starts))
        free = list(range(self._engine.max_rows))[::-1]
        live: dict[int, _Live] = {}
        episodes: dict[int, Episode] = {}

        def finish(row: int, error: str | None = None) -> None:
            state = live.pop(row)
            self._engine.close_row(row)
            free.append(row)
            episode = self._collect(state, error)
            episodes[state.index] = episode
            if on_episode is not None:
                on_episode(state.index, episode)

        try:
            while queue or live:
                while queue and free:
                    row = free.pop()
                    live[row] = self._start(row, *queue.popleft())
                    if not self._ask(row, live[row], [*live[row].prompt_ids, *live[row].completion_ids]):
                        finish(row)
                for sampled in self._engine.poll():
                    state = live[sampled.row]
                    if sampled.error is not None:
                        state.env.abort(Ending.ERROR)
                        finish(sampled.row, sampled.error)
                    elif not self._advance(sampled, state):
                        finish(sampled.row)
        finally:
            for row in list(live):
                self._engine.close_row(row)
        return [episodes[index] for index in range(len(starts))]

    def _start(self, row: int, index: int, start: EpisodeTask | Fork) -> _Live:
        if isinstance(start, Fork):
            return self._start_fork(row, index, start)
        task, env = start, start_episode(start)
        instructions = task.presentation.instructions if self._instructions is None else self._instructions
        prompt = self._dialogue.opening(env.observation_lines, instructions)
        self._engine.open_row(row, task.sampling_seed, self._sampling)
        return _Live(index, task, env, prompt, self._dialogue.unknown_in(env.observation_lines))

    def _start_fork(self, row: int, index: int, fork: Fork) -> _Live:
        walked, tokens = fork.walked, fork.walked.tokens
        if tokens is None:
            raise ValueError(f"the walk of {walked.instance_id!r} has no token ids to go on from")
        env = start_episode(fork.task)
        is_over = False
        for turn in walked.turns:
            if is_over or "\n".join(env.observation_lines) != turn.observation:
                raise ValueError(
                    f"the walk of {walked.instance_id!r} goes another way when it is played again; its task has to "
                    "have the same instance, budget and presentation"
                )
            if turn is not walked.turns[-1]:
                _, _, terminated, truncated, _ = env.step(turn.action)
                is_over = terminated or truncated
        last = last_action(tokens.mask)
        begun = list(tokens.completion_ids[last.start : last.start + fork.decided])
        kept = list(tokens.completion_ids[: last.start + fork.decided])
        self._engine.open_row(row, fork.task.sampling_seed, self._sampling)
        state = _Live(index, fork.task, env, list(tokens.prompt_ids), walked.unknown_tokens)
        state.append(kept, None)
        state.turns, state.begun = list(walked.turns[:-1]), begun
        return state

    def _ask(self, row: int, state: _Live, ids: Sequence[int]) -> bool:
        """Ask for the next action; False (and a truncated episode) when the sequence could outgrow the engine."""
        limit = max(1, self._dialogue.max_action_tokens - len(state.begun))
        if state.length + limit > self._engine.max_length:
            state.env.abort(Ending.TRUNCATED)
            return False
        if self._constraint is not None and isinstance(self._engine, RestrictingEngine):
            self._engine.restrict(row, self._constraint.legal_tokens(state.env.observation_lines))
        self._engine.submit(row, ids, limit, self._dialogue.end_ids)
        return True

    def _advance(self, sampled: Sampled, state: _Live) -> bool:
        """Play one action; False when the episode is over."""
        text = self._dialogue.decode([*state.begun, *(sampled.ids[:-1] if sampled.ended else sampled.ids)])
        state.begun = []
        state.turns.append(Turn("\n".join(state.env.observation_lines), text))
        state.append(sampled.ids, sampled.logprobs)
        _, _, terminated, truncated, _ = state.env.step(text)
        if terminated or truncated:
            return False
        lines = state.env.observation_lines
        state.unknown_tokens += self._dialogue.unknown_in(lines)
        world = self._dialogue.reply(lines, ended=sampled.ended)
        if state.length + len(world) + self._dialogue.max_action_tokens > self._engine.max_length:
            state.env.abort(Ending.TRUNCATED)
            return False
        state.append(world, None)
        return self._ask(sampled.row, state, world)

    def _collect(self, state: _Live, error: str | None) -> Episode:
        episode = finish_episode(state.env, state.task, state.turns, error)
        tokens = Tokens(tuple(state.prompt_ids), tuple(state.completion_ids), tuple(state.mask), tuple(state.logprobs))
        return replace(episode, tokens=tokens, unknown_tokens=state.unknown_tokens)
