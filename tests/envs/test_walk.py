"""Walk dynamics on graphs small enough to follow by hand."""

from collections.abc import Callable

import pytest

from provgym.envs.provenance import Instance
from provgym.envs.walk import MAX_BUDGET, StepKind, Walk
from provgym.rewards.outcome import Ending, Judgement, Verdict

InstanceOf = Callable[..., Instance]
ANSWER = Judgement(Verdict.MIXED, 1, 1)


def kinds(walk: Walk) -> list[str]:
    return [step.kind.value for step in walk.trace]


def test_new_echo_and_connector_by_hand(instance_of: InstanceOf) -> None:
    # 0 claim; 1, 2 observations of atom 0, 3 of atom 1; 4, 5, 6 representations; 7, 8 sources
    walk = Walk(instance_of([2], [1]), budget=8)
    for node in (1, 2, 5, 7, 4, 1, 3, 0):
        walk.walk(node)
    assert kinds(walk) == ["new", "echo", "echo", "connector", "echo", "echo", "new", "connector"]
    assert [step.node for step in walk.trace] == [1, 2, 5, 7, 4, 1, 3, 0]
    assert [step.atom for step in walk.trace] == [0, 0, 0, None, 0, 0, 1, None]
    assert [step.budget_left for step in walk.trace] == [7, 6, 5, 4, 3, 2, 1, 0]
    walk.stop(ANSWER)
    outcome = walk.outcome()
    assert (outcome.walks, outcome.echoes, outcome.connector_moves, outcome.invalid_actions) == (8, 4, 2, 0)
    assert (outcome.acquired_support, outcome.acquired_refute) == (1, 1)
    assert (outcome.available_support, outcome.available_refute) == (1, 1)
    assert (outcome.ending, outcome.gold, outcome.is_correct) == (Ending.ANSWERED, Verdict.MIXED, True)


@pytest.mark.parametrize("node", [0, 4, 7, -1, 9, 10**9])
def test_a_walk_that_follows_no_edge_is_charged_and_changes_nothing_else(instance_of: InstanceOf, node: int) -> None:
    walk = Walk(instance_of([2], [1]), budget=3)
    step = walk.walk(node)
    assert step.kind is StepKind.ILLEGAL
    assert (walk.position, walk.walks, walk.invalid_actions, walk.budget_left) == (0, 0, 1, 2)
    assert list(walk.visited) == [0]


def test_illegal_and_unparsed_actions_use_the_budget_but_are_no_walks(instance_of: InstanceOf) -> None:
    walk = Walk(instance_of([1], [1]), budget=3)
    walk.reject()
    walk.walk(99)
    walk.walk(1)
    assert kinds(walk) == ["unparsed", "illegal", "new"]
    walk.stop(ANSWER)
    outcome = walk.outcome()
    assert (outcome.walks, outcome.invalid_actions, outcome.budget) == (1, 2, 3)


@pytest.mark.parametrize("before", [1, 2, 3])
def test_a_stop_as_second_third_or_fourth_action_terminates(instance_of: InstanceOf, before: int) -> None:
    """Fault "terminated or truncated": budget 3, stop as 2nd, 3rd and 4th action."""
    walk = Walk(instance_of([3], [1]), budget=3)
    for node in (1, 2, 3)[:before]:
        walk.walk(node)
    walk.stop(ANSWER)
    assert walk.ending is Ending.ANSWERED


def test_late_actions_truncate(instance_of: InstanceOf) -> None:
    """Fault "terminated or truncated": a 4th walk, a malformed 4th action, a malformed 4th stop."""
    late_actions: tuple[Callable[[Walk], object], ...] = (
        lambda walk: walk.walk(4),
        lambda walk: walk.walk(99),
        lambda walk: walk.reject(),
        lambda walk: walk.stop(None),
    )
    for late in late_actions:
        walk = Walk(instance_of([4], [1]), budget=3)
        for node in (1, 2, 3):
            walk.walk(node)
        assert walk.ending is None
        late(walk)
        assert walk.ending is Ending.TRUNCATED
        assert (walk.position, walk.walks, walk.budget_left) == (3, 3, 0)
        assert walk.outcome().judgement is None


def test_a_stop_whose_judgement_does_not_parse_is_invalid_within_the_budget(instance_of: InstanceOf) -> None:
    walk = Walk(instance_of([1], [1]), budget=3)
    walk.stop(None)
    assert walk.ending is Ending.INVALID


def test_nothing_follows_the_end(instance_of: InstanceOf) -> None:
    """Fault "terminated or truncated": a step after the end is a clear error."""
    walk = Walk(instance_of([1], [1]), budget=3)
    walk.stop(ANSWER)
    actions: tuple[Callable[[], object], ...] = (
        lambda: walk.walk(1),
        lambda: walk.follow(1),
        lambda: walk.walk(99),
        walk.reject,
        lambda: walk.stop(ANSWER),
        lambda: walk.abort(Ending.ERROR),
    )
    for again in actions:
        with pytest.raises(RuntimeError, match=r"the episode ended \(answered\)"):
            again()
    assert kinds(walk) == ["stop"]


def test_abort_ends_as_truncated_or_error_only(instance_of: InstanceOf) -> None:
    for ending in (Ending.TRUNCATED, Ending.ERROR):
        walk = Walk(instance_of([1], [1]), budget=3)
        walk.abort(ending)
        assert walk.outcome().ending is ending
    with pytest.raises(ValueError, match="abort takes 'truncated' or 'error'"):
        Walk(instance_of([1], [1]), budget=3).abort(Ending.ANSWERED)


def test_there_is_no_outcome_before_the_end(instance_of: InstanceOf) -> None:
    with pytest.raises(RuntimeError, match="not over"):
        Walk(instance_of([1], [1]), budget=3).outcome()


@pytest.mark.parametrize("budget", [0, -1, MAX_BUDGET + 1])
def test_impossible_budgets(instance_of: InstanceOf, budget: int) -> None:
    with pytest.raises(ValueError, match=f"budget={budget} must lie in"):
        Walk(instance_of([1], [1]), budget)


def test_evidence_of_another_claim_is_a_connector(merged_instance: Instance) -> None:
    """In a merged graph, what a shared source says of another claim counts for nothing here."""
    walk = Walk(merged_instance, budget=8)
    for node in (2, 6, 10, 8, 4, 5):  # own evidence, its source, then the other claim's evidence
        assert walk.can_walk(node)
        walk.walk(node)
    assert kinds(walk) == ["new", "echo", "connector", "connector", "connector", "connector"]
    walk.stop(ANSWER)
    outcome = walk.outcome()
    assert (outcome.acquired_support, outcome.acquired_refute) == (1, 0)
    assert (outcome.available_support, outcome.available_refute) == (1, 1)
    assert outcome.connector_moves == 4


def test_two_atoms_of_one_source_are_one_source(instance_of: InstanceOf) -> None:
    from provgym.envs.provenance import Atom, Claim, EvidenceGraph, Route, Stance

    atoms = tuple(Atom(f"a{k}", "same", Stance.SUPPORT, f"finding {k}.") for k in range(2))
    routes = tuple(Route(f"r{k}", "c", f"a{k}", "result") for k in range(2))
    graph = EvidenceGraph((Claim("c", "It holds."),), atoms, routes)
    walk = Walk(Instance("i", graph, "test", Verdict.SUPPORT), budget=3)
    walk.walk(1)
    walk.walk(2)
    assert kinds(walk) == ["new", "new"]  # two observations, no echo
    assert walk.acquired_sources == (1, 0)


def test_a_claim_without_routes_can_only_be_judged(bare_instance: Instance) -> None:
    walk = Walk(bare_instance, budget=2)
    assert walk.neighbours().tolist() == []
    assert walk.walk(0).kind is StepKind.ILLEGAL
    walk.stop(Judgement(Verdict.MIXED, 0, 0))
    assert (walk.outcome().available, walk.outcome().acquired) == (0, 0)
