"""The options that both walk environments take at ``reset``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from provgym.envs.provenance import Instance
from provgym.envs.walk import MAX_BUDGET

RESET_OPTIONS = ("instance", "budget")


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
        return instances[int(rng.random() * len(instances))], budget
    unknown = sorted(str(key) for key in options if key not in RESET_OPTIONS)
    if unknown:
        raise ValueError(f"reset options {unknown} are unknown; known are {list(RESET_OPTIONS)}")
    wanted = options.get("instance")
    if wanted is None:
        instance = instances[int(rng.random() * len(instances))]
    elif isinstance(wanted, str):
        instance = _by_id(wanted, instances)
    else:
        instance = instances[_integer("instance", wanted, 0, len(instances) - 1)]
    given = options.get("budget")
    return instance, budget if given is None else _integer("budget", given, 1, MAX_BUDGET)


def _by_id(instance_id: str, instances: Sequence[Instance]) -> Instance:
    for instance in instances:
        if instance.instance_id == instance_id:
            return instance
    raise ValueError(
        f"options['instance']={instance_id!r} is no instance id of this environment; "
        f"it has {len(instances)}, the first is {instances[0].instance_id!r}"
    )


def _integer(key: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise ValueError(f"options[{key!r}]={value!r} must be an integer in [{low}, {high}]")
    return int(value)
