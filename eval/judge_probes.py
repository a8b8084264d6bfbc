"""Judges that see structure and source ids but no evidence text, or one piece of it: probes that play.

They answer as the probes of :mod:`provgym.eval.probes` do in expectation; played, they also have shifts, counts and
episodes of their own.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from provgym.envs.provenance import Instance
from provgym.envs.walk_text import GraphWalkTextEnv
from provgym.eval.judge_metrics import GROUPS, groups_of
from provgym.eval.metric_kinds import VERDICTS, Floats
from provgym.eval.probes import (
    Case,
    Probe,
    View,
    best_answers,
    case_of,
    general_population,
    probe_cases,
    see_number,
    see_number_and_node,
    see_routes,
    see_routes_and_node,
)
from provgym.generators.conditions import GENERAL
from provgym.generators.judge_scripted import verdict_answer
from provgym.generators.scripted import Walker


class _Knowledge(NamedTuple):
    """What is seen of a case, and how it is best answered."""

    view: View
    answers: Mapping[Hashable, Floats]


def group_probes(instances: Sequence[Instance]) -> dict[str, tuple[Probe, ...]]:
    """Return the three probes of each group of conditions (:data:`~provgym.eval.judge_metrics.GROUPS`)."""
    return {
        group: probe_cases(cases, general_population() if group == GENERAL else None)
        for group, cases in _cases(instances).items()
    }


def structure_judge(instances: Sequence[Instance], *, reads_node: bool) -> Walker:
    """Return a judge that knows how often each verdict goes with a structure, and reads no text, or one node.

    Args:
        instances: What it will judge; of named conditions it knows these very instances, of general ones how they are
            drawn. Each group of conditions is a population of its own.
        reads_node: Whether it reads the stance of one route, drawn at random.
    """
    known: dict[str, _Knowledge] = {}
    for group, cases in _cases(instances).items():
        if group == GENERAL:
            view = see_number_and_node if reads_node else see_number
            known[group] = _Knowledge(view, best_answers(general_population(), view))
        else:
            view = see_routes_and_node if reads_node else see_routes
            known[group] = _Knowledge(view, best_answers(cases, view))

    def judge(env: GraphWalkTextEnv, rng: np.random.Generator) -> str:
        if env.walk is None:
            raise RuntimeError("no episode was started")
        instance = env.walk.instance
        return _answer(known, instance, rng)

    return judge


def _answer(known: Mapping[str, _Knowledge], instance: Instance, rng: np.random.Generator) -> str:
    group = groups_of(instance.condition)[0]
    if group not in known:
        raise ValueError(
            f"instance {instance.instance_id!r} is of group {group!r}; the structure judge was made for {sorted(known)}"
        )
    seen = list(known[group].view(case_of(instance)))
    glance, _ = seen[rng.choice(len(seen), p=[chance for _, chance in seen])]
    chances = known[group].answers.get(glance)
    if chances is None:
        raise ValueError(
            f"instance {instance.instance_id!r} shows {glance}, which the structure judge of group {group!r} never "
            "saw; make it from the instances that it judges"
        )
    return verdict_answer(VERDICTS[rng.choice(len(VERDICTS), p=chances)])


def _cases(instances: Sequence[Instance]) -> dict[str, list[Case]]:
    """Return the cases of each group that has any."""
    found = {group: [case_of(i) for i in instances if group in groups_of(i.condition)] for group in GROUPS}
    return {group: cases for group, cases in found.items() if cases}
