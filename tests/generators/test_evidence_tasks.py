"""Evidence tasks: each kind is what it says, and nothing but the evidence says which kind it is."""

import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import chisquare

from provgym.envs.evidence_units import EvidenceUnit
from provgym.envs.simulated_reading import Side, read_unit
from provgym.envs.topology_tasks import TopologyTask
from provgym.generators.evidence_conditions import (
    conflicting_conditions,
    draw_agreeing,
    draw_beside,
    draw_conflicting,
)
from provgym.generators.evidence_task_config import EVIDENCE_KINDS, EvidenceTaskConfig
from provgym.generators.evidence_tasks import balanced, check_task_splits, make_evidence_tasks
from provgym.generators.hashed_encoder import HashedEncoder
from provgym.generators.retriever import retrieve_contexts
from provgym.generators.seeds import Purpose, derive_rng
from provgym.rewards.outcome import Verdict

CONFIG = EvidenceTaskConfig(train_claims=16, dev_claims=4, test_claims=24, other_claims=160)


@pytest.fixture(scope="module")
def tasks() -> tuple[TopologyTask, ...]:
    return make_evidence_tasks(CONFIG, "test")


def own_units(task: TopologyTask) -> list[EvidenceUnit]:
    """The units about the question, by a reader that knows nothing of how they were made."""
    return [unit for unit in task.graph.units if read_unit(task.question, unit).is_about]


def sides(task: TopologyTask, units: list[EvidenceUnit], by_source: bool) -> Verdict:
    votes = [(read_unit(task.question, unit).side, unit.source_id if by_source else unit.unit_id) for unit in units]
    counts = Counter(side for side, _ in set(votes))
    return Verdict.from_counts(counts[Side.FOR], counts[Side.AGAINST])


def of_kind(tasks: tuple[TopologyTask, ...], kind: str) -> list[TopologyTask]:
    return [task for task in tasks if task.evidence_kind == kind]


def test_gold_is_the_majority_of_distinct_sources_that_speak_of_the_question(tasks: tuple[TopologyTask, ...]) -> None:
    for task in tasks:
        assert sides(task, own_units(task), by_source=True).value == task.gold


def test_agreeing_evidence_says_one_thing(tasks: tuple[TopologyTask, ...]) -> None:
    for task in of_kind(tasks, "agreement"):
        own = own_units(task)
        assert len(own) == CONFIG.num_units
        assert len({read_unit(task.question, unit).side for unit in own}) == 1


def test_conflicting_evidence_misleads_who_counts_units(tasks: tuple[TopologyTask, ...]) -> None:
    ways: Counter[str] = Counter()
    for task in of_kind(tasks, "conflict"):
        own = own_units(task)
        assert len(own) == CONFIG.num_units
        assert len({read_unit(task.question, unit).side for unit in own}) == 2
        counted = sides(task, own, by_source=False)
        assert counted.value != task.gold
        ways["blurs" if counted is Verdict.MIXED else "contradicts"] += 1
    assert min(ways["blurs"], ways["contradicts"]) >= 5


def test_irrelevant_units_point_the_other_way_and_are_alike_in_wording(tasks: tuple[TopologyTask, ...]) -> None:
    for task in of_kind(tasks, "irrelevance"):
        own = own_units(task)
        assert len(own) == CONFIG.relevant_units
        measure = own[0].tail.split(" of ")[0]
        near = [unit for unit in task.graph.units if unit.tail.split(" of ")[0] == measure and unit not in own]
        assert len(near) == CONFIG.num_units - CONFIG.relevant_units
        (side,) = {read_unit(task.question, unit).side for unit in own}
        assert side is not None
        assert {read_unit(task.question, unit).side for unit in near} == {side.other}
        assert not {unit.source_id for unit in own} & {unit.source_id for unit in near}
        assert sides(task, [*own, *near], by_source=False).value != task.gold  # who takes them for evidence is wrong


def test_nothing_but_the_evidence_tells_the_kinds_apart(tasks: tuple[TopologyTask, ...]) -> None:
    """The query carries no signal: the same questions, gold verdicts and numbers of units under each kind."""
    groups = [of_kind(tasks, kind) for kind in EVIDENCE_KINDS]
    for what in (
        lambda task: task.question,
        lambda task: task.gold,
        lambda task: len(task.graph.units),
        lambda task: len(task.graph.documents),
        lambda task: tuple(unit.unit_id for unit in task.graph.units),
        lambda task: (task.split, task.answer_kind, task.choices),
    ):
        assert len({tuple(sorted(Counter(map(what, group)).items())) for group in groups}) == 1
    assert Counter(task.gold for task in groups[0]) == {"SUPPORT": 12, "REFUTE": 12}
    for task in tasks:
        shown = " ".join(unit.linearised() for unit in task.graph.units).lower()
        assert not any(word in shown for word in (*EVIDENCE_KINDS, "support", "refute", task.base_id))


def layout_of(task: TopologyTask) -> tuple[int, ...]:
    """Units of each source among those near the question, the largest first."""
    measure = own_units(task)[0].tail.split(" of ")[0]
    near = [unit.source_id for unit in task.graph.units if unit.tail.split(" of ")[0] == measure]
    assert len(near) == CONFIG.num_units
    return tuple(sorted(Counter(near).values(), reverse=True))


def test_source_labels_alone_do_not_tell_the_kinds_apart() -> None:
    """How many units share a source is drawn alike for all kinds: every layout of one is a layout of the others.

    By hand for six units: half 4+1+1, the rest 3+1+1+1, 3+2+1 and 2+1+1+1+1 in equal parts.
    """
    sizes = {"test_claims": 240, "train_claims": 0, "dev_claims": 0, "other_claims": 400}
    made = make_evidence_tasks(CONFIG.model_copy(update=sizes), "test")
    expected = {(4, 1, 1): 1 / 2, (3, 1, 1, 1): 1 / 6, (3, 2, 1): 1 / 6, (2, 1, 1, 1, 1): 1 / 6}
    for kind in EVIDENCE_KINDS:
        found = Counter(map(layout_of, of_kind(made, kind)))
        assert set(found) == set(expected)
        observed = [found[layout] for layout in expected]
        assert chisquare(observed, [share * 240 for share in expected.values()]).pvalue > 1e-4, (kind, found)


def test_more_train_claims_do_not_change_who_is_held_out(tasks: tuple[TopologyTask, ...]) -> None:
    """Arms that mine more or fewer claims are compared on the same questions."""
    for train in (0, 5, 300):
        assert make_evidence_tasks(CONFIG.model_copy(update={"train_claims": train}), "test") == tasks


def test_the_place_of_a_unit_says_nothing(tasks: tuple[TopologyTask, ...]) -> None:
    """Shuffled: the first unit is about the question about as often as own units are among all."""
    for kind, own in (("agreement", 6), ("conflict", 6), ("irrelevance", 2)):
        group = of_kind(tasks, kind)
        first = sum(read_unit(task.question, task.graph.units[0]).is_about for task in group)
        assert abs(first / len(group) - own / 12) < 0.35


def test_the_depth_of_num_units_shows_the_conflict_and_three_units_do_not(tasks: tuple[TopologyTask, ...]) -> None:
    def seen(k: int) -> float:
        contexts = retrieve_contexts(tasks, HashedEncoder(4096), k)
        pairs = [
            (task, context) for task, context in zip(tasks, contexts, strict=True) if task.evidence_kind == "conflict"
        ]
        return sum(sides(t, [u for u in c.units if u in own_units(t)], True).value == t.gold for t, c in pairs) / len(
            pairs
        )

    assert seen(CONFIG.num_units) > 0.95
    assert seen(3) < 0.8


def test_retrieval_brings_the_irrelevant_units_that_are_near(tasks: tuple[TopologyTask, ...]) -> None:
    group = of_kind(tasks, "irrelevance")
    for task, context in zip(group, retrieve_contexts(group, HashedEncoder(4096), CONFIG.num_units), strict=True):
        about = [read_unit(task.question, unit).is_about for unit in context.units]
        assert sum(about) == CONFIG.relevant_units
        assert all(about[: CONFIG.relevant_units])


def test_same_seed_same_tasks_and_a_neighbouring_seed_is_no_shift(tasks: tuple[TopologyTask, ...]) -> None:
    """correlated workers, global RNG: tasks depend on the configuration alone."""
    assert make_evidence_tasks(CONFIG, "test") == tasks
    other = make_evidence_tasks(CONFIG.model_copy(update={"seed": CONFIG.seed + 1}), "test")
    assert not {task.question for task in other} & {task.question for task in tasks}


def test_splits_share_no_claim_and_no_source(tasks: tuple[TopologyTask, ...]) -> None:
    """Splits don't leak: units that are irrelevant come from claims of the same split."""
    everything = [task for split in ("train", "dev", "test") for task in make_evidence_tasks(CONFIG, split)]
    assert Counter(task.split for task in everything) == {"train": 48, "dev": 12, "test": 72}
    check_task_splits(everything)
    assert len({task.task_id for task in everything}) == len(everything)
    names = {
        s: {w for t in everything if t.split == s for u in t.graph.units for w in (u.head, u.tail.split()[-1])}
        for s in ("train", "dev", "test")
    }
    assert not any(names[a] & names[b] for a, b in itertools.combinations(names, 2))
    first = tasks[0]
    moved = TopologyTask("x", "x", "dev", first.question, first.gold, "verdict", (), first.graph, None)
    with pytest.raises(ValueError, match="entity '.*stands in split"):
        check_task_splits([first, moved])


@pytest.mark.parametrize("num_units", [4, 5, 8, 10])
def test_other_numbers_of_units_and_mixed_verdicts(num_units: int) -> None:
    config = EvidenceTaskConfig(
        train_claims=6,
        dev_claims=0,
        test_claims=0,
        num_units=num_units,
        relevant_units=1 if num_units == 4 else 2,  # no MIXED conflict of 4 has a source, or several, of 2 units
        background_units=0,
        verdicts=tuple(Verdict),
    )
    made = make_evidence_tasks(config, "train")
    assert {len(task.graph.units) for task in made} == {num_units}
    assert Counter(task.gold for task in of_kind(made, "conflict")) == {"SUPPORT": 2, "REFUTE": 2, "MIXED": 2}
    for task in made:
        assert sides(task, own_units(task), by_source=True).value == task.gold


def test_what_cannot_be_made_is_refused_by_name() -> None:
    """config typing: unknown keys and impossible values stop at load."""
    for wrong, said in (
        ({"num_units": 3}, "num_units"),
        ({"num_units": 11}, "num_units"),
        ({"relevant_units": 5, "num_units": 5}, "below num_units=5"),
        ({"relevant_units": 5, "num_units": 4}, "below num_units=4"),
        ({"kinds": ()}, "at least one kind"),
        ({"kinds": ("conflict", "conflict")}, "each once"),
        ({"verdicts": ()}, "at least one verdict"),
        ({"num_unit": 6}, "num_unit"),
        ({"seed": True}, "found a truth value"),
        ({"train_claims": "many"}, "train_claims"),
        ({"world": "scifact"}, "needs scifact_claims"),
    ):
        with pytest.raises(ValidationError, match=said):
            EvidenceTaskConfig.model_validate(wrong)
    with pytest.raises(ValueError, match="split 'testing' is unknown"):
        make_evidence_tasks(CONFIG, "testing")
    with pytest.raises(ValueError, match="train_claims=0"):
        make_evidence_tasks(CONFIG.model_copy(update={"train_claims": 0}), "train")
    with pytest.raises(ValueError, match="ask for more of them"):
        make_evidence_tasks(CONFIG.model_copy(update={"other_claims": 5}), "test")


# --- conditions, by brute force


@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.parametrize("num_units", [4, 6, 7])
def test_all_misleading_conditions_are_listed(verdict: Verdict, num_units: int) -> None:
    expected = set()
    sizes = [side for n in range(1, 6) for side in itertools.product(range(1, 6), repeat=n) if sum(side) < num_units]
    for left, right in itertools.product(sizes, repeat=2):
        if sum(left) + sum(right) == num_units:
            by_sources = Verdict.from_counts(len(left), len(right))
            by_units = Verdict.from_counts(sum(left), sum(right))
            if by_sources is verdict and by_units is not verdict:
                expected.add((tuple(sorted(left)), tuple(sorted(right))))
    listed = [c for group in conflicting_conditions(verdict, num_units) for c in group]
    assert {(tuple(sorted(c.supporting)), tuple(sorted(c.refuting))) for c in listed} == expected
    assert len(listed) == len(expected)


@given(st.sampled_from(list(Verdict)), st.integers(4, 10), st.integers(1, 5), st.integers(0, 10_000))
def test_drawn_conditions_keep_their_word(verdict: Verdict, num_units: int, relevant: int, seed: int) -> None:
    rng = derive_rng(seed, Purpose.EVIDENCE)
    try:
        condition = draw_conflicting(verdict, num_units, relevant, rng)
    except ValueError as error:
        assert "can be laid out alike" in str(error)  # noqa: PT017  (hypothesis draws what is possible and what is not)
        for group in conflicting_conditions(verdict, num_units):
            for listed in group:
                layout = listed.supporting + listed.refuting
                sums = {sum(c) for n in range(1, len(layout)) for c in itertools.combinations(layout, n)}
                assert relevant not in sums or len(layout) > 5
        return
    assert condition.gold is verdict
    assert condition.is_adversarial
    assert sum(condition.supporting) + sum(condition.refuting) == num_units
    own, others = draw_beside(verdict, num_units, relevant, rng)
    assert (sum(own), sum(own) + sum(others)) == (relevant, num_units)
    if verdict is Verdict.MIXED:
        with pytest.raises(ValueError, match="never MIXED"):
            draw_agreeing(verdict, verdict, num_units, relevant, rng)
    else:
        agreeing = draw_agreeing(verdict, verdict, num_units, relevant, rng)
        assert agreeing.gold is verdict
        assert min(len(agreeing.supporting), len(agreeing.refuting)) == 0
        assert sum(agreeing.supporting) + sum(agreeing.refuting) == num_units
    with pytest.raises(ValueError, match="num_units=11"):
        draw_conflicting(verdict, 11, relevant, rng)


@given(st.integers(0, 50), st.integers(1, 3))
def test_balanced_verdicts(count: int, kinds: int) -> None:
    made = Counter(balanced(list(Verdict)[:kinds], count, derive_rng(1, Purpose.EVIDENCE)))
    assert sum(made.values()) == count
    assert max(made.values(), default=0) - min([made[v] for v in list(Verdict)[:kinds]]) <= 1


# --- SciFact


def scifact(shared_data: Path, **change: object) -> EvidenceTaskConfig:
    folder = shared_data / "scifact"
    fields = {"world": "scifact", "kinds": ("agreement", "irrelevance"), "scifact_corpus": folder / "corpus.jsonl"}
    return EvidenceTaskConfig.model_validate(fields | {"scifact_claims": folder / "claims_dev.jsonl"} | change)


def test_official_scifact_tasks(shared_data: Path) -> None:
    config = scifact(shared_data)
    made = make_evidence_tasks(config, "test")
    assert Counter(task.evidence_kind for task in made) == {"agreement": 188, "irrelevance": 188}
    for kind in ("agreement", "irrelevance"):
        assert Counter(task.gold for task in of_kind(made, kind)) == {"SUPPORT": 124, "REFUTE": 64}
    for task in made:
        own = own_units(task)
        assert {unit.relation for unit in own} == {"supports" if task.gold == "SUPPORT" else "refutes"}
        others = [unit for unit in task.graph.units if unit not in own]
        if task.evidence_kind == "agreement":
            assert not others
        else:
            assert len(task.graph.units) == config.num_units
            assert {unit.relation for unit in others} == {"refutes" if task.gold == "SUPPORT" else "supports"}
            assert not {unit.source_id for unit in others} & {unit.source_id for unit in own}


def test_scifact_is_never_trained_on_and_has_no_conflict(shared_data: Path, tmp_path: Path) -> None:
    """SciFact without evidence: a file of only such lines is refused in words."""
    with pytest.raises(ValueError, match="split 'test' only, found 'train'"):
        make_evidence_tasks(scifact(shared_data), "train")
    with pytest.raises(ValidationError, match="no claim with conflicting evidence"):
        scifact(shared_data, kinds=EVIDENCE_KINDS)
    (tmp_path / "claims.jsonl").write_text('{"id": 1, "claim": "A.", "evidence": {}}\n')
    with pytest.raises(ValueError, match="no claim with usable gold evidence"):
        make_evidence_tasks(scifact(shared_data, scifact_claims=tmp_path / "claims.jsonl"), "test")


def test_conflicts_that_cannot_be_laid_out_are_refused_before_anything_is_drawn() -> None:
    """Whether tasks could be made was left to which verdict was drawn."""
    with pytest.raises(
        ValueError, match=r"verdicts: no conflict of num_units=4 under MIXED .* relevant_units=2; choose"
    ):
        EvidenceTaskConfig(num_units=4, verdicts=(Verdict.SUPPORT, Verdict.MIXED))
    for relevant in (1, 3):
        EvidenceTaskConfig(num_units=4, relevant_units=relevant, verdicts=(Verdict.MIXED,))
