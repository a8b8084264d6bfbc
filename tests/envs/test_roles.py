"""The role library."""

import pytest

from provgym.envs.roles import ANSWERER, DEFAULT_ROLES, Role, RoleKind, RoleLibrary

ANSWER = Role(ANSWERER, RoleKind.ANSWER, "Answer.")
REASON = Role("Reasoner", RoleKind.REASON, "Reason.")


def test_the_default_roles() -> None:
    assert DEFAULT_ROLES.names == ("Planner", "Reasoner", "Verifier", "Answerer")
    assert [role.kind.value for role in DEFAULT_ROLES] == ["plan", "reason", "verify", "answer"]
    assert len(DEFAULT_ROLES) == 4
    assert "Verifier" in DEFAULT_ROLES
    assert "Critic" not in DEFAULT_ROLES


def test_a_library_without_a_verifier() -> None:
    fewer = DEFAULT_ROLES.without(["Verifier"])
    assert fewer.names == ("Planner", "Reasoner", "Answerer")
    assert len(DEFAULT_ROLES) == 4
    with pytest.raises(ValueError, match="role 'Critic' is unknown; the library has"):
        DEFAULT_ROLES.without(["Critic"])
    with pytest.raises(ValueError, match="exactly one role of kind 'answer'"):
        DEFAULT_ROLES.without([ANSWERER])


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ((), r"needs exactly one role of kind 'answer', named 'Answerer'; found \[\]"),
        ((REASON,), r"found \[\]"),
        ((ANSWER, Role("Speaker", RoleKind.ANSWER, "Speak.")), r"found \['Answerer', 'Speaker'\]"),
        ((Role("Speaker", RoleKind.ANSWER, "Speak."),), r"found \['Speaker'\]"),
        ((ANSWER, REASON, REASON), r"role names \['Reasoner'\] stand twice"),
    ],
)
def test_wrong_libraries_are_named(roles: tuple[Role, ...], message: str) -> None:
    """Fault "cyclic graph", its neighbour: two roles of one name are refused."""
    with pytest.raises(ValueError, match=message):
        RoleLibrary(roles)


def test_wrong_roles_are_named() -> None:
    with pytest.raises(ValueError, match="role 'Reasoner' needs an instruction"):
        Role("Reasoner", RoleKind.REASON, "  ")
    with pytest.raises(ValueError, match="role name 'a\\|b'"):
        Role("a|b", RoleKind.REASON, "x")
    with pytest.raises(ValueError, match="role 'Critic' is unknown"):
        DEFAULT_ROLES["Critic"]
