"""Who judges: scripted judges by name, and every policy that can play; several on the same claims, in turn."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType

from provgym.envs.provenance import Instance
from provgym.eval.eval_config import load_instances
from provgym.eval.judge import JudgeResult, evaluate_judge
from provgym.eval.judge_config import JudgeEvalConfig
from provgym.eval.judge_probes import structure_judge
from provgym.eval.walk_policies import Watch, folder_name, refuse_same_names
from provgym.generators.backends import load_policy
from provgym.generators.episode import Policy
from provgym.generators.judge_scripted import constant_judge
from provgym.generators.policy_kinds import PolicySpec, ScriptedSpec, shown_name
from provgym.generators.policy_spec import PolicyOptions, fingerprint_of, policy_specs
from provgym.generators.scripted import ScriptedPolicy, Walker
from provgym.rewards.outcome import Verdict

MakeJudge = Callable[[Sequence[Instance]], Walker]

SCRIPTED_JUDGES: Mapping[str, MakeJudge] = MappingProxyType(
    {
        "constant-support": lambda _: constant_judge(Verdict.SUPPORT),
        "constant-refute": lambda _: constant_judge(Verdict.REFUTE),
        "constant-mixed": lambda _: constant_judge(Verdict.MIXED),
        "structure": lambda instances: structure_judge(instances, reads_node=False),
        "structure+node": lambda instances: structure_judge(instances, reads_node=True),
    }
)
"""Judges beside the scripted policies ``oracle`` (majority over sources) and ``naive`` (majority over paths)."""

JUDGING_WALKERS = ("oracle", "naive")


@dataclass(frozen=True, slots=True)
class Judge:
    """Someone who is to judge, checked and not yet loaded.

    Attributes:
        text: As the user named them.
        spec: Of a policy that can play; None for a scripted judge.
    """

    text: str
    spec: PolicySpec | None

    @property
    def name(self) -> str:
        """As tables show this judge."""
        return self.text if self.spec is None else shown_name(self.spec)

    @property
    def fingerprint(self) -> str:
        """What tells this judge from others of its name."""
        return "scripted" if self.spec is None else fingerprint_of(self.spec)

    def load(self, instances: Sequence[Instance]) -> Policy:
        """Return the policy; see :func:`~provgym.generators.backends.load_policy`.

        Args:
            instances: What will be judged; judges of structure know it.
        """
        if self.spec is None:
            return ScriptedPolicy(self.text, SCRIPTED_JUDGES[self.text](instances))
        return load_policy(self.spec)


def judge_named(text: str, options: PolicyOptions | None = None) -> Judge:
    """Return the judge behind a name; see :func:`judges_named`."""
    (judge,) = judges_named([text], options)
    return judge


def judges_named(texts: Sequence[str], options: PolicyOptions | None = None) -> list[Judge]:
    """Return the judges behind names; an option goes to those that it means something to.

    Args:
        texts: Each a name of ``SCRIPTED_JUDGES``, ``oracle``, ``naive``, or anything that
            :func:`~provgym.generators.policy_spec.policy_spec` reads.
        options: What goes with them.

    Raises:
        FileNotFoundError: If a folder does not exist, or holds no policy.
        ValueError: If a name is near a judge's, a policy only walks or writes tool calls, or an option means nothing
            to any of them.
    """
    options = options or PolicyOptions()
    for text in texts:
        near = difflib.get_close_matches(text, SCRIPTED_JUDGES, n=1)
        if near and text not in SCRIPTED_JUDGES and not Path(text).exists():
            raise ValueError(f"policy {text!r} is unknown; did you mean {near[0]!r}?")
    playing = [text for text in texts if text not in SCRIPTED_JUDGES]
    given = [f.name for f in fields(options) if getattr(options, f.name) != f.default]
    if given and not playing:
        raise ValueError(f"{', '.join(given)} does nothing for scripted judges, found {', '.join(texts)}; leave it out")
    specs = dict(zip(playing, policy_specs(playing, options), strict=True))
    for text, spec in specs.items():
        _check(text, spec)
    return [Judge(text, specs.get(text)) for text in texts]


def _check(text: str, spec: PolicySpec) -> None:
    """Refuse policies that can walk and can't judge."""
    if isinstance(spec, ScriptedSpec) and spec.walker not in JUDGING_WALKERS:
        names = ", ".join((*JUDGING_WALKERS, *SCRIPTED_JUDGES))
        raise ValueError(f"policy {text!r} is a way of walking, and here nothing is walked; scripted judges: {names}")
    if getattr(spec, "grammar", None) == "tool_call":
        raise ValueError(
            f"policy {text!r} writes tool calls; a judgement is read as JSON: add --grammar json (for a run that was "
            "trained on tool calls this is another language than it learned)"
        )


def evaluate_judges(
    config: JudgeEvalConfig,
    judges: Sequence[Judge],
    folder: Path,
    *,
    parquet: bool = False,
    on_progress: Watch | None = None,
) -> dict[str, JudgeResult]:
    """Load and evaluate judges; a judge's files go to ``folder/NAME``.

    Args:
        config: What to judge.
        judges: Who judges; a policy is loaded when its turn comes and let go afterwards.
        folder: Of all these evaluations.
        parquet: Also write ``episodes.parquet``.
        on_progress: Told after each judgement.

    Returns:
        Name to result, in the order of ``judges``.

    Raises:
        ValueError: If two judges have one name, or ``folder`` holds another evaluation.
        FileNotFoundError: If a model or adapter is missing.
    """
    refuse_same_names([judge.name for judge in judges], "judges")
    loaded = load_instances(config)
    results: dict[str, JudgeResult] = {}
    for judge in judges:
        policy = judge.load(loaded.instances)
        name = policy.name

        def watch(done: int, total: int, name: str = name) -> None:
            if on_progress is not None:
                on_progress(name, done, total)

        results[name] = evaluate_judge(
            config,
            policy,
            folder / folder_name(name),
            loaded=loaded,
            fingerprint=judge.fingerprint,
            parquet=parquet,
            on_progress=watch,
        )
    return results
