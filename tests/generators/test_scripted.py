"""Scripted walkers: the oracle is the ceiling, the naive walker counts paths."""

from collections import Counter
from statistics import fmean

import pytest

from provgym.envs.actions import Stop, parse_action
from provgym.envs.presentation import PresentationConfig
from provgym.envs.provenance import Atom, Claim, EvidenceGraph, Instance, Route, Stance
from provgym.generators.action_grammar import legal_moves
from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL
from provgym.generators.episode import Episode, EpisodeTask
from provgym.generators.graphecho import GraphEcho
from provgym.generators.scripted import (
    ScriptedPolicy,
    Walker,
    echo_avoiding_oracle,
    naive_path_counter,
    naive_walker,
)
from provgym.generators.seeds import Purpose, derive_seed
from provgym.rewards.outcome import Ending, Verdict
from provgym.rewards.rubric import papt_rubric

DATA = GraphEcho.generate(42, {"test": 40})


def tasks(conditions: list[str], budget: int, presentation: PresentationConfig | None = None) -> list[EpisodeTask]:
    return [
        EpisodeTask(
            instance,
            budget,
            presentation or PresentationConfig(),
            derive_seed(1, Purpose.PRESENTATION, number),
            derive_seed(1, Purpose.SAMPLING, number),
        )
        for number, instance in enumerate(DATA.instances("test", conditions))
    ]


def play(walker: Walker, conditions: list[str], budget: int = 6) -> list[Episode]:
    return ScriptedPolicy("scripted", walker).play(tasks(conditions, budget))


@pytest.mark.parametrize("condition", CONFLICT_CONDITIONS)
def test_the_oracle_is_always_right_and_never_repeats(condition: str) -> None:
    for episode in play(echo_avoiding_oracle, [condition]):
        outcome = episode.outcome
        assert outcome.ending is Ending.ANSWERED
        assert outcome.is_correct
        assert outcome.judgement is not None
        assert (outcome.judgement.support_count, outcome.judgement.refute_count) == (
            outcome.available_support,
            outcome.available_refute,
        )
        assert (outcome.echoes, outcome.connector_moves, outcome.invalid_actions) == (0, 0, 0)
        assert outcome.walks == outcome.acquired == outcome.available
        assert len(set(episode.cited_source_ids)) == outcome.available
        terms = papt_rubric().score(outcome).terms
        assert (terms["verdict"], terms["count"], terms["coverage"], terms["echo"]) == (1.0, 1.0, 1.0, 0.0)


def test_the_oracle_s_reward_by_hand() -> None:
    # Two sources: 1 + .4 + .4 - .05 * 2/6; six sources: - .05 * 6/6.
    by_condition = {c: play(echo_avoiding_oracle, [c]) for c in CONFLICT_CONDITIONS}
    for condition, episodes in by_condition.items():
        walks = 6 if condition in ("C3", "C4") else 2
        for episode in episodes:
            assert papt_rubric().score(episode.outcome).total == pytest.approx(1.8 - 0.05 * walks / 6)


def test_a_small_budget_stops_the_oracle_in_time() -> None:
    for episode in play(echo_avoiding_oracle, ["C3", "C4"], budget=3):
        assert episode.outcome.ending is Ending.ANSWERED
        assert episode.outcome.walks == episode.outcome.acquired == 3


def test_the_oracle_is_right_on_general_conditions_that_its_budget_reaches() -> None:
    for episode in play(echo_avoiding_oracle, [GENERAL], budget=10):
        assert episode.outcome.is_correct
        assert episode.outcome.echoes == 0


def naive_by_hand(episode: Episode) -> tuple[int, int]:
    """Count evidence-bearing nodes met, by stance, from the trace alone."""
    met = {entry["node"]: entry["atom"] for entry in episode.trace if entry["atom"] is not None}
    # Atom ids of generated claims end in S0..S4 or R0..R4.
    stances = Counter(str(atom).rsplit("-", 1)[1][0] for atom in met.values())
    return stances["S"], stances["R"]


def test_the_naive_walker_answers_by_the_majority_over_paths() -> None:
    for episode in play(naive_path_counter, [*CONFLICT_CONDITIONS, GENERAL]):
        support, refute = naive_by_hand(episode)
        judgement = episode.outcome.judgement
        assert judgement is not None
        assert (judgement.support_count, judgement.refute_count) == (support, refute)
        assert judgement.verdict is Verdict.from_counts(support, refute)
        nodes = [entry["node"] for entry in episode.trace[:-1]]
        assert len(nodes) == len(set(nodes))  # it never goes back by choice
        assert isinstance(parse_action(episode.turns[-1].action), Stop)


def two_sources(echoes: int) -> Instance:
    """One supporting source by ``echoes`` routes, one refuting source by one."""
    claim = Claim("c", "It rises.")
    atoms = (Atom("c-S0", "s", Stance.SUPPORT, "It rose."), Atom("c-R0", "r", Stance.REFUTE, "It fell."))
    routes = [Route(f"s{i}", "c", "c-S0", "result") for i in range(echoes)] + [Route("r0", "c", "c-R0", "table")]
    return Instance("i", EvidenceGraph((claim,), atoms, tuple(routes)), "own", Verdict.MIXED)


def test_the_naive_walker_on_a_graph_small_enough_to_follow() -> None:
    """One source by one route: observation, representation, source, then nothing new is left."""
    claim = Claim("c", "It rises.")
    atom = Atom("c-S0", "s", Stance.SUPPORT, "It rose.")
    graph = EvidenceGraph((claim,), (atom,), (Route("r", "c", "c-S0", "result"),))
    task = EpisodeTask(Instance("i", graph, "own", Verdict.SUPPORT), 6, PresentationConfig(), 3, 4)
    (episode,) = ScriptedPolicy("naive", naive_path_counter).play([task])
    # n0 is the claim that it starts from, n1 the only way on.
    actions = [turn.action for turn in episode.turns]
    assert actions == ["walk n1", "walk n2", "walk n3", "stop +2 -0 SUPPORT 0.9 S1"]
    outcome = episode.outcome
    assert [entry["kind"] for entry in episode.trace] == ["new", "echo", "connector", "stop"]
    assert (outcome.walks, outcome.echoes, outcome.connector_moves, outcome.acquired) == (3, 1, 1, 1)
    assert outcome.judgement is not None
    assert (outcome.judgement.support_count, outcome.judgement.refute_count) == (
        2,
        0,
    )  # two nodes, one source
    assert episode.cited_source_ids == ("s",)


def test_echoes_mislead_the_naive_walker_and_not_the_oracle() -> None:
    made = [EpisodeTask(two_sources(5), 6, PresentationConfig(), n, n) for n in range(60)]
    naive = ScriptedPolicy("naive", naive_path_counter).play(made)
    oracle = ScriptedPolicy("oracle", echo_avoiding_oracle).play(made)
    assert fmean(e.outcome.is_correct for e in naive) < 0.3
    assert all(e.outcome.is_correct for e in oracle)


def test_a_naive_walker_that_may_stop_early() -> None:
    assert {e.outcome.walks for e in play(naive_walker(1.0), ["C3"])} == {1}
    lengths = {e.outcome.walks for e in play(naive_walker(0.5), ["C3"])}
    assert lengths > {1}
    assert max(lengths) <= 6


def test_a_naive_walker_that_seeks_confirmation_reads_one_source_again_and_again() -> None:
    """One supporting source by five routes, one refuting source by one: what was read first is all that is found.

    From the supporting source it goes on to that source's other nodes, past the source itself where a representation
    leads nowhere else. From the refuting one there is one more node of it, then the source, and nothing new behind it.
    """
    made = [EpisodeTask(two_sources(5), 6, PresentationConfig(), n, n) for n in range(40)]
    firsts: Counter[str] = Counter()
    for episode in ScriptedPolicy("seeker", naive_walker(0.0, 1.0)).play(made):
        kinds = [entry["kind"] for entry in episode.trace]
        first = str(episode.trace[0]["source"])
        firsts[first] += 1
        judgement = episode.outcome.judgement
        assert judgement is not None
        counts = (judgement.support_count, judgement.refute_count)
        if first == "s":
            assert kinds.count("new") == kinds.index("new") + 1 == 1
            assert kinds.count("connector") <= 1
            assert (counts, judgement.verdict) == ((1 + kinds.count("echo"), 0), Verdict.SUPPORT)
        else:
            assert kinds == ["new", "echo", "connector", "stop"]
            assert (counts, judgement.verdict) == ((0, 2), Verdict.REFUTE)
        assert episode.cited_source_ids == (first,)
        assert not episode.outcome.is_correct
    assert firsts["s"] > firsts["r"] > 0


def test_confirmation_is_sought_as_often_as_asked() -> None:
    """Echoes rise with the chance, and recall falls; with none the choices are those of the plain naive walker."""
    conditions = [*CONFLICT_CONDITIONS, GENERAL]
    found = [play(naive_walker(0.0, chance), conditions) for chance in (0.0, 0.5, 1.0)]
    echoes = [fmean(e.outcome.echoes / e.outcome.walks for e in episodes) for episodes in found]
    recall = [fmean(e.outcome.acquired / e.outcome.available for e in episodes) for episodes in found]
    assert echoes[0] + 0.05 < echoes[1] < echoes[2] - 0.05
    assert recall[0] > recall[1] > recall[2]
    assert [e.turns for e in found[0]] == [e.turns for e in play(naive_path_counter, conditions)]
    for episode in found[2]:
        support, refute = naive_by_hand(episode)
        judgement = episode.outcome.judgement
        assert judgement is not None
        assert (judgement.support_count, judgement.refute_count) == (support, refute), "it still counts paths"
        nodes = [entry["node"] for entry in episode.trace[:-1]]
        assert len(nodes) == len(set(nodes)), "and never goes back to a node it stood on"


def places_taken(take_probability: float) -> list[int]:
    """Return where on the list of unvisited moves each of a naive walker's walks stood, from 0."""
    places = []
    for episode in play(naive_walker(take_probability=take_probability), ["C3", "C4"]):
        for turn in episode.turns:
            if turn.action.startswith("walk"):
                listed = (
                    turn.observation.splitlines()[-1].split(" [")[0].rstrip(".") + "."
                )  # those in brackets were visited
                fresh = legal_moves([listed])
                places.append(fresh.index(turn.action.split()[1]))
    return places


def test_a_naive_walker_that_reads_the_list_from_its_top() -> None:
    """It takes each move with a chance of 0.6: the first place in 60 % of walks, the second in 24 %."""
    assert set(places_taken(1.0)) == {0}
    counts = Counter(places_taken(0.6))
    total = counts.total()
    # The list has at least 5 moves at first and begins again after its last: small excess over the geometric shares.
    assert counts[0] / total == pytest.approx(0.6, abs=0.06)
    assert counts[1] / total == pytest.approx(0.24, abs=0.06)


def test_the_exploit_of_the_source_s_reward_beats_the_naive_walker() -> None:
    """ "One walk, MIXED" is paid .738 (see tests/rewards), the naive walker far less, the oracle more."""
    naive, oracle = (
        fmean(papt_rubric().score(e.outcome).total for e in play(walker, list(CONFLICT_CONDITIONS)))
        for walker in (naive_path_counter, echo_avoiding_oracle)
    )
    assert naive < 0.2
    assert 0.738 < oracle


def test_play_is_repeatable_and_reports_each_episode() -> None:
    made = tasks(["C2"], 6)
    seen: list[int] = []
    policy = ScriptedPolicy("naive", naive_path_counter)
    first = policy.play(made, lambda index, episode: seen.append(index))
    assert seen == list(range(len(made)))
    assert [e.to_json() for e in policy.play(made)] == [e.to_json() for e in first]
    # Played in another order, each task gives the same episode.
    again = policy.play(made[::-1])[::-1]
    assert [e.to_json() for e in again] == [e.to_json() for e in first]


def test_stored_episodes_come_back_equal() -> None:
    for episode in play(naive_path_counter, ["C2R"])[:5]:
        assert Episode.from_json(episode.to_json()) == episode


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"kind": "new", "node": "n", "budget_left": 5, "atom": "a"}, r"trace entry 1 lacks \['source'\]"),
        (
            {"kind": "new", "node": "n", "budget_left": 5, "atom": "a", "source": "s", "sorce": "s"},
            r"trace entry 1 has unknown keys \['sorce'\]",
        ),
        ({}, r"trace entry 1 lacks \['kind', 'node', 'budget_left', 'atom', 'source'\]"),
        ("new", r"trace entry 1 is 'new', expected an object"),
        (None, r"trace entry 1 is None, expected an object"),
    ],
)
def test_a_damaged_trace_is_named(entry: object, message: str) -> None:
    """A stored step with a key too few or too many is refused: half a step would give half an account of echoes."""
    data = play(naive_path_counter, ["C1"])[0].to_json()
    data["trace"][1] = entry
    with pytest.raises(ValueError, match=message):
        Episode.from_json(data)


def test_a_field_that_is_missing_is_named() -> None:
    data = play(naive_path_counter, ["C1"])[0].to_json()
    del data["mitigation"]
    with pytest.raises(ValueError, match="not a stored episode: KeyError\\('mitigation'\\)"):
        Episode.from_json(data)


@pytest.mark.parametrize("mitigation", ["M0", "M1", "M2", "M3"])
def test_walkers_play_under_every_mitigation(mitigation: str) -> None:
    shown = PresentationConfig(mitigation)  # type: ignore[arg-type]
    for walker in (naive_path_counter, echo_avoiding_oracle):
        for episode in ScriptedPolicy("scripted", walker).play(tasks(["C2"], 6, shown)[:5]):
            assert episode.mitigation == mitigation
            assert episode.outcome.ending is Ending.ANSWERED
            assert episode.outcome.invalid_actions == 0
