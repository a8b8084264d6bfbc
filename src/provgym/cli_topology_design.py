"""A trained K-GAT run as the one who chooses the team for a question that is asked on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provgym.envs.evidence_units import EvidenceContext
    from provgym.envs.topology import Topology
    from provgym.envs.topology_tasks import TopologyTask
    from provgym.eval.topology_data import NamedEncoder
    from provgym.eval.topology_generator import Designer


@dataclass(frozen=True)
class DesigningRun:
    """A run's generator, with the encoder and the retrieval depth that it was trained with.

    Attributes:
        designer: Chooses one team per question.
        encoder: Of questions and units.
        depth: Units retrieved per question in training.
    """

    designer: Designer
    encoder: NamedEncoder
    depth: int

    def design(self, task: TopologyTask, depth: int | None, replicate: int) -> tuple[EvidenceContext, Topology]:
        """Return the evidence that is shown, to generator and agents alike, and the team that it calls for.

        Args:
            task: The question and its knowledge graph; without units the team is chosen by the question alone.
            depth: Units retrieved; None takes what the run was trained with.
            replicate: Number of the repeat.

        Raises:
            ValueError: If ``depth`` is below 1.
        """
        from provgym.eval.topology_methods import Question
        from provgym.generators.retriever import retrieve_contexts

        chosen = self.depth if depth is None else depth
        if chosen < 1:
            raise ValueError(f"--depth {depth} must be >= 1; leave it out to show {self.depth}, as in training")
        (context,) = retrieve_contexts([task], self.encoder, chosen)
        (team,) = self.designer([Question(task, context, replicate)])
        return context, team


def read_designing_run(folder: Path) -> DesigningRun:
    """Read the generator of a finished K-GAT run.

    Args:
        folder: Of the run: it holds config.yaml and generator/.

    Raises:
        FileNotFoundError: If it is no finished run.
        ValueError: If its files do not fit together.
        ImportError: If the encoder's package is missing.
    """
    from provgym.eval.topology_data import load_encoder
    from provgym.eval.topology_generator import load_designer
    from provgym.trainers.config_file import load_config
    from provgym.trainers.kgat_config import KgatConfig
    from provgym.trainers.kgat_world import eval_config_of

    path = folder / "config.yaml"
    if not path.is_file():
        raise FileNotFoundError(
            f"--topology {folder} is a folder without config.yaml; name that of a K-GAT run, such as runs/NAME"
        )
    if not (folder / "generator").is_dir():
        raise FileNotFoundError(
            f"--topology {folder} holds no generator: name the folder of a finished K-GAT run, such as "
            "runs/kgat-simulated (`provgym kgat --config configs/kgat/simulated.yaml` makes it)"
        )
    config = load_config(KgatConfig, path)
    encoder = load_encoder(eval_config_of(config))
    designer = load_designer(folder, encoder, encoder.fingerprint)
    return DesigningRun(designer, encoder, config.retrieval.depth)
