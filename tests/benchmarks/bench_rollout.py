"""Episodes per second of our roll-out against those of TRL's own ``environment_factory`` tool loop.

Both play the same episodes with the same model, greedy, one thread, in turns. Before anything is timed, the two are
compared id by id: every episode's prompt and everything up to and including its stop must be equal.

Run by hand: ``python -m tests.benchmarks.bench_rollout tiny``; ``make bench`` calls :func:`measure`.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tests.benchmarks.tool_call_policy import ToolCallPolicy, cloned_smollm2, cloned_tiny, dialogue_of, draw_tasks
from tests.benchmarks.trl_tool_loop import Elapsed, Stopwatch, TrlRollout, TrlToolLoop

from provgym.generators.chat_actions import TOOL_INSTRUCTIONS
from provgym.generators.engine import Sampling
from provgym.generators.episode import Episode, EpisodeTask
from provgym.generators.hf_engine import HFEngine
from provgym.generators.rollout import LanguageModelPolicy

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Workload:
    """What is played: the step of the shipped configuration of the same name.

    Attributes:
        instances: Different instances.
        group_size: Equal episodes of each (greedy, so they really are equal).
        budget: B.
        repeats: Plays of each side that are timed.
    """

    instances: int
    group_size: int
    budget: int
    repeats: int


WORKLOADS = {
    "tiny": Workload(instances=8, group_size=8, budget=6, repeats=3),
    "smollm2": Workload(instances=2, group_size=4, budget=3, repeats=3),
}


class OurRollout(NamedTuple):
    """What our roll-out played.

    Attributes:
        episodes: In the order of the tasks.
        time: From the first task to the last episode, the engine's construction included.
        passes: Forward passes of the model.
        tokens: Tokens in them that were kept.
        missed_guesses: Tokens in them that were guessed in vain.
    """

    episodes: list[Episode]
    time: Elapsed
    passes: int
    tokens: int
    missed_guesses: int


def play_ours(policy: ToolCallPolicy, tasks: Sequence[EpisodeTask]) -> OurRollout:
    """Play tasks greedily, as training does: a new engine, all episodes at once."""
    dialogue = dialogue_of(policy.tokenizer)
    stopwatch = Stopwatch()
    engine = HFEngine(policy.model, max_rows=len(tasks))
    player = LanguageModelPolicy("ours", engine, dialogue, Sampling(0.0), instructions=TOOL_INSTRUCTIONS)
    episodes = player.play(tasks)
    elapsed = stopwatch.read()
    return OurRollout(episodes, elapsed, engine.forward_passes, engine.forward_tokens, engine.missed_guesses)


def build_loop(
    policy: ToolCallPolicy, tasks: Sequence[EpisodeTask], episodes: Sequence[Episode], *, can_end: bool
) -> TrlToolLoop:
    """Build TRL's loop with room for the longest action in every turn, and for what the world says in between."""
    actions = (max(task.budget for task in tasks) + 1) * dialogue_of(policy.tokenizer).max_action_tokens
    world = max(t.mask.count(0) for episode in episodes if (t := episode.tokens) is not None)
    return TrlToolLoop(policy.model, policy.tokenizer, tasks, max_completion_tokens=actions + world, can_end=can_end)


def check_equal(ours: Sequence[Episode], theirs: TrlRollout, *, can_end: bool) -> None:
    """Compare both sides' episodes id by id.

    Args:
        ours: Our episodes.
        theirs: TRL's, in the same order.
        can_end: Whether TRL's end at the stop; if not, what it generated afterwards is not looked at.

    Raises:
        AssertionError: If a prompt, a completion or a mask differs, naming the episode and the first place.
    """
    for number, episode in enumerate(ours):
        tokens = episode.tokens
        assert tokens is not None
        end = None if can_end else len(tokens.completion_ids)
        for what, mine, other in (
            ("prompt", tokens.prompt_ids, theirs.prompt_ids[number]),
            ("completion", tokens.completion_ids, theirs.completion_ids[number][:end]),
            ("mask", tokens.mask, theirs.mask[number][:end]),
        ):
            if list(mine) != list(other):
                pairs = enumerate(zip(mine, other, strict=False))
                place = next((i for i, (a, b) in pairs if a != b), min(len(mine), len(other)))
                raise AssertionError(
                    f"episode {number} ({episode.instance_id}): the {what} differs at {place}, ours "
                    f"{list(mine[place : place + 8])}, TRL's {list(other[place : place + 8])}"
                )


def speedup_figure(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Return the median of the paired ratios of seconds as ``{value, low, high, n}``; low and high are the extremes."""
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    return {"value": statistics.median(ratios), "low": min(ratios), "high": max(ratios), "n": len(ratios)}


def compare(
    policy: ToolCallPolicy, workload: Workload, on_play: Callable[[str, float], None] | None = None
) -> dict[str, Any]:
    """Check equality and measure both sides in turns.

    Returns:
        ``speedup``: TRL's time without its generation after the stop, over ours; the same with that generation; the
        same in CPU time, which other processes on the machine disturb less; and what each side computed.
    """
    torch.set_num_threads(1)
    tasks = draw_tasks(0, workload.budget, workload.instances, workload.group_size)
    warm = play_ours(policy, tasks)
    build_loop(policy, tasks[:2], warm.episodes, can_end=True).play()  # compiles templates
    ending = build_loop(policy, tasks, warm.episodes, can_end=True)
    going_on = build_loop(policy, tasks, warm.episodes, can_end=False)
    times: dict[str, list[Elapsed]] = {"ours": [], "trl": [], "trl_with_generation_after_stop": []}
    for _ in range(workload.repeats):
        gc.collect()
        theirs = ending.play()
        ours = play_ours(policy, tasks)
        longer = going_on.play()
        check_equal(ours.episodes, theirs, can_end=True)
        check_equal(ours.episodes, longer, can_end=False)
        for name, took in (("trl", theirs.time), ("ours", ours.time), ("trl_with_generation_after_stop", longer.time)):
            times[name].append(took)
            if on_play is not None:
                on_play(name, took.seconds)
    seconds = {name: [took.seconds for took in taken] for name, taken in times.items()}
    cpu_seconds = {name: [took.cpu_seconds for took in taken] for name, taken in times.items()}
    return {
        "speedup": speedup_figure(seconds["ours"], seconds["trl"]),
        "speedup_with_generation_after_stop": speedup_figure(
            seconds["ours"], seconds["trl_with_generation_after_stop"]
        ),
        "speedup_in_cpu_time": speedup_figure(cpu_seconds["ours"], cpu_seconds["trl"]),
        "episodes": len(tasks),
        "episodes_per_s": {name: len(tasks) / statistics.median(found) for name, found in seconds.items()},
        "passes": {"ours": ours.passes, "trl": theirs.passes},
        "tokens_computed": {"ours": ours.tokens + ours.missed_guesses, "trl": theirs.tokens},
        "endings": _count([episode.outcome.ending.value for episode in ours.episodes]),
        "walks_per_episode": statistics.mean(episode.outcome.walks for episode in ours.episodes),
    }


def measure(
    name: str,
    cache: Path,
    *,
    on_step: Callable[[int, float], None] | None = None,
    on_play: Callable[[str, float], None] | None = None,
) -> dict[str, Any]:
    """Make the policy (or take it from ``cache``) and compare.

    Args:
        name: ``tiny`` or ``smollm2``.
        cache: Folder of cloned policies.
        on_step: Called with (step, loss) while a policy is cloned.
        on_play: Called with (side, seconds) after each play.
    """
    torch.set_num_threads(1)
    make = cloned_tiny if name == "tiny" else cloned_smollm2
    return compare(make(cache, on_step=on_step), WORKLOADS[name], on_play)


def _count(names: Sequence[str]) -> dict[str, int]:
    return {name: names.count(name) for name in sorted(set(names))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policy", choices=sorted(WORKLOADS))
    parser.add_argument("--cache", type=Path, default=REPOSITORY / "runs" / "bench" / "policies")
    options = parser.parse_args()
    print(json.dumps(measure(options.policy, options.cache, on_step=print, on_play=print), indent=2))
