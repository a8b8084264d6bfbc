"""Verdict questions whose evidence agrees, conflicts or is beside the point, as asked for.

The three kinds, over GraphEcho-Syn (each base claim is asked about once under each kind):

* **agreement**: all sources are on one side, some of them met several times;
* **conflict**: echoes: who counts units instead of sources is misled (see
  :mod:`provgym.generators.evidence_conditions`);
* **irrelevance**: a few agreeing units, among units of other claims about the same measure that point the other way.

Nothing but what the units say tells the kinds apart: the questions are the same texts, gold verdicts are balanced
within each kind, all graphs hold the same number of units (``num_units`` that are near the question and
``background_units`` about other measures), and how many of the near ones go back to each source is drawn alike for all
kinds. (A source's name holds the number of its claim, so under irrelevance names differ as heads and tails do.)
Units are shuffled and named by their place. The retrieval depth that shows all of a conflict is ``num_units``:
the source's K = 3 cuts ``4|1+1`` to what may be three echoes of one source.

Over SciFact the same kinds but conflict, which the data set does not hold; see
:mod:`provgym.generators.evidence_tasks_scifact`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from provgym.envs.evidence_units import EvidenceUnit, KnowledgeGraph
from provgym.envs.topology_tasks import EvidenceKind, TopologyTask
from provgym.generators.conditions import Condition
from provgym.generators.evidence_conditions import Layout, draw_agreeing, draw_beside, draw_conflicting
from provgym.generators.evidence_task_config import EVIDENCE_KINDS, QUESTION, EvidenceTaskConfig
from provgym.generators.evidence_tasks_scifact import make_scifact_tasks
from provgym.generators.graphecho import DOWN, BaseClaim, GraphEcho, build_instance
from provgym.generators.knowledge_graphs import graph_from_instance, numbered
from provgym.generators.seeds import SPLIT_NUMBERS, Purpose, derive_rng
from provgym.generators.splits import check_splits
from provgym.rewards.outcome import Verdict

__all__ = ["EvidenceTaskConfig", "balanced", "check_task_splits", "make_evidence_tasks"]

_FALLING = frozenset(past for _, past in DOWN)


def make_evidence_tasks(config: EvidenceTaskConfig, split: str) -> tuple[TopologyTask, ...]:
    """Return the tasks of one split, claim by claim, kind by kind.

    Args:
        config: What to make.
        split: ``train``, ``dev`` or ``test``; its claims, entities and sources stand in no other split.

    Raises:
        ValueError: If the split is unknown or has no claims, or there are too few other claims to draw from.
        FileNotFoundError: If a SciFact file does not exist.
    """
    if split not in SPLIT_NUMBERS:
        raise ValueError(f"split {split!r} is unknown; choose one of {list(SPLIT_NUMBERS)}")
    if config.world == "scifact":
        return make_scifact_tasks(config, split)
    asked = {"train": config.train_claims, "dev": config.dev_claims, "test": config.test_claims}
    if not asked[split]:
        raise ValueError(f"split {split!r} has no claims: {split}_claims=0; ask for at least one")
    # Train last: claims are drawn one after the other, and how many are mined must not change who is held out.
    sizes = {name: asked[name] + config.other_claims if asked[name] else 0 for name in ("test", "dev", "train")}
    claims = GraphEcho.generate(config.seed, sizes).of_split(split)
    maker = _Maker(config, split, claims[: asked[split]], claims[asked[split] :])
    return tuple(maker.task(number, kind) for number in range(asked[split]) for kind in config.kinds)


def check_task_splits(tasks: Iterable[TopologyTask]) -> None:
    """Refuse tasks whose splits share a base claim, a source, or a thing that evidence speaks of.

    Raises:
        ValueError: Naming what leaks, and between which splits.
    """
    check_splits(
        (
            task.split,
            task.base_id,
            sorted({unit.head for unit in task.graph.units}),
            sorted({unit.source_id for unit in task.graph.units}),
        )
        for task in tasks
    )


def balanced(verdicts: Sequence[Verdict], count: int, rng: np.random.Generator) -> list[Verdict]:
    """Return verdicts in random order, each as often as any other, give or take one.

    Args:
        verdicts: Which there are.
        count: How many to return, >= 0.
        rng: Draws the order.
    """
    return [verdicts[place % len(verdicts)] for place in rng.permutation(count).tolist()]


class _Maker:
    """Makes the tasks of one split of GraphEcho-Syn."""

    def __init__(
        self, config: EvidenceTaskConfig, split: str, asked: Sequence[BaseClaim], others: Sequence[BaseClaim]
    ) -> None:
        self._config = config
        self._split = split
        self._asked = asked
        self._others = others
        self._gold: dict[EvidenceKind, list[Verdict]] = {}
        for kind in config.kinds:
            verdicts = config.verdicts if kind == "conflict" else (Verdict.SUPPORT, Verdict.REFUTE)
            self._gold[kind] = balanced(verdicts, len(asked), self._rng(len(asked), kind))

    def task(self, number: int, kind: EvidenceKind) -> TopologyTask:
        """Return the task of one claim under one kind."""
        base, gold = self._asked[number], self._gold[kind][number]
        rng = self._rng(number, kind)
        graphs = self._near(base, kind, gold, rng)
        graphs += self._of_others(base, False, (1,) * self._config.background_units, None, rng)
        units = [unit for graph in graphs for unit in graph.units]
        documents = {name: text for graph in graphs for name, text in graph.documents.items()}
        order = rng.permutation(len(units)).tolist()
        graph = KnowledgeGraph(numbered(units[place] for place in order), documents)
        claim_id = base.claim.claim_id
        question = QUESTION.format(claim=base.claim.text)
        return TopologyTask(
            f"{claim_id}/{kind}", claim_id, self._split, question, gold.value, "verdict", (), graph, kind
        )

    def _near(
        self, base: BaseClaim, kind: EvidenceKind, gold: Verdict, rng: np.random.Generator
    ) -> list[KnowledgeGraph]:
        """Return the ``num_units`` units that are near the question."""
        units, relevant = self._config.num_units, self._config.relevant_units
        if kind == "conflict":
            return [_graph(base, draw_conflicting(gold, units, relevant, rng), rng)]
        lender = self._config.verdicts[int(rng.integers(len(self._config.verdicts)))]
        if kind == "agreement":
            return [_graph(base, draw_agreeing(gold, lender, units, relevant, rng), rng)]
        side, others = draw_beside(lender, units, relevant, rng)
        own = _graph(base, Condition("own", side, ()) if gold is Verdict.SUPPORT else Condition("own", (), side), rng)
        points_down = _points_down(own.units[0])
        return [own, *self._of_others(base, True, others, not points_down, rng)]

    def _of_others(
        self, base: BaseClaim, is_near: bool, layout: Layout, points_down: bool | None, rng: np.random.Generator
    ) -> list[KnowledgeGraph]:
        """Return units of other claims about the same measure (near), or about others: one claim for each source.

        Args:
            base: The claim that is asked about.
            is_near: Whether the other claims are about its measure.
            layout: Units of each source.
            points_down: Which way the units point; None leaves it to chance.
            rng: Random source.
        """
        count = len(layout)
        fitting = [other for other in self._others if (_measure(other) == _measure(base)) == is_near]
        if len(fitting) < count:
            which = "the same measure" if is_near else "other measures"
            raise ValueError(
                f"claim {base.claim.claim_id!r} needs {count} other claims about {which}, found {len(fitting)} among "
                f"other_claims={self._config.other_claims}; ask for more of them"
            )
        graphs = []
        for place, units in zip(rng.permutation(len(fitting))[:count].tolist(), layout, strict=True):
            other = fitting[place]
            is_refuting = bool(rng.integers(2))
            if points_down is not None:
                is_refuting = _falls(other.texts[0]) is not points_down
            condition = Condition("one", (), (units,)) if is_refuting else Condition("one", (units,), ())
            graphs.append(_graph(other, condition, rng))
        return graphs

    def _rng(self, number: int, kind: EvidenceKind) -> np.random.Generator:
        key = (SPLIT_NUMBERS[self._split], number, EVIDENCE_KINDS.index(kind))
        return derive_rng(self._config.seed, Purpose.EVIDENCE, *key)


def _graph(base: BaseClaim, condition: Condition, rng: np.random.Generator) -> KnowledgeGraph:
    return graph_from_instance(build_instance(base, condition, rng, base.claim.claim_id, condition.name))


def _measure(base: BaseClaim) -> str:
    """Return what a claim is about: ``yield`` of ``... the yield of dalkon.``; no two domains share one."""
    return base.claim.text.rsplit(" the ", 1)[1].split(" of ", 1)[0]


def _points_down(unit: EvidenceUnit) -> bool:
    return unit.relation in _FALLING


def _falls(text: str) -> bool:
    return text.split(" ", 2)[1] in _FALLING
