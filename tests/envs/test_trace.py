"""A trace is rendered when it is read, and is a plain list once it leaves the process."""

import copy
import pickle
from collections.abc import Callable

import pytest

from provgym.envs.provenance import Instance
from provgym.envs.trace import TraceView
from provgym.envs.walk import Walk

InstanceOf = Callable[..., Instance]


def test_a_view_keeps_its_length_and_renders_ids(instance_of: InstanceOf) -> None:
    walk = Walk(instance_of([1], [1]), budget=5)
    empty = TraceView(walk.instance, walk.trace)
    walk.walk(1)
    one = TraceView(walk.instance, walk.trace)
    walk.walk(0)
    two = TraceView(walk.instance, walk.trace)
    assert [len(view) for view in (empty, one, two)] == [0, 1, 2]
    expected = [
        {"kind": "new", "node": "observation:c-r0", "budget_left": 4, "atom": "c-a0", "source": "c-source0"},
        {"kind": "connector", "node": "claim:c-claim", "budget_left": 3, "atom": None, "source": None},
    ]
    assert list(two) == two[:] == expected
    assert (one[0], one[-1], two[-1]) == (expected[0], expected[0], expected[1])
    with pytest.raises(IndexError):
        one[1]
    assert repr(one) == repr(expected[:1])


def test_equality_copies_and_pickles(instance_of: InstanceOf) -> None:
    walk = Walk(instance_of([1], [1]), budget=5)
    walk.walk(1)
    view = TraceView(walk.instance, walk.trace)
    assert view == TraceView(walk.instance, walk.trace) == list(view)
    assert view != []
    assert view != "new"
    assert copy.deepcopy(view) is copy.copy(view) is view
    thawed = pickle.loads(pickle.dumps(view))
    assert type(thawed) is list
    assert thawed == view


def test_changing_an_entry_changes_nothing_else(instance_of: InstanceOf) -> None:
    """Fault "aliased observations", for traces."""
    walk = Walk(instance_of([1], [1]), budget=5)
    walk.walk(1)
    view = TraceView(walk.instance, walk.trace)
    view[0]["node"] = "nowhere"
    assert view[0]["node"] == "observation:c-r0"
