"""Methods that are no single team: self-consistency at matched tokens, and retrieving and answering step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from provgym.envs.evidence_units import EvidenceContext
from provgym.envs.roles import ANSWERER
from provgym.envs.topology import Topology
from provgym.envs.topology_tasks import TopologyTask
from provgym.envs.workflow_records import RunRequest, TopologyRun
from provgym.eval.topology_methods import NO_EVIDENCE, Executor, Keep, Question, record_of
from provgym.eval.topology_names import KGAT, REACT, SELF_CONSISTENCY, SELF_CONSISTENCY_CONSTANT
from provgym.eval.topology_runs import MethodRun
from provgym.rewards.outcome import Ending

LONE_ANSWERER = Topology((ANSWERER,), ())

Retrieve = Callable[[TopologyTask, str, int], EvidenceContext]
"""Returns the so many units of a task's graph that are nearest to a text."""


@dataclass(frozen=True, slots=True)
class SelfConsistency:
    """One agent, sampled until it has used the tokens of another method on the same question; the majority answers.

    Samples are drawn one by one until their tokens reach the other method's on that question (so it never gets less
    than the other), or ``max_samples``. An answer is a vote, a sample without one (``invalid``, ``truncated``) is none.
    Ties go to the answer that was given first. A sample that ends in ``error`` makes the question an ``error``: it is
    played again. So does a question on which the other method has no token count.

    The other method may spend little where a question is easy; matching it there forbids a second sample. So
    ``is_constant`` gives every question the same budget instead: the other method's mean over its counted questions.

    Attributes:
        num_replicates: Repetitions of each question: sample i of repetition r is the agent's draw
            r + i * num_replicates, so no two repetitions share a draw, and sample 0 is that of the plain single agent.
        max_samples: Most samples of a question, >= 1.
        builds_on: The method whose tokens are matched.
        is_constant: Whether its mean is matched, on every question alike.

    Source:
        Wang et al. 2022, arXiv:2203.11171; matching tokens is what comparisons with multi-agent systems lack.
    """

    num_replicates: int
    max_samples: int = 64
    builds_on: str = KGAT
    is_constant: bool = False

    @property
    def name(self) -> str:
        """Key."""
        return SELF_CONSISTENCY_CONSTANT if self.is_constant else SELF_CONSISTENCY

    @property
    def fingerprint(self) -> str:
        """Its settings."""
        kind = "self_consistency_constant" if self.is_constant else "self_consistency"
        return f"{kind}/{self.builds_on}/{self.num_replicates}/{self.max_samples}"

    def play(
        self,
        questions: Sequence[Question],
        executor: Executor,
        earlier: Mapping[tuple[str, int], MethodRun],
        keep: Keep,
    ) -> None:
        """Answer every question; all that still need a sample get their next one at the same time."""
        drawn: dict[int, list[TopologyRun]] = {}
        counted = {key: run.tokens for key, run in earlier.items() if run.is_scored and run.is_counted}
        # Over all questions, not over those that are still to be answered: an interrupted evaluation ends the same.
        budgets = dict.fromkeys(earlier, fmean(counted.values())) if self.is_constant and counted else counted
        for number, question in enumerate(questions):
            if question.key in budgets:
                drawn[number] = []
            else:
                keep(number, self._without_budget(question, earlier[question.key]))
        while drawn:
            waiting = list(drawn)
            requests = [self._request(questions[number], len(drawn[number])) for number in waiting]
            for number, run in zip(waiting, executor.run_many_sync(requests), strict=True):
                drawn[number].append(run)
                if self._is_finished(drawn[number], budgets[questions[number].key]):
                    keep(number, self._voted(questions[number], drawn.pop(number)))

    def _request(self, question: Question, sample: int) -> RunRequest:
        replicate = question.replicate + sample * self.num_replicates
        return RunRequest(LONE_ANSWERER, question.task, question.evidence, replicate, "eval")

    def _is_finished(self, runs: Sequence[TopologyRun], budget: float) -> bool:
        if runs[-1].ending is Ending.ERROR or len(runs) >= self.max_samples:
            return True
        return sum(run.tokens for run in runs) >= budget

    def _voted(self, question: Question, runs: Sequence[TopologyRun]) -> MethodRun:
        slowest = max(run.latency_s for run in runs)  # samples do not wait for each other
        record = record_of(self.name, question, runs, latency_s=slowest)
        if runs[-1].ending is Ending.ERROR:
            return record
        answer = majority([run.answer for run in runs])
        if answer is not None:
            return replace(record, ending=Ending.ANSWERED, answer=answer, reason=None)
        all_cut = all(run.ending is Ending.TRUNCATED for run in runs)
        return replace(record, ending=Ending.TRUNCATED if all_cut else Ending.INVALID, answer=None)

    def _without_budget(self, question: Question, budget: MethodRun) -> MethodRun:
        why = "ended in error" if not budget.is_scored else "was not counted in tokens by its server"
        return replace(
            budget,
            method=self.name,
            ending=Ending.ERROR,
            reason=None,
            answer=None,
            roles=(),
            edges=(),
            messages=(),
            prompt_tokens=0,
            completion_tokens=0,
            calls=0,
            cached_calls=0,
            paid_tokens=0,
            latency_s=0.0,
            samples=0,
            checks=(),
            error=f"{self.builds_on} {why} on task {question.task.task_id!r}, so there are no tokens to match",
        )


def majority(answers: Sequence[str | None]) -> str | None:
    """Return the answer given most often; of several, the one given first. None if there is none.

    Example:
        >>> majority(["B", "A", None, "A", "B"]), majority([None])
        ('B', None)
    """
    votes = Counter(answer for answer in answers if answer is not None)
    return votes.most_common(1)[0][0] if votes else None  # equal counts stand in the order of their first vote


@dataclass(frozen=True, slots=True)
class ReAct:
    """One agent that retrieves, answers, and retrieves again, until its answer holds or its evidence is used up.

    At each step the agent sees all units found so far and answers. Then the next units are retrieved by the question
    joined with what it said, those it has seen left out. It stops when two steps running give the same answer, or when
    it has seen as many units as the evidence of the question holds (so that no method sees more).

    Whether to go on is decided by this rule, not by the agent: agents of the runtime have no action of their own. A
    step is one call; the team is counted as a chain of that many Answerers.

    Attributes:
        retrieve: Finds units of the question's graph.
        step_units: Units added at each step, >= 1.
        name: Key.

    Source:
        After Yao et al. 2022, arXiv:2210.03629, with retrieval as the only action.
    """

    retrieve: Retrieve
    step_units: int = 1
    name: str = REACT

    @property
    def builds_on(self) -> str | None:
        """Nothing."""
        return None

    @property
    def fingerprint(self) -> str:
        """Its settings."""
        return f"react/{self.step_units}"

    def play(
        self,
        questions: Sequence[Question],
        executor: Executor,
        earlier: Mapping[tuple[str, int], MethodRun],
        keep: Keep,
    ) -> None:
        """Answer every question; all that go on take their next step at the same time."""
        steps: dict[int, list[TopologyRun]] = {number: [] for number in range(len(questions))}
        shown = {number: self._more(questions[number], NO_EVIDENCE, "") for number in steps}
        while steps:
            waiting = list(steps)
            requests = [
                RunRequest(LONE_ANSWERER, questions[n].task, shown[n], questions[n].replicate, "eval") for n in waiting
            ]
            for number, run in zip(waiting, executor.run_many_sync(requests), strict=True):
                steps[number].append(run)
                more = self._next(questions[number], shown[number], steps[number])
                if more is not None:
                    shown[number] = more
                    continue
                runs = steps.pop(number)
                keep(number, record_of(self.name, questions[number], runs))

    def _next(self, question: Question, seen: EvidenceContext, runs: Sequence[TopologyRun]) -> EvidenceContext | None:
        """Return what the agent sees in its next step; None if there is none."""
        last = runs[-1]
        if last.ending in (Ending.ERROR, Ending.TRUNCATED):  # more evidence makes a prompt that is too long no shorter
            return None
        if len(runs) > 1 and last.answer is not None and last.answer == runs[-2].answer:
            return None
        more = self._more(question, seen, " ".join(message.text for message in last.messages))
        return more if len(more.units) > len(seen.units) else None

    def _more(self, question: Question, seen: EvidenceContext, said: str) -> EvidenceContext:
        """Return what was seen and the next units, at most as many as the question's evidence."""
        left = len(question.evidence.units) - len(seen.units)
        count = min(self.step_units, left)
        if count < 1:
            return seen
        known = {unit.unit_id for unit in seen.units}
        text = f"{question.task.question} {said}".strip()
        found = self.retrieve(question.task, text, len(known) + count)
        fresh = [
            (unit, similarity)
            for unit, similarity in zip(found.units, found.similarities, strict=True)
            if unit.unit_id not in known
        ][:count]
        return EvidenceContext(
            (*seen.units, *(unit for unit, _ in fresh)), (*seen.similarities, *(similarity for _, similarity in fresh))
        )
