"""What the agents that ask a language model share: the seed of a call, and its text as a reply."""

from __future__ import annotations

from provgym.envs.roles import RoleKind
from provgym.envs.verifier import VerifierAccount, common_answer, read_verification
from provgym.envs.workflow_key import content_digest
from provgym.envs.workflow_records import AgentReply, NodeCall
from provgym.generators.seeds import Purpose, derive_seed
from provgym.rewards.answers import extract_answer


def call_seed(call: NodeCall, seed: int) -> int:
    """Return a 31-bit seed, which every server takes; other content, replicates and siblings have other seeds.

    Args:
        call: What is asked.
        seed: Of the agent, >= 0.
    """
    return derive_seed(seed, Purpose.SAMPLING, int(content_digest(call), 16)) >> 32


def reply_of(
    call: NodeCall,
    text: str,
    *,
    prompt_tokens: int,
    completion_tokens: int,
    is_counted: bool = True,
    is_cached: bool = False,
) -> AgentReply:
    """Return a language model's text as a reply; a Verifier's is read for its checks and whether it stops.

    Args:
        call: What was asked.
        text: What the model wrote.
        prompt_tokens: See :class:`~provgym.envs.workflow_records.AgentReply`.
        completion_tokens: See there.
        is_counted: See there.
        is_cached: See there.
    """
    stops, account, passed_on = False, None, text
    if call.role.kind is RoleKind.VERIFY:
        verification = read_verification(text, call.evidence)
        before = [extract_answer(call.answer_kind, message.text, choices=call.choices) for message in call.messages]
        after = extract_answer(call.answer_kind, verification.message, choices=call.choices)
        account = VerifierAccount(verification.checks, common_answer(before), after)
        stops, passed_on = verification.stops, verification.message
    return AgentReply(passed_on, prompt_tokens, completion_tokens, stops, account, is_counted, is_cached)
