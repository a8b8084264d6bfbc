"""Static judgement: every route of an instance is shown in one prompt, and the agent answers once.

What is shown under each mitigation, a line per route in an order drawn per claim::

    Claim: In materials, folmom increases the hardness of rusvon.
    n1 table S1: folmom increased the hardness of rusvon by 19 percent.
    n2 result S2: folmom weakened the hardness of rusvon by 6 percent.
    Left 0. Stop now.

* ``M0``: routes carry no source; the source nodes follow with the routes that start from them (``n3 source S1: n1``);
* ``M1``: every route names its source, as above;
* ``M2``: M1 and the instruction to count distinct sources;
* ``M3``: M1 with equivalent routes (one observation of one source) on one line, their number visible
  (``n1 table result S1 x2: ...``).

The text and the last line are those of a walk that has seen everything and has no walk left, so whatever can stop a
walk can judge. Source: GraphEcho, arXiv:2609.17695, sections 3.3 and 4.2; the layout is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from provgym.envs.actions import Action, Stop
from provgym.envs.presentation import COUNT_DISTINCT, Presentation, PresentationConfig
from provgym.envs.provenance import Instance, Stance
from provgym.envs.reset_options import read_reset_options
from provgym.envs.walk import Step, Walk
from provgym.envs.walk_text import GraphWalkTextEnv
from provgym.generators.episode import EpisodeTask
from provgym.rewards.outcome import Ending, Judgement

INSTRUCTIONS = """\
You judge a claim by the evidence listed below it. Each line is one path from a source to the claim; several paths can
repeat one observation of one source. Say how many distinct sources support and refute the claim, and the verdict of
their majority (SUPPORT, REFUTE, or MIXED for a tie).
Answer with exactly one JSON object and nothing else:
{"stop": {"support_count": 2, "refute_count": 1, "verdict": "SUPPORT", "confidence": 0.8, "cited_sources": ["S1"]}}"""
SHORTEST_CONTENT = 40
"""Characters that are kept of every piece of evidence, however many pieces there are."""


@dataclass(frozen=True, slots=True)
class JudgePresentationConfig(PresentationConfig):
    """How the evidence is shown: as in walking, and within a limit for all of it.

    Attributes:
        max_prompt_characters: The evidence is cut to fit into so many characters together with the claim and the
            labels, which always survive: the longest pieces first, at a sentence, with a visible mark. At least
            ``SHORTEST_CONTENT`` characters of each piece are kept; a prompt that is then still too long for a model's
            context ends ``truncated``.

    Raises:
        ValueError: If a value is unknown, or the limit is below 1,000.
    """

    max_prompt_characters: int = 16_000

    def __post_init__(self) -> None:
        PresentationConfig.__post_init__(self)  # a dataclass with slots is made anew, which breaks super()
        if self.max_prompt_characters < 1_000:
            raise ValueError(f"max_prompt_characters={self.max_prompt_characters} must be >= 1000")

    @property
    def instructions(self) -> str:
        """The system text for a language model."""
        return f"{INSTRUCTIONS}\n{COUNT_DISTINCT}" if self.mitigation == "M2" else INSTRUCTIONS


class RevealedWalk(Walk):
    """A walk that has seen every route of its claim and has no walk left: all sources are acquired, one answer remains.

    Its budget is the number of distinct sources, so that every reward of a stored episode can be computed: coverage is
    1, echo and cost are 0.

    Args:
        instance: What is judged.
    """

    __slots__ = ()

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance, judge_budget(instance))
        self.budget_left = 0
        graph = instance.graph
        for route in graph.claim_routes(instance.claim).tolist():
            node = len(graph.claims) + route  # the observation: one node stands for the route
            atom = graph.node_atom.item(node)
            self.visited.setdefault(node)
            self.acquired_atoms[atom] = None
            side = 0 if graph.atoms[atom].stance is Stance.SUPPORT else 1
            self._acquired_sources[side].add(graph.node_source.item(node))

    def stop(self, judgement: Judgement | None) -> Step:
        """End the episode; an answer that is no judgement is ``invalid``, since no budget ran out."""
        step = super().stop(judgement)
        if judgement is None:
            self.ending = Ending.INVALID
        return step


class _Piece(NamedTuple):
    """One line of evidence: what stands before the colon, and the observation."""

    head: str
    text: str

    @property
    def length(self) -> int:
        return len(" ".join(self.text.split()))


class JudgePresentation(Presentation):
    """Lists the routes of a claim; see the module.

    Args:
        walk: What was revealed.
        config: How to show it.
        rng: Orders routes and, if asked, labels. One state gives routes one order whichever sources they belong to.
    """

    def __init__(self, walk: RevealedWalk, config: JudgePresentationConfig, rng: np.random.Generator) -> None:
        super().__init__(walk, config, rng)
        self._max_prompt_characters = config.max_prompt_characters
        routes = walk.instance.graph.claim_routes(walk.instance.claim)
        order = np.random.default_rng([self._order_key, walk.position]).permutation(len(routes))
        self._routes: list[int] = routes[order].tolist()

    def opening(self) -> list[str]:
        """Return the lines of the prompt."""
        lines = [f"Claim: {self._cut(self._walk.instance.base_claim.text)}"]
        if self._config.mitigation == "M2":
            lines.append(COUNT_DISTINCT)
        pieces = self._grouped_pieces() if self._config.mitigation == "M3" else self._pieces()
        after = [*(self._source_lines() if self._config.mitigation == "M0" else []), self._footer()]
        fixed = sum(len(line) + 1 for line in (*lines, *after)) + sum(len(piece.head) + 3 for piece in pieces)
        limit = fair_limit(
            [piece.length for piece in pieces],
            self._max_prompt_characters - fixed,
            self._config.max_content_characters,
        )
        self._config = replace(self._config, max_content_characters=limit)
        return [*lines, *(f"{piece.head}: {self._cut(piece.text)}" for piece in pieces), *after]

    def _pieces(self) -> list[_Piece]:
        graph = self._walk.instance.graph
        pieces = []
        for route in self._routes:
            head = f"{self._names.name(self._node_of_route(route))} {self._kind_of_route(route)}"
            if self._config.mitigation != "M0":
                head = f"{head} {self.source_label(self._source_of_route(route))}"
            pieces.append(_Piece(head, graph.atoms[self._atom_of_route(route)].text))
        return pieces

    def _grouped_pieces(self) -> list[_Piece]:
        graph = self._walk.instance.graph
        groups: dict[int, list[int]] = {}
        for route in self._routes:
            groups.setdefault(self._atom_of_route(route), []).append(route)
        pieces = []
        for atom, routes in groups.items():
            kinds = " ".join(self._kind_of_route(route) for route in routes)
            label = self.source_label(self._source_of_route(routes[0]))
            multiplicity = f" x{len(routes)}" if len(routes) > 1 else ""
            head = f"{self._names.name(self._node_of_route(routes[0]))} {kinds} {label}{multiplicity}"
            pieces.append(_Piece(head, graph.atoms[atom].text))
        return pieces

    def _source_lines(self) -> list[str]:
        """Return the source nodes, each with the routes that start from it."""
        groups: dict[int, list[str]] = {}
        for route in self._routes:
            alias = self._names.name(self._node_of_route(route))
            groups.setdefault(self._source_of_route(route), []).append(alias)
        graph = self._walk.instance.graph
        first = graph.num_nodes - len(graph.sources)
        return [
            f"{self._names.name(first + source)} source {self.source_label(source)}: {' '.join(aliases)}"
            for source, aliases in groups.items()
        ]

    def _node_of_route(self, route: int) -> int:
        return len(self._walk.instance.graph.claims) + route

    def _atom_of_route(self, route: int) -> int:
        return self._walk.instance.graph.node_atom.item(self._node_of_route(route))

    def _source_of_route(self, route: int) -> int:
        return self._walk.instance.graph.node_source.item(self._node_of_route(route))

    def _kind_of_route(self, route: int) -> str:
        return " ".join(self._walk.instance.graph.routes[route].kind.split())


class JudgeTextEnv(GraphWalkTextEnv):
    """Judge a claim whose evidence is shown all at once.

    Actions, reward and ``info`` are those of :class:`~provgym.envs.walk_text.GraphWalkTextEnv`; an episode is one step
    long. Whatever is no stop with a judgement (a walk, prose, nothing) ends it ``invalid``.

    Args:
        instances: What to judge.
        presentation: How it is shown.
    """

    def __init__(self, instances: Sequence[Instance], *, presentation: JudgePresentationConfig | None = None) -> None:
        self.judge_config = presentation or JudgePresentationConfig()
        super().__init__(instances, budget=1, presentation=self.judge_config)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; options as in walking, where a budget means nothing here.

        Raises:
            ValueError: If an option is unknown or out of range.
        """
        gym.Env.reset(self, seed=seed)  # the walk's own reset would draw from the stream that orders the routes
        instance, _ = read_reset_options(options, self.instances, self.budget, self.np_random)
        walk = RevealedWalk(instance)
        self.walk, self.trace = walk, []
        self.presentation = JudgePresentation(walk, self.judge_config, self.np_random)
        self.observation_lines = tuple(self.presentation.opening())
        return self._observation(), self._info(None)

    def step_action(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the answer; see :meth:`step`."""
        return super().step_action(action if isinstance(action, Stop) else Stop(None))


@dataclass(frozen=True, slots=True)
class JudgeTask(EpisodeTask):
    """One judgement to make; any policy that plays walks plays it too.

    Attributes:
        presentation: How the evidence is shown. ``budget`` must be :func:`judge_budget` of the instance.
    """

    presentation: JudgePresentationConfig

    def environment(self) -> GraphWalkTextEnv:
        """Return the environment of the judgement, not yet begun."""
        return JudgeTextEnv([self.instance], presentation=self.presentation)


def judge_budget(instance: Instance) -> int:
    """Return the budget that judgement episodes carry: the distinct sources shown, at least 1."""
    return max(1, sum(instance.source_counts))


def fair_limit(lengths: Sequence[int], room: int, longest: int) -> int:
    """Return how long each text may be so that all fit into the room: short ones whole, long ones cut alike.

    Args:
        lengths: Of the texts, in characters.
        room: Characters for all of them.
        longest: Upper limit of the answer.

    Returns:
        At most ``longest``, at least ``SHORTEST_CONTENT`` even where that does not fit.

    Example:
        >>> fair_limit([50, 400, 400], 450, 2_000), fair_limit([50, 60], 450, 2_000), fair_limit([900], 10, 2_000)
        (200, 2000, 40)
    """
    left = room
    for place, length in enumerate(sorted(lengths)):
        share = left // (len(lengths) - place)
        if length > share:
            return max(SHORTEST_CONTENT, min(longest, share))
        left -= length
    return longest
