"""What a text-playing agent is shown of a walk: aliases, previews, contents, and the four mitigations.

Nodes get short aliases (``n0``, ``n1`` ...) in order of discovery; a neighbour's whole preview is listed once, and
afterwards its alias with its source's label. Previews never hold evidence or stance. Mitigations:

* ``M0``: source nodes are labelled, observations and representations carry no provenance id;
* ``M1``: previews and contents carry the source label;
* ``M2``: M1 and the instruction to count distinct sources;
* ``M3``: M1 with equivalent routes grouped, their multiplicity visible.

Source: GraphEcho, arXiv:2609.17695, sections 4.1 and 4.2; what the paper leaves open is described in the README.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from provgym.envs.provenance import NodeKind
from provgym.envs.walk import Step, StepKind, Walk
from provgym.envs.walk_names import AliasOrder, SourceLabels, WalkNames

Mitigation = Literal["M0", "M1", "M2", "M3"]
MovesStyle = Literal["labelled", "aliases"]
MITIGATIONS: tuple[Mitigation, ...] = ("M0", "M1", "M2", "M3")
MAX_LABELLED_MOVES = 12
"""So many moves are shown with their source's label each turn; further ones by alias alone, to bound the text."""
CUT_MARK = " [... cut]"

INSTRUCTIONS = """\
You judge a claim by walking an evidence graph. Each walk moves to a neighbouring node and shows its content.
Several nodes can repeat one observation of one source. When you know enough, or no walks are left, stop with a
judgement: how many distinct sources support and refute the claim, and the verdict of their majority
(SUPPORT, REFUTE, or MIXED for a tie). Moves in brackets lead back to nodes already visited.
Answer with exactly one JSON object and nothing else. To walk: {"walk": "n3"}. To stop:
{"stop": {"support_count": 2, "refute_count": 1, "verdict": "SUPPORT", "confidence": 0.8, "cited_sources": ["S1"]}}"""
COUNT_DISTINCT = "Count distinct sources, not paths: nodes of one source are one piece of evidence."


@dataclass(frozen=True, slots=True)
class PresentationConfig:
    """How a walk is shown.

    Attributes:
        mitigation: One of M0 to M3.
        source_labels: ``short`` labels sources S1, S2 ... in order of discovery, as nodes are; ``shuffled`` does so in
            random order; ``real`` shows their ids.
        preview_ids: ``shown``, or ``visited``: a preview names a source only once a node of it was visited.
        moves: ``labelled`` names the source of unvisited neighbours every turn; ``aliases`` lists aliases alone, which
            is shorter: labels then stand in the previews only.
        max_content_characters: Longer contents are cut at a sentence, with a visible mark.
        aliases: ``discovery`` numbers nodes as they are first shown; ``shuffled`` does so in random order, so that a
            policy has to copy an alias from what it reads instead of guessing a likely one.

    Raises:
        ValueError: If a value is unknown or the limit is below 40.
    """

    mitigation: Mitigation = "M1"
    source_labels: SourceLabels = "short"
    preview_ids: Literal["shown", "visited"] = "shown"
    moves: MovesStyle = "labelled"
    max_content_characters: int = 2_000
    aliases: AliasOrder = "discovery"

    def __post_init__(self) -> None:
        if self.mitigation not in MITIGATIONS:
            raise ValueError(f"mitigation {self.mitigation!r} is unknown; choose one of {list(MITIGATIONS)}")
        if self.source_labels not in get_args(SourceLabels):
            raise ValueError(f"source_labels {self.source_labels!r} must be one of {list(get_args(SourceLabels))}")
        if self.preview_ids not in ("shown", "visited"):
            raise ValueError(f"preview_ids {self.preview_ids!r} must be 'shown' or 'visited'")
        if self.moves not in get_args(MovesStyle):
            raise ValueError(f"moves {self.moves!r} must be one of {list(get_args(MovesStyle))}")
        if self.aliases not in get_args(AliasOrder):
            raise ValueError(f"aliases {self.aliases!r} must be one of {list(get_args(AliasOrder))}")
        if self.max_content_characters < 40:
            raise ValueError(f"max_content_characters={self.max_content_characters} must be >= 40")

    @property
    def instructions(self) -> str:
        """The system text for a language model."""
        return f"{INSTRUCTIONS}\n{COUNT_DISTINCT}" if self.mitigation == "M2" else INSTRUCTIONS


class Presentation:
    """Turns one walk into lines of text.

    Args:
        walk: The walk to show; the presentation reads it and never changes it.
        config: How to show it.
        rng: Orders neighbours and source labels; the same generator state gives the same texts.
    """

    def __init__(self, walk: Walk, config: PresentationConfig, rng: np.random.Generator) -> None:
        self._walk = walk
        self._config = config
        self._order_key = int(rng.integers(2**62))
        self._names = WalkNames(
            walk.instance,
            source_labels=config.source_labels,
            aliases=config.aliases,
            order_key=self._order_key,
            rng=rng,
        )
        self.cut_characters = 0
        self._names.name(walk.position)

    def source_label(self, source: int) -> str:
        """Return what the agent sees as the name of ``graph.sources[source]``."""
        return self._names.source_label(source)

    def source_ids(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Translate labels that an agent cited into source ids; unknown ones are left out."""
        return self._names.source_ids(labels)

    def node_of(self, alias: str) -> int | None:
        """Return the node behind an alias, or None if no such alias was shown."""
        return self._names.node_of(alias)

    def alias_of(self, node: int) -> str | None:
        """Return the alias of a node, or None if it was not shown yet."""
        return self._names.alias_of(node)

    def opening(self) -> list[str]:
        """Return the first observation's lines."""
        walk = self._walk
        lines = [f"Claim: {self._cut(walk.instance.base_claim.text)}"]
        if self._config.mitigation == "M2":
            lines.append(COUNT_DISTINCT)
        lines += self._new_neighbours()
        lines.append(self._footer(is_opening=True))
        return lines

    def reply(self, step: Step) -> list[str]:
        """Return the lines that answer an action which did not end the episode."""
        if step.kind is StepKind.ILLEGAL:
            return ["No such move.", self._footer()]
        if step.kind is StepKind.UNPARSED:
            return ["Not an action.", self._footer()]
        return [self._content(step), *self._new_neighbours(), self._footer()]

    def _content(self, step: Step) -> str:
        graph = self._walk.instance.graph
        node = step.node
        kind = NodeKind(int(graph.node_kind[node]))
        head = f"{self._names.name(node)} {self._kind_word(node)}"
        if kind is NodeKind.SOURCE:
            return f"{head} {self.source_label(int(graph.node_source[node]))}."
        if kind is NodeKind.CLAIM:
            text = graph.claims[node].text
        else:
            text = graph.atoms[graph.node_atom[node]].text
            if self._config.mitigation != "M0":
                head = f"{head} {self.source_label(int(graph.node_source[node]))}"
        return f"{head}: {self._cut(text)}"

    def _new_neighbours(self) -> list[str]:
        fresh = [int(n) for n in self._walk.neighbours() if self._names.alias_of(int(n)) is None]
        # The order depends on (episode, position) alone, so that it does not matter what was walked before.
        order = np.random.default_rng([self._order_key, self._walk.position]).permutation(len(fresh))
        nodes = [fresh[i] for i in order]
        names = [self._names.name(node) for node in nodes]
        if self._config.mitigation == "M3":
            return self._grouped(nodes)
        return [f"{name} {self._preview(node)}" for name, node in zip(names, nodes, strict=True)]

    def _grouped(self, nodes: list[int]) -> list[str]:
        groups: dict[str, list[str]] = {}
        for node in nodes:
            groups.setdefault(self._preview(node, with_kind=False), []).append(self._names.name(node))
        lines = []
        for head, aliases in groups.items():
            multiplicity = f" x{len(aliases)}" if len(aliases) > 1 else ""
            lines.append(f"{head}{multiplicity}: {' '.join(aliases)}")
        return lines

    def _preview(self, node: int, *, with_kind: bool = True) -> str:
        graph = self._walk.instance.graph
        kind = NodeKind(int(graph.node_kind[node]))
        words = [self._kind_word(node)] if with_kind or kind in (NodeKind.CLAIM, NodeKind.SOURCE) else []
        if kind is NodeKind.SOURCE or (kind.bears_evidence and self._shows_id(node)):
            words.append(self.source_label(int(graph.node_source[node])))
        return " ".join(words) or self._kind_word(node)

    def _shows_id(self, node: int) -> bool:
        if self._config.mitigation == "M0":
            return False
        graph = self._walk.instance.graph
        source = graph.node_source[node]
        return self._config.preview_ids == "shown" or any(graph.node_source[v] == source for v in self._walk.visited)

    def _kind_word(self, node: int) -> str:
        graph = self._walk.instance.graph
        kind = NodeKind(int(graph.node_kind[node]))
        if kind is NodeKind.REPRESENTATION:
            return graph.routes[graph.node_route.item(node)].kind
        return kind.name.lower()

    def _footer(self, *, is_opening: bool = False) -> str:
        """Return walks left and moves.

        Nodes not yet visited come first, with what their previews tell of the source, then, in brackets, visited
        ones. At the opening every preview stands right above, and aliases are enough. A label belongs to the one alias
        behind it.
        """
        walk = self._walk
        if walk.budget_left == 0:
            return "Left 0. Stop now."
        around = sorted((int(n) for n in walk.neighbours()), key=self._names.number_of)
        if self._config.moves == "aliases":
            return f"Left {walk.budget_left}. Moves {_ranges([self._names.number_of(n) for n in around])}."
        fresh = [n for n in around if n not in walk.visited]
        parts = []
        if is_opening or self._config.mitigation == "M0":
            parts += [_ranges([self._names.number_of(n) for n in fresh])] if fresh else []
        elif self._config.mitigation == "M3":
            parts += ["; ".join(self._grouped(fresh))] if fresh else []
        else:
            parts += self._labelled_moves(fresh)
        visited = [self._names.number_of(n) for n in around if n in walk.visited]
        parts += [f"[{_ranges(visited)}]"] if visited else []
        return f"Left {walk.budget_left}. Moves {' '.join(parts) or 'none'}."

    def _labelled_moves(self, fresh: list[int]) -> list[str]:
        """Return unvisited moves with the labels of their sources, as far as they are known and fit.

        Where some sources are unknown still (``preview_ids: visited``), moves without a label come first, so that none
        follows another's label and seems to share it.
        """
        prefixes = {node: self._label_prefix(node) for node in fresh}
        if self._config.preview_ids == "shown":
            labelled, plain = fresh[:MAX_LABELLED_MOVES], fresh[MAX_LABELLED_MOVES:]
        else:
            labelled = [node for node in fresh if prefixes[node]][:MAX_LABELLED_MOVES]
            plain = [node for node in fresh if node not in labelled]
        named = [f"{prefixes[node]}{self._names.name(node)}" for node in labelled]
        bare = [_ranges([self._names.number_of(node) for node in plain])] if plain else []
        return named + bare if self._config.preview_ids == "shown" else bare + named

    def _label_prefix(self, node: int) -> str:
        kind = NodeKind(int(self._walk.instance.graph.node_kind[node]))
        shown = kind is NodeKind.SOURCE or (kind.bears_evidence and self._shows_id(node))
        # Label first: a decoder that copies an alias knows by then whose source it is.
        return f"{self.source_label(int(self._walk.instance.graph.node_source[node]))} " if shown else ""

    def _cut(self, text: str) -> str:
        text = " ".join(text.split())
        limit = self._config.max_content_characters
        if len(text) <= limit:
            return text
        kept = text[: limit - len(CUT_MARK)]
        ends = [m.end() for m in re.finditer(r"[.!?](?=\s)", kept)]
        kept = kept[: ends[-1]] if ends else kept
        self.cut_characters += len(text) - len(kept)
        return kept + CUT_MARK


def _ranges(numbers: list[int]) -> str:
    """Write ascending numbers as aliases, runs shortened.

    Example:
        >>> _ranges([0, 1, 2, 5]), _ranges([])
        ('n0-n2 n5', 'none')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return " ".join("-".join(f"n{n}" for n in run) for run in runs) or "none"
