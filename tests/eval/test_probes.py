"""Probes from instances, against enumeration by hand and against the generator's own draws."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from provgym.eval.probes import (
    Case,
    case_of,
    general_population,
    probe_cases,
    probes_of,
    see_number,
    see_number_and_node,
    see_routes,
    see_routes_and_node,
)
from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL, draw_general, parse_condition
from provgym.generators.graphecho import GraphEcho
from provgym.generators.scifact import load_scifact
from provgym.rewards.outcome import Verdict


def test_the_five_conditions_by_enumeration() -> None:
    cases = [Case(c.supporting, c.refuting, c.gold) for c in map(parse_condition, CONFLICT_CONDITIONS)]
    constant, structure, one_node = probe_cases(cases)
    # C1, C2, C2R are MIXED. Two sources mean MIXED; six mean SUPPORT or REFUTE, and a node tells by 5 of 6.
    assert constant.name == "constant MIXED"
    assert constant.accuracy == pytest.approx(3 / 5)
    assert structure.accuracy == pytest.approx(0.6 + 0.4 * 0.5)
    assert one_node.accuracy == pytest.approx(0.6 + 0.4 * 5 / 6)
    assert structure.balanced_accuracy == pytest.approx((1 + 0.5 + 0.5) / 3)


def test_the_five_conditions_from_generated_instances() -> None:
    data = GraphEcho.generate(3, {"test": 7})
    found = probes_of(data.instances("test", CONFLICT_CONDITIONS))
    assert set(found) == {""}
    assert [p.accuracy for p in found[""]] == pytest.approx([0.6, 0.8, 0.6 + 0.4 * 5 / 6])
    assert {p.n for p in found[""]} == {35}


def test_case_of_an_instance_is_its_condition() -> None:
    data = GraphEcho.generate(3, {"test": 4})
    for name in ("C2", "C4", "1S5P", "5S5PR", "3+1|2"):
        condition = parse_condition(name)
        for instance in data.instances("test", [name]):
            expected = Case(tuple(sorted(condition.supporting)), tuple(sorted(condition.refuting)), condition.gold)
            assert case_of(instance) == expected


def test_general_population_by_exact_fractions() -> None:
    pairs = [(s, r) for s in range(6) for r in range(6) if s + r]
    prior = {p: Fraction(1, 3) / (5 if p[0] == p[1] else 15) for p in pairs}
    by_number: dict[int, dict[str, Fraction]] = {}
    by_node: dict[tuple[int, str], dict[str, Fraction]] = {}
    for (s, r), weight in prior.items():
        verdict = Verdict.from_counts(s, r).value
        number = by_number.setdefault(s + r, {})
        number[verdict] = number.get(verdict, Fraction(0)) + weight
        for stance, share in (("SUPPORT", Fraction(s, s + r)), ("REFUTE", Fraction(r, s + r))):
            seen = by_node.setdefault((s + r, stance), {})
            seen[verdict] = seen.get(verdict, Fraction(0)) + weight * share
    population = general_population()
    _, structure, one_node = probe_cases(population, population)
    assert structure.accuracy == pytest.approx(float(sum(max(d.values()) for d in by_number.values())))
    assert one_node.accuracy == pytest.approx(float(sum(max(d.values()) for d in by_node.values())))
    assert sum(case.weight for case in population) == pytest.approx(1.0)


def test_general_population_is_what_the_generator_draws() -> None:
    rng = np.random.default_rng(0)
    drawn: dict[tuple[int, int], int] = {}
    for _ in range(6_000):
        condition = draw_general(rng)
        key = (len(condition.supporting), len(condition.refuting))
        drawn[key] = drawn.get(key, 0) + 1
    expected = {(len(c.supporting), len(c.refuting)): c.weight for c in general_population()}
    assert set(drawn) == set(expected)
    for key, weight in expected.items():
        assert drawn[key] / 6_000 == pytest.approx(weight, abs=5 * (weight / 6_000) ** 0.5)


def test_general_probes_do_not_learn_instances_by_heart() -> None:
    data = GraphEcho.generate(3, {"test": 400})
    found = probes_of(data.instances("test", [*CONFLICT_CONDITIONS, GENERAL]))
    assert set(found) == {"", "general_"}
    constant, structure, one_node = found["general_"]
    population = general_population()
    exact = probe_cases(population, population)
    assert constant.accuracy == pytest.approx(1 / 3, abs=0.08)
    assert structure.accuracy == pytest.approx(exact[1].accuracy, abs=0.08)
    assert one_node.accuracy == pytest.approx(exact[2].accuracy, abs=0.08)


@pytest.mark.parametrize("view", [see_routes, see_routes_and_node, see_number, see_number_and_node])
def test_what_is_seen_has_probability_one(view: object) -> None:
    for case in (Case((1, 5), (2,), Verdict.SUPPORT), Case((), (3,), Verdict.REFUTE)):
        assert sum(p for _, p in view(case)) == pytest.approx(1.0)  # type: ignore[operator]


def test_probes_of_nothing() -> None:
    """Kind: SciFact without evidence (no instance, no invented figure)."""
    assert probes_of([]) == {}


def test_constant_support_on_scifact(shared_data: Path) -> None:
    folder = shared_data / "scifact"
    if not folder.is_dir():
        pytest.skip(f"no SciFact files at {folder}")
    data = load_scifact(folder / "claims_dev.jsonl", folder / "corpus.jsonl")
    one_each = list({i.base_claim.claim_id: i for i in reversed(data.instances)}.values())
    constant, structure, one_node = probes_of(one_each)[""]
    assert constant.name == "constant SUPPORT"
    assert constant.accuracy == pytest.approx(124 / 188)
    assert round(constant.accuracy, 3) == 0.660
    # SUPPORT: F1 = 2 * 124 / (124 + 188); REFUTE: 0; MIXED is no class of gold.
    assert constant.macro_f1 == pytest.approx(248 / 312 / 2)
    assert one_node.accuracy == pytest.approx(1.0), "a document's stance is its claim's label"
    assert constant.accuracy <= structure.accuracy < 0.7


def test_the_node_read_is_drawn_from_the_routes() -> None:
    cases = [Case((1, 3), (), Verdict.SUPPORT), Case((1,), (3,), Verdict.MIXED)]
    # Three routes in four lead to a node that tells the two cases apart; the fourth leaves a tie.
    assert probe_cases(cases)[2].accuracy == pytest.approx(3 / 4 + 1 / 4 * 1 / 2)
