"""``provgym/GraphWalkText-v0``: walk an evidence graph by reading and writing text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import gymnasium as gym

from provgym.envs.actions import Action, Stop, WalkTo, parse_action
from provgym.envs.builtin import demo_instances
from provgym.envs.presentation import Presentation, PresentationConfig
from provgym.envs.provenance import Instance
from provgym.envs.reset_options import check_instances_and_budget, read_reset_options
from provgym.envs.text_space import AnyText
from provgym.envs.walk import Step, StepKind, Walk
from provgym.rewards.outcome import Ending, WalkOutcome
from provgym.rewards.rubric import Rubric, papt_rubric

MAX_TEXT_LENGTH = 1_000_000


class TraceEntry(TypedDict):
    """One step as plain data; ``source`` is the real source id for evidence, else None."""

    kind: str
    node: str
    budget_left: int
    atom: str | None
    source: str | None


class WalkInfo(TypedDict):
    """The ``info`` of both walk environments.

    ``ending``, ``terms`` and ``outcome`` are filled once the episode is over. ``outcome`` is the record itself, not a
    nested dict: Gymnasium's vector environments cannot merge a dict of one sub-environment with the None of another.
    """

    instance_id: str
    condition: str
    budget: int
    budget_left: int
    last_step: str | None
    trace: Sequence[TraceEntry]
    cut_characters: int
    ending: str | None
    terms: dict[str, float]
    outcome: WalkOutcome | None
    cited_source_ids: list[str]


class GraphWalkTextEnv(gym.Env[str, str]):
    """Judge a claim by walking its evidence graph.

    | | |
    |---|---|
    | Action | text: ``walk n3``, ``stop +3 -1 SUPPORT 0.9 S2``, or JSON; see :mod:`provgym.envs.actions` |
    | Observation | text: the claim, previews of new neighbours, contents of the node reached, walks left, moves |
    | Reward | 0 until the end, then the rubric's total (about -1.45 to 1.8 for the PAPT rubric) |
    | Terminated | by a stop, whether its judgement parses (``answered``) or not (``invalid``) |
    | Truncated | by any action but a valid stop after the budget's last walk |
    | Start | the claim node; instance drawn by the seed, or given in ``options`` |
    | Info | :class:`WalkInfo` with the full trace |

    Args:
        instances: What to walk; a small hand-written set if None.
        budget: Walks allowed, unless ``options["budget"]`` says otherwise.
        presentation: How the walk is shown.
        rubric: What the reward is.

    Version history:
        v0: first version.

    Source:
        GraphEcho, arXiv:2609.17695, section 4.1.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - Gymnasium's name and type

    def __init__(
        self,
        instances: Sequence[Instance] | None = None,
        *,
        budget: int = 6,
        presentation: PresentationConfig | None = None,
        rubric: Rubric | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.instances: Sequence[Instance] = demo_instances() if instances is None else instances
        check_instances_and_budget(self.instances, budget)
        self.budget = budget
        self.presentation_config = presentation or PresentationConfig()
        self.rubric = rubric or papt_rubric()
        self.render_mode = render_mode
        self.action_space = AnyText(MAX_TEXT_LENGTH)
        self.observation_space = AnyText(MAX_TEXT_LENGTH)
        self.walk: Walk | None = None
        self.presentation: Presentation | None = None
        self.observation_lines: tuple[str, ...] = ()
        self.trace: list[TraceEntry] = []

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Seeds this environment's own generator; None draws on from it.
            options: ``instance`` (index or instance id) and ``budget``; both hold for this episode only.

        Raises:
            ValueError: If an option is unknown or out of range.
        """
        super().reset(seed=seed)
        instance, budget = read_reset_options(options, self.instances, self.budget, self.np_random)
        self.walk = Walk(instance, budget)
        self.trace = []
        self.presentation = Presentation(self.walk, self.presentation_config, self.np_random)
        self.observation_lines = tuple(self.presentation.opening())
        return self._observation(), self._info(None)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action, given as text.

        Raises:
            RuntimeError: If the episode has ended or never began.
        """
        return self.step_action(parse_action(action))

    def step_action(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one parsed action; see :meth:`step`."""
        walk, presentation = self._running()
        if isinstance(action, Stop):
            step = walk.stop(action.judgement)
        elif isinstance(action, WalkTo):
            node = presentation.node_of(action.node)
            step = walk.reject(StepKind.ILLEGAL) if node is None else walk.walk(node)
        else:
            step = walk.reject(StepKind.UNPARSED)
        self.trace.append(trace_entry(walk.instance, step))
        reward, terminated, truncated = 0.0, False, False
        if walk.is_over:
            self.observation_lines = ("The episode is over.",)
            reward = self.rubric.score(walk.outcome()).total
            truncated = walk.ending is Ending.TRUNCATED
            terminated = not truncated
        else:
            self.observation_lines = tuple(presentation.reply(step))
        return self._observation(), reward, terminated, truncated, self._info(step)

    def abort(self, ending: Ending) -> None:
        """End the episode from outside: ``truncated`` by length, or ``error`` of the infrastructure."""
        self._running()[0].abort(ending)

    def outcome(self) -> WalkOutcome:
        """Return the finished episode's outcome."""
        if self.walk is None:
            raise RuntimeError("no episode was started; call reset first")
        return self.walk.outcome()

    def render(self) -> str:
        """Return the current observation."""
        return self._observation()

    def _observation(self) -> str:
        return "\n".join(self.observation_lines)[:MAX_TEXT_LENGTH]

    def _running(self) -> tuple[Walk, Presentation]:
        if self.walk is None or self.presentation is None:
            raise RuntimeError("no episode was started; call reset before step")
        return self.walk, self.presentation

    def _info(self, step: Step | None) -> dict[str, Any]:
        walk, presentation = self._running()
        info: WalkInfo = {
            "instance_id": walk.instance.instance_id,
            "condition": walk.instance.condition,
            "budget": walk.budget,
            "budget_left": walk.budget_left,
            "last_step": None if step is None else step.kind.value,
            "trace": [entry.copy() for entry in self.trace],
            "cut_characters": presentation.cut_characters,
            "ending": None if walk.ending is None else walk.ending.value,
            "terms": {},
            "outcome": None,
            "cited_source_ids": [],
        }
        if walk.is_over:
            outcome = walk.outcome()
            info["terms"] = dict(self.rubric.score(outcome).terms)
            info["outcome"] = outcome
            if outcome.judgement is not None:
                info["cited_source_ids"] = list(presentation.source_ids(outcome.judgement.cited_sources))
        return dict(info)


def trace_entry(instance: Instance, step: Step) -> TraceEntry:
    """Return one step as plain data, with ids instead of indices."""
    graph = instance.graph
    atom = None if step.atom is None else graph.atoms[step.atom]
    return {
        "kind": step.kind.value,
        "node": graph.node_id(step.node),
        "budget_left": step.budget_left,
        "atom": None if atom is None else atom.atom_id,
        "source": None if atom is None else atom.source_id,
    }
