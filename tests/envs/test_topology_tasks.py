"""Tasks check themselves: a gold answer that its own checker refuses is found before anything is run."""

from dataclasses import replace
from typing import Any

import pytest

from provgym.envs.evidence_units import KnowledgeGraph
from provgym.envs.topology_tasks import TopologyTask

TASK = TopologyTask("t1", "b1", "dev", "Is it?", "yes", "yes_no", (), KnowledgeGraph((), {}), None)


def test_a_task_may_have_no_evidence() -> None:
    """Bad input "empty evidence"."""
    assert TASK.graph.units == ()
    assert replace(TASK, gold="no").gold == "no"


def test_choices_are_kept_as_a_tuple() -> None:
    task = replace(TASK, answer_kind="multiple_choice", choices=["red", "blue"], gold="B")  # type: ignore[arg-type]
    assert task.choices == ("red", "blue")
    assert hash(task) == hash(replace(task))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_id": " "}, "task_id must not be blank"),
        ({"base_id": ""}, "task 't1': base_id must not be blank"),
        ({"question": "\n"}, "task 't1': question must not be blank"),
        ({"split": "test2"}, r"task 't1': split 'test2' is unknown; choose one of \['train', 'dev', 'test'\]"),
        ({"evidence_kind": "noise"}, "task 't1': evidence_kind 'noise' is unknown"),
        ({"answer_kind": "essay"}, "task 't1': answer kind 'essay' is unknown"),
        ({"gold": "perhaps"}, "task 't1': gold 'perhaps' is no answer of kind 'yes_no'"),
        ({"choices": ("red",)}, "task 't1': choices go with answer_kind 'multiple_choice' and with no other"),
        ({"answer_kind": "multiple_choice", "gold": "A"}, "found 0 choices for 'multiple_choice'"),
        ({"answer_kind": "multiple_choice", "gold": "C", "choices": ("r", "b")}, "gold 'C' is no answer"),
        ({"answer_kind": "exact", "gold": "<think>"}, "its checker does not accept the gold answer '<think>' itself"),
    ],
)
def test_wrong_tasks_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TASK, **changes)
