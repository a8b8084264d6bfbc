"""Configurations, tasks and evidence of a topology evaluation, and one played whole in the simulated world."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.eval.topology_records import make_question, make_task

from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.simulated_agents import SimulatedAgent
from provgym.envs.workflow import MemoryMessageCache, WorkflowRuntime
from provgym.eval.topology import evaluate_methods
from provgym.eval.topology_config import BenchmarkTasks, TopologyEvalConfig, topology_eval_config
from provgym.eval.topology_data import TopologyData, ladder_parts, load_encoder, load_tasks
from provgym.eval.topology_generator import Designer
from provgym.eval.topology_ladder import build_methods, default_methods
from provgym.eval.topology_result import TopologyEvalResult
from provgym.generators.hashed_encoder import HashedEncoder
from provgym.generators.kgat_model import KgatModel, KgatSettings

SMALL: dict[str, Any] = {
    "encoder": "hashed",
    "limit": 4,
    "replicates": 2,
    "tasks": {"kind": "evidence", "made": {"train_claims": 1, "dev_claims": 1, "test_claims": 6, "other_claims": 160}},
}


@pytest.fixture(scope="module")
def data() -> TopologyData:
    config = topology_eval_config(None, SMALL)
    return TopologyData(load_tasks(config), load_encoder(config), config.replicates, config.seed)


def test_questions_are_tasks_times_replicates_with_their_evidence(data: TopologyData) -> None:
    assert len({task.base_id for task in data.tasks}) == 4
    assert len(data.tasks) == 12
    questions = data.questions(6)
    assert len({question.key for question in questions}) == len(questions) == 24
    assert {len(question.evidence.units) for question in questions} == {6}
    shallow = data.questions(2)
    for deep, few in zip(questions, shallow, strict=True):
        assert deep.key == few.key
        assert deep.evidence.units[:2] == few.evidence.units  # a deeper retrieval only adds


def test_random_evidence_has_the_same_size_and_is_the_same_for_all_repetitions(data: TopologyData) -> None:
    questions = data.questions(3)
    drawn = data.random_evidence(questions)
    assert [len(context.units) for context in drawn] == [3] * len(questions)
    assert drawn[0] == drawn[1]  # two repetitions of one task
    assert any(context.units != question.evidence.units for context, question in zip(drawn, questions, strict=True))
    bare = make_question(shown=0)
    assert data.random_evidence([bare]) == [bare.evidence]


def test_the_nearest_units_to_a_text(data: TopologyData) -> None:
    task = data.tasks[0]
    unit = task.graph.units[4]
    found = data.nearest(task, unit.span.text, 3)
    assert unit.span.text in {near.span.text for near in found.units}  # several sources may use the same words
    assert data.nearest(make_task(units=0), "anything", 3).units == ()


def test_a_run_brings_its_tasks_retrieval_and_prices() -> None:
    run = {
        "tasks": {"evidence": {"seed": 7, "test_claims": 9}},
        "retrieval": {"encoder": "hashed", "depth": 4, "choice": "similar", "revision": None},
        "score": {"node": 0.02, "edge": 0.0, "cost_weight": 0.5, "estimator": "posterior_mean"},
    }
    config = topology_eval_config(run, {"depth": 5})
    assert (config.depth, config.encoder, config.cost_weight) == (5, "hashed", 0.5)
    assert config.tasks.model_dump()["made"]["seed"] == 7
    assert (config.rule().weights.node, config.rule().estimator) == (0.02, "raw")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"methods": []}, "expected some of kgat"),
        ({"query_generator": "x"}, "is a control of generator"),
        ({"tasks": {"kind": "benchmark", "name": "gsm8k"}, "split": "dev"}, "stand in split 'test'"),
        ({"depths": [3, 3]}, "names something twice"),
        ({"replicates": 0}, "replicates: Input should be greater than or equal to 1; found 0"),
        ({"learing_rate": 1}, "learing_rate: Extra inputs are not permitted"),
        ({"node": float("nan")}, "node: "),
        ({"temperature": 0}, "temperature: Input should be greater than 0"),
    ],
)
def test_bad_fields_are_named(fields: dict[str, Any], message: str) -> None:
    """Kind: config typing: an unknown key or a bad value stops at load and names key and expectation."""
    with pytest.raises(ValueError, match=message):
        topology_eval_config(None, fields)


def test_the_hash_of_the_questions_is_that_of_the_questions_alone() -> None:
    plain = TopologyEvalConfig()
    same: list[dict[str, Any]] = [
        {"methods": ("debate",)},
        {"node": 0.5},
        {"depths": (1, 2)},
        {"resamples": 5},
        {"generator": Path("x")},
    ]
    other: list[dict[str, Any]] = [{"depth": 5}, {"seed": 1}, {"replicates": 2}, {"encoder": "hashed"}, {"limit": 3}]
    assert {plain.model_copy(update=fields).question_hash for fields in same} == {plain.question_hash}
    assert len({plain.model_copy(update=fields).question_hash for fields in other} | {plain.question_hash}) == 6


def test_a_benchmark_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "gsm8k.jsonl"
    rows = [{"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = TopologyEvalConfig(tasks=BenchmarkTasks(name="gsm8k", path=path), limit=3)
    tasks = load_tasks(config)
    assert [task.gold for task in tasks] == ["1", "2", "3"]
    assert {task.evidence_kind for task in tasks} == {None}
    assert {len(question.evidence.units) for question in TopologyData(tasks, HashedEncoder()).questions(6)} == {0}


def test_limits_come_from_what_is_asked_then_from_the_generator(data: TopologyData) -> None:
    settings = KgatSettings(max_nodes=4, max_in_degree=None, hidden_size=8, heads=2)

    def load(folder: Path) -> Designer:
        return Designer(KgatModel(settings), data.encoder, folder.name)

    bare = ladder_parts(topology_eval_config(None, SMALL), data)
    assert (bare.rules.max_nodes, bare.rules.max_in_degree) == (6, 3)
    trained = ladder_parts(topology_eval_config(None, SMALL | {"generator": "g", "query_generator": "q"}), data, load)
    assert (trained.rules.max_nodes, trained.rules.max_in_degree) == (4, None)
    assert (trained.designer and trained.designer.fingerprint, trained.second and trained.second.fingerprint) == (
        "g",
        "q",
    )
    asked = ladder_parts(
        topology_eval_config(None, SMALL | {"generator": "g", "query_generator": "q", "max_nodes": 3}), data, load
    )
    assert asked.rules.max_nodes == 3
    for found in (asked.designer, asked.second):
        assert found is not None
        assert found.model.rules == asked.rules
        assert found.fingerprint[1:] == "/N_max 3, d_max None"  # never taken for the run's own teams


Evaluate = Callable[[Path], TopologyEvalResult]


@pytest.fixture(scope="module")
def evaluate(data: TopologyData) -> Evaluate:
    """Play all methods by simulated agents."""
    model = KgatModel(KgatSettings(max_nodes=4, hidden_size=8, heads=2), seed=1).eval()
    config = topology_eval_config(None, SMALL | {"generator": "g", "query_generator": "q", "resamples": 100})
    parts = ladder_parts(config, data, lambda folder: Designer(model, data.encoder, folder.name))

    def play(folder: Path) -> TopologyEvalResult:
        agent = SimulatedAgent()
        runtime = WorkflowRuntime(agent, roles=DEFAULT_ROLES, cache=MemoryMessageCache())
        return evaluate_methods(
            build_methods(default_methods(parts), parts),
            data.questions(config.depth),
            runtime,
            folder,
            executor_fingerprint=agent.fingerprint,
            rule=config.rule(),
            resampling=config.resampling(),
            config_hash=config.question_hash,
            plots=False,
        )

    return play


def test_the_ladder_in_the_simulated_world(evaluate: Evaluate, tmp_path: Path) -> None:
    """Whole and twice: the same figures to the last bit; matched tokens; teams as promised.

    Kind: closed event loop: the runtime's synchronous entry is called some thirty times in one process.
    """
    result = evaluate(tmp_path / "once")
    again = evaluate(tmp_path / "twice")
    once, twice = result.to_json(), again.to_json()
    volatile = ("latency_s", "latency_ratio")  # seconds are measured
    for name, found in once["details"]["methods"].items():
        for metric, figure in found["metrics"].items():
            if metric not in volatile:
                assert figure == twice["details"]["methods"][name]["metrics"][metric], (name, metric)
    assert once["adaptation"] == twice["adaptation"]
    kgat = {run.key: run for run in result.runs["kgat"]}
    for run in result.runs["self_consistency_matched"]:
        assert run.tokens >= kgat[run.key].tokens
        assert run.tokens - kgat[run.key].tokens < run.tokens / run.samples * 1.5  # less than a sample too much
    closed = result.summary.methods["closed_book"]
    assert closed.metrics["nodes"] == result.summary.methods["kgat"].metrics["nodes"]
    assert result.summary.methods["no_verifier"].verifier.checked == 0
    assert result.summary.methods["with_verifier"].verifier.checked == result.num_questions
    assert set(result.summary.evidence_gains) == {"kgat", "single_agent"}
    assert all(run.is_scored for runs in result.runs.values() for run in runs)


def test_a_misspelt_encoder_asks_no_hub() -> None:
    config = topology_eval_config(None, {"encoder": "hashd"})
    with pytest.raises(ValueError, match="encoder 'hashd' is no name of ours and no folder; did you mean 'hashed'"):
        load_encoder(config)
