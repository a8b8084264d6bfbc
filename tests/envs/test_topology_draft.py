"""Building step by step: every legal way ends valid, every valid topology can be built, nothing more is forbidden."""

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.envs.random_topologies import drafts

from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.topology_draft import TopologyDraft
from provgym.envs.topology_rules import TopologyRules, enumerate_topologies

SMALL_RULES = [
    TopologyRules(("Reasoner", "Answerer"), 4, 1),
    TopologyRules(("Reasoner", "Answerer"), 4, 2),
    TopologyRules(("Reasoner", "Verifier", "Answerer"), 3, 3),
    TopologyRules(("Reasoner", "Answerer"), 5, 2),
    TopologyRules(("Reasoner", "Answerer"), 1, 2),
    TopologyRules(("Answerer",), 3, 2),
]


def completions(draft: TopologyDraft) -> Iterator[TopologyDraft]:
    """Every finished draft that legal decisions lead to; one that is stuck fails the test."""
    if draft.is_complete:
        yield draft
        return
    assert draft.legal_roles or draft.legal_edges, f"stuck at {draft}"
    for role in draft.legal_roles:
        yield from completions(draft.with_role(role))
    for answer in draft.legal_edges:
        yield from completions(draft.with_edge(answer))


def unmasked(rules: TopologyRules) -> Iterator[TopologyDraft]:
    """Every sequence of decisions up to an Answerer, legal or not; independent of the look-ahead."""
    waiting = [TopologyDraft(rules)]
    while waiting:
        draft = waiting.pop()
        if draft.is_complete:
            yield draft
        elif draft.pending is not None:
            for answer in (0, 1):
                last = draft.senders[-1] | answer << draft.num_asked
                waiting.append(TopologyDraft(rules, draft.roles, (*draft.senders[:-1], last), draft.num_asked + 1))
        elif len(draft.roles) < rules.max_nodes:
            for role in rules.role_names:
                waiting.append(TopologyDraft(rules, (*draft.roles, role), (*draft.senders, 0)))


@pytest.mark.parametrize("rules", SMALL_RULES, ids=str)
def test_legal_ways_are_exactly_the_valid_ones(rules: TopologyRules) -> None:
    masked = [(draft.roles, draft.senders) for draft in completions(TopologyDraft(rules))]
    valid = [(d.roles, d.senders) for d in unmasked(rules) if rules.is_valid(d.topology())]
    assert len(set(masked)) == len(masked)
    assert sorted(masked) == sorted(valid)
    keys = {draft.topology().key for draft in completions(TopologyDraft(rules))}
    assert keys == {topology.key for topology in enumerate_topologies(rules)}


def test_567_sequences_make_the_379_graphs_of_four_nodes() -> None:
    """The design's figures: three roles and the Answerer, exactly four nodes, no limit on in-degree that binds."""
    made = Counter(
        draft.topology().key
        for draft in completions(TopologyDraft(TopologyRules(DEFAULT_ROLES.names, 4, None)))
        if len(draft.roles) == 4
    )
    assert (made.total(), len(made)) == (567, 379)


@pytest.mark.parametrize("rules", [TopologyRules(DEFAULT_ROLES.names, 6, 3), TopologyRules(DEFAULT_ROLES.names, 8, 2)])
@given(data=st.data())
def test_any_legal_way_ends_valid(rules: TopologyRules, data: st.DataObject) -> None:
    draft = data.draw(drafts(rules))
    rules.check(draft.topology())
    assert not draft.legal_roles
    assert not draft.legal_edges


def test_the_look_ahead_by_hand() -> None:
    """In-degree 2, four nodes: two open Reasoners leave room for a third, three would leave room for none."""
    draft = TopologyDraft(TopologyRules(("Reasoner", "Answerer"), 4, 2)).with_role("Reasoner").with_role("Reasoner")
    assert draft.pending == (0, 1)
    assert draft.legal_edges == (False, True)
    draft = draft.with_edge(False)
    assert draft.legal_roles == ("Reasoner", "Answerer")
    draft = draft.with_role("Reasoner")
    assert draft.legal_edges == (False, True)
    draft = draft.with_edge(False)
    assert (draft.pending, draft.legal_edges) == ((1, 2), (True,))
    draft = draft.with_edge(True).with_role("Answerer")
    assert draft.legal_edges == (True,)
    draft = draft.with_edge(True)
    assert (draft.pending, draft.legal_edges) == ((1, 3), (False,))
    draft = draft.with_edge(False)
    assert (draft.pending, draft.legal_edges) == ((2, 3), (True,))
    assert draft.with_edge(True).topology().edges == ((0, 3), (1, 2), (2, 3))


def test_decisions_that_are_not_legal_are_named() -> None:
    draft = TopologyDraft(TopologyRules(("Reasoner", "Answerer"), 2, 3))
    with pytest.raises(ValueError, match=r"role 'Critic' can't be placed now; legal are \['Reasoner', 'Answerer'\]"):
        draft.with_role("Critic")
    with pytest.raises(ValueError, match="answer True on edge None is not legal"):
        draft.with_edge(True)
    draft = draft.with_role("Reasoner").with_role("Answerer")
    with pytest.raises(ValueError, match=r"answer False on edge \(0, 1\) is not legal; legal are \[True\]"):
        draft.with_edge(False)
    with pytest.raises(ValueError, match="the topology is not complete"):
        draft.topology()
    done = draft.with_edge(True)
    assert done.is_complete
    with pytest.raises(ValueError, match="can't be placed now"):
        done.with_role("Reasoner")
