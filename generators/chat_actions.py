"""How a chat model writes its actions: one JSON object, or a tool call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from provgym.envs.actions import Action, Stop, WalkTo, format_stop, parse_action
from provgym.rewards.outcome import Judgement, Verdict

ActionGrammar = Literal["json", "tool_call"]
ACTION_GRAMMARS: tuple[ActionGrammar, ...] = ("json", "tool_call")

TOOL_INSTRUCTIONS = """\
You judge a claim by walking an evidence graph. Each walk moves to a neighbouring node and shows its content.
Several nodes can repeat one observation of one source. When you know enough, or no walks are left, stop with
a judgement: how many distinct sources support and refute the claim, and the verdict of their majority
(SUPPORT, REFUTE, or MIXED for a tie).
Answer every time with exactly one tool call and nothing else."""


def instructions_of(grammar: ActionGrammar | None) -> str | None:
    """Return a grammar's own system text; None where the presentation's is right, as for ``json``.

    Everyone who shows a walk to a language model asks here, so that training and evaluation show the same.
    """
    return TOOL_INSTRUCTIONS if grammar == "tool_call" else None


def walk(node: str) -> str:
    """
    Walk to a neighbouring node of the evidence graph and read its content.

    Args:
        node: Alias of a node listed under Moves, such as n3.

    Returns:
        What is seen there, the walks left and the next moves.
    """  # noqa: D205, D212 - the layout that chat templates' schema readers expect
    raise NotImplementedError(f"declared for chat templates only; walk({node!r}) is played by the environment")


def stop(support_count: int, refute_count: int, verdict: str, confidence: float, cited_sources: list[str]) -> str:
    """
    End the episode with a judgement of the claim.

    Args:
        support_count: Distinct sources that support the claim.
        refute_count: Distinct sources that refute the claim.
        verdict: SUPPORT, REFUTE or MIXED.
        confidence: Between 0 and 1.
        cited_sources: Labels of the sources that were read.

    Returns:
        A note that the episode is over.
    """  # noqa: D205, D212
    given = (support_count, refute_count, verdict, confidence, cited_sources)
    raise NotImplementedError(f"declared for chat templates only; stop{given!r} is played by the environment")


def judgement_fields(judgement: Judgement) -> dict[str, Any]:
    """Return a judgement as the JSON fields that :func:`~provgym.envs.actions.parse_action` reads."""
    fields: dict[str, Any] = {
        "support_count": judgement.support_count,
        "refute_count": judgement.refute_count,
        "verdict": judgement.verdict.value,
        "confidence": judgement.confidence,
        "cited_sources": list(judgement.cited_sources),
    }
    return {**fields, "rationale": judgement.rationale} if judgement.rationale else fields


def format_action(action: Action, grammar: ActionGrammar) -> str:
    """Write an action in a chat grammar.

    Raises:
        ValueError: If the action is none, or a stop without a judgement.

    Example:
        >>> format_action(WalkTo("n3"), "json")
        '{"walk": "n3"}'
        >>> print(format_action(WalkTo("n3"), "tool_call"))
        <tool_call>
        {"name": "walk", "arguments": {"node": "n3"}}
        </tool_call>
    """
    arguments: Mapping[str, Any]
    if isinstance(action, WalkTo):
        name, arguments = "walk", {"node": action.node}
        short: dict[str, Any] = {"walk": action.node}
    elif isinstance(action, Stop) and action.judgement is not None:
        name, arguments = "stop", judgement_fields(action.judgement)
        short = {"stop": arguments}
    else:
        raise ValueError(f"{action!r} can't be written as an action; expected a walk, or a stop with a judgement")
    if grammar == "json":
        return json.dumps(short, ensure_ascii=False)
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def rewrite_action(text: str, grammar: ActionGrammar) -> str:
    """Write an action text of any grammar (a scripted walker's, say) in a chat grammar.

    Raises:
        ValueError: If the text is no action.

    Example:
        >>> rewrite_action("walk n3", "json")
        '{"walk": "n3"}'
    """
    return format_action(parse_action(text), grammar)


def longest_action(max_cited: int) -> str:
    """Return a stop as long as one that cites ``max_cited`` sources gets, in the short grammar."""
    cited = tuple(f"S{10 + i}" for i in range(max_cited))
    return format_stop(Judgement(Verdict.SUPPORT, 10, 10, 0.9, cited))
