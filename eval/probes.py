"""Probes: what can be scored on a set of instances without reading evidence.

A figure below the best probe of its instances shows no learning to count sources. Three probes:

* ``constant``: the best constant verdict;
* ``structure``: the best judge that sees which route belongs to which (anonymous) source, but no text;
* ``structure + 1 node``: the same judge after reading one evidence node, drawn at random from the routes.

"Best" is Bayes-optimal: the judge knows how often each verdict goes with what it sees. For named conditions
that knowledge comes from the instances themselves, of which there are few kinds (in a claim file where every
instance has a structure of its own, the figure is an upper bound only). General conditions have nearly as
many kinds as instances, where the same would be learning by heart; there it comes from the distribution they
are drawn from, enumerated, in which routes are drawn alike for every source and tell nothing: only the number
of sources does. Ties are broken at random; figures are exact expectations over ties and over the node read.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from provgym.envs.provenance import Instance, Stance
from provgym.eval.metric_kinds import NO_ANSWER, VERDICTS, ConfusionMetric, Floats
from provgym.eval.metrics import GENERAL_PREFIX
from provgym.generators.conditions import GENERAL, MAX_SOURCES
from provgym.rewards.outcome import Verdict

CONSTANT, STRUCTURE, ONE_NODE = "constant", "structure", "structure + 1 node"


@dataclass(frozen=True, slots=True)
class Probe:
    """What a judge of one kind scores; n = 0 where there is no instance, and every figure is NaN then.

    Attributes:
        name: Kind of judge; the constant one names its verdict.
        accuracy: Expected accuracy, in [0, 1].
        balanced_accuracy: Mean recall over the verdicts present in gold.
        macro_f1: Mean F1 over the verdicts present in gold.
        n: Instances.
    """

    name: str
    accuracy: float
    balanced_accuracy: float
    macro_f1: float
    n: int

    def to_json(self) -> dict[str, float | int | str | None]:
        """Return JSON-ready data; NaN becomes null."""
        figures = {k: getattr(self, k) for k in ("accuracy", "balanced_accuracy", "macro_f1")}
        return {
            "name": self.name,
            **{k: None if math.isnan(v) else v for k, v in figures.items()},
            "n": self.n,
        }


class Case(NamedTuple):
    """One instance as far as probes see it: routes of each supporting and each refuting source, and gold."""

    supporting: tuple[int, ...]
    refuting: tuple[int, ...]
    gold: Verdict
    weight: float = 1.0


View = Callable[[Case], Iterable[tuple[Hashable, float]]]
"""What a judge may see of a case: (what it sees, probability); probabilities add up to 1."""


def probes_of(instances: Sequence[Instance]) -> dict[str, tuple[Probe, ...]]:
    """Return the three probes by metric prefix: of the general instances, and of all others.

    Example:
        >>> probes_of([])
        {}
    """
    found: dict[str, tuple[Probe, ...]] = {}
    for prefix, wanted in (("", False), (GENERAL_PREFIX, True)):
        cases = [case_of(i) for i in instances if (i.condition == GENERAL) is wanted]
        if cases:
            found[prefix] = probe_cases(cases, general_population() if wanted else None)
    return found


def probe_cases(cases: Sequence[Case], population: Sequence[Case] | None = None) -> tuple[Probe, ...]:
    """Score the three judges on cases.

    Args:
        cases: What is judged.
        population: What general judges know of how cases are drawn, with the number of sources as all that
            structure tells; None takes the cases themselves, with every source's routes.
    """
    structure, one_node = (see_routes, see_routes_and_node)
    if population is not None:
        structure, one_node = (see_number, see_number_and_node)
    known = cases if population is None else population
    judges = [(STRUCTURE, structure), (ONE_NODE, one_node)]
    return (
        _best_constant(cases),
        *(_probe(name, _confusion(cases, best_answers(known, view), view), len(cases)) for name, view in judges),
    )


def case_of(instance: Instance) -> Case:
    """Return what probes see of an instance."""
    graph = instance.graph
    atom_of = {atom.atom_id: atom for atom in graph.atoms}
    routes: dict[tuple[str, Stance], int] = defaultdict(int)
    for route in graph.routes_of_claim[instance.claim]:
        atom = atom_of[graph.routes[route].atom_id]
        routes[atom.source_id, atom.stance] += 1
    sides = [tuple(sorted(k for (_, s), k in routes.items() if s is stance)) for stance in Stance]
    return Case(sides[0], sides[1], instance.gold)


@cache
def general_population() -> tuple[Case, ...]:
    """Enumerate the general conditions by their probability; routes are left at one, since they tell nothing.

    The verdict comes first (a third each), then one of the pairs of counts that give it, as
    :func:`~provgym.generators.conditions.draw_general` draws.
    """
    sides = range(MAX_SOURCES + 1)
    pairs = [(s, r, Verdict.from_counts(s, r)) for s in sides for r in sides if s + r > 0]
    share = {v: 1.0 / len(VERDICTS) / sum(gold is v for _, _, gold in pairs) for v in VERDICTS}
    return tuple(Case((1,) * s, (1,) * r, gold, share[gold]) for s, r, gold in pairs)


def see_routes(case: Case) -> Iterable[tuple[Hashable, float]]:
    """See how many routes each source has."""
    return [(tuple(sorted(case.supporting + case.refuting)), 1.0)]


def see_routes_and_node(case: Case) -> Iterable[tuple[Hashable, float]]:
    """See the same, and the stance of one route's source."""
    structure = tuple(sorted(case.supporting + case.refuting))
    total = sum(structure)
    for stance, sources in ((Stance.SUPPORT, case.supporting), (Stance.REFUTE, case.refuting)):
        for routes in sources:
            yield (structure, stance, routes), routes / total


def see_number(case: Case) -> Iterable[tuple[Hashable, float]]:
    """See how many sources there are."""
    return [(len(case.supporting) + len(case.refuting), 1.0)]


def see_number_and_node(case: Case) -> Iterable[tuple[Hashable, float]]:
    """See the same, and the stance of one route's source."""
    number = len(case.supporting) + len(case.refuting)
    total = sum(case.supporting) + sum(case.refuting)
    return [
        ((number, Stance.SUPPORT), sum(case.supporting) / total),
        ((number, Stance.REFUTE), sum(case.refuting) / total),
    ]


def best_answers(population: Sequence[Case], view: View) -> dict[Hashable, Floats]:
    """Return how the best judge answers what can be seen: (3,) probabilities over verdicts."""
    weight: dict[Hashable, Floats] = defaultdict(lambda: np.zeros(len(VERDICTS)))
    for case in population:
        for seen, probability in view(case):
            weight[seen][VERDICTS.index(case.gold)] += case.weight * probability
    decisions = {}
    for seen, by_verdict in weight.items():
        best = np.isclose(by_verdict, by_verdict.max(), rtol=1e-9)
        decisions[seen] = best / best.sum()
    return decisions


def _confusion(cases: Sequence[Case], decisions: Mapping[Hashable, Floats], view: View) -> Floats:
    """Return the expected confusion matrix, (3, 4); what no case of the population showed gets no answer."""
    confusion = np.zeros((len(VERDICTS), NO_ANSWER + 1))  # (3, 4)
    for case in cases:
        for seen, probability in view(case):
            row = confusion[VERDICTS.index(case.gold)]
            if seen in decisions:
                row[:NO_ANSWER] += case.weight * probability * decisions[seen]
            else:
                row[NO_ANSWER] += case.weight * probability
    return confusion


def _best_constant(cases: Sequence[Case]) -> Probe:
    """Return the constant verdict that is right most often; the first of equals."""
    weights = [sum(case.weight for case in cases if case.gold is verdict) for verdict in VERDICTS]
    # Sums of thirds differ in their last bit; "first of equals" must not depend on it.
    best = VERDICTS[int(np.argmax(np.isclose(weights, max(weights), rtol=1e-9)))]
    always = np.array([1.0 if verdict is best else 0.0 for verdict in VERDICTS])
    confusion = _confusion(cases, {None: always}, lambda case: [(None, 1.0)])
    return _probe(f"{CONSTANT} {best.value}", confusion, len(cases))


def _probe(name: str, confusion: Floats, n: int) -> Probe:
    if n == 0:
        return Probe(name, math.nan, math.nan, math.nan, 0)
    flat = confusion.reshape(-1)  # (12,)
    accuracy = float(np.trace(confusion[:, :NO_ANSWER]) / confusion.sum())
    balanced = float(ConfusionMetric("balanced_accuracy", "recall").value(flat))
    return Probe(name, accuracy, balanced, float(ConfusionMetric("macro_f1", "f1").value(flat)), n)
