"""Simulated agents: they read the evidence text and the messages they are given, write text, and err by known rates.

What one call does, by the kind of its role:

* **Reasoner**: reads every unit, says what each supports, counts, concludes. Where messages say otherwise, the majority
  of what is said and what it read itself counts; see ``heed``.
* **Verifier**: takes the statements that the messages make about units, looks each up in the unit's span, keeps,
  corrects or drops it, says which units repeat a source, counts, concludes. It checks what is said: without a statement
  there is nothing to check, and what nobody mentions stays unmentioned.
* **Planner**: asks the others to keep to relevant units and to count each source once.
* **Answerer**: reads and weighs as a Reasoner does, and gives the answer; with nothing that speaks of the question it
  guesses.

What goes wrong, each with a probability of its own per kind of role (:class:`Skill`); draws are independent over calls:

* a unit is *missed*; or *misread*, the wrong way round; an irrelevant one *strays* in as evidence (each once a unit);
* *echo counting*: the call counts units instead of sources (once per call). It is systematic: more Reasoners of this
  kind agree on the same wrong answer, and only somebody who compares provenance repairs it;
* *heeding*: with this probability the call gives way where messages say otherwise and numbers don't decide, takes over
  what a Verifier checked, and counts as it says; otherwise its own reading stands.

So success comes out of the run: no formula over the graph stands anywhere. Which answer is right reaches no agent.

The rates of :data:`DEFAULT_ERROR_MODEL` were chosen so that each kind of evidence has another best team at a structural
cost of about 0.03 a node and 0.015 an edge: agreeing evidence one Answerer, irrelevant units a Reasoner beside it,
echoes a Reasoner and a Verifier. They are made up, not measured on language models.

Source of the four kinds of error: K-GAT, arXiv:2608.27984 (its discussion of consistent, conflicting and irrelevant
evidence) and GraphEcho, arXiv:2609.17695 (echo counting); the rates and the protocol are ours.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from functools import lru_cache

from provgym.envs.agent_prompts import PROMPT_FORMAT, prompt_parts
from provgym.envs.roles import RoleKind
from provgym.envs.simulated_errors import DEFAULT_ERROR_MODEL, Draws, ErrorModel, Skill
from provgym.envs.simulated_messages import read_report
from provgym.envs.simulated_thinking import (
    Situation,
    answered_text,
    checked_message,
    planned_text,
    reasoned_text,
)
from provgym.envs.workflow_key import content_digest
from provgym.envs.workflow_records import AgentReply, NodeCall, ordered_messages

__all__ = ["DEFAULT_ERROR_MODEL", "ErrorModel", "SimulatedAgent", "Skill"]

SIMULATED_FORMAT = 1
"""Raised when simulated agents behave otherwise: it is part of what their replies depend on."""

_TOKEN = re.compile(r"\w+|[^\w\s]")


class SimulatedAgent:
    """Plays every role in process. Its replies are made up by rule and luck; no language model is asked.

    Tokens are words and punctuation marks of the prompt that a language model would be given.

    Args:
        error_model: Rates of error.
        seed: Of its luck, >= 0. The same seed and call give the same reply, in any process and order; calls that are
            told anything else, replicates and equal siblings are independent draws.

    Raises:
        ValueError: If the seed is negative.
    """

    def __init__(self, error_model: ErrorModel = DEFAULT_ERROR_MODEL, seed: int = 0) -> None:
        if seed < 0:
            raise ValueError(f"seed={seed} must be >= 0")
        self._error_model, self._seed = error_model, seed
        self._fingerprint = json.dumps(["simulated", SIMULATED_FORMAT, PROMPT_FORMAT, seed, asdict(error_model)])

    @property
    def fingerprint(self) -> str:
        """Error model, seed and formats."""
        return self._fingerprint

    async def reply(self, call: NodeCall) -> AgentReply:
        """Answer one call, at once.

        Raises:
            ValueError: If the question does not ask for a verdict.
        """
        if call.answer_kind != "verdict":
            raise ValueError(
                f"task {call.task_id!r} asks for an answer of kind {call.answer_kind!r}, but simulated agents give "
                "verdicts only; use an endpoint or a local model"
            )
        kind = call.role.kind
        seen = Situation(
            question=call.question,
            evidence=call.evidence,
            reports=tuple(read_report(message.text) for message in ordered_messages(call.messages)),
            skill=self._error_model.of(kind),
            draws=Draws(self._seed, content_digest(call), len(call.evidence)),
        )
        stops, account = False, None
        if kind is RoleKind.VERIFY:
            text, account, stops = checked_message(seen)
        else:
            text = _WRITERS[kind](seen)
        prompt_tokens = sum(_tokens(part) for part in prompt_parts(call))
        return AgentReply(text, prompt_tokens, _tokens(text), stops, account)


_WRITERS = {RoleKind.PLAN: planned_text, RoleKind.REASON: reasoned_text, RoleKind.ANSWER: answered_text}


@lru_cache(maxsize=65_536)
def _tokens(text: str) -> int:
    return sum(1 for _ in _TOKEN.finditer(text))
