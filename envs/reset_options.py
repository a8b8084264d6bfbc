"""The options that environments take at ``reset``: which instance to play, and those of the walks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from provgym.envs.provenance import Instance
from provgym.envs.walk import MAX_BUDGET

RESET_OPTIONS = ("instance", "budget")
Item = TypeVar("Item")


def check_instances_and_budget(instances: Sequence[Instance], budget: int) -> None:
    """Refuse an empty instance set and an impossible budget, before any episode.

    Raises:
        ValueError: If there is no instance, or the budget is not in [1, 10000].
    """
    if len(instances) == 0:
        raise ValueError("instances is empty; there is nothing to walk")
    if not 1 <= budget <= MAX_BUDGET:
        raise ValueError(f"budget={budget} must lie in [1, {MAX_BUDGET}] walks")


def read_reset_options(
    options: Mapping[str, Any] | None, instances: Sequence[Instance], budget: int, rng: np.random.Generator
) -> tuple[Instance, int]:
    """Return the instance and the budget of the next episode.

    Args:
        options: ``instance`` (an index or an instance id) and ``budget`` (walks), each optional; never changed.
        instances: What to choose from; without an ``instance`` one is drawn.
        budget: Walks allowed unless ``options`` says otherwise.
        rng: Draws the instance; untouched if ``options`` names one.

    Raises:
        ValueError: If an option is unknown, of the wrong type or out of range.
    """
    if not options:
        return choose_item("instance", None, instances, _id_of, rng), budget
    refuse_unknown_options(options, RESET_OPTIONS)
    instance = choose_item("instance", options.get("instance"), instances, _id_of, rng)
    given = options.get("budget")
    return instance, budget if given is None else _integer("budget", given, 1, MAX_BUDGET)


def refuse_unknown_options(options: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse options of ``reset`` that the environment does not know.

    Raises:
        ValueError: Naming the options and the known ones.
    """
    unknown = sorted(str(key) for key in options if key not in known)
    if unknown:
        raise ValueError(f"reset options {unknown} are unknown; known are {list(known)}")


def choose_item(
    key: str, wanted: Any, items: Sequence[Item], id_of: Callable[[Item], str], rng: np.random.Generator
) -> Item:
    """Return the item that an option names, or a drawn one.

    Args:
        key: The option's name.
        wanted: Its value: an index, an id, or None for any item.
        items: What to choose from, at least one.
        id_of: An item's id.
        rng: Draws the item; untouched if ``wanted`` names one.

    Raises:
        ValueError: If the value names no item.
    """
    if wanted is None:
        return items[int(rng.random() * len(items))]
    if not isinstance(wanted, str):
        return items[_integer(key, wanted, 0, len(items) - 1)]
    for item in items:
        if id_of(item) == wanted:
            return item
    raise ValueError(
        f"options[{key!r}]={wanted!r} is no {key} id of this environment; "
        f"it has {len(items)}, the first is {id_of(items[0])!r}"
    )


def _id_of(instance: Instance) -> str:
    return instance.instance_id


def _integer(key: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise ValueError(f"options[{key!r}]={value!r} must be an integer in [{low}, {high}]")
    return int(value)
