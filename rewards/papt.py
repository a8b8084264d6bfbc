"""The five PAPT terms, verdict, count, coverage, echo and cost, and one of ours, illegal.

Each is a pure function of a :class:`~provgym.rewards.outcome.WalkOutcome`. Terms are magnitudes; their signs
live in the rubric's weights (``R = R_verdict + 0.4 R_count + 0.4 R_coverage - 0.4 R_echo - 0.05 R_cost``).

Source: GraphEcho, arXiv:2609.17695, section 4.3, equation 3.
"""

from __future__ import annotations

from typing import Literal

from provgym.rewards.outcome import WalkOutcome

CountBasis = Literal["acquired", "available"]
CoverageBasis = Literal["budget", "available"]


def verdict_term(outcome: WalkOutcome) -> float:
    """+1 for the gold verdict; -1 for a wrong, invalid or missing one."""
    return 1.0 if outcome.is_correct else -1.0


def count_term(outcome: WalkOutcome, basis: CountBasis = "acquired") -> float:
    """Agreement of the stated counts with the true ones, in [0, 1].

    ``max(0, 1 - delta / max(1, n))`` with ``delta = |s' - s| + |r' - r|``.

    Args:
        outcome: A finished walk.
        basis: ``acquired`` compares with the sources reached (n = U; the paper's choice); ``available`` with all
            sources of the instance (n = D; ours: the paper's choice is full after a single walk, which rewards
            stopping early).

    Returns:
        The term; 0 without a valid judgement.
    """
    judgement = outcome.judgement
    if judgement is None:
        return 0.0
    if basis == "acquired":
        support, refute, total = outcome.acquired_support, outcome.acquired_refute, outcome.acquired
    else:
        support, refute, total = outcome.available_support, outcome.available_refute, outcome.available
    delta = abs(judgement.support_count - support) + abs(judgement.refute_count - refute)
    return max(0.0, 1.0 - delta / max(1, total))


def coverage_term(outcome: WalkOutcome, basis: CoverageBasis = "budget") -> float:
    """Share of the distinct sources that was acquired, in [0, 1].

    Args:
        outcome: A walk.
        basis: ``budget`` divides by what the budget could reach, ``max(1, min(B, D))`` (the paper's choice);
            ``available`` by ``max(1, D)``.
    """
    reachable = min(outcome.budget, outcome.available) if basis == "budget" else outcome.available
    return outcome.acquired / max(1, reachable)


def echo_term(outcome: WalkOutcome) -> float:
    """Share of walks that repeated an atom already acquired, ``E / max(1, W)``, in [0, 1]."""
    return outcome.echoes / max(1, outcome.walks)


def cost_term(outcome: WalkOutcome) -> float:
    """Share of the budget used, in [0, 1]; an illegal action costs as much as a walk (ours)."""
    return (outcome.walks + outcome.invalid_actions) / outcome.budget


def illegal_term(outcome: WalkOutcome) -> float:
    """Share of the budget spent on actions that did nothing, in [0, 1] (ours; weight 0 in the source's objective).

    Without it an echo, which the source's objective charges, is dearer than an illegal action.
    """
    return outcome.invalid_actions / outcome.budget
