"""Candidates of a task, from a mixture that hands over from hand-made teams to the generator's own.

With probability 1 - pi a candidate is a template or a random feasible DAG, with pi the current generator's sample; pi
grows over rounds. Candidates of a task are distinct up to isomorphism. One that the generator could never produce would
have a target that nothing can match: it is refused, and counted.

Source: K-GAT, arXiv:2608.27984, equation 4. The single agent among the templates is ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from provgym.envs.topology import Topology
from provgym.envs.topology_rules import TopologyRules
from provgym.generators.seeds import Purpose, derive_rng, derive_seed

ProposalOrigin = Literal["template", "random", "generator"]
SampleTopologies = Callable[[Sequence[int], Sequence[int]], Sequence[Topology]]
"""The generator: (task numbers, seeds), one topology for each pair."""

_TRIES = 20  # draws until a template or random DAG is new; a small rule set may hold no other


@dataclass(frozen=True, slots=True)
class Mixture:
    """What candidates are drawn from.

    Attributes:
        candidates: Draws per task, >= 1; fewer distinct ones may come of them.
        generator_share: pi, in [0, 1].
        template_share: Share of templates in the rest, in [0, 1]; random feasible DAGs are the others.

    Raises:
        ValueError: If a number is out of range.
    """

    candidates: int
    generator_share: float
    template_share: float = 0.5

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise ValueError(f"candidates={self.candidates} must be >= 1")
        for name in ("generator_share", "template_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name}={getattr(self, name)} must lie in [0, 1]")


@dataclass(frozen=True, slots=True)
class Proposal:
    """One candidate before it is executed; its topology is in canonical form."""

    topology: Topology
    origin: ProposalOrigin


@dataclass(frozen=True, slots=True)
class Proposals:
    """The candidates of several tasks.

    Attributes:
        by_task: Per task, in the order of the draws, distinct up to isomorphism.
        drawn: Origin to number of draws.
        refused: Origin to number of draws outside the generator's support.
        repeated: Origin to number of draws that the task had already.
    """

    by_task: tuple[tuple[Proposal, ...], ...]
    drawn: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    repeated: Mapping[str, int] = field(default_factory=dict)


def pi_of_round(number: int, rounds: int, *, first: float, last: float) -> float:
    """Return pi, which grows linearly from the first round to the last.

    Args:
        number: Of the round, from 0.
        rounds: In all, >= 1; a single round has ``first``.
        first: pi of round 0, in [0, 1].
        last: pi of the last round, in [first, 1].

    Raises:
        ValueError: If the round does not exist, or pi would leave [0, 1] or shrink.

    Example:
        >>> [pi_of_round(n, 3, first=0.0, last=0.8) for n in range(3)]
        [0.0, 0.4, 0.8]
    """
    if not 0 <= number < rounds:
        raise ValueError(f"round {number} must lie in [0, {rounds})")
    if not 0.0 <= first <= last <= 1.0:
        raise ValueError(f"pi from {first} to {last} must lie in [0, 1] and not shrink")
    return first + (last - first) * (number / (rounds - 1) if rounds > 1 else 0.0)


def propose(
    num_tasks: int,
    mixture: Mixture,
    *,
    rules: TopologyRules,
    templates: Mapping[str, Topology],
    random_topology: Callable[[TopologyRules, np.random.Generator], Topology],
    sample: SampleTopologies,
    run_seed: int,
    round_number: int,
) -> Proposals:
    """Draw candidates for tasks 0 to ``num_tasks`` - 1.

    A task's draws depend on (run seed, round, task number) and the generator's weights, not on the other tasks.

    Args:
        num_tasks: How many tasks.
        mixture: What is drawn from.
        rules: The generator's support.
        templates: Name to hand-made topology; at least one within the rules if templates are drawn.
        random_topology: Draws a random feasible DAG.
        sample: The current generator; called once, with every draw that falls to it.
        run_seed: Of the run.
        round_number: From 0.

    Raises:
        ValueError: If templates are to be drawn and there is none.
    """
    if not templates and mixture.generator_share < 1 and mixture.template_share > 0:
        raise ValueError(f"templates is empty, but template_share={mixture.template_share} draws from it; set it to 0")
    drawers = [
        _Drawer(mixture, rules, dict(templates), random_topology, _rng(run_seed, round_number, task))
        for task in range(num_tasks)
    ]
    origins = [drawer.origins() for drawer in drawers]
    asked = [(task, slot) for task, row in enumerate(origins) for slot, o in enumerate(row) if o == "generator"]
    seeds = [derive_seed(run_seed, Purpose.CANDIDATES, 1, round_number, task, slot) for task, slot in asked]
    sampled = sample([task for task, _ in asked], seeds) if asked else []
    own = dict(zip(asked, sampled, strict=True))
    for task, (drawer, row) in enumerate(zip(drawers, origins, strict=True)):
        for slot, origin in enumerate(row):
            drawer.take(origin, own.get((task, slot)))
    drawn: Counter[str] = Counter(origin for row in origins for origin in row)
    refused = sum((drawer.refused for drawer in drawers), start=Counter[str]())
    repeated = sum((drawer.repeated for drawer in drawers), start=Counter[str]())
    return Proposals(tuple(tuple(d.proposals.values()) for d in drawers), drawn, refused, repeated)


def _rng(run_seed: int, round_number: int, task: int) -> np.random.Generator:
    return derive_rng(run_seed, Purpose.CANDIDATES, 0, round_number, task)


class _Drawer:
    """Draws one task's candidates."""

    def __init__(
        self,
        mixture: Mixture,
        rules: TopologyRules,
        templates: dict[str, Topology],
        random_topology: Callable[[TopologyRules, np.random.Generator], Topology],
        rng: np.random.Generator,
    ) -> None:
        self.proposals: dict[str, Proposal] = {}
        self.refused: Counter[str] = Counter()
        self.repeated: Counter[str] = Counter()
        self._mixture, self._rules, self._rng = mixture, rules, rng
        self._names, self._templates = sorted(templates), templates
        self._random_topology = random_topology

    def origins(self) -> list[ProposalOrigin]:
        """Draw where each candidate is to come from."""
        mixture = self._mixture
        shares = (
            mixture.generator_share,
            (1 - mixture.generator_share) * mixture.template_share,
            (1 - mixture.generator_share) * (1 - mixture.template_share),
        )
        kinds: tuple[ProposalOrigin, ...] = ("generator", "template", "random")
        return [kinds[int(n)] for n in self._rng.choice(3, size=mixture.candidates, p=shares)]

    def take(self, origin: ProposalOrigin, sampled: Topology | None) -> None:
        """Add one candidate of an origin, unless it is refused or there is no new one."""
        if sampled is not None:
            self._add(origin, sampled)
            return
        for _ in range(_TRIES):
            drawn = self._draw(origin)
            if drawn.key not in self.proposals:
                self._add(origin, drawn)
                return
        self.repeated[origin] += 1

    def _draw(self, origin: ProposalOrigin) -> Topology:
        if origin == "template":
            return self._templates[self._names[int(self._rng.integers(len(self._names)))]]
        return self._random_topology(self._rules, self._rng)

    def _add(self, origin: ProposalOrigin, topology: Topology) -> None:
        if not self._rules.is_valid(topology):
            self.refused[origin] += 1
        elif topology.key in self.proposals:
            self.repeated[origin] += 1
        else:
            self.proposals[topology.key] = Proposal(topology.canonical(), origin)
