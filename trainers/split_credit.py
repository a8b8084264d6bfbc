"""Split credit: walking is judged by what the walk gathered, and the judgement by how good it is.

Under one return, a walk that stops early is paid for judging little, which is easier than judging much: with counts
over acquired sources the reward of one source, read once and counted right, is full. Here the judgement's terms
(verdict, count) reach only the tokens that state the judgement; what decides to walk or to stop answers for coverage,
echo, cost and illegality alone.

Each part is normalised on its own. Judgements are divided by their group's spread: one right verdict among eight is
rare and counts for much. Walking may be divided by that of the whole step (``optim.scale_advantages: batch``): where
all members of a group found every source, they differ by a walk's cost alone, and their own spread would make that
difference as loud as a source.

Source: ours; after GDPO, arXiv:2601.05242 (group reward-decoupled normalisation).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from provgym.envs.actions import find_decision
from provgym.generators.episode import Episode, count_actions, last_action
from provgym.rewards.advantages import group_advantages
from provgym.rewards.credit import Branch, step_advantages
from provgym.trainers.optim_config import OptimConfig
from provgym.trainers.step_credit import spread_over_tokens
from provgym.trainers.step_record import EpisodeRecord

JUDGEMENT_TERMS = ("verdict", "count")
"""Terms that the judgement alone answers for; all others are the walk's."""


def split_advantages(
    records: Sequence[EpisodeRecord], optim: OptimConfig, *, epsilon: float
) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
    """Return the advantages of walking, one per action, and of judging, one per trajectory.

    Shapes: B prompts, G trajectories per prompt, A_i actions of trajectory i.

    Args:
        records: (B*G,) of all processes, group members adjacent; their step rewards are the walk's alone.
        optim: Group size, judgements of a walk, and for walking scale and discount.
        epsilon: Added to the scale.

    Returns:
        (A_i,) per trajectory, of one that takes a walk over those of its own actions; empty for one that is not scored.
        And (B*G,), 0 for one that is not scored. Each is divided by its own spread.
    """
    size, per_walk = optim.group_size, optim.judgements_per_walk
    branches = {
        row: Branch(row - row % per_walk, record.taken_over)
        for row, record in enumerate(records)
        if record.taken_over is not None
    }
    earned = [np.array(r.step_rewards) if np.isfinite(r.total) else None for r in records]
    judged = group_advantages(np.array([r.judgement_reward for r in records]), size, epsilon=epsilon)
    walked = step_advantages(
        earned, size, scale=optim.scale_advantages, epsilon=epsilon, discount=optim.discount, branches=branches
    )
    return walked, judged.values


def decision_tokens(episode: Episode, tokenizer: PreTrainedTokenizerBase, *, is_fork: bool = False) -> int:
    """Return how many leading tokens of the last action decide to stop: up to where the action itself says so.

    Prose before the action belongs to the decision, whatever words it holds. An episode without a valid judgement has
    no part that states one: 0. Nor has one whose action names its verdict before it says that it stops, or one that
    takes a walk over and judges it: there, what was sampled states the judgement.

    Args:
        episode: Played by a policy with ``tokenizer``.
        tokenizer: Turns its ids into the text that the environment read.
        is_fork: Whether it takes a walk over.
    """
    tokens, judgement = episode.tokens, episode.outcome.judgement
    if tokens is None or judgement is None or (is_fork and count_actions(tokens.mask) == 1):
        return 0
    last = last_action(tokens.mask)
    ids = list(tokens.completion_ids[last.start : last.stop])
    text = _decode(tokenizer, ids)
    decided = text[: find_decision(text)]
    if judgement.verdict.value not in text[len(decided) :]:
        return 0
    lengths = range(1, len(ids))
    return next((length for length in lengths if _decode(tokenizer, ids[:length]).startswith(decided)), len(ids))


def split_token_advantages(
    episodes: Sequence[Episode],
    walking: Sequence[NDArray[np.float64]],
    judging: NDArray[np.float64],
    decisions: Sequence[int],
    width: int,
) -> NDArray[np.float64]:
    """Return the advantages of each episode's tokens.

    Shapes: B episodes, A_i actions of episode i, T columns of the padded batch.

    Args:
        episodes: (B,) with tokens.
        walking: (A_i,) per episode; empty for one that is not scored.
        judging: (B,).
        decisions: (B,) leading tokens of the last action that decide to stop. They get the advantage of walking, the
            rest of that action gets that of judging. With 0, no part of it states the judgement alone: it gets both
            (of which a fork's walking is 0 where it ends as its walk did).
        width: T.

    Returns:
        (B, T); 0 throughout for an episode without advantages.
    """
    rows = np.zeros((len(episodes), width))
    for row, episode, own, judged, decided in zip(rows, episodes, walking, judging, decisions, strict=True):
        if episode.tokens is None or not len(own):
            continue
        row[:] = spread_over_tokens(episode.tokens.mask, own, width)
        last = last_action(episode.tokens.mask)
        if decided:
            row[last.start + decided : last.stop] = judged
        else:
            row[last.start : last.stop] += judged
    return rows


def _decode(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))
