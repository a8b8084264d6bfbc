"""Judges that answer without weighing sources: baselines of static judgement.

The sound judge (majority over distinct sources) and the naive one (majority over paths) are the scripted walkers
``oracle`` and ``naive`` of :mod:`provgym.generators.scripted`: with everything shown and no walk left, they answer.
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from provgym.envs.actions import format_stop
from provgym.envs.walk_text import GraphWalkTextEnv
from provgym.generators.scripted import Walker
from provgym.rewards.outcome import Judgement, Verdict

CONFIDENCE = 0.9
"""What every scripted judge states, as the scripted walkers do."""

SMALLEST_COUNTS = MappingProxyType({Verdict.SUPPORT: (1, 0), Verdict.REFUTE: (0, 1), Verdict.MIXED: (1, 1)})
"""The smallest counts that go with a verdict, for judges that count nothing."""


def verdict_answer(verdict: Verdict) -> str:
    """Return the answer of a judge that has a verdict and no counts.

    Example:
        >>> verdict_answer(Verdict.MIXED)
        'stop +1 -1 MIXED 0.9'
    """
    return format_stop(Judgement(verdict, *SMALLEST_COUNTS[verdict], CONFIDENCE))


def constant_judge(verdict: Verdict) -> Walker:
    """Return a judge that always gives the same verdict."""

    def judge(env: GraphWalkTextEnv, rng: np.random.Generator) -> str:
        return verdict_answer(verdict)

    return judge
