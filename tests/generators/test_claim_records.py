"""Claim records: what a line means, what is refused by field, and that instances survive exactly."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provgym.envs.provenance import Atom, Claim, EvidenceGraph, Instance, Route, Stance
from provgym.generators import json_lines
from provgym.generators.claim_files import from_dataset, to_dataset
from provgym.generators.claim_records import instance_to_record, record_to_instance
from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL
from provgym.generators.graphecho import GraphEcho
from provgym.rewards.outcome import Verdict

SYNTHETIC = [
    instance
    for split in ("train", "dev", "test")
    for instance in GraphEcho.generate(3, {"train": 4, "dev": 2, "test": 2}).instances(
        split, [*CONFLICT_CONDITIONS, "3+1|2", "2S5PR", GENERAL]
    )
]


def line(number: int = 1, **change: Any) -> dict[str, Any]:
    """A good record; ``change`` replaces fields."""
    evidence = [{"source": f"doc{number}", "stance": "SUPPORT", "text": "It rose."}]
    return {
        "id": f"own-{number}",
        "claim": f"Claim {number}.",
        "split": "train",
        "evidence": evidence,
    } | change


def evidence(**change: Any) -> list[dict[str, Any]]:
    return [{"source": "doc1", "stance": "SUPPORT", "text": "It rose."} | change]


def contents(instance: Instance) -> tuple[object, ...]:
    graph = instance.graph
    head = (instance.instance_id, instance.condition, instance.gold, instance.split, instance.claim)
    return (*head, graph.claims, graph.atoms, graph.routes, graph.sources, graph.indices.tolist())


def same(one: Sequence[Instance], other: Sequence[Instance]) -> bool:
    return [contents(i) for i in one] == [contents(i) for i in other]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(lambda t: bool(t.strip()))


def test_generated_routes_are_written_as_plain_kinds() -> None:
    record = instance_to_record(SYNTHETIC[1])
    assert all(isinstance(route, str) for e in record["evidence"] for route in e["routes"])


def test_interleaved_routes_and_own_ids_are_kept() -> None:
    """Routes of one atom need not follow each other; their order is the order of the nodes."""
    claim = Claim("c", "It rises.", "physics", ("ruxor",))
    atoms = (Atom("a", "s1", Stance.SUPPORT, "It rose.", 0.5), Atom("b", "s2", Stance.REFUTE, "It fell."))
    routes = tuple(Route(f"r{i}", "c", atom, "figure") for i, atom in enumerate("abaab"))
    instance = Instance("i", EvidenceGraph((claim,), atoms, routes), "own", Verdict.SUPPORT, "dev")
    record = instance_to_record(instance)
    assert [e["atom"] for e in record["evidence"]] == ["a", "b", "a", "b"]
    assert same([record_to_instance(record)], [instance])
    assert same(from_dataset(to_dataset([instance])), [instance])


@given(
    claim=TEXTS,
    sides=st.lists(
        st.tuples(st.sampled_from(Stance), TEXTS, st.lists(TEXTS, min_size=1, max_size=3)),
        min_size=1,
        max_size=4,
    ),
    gold=st.sampled_from(Verdict),
    weight=st.floats(0.1, 10.0),
)
def test_any_text_survives(
    claim: str, sides: list[tuple[Stance, str, list[str]]], gold: Verdict, weight: float
) -> None:
    records = [
        {"source": f"s{i}", "stance": stance.value, "text": text, "routes": kinds, "weight": weight}
        for i, (stance, text, kinds) in enumerate(sides)
    ]
    first = record_to_instance(line(claim=claim, gold=gold.value, evidence=records))
    stored = json.loads(json_lines.dump_json_line(instance_to_record(first)))
    assert same([record_to_instance(stored)], [first])
    assert first.gold is gold
    assert [a.text for a in first.graph.atoms] == [text for _, text, _ in sides]


def test_defaults() -> None:
    found = record_to_instance(line())
    assert (found.instance_id, found.condition, found.split, found.gold.value) == (
        "own-1",
        "own",
        "train",
        "SUPPORT",
    )
    assert found.base_claim == Claim("own-1", "Claim 1.", "", ())
    assert found.graph.atoms == (Atom("own-1-e1", "doc1", Stance.SUPPORT, "It rose.", 1.0),)
    assert found.graph.routes == (Route("own-1-e1-0", "own-1", "own-1-e1", "result"),)


def test_gold_is_the_majority_over_sources_not_over_routes_or_records() -> None:
    routes = ["result", "table", "figure"]
    twice = [
        {"source": "a", "stance": "SUPPORT", "text": "It rose.", "routes": routes},
        {"source": "a", "stance": "SUPPORT", "text": "It rose again."},
        {"source": "b", "stance": "REFUTE", "text": "It fell."},
    ]
    found = record_to_instance(line(evidence=twice))
    assert found.gold is Verdict.MIXED
    assert (found.graph.n_path(), found.graph.n_prov(), found.source_counts) == (5, 3, (1, 1))


def test_numbers_are_ids_too() -> None:
    """Fault kind "ids and duplicates": one type, however a file writes it."""
    found = record_to_instance(line(id=31, claim_id=7, evidence=evidence(source=5, atom=9)))
    assert (found.instance_id, found.base_claim.claim_id) == ("31", "7")
    assert found.graph.atoms[0].source_id == "5"
    assert found.graph.atoms[0].atom_id == "9"


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (line(clam="x"), r"field 'clam' is unknown, expected one of id, claim, .*; did you mean 'claim'"),
        (
            line(evidence=evidence(rute=["x"])),
            r"field 'evidence.0.rute' is unknown, .* did you mean 'routes'",
        ),
        (line(evidence=evidence(routes=[{"kin": "x"}])), r"'evidence.0.routes.0"),
        ({k: v for k, v in line().items() if k != "split"}, "field 'split' is missing; add it"),
        (
            line(evidence=evidence(stance="CONTRADICT")),
            r"'evidence.0.stance': found 'CONTRADICT', expected.*'REFUTE'",
        ),
        (line(split="validation"), "'split': found 'validation', expected.*'train'"),
        (line(gold="support"), "'gold': found 'support'"),
        (line(evidence=[]), r"'evidence': found \[\], expected.*at least 1"),
        (line(evidence=evidence(routes=[])), "'evidence.0.routes'"),
        (line(evidence={}), "'evidence'"),
        (line(claim="  "), "'claim': found '  ', expected: must hold at least one visible character"),
        (line(claim=None), "'claim': found None"),
        (line(claim="\ud800"), "'claim'"),
        (line(id=True), "'id': found True"),
        (line(id=1.5), "'id': found 1.5"),
        (line(id=""), "'id'"),
        (line(evidence=evidence(weight=0)), "'evidence.0.weight': found 0, expected.*greater than 0"),
        (line(evidence=evidence(weight=float("inf"))), "'evidence.0.weight'"),
        (line(evidence=evidence(weight="1.0")), "'evidence.0.weight': found '1.0'"),
        (line(entities="ruxor"), "'entities': found 'ruxor'"),
        (
            line(evidence=evidence() + evidence(stance="REFUTE")),
            "'doc1' both supports and refutes claim 'own-1'",
        ),
        (
            line(evidence=evidence(atom="a") + evidence(atom="a", text="Other.")),
            "found atom 'a' again with another",
        ),
        (line(evidence=evidence(routes=["x"] * 65)), "has 65 routes"),
        (line(evidence=evidence(routes=[{"kind": "x", "id": "r"}] * 2)), "route id 'r' appears twice"),
        (line(claim=5, split="nowhere"), r"\(and 1 more\)"),
    ],
)
def test_a_bad_record_is_refused_by_field(record: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        record_to_instance(record)


def test_graphs_that_the_format_cannot_hold_are_refused() -> None:
    merged = EvidenceGraph.merge(i.graph for i in SYNTHETIC if i.condition == "C1")
    with pytest.raises(ValueError, match="holds 8 claims, expected 1"):
        instance_to_record(Instance("i", merged, "C1", Verdict.MIXED))
    graph = SYNTHETIC[0].graph
    for atoms in (graph.atoms[::-1], (*graph.atoms, Atom("idle", "s9", Stance.SUPPORT, "Never met."))):
        other = EvidenceGraph(graph.claims, atoms, graph.routes)
        with pytest.raises(ValueError, match="'i': its atoms must stand in the order"):
            instance_to_record(Instance("i", other, "C1", Verdict.MIXED))
