"""Templates, drawn by hand."""

from __future__ import annotations

import itertools

import pytest
from tests.generators.kgat_worlds import FOUR, TWO, rules_of

from provgym.envs.roles import ANSWERER, DEFAULT_ROLES, Role, RoleKind, RoleLibrary
from provgym.envs.topology import Topology
from provgym.envs.topology_rules import TopologyRules
from provgym.generators.topology_templates import TEMPLATE_NAMES, templates


def test_the_default_rules_have_every_template() -> None:
    found = templates(TopologyRules(DEFAULT_ROLES.names))
    assert tuple(found) == TEMPLATE_NAMES
    assert found["single"] == Topology((ANSWERER,), ())
    assert found["chain"] == Topology(("Planner", "Reasoner", ANSWERER), ((0, 1), (1, 2)))
    assert found["star"] == Topology(("Reasoner",) * 3 + (ANSWERER,), ((0, 3), (1, 3), (2, 3)))
    assert found["tree"] == Topology(("Reasoner",) * 5 + (ANSWERER,), ((0, 3), (1, 4), (2, 4), (3, 5), (4, 5)))
    assert found["with_verifier"] == Topology(("Reasoner", "Verifier", ANSWERER), ((0, 1), (1, 2)))
    assert found["debate"] == Topology(("Reasoner",) * 5 + (ANSWERER,), tuple(itertools.combinations(range(6), 2)))


@pytest.mark.parametrize("max_nodes", range(1, 11))
@pytest.mark.parametrize("max_in_degree", [None, 1, 2, 3, 5])
@pytest.mark.parametrize("roles", [FOUR, TWO, (ANSWERER, "Verifier", "Reasoner"), ("Planner", ANSWERER)])
def test_all_but_debate_keep_the_rules(max_nodes: int, max_in_degree: int | None, roles: tuple[str, ...]) -> None:
    rules = rules_of(roles, max_nodes, max_in_degree)
    found = templates(rules)
    assert "single" in found
    for name, topology in found.items():
        (rules_of(roles, max_nodes, None) if name == "debate" else rules).check(topology)


@pytest.mark.parametrize(
    ("max_nodes", "max_in_degree", "names"),
    [
        (1, 3, ["single"]),
        (2, 3, ["single", "chain"]),
        (3, 3, ["single", "chain", "star", "with_verifier", "debate"]),
        (4, 1, ["single", "chain", "with_verifier", "debate"]),
        (4, 2, list(TEMPLATE_NAMES)),
    ],
)
def test_what_has_no_room_is_left_out(max_nodes: int, max_in_degree: int, names: list[str]) -> None:
    assert list(templates(rules_of(FOUR, max_nodes, max_in_degree))) == names


def test_the_star_has_as_many_workers_as_the_answerer_may_hear() -> None:
    assert templates(rules_of(FOUR, 6, None))["star"].num_nodes == 6
    assert templates(rules_of(FOUR, 6, 2))["star"].num_nodes == 3


def test_roles_go_by_their_kind_not_by_their_name() -> None:
    library = RoleLibrary(
        (
            Role("Checker", RoleKind.VERIFY, "Check."),
            Role("Thinker", RoleKind.REASON, "Think."),
            Role(ANSWERER, RoleKind.ANSWER, "Answer."),
        )
    )
    found = templates(TopologyRules(library.names), library)
    assert found["with_verifier"].roles == ("Thinker", "Checker", ANSWERER)
    assert found["chain"].roles == ("Thinker", ANSWERER)


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(ValueError, match="'Thinker' is unknown"):
        templates(TopologyRules(("Thinker", ANSWERER)))
