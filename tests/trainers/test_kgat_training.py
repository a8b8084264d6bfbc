"""K-GAT's training: interrupted anywhere it ends the same; what it learns; what it refuses."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainers.kgat_runs import CountingAgent, make_config, plain_runtime, segment, shared_world

from provgym.envs.simulated_agents import SimulatedAgent
from provgym.envs.topology import Topology
from provgym.envs.workflow import WorkflowRuntime
from provgym.eval.estimate import Estimate
from provgym.generators.candidate_mining import Proposal
from provgym.generators.kgat_folder import load_generator
from provgym.generators.kgat_model import KgatModel
from provgym.generators.task_mining import mine_task
from provgym.generators.topology_targets import Candidate, TaskTarget, target_of
from provgym.generators.topology_templates import templates
from provgym.generators.topology_trials import TopologyTrials, TrialAccount, total_account
from provgym.generators.weights_fingerprint import weights_fingerprint
from provgym.rewards.topology_score import TopologyOutcome
from provgym.trainers import kgat, kgat_results, kgat_training
from provgym.trainers.checkpoints import whole_checkpoints
from provgym.trainers.config_file import dump_config
from provgym.trainers.kgat_config import KgatConfig
from provgym.trainers.kgat_costs import mining_totals
from provgym.trainers.kgat_dev import DevFigures
from provgym.trainers.kgat_optimisation import matching_loss, new_optimizer, optimise_step, tasks_of_step
from provgym.trainers.kgat_state import RoundFolder
from provgym.trainers.step_record import RunStopped

SINGLE, CHAIN = Topology(("Answerer",), ()), Topology(("Planner", "Reasoner", "Answerer"), ((0, 1), (1, 2)))


BASES = {task.task_id: task.base_id for task in shared_world().splits["train"].seen.tasks}


class Killed(BaseException):
    """Stands for a kill inside one process: nothing may catch it."""


def final_state(config: KgatConfig) -> dict[str, Any]:
    """Everything that a run comes to: targets, weights, optimiser, logged steps, and what mining cost."""
    last = whole_checkpoints(config.run_dir / "checkpoints")[-1]
    rows = [json.loads(line) for line in (config.run_dir / "metrics.jsonl").read_text().splitlines()]
    return {
        "targets": [RoundFolder(config.run_dir, n).targets_file.read_bytes() for n in range(2)],
        "proposals": [RoundFolder(config.run_dir, n).proposals_file.read_bytes() for n in range(2)],
        "dev": [RoundFolder(config.run_dir, n).dev_file.read_text() for n in range(2)],
        "step": last.step,
        "weights": (last.path / "model.safetensors").read_bytes(),
        "optimizer": (last.path / "optimizer.pt").read_bytes(),
        "rows": rows,
        "costs": mining_totals(config, BASES),
    }


def die(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, at: int, *, after: bool = False) -> None:
    """Make a function die at its n-th call, before or after its work."""
    plain, calls = getattr(owner, name), []

    def dying(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == at and not after:
            raise Killed
        found = plain(*args, **kwargs)
        if len(calls) == at:
            raise Killed
        return found

    monkeypatch.setattr(owner, name, dying)


def test_killed_in_mining_and_optimisation_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds: W&B step goes back, resume makes a new run, one failure loses its siblings (nothing is paid twice).

    Killed in mining, amid steps, in a save and between rounds: the agent is asked no more often than without.
    """
    counting = CountingAgent(SimulatedAgent())
    world = dataclasses.replace(shared_world(), agent=counting)
    whole = make_config(tmp_path, "whole")
    segment(whole, world)
    asked, counting.calls = counting.calls, 0
    config = make_config(tmp_path, "stopped")
    places = (
        (WorkflowRuntime, "run", 40, False),  # first round, some tasks mined
        (kgat_training, "optimise_step", 4, True),  # amid the first round's steps
        (kgat_training, "save_checkpoint", 2, True),  # the end of the first round is on disk, the next not begun
        (WorkflowRuntime, "run", 30, False),  # second round's mining
        (kgat_training, "optimise_step", 5, False),
    )
    for owner, name, at, after in places:
        with monkeypatch.context() as patched:
            die(patched, owner, name, at, after=after)
            with pytest.raises(Killed):
                segment(config, world)
    segment(config, world)
    assert final_state(config) == final_state(whole)
    assert counting.calls == asked
    costs = mining_totals(config, BASES)
    assert 0 < costs["mining"]["paid_calls"] < costs["mining"]["calls"]
    share = Estimate.from_json(costs["calls_ratio_cached"])
    assert share.value == costs["mining"]["paid_calls"] / costs["mining"]["calls"]
    assert share.low < share.value < share.high
    assert share.n == costs["mining"]["tasks"]
    assert [row["step"] for row in final_state(config)["rows"]] == list(range(1, 13))
    ids = {c.origin.wandb_id for c in whole_checkpoints(config.run_dir / "checkpoints")}
    assert ids == {json.loads((config.run_dir / "wandb_run.json").read_text())["run_id"]}


def test_same_targets_with_and_without_cache_and_memory() -> None:
    """Same proposals, same targets bit for bit; the account equals what an agent without cache was really asked."""
    world, config = shared_world(), make_config(Path("nowhere"))
    split, plan = world.splits["train"].seen, config.mining.plan(config.score.rule())
    rules = config.generator.rules()
    proposals = [Proposal(t.canonical(), "template") for t in templates(rules).values() if rules.is_valid(t)]

    def mine(cached: bool) -> tuple[list[Any], TrialAccount, int]:
        counting = CountingAgent(SimulatedAgent())
        runtime = plain_runtime(counting, cached=cached)
        targets, accounts = [], []
        for task, evidence in zip(split.tasks, split.evidence, strict=True):
            trials = TopologyTrials(task, evidence, runtime, is_incremental=cached)
            targets.append(asyncio.run(mine_task(proposals, trials, plan, rules)).target.to_json())
            accounts.append(trials.account)
        return targets, total_account(accounts), counting.calls

    saved, account, asked = mine(cached=True)
    plain, full, asked_plain = mine(cached=False)
    assert saved == plain
    assert account.paid_calls == asked
    assert full.calls == full.paid_calls == asked_plain
    assert account.paid_calls < account.calls <= full.calls


def test_one_node_trains_through(tmp_path: Path) -> None:
    """Bad input: N_max 1: one topology, nothing to learn, the loss is 0; a warning says so."""
    config = make_config(tmp_path, generator={"max_nodes": 1, "hidden_size": 16, "heads": 2}, curriculum__rounds=1)
    with pytest.warns(UserWarning, match="max_nodes=1 leaves one topology"):
        trainer = segment(config)
    rows = [json.loads(line) for line in (config.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 6
    assert all(abs(row["train/loss"]) < 1e-6 for row in rows)
    assert {t.key for t in trainer.model.decode(shared_world().splits["dev"].contexts)} == {"Answerer:"}


def test_huge_cost_makes_the_single_agent_win(tmp_path: Path) -> None:
    """Bad input: lambda so large that every score lies below an empty team's: wherever it is kept, it has all."""
    config = make_config(tmp_path, score={"node": 5.0, "edge": 5.0}, curriculum__rounds=1)
    with pytest.warns(UserWarning, match="the best team of every task costs more than it brings"):
        segment(config)
    figures = RoundFolder(config.run_dir, 0).read_figures()
    assert figures["mining/best_below_zero"] == 9
    targets = RoundFolder(config.run_dir, 0).read_targets(shared_world().splits["train"].seen.task_ids)
    assert targets is not None
    for found in targets:
        least = min(c.outcome.nodes + c.outcome.edges for c in found.kept)  # nodes and edges cost alike here
        cheapest = [c for c in found.kept if c.outcome.nodes + c.outcome.edges == least]
        assert sum(c.target for c in cheapest) == pytest.approx(1.0)
        single = [c for c in found.candidates if c.topology.num_nodes == 1 and c.outcome.successes]
        assert not single or cheapest == single


def test_another_configuration_is_refused_by_key(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    segment(config)
    (config.run_dir / "config.yaml").write_text(dump_config(config))
    other = make_config(tmp_path, score__node=0.5)
    with pytest.raises(ValueError, match=r"score.node: 0.03 -> 0.5"):
        segment(other)
    with pytest.raises(ValueError, match=r"was begun under another configuration; changed: score.node"):
        kgat._refuse_other_begun_run(other)
    renamed = make_config(tmp_path, evaluation__replicates=2)
    assert kgat.training_hash(renamed) == kgat.training_hash(config) != kgat.training_hash(other)


def test_missing_targets_of_an_earlier_round_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(tmp_path)
    with monkeypatch.context() as patched:
        die(patched, kgat_training, "optimise_step", 9)
        with pytest.raises(Killed):
            segment(config)
    RoundFolder(config.run_dir, 0).targets_file.unlink()
    with pytest.raises(ValueError, match=r"round-00/targets.jsonl is missing.*--fresh"):
        segment(config)


def test_weights_that_do_not_change_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail early: a generator that did not change."""
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self, closure=None: None)
    with pytest.raises(RunStopped, match="no weight changed in 6 steps"):
        segment(make_config(tmp_path))


# ---------------------------------------------------------------- one step


def target(task: str, shares: list[tuple[Topology, int]]) -> TaskTarget:
    rule = make_config(Path("x")).score.rule()
    candidates = [Candidate(t, "random", TopologyOutcome(s, 4, t.num_nodes, t.num_edges), math.nan) for t, s in shares]
    return target_of(task, candidates, rule=rule, temperature=0.2, keeps={c.topology.key for c in candidates})


def test_loss_is_the_weighted_cross_entropy() -> None:
    """Against a sum by hand over the model's own log-probabilities; kl is what is above the entropy."""
    config, contexts = make_config(Path("x")), shared_world().splits["train"].contexts.select([0, 1])
    model = KgatModel(config.generator, seed=1)
    targets = [target("a", [(SINGLE, 1), (CHAIN, 4)]), target("b", [(SINGLE, 3)])]
    loss, entropy = matching_loss(model, contexts, targets)
    by_hand, least = 0.0, 0.0
    for row, found in enumerate(targets):
        for candidate in found.kept:
            log_p = model.log_prob(contexts.select([row]), [candidate.topology]).item()
            by_hand -= candidate.target * log_p / 2
            least -= candidate.target * math.log(candidate.target) / 2
    assert float(loss.detach()) == pytest.approx(by_hand, rel=1e-5)
    assert entropy == pytest.approx(least)
    assert float(loss.detach()) >= entropy


def test_steps_match_the_target_distribution() -> None:
    """A target of three teams, 120 steps: the probabilities come close to the shares."""
    config, contexts = make_config(Path("x")), shared_world().splits["train"].contexts.select([0])
    model = KgatModel(config.generator, seed=0)
    optimizer = new_optimizer(model, config.optim)
    wanted = target("a", [(SINGLE, 2), (CHAIN, 3), (Topology(("Verifier", "Answerer"), ((0, 1),)), 4)])
    for _ in range(120):
        figures = optimise_step(model, optimizer, contexts, [wanted], config.optim, 2e-2)
    found = model.log_prob(contexts, [[c.topology for c in wanted.kept]]).exp().tolist()
    assert figures.kl < 0.02
    assert found == pytest.approx([c.target for c in wanted.kept], abs=0.05)


def test_gradient_that_is_not_finite_changes_nothing() -> None:
    """Kind: exp overflow (a non-finite norm skips the step and is counted)."""
    config, contexts = make_config(Path("x")), shared_world().splits["train"].contexts.select([0])
    model = KgatModel(config.generator, seed=0)
    optimizer = new_optimizer(model, config.optim)
    before = weights_fingerprint(model)
    handle = model.scores.roles.weight.register_hook(lambda gradient: gradient * math.inf)
    figures = optimise_step(model, optimizer, contexts, [target("a", [(SINGLE, 1), (CHAIN, 4)])], config.optim, 1e-2)
    handle.remove()
    assert figures.is_skipped
    assert weights_fingerprint(model) == before
    assert figures.to_log()["train/skipped_steps"] == 1


def test_every_task_once_an_epoch_and_the_same_after_a_resume() -> None:
    usable = [0, 1, 3, 4, 6, 7, 9]
    steps = [tasks_of_step(step, usable, 3, run_seed=5) for step in range(9)]
    for epoch in range(3):
        assert sorted(n for step in steps[3 * epoch : 3 * epoch + 3] for n in step) == usable
    assert steps[:3] != steps[3:6]
    assert [tasks_of_step(step, usable, 3, run_seed=5) for step in range(4, 9)] == steps[4:]
    assert tasks_of_step(0, [2], 8, run_seed=5) == [2]


# ---------------------------------------------------------------- selection and results


def figures_of_score(score: float) -> DevFigures:
    return DevFigures({"score": score}, {}, {}, 0, 4)


def test_nan_never_wins_and_a_tie_goes_to_the_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kind: best checkpoint deleted. The ends of rounds are all there, and the best one is loaded."""
    config = make_config(tmp_path)
    trainer = segment(config)
    last = weights_fingerprint(trainer.model)
    for scores, best in (((math.nan, 0.1), 12), ((0.5, math.nan), 6), ((0.3, 0.3), 12), ((0.4, 0.1), 6)):
        with monkeypatch.context() as patched:
            patched.setattr(kgat_results, "_stored_dev", lambda config, number, s=scores: figures_of_score(s[0]))
            patched.setattr(trainer, "dev", lambda number, s=scores: figures_of_score(s[1]))
            chosen, found = kgat_results.select(trainer, config)
        assert chosen == best
        assert list(found) == [6, 12]
        assert (weights_fingerprint(trainer.model) == last) == (best == 12)
    with monkeypatch.context() as patched:
        patched.setattr(kgat_results, "_stored_dev", lambda config, number: figures_of_score(math.nan))
        patched.setattr(trainer, "dev", lambda number: figures_of_score(math.nan))
        with pytest.raises(ValueError, match="no checkpoint has a usable score"):
            kgat_results.select(trainer, config)


def test_dev_figures_are_read_back_with_their_missing_numbers() -> None:
    """Kind: NaN in a mean: null on disk, NaN in memory, never 0."""
    found = DevFigures({"score": math.nan}, {"conflict": {"score": 0.5}}, {"conflict": [(SINGLE, 2)]}, 3, 3)
    again = DevFigures.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))
    assert math.isnan(again.figures["score"])
    assert again.by_kind == found.by_kind
    assert again.teams == found.teams


@pytest.mark.slow
def test_whole_run_leaves_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training, control, exhaustive check, harness and files; a finished run is shown again, not trained again."""
    monkeypatch.chdir(tmp_path)
    planted = {"max_nodes": 2, "tasks": 2, "replicates": 2, "min_gap": 1e-6}
    methods = ["kgat", "query_conditioned", "single_agent", "self_consistency_matched", "debate", "random"]
    config = make_config(
        tmp_path, evaluation={"replicates": 1, "methods": methods, "planted": planted}, tracking={"wandb": "offline"}
    )
    summary = kgat.run(config)
    stored = json.loads((config.run_dir / "summary.json").read_text())
    assert stored == json.loads(json.dumps(summary))
    for method in methods:
        for metric in ("accuracy", "score", "tokens", "calls", "nodes", "edges"):
            assert Estimate.from_json(stored[method][metric]).n > 0
    assert {"adaptation", "calls_ratio_cached", "planted_optimum_ratio"} <= set(stored)
    assert 0 < stored["calls_ratio_cached"]["value"] < 1
    assert stored["selected_step"] in (6, 12)
    assert len(list((config.run_dir / "wandb").glob("offline-run-*"))) == 1
    assert (config.run_dir / "pictures" / "teams-00.png").stat().st_size > 1000
    chosen = load_generator(config.run_dir)
    assert chosen.about["step"] == stored["selected_step"]
    assert weights_fingerprint(chosen.model) == stored["trained_fingerprint"]
    assert not load_generator(config.run_dir / "query_generator").sees_evidence
    again = kgat.run(config)
    same = ("kgat", "random", "trained_fingerprint", "planted_optimum_ratio", "wandb_run_id", "mining")
    assert {k: again[k] for k in same} == {k: summary[k] for k in same}
