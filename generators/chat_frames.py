"""What a chat template puts around messages, found by rendering conversations whose contents are known marks.

The roll-out only ever appends ids, so it needs three things from a template: what comes before the first
sampled token, what ends an assistant turn, and what stands between that end and the next sampled token. All
three are read off the template's own output. Templates for which appending differs from rendering are refused
by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from provgym.envs.actions import WalkTo
from provgym.generators.chat_actions import ActionGrammar, format_action

_SYSTEM, _WORLD, _ACTION, _REASON = (
    "provgymSYSTEMmark",
    "provgymWORLD{}mark",
    "provgymACTION{}mark",
    "provgymREASONmark",
)
_REASONING_MARKS = re.compile(r"</?think>|\s+")
Message = dict[str, Any]
Tool = Callable[..., Any] | dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChatFrames:
    """A template's own text around contents.

    Attributes:
        has_system_role: Whether instructions go into a system message; if not, they open the first user
            message.
        before_system: Text before the instructions; "" without a system role.
        before_world: Text before the first observation, behind the instructions if there is a system role.
        generation: Text between the first observation and the first sampled token.
        after_action: Text between an action and the next observation; the turn's end token is in it.
        after_reply: Text between a later observation and the next sampled token.
    """

    has_system_role: bool
    before_system: str
    before_world: str
    generation: str
    after_action: str
    after_reply: str


class _Renderer:
    """Renders conversations of marks with one tokenizer, template and setting."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        chat_template: str | None,
        enable_thinking: bool,
        grammar: ActionGrammar,
        tools: Sequence[Tool],
    ) -> None:
        self.name = str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
        self.grammar = grammar
        self._tokenizer, self._chat_template = tokenizer, chat_template
        self._enable_thinking = enable_thinking
        self._tools: list[Tool] | None = list(tools) if grammar == "tool_call" else None

    def render(self, messages: Sequence[Message], *, generate: bool, with_tools: bool = True) -> str:
        """Return the template's output for a conversation."""
        return str(
            self._tokenizer.apply_chat_template(
                list(messages),
                tools=list(self._tools) if self._tools and with_tools else None,
                chat_template=self._chat_template,
                add_generation_prompt=generate,
                tokenize=False,
                enable_thinking=self._enable_thinking,
            )
        )

    def conversation(self, turns: int, *, has_system: bool, reason: str = "") -> list[Message]:
        """Return [system], user, then ``turns`` times (action, observation)."""
        messages: list[Message] = [{"role": "system", "content": _SYSTEM}] if has_system else []
        messages.append({"role": "user", "content": _WORLD.format(0)})
        for turn in range(turns):
            mark = _ACTION.format(turn)
            if self.grammar == "json":
                messages.append({"role": "assistant", "content": reason + mark})
                messages.append({"role": "user", "content": _WORLD.format(turn + 1)})
            else:
                call = {"type": "function", "function": {"name": "walk", "arguments": {"node": mark}}}
                messages.append({"role": "assistant", "content": reason, "tool_calls": [call]})
                messages.append({"role": "tool", "name": "walk", "content": _WORLD.format(turn + 1)})
        return messages

    def refuse(self, fault: str, way_out: str) -> ValueError:
        """Return the error that names the template's fault."""
        return ValueError(f"the chat template of {self.name} {fault}; {way_out}")


_WAY_OUT = (
    "the roll-out only appends ids, so it needs a template that writes every earlier turn the same way: pass "
    "chat_template=TEXT with such a template"
)


def read_frames(
    tokenizer: PreTrainedTokenizerBase,
    grammar: ActionGrammar,
    tools: Sequence[Tool],
    *,
    enable_thinking: bool = False,
    chat_template: str | None = None,
) -> ChatFrames:
    """Read the frames of a chat template.

    Args:
        tokenizer: With a chat template, unless one is given.
        grammar: ``json`` (observations are user messages) or ``tool_call`` (later ones are tool messages).
        tools: Declared to the template under ``tool_call``.
        enable_thinking: Passed to the template.
        chat_template: Used instead of the tokenizer's own.

    Raises:
        ValueError: If there is no template, or it drops, repeats, merges or rewrites messages, or declares no
            tools.
    """
    renderer = _Renderer(tokenizer, chat_template, enable_thinking, grammar, tools)
    if chat_template is None and tokenizer.chat_template is None:
        raise ValueError(
            f"the tokenizer of {renderer.name} has no chat template; use the model's instruction-tuned "
            "variant, or pass chat_template=TEXT"
        )
    has_system, (none, one, two) = _gaps(renderer)
    start = 2 if has_system else 1  # gaps before the first observation's end
    generation, after_reply = none[start], one[-1]
    after_action = one[start + 1]
    same_start = none[:start] == one[:start] == two[:start]
    if not same_start or two[start : start + 2] != one[start : start + 2]:
        raise renderer.refuse("rewrites history: earlier turns look different once more turns follow", _WAY_OUT)
    if two[-1] != after_reply or two[start + 3] != after_action:
        raise renderer.refuse("rewrites history: it frames each turn differently", _WAY_OUT)
    _check_header(renderer, generation, one[start])
    _check_header(renderer, after_reply, two[start + 2])
    _check_reasoning(renderer, has_system, generation)
    if grammar == "tool_call":
        _check_tools(renderer, has_system, one[start])
    before_system = none[0] if has_system else ""
    return ChatFrames(has_system, before_system, none[start - 1], generation, after_action, after_reply)


def _gaps(renderer: _Renderer) -> tuple[bool, list[list[str]]]:
    """Return whether there is a system role, and the text around the marks after 0, 1 and 2 turns.

    Raises:
        ValueError: If a message is lost, repeated or out of order with and without a system message.
    """
    faults = []
    for has_system in (True, False):
        try:
            return has_system, [_split(renderer, turns, has_system) for turns in range(3)]
        except (TemplateError, TypeError, _LostMessageError) as error:
            faults.append(f"{'with' if has_system else 'without'} a system message: {error}")
    way_out = "pass chat_template=TEXT with a template that keeps every message"
    if renderer.grammar == "tool_call":
        way_out += ", or use the json grammar"
    raise renderer.refuse(f"drops, repeats or merges messages ({'; '.join(faults)})", way_out)


class _LostMessageError(Exception):
    """A message's content is not exactly once, in order, in the rendered text."""


def _split(renderer: _Renderer, turns: int, has_system: bool) -> list[str]:
    text = renderer.render(renderer.conversation(turns, has_system=has_system), generate=True)
    marks = [_SYSTEM] if has_system else []
    marks.append(_WORLD.format(0))
    for turn in range(turns):
        marks += [_ACTION.format(turn), _WORLD.format(turn + 1)]
    gaps = []
    for mark in marks:
        before, found, text = text.partition(mark)
        if not found or mark in text:
            raise _LostMessageError(f"the content of message {marks.index(mark)} of {len(marks)} is not there once")
        gaps.append(before)
    return [*gaps, text]


def _check_header(renderer: _Renderer, generation: str, header: str) -> None:
    """Compare what precedes an action when sampled and when remembered; empty reasoning may differ."""
    sampled, history = (_REASONING_MARKS.sub("", text) for text in (generation, header))
    if renderer.grammar == "tool_call" and history.startswith(sampled):
        return  # the history goes on with the tool call itself
    if sampled != history:
        raise renderer.refuse(
            f"rewrites history: an action is sampled after {generation!r} but remembered after {header!r}",
            _WAY_OUT,
        )


def _check_reasoning(renderer: _Renderer, has_system: bool, generation: str) -> None:
    """Refuse templates that drop reasoning from earlier turns, unless it is closed before sampling."""
    if "</think>" in generation:
        return
    reason = f"<think>\n{_REASON}\n</think>\n\n"
    messages = renderer.conversation(1, has_system=has_system, reason=reason)
    if _REASON not in renderer.render(messages, generate=True):
        raise renderer.refuse(
            "rewrites history: it drops the reasoning of earlier turns",
            "use enable_thinking=False if the template knows it, or pass chat_template=TEXT that keeps it",
        )


def _check_tools(renderer: _Renderer, has_system: bool, header: str) -> None:
    """Refuse templates that ignore declared tools or write calls otherwise than our JSON."""
    conversation = renderer.conversation(0, has_system=has_system)
    if renderer.render(conversation, generate=True) == renderer.render(conversation, generate=True, with_tools=False):
        raise renderer.refuse("declares no tools", "use the json grammar, or pass chat_template=TEXT with tool support")
    expected = format_action(WalkTo(_ACTION), "tool_call").split(_ACTION)[0]
    if not header.endswith(expected):
        raise renderer.refuse(
            f"writes a tool call as {header[-120:]!r}, expected {expected!r}",
            "use the json grammar, or pass chat_template=TEXT with JSON tool calls",
        )
