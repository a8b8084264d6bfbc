"""What a workflow passes around: calls to agents, their replies, and what a run of a topology came to."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from provgym.envs.answer_judge import AnswerJudgement
from provgym.envs.evidence_units import EvidenceContext, EvidenceUnit
from provgym.envs.roles import Role
from provgym.envs.topology import Topology
from provgym.envs.topology_tasks import TopologyTask
from provgym.envs.verifier import VerifierAccount
from provgym.rewards.answers import AnswerKind
from provgym.rewards.outcome import Ending

Phase = Literal["train", "eval"]
"""Whether training or evaluation pays for a call."""

STOPPED_BY_VERIFIER = "stopped_by_verifier"
PREDECESSOR = "predecessor"
"""Kind of the failure of a node that was never asked, because one that it hears failed."""

TOO_LONG = "too_long"
"""Kind of the failure of a call that does not fit into the model's context: a run that only such calls stop is
``truncated``; any other failure makes it an ``error``."""


@dataclass(frozen=True, slots=True)
class AgentMessage:
    """What one node said.

    Attributes:
        sender: Name of its role.
        node: Its number in the run's topology; agents must not read it, since equal messages are one to the cache.
        text: As written.
    """

    sender: str
    node: int
    text: str


@dataclass(frozen=True, slots=True)
class NodeCall:
    """Everything that an agent is told, and so everything that its reply may depend on.

    Attributes:
        task_id: For ledgers; it decides nothing.
        role: Whom the agent plays.
        question: The task's.
        answer_kind: How the answer is to be given.
        choices: Of a multiple-choice question, else empty.
        evidence: Retrieved units, best first; may be empty.
        messages: Of the predecessors, ordered by sender and text.
        replicate: Number of the repeat of the whole run, >= 0.
        sibling: Number among the run's nodes of the same role that hear the same roles, >= 0: two equal Reasoners are
            two draws.
        phase: Who pays; it decides nothing.
    """

    task_id: str
    role: Role
    question: str
    answer_kind: AnswerKind
    choices: tuple[str, ...]
    evidence: tuple[EvidenceUnit, ...]
    messages: tuple[AgentMessage, ...]
    replicate: int
    sibling: int = 0
    phase: Phase = "eval"


@dataclass(frozen=True, slots=True)
class AgentReply:
    """What an agent answered.

    Attributes:
        text: What the successors hear, or, of the Answerer, the answer.
        prompt_tokens: Read by the agent, >= 0.
        completion_tokens: Written by it, >= 0.
        stops: Whether a Verifier asks that nobody answers.
        account: Of a Verifier: what it checked.
        is_counted: Whether the tokens are known; a server that counts none leaves zeros and False.
        is_cached: Whether it was answered from a store of the agent's own, and so was not paid for now.

    Raises:
        ValueError: If a count is negative, or the text is no Unicode text (half of a surrogate pair).
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    stops: bool = False
    account: VerifierAccount | None = None
    is_counted: bool = True
    is_cached: bool = False

    def __post_init__(self) -> None:
        if self.prompt_tokens < 0 or self.completion_tokens < 0:
            raise ValueError(
                f"token counts must be >= 0, found prompt_tokens={self.prompt_tokens}, "
                f"completion_tokens={self.completion_tokens}"
            )
        if not self.text.isascii() and any("\ud800" <= character <= "\udfff" for character in self.text):
            raise ValueError("a reply holds half of a surrogate pair, expected Unicode text; replace it in the agent")


class AgentFailure(Exception):
    """A reply that could not be had, because of the infrastructure: never scored as a wrong answer.

    Args:
        kind: What went wrong, one word, such as ``timeout``; ``too_long`` for a call that can't fit.
        detail: Where and how, without secrets.

    Attributes:
        kind: As given.
        detail: As given.
    """

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind
        self.detail = detail


class Agent(Protocol):
    """Whoever plays the roles."""

    @property
    def fingerprint(self) -> str:
        """What a reply depends on beside the call, as text: model, sampling, prompt format, error model, seed."""
        ...

    async def reply(self, call: NodeCall) -> AgentReply:
        """Answer one call.

        Raises:
            AgentFailure: If no answer could be had. Any other exception is a bug and ends all runs.
        """
        ...


@runtime_checkable
class SessionAgent(Agent, Protocol):
    """An agent that holds something open while it answers, such as connections of one event loop."""

    def session(self) -> AbstractAsyncContextManager[object]:
        """Open it for a block; blocks may overlap."""
        ...


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One execution of a topology on a task.

    Attributes:
        topology: Who takes part and who hears whom.
        task: What is asked; the gold answer scores the run and reaches no agent.
        evidence: What every agent is shown.
        replicate: Number of the repeat, >= 0; repeats are independent draws.
        phase: Who pays.

    Raises:
        ValueError: If the replicate is negative.
    """

    topology: Topology
    task: TopologyTask
    evidence: EvidenceContext
    replicate: int = 0
    phase: Phase = "eval"

    def __post_init__(self) -> None:
        if self.replicate < 0:
            raise ValueError(f"replicate={self.replicate} must be >= 0")


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One answered call of a run.

    Attributes:
        node: Number in the run's topology.
        role: Its role.
        phase: Who pays.
        prompt_tokens: Read.
        completion_tokens: Written.
        is_cached: Whether it was answered by a stored reply and so not paid for now; tokens are the stored call's.
        key: What the reply is stored under: 64 hexadecimal digits.
        is_counted: Whether the tokens are known; if not, they are 0.
        seconds: What the call took when it was paid for, cached or not.
    """

    node: int
    role: str
    phase: Phase
    prompt_tokens: int
    completion_tokens: int
    is_cached: bool
    key: str
    is_counted: bool = True
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """One node that gave no reply.

    Attributes:
        node: Number in the run's topology.
        role: Its role.
        kind: The agent's failure kind, or ``predecessor``.
        detail: Where and how.
        cause: The node that failed first, if this one was never asked; else None.
    """

    node: int
    role: str
    kind: str
    detail: str
    cause: int | None = None

    def __str__(self) -> str:
        return f"{self.role} ({self.node}): {self.kind}: {self.detail}"


@dataclass(frozen=True, slots=True)
class NodeAccount:
    """A Verifier's account, and whose it is.

    Attributes:
        node: Number in the run's topology.
        account: What was checked.
    """

    node: int
    account: VerifierAccount


@dataclass(frozen=True, slots=True)
class TopologyRun:
    """What one execution came to.

    Nodes are numbered as in ``topology``, the canonical form of the one that was asked for: equal graphs have equal
    runs, however their nodes were numbered.

    Attributes:
        task_id: Of the task.
        topology_key: Equal for equal graphs.
        replicate: Number of the repeat.
        phase: Who paid.
        topology: The canonical form.
        ending: ``answered``, ``invalid`` (an answer that can't be read, or a Verifier's stop without one),
            ``truncated`` (a call that does not fit into the model's context) or ``error``.
        reason: ``stopped_by_verifier``, or None.
        answer: In canonical form, None unless answered.
        is_correct: None if the ending is ``error``; an error is never a wrong answer.
        messages: Of all nodes that replied, by node.
        calls: Answered calls, by node.
        failures: Nodes that gave no reply, by node; those that a Verifier's stop spared are not among them.
        accounts: Of Verifiers, by node.
        latency_s: Seconds along the slowest chain of calls, each with what it took when it was paid for: what the run
            takes where nothing else runs, whether or not replies were stored.
        judgements: Of answers that had to be run: the run's own, and those that Verifiers met; else empty.

    Raises:
        ValueError: If ``answer`` or ``is_correct`` does not go with the ending.
    """

    task_id: str
    topology_key: str
    replicate: int
    phase: Phase
    topology: Topology
    ending: Ending
    reason: str | None
    answer: str | None
    is_correct: bool | None
    messages: tuple[AgentMessage, ...]
    calls: tuple[CallRecord, ...]
    failures: tuple[NodeFailure, ...]
    accounts: tuple[NodeAccount, ...]
    latency_s: float
    judgements: tuple[AnswerJudgement, ...] = ()

    def __post_init__(self) -> None:
        if (self.is_correct is None) != (self.ending is Ending.ERROR):
            raise ValueError(f"is_correct={self.is_correct} does not go with ending {self.ending.value!r}")
        if (self.answer is not None) != (self.ending is Ending.ANSWERED):
            raise ValueError(f"answer={self.answer!r} does not go with ending {self.ending.value!r}")

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens of all answered calls, stored ones included: what the run costs by itself."""
        return sum(call.prompt_tokens + call.completion_tokens for call in self.calls)


def ordered_messages(messages: Iterable[AgentMessage]) -> tuple[AgentMessage, ...]:
    """Return messages in the order in which agents are shown them: by sender, then text, whatever the node numbers."""
    return tuple(sorted(messages, key=lambda message: (message.sender, message.text)))
