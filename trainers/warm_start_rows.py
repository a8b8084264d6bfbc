"""What the tiny policy is warmed up on: evidence lists to count, and episodes of a naive walker to clone.

Nothing in a row teaches about distinct sources: every judgement that is cloned counts paths.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from provgym.envs.actions import format_stop
from provgym.envs.presentation import MovesStyle, PresentationConfig
from provgym.envs.provenance import REPRESENTATION_KINDS, Stance
from provgym.envs.walk_names import AliasOrder
from provgym.envs.walk_text import GraphWalkTextEnv
from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL
from provgym.generators.episode import EpisodeTask
from provgym.generators.graphecho import BaseClaim, GraphEcho
from provgym.generators.scripted import naive_walker, start_episode
from provgym.generators.seeds import Purpose, derive_rng
from provgym.generators.tiny import TinyDialogue
from provgym.rewards.outcome import Judgement, Verdict
from provgym.trainers.cloning import walked_turns
from provgym.trainers.warm_start_config import WarmStartConfig

LABEL, ALIAS = re.compile(r"S\d+"), re.compile(r"n\d+")


@dataclass
class WarmStartRow:
    """One row to train on.

    Attributes:
        ids: World and action tokens, from the first to the last.
        mask: 1 for each action token that is cloned, 0 otherwise; as long as ``ids``.
        stances: (position, 0 support / 1 refute) of the last token of each evidence line.
        familiar: (position, 0 or 1) of each alias among the moves: whether its source was read before.
    """

    ids: list[int]
    mask: list[int]
    stances: list[tuple[int, int]]
    familiar: list[tuple[int, int]] = field(default_factory=list)

    def world(self, dialogue: TinyDialogue, lines: Sequence[str], stance: Stance | None) -> None:
        """Append world lines; the first line's last token gets ``stance`` when it is evidence."""
        encoded = dialogue.opening(lines, "") if not self.ids else dialogue.reply(lines, ended=True)
        if stance is not None:
            # A reply's first line is the content of the node reached.
            first = len(dialogue.reply(lines[:1], ended=True)) - 1
            self.stances.append((len(self.ids) + first - 1, int(stance is Stance.REFUTE)))
        self.ids += encoded
        self.mask += [0] * len(encoded)

    def action(self, dialogue: TinyDialogue, text: str, *, is_cloned: bool = True) -> None:
        """Append an action with its end token; one that is not cloned is read only."""
        encoded = dialogue.encode_action(text)
        self.ids += encoded
        self.mask += [int(is_cloned)] * len(encoded)


def cloned_episode(
    graphecho: GraphEcho,
    dialogue: TinyDialogue,
    config: WarmStartConfig,
    rng: np.random.Generator,
    *,
    confirm_probability: float = 0.0,
    moves: MovesStyle = "aliases",
) -> WarmStartRow:
    """Play one episode of the naive walker on a train claim and write it as ids; source labels are shuffled."""
    claims = graphecho.of_split("train")
    condition = GENERAL if rng.random() < 0.5 else CONFLICT_CONDITIONS[rng.integers(len(CONFLICT_CONDITIONS))]
    instance = graphecho.instance(claims[rng.integers(len(claims))], condition, draw=int(rng.integers(10_000, 20_000)))
    budget = config.budgets[rng.integers(len(config.budgets))]
    aliases: AliasOrder = "shuffled" if rng.random() < config.shuffle_probability else "discovery"
    presentation = PresentationConfig(source_labels="shuffled", moves=moves, aliases=aliases)
    task = EpisodeTask(instance, budget, presentation, int(rng.integers(2**62)), 0)
    env = start_episode(task)
    walker = naive_walker(config.stop_probability, confirm_probability, config.take_probability)
    row = WarmStartRow([], [], [])
    for turn in walked_turns(env, walker, rng, config.stumble_probability):
        atom = env.walk.trace[-1].atom if env.walk is not None and env.walk.trace else None
        stance = None if atom is None else instance.graph.atoms[atom].stance
        is_opening = not row.ids
        row.world(dialogue, turn.lines, stance)
        if not is_opening:
            _mark_familiar(row, dialogue, env)
        row.action(dialogue, turn.action, is_cloned=turn.is_cloned)
    return row


def _mark_familiar(row: WarmStartRow, dialogue: TinyDialogue, env: GraphWalkTextEnv) -> None:
    """Note which of the labels in the last line, the moves, name a source that was read before."""
    walk, presentation = env.walk, env.presentation
    if walk is None or presentation is None:
        return
    graph = walk.instance.graph
    read = {presentation.source_label(int(graph.node_source[n])) for n in walk.visited if graph.node_atom[n] >= 0}
    words = [dialogue.decode([token]) for token in row.ids[:-1]]
    start = len(row.ids) - len(dialogue.reply(env.observation_lines[-1:], ended=True))
    for position in range(start + 1, len(words)):
        if ALIAS.fullmatch(words[position]) and LABEL.fullmatch(words[position - 1]):
            row.familiar.append((position, int(words[position - 1] in read)))


def drilled_list(claims: tuple[BaseClaim, ...], dialogue: TinyDialogue, rng: np.random.Generator) -> WarmStartRow:
    """Write a claim, one to seven pieces of evidence, and the path counter's answer to them."""
    base = claims[rng.integers(len(claims))]
    count, share = int(rng.integers(1, 8)), float(rng.random())
    refutes = [bool(rng.random() < share) for _ in range(count)]
    labels = [f"S{n}" for n in rng.integers(1, 11, size=count)]
    aliases = rng.permutation(40)[:count] + 1
    kinds = ("observation", *REPRESENTATION_KINDS)
    row = WarmStartRow([], [], [])
    lines = [f"Claim: {base.claim.text}"]
    end = len(dialogue.opening(lines, "")) - 2
    for alias, label, is_refuting in zip(aliases, labels, refutes, strict=True):
        line = f"n{alias} {kinds[rng.integers(len(kinds))]} {label}: {base.texts[int(is_refuting)]}"
        lines.append(line)
        end += len(dialogue.reply([line], ended=True)) - 1
        row.stances.append((end, int(is_refuting)))
    lines.append("Left 0. Stop now.")
    stances = row.stances
    row.world(dialogue, lines, None)
    row.stances = stances
    support, refute = count - sum(refutes), sum(refutes)
    judgement = Judgement(Verdict.from_counts(support, refute), support, refute, 0.9, tuple(dict.fromkeys(labels)))
    row.action(dialogue, format_stop(judgement))
    return row


def batches(graphecho: GraphEcho, dialogue: TinyDialogue, config: WarmStartConfig) -> Iterator[list[WarmStartRow]]:
    """Yield the run's batches: drills, then cloned episodes with a quarter of drills, then seekers of confirmation."""
    claims = graphecho.of_split("train")
    first_stage = config.drill_steps + config.clone_steps
    for step in range(first_stage + config.confirm_steps):
        rng = derive_rng(config.seed, Purpose.CLONING, step)
        if step < config.drill_steps or step % 4 == 0:
            yield [drilled_list(claims, dialogue, rng) for _ in range(config.drill_rows)]
            continue
        # The first stage reads the shorter text, which is quicker; the last one what PAPT and evaluation show.
        is_last = step >= first_stage
        confirm_probability = config.confirm_probability if is_last else 0.0
        moves: MovesStyle = "labelled" if is_last else "aliases"
        yield [
            cloned_episode(graphecho, dialogue, config, rng, confirm_probability=confirm_probability, moves=moves)
            for _ in range(config.clone_rows)
        ]
