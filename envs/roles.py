"""Roles: what an agent of a topology is asked to do."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

ANSWERER = "Answerer"
"""The role that every topology has exactly once, and whose output is the team's answer."""

_NAME = re.compile(r"[^\W_][\w .-]{0,63}")


class RoleKind(StrEnum):
    """What an agent does with what it is given."""

    PLAN = "plan"  # says what has to be found out
    REASON = "reason"  # draws a conclusion from evidence and messages
    VERIFY = "verify"  # checks claims against the evidence and its provenance
    ANSWER = "answer"  # gives the team's answer


@cache
def check_role_name(name: str) -> None:
    """Refuse a role name that could not stand in keys, files and diagrams as it is.

    Raises:
        ValueError: If it is not 1 to 64 letters, digits, spaces, dots, hyphens and underscores, of which the first is
            a letter or a digit and the last is no space.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name[-1].isspace():
        raise ValueError(
            f"role name {name!r} must be 1 to 64 letters, digits, spaces, dots, hyphens and underscores, "
            "beginning with a letter or digit and not ending in a space"
        )


@dataclass(frozen=True, slots=True)
class Role:
    """A role of the library.

    Attributes:
        name: What topologies call it.
        kind: What it does.
        instruction: System text that an agent in this role is given.

    Raises:
        ValueError: If the name can't be used or the instruction is blank.
    """

    name: str
    kind: RoleKind
    instruction: str

    def __post_init__(self) -> None:
        check_role_name(self.name)
        if not self.instruction.strip():
            raise ValueError(f"role {self.name!r} needs an instruction, found {self.instruction!r}")


@dataclass(frozen=True, slots=True)
class RoleLibrary:
    """Roles by name, in a fixed order.

    Attributes:
        roles: Distinct names; exactly one is of kind ANSWER, and it is called :data:`ANSWERER`.

    Raises:
        ValueError: If a name repeats, or the Answerer is missing or not the only one that answers.

    Example:
        >>> DEFAULT_ROLES.names
        ('Planner', 'Reasoner', 'Verifier', 'Answerer')
        >>> DEFAULT_ROLES["Verifier"].kind.value
        'verify'
    """

    roles: tuple[Role, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "roles", tuple(self.roles))
        names = [role.name for role in self.roles]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"role names {repeated} stand twice in one library; names must be distinct")
        answering = [role.name for role in self.roles if role.kind is RoleKind.ANSWER]
        if answering != [ANSWERER]:
            raise ValueError(
                f"a role library needs exactly one role of kind 'answer', named {ANSWERER!r}; found {answering}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The roles' names, in order."""
        return tuple(role.name for role in self.roles)

    def without(self, names: Collection[str]) -> RoleLibrary:
        """Return the library without some roles, for controls such as "no Verifier".

        Raises:
            ValueError: If a name is unknown, or it is the Answerer.
        """
        for name in names:
            self[name]
        return RoleLibrary(tuple(role for role in self.roles if role.name not in names))

    def __getitem__(self, name: str) -> Role:
        """Return the role of that name.

        Raises:
            ValueError: If there is none.
        """
        for role in self.roles:
            if role.name == name:
                return role
        raise ValueError(f"role {name!r} is unknown; the library has {list(self.names)}")

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[Role]:
        return iter(self.roles)

    def __len__(self) -> int:
        return len(self.roles)


DEFAULT_ROLES = RoleLibrary(
    (
        Role(
            "Planner",
            RoleKind.PLAN,
            "You plan. Say in at most three short steps what has to be found out to answer the question, and which of "
            "the evidence units, by id, each step needs. Do not answer the question.",
        ),
        Role(
            "Reasoner",
            RoleKind.REASON,
            "You reason. Use only evidence units that bear on the question, name each one you use by its id, and draw "
            "a conclusion. Units of one source count once, however many there are. End with a line 'Answer: ...'.",
        ),
        Role(
            "Verifier",
            RoleKind.VERIFY,
            "You verify. Split the messages you are given into single claims and check each one against the quoted "
            "spans of the evidence: supported, contradicted or not found, with the unit's id. Correct what is wrong. "
            "End with a line 'Answer: ...'.",
        ),
        Role(
            ANSWERER,
            RoleKind.ANSWER,
            "You give the team's final answer. Weigh the messages you are given against the evidence units; units of "
            "one source count once. End with a line 'Answer: ...' and nothing behind it.",
        ),
    )
)
"""Planner, Reasoner, Verifier and Answerer, as in K-GAT, arXiv:2608.27984; the wording is ours."""
