"""The rubric: weights, variants, gold is the maximum, and the exploit that the source's reward allows."""

import math
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provgym.rewards.outcome import Ending, Judgement, Verdict, WalkOutcome
from provgym.rewards.papt import verdict_term
from provgym.rewards.rubric import PAPT_WEIGHTS, Rubric, Variant, papt_rubric

# Supporting and refuting sources of C1, C2, C3, C4, C2R.
CONFLICTS = ((1, 1), (1, 1), (5, 1), (1, 5), (1, 1))
VARIANTS: tuple[Variant, ...] = ("full", "no_echo", "no_coverage", "verdict_only")


def gold_walk(support: int, refute: int, budget: int = 6) -> WalkOutcome:
    """Every source met once, counted right, judged right."""
    gold = Verdict.from_counts(support, refute)
    return WalkOutcome(
        gold=gold,
        judgement=Judgement(gold, support, refute),
        ending=Ending.ANSWERED,
        budget=budget,
        walks=support + refute,
        invalid_actions=0,
        echoes=0,
        connector_moves=0,
        available_support=support,
        available_refute=refute,
        acquired_support=support,
        acquired_refute=refute,
    )


def one_walk_then_mixed(support: int, refute: int) -> WalkOutcome:
    """The exploit: meet one supporting source, state it rightly, and say MIXED whatever the rest is."""
    return replace(
        gold_walk(support, refute),
        judgement=Judgement(Verdict.MIXED, 1, 0),
        walks=1,
        acquired_support=1,
        acquired_refute=0,
    )


def test_a_worked_example() -> None:
    # C2, six walks: both sources met, four echoes; counted by paths (5 and 1), so SUPPORT, which is wrong.
    naive = replace(gold_walk(1, 1), judgement=Judgement(Verdict.SUPPORT, 5, 1), walks=6, echoes=4)
    score = papt_rubric().score(naive)
    assert dict(score.terms) == {
        "verdict": -1.0,
        "count": 0.0,  # delta 4 over U 2
        "coverage": 1.0,
        "echo": pytest.approx(4 / 6),
        "cost": 1.0,
        "illegal": 0.0,
    }
    assert score.total == pytest.approx(-1.0 + 0.4 * 0.0 + 0.4 * 1.0 - 0.4 * 4 / 6 - 0.05)


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("full", 1.0 + 0.4 * 0.75 + 0.4 * 0.8 - 0.4 * 0.2 - 0.05 * 5 / 6),
        ("no_echo", 1.0 + 0.4 * 0.75 + 0.4 * 0.8 - 0.05 * 5 / 6),
        ("no_coverage", 1.0 + 0.4 * 0.75 - 0.4 * 0.2 - 0.05 * 5 / 6),
        ("verdict_only", 1.0),
    ],
)
def test_each_variant_drops_its_terms_and_still_reports_them(variant: Variant, expected: float) -> None:
    # 3 + 2 sources; four met in five walks, one echo; one source too few stated.
    walk = replace(gold_walk(3, 2), judgement=Judgement(Verdict.SUPPORT, 2, 1), walks=5, echoes=1, acquired_refute=1)
    score = papt_rubric(variant).score(walk)
    assert score.total == pytest.approx(expected)
    assert dict(score.terms) == {
        "verdict": 1.0,
        "count": pytest.approx(0.75),
        "coverage": pytest.approx(0.8),
        "echo": pytest.approx(0.2),
        "cost": pytest.approx(5 / 6),
        "illegal": 0.0,
    }


@given(
    st.sampled_from(CONFLICTS),
    st.sampled_from(list(Verdict)),
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
    st.data(),
)
def test_gold_is_the_maximum_of_its_instance(
    sides: tuple[int, int], verdict: Verdict, stated: tuple[int, int], data: st.DataObject
) -> None:
    gold = gold_walk(*sides)
    support = data.draw(st.integers(0, sides[0]))
    refute = data.draw(st.integers(0, sides[1]))
    walks = data.draw(st.integers(support + refute, 6))
    other = replace(
        gold,
        judgement=Judgement(verdict, *stated),
        walks=walks,
        echoes=data.draw(st.integers(0, walks - support - refute)),
        acquired_support=support,
        acquired_refute=refute,
    )
    for basis in ("acquired", "available"):
        rubric = papt_rubric(count_basis=basis)
        assert rubric.score(other).total <= rubric.score(gold).total + 1e-12
    assert -1.45 <= papt_rubric().score(other).total <= 1.8


@pytest.mark.parametrize("ending", [Ending.INVALID, Ending.TRUNCATED])
def test_an_empty_walk_gets_the_minimum_of_every_term_that_pays(ending: Ending) -> None:
    empty = replace(gold_walk(5, 1), judgement=None, ending=ending, walks=0, acquired_support=0, acquired_refute=0)
    score = papt_rubric().score(empty)
    assert score.total == -1.0
    assert [score.terms[name] for name in ("verdict", "count", "coverage")] == [-1.0, 0.0, 0.0]
    # Six illegal actions and then no answer: the cost comes on top.
    assert papt_rubric().score(replace(empty, invalid_actions=6)).total == pytest.approx(-1.05)


def test_one_walk_and_mixed_is_paid_by_the_source_reward() -> None:
    """The known exploit: .74 on the five conditions, by hand; the available basis pays less."""
    by_hand = (
        (3 - 2) / 5  # MIXED is right on C1, C2, C2R
        + 0.4 * 1.0  # the one source met is counted right
        + 0.4 * (3 * 1 / 2 + 2 * 1 / 6) / 5  # one of 2 sources, three times; one of 6, twice
        - 0.05 / 6
    )
    assert by_hand == pytest.approx(0.738, abs=5e-4)
    exploit = [one_walk_then_mixed(*sides) for sides in CONFLICTS]
    assert fmean(papt_rubric().score(walk).total for walk in exploit) == pytest.approx(by_hand)
    honest_count = (3 * 1 / 2 + 2 * 1 / 6) / 5
    second_phase = papt_rubric(count_basis="available", weights={"coverage": 1.2, "cost": 0.0})
    expected = 1 / 5 + 0.4 * honest_count + 1.2 * honest_count
    assert fmean(second_phase.score(walk).total for walk in exploit) == pytest.approx(expected)
    # What the exploit is paid, as a share of what the whole walk is paid: the second phase leaves less.
    gold = [gold_walk(*sides) for sides in CONFLICTS]
    share = by_hand / fmean(papt_rubric().score(walk).total for walk in gold)
    assert expected / fmean(second_phase.score(walk).total for walk in gold) < share


def test_an_infrastructure_error_is_not_scored() -> None:
    """Fault kind "endpoint failure scored as wrong": NaN everywhere, never a number."""
    failed = replace(gold_walk(1, 1), judgement=None, ending=Ending.ERROR)
    score = papt_rubric().score(failed)
    assert math.isnan(score.total)
    assert not score.is_scored
    assert set(score.terms) == set(PAPT_WEIGHTS)
    assert all(math.isnan(value) for value in score.terms.values())
    assert papt_rubric().score(gold_walk(1, 1)).is_scored


def test_the_weights_are_those_of_the_paper() -> None:
    paper = {"verdict": 1.0, "count": 0.4, "coverage": 0.4, "echo": -0.4, "cost": -0.05}
    assert dict(PAPT_WEIGHTS) == {**paper, "illegal": 0.0}, "our own term is reported, and weighs nothing unless asked"
    assert set(papt_rubric("verdict_only").weights.values()) == {1.0, 0.0}


def test_a_weight_on_illegal_actions_makes_them_dearer_than_echoes() -> None:
    """Another exploit of the source's reward: a walker that never moves legally never repeats a source.

    Six walks of which four are echoes are charged 0.4 x 4/6 for them; four illegal actions in their place nothing.
    """
    echoing = replace(gold_walk(1, 1), walks=6, echoes=4)
    stumbling = replace(gold_walk(1, 1), walks=2, invalid_actions=4)
    plain = papt_rubric()
    assert plain.score(stumbling).total - plain.score(echoing).total == pytest.approx(0.4 * 4 / 6)
    charged = papt_rubric(weights={"illegal": -0.5})
    assert charged.score(stumbling).terms["illegal"] == pytest.approx(4 / 6)
    assert charged.score(stumbling).total == pytest.approx(1.8 - 0.05 - 0.5 * 4 / 6)
    assert charged.score(stumbling).total < charged.score(echoing).total
    dropped = papt_rubric("verdict_only", weights={"illegal": -0.5})
    assert dropped.weights["illegal"] == 0.0


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_changed_weight_does_not_bring_back_a_dropped_term(variant: Variant) -> None:
    weights = papt_rubric(variant, weights={"echo": -2.0, "coverage": 3.0}).weights
    assert weights["echo"] == (-2.0 if variant in ("full", "no_coverage") else 0.0)
    assert weights["coverage"] == (3.0 if variant in ("full", "no_echo") else 0.0)


def test_scores_and_weights_cannot_be_changed_from_outside() -> None:
    """Fault kind "mutable defaults": one rubric's weights are nobody else's."""
    score = papt_rubric().score(gold_walk(1, 1))
    with pytest.raises(TypeError):
        score.terms["verdict"] = 5.0  # type: ignore[index]
    with pytest.raises(TypeError):
        PAPT_WEIGHTS["verdict"] = 5.0  # type: ignore[index]


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'no_ehco' is unknown.*no_echo"):
        papt_rubric("no_ehco")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\['covrage'\] are unknown.*coverage"):
        papt_rubric(weights={"covrage": 1.0})


def test_terms_and_weights_must_match_and_be_finite() -> None:
    with pytest.raises(ValueError, match="same names"):
        Rubric({"verdict": verdict_term}, {"verdict": 1.0, "echo": 1.0})
    for weight in (math.nan, math.inf):
        with pytest.raises(ValueError, match="must be finite"):
            Rubric({"verdict": verdict_term}, {"verdict": weight})


def test_a_rubric_takes_other_terms() -> None:
    rubric = Rubric({"verdict": verdict_term, "walks": lambda o: float(o.walks)}, {"verdict": 2.0, "walks": -0.1})
    assert rubric.score(gold_walk(5, 1)).total == pytest.approx(2.0 - 0.6)


@given(st.sets(st.sampled_from(sorted(PAPT_WEIGHTS))))
def test_without_drops_weights_and_nothing_else(names: set[str]) -> None:
    """What was taken out still shows its value; what is left and what was taken out sum to the whole."""
    rubric, outcome = papt_rubric(), one_walk_then_mixed(5, 1)
    rest = rubric.without(names)
    assert rest.weights == {name: 0.0 if name in names else weight for name, weight in rubric.weights.items()}
    assert rest.terms == rubric.terms
    assert rest.score(outcome).terms == rubric.score(outcome).terms
    taken = rubric.without(set(PAPT_WEIGHTS) - names)
    assert rest.score(outcome).total + taken.score(outcome).total == pytest.approx(rubric.score(outcome).total)
    assert rubric.weights["verdict"] == 1.0, "the rubric itself is as it was"


def test_without_an_unknown_term_is_refused() -> None:
    with pytest.raises(ValueError, match=r"terms \['ecko'\] are unknown; the rubric has \['cost', 'count'"):
        papt_rubric().without(["echo", "ecko"])
