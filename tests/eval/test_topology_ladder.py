"""The ladder of controls on a small untrained generator: each method changes one thing, and really changes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.eval.topology_records import ScriptedExecutor, draw_of, make_question, make_questions

from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.topology import Topology
from provgym.envs.topology_rules import TopologyRules, enumerate_topologies
from provgym.eval.topology_data import TopologyData
from provgym.eval.topology_generator import Designer, load_designer, without_roles
from provgym.eval.topology_ladder import LadderParts, build_methods, default_methods
from provgym.eval.topology_methods import Method, Question, TeamMethod
from provgym.eval.topology_names import FIXED_TEAMS, METHODS, WHAT_CHANGES
from provgym.eval.topology_runs import MethodRun
from provgym.generators.hashed_encoder import HashedEncoder
from provgym.generators.kgat_context import ContextBatch, embed_contexts
from provgym.generators.kgat_folder import StoredGenerator, save_generator
from provgym.generators.kgat_model import KgatModel, KgatSettings

ENCODER = HashedEncoder(32)
SETTINGS = KgatSettings(max_nodes=4, max_in_degree=2, encoder_size=32, hidden_size=16, heads=2)


def shaken(seed: int) -> KgatModel:
    """Return a generator whose choices differ from question to question."""
    model = KgatModel(SETTINGS, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6.0)
    return model.eval()


@pytest.fixture(scope="module")
def parts() -> LadderParts:
    data = TopologyData([q.task for q in make_questions(6, 1)], ENCODER)
    return LadderParts(
        rules=SETTINGS.rules(),
        num_replicates=2,
        designer=Designer(shaken(1), ENCODER, "one"),
        second=Designer(shaken(2), ENCODER, "two", sees_evidence=False),
        show_random=data.random_evidence,
        retrieve=data.nearest,
    )


@pytest.fixture(scope="module")
def methods(parts: LadderParts) -> dict[str, Method]:
    return {method.name: method for method in build_methods(METHODS, parts)}


QUESTIONS = make_questions(bases=6, replicates=1)


def teams(method: Method, questions: Sequence[Question] = QUESTIONS) -> list[str]:
    assert isinstance(method, TeamMethod)
    return [team.key for team in method.propose(questions)]


def shown(method: Method) -> list[list[str]]:
    assert isinstance(method, TeamMethod)
    return [[unit.unit_id for unit in context.units] for context in method.show(QUESTIONS)]


AS_IS = [[unit.unit_id for unit in question.evidence.units] for question in QUESTIONS]


def test_there_is_a_method_for_every_name(methods: dict[str, Method], parts: LadderParts) -> None:
    assert tuple(methods) == METHODS == tuple(WHAT_CHANGES) == tuple(default_methods(parts))
    assert len({method.fingerprint for method in methods.values()}) == len(METHODS)


def test_query_conditioned_teams_do_not_follow_the_evidence(methods: dict[str, Method]) -> None:
    """One thing: what the team is chosen by. With other evidence the team stays; agents are shown the evidence."""
    bare = [replace(question, evidence=make_question(shown=0).evidence) for question in QUESTIONS]
    for name in ("query_conditioned", "evidence_removed"):
        assert teams(methods[name]) == teams(methods[name], bare)
        assert shown(methods[name]) == AS_IS
    assert teams(methods["kgat"]) != teams(methods["kgat"], bare)
    assert teams(methods["no_evidence_in_training"]) != teams(methods["query_conditioned"])


def test_agents_without_evidence_have_kgat_s_own_teams(methods: dict[str, Method]) -> None:
    assert teams(methods["no_evidence_at_inference"]) == teams(methods["kgat"])
    assert shown(methods["no_evidence_at_inference"]) == [[]] * len(QUESTIONS)
    assert shown(methods["single_agent_closed_book"]) == [[]] * len(QUESTIONS)
    assert teams(methods["single_agent_closed_book"]) == teams(methods["single_agent"])


def test_random_retrieval_shows_as_many_other_units_and_chooses_by_them(methods: dict[str, Method]) -> None:
    method = methods["random_retrieval"]
    assert isinstance(method, TeamMethod)
    drawn = method.show(QUESTIONS)
    assert [len(context.units) for context in drawn] == [len(units) for units in AS_IS]
    assert shown(method) != AS_IS
    assert shown(method) == shown(method)  # the same draw when it is asked again
    replaced = [replace(q, evidence=context) for q, context in zip(QUESTIONS, drawn, strict=True)]
    assert teams(method) == teams(methods["kgat"], replaced)


def test_baselines_are_templates_and_debate_may_exceed_the_limit(
    methods: dict[str, Method], parts: LadderParts
) -> None:
    found = {name: set(teams(methods[name])) for name in FIXED_TEAMS}
    assert all(len(keys) == 1 for keys in found.values())
    assert found["single_agent"] == {"Answerer:"}
    (debate,) = {team.key: team for team in methods["debate"].propose(QUESTIONS)}.values()  # type: ignore[attr-defined]
    assert debate.num_edges == 6
    assert not parts.rules.is_valid(debate)


def test_random_teams_are_feasible_and_drawn_per_question(methods: dict[str, Method], parts: LadderParts) -> None:
    method = methods["random"]
    assert isinstance(method, TeamMethod)
    drawn = method.propose(QUESTIONS)
    assert all(parts.rules.is_valid(team) for team in drawn)
    assert len({team.key for team in drawn}) > 3
    assert [team.key for team in method.propose(QUESTIONS[::-1])] == [team.key for team in drawn[::-1]]


def test_a_team_does_not_depend_on_its_batch(methods: dict[str, Method]) -> None:
    """Kind: padding side: alone, turned round and together give the same teams."""
    together = teams(methods["kgat"])
    assert [teams(methods["kgat"], [question])[0] for question in QUESTIONS] == together
    assert teams(methods["kgat"], QUESTIONS[::-1]) == together[::-1]


def test_sampled_teams_are_seeded_per_question_and_replicate(parts: LadderParts) -> None:
    """Kind: global RNG: the same draws whatever the global generators do; replicates draw apart."""
    assert parts.designer is not None
    sampling = replace(parts.designer, mode="sample", temperature=2.0)
    questions = make_questions(bases=4, replicates=3)
    first = [team.key for team in sampling(questions)]
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    assert [team.key for team in sampling(questions[::-1])] == first[::-1]
    assert any(len(set(first[place : place + 3])) > 1 for place in range(0, len(first), 3))
    other = replace(sampling, seed=43)
    assert [team.key for team in other(questions)] != first


# --- masking a role ---------------------------------------------------------------------------------------------------


def role_distribution(model: KgatModel, contexts: ContextBatch) -> dict[str, torch.Tensor]:
    """Return the exact probability of every graph, (B,) each."""
    graphs = list(enumerate_topologies(model.rules))
    rows = [row for row in range(len(contexts)) for _ in graphs]
    with torch.no_grad():
        probabilities = model.log_prob(contexts, graphs * len(contexts), rows).exp().view(len(contexts), len(graphs))
    return {graph.key: probabilities[:, place] for place, graph in enumerate(graphs)}


def test_leaving_a_role_out_is_masking_it() -> None:
    """Two nodes: P'(no Reasoner) = P(no Reasoner) / (1 - P(the first node is a Reasoner)), by enumeration."""
    model = KgatModel(SETTINGS.model_copy(update={"max_nodes": 2}), seed=3)
    with torch.no_grad():
        model.scores.roles.weight.mul_(4.0)
    questions = [make_question(f"q{number}") for number in range(5)]
    contexts = ContextBatch.of(
        embed_contexts([q.task.question for q in questions], [q.evidence for q in questions], ENCODER)
    )
    whole, masked = role_distribution(model, contexts), role_distribution(without_roles(model, ["Verifier"]), contexts)
    assert set(masked) == {key for key in whole if "Verifier" not in key}
    left = 1.0 - whole["Verifier+Answerer:0>1"]
    for key, found in masked.items():
        torch.testing.assert_close(found, whole[key] / left, atol=1e-5, rtol=1e-5)
    assert sum(masked.values()).sum().item() == pytest.approx(len(questions), abs=1e-4)  # type: ignore[union-attr]


def test_masked_teams_never_hold_the_role(methods: dict[str, Method], parts: LadderParts) -> None:
    assert any("Verifier" in key for key in teams(methods["kgat"]))
    assert not any("Verifier" in key for key in teams(methods["no_verifier"]))
    assert parts.designer is not None
    before = {name: p.clone() for name, p in parts.designer.model.named_parameters()}
    without_roles(parts.designer.model, ["Planner", "Verifier"])
    assert all(torch.equal(before[name], p) for name, p in parts.designer.model.named_parameters())


@pytest.mark.parametrize("names", [["Critic"], ["Answerer"]])
def test_a_role_that_cannot_be_masked_is_refused(parts: LadderParts, names: list[str]) -> None:
    assert parts.designer is not None
    with pytest.raises(ValueError, match="can't be masked"):
        parts.designer.without_roles(names)


# --- what is missing --------------------------------------------------------------------------------------------------


def test_without_a_generator_there_are_baselines_only() -> None:
    bare = LadderParts(TopologyRules(DEFAULT_ROLES.names), num_replicates=1)
    assert default_methods(bare) == [
        "single_agent",
        "single_agent_closed_book",
        "chain",
        "star",
        "tree",
        "with_verifier",
        "debate",
        "random",
    ]
    for name, what in (("kgat", "a generator"), ("react", "a retriever")):
        with pytest.raises(ValueError, match=f"method '{name}' needs {what}"):
            build_methods([name], bare)
    with pytest.raises(ValueError, match=r"methods \['vote'\] are unknown"):
        build_methods(["vote"], bare)
    with pytest.raises(ValueError, match="method 'tree' does not fit"):
        build_methods(["tree"], replace(bare, rules=TopologyRules(DEFAULT_ROLES.names, max_nodes=2)))


def test_a_second_generator_is_asked_for_by_name(parts: LadderParts) -> None:
    with pytest.raises(ValueError, match="needs a second generator, trained without evidence"):
        build_methods(["query_conditioned"], replace(parts, second=None))


def test_a_generator_is_read_from_its_folder(tmp_path: Path) -> None:
    model = shaken(1)
    save_generator(tmp_path, StoredGenerator(model, ENCODER.fingerprint))
    found = load_designer(tmp_path, ENCODER, ENCODER.fingerprint)
    expected = Designer(model, ENCODER, "x")
    assert [t.key for t in found(QUESTIONS)] == [t.key for t in expected(QUESTIONS)]
    assert found.sees_evidence
    with pytest.raises(ValueError, match="was trained on embeddings of"):
        load_designer(tmp_path, ENCODER, "another encoder")


PlayOne = Callable[..., list[MethodRun]]


def test_every_method_answers_every_question(methods: dict[str, Method], play_one: PlayOne) -> None:
    kgat = {run.key: run for run in play_one(methods["kgat"], {})}
    for method in methods.values():
        runs = play_one(method, kgat if method.builds_on else {})
        assert [run.key for run in runs] == [question.key for question in QUESTIONS]
        assert all(run.is_scored and not math.isnan(run.latency_s) for run in runs)


@pytest.fixture
def play_one() -> PlayOne:
    def play(method: Method, earlier: dict[tuple[str, int], MethodRun]) -> list[MethodRun]:
        found: dict[int, MethodRun] = {}
        method.play(QUESTIONS, ScriptedExecutor(draw_of), earlier, found.__setitem__)
        return [found[number] for number in range(len(QUESTIONS))]

    return play


def test_templates_are_those_of_the_generator_s_limits(methods: dict[str, Method]) -> None:
    (star,) = {team.key: team for team in methods["star"].propose(QUESTIONS)}.values()  # type: ignore[attr-defined]
    assert star == Topology(("Reasoner", "Reasoner", "Answerer"), ((0, 2), (1, 2)))


def test_limits_change_what_is_legal_and_no_weight() -> None:
    """By enumeration: under each limit the probabilities of all teams that it allows sum to 1; weights stay."""
    designer = Designer(shaken(1), ENCODER, "one")
    assert designer.within(designer.model.rules.max_nodes, designer.model.rules.max_in_degree) is designer
    questions = [make_question(f"q{number}", base=f"q{number}") for number in range(24)]
    largest = designer.model.rules.max_nodes
    sizes = {}
    for limit in (1, 2, largest, largest + 3):
        teams = designer.within(limit, 2).propose(questions, [question.evidence for question in questions])
        sizes[limit] = [team.num_nodes for team in teams]
        assert all(len(team.predecessors(node)) <= 2 for team in teams for node in range(team.num_nodes))
    assert set(sizes[1]) == {1}
    assert all(max(found) <= limit for limit, found in sizes.items())
    assert max(sizes[largest + 3]) > largest, "the weights ask for more nodes, and get them"
    context = ContextBatch.of(embed_contexts(["What of it?"], [questions[0].evidence], ENCODER))
    for limit in (1, 2, 3):
        model = designer.within(limit, 2).model
        allowed = list(enumerate_topologies(model.rules))
        assert float(model.log_prob(context, [allowed]).detach().exp().sum()) == pytest.approx(1.0, abs=1e-5)
    wide = designer.within(largest + 3, 2).model
    assert all(torch.equal(a, b) for a, b in zip(wide.parameters(), designer.model.parameters(), strict=True))
    with pytest.raises(ValueError, match=r"max_nodes=11 must lie in \[1, 10\]"):
        designer.within(11, 3)
