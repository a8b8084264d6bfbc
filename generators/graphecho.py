"""GraphEcho-Syn: fictional claims whose evidence can be repeated without adding a source.

Every claim has five supporting and five refuting atoms, each with its own source id, and each met by up to
five routes of different representation kinds. A claim's wording and its two evidence wordings are fixed:
conditions change only which source each route belongs to.

Source: GraphEcho, arXiv:2609.17695, section 3.2; verbs, measures and names are ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from provgym.envs.provenance import REPRESENTATION_KINDS, Atom, Claim, EvidenceGraph, Instance, Route, Stance
from provgym.generators.conditions import (
    GENERAL,
    GENERAL_KINDS,
    MAX_SOURCES,
    Condition,
    draw_condition,
    parse_condition,
)
from provgym.generators.seeds import Purpose, derive_rng
from provgym.generators.splits import check_splits

SPLITS: Mapping[str, int] = {"train": 500, "dev": 100, "test": 200}
"""Base claims of each split in the paper."""

MAX_CLAIMS = 500_000
"""Most base claims of one set (ours): a larger one does not fit into a laptop's memory."""

DOMAINS: Mapping[str, tuple[str, ...]] = {
    "biomedicine": ("survival", "clearance", "tolerance", "uptake"),
    "materials": ("hardness", "strength", "conductivity", "lifetime"),
    "agriculture": ("yield", "growth", "germination", "resistance"),
    "economics": ("output", "demand", "turnover", "investment"),
}
UP = (("raises", "raised"), ("increases", "increased"), ("improves", "improved"), ("boosts", "boosted"))
DOWN = (("lowers", "lowered"), ("reduces", "reduced"), ("weakens", "weakened"), ("cuts", "cut"))
NAME_STARTS = tuple(a + b + c for a in "bdfglmnrtv" for b in "aeiou" for c in "lnrsx")
NAME_ENDS = tuple(a + b + c for a in "dkmtv" for b in "aeio" for c in "nmr")
PERCENTS = tuple(range(3, 48))
REAL_WORDS = frozenset(
    """balkan banker banter barker barman barmen barter barton binder bolder bolton border boston bunker
    burden burton buster dalton dander darken darker denver dexter duster farmer faster fender fervor fester
    filter finder folder former foster galvan gander garden garter gender german girder golden gordon
    lander larder lender linden linker listen lister london lurker luster marker marten martin marvin
    master melvin mender mentor merman milder milton minder minter mister molten mormon mortar mortem
    morton murder muster norman norton random ranter raster render renter roster tandem tanker tartan
    tartar tasman taxman tender tendon tester tinder vander vendor vermin""".split()
)
"""Words and names of this world that the pieces happen to spell; they name no invented entity."""


class BaseClaim(NamedTuple):
    """A claim and its pool: one wording for support, one for refutation, ten source ids."""

    claim: Claim
    split: str
    texts: tuple[str, str]  # support, refute
    sources: tuple[str, ...]  # five supporting, then five refuting


@dataclass(frozen=True)
class GraphEcho:
    """A set of base claims; instances are drawn from it.

    Attributes:
        claims: Base claims of all splits, in order.
        seed: What they were generated from.
    """

    claims: tuple[BaseClaim, ...]
    seed: int

    @classmethod
    def generate(cls, seed: int = 42, splits: Mapping[str, int] = SPLITS) -> GraphEcho:
        """Generate base claims; the same seed and sizes give the same claims.

        Args:
            seed: Any integer >= 0.
            splits: Base claims per split, at most ``MAX_CLAIMS`` in all.

        Raises:
            ValueError: If a size is negative, all are 0, there are more than ``MAX_CLAIMS`` in all, or splits share a
                claim, an entity or a source.
        """
        if any(size < 0 for size in splits.values()) or not any(splits.values()):
            raise ValueError(f"splits {dict(splits)} must hold sizes >= 0, one of them positive")
        if sum(splits.values()) > MAX_CLAIMS:
            raise ValueError(
                f"splits {dict(splits)} hold {sum(splits.values())} claims, expected at most {MAX_CLAIMS}: they are "
                "held in memory; ask for fewer, or for several sets under different seeds"
            )
        rng = derive_rng(seed, Purpose.CLAIMS)
        names = _names(rng)
        split_of = [split for split, size in splits.items() for _ in range(size)]
        claims = tuple(_base_claim(rng, number, split, names) for number, split in enumerate(split_of))
        check_splits((c.split, c.claim.claim_id, c.claim.entities, c.sources) for c in claims)
        return cls(claims, seed)

    def of_split(self, split: str) -> tuple[BaseClaim, ...]:
        """Return the base claims of one split.

        Raises:
            ValueError: If the split has none.
        """
        found = tuple(c for c in self.claims if c.split == split)
        if not found:
            raise ValueError(f"split {split!r} has no claims; there are {sorted({c.split for c in self.claims})}")
        return found

    def instances(self, split: str, conditions: Sequence[str], *, draw: int = 0) -> list[Instance]:
        """Return every claim of a split under every named condition, claim by claim.

        Args:
            split: ``train``, ``dev`` or ``test``.
            conditions: Names of :mod:`provgym.generators.conditions`; ``general`` is drawn per claim.
            draw: Number of the draw of general conditions: other numbers give other draws of the same claims.
        """
        return [self.instance(base, name, draw=draw) for base in self.of_split(split) for name in conditions]

    def instance(self, base: BaseClaim, condition: str, *, draw: int = 0) -> Instance:
        """Return one claim under one condition; which sources take part is drawn from the claim's own key.

        A named condition is one instance, whatever the draw: all named conditions of a claim draw from one
        stream, so that C1's two atoms stand in C2, C2R, C3 and C4 too.
        """
        number = int(base.claim.claim_id.rsplit("-", 1)[1])
        if condition in GENERAL_KINDS:
            rng = derive_rng(self.seed, Purpose.CONDITION, number, draw)
            drawn = draw_condition(condition, rng)
            return build_instance(base, drawn, rng, f"{base.claim.claim_id}/{GENERAL}-{draw}:{drawn.name}", GENERAL)
        rng = derive_rng(self.seed, Purpose.CONDITION, number, 0)
        return build_instance(base, parse_condition(condition), rng, f"{base.claim.claim_id}/{condition}", condition)


def build_instance(
    base: BaseClaim, condition: Condition, rng: np.random.Generator, instance_id: str, label: str
) -> Instance:
    """Build the evidence graph of one claim under one condition.

    Route slot k of a stance has the same wording and representation kind whichever source it belongs to, so
    that 1S5P and 5S5P differ in source assignment alone.
    """
    atoms: list[Atom] = []
    routes: list[Route] = []
    sides = ((Stance.SUPPORT, condition.supporting, 0), (Stance.REFUTE, condition.refuting, MAX_SOURCES))
    for stance, counts, offset in sides:
        chosen = rng.permutation(MAX_SOURCES)[: len(counts)]
        first_kind = int(rng.integers(len(REPRESENTATION_KINDS)))
        slots: Iterator[int] = itertools.count()
        for place, count in zip(chosen.tolist(), counts, strict=True):
            atom_id = f"{base.claim.claim_id}-{stance.value[0]}{place}"
            atoms.append(Atom(atom_id, base.sources[offset + place], stance, base.texts[offset // MAX_SOURCES]))
            for number, slot in enumerate(itertools.islice(slots, count)):
                kind = REPRESENTATION_KINDS[(first_kind + slot) % len(REPRESENTATION_KINDS)]
                routes.append(Route(f"{atom_id}-{number}", base.claim.claim_id, atom_id, kind))
    graph = EvidenceGraph((base.claim,), tuple(atoms), tuple(routes))
    return Instance(instance_id, graph, label, condition.gold, base.split)


def _names(rng: np.random.Generator) -> Iterator[str]:
    """Yield distinct invented names: two pieces each, three once those run out."""
    for length in itertools.count(2):
        pieces = [NAME_STARTS] + [NAME_ENDS] * (length - 1)
        total = int(np.prod([len(p) for p in pieces]))
        order = rng.permutation(total) if total <= 1_000_000 else np.arange(total)
        for code in order.tolist():
            parts = []
            for options in pieces:
                code, place = divmod(code, len(options))
                parts.append(options[place])
            if "".join(parts) not in REAL_WORDS:
                yield "".join(parts)


def _base_claim(rng: np.random.Generator, number: int, split: str, names: Iterator[str]) -> BaseClaim:
    domain = list(DOMAINS)[rng.integers(len(DOMAINS))]
    measure = DOMAINS[domain][rng.integers(len(DOMAINS[domain]))]
    subject, target = next(names), next(names)
    claim_goes_up = bool(rng.integers(2))
    present = (UP if claim_goes_up else DOWN)[rng.integers(len(UP))][0]
    same = (UP if claim_goes_up else DOWN)[rng.integers(len(UP))][1]
    opposite = (DOWN if claim_goes_up else UP)[rng.integers(len(UP))][1]
    claim_id = f"syn-{number:05d}"
    claim = Claim(claim_id, f"In {domain}, {subject} {present} the {measure} of {target}.", domain, (subject, target))
    texts = tuple(
        f"{subject} {verb} the {measure} of {target} by {PERCENTS[rng.integers(len(PERCENTS))]} percent."
        for verb in (same, opposite)
    )
    letters = rng.permutation(list("ABCDEFGHJK")).tolist()
    sources = tuple(f"study-{number:05d}-{letter}" for letter in letters)
    return BaseClaim(claim, split, (texts[0], texts[1]), sources)
