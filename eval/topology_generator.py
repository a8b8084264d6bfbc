"""A trained generator as a proposer of teams, and the controls that take something away from it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from provgym.envs.evidence_units import EvidenceContext
from provgym.envs.topology import Topology
from provgym.eval.topology_methods import Question, shown_as_is
from provgym.eval.walk_config import instance_number
from provgym.generators.seeds import Purpose, derive_seed

if TYPE_CHECKING:
    from provgym.generators.kgat_model import DecodeMode, KgatModel
    from provgym.generators.retriever import Encoder

BATCH_SIZE = 256
"""Questions decoded together; a team does not depend on its batch."""


@dataclass(frozen=True)
class Designer:
    """Proposes one team per question.

    Attributes:
        model: The generator.
        encoder: Embeds questions and units; the one that the generator was trained with.
        fingerprint: Of the weights and of everything below.
        sees_evidence: Whether the evidence stands in what teams are chosen by.
        mode: ``greedy``, or ``sample`` by seeds of (run seed, task, replicate).
        temperature: Of sampling, > 0.
        seed: Run seed of sampling.
    """

    model: KgatModel
    encoder: Encoder
    fingerprint: str
    sees_evidence: bool = True
    mode: DecodeMode = "greedy"
    temperature: float = 1.0
    seed: int = 42

    def __call__(self, questions: Sequence[Question]) -> list[Topology]:
        """Return one team per question, chosen by the evidence of the question."""
        return self.propose(questions, shown_as_is(questions))

    def propose(self, questions: Sequence[Question], evidence: Sequence[EvidenceContext]) -> list[Topology]:
        """Return one team per question.

        Args:
            questions: Who asks.
            evidence: What the teams are chosen by, one context per question; not looked at without evidence.
        """
        from provgym.generators.kgat_context import ContextBatch, embed_contexts

        teams: list[Topology] = []
        for start in range(0, len(questions), BATCH_SIZE):
            chosen = questions[start : start + BATCH_SIZE]
            texts = [question.task.question for question in chosen]
            batch = ContextBatch.of(embed_contexts(texts, evidence[start : start + BATCH_SIZE], self.encoder))
            seeds = None if self.mode == "greedy" else [self._seed_of(question) for question in chosen]
            given = batch if self.sees_evidence else batch.without_evidence()
            teams += self.model.decode(given, mode=self.mode, temperature=self.temperature, seeds=seeds)
        return teams

    def blind(self) -> Designer:
        """Return the same weights with the evidence removed from what teams are chosen by."""
        return replace(self, sees_evidence=False, fingerprint=f"{self.fingerprint}/without evidence")

    def seeing(self) -> Designer:
        """Return the same weights with the evidence in what teams are chosen by."""
        return replace(self, sees_evidence=True, fingerprint=f"{self.fingerprint}/with evidence")

    def within(self, max_nodes: int, max_in_degree: int | None) -> Designer:
        """Return the same weights under other limits of a team; the generator itself if they are its own.

        Args:
            max_nodes: N_max.
            max_in_degree: d_max; None for no limit.

        Raises:
            ValueError: If no generator can decode under these limits.
        """
        own = self.model.rules
        if (max_nodes, max_in_degree) == (own.max_nodes, own.max_in_degree):
            return self
        limits = f"N_max {max_nodes}, d_max {max_in_degree}"
        limited = within_limits(self.model, max_nodes, max_in_degree)
        return replace(self, model=limited, fingerprint=f"{self.fingerprint}/{limits}")

    def without_roles(self, names: Collection[str]) -> Designer:
        """Return the same weights with some roles masked: their probability is 0, the others' are renormalised.

        Raises:
            ValueError: If the generator does not know a role, or it is the Answerer.
        """
        masked = without_roles(self.model, names)
        return replace(self, model=masked, fingerprint=f"{self.fingerprint}/without {','.join(sorted(names))}")

    def _seed_of(self, question: Question) -> int:
        return derive_seed(self.seed, Purpose.SAMPLING, instance_number(question.task.task_id), question.replicate)


def load_designer(
    folder: Path,
    encoder: Encoder,
    encoder_fingerprint: str,
    *,
    mode: DecodeMode = "greedy",
    temperature: float = 1.0,
    seed: int = 42,
) -> Designer:
    """Read a generator's folder, or that of the run that trained it.

    Args:
        folder: See :func:`~provgym.generators.kgat_folder.load_generator`.
        encoder: What is to embed.
        encoder_fingerprint: Of that encoder; it must be the one that the generator was trained with.
        mode: See :class:`Designer`.
        temperature: See :class:`Designer`.
        seed: See :class:`Designer`.

    Raises:
        FileNotFoundError: If there is no generator.
        ValueError: If the folder is damaged, or the encoder is another one.
    """
    from provgym.generators.kgat_folder import load_generator
    from provgym.generators.weights_fingerprint import weights_fingerprint

    stored = load_generator(folder)
    if stored.encoder != encoder_fingerprint:
        raise ValueError(
            f"{folder} was trained on embeddings of {stored.encoder!r}, found the encoder {encoder_fingerprint!r}: its "
            "choices would mean nothing; name the encoder it was trained with"
        )
    settings = "greedy" if mode == "greedy" else f"sample/{temperature}/{seed}"
    fingerprint = f"{weights_fingerprint(stored.model)}/{settings}"
    return Designer(stored.model, encoder, fingerprint, stored.sees_evidence, mode, temperature, seed)


def within_limits(model: KgatModel, max_nodes: int, max_in_degree: int | None) -> KgatModel:
    """Return a generator with the same weights that decodes under other limits.

    No weight depends on N_max or d_max: they only decide which choices are legal. What is above the limits it was
    trained under has never been a target.

    Args:
        model: Any generator.
        max_nodes: N_max, from 1 to :data:`~provgym.generators.kgat_constraints.MAX_DECODED_NODES`.
        max_in_degree: d_max, at least 1; None for no limit.

    Raises:
        ValueError: If a limit is out of range.
    """
    from provgym.generators.kgat_constraints import MAX_DECODED_NODES
    from provgym.generators.kgat_model import KgatModel

    if not 1 <= max_nodes <= MAX_DECODED_NODES:
        raise ValueError(
            f"max_nodes={max_nodes} must lie in [1, {MAX_DECODED_NODES}] for teams that a generator decodes; name a "
            "smaller one, or leave the generator out"
        )
    limits = {"max_nodes": max_nodes, "max_in_degree": max_in_degree}
    limited = KgatModel(type(model.settings).model_validate(model.settings.model_dump() | limits))
    limited.load_state_dict(model.state_dict())
    return limited.eval()


def without_roles(model: KgatModel, names: Collection[str]) -> KgatModel:
    """Return a generator with the same weights and fewer roles.

    Roles are chosen by a softmax over their own vectors, and each role has a vector of its own: leaving rows out is
    masking them.

    Raises:
        ValueError: If the generator does not know a role, or it is the Answerer.
    """
    from provgym.envs.roles import ANSWERER
    from provgym.generators.kgat_model import KgatModel

    known = model.settings.role_names
    unknown = [name for name in names if name not in known or name == ANSWERER]
    if unknown:
        raise ValueError(f"roles {unknown} can't be masked; the generator has {list(known)}, of which {ANSWERER} stays")
    kept = [place for place, name in enumerate(known) if name not in names]
    fewer = KgatModel(model.settings.model_copy(update={"role_names": tuple(known[place] for place in kept)}))
    own = dict(model.named_parameters())
    for name, parameter in fewer.named_parameters():
        weights = own[name].detach()
        parameter.data.copy_(weights[kept] if weights.shape != parameter.shape else weights)
    return fewer.eval()
