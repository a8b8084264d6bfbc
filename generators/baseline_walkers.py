"""Exploration baselines: how far walking at random, or breadth first, gets with a sound judgement.

Both answer by the majority over the distinct sources that they met, so only their way of walking is tested.
"""

from __future__ import annotations

import numpy as np

from provgym.envs.actions import format_stop
from provgym.envs.presentation import Presentation
from provgym.envs.provenance import Stance
from provgym.envs.walk import Walk
from provgym.envs.walk_text import GraphWalkTextEnv
from provgym.rewards.outcome import Judgement, Verdict


def random_walker(env: GraphWalkTextEnv, rng: np.random.Generator) -> str:
    """Walk to any neighbour, visited or not, until the budget is spent."""
    walk, presentation = _running(env)
    moves = [int(node) for node in walk.neighbours()]
    if walk.budget_left > 0 and moves:
        return f"walk {presentation.alias_of(moves[rng.integers(len(moves))])}"
    return _answer(walk, presentation)


def breadth_first_walker(env: GraphWalkTextEnv, rng: np.random.Generator) -> str:
    """Walk to the neighbour that was discovered first among those not yet visited, else back to the first of all."""
    walk, presentation = _running(env)
    order = {int(node): int((presentation.alias_of(int(node)) or "n0")[1:]) for node in walk.neighbours()}
    if walk.budget_left > 0 and order:
        node = min(order, key=lambda n: (n in walk.visited, order[n]))
        return f"walk {presentation.alias_of(node)}"
    return _answer(walk, presentation)


def _running(env: GraphWalkTextEnv) -> tuple[Walk, Presentation]:
    if env.walk is None or env.presentation is None:
        raise RuntimeError("no episode was started; call reset first")
    return env.walk, env.presentation


def _answer(walk: Walk, presentation: Presentation) -> str:
    """Stop with the majority over distinct sources among the nodes visited."""
    graph = walk.instance.graph
    sources: dict[str, Stance] = {
        presentation.source_label(int(graph.node_source[node])): graph.atoms[graph.node_atom[node]].stance
        for node in walk.visited
        if graph.node_atom[node] >= 0
    }
    stances = list(sources.values())
    support, refute = stances.count(Stance.SUPPORT), stances.count(Stance.REFUTE)
    verdict = Verdict.from_counts(support, refute)
    return format_stop(Judgement(verdict, support, refute, 0.9, tuple(sources)))
