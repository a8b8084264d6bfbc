"""GraphEcho-Syn: sizes, determinism, nested conditions; only evidence text gives a stance away."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import chi2_contingency, chisquare

from provgym.envs.provenance import REPRESENTATION_KINDS, Instance, NodeKind, Stance
from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL, parse_condition
from provgym.generators.graphecho import (
    DOWN,
    NAME_ENDS,
    NAME_STARTS,
    REAL_WORDS,
    SPLITS,
    UP,
    GraphEcho,
)
from provgym.rewards.outcome import Verdict


@pytest.fixture(scope="module")
def whole() -> GraphEcho:
    return GraphEcho.generate(42)


def contents(instances: Sequence[Instance]) -> list[object]:
    """Everything an instance is made of, as comparable data."""
    return [
        (i.instance_id, i.condition, i.gold, i.split, i.graph.claims, i.graph.atoms, i.graph.routes) for i in instances
    ]


def test_sizes_are_those_of_the_paper(whole: GraphEcho) -> None:
    assert Counter(c.split for c in whole.claims) == {"train": 500, "dev": 100, "test": 200} == SPLITS
    assert len({c.claim.claim_id for c in whole.claims}) == 800
    assert len({c.claim.text for c in whole.claims}) == 800
    assert {c.claim.domain for c in whole.claims} == {"biomedicine", "materials", "agriculture", "economics"}


def test_splits_share_no_claim_entity_or_source(whole: GraphEcho) -> None:
    for pick in (lambda c: [c.claim.claim_id], lambda c: c.claim.entities, lambda c: c.sources):
        names = {split: {name for c in whole.of_split(split) for name in pick(c)} for split in SPLITS}
        assert len(set.union(*names.values())) == sum(len(part) for part in names.values())
    # Entity names are used once each, not only once per split.
    assert len({name for c in whole.claims for name in c.claim.entities}) == 1600


def test_the_same_seed_gives_the_same_data() -> None:
    names = [*CONFLICT_CONDITIONS, "1S5P", GENERAL]
    one, other = (GraphEcho.generate(9, {"train": 30, "test": 20}).instances("test", names) for _ in range(2))
    assert contents(one) == contents(other)
    assert len(one) == 20 * 7


def test_instances_do_not_depend_on_what_was_asked_before(whole: GraphEcho) -> None:
    alone = whole.instances("dev", ["C3"])
    among = [i for i in whole.instances("dev", ["C1", GENERAL, "C3"]) if i.condition == "C3"]
    assert contents(alone) == contents(among)
    # Claims do not depend on the sizes of later splits.
    assert GraphEcho.generate(42, {"train": 500}).claims == whole.of_split("train")


def test_neighbouring_seeds_share_nothing_but_chance() -> None:
    """Seeds 42 and 43 of a generator that adds its index to its seed would share all but one item."""
    one, other = GraphEcho.generate(42), GraphEcho.generate(43)
    assert not {c.claim.text for c in one.claims} & {c.claim.text for c in other.claims}
    assert not {t for c in one.claims for t in c.texts} & {t for c in other.claims for t in c.texts}
    names, more = ({n for c in g.claims for n in c.claim.entities} for g in (one, other))
    # 1,600 of 15,000 names each: 171 shared by chance, standard deviation about 12.
    assert len(names & more) < 171 + 5 * 12
    draws = ([i.instance_id for i in g.instances("test", [GENERAL])] for g in (one, other))
    assert sum(a == b for a, b in zip(*draws, strict=True)) < 20


def test_names_are_invented_and_never_run_out() -> None:
    spelled = {a + b for a in NAME_STARTS for b in NAME_ENDS}
    assert spelled >= REAL_WORDS
    many = GraphEcho.generate(1, {"train": 9_000})  # 18,000 names; two pieces give 15,000
    names = [n for c in many.claims for n in c.claim.entities]
    assert len(set(names)) == 18_000
    assert not set(names) & REAL_WORDS
    assert {len(n) for n in names} == {6, 9}


@pytest.mark.parametrize("splits", [{}, {"train": 0}, {"train": -1, "test": 5}])
def test_impossible_sizes_are_refused(splits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="sizes >= 0, one of them positive"):
        GraphEcho.generate(42, splits)


def test_an_absent_split_is_named(whole: GraphEcho) -> None:
    with pytest.raises(ValueError, match=r"'validation' has no claims; there are \['dev', 'test', 'train'\]"):
        whole.of_split("validation")


def test_every_condition_has_its_sources_routes_and_gold(whole: GraphEcho) -> None:
    for name in (*CONFLICT_CONDITIONS, "1S1P", "1S5P", "5S5P", "2S5PR", "3+1|2", "|1+2"):
        condition = parse_condition(name)
        for instance in whole.instances("dev", [name])[:10]:
            graph = instance.graph
            assert instance.source_counts == (len(condition.supporting), len(condition.refuting))
            assert instance.gold is condition.gold is Verdict.from_counts(*instance.source_counts)
            routes = Counter(r.atom_id for r in graph.routes)
            for stance, expected in (
                (Stance.SUPPORT, condition.supporting),
                (Stance.REFUTE, condition.refuting),
            ):
                assert tuple(routes[a.atom_id] for a in graph.atoms if a.stance is stance) == expected
            assert graph.n_path() == sum(condition.supporting) + sum(condition.refuting)
            assert graph.n_prov() == len(graph.sources) == len(condition.supporting) + len(condition.refuting)
            assert {a.weight for a in graph.atoms} == {1.0}


def test_named_conditions_nest_the_same_atoms(whole: GraphEcho) -> None:
    """C1's two observations are C2's and C2R's, and stand among those of C3 and C4."""
    for base in whole.of_split("test")[:50]:
        atoms = {name: set(whole.instance(base, name).graph.atoms) for name in CONFLICT_CONDITIONS}
        assert atoms["C1"] == atoms["C2"] == atoms["C2R"]
        assert atoms["C1"] < atoms["C3"]
        assert atoms["C1"] < atoms["C4"]
        c1 = {r.atom_id: r.kind for r in whole.instance(base, "C1").graph.routes}
        for name in CONFLICT_CONDITIONS:  # the route that C1 has is there, under the same kind
            found = {(r.atom_id, r.kind) for r in whole.instance(base, name).graph.routes}
            assert set(c1.items()) <= found


def test_one_and_five_sources_differ_in_source_assignment_alone(whole: GraphEcho) -> None:
    """The source-count intervention: same wording, kinds, path lengths and nodes; only sources are more."""
    for base in whole.of_split("test")[:50]:
        one, five = (whole.instance(base, name).graph for name in ("1S5P", "5S5P"))
        assert one.claims == five.claims
        assert [r.kind for r in one.routes] == [r.kind for r in five.routes]
        text = ({a.atom_id: a.text for a in graph.atoms} for graph in (one, five))
        wording = [[texts[r.atom_id] for r in graph.routes] for texts, graph in zip(text, (one, five), strict=True)]
        assert wording[0] == wording[1]
        assert five.num_nodes - one.num_nodes == 4
        assert len(one.sources) == 1
        assert len(five.sources) == 5
        assert set(one.sources) < set(five.sources)
        # Everything but the source nodes and their edges is the same, node by node.
        inner = one.num_nodes - 1
        for node in range(inner):
            assert [n for n in one.neighbours(node) if n < inner] == [n for n in five.neighbours(node) if n < inner]
        assert (one.node_kind[:inner] == five.node_kind[:inner]).all()


def test_every_route_is_three_hops_from_source_to_claim(whole: GraphEcho) -> None:
    graph = whole.instance(whole.of_split("test")[0], "3+1|2").graph
    for node in np.flatnonzero(graph.node_kind == NodeKind.REPRESENTATION).tolist():
        around = {int(graph.node_kind[n]): int(n) for n in graph.neighbours(node)}
        assert set(around) == {NodeKind.OBSERVATION, NodeKind.SOURCE}
        assert 0 in graph.neighbours(around[NodeKind.OBSERVATION])


def test_supporting_evidence_moves_as_the_claim_says_and_refuting_evidence_the_other_way(
    whole: GraphEcho,
) -> None:
    up = {verb: present for present, verb in UP}
    down = {verb: present for present, verb in DOWN}
    for base in whole.claims:
        stated = base.claim.text.split()[3]
        for text, same in zip(base.texts, (True, False), strict=True):
            verb = text.split()[1]
            rises = stated in up.values()
            assert verb in (up if rises == same else down)
            assert set(base.claim.entities) <= {word.strip(".") for word in text.split()}


def test_a_draw_changes_general_conditions_and_nothing_else(whole: GraphEcho) -> None:
    named, again = (whole.instances("dev", ["C2"], draw=draw) for draw in (0, 5))
    assert contents(named) == contents(again)
    first, second = (whole.instances("dev", [GENERAL], draw=draw) for draw in (0, 1))
    assert not {i.instance_id for i in first} & {i.instance_id for i in second}
    assert [i.base_claim for i in first] == [i.base_claim for i in second]
    conditions = [[i.instance_id.split(":")[1] for i in part] for part in (first, second)]
    assert sum(a == b for a, b in zip(*conditions, strict=True)) < 20


def test_general_verdicts_are_balanced_over_claims(whole: GraphEcho) -> None:
    drawn = [i for draw in range(4) for i in whole.instances("train", [GENERAL], draw=draw)]
    counts = Counter(i.gold for i in drawn)
    assert chisquare([counts[v] for v in Verdict]).pvalue > 0.001
    assert {i.condition for i in drawn} == {GENERAL}
    for instance in drawn:
        assert instance.gold is Verdict.from_counts(*instance.source_counts)
        assert parse_condition(instance.instance_id.split(":")[1]).gold is instance.gold


def test_names_kinds_and_figures_do_not_tell_the_stance(whole: GraphEcho) -> None:
    """A source's letter, a kind of representation or a figure is no evidence."""
    letters, kinds, figures = (np.zeros((2, n), dtype=int) for n in (10, 5, 45))
    for base in whole.claims:
        for place, source in enumerate(base.sources):
            letters[place // 5]["ABCDEFGHJK".index(source[-1])] += 1
        for side, text in enumerate(base.texts):
            figures[side][int(text.split()[-2]) - 3] += 1
    for instance in [i for split in SPLITS for i in whole.instances(split, ["C1"])]:
        stance_of = {a.atom_id: a.stance for a in instance.graph.atoms}
        for route in instance.graph.routes:
            side = 0 if stance_of[route.atom_id] is Stance.SUPPORT else 1
            kinds[side][REPRESENTATION_KINDS.index(route.kind)] += 1
    for table in (letters, kinds, figures):
        assert chi2_contingency(table).pvalue > 0.001


def test_claim_wording_does_not_tell_the_condition(whole: GraphEcho) -> None:
    for base in whole.of_split("dev")[:20]:
        texts = {whole.instance(base, name).base_claim.text for name in (*CONFLICT_CONDITIONS, "5S5P", GENERAL)}
        assert texts == {base.claim.text}
    goes_up = np.zeros((2, 3), dtype=int)
    for instance in whole.instances("train", [GENERAL]):
        rises = instance.base_claim.text.split()[3] in {present for present, _ in UP}
        goes_up[int(rises)][list(Verdict).index(instance.gold)] += 1
    assert chi2_contingency(goes_up).pvalue > 0.001
