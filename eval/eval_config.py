"""What every evaluation is told: where its instances come from, how they are shown, how often, under which seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from provgym.envs.presentation import Mitigation
from provgym.envs.provenance import Instance
from provgym.envs.walk_names import SourceLabels
from provgym.generators.claim_files import ReadMode, read_claims
from provgym.generators.conditions import CONFLICT_CONDITIONS, GENERAL, parse_condition
from provgym.generators.graphecho import SPLITS, GraphEcho
from provgym.generators.scifact import load_scifact

SplitName = Literal["train", "dev", "test"]


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


class EvalConfig(_Model):
    """What a walk evaluation and a judgement evaluation have in common.

    Attributes:
        default_conditions: What ``conditions: null`` means for generated claims.
        claims: Where instances come from.
        split: Which split is played; SciFact claims count as ``test``.
        conditions: Condition names. None means ``default_conditions`` for generated claims, and every instance of the
            split for files and SciFact; names given there keep the instances so labelled.
        general_draws: General instances of each generated claim, beside ``conditions``; 0 for none.
        mitigations: M0 to M3; each plays every instance.
        source_labels: See :class:`~provgym.envs.presentation.PresentationConfig`.
        max_content_characters: See there.
        decoding: How the policy is to choose tokens; whoever builds the policy follows it.
        samples: Episodes per instance; above 1 only when sampled.
        seed: Run seed of presentation, sampling and resampling.
        limit: Only the first so many base claims.
        resamples: Bootstrap resamples.
    """

    default_conditions: ClassVar[tuple[str, ...]] = CONFLICT_CONDITIONS

    claims: Annotated[GraphEchoClaims | ClaimFiles | ScifactClaims, Field(discriminator="kind")] = Field(
        default_factory=GraphEchoClaims
    )
    split: SplitName = "test"
    conditions: tuple[str, ...] | None = None
    general_draws: int = Field(default=1, ge=0, le=1_000)
    mitigations: tuple[Mitigation, ...] = Field(default=("M1",), min_length=1)
    source_labels: SourceLabels = "short"
    max_content_characters: int = Field(default=2_000, ge=40)
    decoding: Literal["greedy", "sampled"] = "greedy"
    samples: int = Field(default=1, ge=1, le=1_000)
    seed: int = Field(default=42, ge=0)
    limit: int | None = Field(default=None, ge=1)
    resamples: int = Field(default=2_000, ge=1)

    @field_validator("conditions", "mitigations", "budgets", check_fields=False)
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
        if not isinstance(self.claims, GraphEchoClaims):
            if self.conditions == ():
                raise ValueError(
                    "conditions is empty: nothing would be played of claims that are read from files; name labels that "
                    "stand there, or leave conditions out for all"
                )
            return self
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
        return self.default_conditions if self.conditions is None else self.conditions


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
        >>> config_hash(EvalConfig()) == config_hash(EvalConfig(seed=42))
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


def load_instances(config: EvalConfig) -> LoadedInstances:
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


def _load(config: EvalConfig) -> LoadedInstances:
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


def _choose(config: EvalConfig, instances: Sequence[Instance], name: str) -> list[Instance]:
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
