"""What rows of a batch have in common at their beginning, laid out so that each token is computed once.

The rows of a GRPO group share their prompt, and often their first turns too. As a tree of segments, every stretch of
tokens stands once in one packed sequence, whatever number of rows goes through it: a segment's tokens see the segments
before it on its rows' path, and themselves. Rows keep no padding, and end with the last token that a trained one needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from provgym.generators.engine_rows import common_length

SHORTEST_SHARED = 8
"""Shorter common stretches are computed once per row (ours): a segment has a cost of its own."""


class Segment(NamedTuple):
    """A stretch of the packed sequence.

    Attributes:
        length: Its tokens.
        depth: Tokens before it on the path; the position of its first token.
        path: Numbers of the segments before it, from the first.
    """

    length: int
    depth: int
    path: tuple[int, ...]


@dataclass(frozen=True)
class PackedRows:
    """Rows as one sequence of segments, and the places whose logits are wanted.

    Shapes: N packed tokens, S wanted log-probabilities.

    Attributes:
        segments: In the order of their tokens.
        input_ids: (N,) int64.
        positions: (N,) int64, counted along each row's path.
        places: (S,) int64, packed place of the token before each wanted one.
        targets: (S,) int64, ids of the wanted tokens.
        rows: (S,) int64, row of the batch that each wanted token belongs to.
        columns: (S,) int64, its completion column.
        mask: (L, L) bool, lower triangular; L = the longest path.
    """

    segments: tuple[Segment, ...]
    input_ids: Tensor
    positions: Tensor
    places: Tensor
    targets: Tensor
    rows: Tensor
    columns: Tensor
    mask: Tensor

    @property
    def num_tokens(self) -> int:
        """N."""
        return len(self.input_ids)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each segment."""
        return [segment.length for segment in self.segments]


class _Row(NamedTuple):
    """One row: what is fed, and the columns whose log-probabilities are wanted."""

    prompt_length: int
    ids: tuple[int, ...]
    columns: NDArray[np.int64]

    @property
    def fed(self) -> tuple[int, ...]:
        """The ids up to the one before the last wanted token; nothing behind it can change what is wanted."""
        return self.ids[: self.prompt_length + int(self.columns[-1])]


def pack_rows(
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    completion_ids: Tensor,
    completion_mask: Tensor,
    wanted: Tensor,
    *,
    shortest_shared: int = SHORTEST_SHARED,
) -> PackedRows:
    """Lay rows out as a tree of segments.

    Shapes: B rows, P prompt columns (padding anywhere), T completion columns (padded on the right).

    Args:
        prompt_ids: (B, P).
        prompt_mask: (B, P), 1 for a token.
        completion_ids: (B, T).
        completion_mask: (B, T), 1 for a token.
        wanted: (B, T), non-zero where a log-probability is wanted. If it is zero throughout, the first completion
            token is taken, so that a loss of zero still reaches the weights.
        shortest_shared: Tokens that rows must have in common to share them.

    Returns:
        The layout, on the device of ``prompt_ids``.

    Raises:
        ValueError: If a prompt is empty, or a wanted column is padding.
    """
    masks = [mask.bool().cpu() for mask in (prompt_mask, completion_mask, wanted)]
    rows = _rows_of(prompt_ids.cpu(), completion_ids.cpu(), *masks)
    segments, tokens, places = _build_tree({row.fed for row in rows.values()}, shortest_shared)
    positions = [segment.depth + i for segment in segments for i in range(segment.length)]
    longest = max(segment.depth + segment.length for segment in segments)
    device = prompt_ids.device

    def joined(parts: Sequence[NDArray[np.int64]]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device)

    return PackedRows(
        segments=tuple(segments),
        input_ids=torch.tensor(tokens, device=device),
        positions=torch.tensor(positions, device=device),
        places=joined([places[row.fed][row.prompt_length - 1 + row.columns] for row in rows.values()]),
        targets=joined([np.array(row.ids, dtype=np.int64)[row.prompt_length + row.columns] for row in rows.values()]),
        rows=joined([np.full(len(row.columns), number, dtype=np.int64) for number, row in rows.items()]),
        columns=joined([row.columns for row in rows.values()]),
        mask=torch.ones(longest, longest, dtype=torch.bool, device=device).tril(),
    )


def _rows_of(
    prompt_ids: Tensor, completion_ids: Tensor, prompt_mask: Tensor, completion_mask: Tensor, wanted: Tensor
) -> dict[int, _Row]:
    """Return the rows of which something is wanted, by number; never none."""
    if not wanted.any():
        wanted = torch.zeros_like(wanted)
        wanted[0, 0] = completion_mask[0, 0]
    rows: dict[int, _Row] = {}
    for number in wanted.any(dim=1).nonzero().flatten().tolist():
        prompt = prompt_ids[number][prompt_mask[number]].tolist()
        length = int(completion_mask[number].sum())
        columns = wanted[number].nonzero().flatten().numpy()
        if not prompt:
            raise ValueError(f"row {number} has an empty prompt: its first token has nothing to be predicted from")
        if int(columns[-1]) >= length or not bool(completion_mask[number, :length].all()):
            raise ValueError(
                f"row {number}: column {int(columns[-1])} is wanted, expected columns below {length}, the length of "
                "its completion, which is padded on the right"
            )
        rows[number] = _Row(len(prompt), (*prompt, *completion_ids[number, :length].tolist()), columns)
    if not rows:
        raise ValueError("the first row has no completion token; a loss needs at least one")
    return rows


def _build_tree(
    distinct: set[tuple[int, ...]], shortest_shared: int
) -> tuple[list[Segment], list[int], dict[tuple[int, ...], NDArray[np.int64]]]:
    """Return the segments, their tokens, and for each row the packed place of each of its tokens."""
    rows = sorted(distinct)
    segments: list[Segment] = []
    tokens: list[int] = []
    places = {row: np.zeros(len(row), dtype=np.int64) for row in rows}
    waiting: list[tuple[int, int, int, tuple[int, ...]]] = [(0, len(rows), 0, ())]
    while waiting:
        first, end, depth, path = waiting.pop()
        # In sorted order, the outermost two have the least in common.
        shared = common_length(rows[first], rows[end - 1])
        is_shared = end - first == 1 or shared - depth >= shortest_shared
        if is_shared and shared > depth:
            for row in rows[first:end]:
                places[row][depth:shared] = np.arange(len(tokens), len(tokens) + shared - depth)
            tokens += rows[first][depth:shared]
            segments.append(Segment(shared - depth, depth, path))
            path, depth = (*path, len(segments) - 1), shared
        begin = first + (is_shared and len(rows[first]) == shared)  # the shortest row may end here
        waiting += [(a, b, depth, path) for a, b in reversed(_branches(rows[begin:end], begin, shared))]
    return segments, tokens, places


def _branches(rows: list[tuple[int, ...]], first: int, depth: int) -> list[tuple[int, int]]:
    """Return the runs of sorted rows that go on with one token at ``depth``, as (first, end) counted from ``first``."""
    runs = groupby(range(len(rows)), key=lambda i: rows[i][depth : depth + 1])
    members = [list(run) for _, run in runs]
    return [(first + run[0], first + run[-1] + 1) for run in members]
