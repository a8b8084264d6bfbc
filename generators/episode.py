"""Episodes: what is to be played, what was played, and who can play it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from provgym.envs.presentation import PresentationConfig
from provgym.envs.provenance import Instance
from provgym.envs.walk_text import GraphWalkTextEnv, TraceEntry
from provgym.rewards.outcome import WalkOutcome, outcome_as_dict, outcome_from_dict


@dataclass(frozen=True, slots=True)
class EpisodeTask:
    """One episode to play.

    Attributes:
        instance: What to walk.
        budget: B, walks allowed.
        presentation: How the walk is shown.
        presentation_seed: Orders neighbours and labels; the members of a group share it.
        sampling_seed: Drives token sampling (or a scripted policy's choices); differs between members.
        member: Number within the group of trajectories of one instance.
    """

    instance: Instance
    budget: int
    presentation: PresentationConfig
    presentation_seed: int
    sampling_seed: int
    member: int = 0

    def environment(self) -> GraphWalkTextEnv:
        """Return the environment that the episode is played in, not yet begun; other tasks have other ones."""
        return GraphWalkTextEnv([self.instance], budget=self.budget, presentation=self.presentation)


@dataclass(frozen=True, slots=True)
class Turn:
    """What the agent was shown, and what it wrote."""

    observation: str
    action: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """The very ids of an episode, as sampled and as appended.

    Attributes:
        prompt_ids: Everything before the first sampled token.
        completion_ids: Sampled tokens and, between them, the world's.
        mask: 1 for a sampled token, 0 for the world's; as long as ``completion_ids``.
        logprobs: Log-probability of each sampled token under the policy at the sampling temperature, 0.0 for the
            world's; as long as ``completion_ids``.

    Raises:
        ValueError: If the three lengths differ.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.completion_ids) == len(self.mask) == len(self.logprobs):
            raise ValueError(
                f"completion_ids, mask and logprobs must be equally long, found {len(self.completion_ids)}, "
                f"{len(self.mask)} and {len(self.logprobs)}"
            )

    @property
    def sampled(self) -> int:
        """Tokens that the policy sampled."""
        return sum(self.mask)


def last_action(mask: Sequence[int]) -> range:
    """Return the positions of the last run of sampled tokens; empty if none was sampled.

    Example:
        >>> last_action([1, 1, 0, 1, 1, 0])
        range(3, 5)
    """
    sampled = [place for place, bit in enumerate(mask) if bit]
    if not sampled:
        return range(0)
    start = stop = sampled[-1] + 1
    while start and mask[start - 1]:
        start -= 1
    return range(start, stop)


def count_actions(mask: Sequence[int]) -> int:
    """Return how many runs of sampled tokens there are.

    Example:
        >>> count_actions([0, 1, 1, 0, 1])
        2
    """
    return sum(bit and not before for before, bit in zip((0, *mask), mask, strict=False))


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode, played.

    Attributes:
        instance_id: Of the instance walked.
        claim_id: Base claim; intervals are clustered over it.
        condition: Condition label.
        split: Split of the claim.
        mitigation: M0 to M3.
        member: Number within its group.
        outcome: Counts that rewards and metrics read.
        trace: Every step, with node, atom and source ids.
        turns: Observations and actions as text.
        cited_source_ids: Sources that the judgement cites, as real ids.
        tokens: Ids, masks and log-probabilities; None for policies without tokens.
        unknown_tokens: World tokens that the policy's tokenizer does not know.
        cut_characters: Characters of contents that were cut away.
        error: Why the episode ended in ``error``, else None.
    """

    instance_id: str
    claim_id: str
    condition: str
    split: str
    mitigation: str
    member: int
    outcome: WalkOutcome
    trace: tuple[TraceEntry, ...]
    turns: tuple[Turn, ...]
    cited_source_ids: tuple[str, ...] = ()
    tokens: Tokens | None = None
    unknown_tokens: int = 0
    cut_characters: int = 0
    error: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the episode as JSON-ready data; :meth:`from_json` reverses it exactly."""
        tokens = self.tokens
        return {
            "instance_id": self.instance_id,
            "claim_id": self.claim_id,
            "condition": self.condition,
            "split": self.split,
            "mitigation": self.mitigation,
            "member": self.member,
            "outcome": outcome_as_dict(self.outcome),
            "trace": [dict(entry) for entry in self.trace],
            "turns": [{"observation": t.observation, "action": t.action} for t in self.turns],
            "cited_source_ids": list(self.cited_source_ids),
            "tokens": None
            if tokens is None
            else {
                "prompt_ids": list(tokens.prompt_ids),
                "completion_ids": list(tokens.completion_ids),
                "mask": list(tokens.mask),
                "logprobs": list(tokens.logprobs),
            },
            "unknown_tokens": self.unknown_tokens,
            "cut_characters": self.cut_characters,
            "error": self.error,
            "usage": dict(self.usage),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Episode:
        """Rebuild an episode.

        Raises:
            ValueError: If a field is missing or malformed.
        """
        try:
            tokens = data["tokens"]
            return cls(
                instance_id=data["instance_id"],
                claim_id=data["claim_id"],
                condition=data["condition"],
                split=data["split"],
                mitigation=data["mitigation"],
                member=data["member"],
                outcome=outcome_from_dict(data["outcome"]),
                trace=tuple(_trace_entry(number, entry) for number, entry in enumerate(data["trace"])),
                turns=tuple(Turn(t["observation"], t["action"]) for t in data["turns"]),
                cited_source_ids=tuple(data["cited_source_ids"]),
                tokens=None if tokens is None else Tokens(**{k: tuple(v) for k, v in tokens.items()}),
                unknown_tokens=data["unknown_tokens"],
                cut_characters=data["cut_characters"],
                error=data["error"],
                usage=dict(data["usage"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a stored episode: {error!r}") from error


_TRACE_KEYS = tuple(TraceEntry.__annotations__)


def _trace_entry(number: int, data: Any) -> TraceEntry:
    """Check one stored step and copy it.

    Raises:
        ValueError: If it is no object, or a key is missing or unknown.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"trace entry {number} is {data!r}, expected an object with the keys {list(_TRACE_KEYS)}")
    lacking = [key for key in _TRACE_KEYS if key not in data]
    if lacking:
        raise ValueError(f"trace entry {number} lacks {lacking}")
    unknown = [key for key in data if key not in _TRACE_KEYS]
    if unknown:
        raise ValueError(f"trace entry {number} has unknown keys {unknown}")
    return {
        "kind": data["kind"],
        "node": data["node"],
        "budget_left": data["budget_left"],
        "atom": data["atom"],
        "source": data["source"],
    }


class Policy(Protocol):
    """Anything that can play episodes: scripted, a language model, an endpoint."""

    name: str

    def play(
        self, tasks: Sequence[EpisodeTask], on_episode: Callable[[int, Episode], None] | None = None
    ) -> list[Episode]:
        """Play every task and return the episodes in the order of ``tasks``.

        Args:
            tasks: What to play.
            on_episode: Called with (index of the task, episode) as each one ends, in any order: for progress and for
                storing finished work.
        """
        ...
