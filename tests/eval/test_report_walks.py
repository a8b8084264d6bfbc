"""What a page says of walks: replay, layout, credit, provenance and the choice of walks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.eval.report_runs import PHASES, clumsy, write_hostile_run, write_training_run

from provgym.envs.presentation import PresentationConfig
from provgym.envs.provenance import Atom, Claim, EvidenceGraph, Instance, NodeKind, Route, Stance
from provgym.envs.walk_text import TraceEntry
from provgym.eval.report_credit import earned_by_step, objectives_of
from provgym.eval.report_layout import MAX_DRAWN_ROUTES, lay_out
from provgym.eval.report_provenance import trace_answer
from provgym.eval.report_replay import ReplayError, replay
from provgym.eval.report_sample import PER_KIND, pick_walks
from provgym.eval.report_source import read_source
from provgym.eval.report_walks import clip, collect_walks
from provgym.generators.baseline_walkers import random_walker
from provgym.generators.episode import Episode, EpisodeTask
from provgym.generators.scripted import ScriptedPolicy, naive_walker
from provgym.rewards.outcome import Verdict
from provgym.rewards.papt import count_term
from provgym.rewards.rubric import papt_rubric

Make = Callable[..., Episode]


def instance_of(supporting: tuple[int, ...] = (2,), refuting: tuple[int, ...] = (1,)) -> Instance:
    """Return an instance with so many routes per source."""
    atoms, routes = [], []
    for stance, sizes in ((Stance.SUPPORT, supporting), (Stance.REFUTE, refuting)):
        for place, size in enumerate(sizes):
            name = f"{stance.value[0]}{place}"
            atoms.append(Atom(f"atom-{name}", f"source-{name}", stance, f"Text of {name}."))
            routes += [Route(f"{name}-{i}", "c", f"atom-{name}", "table") for i in range(size)]
    graph = EvidenceGraph((Claim("c", "A claim."),), tuple(atoms), tuple(routes))
    gold = Verdict.from_counts(len(supporting), len(refuting))
    return Instance("i", graph, "own", gold)


def task_of(instance: Instance, seed: int = 3, budget: int = 6, **presentation: Any) -> EpisodeTask:
    return EpisodeTask(instance, budget, PresentationConfig(**presentation), seed, seed)


def play(task: EpisodeTask, walker: Any = clumsy) -> Episode:
    (episode,) = ScriptedPolicy("p", walker).play([task])
    return episode


# ------------------------------------------------------------------------------------------------------------- replay


@pytest.mark.parametrize("mitigation", ["M0", "M1", "M2", "M3"])
@pytest.mark.parametrize("labels", ["short", "shuffled", "real"])
@pytest.mark.parametrize("preview_ids", ["shown", "visited"])
def test_a_replay_follows_every_presentation(mitigation: str, labels: str, preview_ids: str) -> None:
    instance = instance_of((3, 1), (2,))
    for seed in range(4):
        task = task_of(instance, seed, mitigation=mitigation, source_labels=labels, preview_ids=preview_ids)
        for walker in (clumsy, naive_walker(), random_walker):
            episode = play(task, walker)
            found = replay(task, episode)
            graph = instance.graph
            assert [graph.node_id(n) for n in found.nodes] == [entry["node"] for entry in episode.trace]
            assert found.aliases[0] == ("n0", 0)
            # Every name is one that the agent was shown: it stands in a text up to the step it is said to come from.
            for node, (alias, step) in found.aliases.items():
                shown = "\n".join(turn.observation for turn in episode.turns[: step + 1])
                ended_before = step >= len(episode.turns)
                assert node == 0 or ended_before or alias in shown or "-n" in shown
            for label, source in found.labels.items():
                assert source in graph.sources
                assert labels == "real" or label.startswith("S")


def test_a_replay_notices_other_texts_and_other_steps() -> None:
    task = task_of(instance_of())
    episode = play(task)
    other_text = replace(episode.turns[1], observation="something else")
    with pytest.raises(ReplayError, match="step 2: the stored observation differs"):
        replay(task, replace(episode, turns=(episode.turns[0], other_text, *episode.turns[2:])))
    far: TraceEntry = {**episode.trace[0], "node": "source:source-S0"}
    with pytest.raises(ReplayError, match="which is no neighbour"):
        replay(task, replace(episode, trace=(far, *episode.trace[1:])))
    wrong: TraceEntry = {**episode.trace[0], "atom": "atom-X"}
    with pytest.raises(ReplayError, match=r"step 1: stored .* walked again"):
        replay(task, replace(episode, trace=(wrong, *episode.trace[1:])))
    with pytest.raises(ReplayError, match="after the walk had ended"):
        replay(task, replace(episode, trace=(*episode.trace, episode.trace[0])))


# ------------------------------------------------------------------------------------------------------------- layout


def test_layout_of_two_routes_and_one_by_hand() -> None:
    layout = lay_out(instance_of())
    assert [n.kind for n in layout.nodes] == [
        NodeKind.CLAIM,
        *(NodeKind.OBSERVATION, NodeKind.REPRESENTATION) * 2,
        NodeKind.SOURCE,
        NodeKind.OBSERVATION,
        NodeKind.REPRESENTATION,
        NodeKind.SOURCE,
    ]
    assert [(s.source_id, s.routes) for s in layout.sources] == [("source-S0", 2), ("source-R0", 1)]
    source_s, source_r = layout.nodes[5], layout.nodes[8]
    assert (source_s.x, source_s.y) == (-165.0, 0.0)  # the supporting half is centred on the left
    assert (source_r.x, source_r.y) == (165.0, 0.0)
    # claim-observation x3, observation-representation x3, representation-source x3
    assert len(layout.edges) == 9
    assert layout.joins_all
    assert layout.hidden_routes == 0


sizes = st.lists(st.integers(1, 5), min_size=0, max_size=5).map(tuple)


@given(sizes, sizes)
@settings(max_examples=40)
def test_layout_is_deterministic_apart_and_on_its_rings(supporting: tuple[int, ...], refuting: tuple[int, ...]) -> None:
    instance = instance_of(supporting or (1,), refuting)
    layout = lay_out(instance)
    assert layout == lay_out(instance)
    places = {(n.x, n.y) for n in layout.nodes}
    assert len(places) == len(layout.nodes) == instance.graph.num_nodes
    for drawn in layout.nodes[1:]:
        assert abs(math.hypot(drawn.x, drawn.y) - {1: 82, 2: 124, 3: 165}[int(drawn.kind)]) < 0.2
    # Neighbouring observations do not overlap.
    ring = sorted(math.atan2(n.y, n.x) for n in layout.nodes if n.kind is NodeKind.OBSERVATION)
    gaps = [b - a for a, b in zip(ring, ring[1:], strict=False)]
    assert all(82 * gap >= 2 * 0.8 * layout.radius for gap in gaps)
    edges = {frozenset((layout.nodes[a].node, layout.nodes[b].node)) for a, b in layout.edges}
    # By networkx: every edge but those among observations is drawn.
    order = dict(instance.graph.to_networkx().nodes(data="order"))
    kind = instance.graph.node_kind
    pairs = [(order[a], order[b]) for a, b in instance.graph.to_networkx().edges]
    assert edges == {frozenset(pair) for pair in pairs if {int(kind[node]) for node in pair} != {1}}


def test_a_large_claim_is_drawn_in_part_and_what_was_walked_is_there() -> None:
    instance = instance_of((60, 60), (3,))
    walked = [instance.graph.num_nodes - 1, 50]
    layout = lay_out(instance, walked)
    assert sum(n.kind is NodeKind.OBSERVATION for n in layout.nodes) <= MAX_DRAWN_ROUTES
    assert set(walked) <= {n.node for n in layout.nodes}
    assert layout.hidden_routes == 123 - 4  # node 50 is a route of its own; three sources keep their first
    assert not layout.joins_all


# --------------------------------------------------------------------------------------------- credit and provenance


def test_credit_by_hand() -> None:
    """One new source of two, two echoes, two idle actions of six; the answer is wrong in verdict and counts."""
    episode = play(task_of(instance_of(), seed=1))
    kinds = [entry["kind"] for entry in episode.trace]
    assert kinds == ["new", "illegal", "unparsed", "connector", "echo", "stop"]
    earned = earned_by_step(episode, papt_rubric())
    assert earned is not None
    names = list(papt_rubric().terms)
    by_term = dict(zip(names, earned.credit.T, strict=True))
    assert by_term["coverage"].tolist() == pytest.approx([0.2, 0, 0, 0, 0, 0])  # 0.4 x 1/2
    assert by_term["echo"].tolist() == pytest.approx([0, 0, 0, 0, -0.4 / 3, 0])  # 1 echo of 3 walks
    assert by_term["cost"].tolist() == pytest.approx([-0.05 / 6] * 5 + [0])
    assert by_term["verdict"].tolist() == pytest.approx([0] * 5 + [-1.0])
    assert by_term["count"].tolist() == pytest.approx([0] * 6)
    assert earned.credit.sum() == pytest.approx(earned.total)


@pytest.mark.parametrize("walker", [clumsy, naive_walker(0.2), random_walker])
def test_credits_add_up_to_the_reward_under_every_objective(walker: Any) -> None:
    objectives, notes = objectives_of(PHASES)
    assert notes == []
    assert [o.name for o in objectives] == [
        "evaluation (full PAPT)",
        "training phase 1, steps 1–6",
        "training phase 2, steps 7–12",
    ]
    for seed in range(10):
        episode = play(task_of(instance_of((3, 1), (2,)), seed), walker)
        for objective in objectives:
            earned = earned_by_step(episode, objective.rubric)
            assert earned is not None
            total = objective.rubric.score(episode.outcome).total
            assert earned.credit.sum() == pytest.approx(total, abs=1e-12)


def test_an_objective_that_depends_on_more_is_named_not_guessed() -> None:
    phases: list[dict[str, Any]] = [
        {"steps": 3, "weights": {"nonsense": 1.0}},
        {"steps": 4, "shaping": {"weight": 0.5}},
        {"steps": 2, "weights_to": {"nonsense": 1.0}},
    ]
    objectives, notes = objectives_of(phases)
    assert len(objectives) == 1
    assert "phase 1" in notes[0]
    assert "nonsense" in notes[0]
    assert "depends on shaping" in notes[1]
    assert "phase 3, steps 8–9: its objective is not offered" in notes[2]


def test_a_phase_whose_weights_change_offers_its_first_and_its_last_objective() -> None:
    """By hand: cost and echo move, coverage stays at its own weight, the variant and the bases hold for both."""
    phase = {
        "steps": 5,
        "variant": "no_echo",
        "weights": {"coverage": 1.2, "cost": 0.0},
        "weights_to": {"cost": -0.2, "echo": -1.0, "count": 0.8},
        "count_basis": "available",
    }
    objectives, notes = objectives_of([{"steps": 3}, phase])
    assert notes == []
    assert [o.name for o in objectives[2:]] == [
        "training phase 2, steps 4–8, weights of its first step",
        "training phase 2, steps 4–8, weights of its last step",
    ]
    first, last = (o.rubric.weights for o in objectives[2:])
    shared = {"verdict": 1.0, "coverage": 1.2, "echo": 0.0, "illegal": 0.0}
    assert first == {**shared, "count": 0.4, "cost": 0.0}
    assert last == {**shared, "count": 0.8, "cost": -0.2}
    two_sources = play(task_of(instance_of()), naive_walker()).outcome
    for objective in objectives[2:]:
        assert objective.rubric.score(two_sources).terms["count"] == count_term(two_sources, basis="available")


def test_an_error_is_not_scored(make_episode: Make) -> None:
    """Fault kind: endpoint failure scored as wrong."""
    assert earned_by_step(make_episode(ending="error", answer=None), papt_rubric()) is None


def test_provenance_by_hand() -> None:
    """Fault kind: ids and duplicates (absences and repetitions are named, each source counts once)."""
    task = task_of(instance_of(), seed=1)
    episode = play(task)
    found = trace_answer(task.instance, episode, replay(task, episode))
    read = episode.trace[0]["source"]
    support, refute = found.counts
    assert (support.stated, support.available) == (3, 1)
    assert (refute.stated, refute.available) == (0, 1)
    assert support.acquired + refute.acquired == 1
    assert support.nodes_met + refute.nodes_met == 2  # one source, met at steps 1 and 5
    by_source = {reading.source_id: reading for reading in found.sources}
    assert read is not None
    assert (by_source[read].read_step, by_source[read].echo_steps) == (1, (5,))
    (other,) = set(by_source) - {read}
    assert (by_source[other].read_step, by_source[other].read_node) == (None, None)
    assert [(c.label, c.times) for c in found.citations] == [("S1", 2), ("S2", 1), ("S9", 1)]
    statuses = {c.label: (c.source_id, c.status) for c in found.citations}
    assert statuses["S9"] == (None, "unknown")
    assert sorted(s for label, s in statuses.items() if label != "S9") == sorted([(read, "read"), (other, "unread")])


def test_provenance_refuses_an_outcome_that_the_trace_contradicts() -> None:
    task = task_of(instance_of(), seed=1)
    episode = play(task)
    more = replace(episode.outcome, acquired_support=1, acquired_refute=1)
    with pytest.raises(ValueError, match="the trace acquires"):
        trace_answer(task.instance, replace(episode, outcome=more), replay(task, episode))


# ------------------------------------------------------------------------------------------------------------- choice


def test_walks_are_picked_by_the_stated_rule(make_episode: Make) -> None:
    start = [make_episode(f"c{i}", answer="SUPPORT" if i % 2 else "MIXED", echoes=i % 3) for i in range(12)]
    trained = [make_episode(f"c{i}", answer="MIXED") for i in range(12)]
    picks = {pick.key[0]: pick.reasons for pick in pick_walks({"start": start, "trained": trained})}
    gained = [name for name, reasons in picks.items() if "trained right, start wrong" in reasons]
    assert gained == ["c1/C1", "c3/C1", "c5/C1"]
    assert not any("start right, trained wrong" in reasons for reasons in picks.values())
    assert [name for name, reasons in picks.items() if "start: most echoes (2)" in reasons] == [
        "c2/C1",
        "c5/C1",
        "c8/C1",
    ]
    assert list(picks) == sorted(picks, key=lambda name: int(name[1:-3]))


def test_picks_are_bounded_deterministic_and_fair_to_conditions(make_random: Callable[..., list[Episode]]) -> None:
    episodes = {"a": make_random(1), "b": make_random(1)}
    assert pick_walks(episodes) == pick_walks(episodes)
    few = pick_walks(episodes, 4)
    conditions = {e.instance_id: e.condition for e in episodes["a"]}
    assert len(few) == 4
    assert {conditions[pick.key[0]] for pick in few} == {"C1", "C2", "C2R", "general"}
    every = pick_walks(episodes, 1_000)
    for ending in ("invalid", "truncated", "error"):
        shown = [p for p in every if f"a: {ending}" in p.reasons]
        assert 0 < len(shown) <= PER_KIND * 4


def test_picks_of_different_tasks_are_refused(make_episode: Make) -> None:
    with pytest.raises(ValueError, match="played different tasks"):
        pick_walks({"a": [make_episode("c0")], "b": [make_episode("c1")]})
    with pytest.raises(ValueError, match="max_walks=0"):
        pick_walks({"a": []}, 0)
    assert pick_walks({"a": []}) == []


# ------------------------------------------------------------------------------------------------------------- walks


def test_walks_of_a_run_hold_what_was_stored(tmp_path: Path) -> None:
    source = read_source(write_training_run(tmp_path))
    objectives, _ = objectives_of(source.phases)
    data = collect_walks(source, objectives)
    assert data.notes == ()
    assert data.picked == len(data.walks) > 4
    stored = {name: {e.instance_id: e for e in p.episodes()} for name, p in zip("abc", source.policies, strict=True)}
    for walk in data.walks:
        for name, shown in zip("abc", walk["episodes"], strict=True):
            episode = stored[name][walk["id"]]
            assert [step["kind"] for step in shown["steps"]] == [entry["kind"] for entry in episode.trace]
            assert [step["action"] for step in shown["steps"]] == [turn.action for turn in episode.turns]
            assert [shown["opening"], *(s["seen"] for s in shown["steps"][:-1])] == [
                turn.observation for turn in episode.turns
            ]
            total = papt_rubric().score(episode.outcome).total
            assert shown["rewards"][0]["total"] == pytest.approx(total, abs=1e-6)
            assert np.sum(shown["rewards"][0]["credit"]) == pytest.approx(total, abs=1e-4)


def test_changed_claims_are_noticed_and_no_walk_is_shown(tmp_path: Path) -> None:
    """What cannot be rebuilt exactly is not guessed; the page says why."""
    folder = write_hostile_run(tmp_path)
    claims = tmp_path / "claims.jsonl"
    text = claims.read_text(encoding="utf-8")
    claims.write_text(text.replace("It fell.", "It sank."), encoding="utf-8")
    data = collect_walks(read_source(folder), objectives_of([])[0])
    assert (data.walks, data.played) == ([], 4)
    assert "the claims, or how they are made, have changed since" in data.notes[0]
    claims.unlink()
    data = collect_walks(read_source(folder), objectives_of([])[0])
    assert "claims.jsonl does not exist" in data.notes[0]


def test_walks_of_another_version_are_named_and_left_out(tmp_path: Path) -> None:
    folder = write_hostile_run(tmp_path)
    path = folder / "p1" / "episodes.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("Left 5.", "5 left."), encoding="utf-8")
    data = collect_walks(read_source(folder), objectives_of([])[0])
    assert data.walks == []
    assert len(data.notes) == 4
    assert "step 2: the stored observation differs" in data.notes[0]
    assert data.notes[3] == "1 more notes of this kind are left out"


def test_what_does_not_fit_is_left_out_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = read_source(write_hostile_run(tmp_path))
    monkeypatch.setattr("provgym.eval.report_walks.MAX_BYTES", 12_000)
    data = collect_walks(source, objectives_of([])[0])
    assert 0 < len(data.walks) < data.picked == 4
    assert f"{4 - len(data.walks)} of 4 chosen walks are left out" in data.notes[-1]


@given(st.text(max_size=50), st.integers(1, 40))
def test_clip_keeps_short_texts_and_says_what_it_cut(text: str, limit: int) -> None:
    cut = clip(text, limit)
    assert cut == text if len(text) <= limit else cut.startswith(text[:limit]) and cut.endswith("more characters]")
