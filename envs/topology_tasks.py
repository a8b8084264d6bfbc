"""A task that a team of agents is set: a question, its gold answer, and the knowledge graph to answer it from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from provgym.envs.evidence_units import KnowledgeGraph
from provgym.rewards.answer_code import CodeGold
from provgym.rewards.answers import AnswerKind, is_correct

EvidenceKind = Literal["agreement", "conflict", "irrelevance"]
"""How the evidence of a controlled task stands to its question."""

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True, slots=True)
class TopologyTask:
    """One task.

    Attributes:
        task_id: Unique within a data set, not empty.
        base_id: What the task was made from; tasks that share it share a split.
        split: ``train``, ``dev`` or ``test``.
        question: Not blank.
        gold: The right answer, as :func:`~provgym.rewards.answers.extract_answer` returns it or as written in a data
            set; for ``multiple_choice`` the letter; for ``code`` what it is tested by, as
            :meth:`~provgym.rewards.answer_code.CodeGold.to_text` writes it.
        answer_kind: Which checker reads the answers.
        choices: The texts of the options A, B, ... for ``multiple_choice``; otherwise empty.
        graph: What can be retrieved; it may be empty.
        evidence_kind: How the evidence was made to stand to the question; None where nobody controls it.

    Raises:
        ValueError: If an id or the question is blank, the split or a kind is unknown, the choices do not go with the
            kind, or the checker does not accept the gold answer itself.
    """

    task_id: str
    base_id: str
    split: str
    question: str
    gold: str
    answer_kind: AnswerKind
    choices: tuple[str, ...]
    graph: KnowledgeGraph
    evidence_kind: EvidenceKind | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", tuple(self.choices))
        for name in ("task_id", "base_id", "question"):
            if not getattr(self, name).strip():
                raise ValueError(f"task {self.task_id!r}: {name} must not be blank")
        if self.split not in SPLITS:
            raise ValueError(f"task {self.task_id!r}: split {self.split!r} is unknown; choose one of {list(SPLITS)}")
        if self.evidence_kind is not None and self.evidence_kind not in get_args(EvidenceKind):
            raise ValueError(
                f"task {self.task_id!r}: evidence_kind {self.evidence_kind!r} is unknown; choose one of "
                f"{list(get_args(EvidenceKind))}, or None"
            )
        if (self.answer_kind == "multiple_choice") != bool(self.choices):
            raise ValueError(
                f"task {self.task_id!r}: choices go with answer_kind 'multiple_choice' and with no other; found "
                f"{len(self.choices)} choices for {self.answer_kind!r}"
            )
        try:
            if self.answer_kind == "code":
                CodeGold.from_text(self.gold)
                return
            accepts_gold = is_correct(self.answer_kind, self.gold, self.gold, choices=self.choices)
        except ValueError as error:
            raise ValueError(f"task {self.task_id!r}: {error}") from error
        if not accepts_gold:
            raise ValueError(f"task {self.task_id!r}: its checker does not accept the gold answer {self.gold!r} itself")
