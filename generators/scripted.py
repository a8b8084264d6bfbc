"""Scripted walkers: they read the text like a language model, or the graph itself, and write actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from provgym.envs.actions import format_stop
from provgym.envs.provenance import NodeKind, Stance
from provgym.envs.walk_text import GraphWalkTextEnv
from provgym.generators.episode import Episode, EpisodeTask, Turn
from provgym.rewards.outcome import Judgement, Verdict


class Walker(Protocol):
    """A scripted rule: looks at the environment and returns the next action's text."""

    def __call__(self, env: GraphWalkTextEnv, rng: np.random.Generator) -> str:
        """Return the next action."""
        ...


def start_episode(task: EpisodeTask) -> GraphWalkTextEnv:
    """Return the task's environment with its episode begun."""
    env = task.environment()
    env.reset(seed=task.presentation_seed, options={"instance": 0})
    return env


def finish_episode(
    env: GraphWalkTextEnv, task: EpisodeTask, turns: Sequence[Turn], error: str | None = None
) -> Episode:
    """Collect a finished environment into an episode."""
    if env.walk is None or env.presentation is None:
        raise RuntimeError("no episode was started")
    outcome = env.outcome()
    cited = () if outcome.judgement is None else env.presentation.source_ids(outcome.judgement.cited_sources)
    return Episode(
        instance_id=task.instance.instance_id,
        claim_id=task.instance.base_claim.claim_id,
        condition=task.instance.condition,
        split=task.instance.split,
        mitigation=task.presentation.mitigation,
        member=task.member,
        outcome=outcome,
        trace=tuple(env.trace),
        turns=tuple(turns),
        cited_source_ids=cited,
        cut_characters=env.presentation.cut_characters,
        error=error,
    )


class ScriptedPolicy:
    """Plays a :class:`Walker`; its choices are seeded by each task's ``sampling_seed``."""

    def __init__(self, name: str, walker: Walker) -> None:
        self.name = name
        self._walker = walker

    def play(
        self, tasks: Sequence[EpisodeTask], on_episode: Callable[[int, Episode], None] | None = None
    ) -> list[Episode]:
        """Play every task; see :class:`~provgym.generators.episode.Policy`."""
        episodes = []
        for index, task in enumerate(tasks):
            env = start_episode(task)
            rng = np.random.default_rng(task.sampling_seed)
            turns: list[Turn] = []
            done = False
            while not done:
                action = self._walker(env, rng)
                turns.append(Turn("\n".join(env.observation_lines), action))
                _, _, terminated, truncated, _ = env.step(action)
                done = terminated or truncated
            episodes.append(finish_episode(env, task, turns))
            if on_episode is not None:
                on_episode(index, episodes[-1])
        return episodes


def naive_walker(
    stop_probability: float = 0.0, confirm_probability: float = 0.0, take_probability: float = 0.0
) -> Walker:
    """Return a walker that counts every piece of evidence it meets, repeats included.

    It walks to any neighbour not yet visited and answers by the majority over *paths* among what it walked.

    Args:
        stop_probability: Chance of stopping before each walk but the first; cloned walkers need some, so that
            stopping early can be sampled and learned at all.
        confirm_probability: Chance of seeking confirmation where it can be had: of walking on to a node whose source
            was already read. It takes repetition for corroboration, the very fault that PAPT is to cure.
        take_probability: Chance of taking the first move on the list; else it looks at the next in the same way, and
            begins again after the last. 0 takes any move, each as likely as the others.
    """

    def walker(env: GraphWalkTextEnv, rng: np.random.Generator) -> str:
        walk, presentation = env.walk, env.presentation
        if walk is None or presentation is None:
            raise RuntimeError("no episode was started")
        graph = walk.instance.graph
        stops_early = stop_probability > 0.0 and walk.walks > 0 and float(rng.random()) < stop_probability
        fresh = [int(n) for n in walk.neighbours() if int(n) not in walk.visited]
        if walk.budget_left > 0 and fresh and not stops_early:
            read = {int(graph.node_source[n]) for n in walk.visited if graph.node_atom[n] >= 0}
            familiar = [n for n in fresh if graph.node_atom[n] >= 0 and int(graph.node_source[n]) in read]
            if familiar and confirm_probability > 0.0 and float(rng.random()) < confirm_probability:
                fresh = familiar
            place = int(rng.integers(len(fresh)))
            if take_probability > 0.0:
                fresh = sorted(fresh, key=lambda n: int(str(presentation.alias_of(n))[1:]))
                place = int(rng.geometric(take_probability) - 1) % len(fresh)
            return f"walk {presentation.alias_of(fresh[place])}"
        met = [n for n in walk.visited if NodeKind(int(graph.node_kind[n])).bears_evidence]
        stances = [graph.atoms[graph.node_atom[n]].stance for n in met]
        support, refute = stances.count(Stance.SUPPORT), stances.count(Stance.REFUTE)
        cited = dict.fromkeys(presentation.source_label(int(graph.node_source[n])) for n in met)
        return format_stop(Judgement(Verdict.from_counts(support, refute), support, refute, 0.9, tuple(cited)))

    return walker


naive_path_counter = naive_walker()
"""The naive walker that uses its whole budget."""


def echo_avoiding_oracle(env: GraphWalkTextEnv, rng: np.random.Generator) -> str:
    """Walk to the observation of a source not yet met, while there is one, and answer by distinct sources."""
    walk, presentation = env.walk, env.presentation
    if walk is None or presentation is None:
        raise RuntimeError("no episode was started")
    graph = walk.instance.graph
    met = {int(graph.node_atom[n]) for n in walk.visited if graph.node_atom[n] >= 0}
    fresh = [
        int(n)
        for n in walk.neighbours()
        if graph.node_kind[n] == NodeKind.OBSERVATION and int(graph.node_atom[n]) not in met
    ]
    if walk.budget_left > 0 and fresh:
        return f"walk {presentation.alias_of(fresh[rng.integers(len(fresh))])}"
    sources: dict[str, Stance] = {
        presentation.source_label(int(graph.node_source[n])): graph.atoms[graph.node_atom[n]].stance
        for n in walk.visited
        if graph.node_atom[n] >= 0
    }
    stances = list(sources.values())
    support, refute = stances.count(Stance.SUPPORT), stances.count(Stance.REFUTE)
    return format_stop(Judgement(Verdict.from_counts(support, refute), support, refute, 0.9, tuple(sources)))
