"""Verdict questions over SciFact, with the evidence agreeing or beside the point; for transfer, never trained on.

* **agreement**: the claim's own rationale sentences, at most ``num_units``, and nothing else;
* **irrelevance**: at most ``relevant_units`` of them, and sentences about other claims up to ``num_units`` in all: the
  nearest in wording among those of other documents with the opposite label.

A claim's label is its gold verdict. The number of units under agreement is what the data set has (mostly 1 to 3), so
it is not matched between the kinds as it is in GraphEcho-Syn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from provgym.envs.evidence_units import EvidenceUnit, KnowledgeGraph
from provgym.envs.topology_tasks import EvidenceKind, TopologyTask
from provgym.generators.evidence_task_config import EVIDENCE_KINDS, QUESTION, EvidenceTaskConfig
from provgym.generators.hashed_encoder import HashedEncoder
from provgym.generators.knowledge_graph_scifact import ScifactKnowledge, read_scifact_knowledge
from provgym.generators.knowledge_graphs import numbered
from provgym.generators.seeds import SPLIT_NUMBERS, Purpose, derive_rng


def make_scifact_tasks(config: EvidenceTaskConfig, split: str) -> tuple[TopologyTask, ...]:
    """Return one task per kept claim and kind.

    Args:
        config: With the two official files.
        split: ``test``.

    Raises:
        ValueError: If the split is another one, the files hold no claim with evidence, or too few other sentences.
        BadFileError: If a line does not follow the format.
        FileNotFoundError: If a file does not exist.
    """
    if split != "test":
        raise ValueError(f"SciFact tasks are for transfer and stand in split 'test' only, found {split!r}")
    if config.scifact_claims is None or config.scifact_corpus is None:
        raise ValueError("SciFact tasks need scifact_claims and scifact_corpus, the official files")
    knowledge = read_scifact_knowledge(config.scifact_claims, config.scifact_corpus)
    if not knowledge.claims:
        raise ValueError(f"{config.scifact_claims}: no claim with usable gold evidence; {knowledge.report.text()}")
    maker = _Maker(config, knowledge)
    return tuple(maker.task(number, kind) for number in range(len(knowledge.claims)) for kind in config.kinds)


class _Maker:
    """Makes tasks of the units of one SciFact file."""

    def __init__(self, config: EvidenceTaskConfig, knowledge: ScifactKnowledge) -> None:
        self._config = config
        self._knowledge = knowledge
        encoder = HashedEncoder()
        self._sentences = encoder.encode([unit.span.text for unit in knowledge.graph.units])  # (U, d)
        self._claims = encoder.encode([claim.text for claim in knowledge.claims])  # (C, d)

    def task(self, number: int, kind: EvidenceKind) -> TopologyTask:
        """Return the task of one claim under one kind."""
        config, knowledge = self._config, self._knowledge
        claim = knowledge.claims[number]
        own = [knowledge.graph.units[place] for place in knowledge.units_of[claim.claim_id]]
        if kind == "agreement":
            units = own[: config.num_units]
        else:
            units = own[: config.relevant_units]
            units += self._beside(self._claims[number], own, config.num_units - len(units))
        key = (SPLIT_NUMBERS["test"], number, EVIDENCE_KINDS.index(kind))
        order = derive_rng(config.seed, Purpose.EVIDENCE, *key).permutation(len(units)).tolist()
        documents = {unit.span.document_id: knowledge.graph.documents[unit.span.document_id] for unit in units}
        graph = KnowledgeGraph(numbered(units[place] for place in order), documents)
        task_id, question = f"{claim.claim_id}/{kind}", QUESTION.format(claim=claim.text)
        gold = knowledge.gold[claim.claim_id].value
        return TopologyTask(task_id, claim.claim_id, "test", question, gold, "verdict", (), graph, kind)

    def _beside(self, claim: NDArray[np.float32], own: Sequence[EvidenceUnit], count: int) -> list[EvidenceUnit]:
        """Return the sentences nearest in wording that are about other claims, from other documents."""
        sources = {unit.source_id for unit in own}
        nearest = np.argsort(-(self._sentences @ claim), kind="stable").tolist()  # (U,)
        found: dict[tuple[str, int], EvidenceUnit] = {}
        for place in nearest:
            unit = self._knowledge.graph.units[place]
            if unit.source_id not in sources and unit.relation != own[0].relation:
                found.setdefault((unit.span.document_id, unit.span.start), unit)
        if len(found) < count:
            raise ValueError(
                f"found {len(found)} sentences about other claims with the opposite label, expected {count}; use a "
                "larger claims file, or a smaller num_units"
            )
        return list(found.values())[:count]
