"""One claim record and one graph instance: the same thing as plain data and as a graph.

The format is described for users in ``docs/claim_files.md``. Every graph of one claim whose atoms stand in
the order in which its routes use them can be written, and comes back equal, ids and order included.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from provgym.envs.provenance import Atom, Claim, EvidenceGraph, Instance, Route, Stance
from provgym.rewards.outcome import Verdict

DEFAULT_CONDITION = "own"
DEFAULT_KIND = "result"
_MAX_SHOWN_CHARACTERS = 60


def _number_as_text(value: Any) -> Any:
    """Read ``31`` as ``"31"``, so that one id has one type however a file writes it."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def storable(value: Any) -> Any:
    """Refuse half of a surrogate pair, which JSON escapes can hold and no UTF-8 file can.

    Raises:
        ValueError: If ``value`` is a text that holds one.
    """
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError("must be Unicode text, without half of a surrogate pair")
    return value


def _with_visible_text(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise ValueError("must hold at least one visible character")
    return storable(value)


def _kind_as_route(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_with_visible_text)]
Id = Annotated[str, BeforeValidator(_with_visible_text), BeforeValidator(_number_as_text)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class RouteRecord(_Record):
    """A route: the kind of its representation, and an id if the default one is not wanted."""

    kind: Text
    id: Id | None = None


class EvidenceRecord(_Record):
    """One observation of one source and the routes by which it is met."""

    source: Id
    stance: Literal["SUPPORT", "REFUTE"]
    text: Text
    routes: list[Annotated[RouteRecord, BeforeValidator(_kind_as_route)]] = Field(
        default_factory=lambda: [RouteRecord(kind=DEFAULT_KIND)], min_length=1
    )
    atom: Id | None = None
    weight: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)


class ClaimRecord(_Record):
    """One line of a claim file: a claim under one condition, with its evidence."""

    id: Id
    claim: Text
    split: Literal["train", "dev", "test"]
    condition: Text = DEFAULT_CONDITION
    gold: Literal["SUPPORT", "REFUTE", "MIXED"] | None = None
    domain: Annotated[str, BeforeValidator(storable)] = ""
    entities: list[Text] = Field(default_factory=list)
    claim_id: Id | None = None
    evidence: list[EvidenceRecord] = Field(min_length=1)


def record_to_instance(data: Mapping[str, Any]) -> Instance:
    """Build the instance of one record.

    A record without ``gold`` gets the majority over its distinct sources. Records of one ``atom`` join their
    routes.

    Args:
        data: A record as plain data; see ``docs/claim_files.md``.

    Raises:
        ValueError: Naming the field, what was found and what was expected.

    Example:
        >>> rose = {"source": "s1", "stance": "SUPPORT", "text": "It rose.", "routes": ["result", "table"]}
        >>> instance = record_to_instance({"id": 1, "claim": "It rises.", "split": "dev", "evidence": [rose]})
        >>> instance.gold.value, instance.graph.n_path(), instance.graph.n_prov()
        ('SUPPORT', 2, 1)
    """
    try:
        record = ClaimRecord.model_validate(data)
    except ValidationError as error:
        raise ValueError(_explain(error)) from error
    claim = Claim(record.claim_id or record.id, record.claim, record.domain, tuple(record.entities))
    atoms: dict[str, Atom] = {}
    routes: list[Route] = []
    routes_of: Counter[str] = Counter()
    for number, evidence in enumerate(record.evidence, start=1):
        atom_id = evidence.atom or f"{claim.claim_id}-e{number}"
        atom = Atom(atom_id, evidence.source, Stance(evidence.stance), evidence.text, float(evidence.weight))
        if atoms.setdefault(atom_id, atom) != atom:
            raise ValueError(
                f"field 'evidence.{number - 1}': found atom {atom_id!r} again with another source, stance, "
                "text or weight, expected the same ones; an atom is one observation of one source"
            )
        for route in evidence.routes:
            route_id = route.id or _default_route_id(atom_id, routes_of[atom_id])
            routes_of[atom_id] += 1
            routes.append(Route(route_id, claim.claim_id, atom_id, route.kind))
    graph = EvidenceGraph((claim,), tuple(atoms.values()), tuple(routes))
    gold = Verdict.from_counts(*graph.source_counts()) if record.gold is None else Verdict(record.gold)
    return Instance(record.id, graph, record.condition, gold, record.split)


def instance_to_record(instance: Instance, *, explicit_routes: bool = False) -> dict[str, Any]:
    """Return the record of one instance; :func:`record_to_instance` reverses it exactly.

    Args:
        instance: An instance whose graph holds its claim alone.
        explicit_routes: Write every route as ``{"kind", "id"}``, as tables need; else as its kind where
            its id is the default one.

    Raises:
        ValueError: If the graph holds several claims, or atoms that no route uses or in another order
            than its routes.
    """
    graph, claim = instance.graph, instance.base_claim
    if len(graph.claims) != 1:
        raise ValueError(
            f"instance {instance.instance_id!r}: its graph holds {len(graph.claims)} claims, expected 1; "
            "write the instances before their graphs are merged"
        )
    if tuple(dict.fromkeys(r.atom_id for r in graph.routes)) != tuple(a.atom_id for a in graph.atoms):
        raise ValueError(
            f"instance {instance.instance_id!r}: its atoms must stand in the order in which the routes use "
            "them, each used at least once; build the graph in that order"
        )
    return {
        "id": instance.instance_id,
        "claim": claim.text,
        "split": instance.split,
        "condition": instance.condition,
        "gold": instance.gold.value,
        "domain": claim.domain,
        "entities": list(claim.entities),
        "claim_id": claim.claim_id,
        "evidence": _evidence(graph, explicit_routes),
    }


def _evidence(graph: EvidenceGraph, explicit_routes: bool) -> list[dict[str, Any]]:
    atom_of = {a.atom_id: a for a in graph.atoms}
    routes_of: Counter[str] = Counter()
    records: list[dict[str, Any]] = []
    for route in graph.routes:
        atom = atom_of[route.atom_id]
        # Routes of one atom that do not follow each other get a record each: their order is the nodes' order.
        if not records or records[-1]["atom"] != atom.atom_id:
            head = {"source": atom.source_id, "stance": atom.stance.value, "text": atom.text}
            records.append(head | {"routes": [], "atom": atom.atom_id, "weight": atom.weight})
        is_default = route.route_id == _default_route_id(atom.atom_id, routes_of[atom.atom_id])
        routes_of[atom.atom_id] += 1
        plain = is_default and not explicit_routes
        records[-1]["routes"].append(route.kind if plain else {"kind": route.kind, "id": route.route_id})
    return records


def _default_route_id(atom_id: str, number: int) -> str:
    return f"{atom_id}-{number}"


def _explain(error: ValidationError) -> str:
    """Say what is wrong with a record: its first fault in full, and how many more there are."""
    faults = error.errors(include_url=False)
    first = faults[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        depth = sum(part in ("evidence", "routes") for part in first["loc"][:-1])
        known = list((ClaimRecord, EvidenceRecord, RouteRecord)[depth].model_fields)
        near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "remove it"
        text = f"field {field!r} is unknown, expected one of {', '.join(known)}; {hint}"
    elif first["type"] == "missing":
        text = f"field {field!r} is missing; add it"
    else:
        shown = repr(first["input"])
        found = shown if len(shown) <= _MAX_SHOWN_CHARACTERS else f"{shown[:_MAX_SHOWN_CHARACTERS]}..."
        text = f"field {field!r}: found {found}, expected: {first['msg'].removeprefix('Value error, ')}"
    return text if len(faults) == 1 else f"{text} (and {len(faults) - 1} more)"
