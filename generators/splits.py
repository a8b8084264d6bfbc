"""Splits must not leak: no base claim, entity or source may stand in two of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from provgym.envs.provenance import Instance


def check_splits(rows: Iterable[tuple[str, str, Sequence[str], Sequence[str]]]) -> None:
    """Refuse data whose splits share a claim, an entity or a source.

    Args:
        rows: (split, claim id, entities, source ids) of each claim or instance.

    Raises:
        ValueError: Naming what leaks, and between which splits.
    """
    seen: dict[tuple[str, str], str] = {}
    for split, claim_id, entities, sources in rows:
        keys = [("claim", claim_id), *(("entity", e) for e in entities), *(("source", s) for s in sources)]
        for what, name in keys:
            other = seen.setdefault((what, name), split)
            if other != split:
                raise ValueError(
                    f"{what} {name!r} stands in split {other!r} and in split {split!r}; "
                    "move everything that shares it into one split"
                )


def check_instances(instances: Iterable[Instance]) -> None:
    """Apply :func:`check_splits` to instances of any splits."""
    check_splits((i.split, i.base_claim.claim_id, i.base_claim.entities, i.graph.sources) for i in instances)
