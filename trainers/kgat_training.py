"""The training loop of K-GAT: in every round dev scoring, mining, then optimisation steps with checkpoints.

Optimisation runs in the first process alone: the generator is small, and sums over several processes would come out in
another order. The others mine their share, wait, and read the weights. So any number of processes ends with the same
generator, bit for bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from provgym.envs.topology import Topology
from provgym.envs.workflow import MessageCache, WorkflowRuntime
from provgym.eval.processes import Processes
from provgym.eval.walk_play import together
from provgym.generators.candidate_mining import Mixture, Proposals, pi_of_round, propose
from provgym.generators.kgat_context import ContextBatch
from provgym.generators.kgat_model import KgatModel
from provgym.generators.topology_sampler import random_topology
from provgym.generators.topology_targets import TaskTarget, pool_targets
from provgym.generators.topology_templates import templates
from provgym.generators.weights_fingerprint import weights_fingerprint
from provgym.trainers.checkpoints import Checkpoint, Origin
from provgym.trainers.kgat_checkpoints import drop_passed, load_checkpoint, save_checkpoint
from provgym.trainers.kgat_config import KgatConfig
from provgym.trainers.kgat_dev import DevFigures, dev_figures
from provgym.trainers.kgat_optimisation import learning_rate_in_round, new_optimizer, optimise_step, tasks_of_step
from provgym.trainers.kgat_pictures import draw_teams
from provgym.trainers.kgat_rounds import MiningSetup, mine_round
from provgym.trainers.kgat_state import RoundFolder
from provgym.trainers.kgat_world import KgatWorld
from provgym.trainers.step_record import RunStopped
from provgym.trainers.tracking import Tracker

_DECODED_AT_ONCE = 512
_NOTHING_LEFT = 1e-4  # nats: below this distance from the targets nothing has to change


class KgatTrainer:
    """One run's training; every process of the launch has one.

    Args:
        config: The run.
        world: Tasks and what is seen of them.
        runtime: Executes topologies.
        processes: Who mines together.
        shows: Whether this process shows progress.

    Attributes:
        model: The generator.
    """

    def __init__(
        self,
        config: KgatConfig,
        world: KgatWorld,
        runtime: WorkflowRuntime,
        processes: Processes,
        *,
        shows: bool = False,
    ) -> None:
        self.model = KgatModel(config.generator, seed=config.seed)
        self._optimizer = new_optimizer(self.model, config.optim)
        self._config, self._world, self._runtime, self._processes = config, world, runtime, processes
        self._shows = shows
        self._rule = config.score.rule()
        self._folder = config.run_dir / "checkpoints"
        self._history: list[list[TaskTarget]] = []
        self._setup = MiningSetup(
            train=world.splits["train"].seen,
            plan=config.mining.plan(self._rule),
            rules=self.model.rules,
            runner=runtime,
            tasks_at_once=2 * config.agents.max_concurrency,
            is_incremental=config.mining.incremental,
            session=world.session,
            replies=runtime.cache if isinstance(runtime.cache, MessageCache) else None,
        )

    def train(self, resume: Checkpoint | None, tracker: Tracker, origin: Origin) -> None:
        """Train from the start or from a checkpoint to the last step.

        Args:
            resume: Where to go on from; None is the beginning.
            tracker: Logs.
            origin: Of the checkpoints.

        Raises:
            RunStopped: If going on would be wasted.
            ValueError: If files of an earlier round are missing or damaged.
        """
        start = 0
        if resume is not None:
            load_checkpoint(resume.path, self.model, self._optimizer)
            start = resume.step
        per_round = self._config.optim.steps_per_round
        first = start // per_round
        self._history = [self._targets_on_file(number) for number in range(first)]
        if self._config.generator.max_nodes == 1 and start == 0:
            warnings.warn(
                "generator.max_nodes=1 leaves one topology, the Answerer alone: there is nothing to learn, and the run "
                "measures that agent",
                stacklevel=2,
            )
        for number in range(first, self._config.curriculum.rounds):
            self._round(number, max(start, number * per_round), tracker, origin)

    def dev(self, number: int) -> DevFigures:
        """Return what the generator, as it is now, is worth on the dev tasks; stored with a round's files."""
        split = self._world.splits["dev"]
        return dev_figures(
            RoundFolder(self._config.run_dir, number).dev_file,
            self.model,
            seen_by_generator(split.contexts, self._config),
            split.seen,
            self._runtime,
            self._rule,
            self._config.checkpoints.dev_replicates,
            self._processes,
        )

    def _round(self, number: int, step: int, tracker: Tracker, origin: Origin) -> None:
        folder = RoundFolder(self._config.run_dir, number)
        is_begun = step > number * self._config.optim.steps_per_round
        figures: dict[str, Any] = {}
        if is_begun:
            targets = self._targets_on_file(number)
        else:
            dev = self.dev(number)
            targets = mine_round(folder, self._setup, lambda: self._propose(number), self._processes, self._bar(number))
            figures = folder.read_figures() | dev.to_log() | {"curriculum/pi": self._pi(number)}
            figures["curriculum/round"] = number
            if self._processes.rank == 0:
                picture = self._config.run_dir / "pictures" / f"teams-{number:02d}.png"
                draw_teams(dev.teams, picture, f"{self._config.name}, before round {number}")
                tracker.log_pictures(step + 1, {"dev/teams": picture})
        self._history.append(targets)
        self._optimise(number, step, self._pooled(), figures, tracker, origin)

    def _optimise(
        self,
        number: int,
        step: int,
        targets: Sequence[TaskTarget],
        figures: dict[str, Any],
        tracker: Tracker,
        origin: Origin,
    ) -> None:
        """Take the round's remaining steps in the first process; the others wait and read the weights."""
        end = (number + 1) * self._config.optim.steps_per_round
        is_first = self._processes.rank == 0
        together(
            self._processes,
            lambda: self._take_steps(step, end, targets, figures, tracker, origin) if is_first else None,
        )
        if self._processes.rank:
            load_checkpoint(self._folder / f"checkpoint-{end}", self.model)

    def _take_steps(
        self,
        step: int,
        end: int,
        targets: Sequence[TaskTarget],
        figures: dict[str, Any],
        tracker: Tracker,
        origin: Origin,
    ) -> None:
        optim = self._config.optim
        usable = [number for number, target in enumerate(targets) if target.kept]
        if not usable:
            raise RunStopped(
                "no task has a target, so that there is nothing to learn from; see the round's mining.json"
            )
        contexts = seen_by_generator(self._world.splits["train"].contexts, self._config)
        if optim.restarts and step % optim.steps_per_round == 0:
            self.model.load_state_dict(KgatModel(self._config.generator, seed=self._config.seed).state_dict())
            self._optimizer = new_optimizer(self.model, optim)
        before, farthest = weights_fingerprint(self.model), 0.0
        with tqdm(total=end, initial=step, desc="kgat", unit="step", disable=not self._shows, mininterval=2) as bar:
            for now in range(step, end):
                chosen = tasks_of_step(now, usable, optim.tasks_per_step, self._config.seed)
                rate = learning_rate_in_round(now, self._config.curriculum.rounds, optim)
                picked = [targets[task] for task in chosen]
                found = optimise_step(self.model, self._optimizer, contexts.select(chosen), picked, optim, rate)
                farthest = max(farthest, found.kl)
                tracker.log(now + 1, figures | found.to_log(), instances=[target.task_id for target in picked])
                figures = {}
                bar.update(1)
                bar.set_postfix(loss=f"{found.loss:.3f}", kl=f"{found.kl:.3f}", refresh=False)
                if (now + 1) % self._config.checkpoints.every == 0 or now + 1 == end:
                    save_checkpoint(self._folder, now + 1, self.model, self._optimizer, origin)
                    drop_passed(self._folder, optim.steps_per_round)
        if farthest > _NOTHING_LEFT and weights_fingerprint(self.model) == before:
            raise RunStopped(
                f"no weight changed in {end - step} steps that had something to learn (kl up to {farthest:.3g}); check "
                "optim.learning_rate and, in metrics.jsonl, train/skipped_steps"
            )

    def _propose(self, number: int) -> Proposals:
        curriculum = self._config.curriculum
        contexts = seen_by_generator(self._world.splits["train"].contexts, self._config)

        def sample(tasks: Sequence[int], seeds: Sequence[int]) -> list[Topology]:
            drawn: list[Topology] = []
            for start in range(0, len(tasks), _DECODED_AT_ONCE):
                part = slice(start, start + _DECODED_AT_ONCE)
                rows = contexts.select(tasks[part])
                drawn += self.model.decode(rows, mode="sample", temperature=curriculum.temperature, seeds=seeds[part])
            return drawn

        hand_made = templates(self.model.rules, self._world.roles)
        return propose(
            len(self._setup.train),
            Mixture(curriculum.candidates, self._pi(number), curriculum.template_share),
            rules=self.model.rules,
            # Debate may exceed the in-degree limit: a draw of it would only be refused.
            templates={name: team for name, team in hand_made.items() if self.model.rules.is_valid(team)},
            random_topology=random_topology,
            sample=sample,
            run_seed=self._config.seed,
            round_number=number,
        )

    def _pi(self, number: int) -> float:
        curriculum = self._config.curriculum
        return pi_of_round(number, curriculum.rounds, first=curriculum.pi_first, last=curriculum.pi_last)

    def _pooled(self) -> list[TaskTarget]:
        return pooled_targets(self._history, self._config)

    def _targets_on_file(self, number: int) -> list[TaskTarget]:
        found = RoundFolder(self._config.run_dir, number).read_targets(self._setup.train.task_ids)
        if found is None:
            raise ValueError(
                f"{RoundFolder(self._config.run_dir, number).targets_file} is missing, and a later checkpoint was "
                "trained on it: put the file back, or start over with --fresh"
            )
        return found

    def _bar(self, number: int) -> Callable[[int, int], None]:
        bar: list[Any] = []

        def on_task(done: int, total: int) -> None:
            if not bar:
                bar.append(
                    tqdm(
                        desc=f"mining, round {number}", unit="task", total=total, disable=not self._shows, mininterval=2
                    )
                )
            bar[0].update(1)
            if done == total:
                bar[0].close()

        return on_task


def seen_by_generator(contexts: ContextBatch, config: KgatConfig) -> ContextBatch:
    """Return what the generator is conditioned on: contexts, or their queries alone."""
    return contexts if config.conditioning == "evidence" else contexts.without_evidence()


def pooled_targets(history: Sequence[Sequence[TaskTarget]], config: KgatConfig) -> list[TaskTarget]:
    """Return each task's target after some rounds: of the last, or of all so far, as the configuration says.

    Args:
        history: Round to its targets, in the order of the tasks; at least one round.
        config: Memory, temperature and prices.
    """
    if config.mining.memory == "round":
        return list(history[-1])
    rule, temperature = config.score.rule(), config.mining.target_temperature
    adds_up = config.mining.rescore_replicates > 0  # each round's fresh replicates are draws of their own
    return [
        pool_targets(list(found), rule=rule, temperature=temperature, adds_up=adds_up)
        for found in zip(*history, strict=True)
    ]


def checkpoint_of_round(folder: Path, number: int, steps_per_round: int) -> Path:
    """Return where the checkpoint at the end of a round lies.

    Args:
        folder: Of all checkpoints.
        number: Of the round, from 0.
        steps_per_round: Optimiser steps in each.
    """
    return folder / f"checkpoint-{(number + 1) * steps_per_round}"
