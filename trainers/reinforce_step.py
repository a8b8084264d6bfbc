"""A step of REINFORCE on K-GAT's world: sample topologies, execute them, raise the probability of the better ones.

A step follows ``(R - b) grad log P(G)``: R is the raw score, b the mean of the task's other samples, or a running mean;
P is the probability of the very graph that ran.

Source: Williams 1992, doi:10.1007/BF00992696; leave-one-out baseline: Kool, van Hoof and Welling 2019, "Buy 4 REINFORCE
samples, get a baseline for free!".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from provgym.envs.event_loop import all_of, run_to_end
from provgym.envs.topology import Topology
from provgym.envs.workflow import WorkflowRuntime
from provgym.eval.metrics import mean_of_finite
from provgym.generators.kgat_context import ContextBatch
from provgym.generators.kgat_model import KgatModel
from provgym.generators.seeds import Purpose, derive_seed
from provgym.generators.topology_trials import TopologyTrials, TrialAccount, total_account
from provgym.trainers.kgat_config import KgatConfig
from provgym.trainers.kgat_learning_config import ReinforceConfig
from provgym.trainers.kgat_optimisation import tasks_of_step
from provgym.trainers.kgat_training import seen_by_generator
from provgym.trainers.kgat_world import KgatWorld
from provgym.trainers.step_record import RunStopped


@dataclass(frozen=True, slots=True)
class ReinforceFigures:
    """What one step came to.

    Attributes:
        reward: Mean score of the scored samples; NaN if there was none.
        loss: Of the scored samples.
        grad_norm: Before clipping.
        surprisal: Mean -log P of the samples, in nats: an estimate of the generator's entropy.
        unscored: Samples of which nothing could be scored; they enter nothing.
        account: What the executions cost.
    """

    reward: float
    loss: float
    grad_norm: float
    surprisal: float
    unscored: int
    account: TrialAccount

    def to_log(self) -> dict[str, float | int | None]:
        """Return the figures by the names that they are logged under."""
        return {
            "reinforce/reward": self.reward,
            "train/loss": self.loss,
            "train/grad_norm": self.grad_norm,
            "reinforce/surprisal": self.surprisal,
            "reinforce/unscored": self.unscored,
            **{f"reinforce/{name}": count for name, count in self.account.to_json().items()},
        }


def advantages_of(rewards: torch.Tensor, running_mean: float, config: ReinforceConfig) -> tuple[torch.Tensor, float]:
    """Take the baseline off the rewards.

    Shapes: B tasks, S samples per task.

    Args:
        rewards: (B, S) float; NaN = not scored (not the same as 0).
        running_mean: Of earlier steps; NaN at the beginning.
        config: Which baseline.

    Returns:
        (B, S) advantages, 0 where nothing was scored, or where a task has no other scored sample to compare with; and
        the running mean after this step.

    Example:
        >>> config = ReinforceConfig(samples=3)
        >>> found, _ = advantages_of(torch.tensor([[1.0, 0.0, 0.5], [0.2, torch.nan, torch.nan]]), math.nan, config)
        >>> found.tolist()
        [[0.75, -0.75, 0.0], [0.0, 0.0, 0.0]]
    """
    is_scored = ~torch.isnan(rewards)
    known = torch.where(is_scored, rewards, 0.0)
    mean = float(known.sum() / is_scored.sum()) if bool(is_scored.any()) else math.nan
    after = running_mean
    if not math.isnan(mean):
        after = mean if math.isnan(running_mean) else config.momentum * running_mean + (1 - config.momentum) * mean
    if config.baseline == "running_mean":
        base = mean if math.isnan(running_mean) else running_mean
        return torch.where(is_scored, rewards - base, 0.0), after
    others = is_scored.sum(dim=1, keepdim=True) - 1  # (B, 1)
    base_rows = (known.sum(dim=1, keepdim=True) - known) / others.clamp(min=1)  # (B, S)
    return torch.where(is_scored & (others > 0), rewards - base_rows, 0.0), after


class ReinforceTrainer:
    """One run of REINFORCE.

    Args:
        config: The run.
        world: Tasks and what is seen of them.
        runtime: Executes topologies.

    Attributes:
        model: The generator.
        running_mean: Of rewards; NaN before the first step.
    """

    def __init__(self, config: KgatConfig, world: KgatWorld, runtime: WorkflowRuntime) -> None:
        self.model = KgatModel(config.generator, seed=config.seed)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.reinforce.learning_rate)
        self.running_mean = math.nan
        self._config, self._world, self._runtime = config, world, runtime
        self._rule = config.score.rule()
        self._contexts = seen_by_generator(world.splits["train"].contexts, config)

    def step(self, number: int) -> ReinforceFigures:
        """Take one step, counted from 0; a gradient that is not finite changes nothing.

        Raises:
            RunStopped: If not one execution of the step could be scored.
        """
        settings = self._config.reinforce
        train = self._world.splits["train"].seen
        chosen = tasks_of_step(number, range(len(train)), settings.tasks_per_step, self._config.seed)
        rows = [row for row in range(len(chosen)) for _ in range(settings.samples)]
        contexts = self._contexts.select(chosen)
        seeds = [
            derive_seed(self._config.seed, Purpose.CANDIDATES, 2, number, task, sample)
            for task in chosen
            for sample in range(settings.samples)
        ]
        teams = self.model.decode(contexts.select(rows), mode="sample", seeds=seeds)
        by_task = [teams[place * settings.samples : (place + 1) * settings.samples] for place in range(len(chosen))]
        rewards, account, failure = run_to_end(self._execute(number, chosen, by_task))
        if account.executed and account.errors == account.executed:
            raise RunStopped(
                f"all {account.errors} executions of step {number + 1} ended in error; the first: {failure}"
            )
        return self._learn(contexts, teams, rows, torch.tensor(rewards), account)

    def _learn(
        self,
        contexts: ContextBatch,
        teams: Sequence[Topology],
        rows: Sequence[int],
        rewards: torch.Tensor,
        account: TrialAccount,
    ) -> ReinforceFigures:
        settings = self._config.reinforce
        log_probs = self.model.log_prob(contexts, teams, rows).view_as(rewards)  # (B, S)
        shaped = rewards - settings.entropy_weight * log_probs.detach()
        advantages, self.running_mean = advantages_of(shaped, self.running_mean, settings)
        is_scored = ~torch.isnan(rewards)
        loss = -(advantages * log_probs).sum() / is_scored.sum().clamp(min=1)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        limit = self._config.optim.max_grad_norm
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        if math.isfinite(norm):
            self.optimizer.step()
        return ReinforceFigures(
            mean_of_finite(rewards.flatten().tolist())[0],
            float(loss.detach()),
            norm,
            -float(log_probs.detach().mean()),
            int((~is_scored).sum()),
            account,
        )

    async def _execute(
        self, number: int, chosen: Sequence[int], by_task: Sequence[Sequence[Topology]]
    ) -> tuple[list[list[float]], TrialAccount, str | None]:
        """Return (B, S) raw scores on replicates that no other step uses, what they cost, and the first failure."""
        train, settings = self._world.splits["train"].seen, self._config.reinforce
        raw = type(self._rule)(self._rule.weights, self._rule.cost_weight, "raw")
        fresh = range(number * settings.replicates, (number + 1) * settings.replicates)
        trials = [TopologyTrials(train.tasks[task], train.evidence[task], self._runtime) for task in chosen]

        async def rewards_of(trial: TopologyTrials, teams: Sequence[Topology]) -> list[float]:
            return [raw.score(await trial.outcome(team, fresh)) for team in teams]

        async with self._world.session():
            found = await all_of(rewards_of(t, teams) for t, teams in zip(trials, by_task, strict=True))
        failures = [trial.first_failure for trial in trials if trial.first_failure is not None]
        return found, total_account(trial.account for trial in trials), next(iter(failures), None)
