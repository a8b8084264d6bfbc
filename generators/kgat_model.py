"""The K-GAT generator: a distribution over the topologies that a query and its evidence call for.

Example:
    >>> import numpy as np
    >>> settings = KgatSettings(role_names=("Reasoner", "Answerer"), max_nodes=2, encoder_size=4, hidden_size=8)
    >>> model = KgatModel(settings, seed=0)
    >>> query = np.array([1.0, 0.0, 0.0, 0.0], dtype=np.float32)
    >>> contexts = ContextBatch.of([EmbeddedContext(query, np.zeros((0, 4), dtype=np.float32), ())])
    >>> sorted(topology.key for topology, _ in model.beam(contexts, width=9)[0])
    ['Answerer:', 'Reasoner+Answerer:0>1']
    >>> round(float(sum(np.exp(logprob) for _, logprob in model.beam(contexts, width=9)[0])), 5)
    1.0
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from provgym.envs.topology import Topology
from provgym.envs.topology_rules import TopologyRules
from provgym.generators.kgat_beam import search_beam
from provgym.generators.kgat_context import ContextBatch, EmbeddedContext
from provgym.generators.kgat_decode import DecodeMode, decode_batch
from provgym.generators.kgat_exact import PackedTopologies, graph_log_probs, pack_topologies
from provgym.generators.kgat_scores import KgatScores, KgatSettings
from provgym.generators.seeds import Purpose, derive_seed

__all__ = ["ContextBatch", "DecodeMode", "EmbeddedContext", "KgatModel", "KgatSettings", "PackedTopologies"]


class KgatModel(nn.Module):
    """P(G | Q, C_K) over exactly the topologies that are valid under the settings.

    Args:
        settings: Shape and constraints.
        seed: Of the initial weights; the global generator is neither read nor changed.

    Attributes:
        settings: As given.
        rules: The constraints. No weight depends on N_max or d_max: a state dict loads into a model of other limits.

    Source:
        K-GAT, arXiv:2608.27984. Ours: exact constraints, the probability of the graph instead of one decode order,
        and states that do not depend on the order (see :mod:`provgym.generators.kgat_scores`).
    """

    def __init__(self, settings: KgatSettings, *, seed: int = 0) -> None:
        super().__init__()
        self.settings = settings
        self.rules: TopologyRules = settings.rules()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, Purpose.INITIALISATION))
            self.scores = KgatScores(settings)
            _initialise(self.scores)

    def forward(
        self,
        contexts: ContextBatch,
        topologies: PackedTopologies | Sequence[Topology] | Sequence[Sequence[Topology]],
        rows: Sequence[int] | None = None,
    ) -> Tensor:
        """Return (P,) :meth:`log_prob`, arguments and errors as there; what a wrapper for several processes calls."""
        return self.log_prob(contexts, topologies, rows)

    def log_prob(
        self,
        contexts: ContextBatch,
        topologies: PackedTopologies | Sequence[Topology] | Sequence[Sequence[Topology]],
        rows: Sequence[int] | None = None,
    ) -> Tensor:
        """Return the exact log-probability of graphs, over all orders in which they can be decoded, with gradients.

        Args:
            contexts: B contexts; each is pooled once.
            topologies: P topologies with their ``rows``; or one sequence of topologies per context; or what
                :meth:`pack` made of them, to be reused over steps.
            rows: (P,) context row of each topology; None if topologies come as sequences per context, as one topology
                per context, or packed.

        Returns:
            (P,) float; sequences per context one after the other.

        Raises:
            TopologyError: If a topology is outside the support, see :meth:`supports`.
            ValueError: If the numbers do not fit, or the weights are damaged.
        """
        if isinstance(topologies, PackedTopologies):
            packed = topologies
        else:
            packed = self.pack(topologies, rows, num_contexts=len(contexts))
        return graph_log_probs(self.scores, self.scores.pooling(contexts), packed)

    def pack(
        self,
        topologies: Sequence[Topology | Sequence[Topology]],
        rows: Sequence[int] | None = None,
        *,
        num_contexts: int,
    ) -> PackedTopologies:
        """Prepare topologies for :meth:`log_prob`.

        Args:
            topologies: As there.
            rows: As there.
            num_contexts: B, of the batch that they will be scored with.

        Raises:
            TopologyError: If a topology is outside the support, see :meth:`supports`.
            ValueError: If there is none, or the numbers do not fit.
        """
        flat: list[Topology] = []
        implied: list[int] = []
        for row, entry in enumerate(topologies):
            group: list[Topology] = [entry] if isinstance(entry, Topology) else list(entry)
            flat += group
            implied += [row] * len(group)
        if rows is None and len(topologies) != num_contexts:
            raise ValueError(
                f"{len(topologies)} entries of topologies for {num_contexts} contexts; give one per context, or rows"
            )
        given = implied if rows is None else [int(row) for row in rows]
        outside = [row for row in given if not 0 <= row < num_contexts]
        if outside:
            raise ValueError(f"row {outside[0]} names no context; there are {num_contexts}")
        packed = pack_topologies(flat, given, self.rules)
        return packed.to(self.scores.roles.weight.device)

    def supports(self, topology: Topology) -> bool:
        """Whether a topology is among those that the generator can generate."""
        return self.rules.is_valid(topology)

    @torch.no_grad()
    def decode(
        self,
        contexts: ContextBatch,
        *,
        mode: DecodeMode = "greedy",
        temperature: float = 1.0,
        seeds: Sequence[int] | None = None,
    ) -> list[Topology]:
        """Decode one topology per context; see :func:`~provgym.generators.kgat_decode.decode_batch`.

        Args:
            contexts: B contexts.
            mode: ``greedy`` takes the likeliest choice at each place, ``sample`` draws it.
            temperature: Of ``sample``, > 0.
            seeds: (B,) of ``sample``, one per context.

        Raises:
            ValueError: As there.
        """
        context = self.scores.pooling(contexts)
        names = self.settings.role_names
        return decode_batch(self.scores, context, names, mode=mode, temperature=temperature, seeds=seeds)

    @torch.no_grad()
    def beam(self, contexts: ContextBatch, width: int) -> list[list[tuple[Topology, float]]]:
        """Return likely topologies of each context with their exact log-probabilities, the likeliest first.

        What greedy decoding finds is always looked at too, so the first entry is never less likely than that; with
        width 1 it is that very topology.

        Args:
            contexts: B contexts.
            width: Entries returned at most, and prefixes kept on the way.

        Raises:
            ValueError: If the width is below 1.
        """
        greedy = self.decode(contexts)
        context = self.scores.pooling(contexts)
        if width == 1:
            lists = [[topology] for topology in greedy]
        else:
            lists = search_beam(self.scores, context, self.settings.role_names, width)
            for row, topology in enumerate(greedy):
                if topology.key not in {other.key for other in lists[row]}:
                    lists[row].append(topology)
        logprobs = iter(self.log_prob(contexts, lists).tolist())
        scored = [[(topology, next(logprobs)) for topology in row] for row in lists]
        return [sorted(row, key=lambda entry: -entry[1])[:width] for row in scored]


def _initialise(scores: KgatScores) -> None:
    """Draw weights that keep the size of what passes through a row of tanh layers (Glorot and Bengio 2010).

    PyTorch's own draw shrinks it by about half a layer, and c_K passes five: even with the best team of every task as
    its only target, a generator then spent its first 200 steps without telling one kind of evidence from another.
    """
    for module in scores.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight, gain=nn.init.calculate_gain("tanh"))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    nn.init.xavier_uniform_(scores.edge.weight)  # followed by no tanh: edges begin undecided
