"""Rows as a tree of segments: every token once, every row whole, and nothing computed that nothing needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from provgym.trainers.prefix_tree import PackedRows, Segment, pack_rows

Rows = list[tuple[list[int], list[int], list[int]]]  # prompt, completion, wanted


def padded(rows: Rows, pad: int = 0) -> dict[str, Any]:
    """Return rows as TRL pads them: prompts on the left, completions on the right."""
    left, right = max(len(p) for p, _, _ in rows), max(len(c) for _, c, _ in rows)
    return {
        "prompt_ids": torch.tensor([[pad] * (left - len(p)) + p for p, _, _ in rows]),
        "prompt_mask": torch.tensor([[0] * (left - len(p)) + [1] * len(p) for p, _, _ in rows]),
        "completion_ids": torch.tensor([c + [pad] * (right - len(c)) for _, c, _ in rows]),
        "completion_mask": torch.tensor([[1] * len(c) + [0] * (right - len(c)) for _, c, _ in rows]),
        "wanted": torch.tensor([w + [0] * (right - len(w)) for _, _, w in rows]),
    }


def packed(rows: Rows, **options: Any) -> PackedRows:
    return pack_rows(**padded(rows), **options)


def path_to(layout: PackedRows, place: int) -> list[int]:
    """Return the ids on the path to a packed place, by walking the segments: independent of how places are made."""
    start = 0
    starts = []
    for segment in layout.segments:
        starts.append(start)
        start += segment.length
    number = max(i for i, begin in enumerate(starts) if begin <= place)
    ids = layout.input_ids.tolist()
    before = [t for i in layout.segments[number].path for t in ids[starts[i] : starts[i] + layout.segments[i].length]]
    return [*before, *ids[starts[number] : place + 1]]


def test_a_group_by_hand() -> None:
    """A prompt of 2, three completions of which two begin alike; the last token of each is only ever a target."""
    layout = packed(
        [([7, 8], [1, 2, 3], [1, 1, 1]), ([7, 8], [1, 2, 4], [1, 0, 1]), ([7, 8], [5], [1])], shortest_shared=1
    )
    assert layout.segments == (Segment(2, 0, ()), Segment(2, 2, (0,)))
    assert layout.input_ids.tolist() == [7, 8, 1, 2], "3, 4 and 5 are predicted, never read"
    assert layout.positions.tolist() == [0, 1, 2, 3]
    assert layout.places.tolist() == [1, 2, 3, 1, 3, 1]
    assert layout.targets.tolist() == [1, 2, 3, 1, 4, 5]
    assert layout.rows.tolist() == [0, 0, 0, 1, 1, 2]
    assert layout.columns.tolist() == [0, 1, 2, 0, 2, 0]
    assert layout.mask.tolist() == [[j <= i for j in range(4)] for i in range(4)]


def test_rows_that_part_have_segments_of_their_own() -> None:
    rows: Rows = [([7, 8], [1, 2, 3], [0, 0, 1]), ([7, 8], [4, 5], [0, 1]), ([9], [1, 2], [0, 1])]
    layout = packed(rows, shortest_shared=1)
    assert layout.segments == (Segment(2, 0, ()), Segment(2, 2, (0,)), Segment(1, 2, (0,)), Segment(2, 0, ()))
    assert layout.input_ids.tolist() == [7, 8, 1, 2, 4, 9, 1]
    assert layout.positions.tolist() == [0, 1, 2, 3, 2, 0, 1]


def test_a_short_common_stretch_is_not_worth_a_segment() -> None:
    rows: Rows = [([7, 8], [1, 2, 3], [1, 1, 1]), ([7, 8], [4, 5], [1, 1])]
    assert packed(rows, shortest_shared=2).num_tokens == 2 + 2 + 1
    assert packed(rows, shortest_shared=3).segments == (Segment(4, 0, ()), Segment(3, 0, ()))


def test_a_row_that_is_the_beginning_of_another() -> None:
    rows: Rows = [([7, 8], [1, 2, 3, 4], [0, 0, 0, 1]), ([7, 8], [1, 2], [0, 1]), ([7, 8], [1, 2], [1, 1])]
    layout = packed(rows, shortest_shared=1)
    assert layout.input_ids.tolist() == [7, 8, 1, 2, 3]
    assert packed(rows, shortest_shared=4).num_tokens == 5 + 3, "nor is it lost where the stretch is too short"


def test_rows_without_a_wanted_token_are_left_out() -> None:
    """Kind: masked roll-outs in the normaliser: an error's episode costs no forward pass."""
    layout = packed([([7, 8], [1, 2, 3], [0, 0, 0]), ([5, 6], [1, 2], [1, 0])])
    assert layout.input_ids.tolist() == [5, 6]
    assert layout.rows.tolist() == [1]


def test_nothing_wanted_still_reaches_the_weights() -> None:
    """Kind: all-zero mask in one micro-batch: its loss of 0 has to support backward."""
    layout = packed([([7, 8], [1, 2], [0, 0]), ([5], [1, 2], [0, 0])])
    assert layout.input_ids.tolist() == [7, 8]
    assert layout.targets.tolist() == [1]


def test_pad_equal_to_the_end_token() -> None:
    """Kind: pad = EOS (pad = eos = 2): lengths come from masks, ids of 2 inside rows stay."""
    rows: Rows = [([9, 2, 8], [9, 2, 7, 2], [1, 1, 1, 1]), ([2, 8], [9, 2], [1, 1])]
    layout = pack_rows(**padded(rows, pad=2), shortest_shared=1)
    for row, (prompt, completion, _) in enumerate(rows):
        columns = layout.columns[layout.rows == row].tolist()
        assert columns == list(range(len(completion)))
        last = layout.places[layout.rows == row].tolist()[-1]
        assert path_to(layout, last) == prompt + completion[:-1]


def test_bad_rows_are_refused_by_number() -> None:
    with pytest.raises(ValueError, match="row 1 has an empty prompt"):
        packed([([7], [1], [1]), ([], [1], [1])])
    batch = padded([([7], [1, 2], [1, 1]), ([7], [1], [1])])
    batch["wanted"][1, 1] = 1
    with pytest.raises(ValueError, match="row 1: column 1 is wanted, expected columns below 1"):
        pack_rows(**batch)
    batch = padded([([7], [1, 2], [0, 1])])
    batch["completion_mask"] = torch.tensor([[0, 1]])
    with pytest.raises(ValueError, match="padded on the right"):
        pack_rows(**batch)


@st.composite
def batches(draw: st.DrawFn) -> Rows:
    """Rows over three ids, so that many begin alike."""
    ids = st.lists(st.integers(1, 3), min_size=1, max_size=7)
    prompts = draw(st.lists(ids, min_size=1, max_size=3))
    rows: Rows = []
    for _ in range(draw(st.integers(1, 8))):
        completion = draw(ids)
        wanted = draw(st.lists(st.integers(0, 1), min_size=len(completion), max_size=len(completion)))
        rows.append((draw(st.sampled_from(prompts)), completion, wanted))
    return rows


@settings(deadline=None)
@given(batches(), st.integers(1, 6))
def test_every_row_is_whole_and_every_token_once(rows: Rows, shortest_shared: int) -> None:
    layout = packed(rows, shortest_shared=shortest_shared)
    wanted = {(r, c) for r, (_, _, mask) in enumerate(rows) for c, is_wanted in enumerate(mask) if is_wanted}
    found = list(zip(layout.rows.tolist(), layout.columns.tolist(), strict=True))
    assert set(found) == (wanted or {(0, 0)})
    assert len(found) == len(set(found))
    for (row, column), place, target in zip(found, layout.places.tolist(), layout.targets.tolist(), strict=True):
        prompt, completion, _ = rows[row]
        assert path_to(layout, place) == prompt + completion[:column]
        assert target == completion[column]
        assert int(layout.positions[place]) == len(prompt) + column - 1
    assert sum(layout.lengths) == layout.num_tokens == len(layout.positions)
    fed = {tuple(p + c[: max(i for i, w in enumerate(m) if w)]) for p, c, m in rows if any(m)}
    beginnings = {row[: i + 1] for row in fed for i in range(len(row))}
    if fed and shortest_shared == 1:
        assert layout.num_tokens == len(beginnings), "as many tokens as there are different beginnings"
    assert layout.num_tokens <= sum(map(len, fed)) or not fed
    for segment in layout.segments:
        assert segment.depth == sum(layout.segments[i].length for i in segment.path)
        assert segment.length > 0
