"""Warm start of the tiny policy: a reading drill, then cloning of a deliberately naive walker.

The result knows the action grammar, reads stances, and answers by the majority over *paths* among what it walked:
it counts echoes. Nothing in it was taught about distinct sources; that is left for PAPT to learn.

``provgym warm-start --config configs/papt/warm-start.yaml`` rebuilds the shipped weights.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from provgym.envs.actions import format_stop
from provgym.envs.presentation import AliasOrder, MovesStyle, PresentationConfig
from provgym.envs.provenance import REPRESENTATION_KINDS, Stance
from provgym.envs.walk_text import GraphWalkTextEnv
from provgym.eval.run_files import write_json_atomic
from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL
from provgym.generators.episode import EpisodeTask
from provgym.generators.graphecho import BaseClaim, GraphEcho
from provgym.generators.scripted import naive_walker, start_episode
from provgym.generators.seeds import Purpose, derive_rng, derive_seed
from provgym.generators.tiny import PAD, TinyDialogue, build_model, build_tokenizer, vocabulary
from provgym.generators.writable_folder import check_writable
from provgym.rewards.outcome import Judgement, Verdict
from provgym.trainers.cloning import walked_turns
from provgym.trainers.papt_config import Strict

MICRO_BATCH = 12
LABEL, ALIAS = re.compile(r"S\d+"), re.compile(r"n\d+")


class WarmStartConfig(Strict):
    """A warm start.

    Attributes:
        kind: ``tiny``; a chat model's is :class:`~provgym.trainers.chat_warm_start.ChatWarmStartConfig`.
        out: Folder for weights and tokenizer.
        seed: Of initialisation and data.
        data_seed: GraphEcho-Syn's seed; only train claims are used.
        drill_steps: Steps on evidence lists without walking.
        clone_steps: Steps on the naive walker's episodes (a quarter of them drill).
        confirm_steps: Further steps, with a schedule and an optimiser of their own, on a naive walker that seeks
            confirmation: it likes to return to sources it has already read.
        drill_rows: Sequences per drill step.
        clone_rows: Episodes per cloning step.
        learning_rate: Peak of the cosine schedule of drill and cloning.
        confirm_learning_rate: Peak of the last stage's.
        confirm_probability: Of the naive walker in the last stage.
        stop_probability: Of the naive walker, before each walk but the first.
        take_probability: Of the naive walker, which reads the list of moves from its top: chance of taking each.
        shuffle_probability: Chance of an episode whose aliases are in random order; only copying helps there.
        stumble_probability: Chance before each action of an illegal move that is shown but not cloned, so that the
            policy goes on after a mistake of its own instead of repeating it.
        budgets: Drawn per episode.
        stance_loss_weight: Weight of an auxiliary linear read-out of each evidence line's stance; the read-out is
            thrown away. Without it, comparing the verbs of claim and evidence is learned many times more slowly.
        familiar_loss_weight: Weight of another such read-out, in the last stage: whether a source among the moves was
            read before, from the middle layer. The policy learns to see repetition, which it goes on to count.
    """

    kind: Literal["tiny"] = "tiny"
    out: Path = Path("runs/warm-start")
    seed: int = Field(default=0, ge=0)
    data_seed: int = Field(default=42, ge=0)
    drill_steps: int = Field(default=150, ge=0)
    clone_steps: int = Field(default=1000, ge=0)
    confirm_steps: int = Field(default=700, ge=0)
    drill_rows: int = Field(default=64, ge=1)
    clone_rows: int = Field(default=48, ge=1)
    learning_rate: float = Field(default=3e-3, gt=0.0)
    confirm_learning_rate: float = Field(default=2e-3, gt=0.0)
    confirm_probability: float = Field(default=0.4, ge=0.0, le=1.0)
    stop_probability: float = Field(default=0.1, ge=0.0, le=1.0)
    take_probability: float = Field(default=0.5, ge=0.0, le=1.0)
    shuffle_probability: float = Field(default=0.5, ge=0.0, le=1.0)
    stumble_probability: float = Field(default=0.05, ge=0.0, lt=1.0)
    budgets: tuple[int, ...] = (3, 4, 5, 6, 7, 8)
    stance_loss_weight: float = Field(default=1.0, ge=0.0)
    familiar_loss_weight: float = Field(default=1.0, ge=0.0)
    hidden_size: int = 128
    num_layers: int = 4
    initializer_range: float = 0.1


@dataclass
class Sequence:
    """One training sequence; ``mask`` marks action tokens.

    ``stances`` are (position, 0 support / 1 refute) of evidence lines, ``familiar`` (position, 0 or 1) of the aliases
    among the moves: whether their source was read before.
    """

    ids: list[int]
    mask: list[int]
    stances: list[tuple[int, int]]
    familiar: list[tuple[int, int]] = field(default_factory=list)

    def world(self, dialogue: TinyDialogue, lines: tuple[str, ...] | list[str], stance: Stance | None) -> None:
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
) -> Sequence:
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
    sequence = Sequence([], [], [])
    for turn in walked_turns(env, walker, rng, config.stumble_probability):
        atom = env.walk.trace[-1].atom if env.walk is not None and env.walk.trace else None
        stance = None if atom is None else instance.graph.atoms[atom].stance
        is_opening = not sequence.ids
        sequence.world(dialogue, turn.lines, stance)
        if not is_opening:
            _mark_familiar(sequence, dialogue, env)
        sequence.action(dialogue, turn.action, is_cloned=turn.is_cloned)
    return sequence


def _mark_familiar(sequence: Sequence, dialogue: TinyDialogue, env: GraphWalkTextEnv) -> None:
    """Note which of the labels in the last line, the moves, name a source that was read before."""
    walk, presentation = env.walk, env.presentation
    if walk is None or presentation is None:
        return
    graph = walk.instance.graph
    read = {presentation.source_label(int(graph.node_source[n])) for n in walk.visited if graph.node_atom[n] >= 0}
    words = [dialogue.decode([token]) for token in sequence.ids[:-1]]
    start = len(sequence.ids) - len(dialogue.reply(env.observation_lines[-1:], ended=True))
    for position in range(start + 1, len(words)):
        if ALIAS.fullmatch(words[position]) and LABEL.fullmatch(words[position - 1]):
            sequence.familiar.append((position, int(words[position - 1] in read)))


def drilled_list(claims: tuple[BaseClaim, ...], dialogue: TinyDialogue, rng: np.random.Generator) -> Sequence:
    """Write a claim, one to seven pieces of evidence, and the path counter's answer to them."""
    base = claims[rng.integers(len(claims))]
    count, share = int(rng.integers(1, 8)), float(rng.random())
    refutes = [bool(rng.random() < share) for _ in range(count)]
    labels = [f"S{n}" for n in rng.integers(1, 11, size=count)]
    aliases = rng.permutation(40)[:count] + 1
    kinds = ("observation", *REPRESENTATION_KINDS)
    sequence = Sequence([], [], [])
    lines = [f"Claim: {base.claim.text}"]
    end = len(dialogue.opening(lines, "")) - 2
    for alias, label, is_refuting in zip(aliases, labels, refutes, strict=True):
        line = f"n{alias} {kinds[rng.integers(len(kinds))]} {label}: {base.texts[int(is_refuting)]}"
        lines.append(line)
        end += len(dialogue.reply([line], ended=True)) - 1
        sequence.stances.append((end, int(is_refuting)))
    lines.append("Left 0. Stop now.")
    stances = sequence.stances
    sequence.world(dialogue, lines, None)
    sequence.stances = stances
    support, refute = count - sum(refutes), sum(refutes)
    judgement = Judgement(Verdict.from_counts(support, refute), support, refute, 0.9, tuple(dict.fromkeys(labels)))
    sequence.action(dialogue, format_stop(judgement))
    return sequence


def cloning_loss(
    model: LlamaForCausalLM, readout: Readout, batch: list[Sequence], pad_id: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the summed cross-entropies of the action tokens, of the stances and of the familiar sources."""
    width = max(len(s.ids) for s in batch)
    ids = torch.tensor([s.ids + [pad_id] * (width - len(s.ids)) for s in batch])  # (B, T)
    mask = torch.tensor([s.mask + [0] * (width - len(s.mask)) for s in batch])[:, 1:].float()  # (B, T-1)
    attention = torch.tensor([[1] * len(s.ids) + [0] * (width - len(s.ids)) for s in batch])  # (B, T)
    states = model.model(input_ids=ids, attention_mask=attention, output_hidden_states=True).hidden_states
    hidden, middle = states[-1], states[len(states) // 2]  # (B, T, d); decisions can only use what came before them
    rows, columns = torch.nonzero(mask, as_tuple=True)
    logits = model.lm_head(hidden[rows, columns])  # (number of action tokens, V)
    action_loss = nn.functional.cross_entropy(logits, ids[rows, columns + 1], reduction="sum")
    stance_loss = _readout_loss(readout.stance, hidden, [q.stances for q in batch])
    return action_loss, stance_loss, _readout_loss(readout.familiar, middle, [q.familiar for q in batch])


def _readout_loss(head: nn.Linear, hidden: Tensor, places: list[list[tuple[int, int]]]) -> Tensor:
    """Return the summed cross-entropy of a linear read-out at the marked positions of (B, T, d) states."""
    flat = [(b, position, label) for b, marked in enumerate(places) for position, label in marked]
    if not flat:
        return hidden.new_zeros(())
    b, position, label = (torch.tensor(column) for column in zip(*flat, strict=True))
    return nn.functional.cross_entropy(head(hidden[b, position]), label, reduction="sum")


class Readout(nn.Module):
    """Linear read-outs of what was read; trained along and thrown away."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.stance = nn.Linear(hidden_size, 2)
        self.familiar = nn.Linear(hidden_size, 2)


def batches(graphecho: GraphEcho, dialogue: TinyDialogue, config: WarmStartConfig) -> Iterator[list[Sequence]]:
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


def warm_start(config: WarmStartConfig, on_step: Callable[[int, int, float, float], None] | None = None) -> Path:
    """Train the naive start and save it with its tokenizer.

    Args:
        config: What to do.
        on_step: Called with (step, steps in all, action loss, stance loss).

    Returns:
        The folder, ``config.out``.

    Raises:
        OSError: If that folder cannot be written; it is asked about first.
    """
    check_writable(config.out, "--out")
    tokenizer = build_tokenizer()
    dialogue = TinyDialogue(tokenizer)
    model = build_model(
        derive_seed(config.seed, Purpose.INITIALISATION) % 2**31,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        initializer_range=config.initializer_range,
    )
    stream = batches(GraphEcho.generate(config.data_seed), dialogue, config)
    first_stage = config.drill_steps + config.clone_steps
    history: list[tuple[float, float, float]] = []
    for steps, peak in ((first_stage, config.learning_rate), (config.confirm_steps, config.confirm_learning_rate)):
        stage = _Stage(model, config, steps, peak)
        for batch in itertools.islice(stream, steps):
            history.append(stage.step(batch))
            if on_step is not None:
                on_step(len(history), first_stage + config.confirm_steps, *history[-1][:2])
    config.out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(config.out)
    tokenizer.save_pretrained(config.out)
    write_json_atomic(config.out / "warm_start.json", config.model_dump(mode="json", exclude={"out"}))
    write_json_atomic(config.out / "loss.json", history)
    return config.out


class _Stage:
    """An optimiser, a cosine schedule and a stance read-out of their own."""

    def __init__(self, model: LlamaForCausalLM, config: WarmStartConfig, steps: int, peak: float) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self._readout = Readout(config.hidden_size)
        self._model, self._steps, self._peak = model, steps, peak
        self._stance_loss_weight = config.stance_loss_weight
        self._familiar_loss_weight = config.familiar_loss_weight
        self._parameters = [*model.parameters(), *self._readout.parameters()]
        self._optimizer = torch.optim.AdamW(self._parameters, lr=peak, betas=(0.9, 0.98), weight_decay=0.01)
        self._done = 0

    def step(self, batch: list[Sequence]) -> tuple[float, float, float]:
        """Take one step; returns the losses of actions, stances and familiar sources."""
        cosine = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * self._done / self._steps))
        for group in self._optimizer.param_groups:
            group["lr"] = self._peak * min(1.0, (self._done + 1) / 30) * cosine
        self._done += 1
        sizes = [sum(sum(q.mask[1:]) for q in batch)]
        sizes += [max(1, sum(len(q.stances) for q in batch)), max(1, sum(len(q.familiar) for q in batch))]
        weights = (1.0, self._stance_loss_weight, self._familiar_loss_weight)
        by_length = sorted(batch, key=lambda q: len(q.ids))  # little padding within a part
        totals = [0.0, 0.0, 0.0]
        self._optimizer.zero_grad()
        for start in range(0, len(by_length), MICRO_BATCH):
            part = by_length[start : start + MICRO_BATCH]
            found = cloning_loss(self._model, self._readout, part, vocabulary().index(PAD))
            losses = [loss / size for loss, size in zip(found, sizes, strict=True)]
            weighted = [w * loss for w, loss in zip(weights, losses, strict=True)]
            torch.autograd.backward(sum(weighted[1:], start=weighted[0]))
            totals = [t + float(loss.detach()) for t, loss in zip(totals, losses, strict=True)]
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        return totals[0], totals[1], totals[2]
