"""What Verifiers did to the answers that reached them: repaired, spoiled, kept, or given where there was none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from provgym.envs.verifier import Change, VerifierAccount
from provgym.envs.workflow_records import STOPPED_BY_VERIFIER
from provgym.eval.estimate import Estimate
from provgym.eval.topology_estimates import Resampling, mean_estimate
from provgym.eval.topology_runs import MethodRun
from provgym.rewards.outcome import Ending

CHANGES: tuple[Change, ...] = get_args(Change)
_RIGHT_BEFORE = ("kept_right", "right_to_wrong")
_WRONG_BEFORE = ("kept_wrong", "wrong_to_right")


@dataclass(frozen=True, slots=True)
class VerifierFigures:
    """The Verifiers' account of one method; the unit is one Verifier in one scored run.

    Attributes:
        changes: ``kept_right``, ``kept_wrong``, ``right_to_wrong`` (spoiled), ``wrong_to_right`` (repaired) and
            ``no_answer_before`` to their numbers; an answer that was taken away counts as wrong.
        spoiled: Share of the right answers that were made wrong.
        repaired: Share of the wrong answers that were made right.
        claims: ``supported``, ``contradicted``, ``not_found`` and ``corrected`` to numbers of claims.
        stopped: Runs that a Verifier ended.
        stopped_answered: Those of them that ended with an answer.
    """

    changes: Mapping[Change, int]
    spoiled: Estimate
    repaired: Estimate
    claims: Mapping[str, int]
    stopped: int
    stopped_answered: int

    @property
    def checked(self) -> int:
        """Verifiers that replied in scored runs."""
        return sum(self.changes.values())

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "checked": self.checked,
            **{str(change): number for change, number in self.changes.items()},
            "spoiled": self.spoiled.to_json(),
            "repaired": self.repaired.to_json(),
            "claims": dict(self.claims),
            "stopped": self.stopped,
            "stopped_answered": self.stopped_answered,
        }


def verifier_figures(runs: Sequence[MethodRun], resampling: Resampling | None = None) -> VerifierFigures:
    """Count what Verifiers did in the scored runs of one method.

    Args:
        runs: In any order; ``error`` endings are left out.
        resampling: Seed and number of resamples of the rates; base claims are resampled.
    """
    scored = [run for run in runs if run.is_scored]
    changes = [
        (run.base_id, VerifierAccount((), check.before, check.after).change(run.is_right))
        for run in scored
        for check in run.checks
    ]
    counts = Counter(change for _, change in changes)
    claims = {
        name: sum(getattr(check, name) for run in scored for check in run.checks)
        for name in ("supported", "contradicted", "not_found", "corrected")
    }
    stopped = [run for run in scored if run.reason == STOPPED_BY_VERIFIER]
    return VerifierFigures(
        changes={change: counts[change] for change in CHANGES},
        spoiled=_share(changes, "right_to_wrong", _RIGHT_BEFORE, resampling),
        repaired=_share(changes, "wrong_to_right", _WRONG_BEFORE, resampling),
        claims=claims,
        stopped=len(stopped),
        stopped_answered=sum(run.ending is Ending.ANSWERED for run in stopped),
    )


def _share(
    changes: Sequence[tuple[str, Change]], part: Change, whole: Sequence[str], resampling: Resampling | None
) -> Estimate:
    chosen = [(claim, float(change == part)) for claim, change in changes if change in whole]
    return mean_estimate([value for _, value in chosen], [claim for claim, _ in chosen], resampling)
