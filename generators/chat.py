"""The dialogue of any chat model: its own template's ids around world text and actions, append-only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from transformers import PreTrainedTokenizerBase

from provgym.generators.chat_actions import (
    ACTION_GRAMMARS,
    ActionGrammar,
    longest_action,
    rewrite_action,
    stop,
    walk,
)
from provgym.generators.chat_frames import ChatFrames, Tool, read_frames
from provgym.generators.plain_text import PlainText

MAX_CITED_SOURCES = 10
WALK_TOOLS = (stop, walk)  # in the order in which TRL lists an environment's methods


class ChatDialogue:
    """Frames world text and actions as a chat template does, without ever re-rendering what was said.

    Under ``json`` every observation is a user message and an action is one JSON object. Under ``tool_call``
    the tools ``walk`` and ``stop`` are declared to the template, later observations are tool messages, and
    the ids equal those of TRL 1.16's tool loop (``GRPOTrainer._get_tool_suffix_ids``) as long as every action
    ends with the EOS token.

    Where a template leaves an empty reasoning block out of earlier turns (Qwen3 with
    ``enable_thinking=False``), the ids keep it: the model is trained on the very sequence that it continued.

    Args:
        tokenizer: Of the model; never changed.
        grammar: ``json`` or ``tool_call``.
        enable_thinking: Passed to the template.
        max_action_tokens: Longest legal action with its end token; None measures a stop that cites ten
            sources.
        chat_template: Used instead of the tokenizer's own.
        tools: Declared under ``tool_call``, as ``apply_chat_template`` takes them.
        extra_end_ids: More ids that end an action, such as those of the model's generation config.

    Raises:
        ValueError: If the grammar is unknown, a limit is below 1, the template can't be continued by
            appending (see :func:`~provgym.generators.chat_frames.read_frames`), or has no token that ends an
            assistant turn.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        grammar: ActionGrammar = "json",
        enable_thinking: bool = False,
        max_action_tokens: int | None = None,
        *,
        chat_template: str | None = None,
        tools: Sequence[Tool] = WALK_TOOLS,
        extra_end_ids: Iterable[int] = (),
    ) -> None:
        if grammar not in ACTION_GRAMMARS:
            raise ValueError(f"grammar {grammar!r} is unknown; choose one of {list(ACTION_GRAMMARS)}")
        if max_action_tokens is not None and max_action_tokens < 1:
            raise ValueError(f"max_action_tokens={max_action_tokens} must be >= 1")
        self.grammar = grammar
        frames = read_frames(tokenizer, grammar, tools, enable_thinking=enable_thinking, chat_template=chat_template)
        self._text = PlainText(tokenizer)
        eos = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        self._turn_end, self._before_reply = self._split_after_action(frames, {*eos, *extra_end_ids})
        self._end_ids = frozenset([*eos, *extra_end_ids, self._turn_end])
        self._frames = frames
        self._before_system = self._text.split_frame(frames.before_system)
        self._before_world = self._text.split_frame(frames.before_world)
        self._generation = self._text.split_frame(frames.generation)
        self._after_reply = self._text.split_frame(frames.after_reply)
        longest = len(self.encode_action(longest_action(MAX_CITED_SOURCES)))
        self._max_action_tokens = max_action_tokens or longest

    def _split_after_action(self, frames: ChatFrames, known_ends: set[int]) -> tuple[int, list[str | int]]:
        """Find the token that ends an assistant turn; return it and what follows it."""
        parts = self._text.split_frame(frames.after_action)
        places = [i for i, part in enumerate(parts) if isinstance(part, int)]
        known = [i for i in places if parts[i] in known_ends]
        if not known and self.grammar == "tool_call":
            places = []  # markup of the call itself comes first: only a known end can be told from it
        for place in known or places:
            end = parts[place]
            assert isinstance(end, int)  # by the choice of places
            return end, parts[place + 1 :]
        raise ValueError(
            "no control token of this tokenizer ends an assistant turn: the chat template writes "
            f"{frames.after_action!r} after one, and the roll-out needs such a token to know when an action "
            "is complete; pass extra_end_ids or chat_template"
        )

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end an action: the template's turn end, EOS, and the extra ones."""
        return self._end_ids

    @property
    def turn_end(self) -> int:
        """The id that the template writes at the end of an assistant turn."""
        return self._turn_end

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids that world text never yields."""
        return self._text.control_ids

    @property
    def max_action_tokens(self) -> int:
        """Longest legal action, its end token included."""
        return self._max_action_tokens

    def opening(self, lines: Sequence[str], instructions: str) -> list[int]:
        """Return the ids of the instructions and the first observation, up to the first sampled token."""
        world = "\n".join(lines)
        if self._frames.has_system_role:
            contents = [*self._before_system, instructions, *self._before_world, world]
        else:
            contents = [*self._before_world, f"{instructions}\n\n{world}" if instructions else world]
        return self._text.encode_parts([*contents, *self._generation])

    def reply(self, lines: Sequence[str], *, ended: bool) -> list[int]:
        """Return the ids between an action and the next; a turn end first if the action lacked one."""
        ids = self._text.encode_parts([*self._before_reply, "\n".join(lines), *self._after_reply])
        return ids if ended else [self._turn_end, *ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Return an action's text."""
        return self._text.decode(ids)

    def encode_action(self, text: str) -> list[int]:
        """Return an action's ids as the model would write them, end token included, for cloning.

        Args:
            text: An action in any grammar that the environment reads.

        Raises:
            ValueError: If the text is no action.
        """
        return [*self._text.encode_marked(rewrite_action(text, self.grammar)), self._turn_end]

    def unknown_in(self, lines: Sequence[str]) -> int:
        """Count tokens of world text that the tokenizer does not know."""
        return sum(self._text.count_unknown(line) for line in lines)
