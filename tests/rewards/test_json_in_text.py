"""Finding JSON within prose: nothing that stands before it derails the reading, and the work is bounded."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provgym.rewards.json_in_text import MAX_VAIN_CHARACTERS, find_json, members_of

OBJECT = {"walk": "n3", "why": {"a": [1, "}"]}}
PROSE = [
    "{sentence 2}",
    r"\frac{1}{2}",
    '{"',
    '{"walk": ,',
    '{"walk": "n1" "n2"}',
    "{{",
    "}",
    "[12]",
    "[see",
    '"',
    "stop",
    "{ }x",
    "\\",
]


def values(text: str, *, with_lists: bool = False) -> list[Any]:
    return [found.value for found in find_json(text, with_lists=with_lists)]


@pytest.mark.parametrize("with_lists", [False, True])
@pytest.mark.parametrize("prose", PROSE)
@pytest.mark.parametrize("times", [1, 64, 65, 1_000])
def test_prose_before_an_object_never_hides_it(prose: str, times: int, with_lists: bool) -> None:
    """Fault "braces and several objects": nothing that cannot be a value uses up the reading."""
    text = f"{prose} " * times + json.dumps(OBJECT)
    assert values(text, with_lists=with_lists)[-1] == OBJECT


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PROSE), max_size=200), st.booleans())
def test_any_mixture_of_prose_before_an_object(pieces: list[str], with_lists: bool) -> None:
    assert values(" ".join([*pieces, json.dumps(OBJECT)]), with_lists=with_lists)[-1] == OBJECT


def test_objects_within_one_another_count_once_and_lists_only_where_asked_for() -> None:
    text = '{"a": {"b": 1}} [{"c": 2}] [3] []'
    assert values(text) == [{"a": {"b": 1}}, {"c": 2}]
    assert values(text, with_lists=True) == [{"a": {"b": 1}}, [{"c": 2}], []]
    assert values('{"a": {"b": 1}') == [{"b": 1}]  # cut: what is whole in it


@pytest.mark.parametrize("bomb", ["{", '{"a":', '{"', '{"a":[', "[", "[[{", '{"a": 1} ', '{"\\', "{ ", '{"a":"'])
@pytest.mark.parametrize("with_lists", [False, True])
def test_bombs_cost_bounded_work(bomb: str, with_lists: bool) -> None:
    """Fault "1 MB of ``{``": of the 65,536 characters that callers let through, none raises or takes seconds."""
    started = time.perf_counter()
    list(find_json((bomb * 65_536)[:65_536], with_lists=with_lists))
    assert time.perf_counter() - started < 5.0
    assert MAX_VAIN_CHARACTERS < 65_536**2 / 1_000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=4), json_values, max_size=5), st.sampled_from([None, 2]), st.booleans())
def test_members_are_those_of_the_object_where_they_stand(
    value: dict[str, Any], indent: int | None, ascii_only: bool
) -> None:
    text = "So: " + json.dumps(value, indent=indent, ensure_ascii=ascii_only) + " and more"
    (found,) = list(find_json(text))
    members = list(members_of(text, found.start))
    assert {key.value: item.value for key, item in members} == value
    assert all(json.loads(text[part.start : part.end]) == part.value for member in members for part in member)


@given(st.text(alphabet='{}[]":,ab1\\ \n'), st.booleans())
def test_no_text_raises(text: str, with_lists: bool) -> None:
    for found in find_json(text, with_lists=with_lists):
        assert json.loads(text[found.start : found.end]) == found.value
