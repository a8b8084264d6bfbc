"""An agent that asks a causal language model in this process, many calls in one batch.

The model's own chat template frames the prompt; control-token strings in messages and evidence become plain text, so
that nothing of the world can speak as the model. Calls that wait are taken into the batch as rows become free.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from provgym.envs.agent_prompts import PROMPT_FORMAT, agent_prompt
from provgym.envs.workflow_records import TOO_LONG, AgentFailure, AgentReply, NodeCall
from provgym.generators.agent_replies import call_seed, reply_of
from provgym.generators.engine import Dialogue, Engine, Sampled, Sampling


@dataclass(frozen=True, slots=True)
class _Asked:
    """A prompt that waits for a row, or for its tokens."""

    ids: Sequence[int]
    seed: int
    max_new_tokens: int
    answer: asyncio.Future[Sampled]


class HFAgent:
    """Plays every role with one model.

    Passes run in the event loop itself: while the model works there is nothing else to do.

    Args:
        engine: Samples; nobody else may use its rows.
        dialogue: Frames prompts.
        sampling: Greedy or at a temperature.
        identity: What tells this model from others: its name or, better, a digest of its weights.
        seed: Of sampling, >= 0.
        max_new_tokens: Of a reply.

    Raises:
        ValueError: If ``max_new_tokens`` < 1.
    """

    def __init__(
        self,
        engine: Engine,
        dialogue: Dialogue,
        sampling: Sampling,
        *,
        identity: str,
        seed: int = 0,
        max_new_tokens: int = 256,
    ) -> None:
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={max_new_tokens} must be >= 1")
        self._engine, self._dialogue, self._sampling = engine, dialogue, sampling
        self._seed, self._max_new_tokens = seed, max_new_tokens
        self._fingerprint = json.dumps(["hf", PROMPT_FORMAT, identity, sampling.temperature, seed, max_new_tokens])
        self._waiting: deque[_Asked] = deque()
        self._serving: asyncio.Task[None] | None = None

    @property
    def fingerprint(self) -> str:
        """Model, sampling, seed and prompt format."""
        return self._fingerprint

    async def reply(self, call: NodeCall) -> AgentReply:
        """Answer one call.

        Raises:
            AgentFailure: ``too_long`` if the prompt leaves no room for a reply, ``engine`` if nothing could be sampled.
        """
        prompt = agent_prompt(call)
        ids = self._dialogue.opening([prompt.user], prompt.system)
        room = self._engine.max_length - len(ids)
        if room < 1:
            raise AgentFailure(TOO_LONG, f"a prompt of {len(ids)} tokens, the model takes {self._engine.max_length}")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sampled] = loop.create_future()
        self._waiting.append(_Asked(ids, call_seed(call, self._seed), min(self._max_new_tokens, room), answer))
        if self._serving is None or self._serving.done():
            self._serving = loop.create_task(self._serve())
        sampled = await answer
        if sampled.error is not None:
            raise AgentFailure("engine", sampled.error)
        said = sampled.ids[:-1] if sampled.ended else sampled.ids
        text = self._dialogue.decode(said).strip()
        return reply_of(call, text, prompt_tokens=len(ids), completion_tokens=len(sampled.ids))

    async def _serve(self) -> None:
        """Work until nobody waits; a failure of the engine reaches everyone who does."""
        rows: dict[int, _Asked] = {}
        try:
            while self._waiting or rows:
                self._fill(rows)
                for sampled in self._engine.poll() if rows else []:
                    asked = rows.pop(sampled.row)
                    self._engine.close_row(sampled.row)
                    if not asked.answer.done():
                        asked.answer.set_result(sampled)
                await asyncio.sleep(0)  # whoever was answered may ask again, and joins the next pass
        except Exception as error:
            for asked in (*rows.values(), *self._waiting):
                if not asked.answer.done():
                    asked.answer.set_exception(error)
        finally:  # also where the event loop ends with calls under way
            for asked in (*rows.values(), *self._waiting):
                asked.answer.cancel()
            self._waiting.clear()
            for row in rows:
                self._engine.close_row(row)

    def _fill(self, rows: dict[int, _Asked]) -> None:
        """Give free rows to those who wait; whoever gave up meanwhile is passed over."""
        free = [row for row in range(self._engine.max_rows) if row not in rows]
        while free and self._waiting:
            asked = self._waiting.popleft()
            if asked.answer.done():
                continue
            row = free.pop(0)
            self._engine.open_row(row, asked.seed, self._sampling)
            rows[row] = asked
            self._engine.submit(row, asked.ids, asked.max_new_tokens, self._dialogue.end_ids)


def load_hf_agent(
    name_or_path: str,
    *,
    adapter: Path | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    max_new_tokens: int = 256,
    max_rows: int = 32,
    max_length: int | None = None,
) -> HFAgent:
    """Load a chat model and return the agent that asks it.

    Args:
        name_or_path: Folder, hub id, or ``smollm2``.
        adapter: Folder of a LoRA adapter, or None.
        temperature: 0 is greedy: then replicates and equal siblings say the same.
        seed: Of sampling.
        max_new_tokens: Of a reply.
        max_rows: Calls in one batch.
        max_length: Longest prompt with its reply, in tokens; None is the model's own limit.

    Raises:
        FileNotFoundError: If the model or adapter is missing.
        ModuleNotFoundError: If ``smollm2`` is not installed.
        ValueError: If the model is no causal LM with a usable chat template, or a number is out of range.
    """
    from provgym.generators.chat import ChatDialogue
    from provgym.generators.hf import load_causal_lm
    from provgym.generators.hf_engine import HFEngine
    from provgym.generators.model_policies import end_ids_of, resolve_model_path
    from provgym.generators.policy_kinds import SMOLLM2, HFSpec
    from provgym.generators.policy_spec import fingerprint_of

    path = resolve_model_path(SMOLLM2 if name_or_path == "smollm2" else name_or_path)
    model, tokenizer = load_causal_lm(path, adapter)
    return HFAgent(
        HFEngine(model, max_rows=max_rows, max_length=max_length),
        ChatDialogue(tokenizer, extra_end_ids=end_ids_of(model)),
        Sampling(temperature),
        identity=fingerprint_of(HFSpec(path=path, adapter=adapter)),
        seed=seed,
        max_new_tokens=max_new_tokens,
    )
