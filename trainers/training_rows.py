"""Which instance is walked in which step: one row per group, fixed by the seed, independent of processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from provgym.envs.provenance import Instance
from provgym.generators.claim_files import read_claims
from provgym.generators.conditions import ADVERSARIAL, AGREEING, GENERAL
from provgym.generators.episode import EpisodeTask
from provgym.generators.graphecho import GraphEcho
from provgym.generators.seeds import SPLIT_NUMBERS, Purpose, derive_rng, derive_seed
from provgym.trainers.papt_config import DataConfig, PaptConfig


@dataclass(frozen=True)
class ClaimPool:
    """Instances of each split, drawn on demand.

    Attributes:
        num_train: Base claims (or own instances) to train on.
        draw: Returns the instance of (claim number, condition, draw).
        of_split: Returns every instance of a split under the given conditions, general ones drawn ``draws`` times.
    """

    num_train: int
    draw: Callable[[int, str, int], Instance]
    of_split: Callable[[str, tuple[str, ...], int], list[Instance]]
    is_own: bool


def load_pool(config: DataConfig) -> ClaimPool:
    """Generate GraphEcho-Syn, or read a claim file of one's own.

    Raises:
        ValueError: If the file lacks a split.
    """
    if config.claims is not None:
        return _own_pool(config)
    sizes = {"train": config.train_claims, "dev": config.dev_claims, "test": config.test_claims}
    graphecho = GraphEcho.generate(config.seed, sizes)
    train = graphecho.of_split("train")

    def of_split(split: str, conditions: tuple[str, ...], draws: int) -> list[Instance]:
        plain = tuple(c for c in conditions if c != GENERAL)
        found = graphecho.instances(split, plain) if plain else []
        if GENERAL in conditions:
            found += [i for draw in range(draws) for i in graphecho.instances(split, (GENERAL,), draw=draw)]
        return found

    def draw_instance(number: int, condition: str, draw: int) -> Instance:
        return graphecho.instance(train[number], condition, draw=draw)

    return ClaimPool(len(train), draw_instance, of_split, is_own=False)


def _own_pool(config: DataConfig) -> ClaimPool:
    assert config.claims is not None
    instances, _ = read_claims(config.claims)
    by_split = {split: [i for i in instances if i.split == split] for split in SPLIT_NUMBERS}
    # Found out now, not after hours of training, when checkpoints are to be chosen and the result measured.
    for split, use in (("train", "train on"), ("dev", "choose a checkpoint by"), ("test", "measure the result on")):
        if not by_split[split]:
            raise ValueError(f"{config.claims} has no instance with split {split!r}; PAPT needs some to {use}")
    return ClaimPool(
        len(by_split["train"]),
        lambda number, condition, draw: by_split["train"][number],
        lambda split, conditions, draws: by_split[split],
        is_own=True,
    )


@dataclass(frozen=True)
class TrainingRows:
    """The run's groups in order: row i belongs to roll-out ``i // groups_per_step``."""

    config: PaptConfig
    pool: ClaimPool

    def __len__(self) -> int:
        return self.config.total_rollouts * self.config.optim.groups_per_step

    def step_of(self, row: int) -> int:
        """Return the optimiser step (from 0) that a row is played for, the first of those that use it."""
        optim = self.config.optim
        return row // optim.groups_per_step * optim.epochs_per_rollout

    def instance(self, row: int) -> Instance:
        """Return the instance of a row.

        Every claim comes once in an epoch, in a new order each time; conditions have equal parts.
        """
        epoch, place = divmod(row, self.pool.num_train)
        seed, data = self.config.seed, self.config.data
        order = derive_rng(seed, Purpose.TRAINING_MIX, 0, epoch).permutation(self.pool.num_train)
        names = _conditions_of_epoch(
            seed, epoch, self.pool.num_train, data.general_share, data.adversarial_share, data.conditions
        )
        # Draw 0.. are the evaluation's draws of general conditions; training draws are numbered apart from them.
        return self.pool.draw(int(order[place]), names[place], 1_000 + epoch)

    def task(self, row: int, member: int) -> EpisodeTask:
        """Return the episode of one group member; presentation and budget are the group's, sampling its own."""
        config = self.config
        budgets, presentations = config.walk.budgets, config.walk.training_presentations()
        rng = derive_rng(config.seed, Purpose.PRESENTATION, SPLIT_NUMBERS["train"], row)
        budget = budgets[int(rng.integers(len(budgets)))]
        presentation_seed = int(rng.integers(2**62))
        return EpisodeTask(
            instance=self.instance(row),
            budget=budget,
            presentation=presentations[
                int(rng.integers(len(presentations)))
            ],  # drawn last: the others stay as they were
            presentation_seed=presentation_seed,
            sampling_seed=derive_seed(config.seed, Purpose.SAMPLING, SPLIT_NUMBERS["train"], row, member),
            member=member,
        )


@lru_cache(maxsize=64)
def _conditions_of_epoch(
    seed: int, epoch: int, count: int, general_share: float, adversarial_share: float | None, names: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the conditions of an epoch's ``count`` rows: the general share, and equal parts of the named ones.

    What does not divide evenly is carried into the next epoch, so that the parts stay equal in the long run.
    """
    before, after = (round(e * count * (general_share if names else 1.0)) for e in (epoch, epoch + 1))
    general = after - before
    first = epoch * count - before  # named rows of earlier epochs
    slots = _general_kinds(before, after, adversarial_share)
    slots += [names[(first + i) % len(names)] for i in range(count - general)]
    order = derive_rng(seed, Purpose.TRAINING_MIX, 1, epoch).permutation(count)
    return tuple(slots[i] for i in order)


def _general_kinds(before: int, after: int, adversarial_share: float | None) -> list[str]:
    """Return the kinds of the general rows number ``before`` to ``after`` of a run."""
    if adversarial_share is None:
        return [GENERAL] * (after - before)
    adversarial = round(after * adversarial_share) - round(before * adversarial_share)
    return [ADVERSARIAL] * adversarial + [AGREEING] * (after - before - adversarial)
