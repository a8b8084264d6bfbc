"""What one optimiser step's roll-out came to: rewards, facts of each episode, and what was left out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from provgym.generators.episode import Episode, count_actions
from provgym.rewards.outcome import Ending
from provgym.rewards.rubric import Score

_NAMED_IDS = 8


class RunStopped(RuntimeError):
    """A run that stops because going on would be wasted; the message says why, and what to do."""


class EpisodeRecord(NamedTuple):
    """One episode, small enough to be sent between processes.

    Attributes:
        instance_id: What was walked.
        total: Weighted reward; NaN = not scored.
        trained_tokens: Tokens that enter the loss.
        facts: What is logged of it.
        error: Why it ended in ``error``, else None.
        step_rewards: What each action earned; without shaping they sum to ``total``. Empty unless steps get credit of
            their own.
        states: The state each action was taken at. Empty unless actions at one state are compared.
        taken_over: Actions that were another episode's, whose walk is judged once more; None for an episode that was
            sampled from its beginning.
        judgement_reward: What the judgement earned where it is credited apart from the walk, else NaN; ``step_rewards``
            are the walk's alone then, and both together sum to ``total``.
    """

    instance_id: str
    total: float
    trained_tokens: int
    facts: dict[str, float]
    error: str | None
    step_rewards: tuple[float, ...] = ()
    states: tuple[Hashable, ...] = ()
    judgement_reward: float = math.nan
    taken_over: int | None = None


@dataclass
class StepRecord:
    """What one optimiser step's roll-out came to, over all processes.

    Attributes:
        rows: Row numbers of this process's episodes, group members adjacent.
        episodes: This process's episodes.
        is_fork: Of each of these, whether its walk is another one's, judged once more.
        records: One record per episode over all processes, group members adjacent.
        zero_spread_groups: Groups that taught nothing.
        step_partner_share: Share of actions taken at a state that another member of their group acted at too, in
            [0, 1]; None unless these are compared.
        rollout_s: Seconds of this process's roll-out.
        epoch: How often the roll-out was used before this step.
        is_skipped: Whether the step's gradient was not finite, and the weights were left alone.
    """

    rows: list[int] = field(default_factory=list)
    episodes: list[Episode] = field(default_factory=list)
    is_fork: list[bool] = field(default_factory=list)
    records: list[EpisodeRecord] = field(default_factory=list)
    zero_spread_groups: int = 0
    step_partner_share: float | None = None
    rollout_s: float = 0.0
    epoch: int = 0
    is_skipped: bool = False

    @property
    def totals(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """(B*G,) rewards over all processes; NaN = not scored."""
        return np.array([record.total for record in self.records], dtype=np.float64)

    @property
    def facts(self) -> list[dict[str, float]]:
        """One mapping per episode over all processes: terms, ending, counts, tokens."""
        return [record.facts for record in self.records]

    @property
    def whole(self) -> list[EpisodeRecord]:
        """Records of the episodes that were sampled from their beginning: each a sample of the policy, none twice."""
        return [record for record in self.records if record.taken_over is None]

    @property
    def row_weight(self) -> float:
        """All episodes over those with a trained token (1 if none): takes masked ones out of a mean over rows."""
        kept = sum(record.trained_tokens > 0 for record in self.records)
        return len(self.records) / kept if kept else 1.0

    def instances(self, group_size: int) -> list[str]:
        """Return the instance id of each group, over all processes."""
        return [record.instance_id for record in self.records[::group_size]]


def record_episode(
    episode: Episode,
    score: Score,
    step_rewards: Sequence[float] = (),
    states: Sequence[Hashable] = (),
    judgement_reward: float = math.nan,
    *,
    is_fork: bool = False,
) -> EpisodeRecord:
    """Return what all processes learn of an episode; a fork's step rewards are those of its whole walk."""
    trained = episode.tokens.sampled if episode.tokens is not None and score.is_scored else 0
    facts = episode_facts(episode, score)
    earned, at = tuple(step_rewards), tuple(states)
    own = 0 if episode.tokens is None else count_actions(episode.tokens.mask)
    taken = max(0, len(earned) - own) if is_fork else None
    return EpisodeRecord(
        episode.instance_id, score.total, trained, facts, episode.error, earned, at, judgement_reward, taken
    )


def episode_facts(episode: Episode, score: Score) -> dict[str, float]:
    """Return what is logged of one training episode; of an unscored one, its ending alone."""
    outcome, tokens = episode.outcome, episode.tokens
    facts = {f"reward/{name}": value for name, value in score.terms.items()}
    facts["reward"] = score.total
    if not score.is_scored:
        return facts | {"ending/error": 1.0}
    facts |= {f"ending/{ending.value}": float(outcome.ending is ending) for ending in Ending}
    facts["accuracy"] = float(outcome.is_correct)
    facts["echo_rate"] = outcome.echoes / max(1, outcome.walks)
    facts["source_recall"] = outcome.acquired / outcome.available if outcome.available else math.nan
    facts["walks"] = float(outcome.walks)
    facts["invalid_actions"] = float(outcome.invalid_actions)
    facts["connector_moves"] = float(outcome.connector_moves)
    if tokens is not None:
        facts["tokens/sampled"] = float(tokens.sampled)
        facts["tokens/world"] = float(len(tokens.prompt_ids) + len(tokens.completion_ids) - tokens.sampled)
    return facts


def check_step(step: int, records: Sequence[EpisodeRecord], *, max_length: int, warns: bool) -> None:
    """Say which episodes are not scored, and stop if the scored ones hold nothing to train on.

    Args:
        step: Optimiser step, from 1.
        records: Of all processes.
        max_length: Longest episode in tokens, for the message.
        warns: Whether this process speaks.

    Raises:
        RunStopped: If there are scored episodes and not one trained token.
    """
    unscored = [record for record in records if math.isnan(record.total)]
    if unscored and warns:
        ids = list(dict.fromkeys(record.instance_id for record in unscored))
        more = f" and {len(ids) - _NAMED_IDS} more" if len(ids) > _NAMED_IDS else ""
        none_left = "; none is scored, so every advantage is 0" if len(unscored) == len(records) else ""
        warnings.warn(
            f"step {step}: {len(unscored)} of {len(records)} episodes ended in error and teach nothing "
            f"(instances {', '.join(ids[:_NAMED_IDS])}{more}; first error: {unscored[0].error}){none_left}",
            stacklevel=2,
        )
    if len(unscored) < len(records) and not sum(record.trained_tokens for record in records):
        raise RunStopped(
            f"step {step}: 0 trained tokens in {len(records) - len(unscored)} scored episodes: no token of them is "
            f"marked as sampled. If the prompts alone reach generation.max_length={max_length}, raise it; else the "
            "engine or the dialogue format marks nothing"
        )


def row_tokens(
    episode: Episode, *, tokenizer_eos: int
) -> tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[float]]:
    """Return prompt, completion, mask and log-probabilities.

    An episode that ended in ``error`` is masked throughout: its tokens must count neither in the loss nor in what the
    loss is divided by. One that failed before its first token gets one masked end token: TRL needs a completion.
    """
    tokens = episode.tokens
    if tokens is None:
        raise ValueError(f"episode of {episode.instance_id!r} has no token ids; a scripted policy cannot be trained")
    if not tokens.completion_ids:
        return tokens.prompt_ids, (tokenizer_eos,), (0,), (0.0,)
    is_scored = episode.outcome.ending is not Ending.ERROR
    mask = tokens.mask if is_scored else (0,) * len(tokens.mask)
    return tokens.prompt_ids, tokens.completion_ids, mask, tokens.logprobs
