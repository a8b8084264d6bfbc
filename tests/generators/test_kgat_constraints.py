"""Look-ahead masks against brute force: exactly the sequences of valid graphs can be decoded."""

from __future__ import annotations

import pytest
import torch
from tests.generators.kgat_worlds import FOUR, TWO, Node, all_sequences, rules_of

from provgym.envs.roles import ANSWERER
from provgym.envs.topology_rules import TopologyRules
from provgym.generators.kgat_constraints import DecodeMasks, LookAhead, masked_log_softmax

RULES = [
    rules_of(roles, max_nodes, limit)
    for roles, max_nodes, limit in [
        (TWO, 1, 3),
        (TWO, 4, 1),
        (TWO, 4, 2),
        (TWO, 4, None),
        (("Planner", "Reasoner", ANSWERER), 3, 2),
        ((ANSWERER,), 3, 2),
    ]
]


def decodable(rules: TopologyRules) -> set[tuple[Node, ...]]:
    """Every sequence that the masks allow; fails if they lead into a dead end."""
    masks = DecodeMasks(rules)
    finished: set[tuple[Node, ...]] = set()
    frontier: list[tuple[tuple[Node, ...], int]] = [((), 0)]
    while frontier:
        prefix, open_ = frontier.pop()
        size = len(prefix)
        placed = torch.tensor([2**size - 1])
        (roles,) = masks.legal_roles(placed, torch.tensor([open_])).tolist()
        assert any(roles), f"dead end after {prefix}"
        for role, is_legal in enumerate(roles):
            if not is_legal:
                continue
            sets = masks.legal_senders(placed, torch.tensor([open_]), torch.tensor([role]), size)[0].tolist()
            assert len(sets) == 2**size
            assert any(sets), f"no senders for {rules.role_names[role]} after {prefix}"
            for chosen in (number for number, fits in enumerate(sets) if fits):
                heard = frozenset(node for node in range(size) if chosen >> node & 1)
                longer = (*prefix, (rules.role_names[role], heard))
                if role == masks.answerer:
                    finished.add(longer)
                else:
                    frontier.append((longer, open_ & ~chosen | 1 << size))
    return finished


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_the_masks_allow_the_sequences_of_valid_graphs_and_no_other(rules: TopologyRules) -> None:
    assert decodable(rules) == set(all_sequences(rules))


def test_five_nodes_with_in_degree_two_have_no_dead_end() -> None:
    """Here a prefix of valid steps can become impossible to complete: three open nodes with one node to come."""
    rules = rules_of(TWO, 5, 2)
    assert len(decodable(rules)) == len(set(all_sequences(rules)))


def test_look_ahead_by_hand() -> None:
    look = LookAhead(rules_of(FOUR, 5, 2))
    # Two placed and open, three to come: two more open ones would be too many for in-degree 2.
    assert look.least_absorbed(2, 2) == 0  # afterwards 3 open, 2 to come: the next takes 2, 2 are left for the Answerer
    assert look.least_absorbed(3, 3) == 2  # afterwards 2 open at most, as the Answerer takes them
    assert look.may_go_on(3, 3)
    assert not look.may_answer(3)
    assert look.may_answer(2)
    assert not look.may_go_on(4, 2)  # one node is left, the Answerer
    chain = LookAhead(rules_of(FOUR, 5, 1))
    assert chain.least_absorbed(0, 0) == 0
    assert chain.least_absorbed(1, 1) == 1
    free = LookAhead(rules_of(FOUR, 5, None))
    assert free.least_absorbed(3, 3) == 0
    assert free.may_answer(4)


def test_padding_of_the_sets_of_senders_is_never_legal() -> None:
    masks = DecodeMasks(rules_of(TWO, 4, 3))
    placed, open_ = torch.tensor([0b01, 0b11]), torch.tensor([0b01, 0b11])
    role = torch.tensor([0, 0])
    wide = masks.legal_senders(placed, open_, role, 3)
    assert wide.shape == (2, 8)
    assert wide[0].nonzero()[:, 0].tolist() == [0, 1]
    assert wide[1].nonzero()[:, 0].tolist() == [0, 1, 2, 3]


def test_probabilities_are_renormalised_over_what_is_legal() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))
    logprobs = masked_log_softmax(logits, torch.tensor([[True, False, True]]))
    assert logprobs.exp()[0].tolist() == pytest.approx([0.5 / 0.7, 0.0, 0.2 / 0.7])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_damaged_scores_are_refused_where_they_matter(bad: float) -> None:
    """Fault kind "exp overflow in KL": a non-finite score is named, never drawn from."""
    logits = torch.tensor([[0.0, bad]])
    assert masked_log_softmax(logits, torch.tensor([[True, False]]))[0].tolist() == [0.0, -torch.inf]
    with pytest.raises(ValueError, match="NaN or infinity"):
        masked_log_softmax(logits, torch.tensor([[True, True]]))


def test_more_nodes_than_can_be_decoded_are_refused() -> None:
    with pytest.raises(ValueError, match="max_nodes=11 must be at most 10"):
        DecodeMasks(rules_of(FOUR, 11, 3))
