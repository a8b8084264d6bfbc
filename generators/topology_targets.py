"""What a task's candidates came to, and the soft target over them that the generator learns to match.

``Q(G) = exp(Score(G) / beta) / sum over the kept candidates``. There is no gold topology: what is learned is the
distribution of those that worked.

Source: K-GAT, arXiv:2608.27984, equations 7 to 9.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from provgym.envs.topology import Topology
from provgym.rewards.topology_score import CostWeights, SuccessEstimator, TopologyOutcome, topology_score

CandidateOrigin = Literal["template", "random", "generator", "pruned"]
"""Where a candidate comes from; ``pruned``: what was left of another one."""


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """How an outcome becomes a score: success rate minus structural cost.

    Attributes:
        weights: Cost of a node and of an edge.
        cost_weight: lambda_C, >= 0.
        estimator: ``raw`` share of successes, or the mean of the Beta(1, 1) posterior.
    """

    weights: CostWeights
    cost_weight: float
    estimator: SuccessEstimator

    def score(self, outcome: TopologyOutcome) -> float:
        """Return the score; NaN if no replicate was scored, which is not the same as 0."""
        return topology_score(outcome, weights=self.weights, cost_weight=self.cost_weight, estimator=self.estimator)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A topology that a task was tried with.

    Attributes:
        topology: In canonical form.
        origin: Where it comes from.
        outcome: Successes among the replicates it is scored by.
        score: Success minus cost; NaN if no replicate was scored.
        target: Its share of the task's target, in [0, 1]; 0 for what was not kept.
    """

    topology: Topology
    origin: CandidateOrigin
    outcome: TopologyOutcome
    score: float
    target: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data; :meth:`from_json` reverses it exactly."""
        score = None if math.isnan(self.score) else self.score
        return {
            "topology": self.topology.as_dict(),
            "origin": self.origin,
            "outcome": asdict(self.outcome),
            "score": score,
            "target": self.target,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Candidate:
        """Rebuild a candidate.

        Raises:
            ValueError: If a field is missing or out of range.
        """
        try:
            origin, score = data["origin"], data["score"]
            if origin not in get_args(CandidateOrigin):
                raise ValueError(f"origin {origin!r} must be one of {', '.join(get_args(CandidateOrigin))}")
            return cls(
                Topology.from_dict(data["topology"]),
                origin,
                TopologyOutcome(**data["outcome"]),
                math.nan if score is None else float(score),
                float(data["target"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a stored candidate: {error!r}") from error


@dataclass(frozen=True, slots=True)
class TaskTarget:
    """The target of one task.

    Attributes:
        task_id: Of the task.
        candidates: All that were executed, kept ones with a target above 0.
        is_all_failing: Whether no candidate succeeded in any replicate; cost alone made the target then.

    Raises:
        ValueError: If the targets neither add up to 1 nor are all 0 (a task of which nothing could be scored).
    """

    task_id: str
    candidates: tuple[Candidate, ...]
    is_all_failing: bool

    def __post_init__(self) -> None:
        total = math.fsum(candidate.target for candidate in self.candidates)
        if total and not math.isclose(total, 1.0, abs_tol=1e-9):
            raise ValueError(f"task {self.task_id!r}: targets add up to {total}, expected 1, or 0 where none is scored")

    @property
    def kept(self) -> tuple[Candidate, ...]:
        """The candidates that the target is spread over; empty if no replicate of the task was scored."""
        return tuple(candidate for candidate in self.candidates if candidate.target > 0)

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data; :meth:`from_json` reverses it exactly."""
        return {
            "task_id": self.task_id,
            "is_all_failing": self.is_all_failing,
            "candidates": [candidate.to_json() for candidate in self.candidates],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TaskTarget:
        """Rebuild a target.

        Raises:
            ValueError: If a field is missing or out of range.
        """
        try:
            candidates = tuple(Candidate.from_json(candidate) for candidate in data["candidates"])
            return cls(str(data["task_id"]), candidates, bool(data["is_all_failing"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a stored target: {error!r}") from error


def soft_targets(scores: Sequence[float], temperature: float) -> list[float]:
    """Return the softmax of scores over a temperature.

    Args:
        scores: One per candidate; NaN (not scored) gets 0.
        temperature: beta_q > 0, in units of score. Small: only the best counts. Large: all count alike.

    Returns:
        Shares >= 0 that add up to 1; all 0 if no score is a number.

    Raises:
        ValueError: If ``temperature`` is not a positive number.

    Source:
        K-GAT, arXiv:2608.27984, equation 9.

    Example:
        >>> [round(share, 4) for share in soft_targets([0.9, 0.4, float("nan")], temperature=0.25)]
        [0.8808, 0.1192, 0.0]
    """
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature={temperature} must be a positive number")
    known = [score for score in scores if not math.isnan(score)]
    if not known:
        return [0.0] * len(scores)
    best = max(known)  # before exp, so that nothing overflows however small the temperature
    raw = [0.0 if math.isnan(score) else math.exp((score - best) / temperature) for score in scores]
    total = math.fsum(raw)
    return [share / total for share in raw]


def target_of(
    task_id: str,
    candidates: Sequence[Candidate],
    *,
    rule: ScoreRule,
    temperature: float,
    keeps: Collection[str],
    is_all_failing: bool = False,
) -> TaskTarget:
    """Spread a task's target over the candidates that are kept.

    If none succeeded, success tells nothing and cost decides alone: every executed candidate is kept with p = 0, so
    that the cheapest weighs most. A team that fails as surely as a single agent is not worth its calls.

    Args:
        task_id: Of the task.
        candidates: All that were executed, distinct up to isomorphism; their scores and targets are not read.
        rule: How outcomes are scored.
        temperature: beta_q.
        keeps: Keys of the topologies that are kept.
        is_all_failing: Whether no candidate succeeded in any replicate.
    """
    if is_all_failing:
        rule, keeps = replace(rule, estimator="raw"), {candidate.topology.key for candidate in candidates}
    scored = [replace(candidate, score=rule.score(candidate.outcome)) for candidate in candidates]
    kept = [candidate.score if candidate.topology.key in keeps else math.nan for candidate in scored]
    shares = soft_targets(kept, temperature)
    spread = tuple(replace(c, target=share) for c, share in zip(scored, shares, strict=True))
    return TaskTarget(task_id, spread, is_all_failing)


def pool_targets(
    targets: Sequence[TaskTarget], *, rule: ScoreRule, temperature: float, adds_up: bool = False
) -> TaskTarget:
    """Join what several rounds found for one task: one target over everything that they kept.

    A topology that was kept several times counts once: scored by all its replicates where every round drew new ones,
    else as the last round scored it. Rounds in which all candidates failed count only if all rounds did.

    Args:
        targets: Of one task, at least one, in the order of the rounds.
        rule: How outcomes are scored.
        temperature: beta_q.
        adds_up: Whether the rounds' replicates are different draws, so that successes add up.

    Raises:
        ValueError: If there is no target, or they are of several tasks.
    """
    names = {target.task_id for target in targets}
    if len(names) != 1:
        raise ValueError(f"expected the targets of one task, found those of {sorted(names)}")
    known = [target for target in targets if target.kept]
    working = [target for target in known if not target.is_all_failing]
    best: dict[str, Candidate] = {}
    for target in working or known:
        for candidate in target.kept:
            earlier = best.get(candidate.topology.key)
            if earlier is not None and working and adds_up:
                candidate = replace(candidate, outcome=earlier.outcome.joined(candidate.outcome))
            best[candidate.topology.key] = candidate
    return target_of(
        names.pop(),
        list(best.values()),
        rule=rule,
        temperature=temperature,
        keeps=best,
        is_all_failing=bool(known) and not working,
    )
