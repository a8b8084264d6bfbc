"""What a walk evaluation plays: its configuration, the instances it asks for, and their tasks with seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from provgym.envs.presentation import AliasOrder, Mitigation, MovesStyle, PresentationConfig, SourceLabels
from provgym.envs.provenance import Instance
from provgym.envs.walk import MAX_BUDGET
from provgym.generators.claim_files import ReadMode, read_claims
from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL, parse_condition
from provgym.generators.episode import Episode, EpisodeTask
from provgym.generators.graphecho import SPLITS, GraphEcho
from provgym.generators.scifact import load_scifact
from provgym.generators.seeds import SPLIT_NUMBERS, Purpose, derive_seed

SplitName = Literal["train", "dev", "test"]
TaskKey = tuple[str, str, int, int]
"""(instance id, mitigation, budget, member): what makes an episode of one evaluation unique."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GraphEchoClaims(_Model):
    """Generated claims: the same seed and sizes as in training give training's held-out splits."""

    kind: Literal["graphecho"] = "graphecho"
    seed: int = Field(default=42, ge=0)
    splits: dict[str, int] = Field(default_factory=lambda: dict(SPLITS))


class ClaimFiles(_Model):
    """Instances from claim files; see ``docs/claim_files.md``."""

    kind: Literal["files"] = "files"
    paths: tuple[Path, ...] = Field(min_length=1)
    mode: ReadMode = "strict"


class ScifactClaims(_Model):
    """Official SciFact files in one folder: a claims file and ``corpus.jsonl``."""

    kind: Literal["scifact"] = "scifact"
    folder: Path
    claims_file: str = "claims_dev.jsonl"
    mode: ReadMode = "strict"


class WalkEvalConfig(_Model):
    """A walk evaluation.

    Attributes:
        claims: Where instances come from.
        split: Which split is played; SciFact claims count as ``test``.
        conditions: Condition names. None means the five conflict conditions for generated claims, and every
            instance of the split for files and SciFact; names given there keep the instances so labelled.
        general_draws: General instances of each generated claim, beside ``conditions``; 0 for none.
        mitigations: M0 to M3; each plays every instance.
        budgets: Walks allowed; each plays every instance.
        source_labels: See :class:`~provgym.envs.presentation.PresentationConfig`.
        preview_ids: See there.
        moves: See there.
        aliases: See there.
        max_content_characters: See there.
        decoding: How the policy is to choose tokens; whoever builds the policy follows it.
        samples: Episodes per instance; above 1 only when sampled.
        seed: Run seed of presentation, sampling and resampling.
        limit: Only the first so many base claims.
        resamples: Bootstrap resamples.
    """

    claims: Annotated[GraphEchoClaims | ClaimFiles | ScifactClaims, Field(discriminator="kind")] = Field(
        default_factory=GraphEchoClaims
    )
    split: SplitName = "test"
    conditions: tuple[str, ...] | None = None
    general_draws: int = Field(default=1, ge=0, le=1_000)
    mitigations: tuple[Mitigation, ...] = Field(default=("M1",), min_length=1)
    budgets: tuple[Annotated[int, Field(ge=1, le=MAX_BUDGET)], ...] = Field(default=(6,), min_length=1)
    source_labels: SourceLabels = "short"
    preview_ids: Literal["shown", "visited"] = "shown"
    moves: MovesStyle = "labelled"
    aliases: AliasOrder = "discovery"
    max_content_characters: int = Field(default=2_000, ge=40)
    decoding: Literal["greedy", "sampled"] = "greedy"
    samples: int = Field(default=1, ge=1, le=1_000)
    seed: int = Field(default=42, ge=0)
    limit: int | None = Field(default=None, ge=1)
    resamples: int = Field(default=2_000, ge=1)

    @field_validator("conditions", "mitigations", "budgets")
    @classmethod
    def _distinct(cls, value: tuple[object, ...] | None) -> tuple[object, ...] | None:
        if value is not None and len(set(value)) < len(value):
            raise ValueError(f"{list(value)} names something twice; name each once")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.samples > 1 and self.decoding == "greedy":
            raise ValueError(
                f"samples={self.samples} with greedy decoding would play one episode {self.samples} times; "
                "set decoding: sampled, or samples: 1"
            )
        if isinstance(self.claims, GraphEchoClaims):
            for name in self.graphecho_conditions:
                if name == GENERAL:
                    raise ValueError(f"condition {GENERAL!r} is asked for by general_draws, not in conditions")
                parse_condition(name)
            if not self.graphecho_conditions and not self.general_draws:
                raise ValueError("conditions is empty and general_draws=0: there is nothing to play")
        return self

    @property
    def graphecho_conditions(self) -> tuple[str, ...]:
        """Condition names for generated claims."""
        return CONFLICT_CONDITIONS if self.conditions is None else self.conditions

    def presentation(self, mitigation: Mitigation) -> PresentationConfig:
        """Return how walks are shown under one mitigation."""
        return PresentationConfig(
            mitigation, self.source_labels, self.preview_ids, self.moves, self.max_content_characters, self.aliases
        )


class LoadedInstances(NamedTuple):
    """Instances to play, and what a loader left out.

    Attributes:
        instances: Claim by claim.
        report: A file loader's account, as lines for a terminal; empty for generated claims.
        left_out: Reason to number of claims or lines left out.
    """

    instances: list[Instance]
    report: str = ""
    left_out: Mapping[str, int] = MappingProxyType({})


def config_hash(config: BaseModel) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of a config's canonical JSON.

    Example:
        >>> config_hash(WalkEvalConfig()) == config_hash(WalkEvalConfig(seed=42))
        True
    """
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def instances_hash(instances: Sequence[Instance]) -> str:
    """Return 12 hexadecimal digits over what is to be judged, so that changed data is noticed on resuming."""
    digest = hashlib.sha256()
    for instance in instances:
        atoms = [(atom.source_id, atom.stance.value, atom.text) for atom in instance.graph.atoms]
        routes = [(route.route_id, route.atom_id, route.kind) for route in instance.graph.routes]
        row = (instance.instance_id, instance.gold.value, instance.base_claim.text, atoms, routes)
        digest.update(json.dumps(row).encode("ascii"))
    return digest.hexdigest()[:12]


def load_instances(config: WalkEvalConfig) -> LoadedInstances:
    """Return the instances that a config asks for.

    Raises:
        ValueError: If the split or a condition has no instance, or a file is bad; the message names it.
        FileNotFoundError: If a file does not exist.
    """
    loaded = _load(config)
    if config.limit is None:
        return loaded
    kept = set(list(dict.fromkeys(i.base_claim.claim_id for i in loaded.instances))[: config.limit])
    return loaded._replace(instances=[i for i in loaded.instances if i.base_claim.claim_id in kept])


def build_tasks(config: WalkEvalConfig, instances: Sequence[Instance]) -> list[EpisodeTask]:
    """Return the tasks of an evaluation: mitigation by mitigation, budget by budget, instance by instance.

    The presentation depends on the run seed and the instance alone, so that policies, budgets and mitigations
    meet one instance in the same order of neighbours; sampling depends on everything that tells tasks apart.

    Raises:
        ValueError: If an instance id stands twice, or a split is unknown.
    """
    seen: set[str] = set()
    for instance in instances:
        if instance.instance_id in seen:
            raise ValueError(f"instance id {instance.instance_id!r} appears twice; give every instance its own")
        seen.add(instance.instance_id)
    return [
        _task(config, instance, mitigation, budget, member)
        for mitigation in config.mitigations
        for budget in config.budgets
        for instance in instances
        for member in range(config.samples)
    ]


def task_key(task: EpisodeTask) -> TaskKey:
    """Return what tells a task from the others of its evaluation."""
    return task.instance.instance_id, task.presentation.mitigation, task.budget, task.member


def episode_key(episode: Episode) -> TaskKey:
    """Return the key of the task that an episode played."""
    return episode.instance_id, episode.mitigation, episode.outcome.budget, episode.member


def instance_number(instance_id: str) -> int:
    """Return a stable 64-bit number of an instance id, for seed keys.

    Example:
        >>> instance_number("syn-00001/C1") == instance_number("syn-00001/C2")
        False
    """
    return int.from_bytes(hashlib.sha256(instance_id.encode("utf-8", "surrogatepass")).digest()[:8])


def _task(config: WalkEvalConfig, instance: Instance, mitigation: Mitigation, budget: int, member: int) -> EpisodeTask:
    if instance.split not in SPLIT_NUMBERS:
        raise ValueError(
            f"instance {instance.instance_id!r} is of split {instance.split!r}, expected one of {sorted(SPLIT_NUMBERS)}"
        )
    key = (SPLIT_NUMBERS[instance.split], instance_number(instance.instance_id))
    setting = (int(mitigation[1:]), budget, member)
    return EpisodeTask(
        instance=instance,
        budget=budget,
        presentation=config.presentation(mitigation),
        presentation_seed=derive_seed(config.seed, Purpose.PRESENTATION, *key),
        sampling_seed=derive_seed(config.seed, Purpose.SAMPLING, *key, *setting),
        member=member,
    )


def _load(config: WalkEvalConfig) -> LoadedInstances:
    claims = config.claims
    if isinstance(claims, GraphEchoClaims):
        source = GraphEcho.generate(claims.seed, claims.splits)
        instances = source.instances(config.split, config.graphecho_conditions)
        for draw in range(config.general_draws):
            instances += source.instances(config.split, [GENERAL], draw=draw)
        return LoadedInstances(instances)
    if isinstance(claims, ClaimFiles):
        found, account = read_claims(*claims.paths, mode=claims.mode)
        left_out = {"bad lines": account.bad_total} if account.bad_total else {}
        name = ", ".join(str(path) for path in claims.paths)
        return LoadedInstances(_choose(config, found, name), account.text(), left_out)
    data = load_scifact(
        claims.folder / claims.claims_file, claims.folder / "corpus.jsonl", split="test", mode=claims.mode
    )
    name = str(claims.folder / claims.claims_file)
    return LoadedInstances(_choose(config, data.instances, name), data.report.text(), data.report.left_out)


def _choose(config: WalkEvalConfig, instances: Sequence[Instance], name: str) -> list[Instance]:
    """Keep the split and the named conditions of a file's instances."""
    of_split = [i for i in instances if i.split == config.split]
    if instances and not of_split:
        raise ValueError(
            f"{name} has no instance of split {config.split!r}; it has {sorted({i.split for i in instances})}"
        )
    if config.conditions is None:
        return of_split
    labels = {i.condition for i in of_split}
    absent = [label for label in config.conditions if label not in labels]
    if absent and of_split:
        raise ValueError(f"{name} has no instance of conditions {absent}; it has {sorted(labels)}")
    return [i for i in of_split if i.condition in config.conditions]
