"""Reading an action out of any text a model may write.

The rule, in order:

1. The text, stripped, is one JSON object: that is the action.
2. The first line is an action in the short grammar (below): that is the action.
3. Otherwise every JSON object is looked at (a real decoder scans). If all actions found are equal, that is the action.
   If several stops disagree, it is a stop whose judgement does not parse; any other disagreement is no action.
4. Without an action in JSON, a text that starts with the word ``stop`` is a stop whose judgement does not parse.

Rules 2 to 4 read what stands behind the reasoning (:mod:`provgym.rewards.reasoning`), all rules at most 16,384
characters. So reasoning and prose ahead of the JSON decide nothing, whatever words, braces and actions they hold.

Short grammar::

    walk n3
    stop +3 -1 SUPPORT 0.9 S2 S5     (supporting and refuting sources, verdict, confidence, cited sources)

JSON forms: ``{"walk": "n3"}``, ``{"stop": {...}}``, ``{"name": "walk", "arguments": {"node": "n3"}}`` (tool calls),
``{"action": "walk", "node": "n3"}``, or a bare judgement ``{"verdict": ..., "confidence": ..., "support_count": ...,
"refute_count": ..., "cited_sources": [...], "rationale": ...}``.

Nothing raises: a text that is no action gives :class:`Unparsed`, a stop without a readable judgement gives
``Stop(None)``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from provgym.rewards.json_in_text import FoundValue, find_json, members_of
from provgym.rewards.outcome import Judgement, Verdict
from provgym.rewards.reasoning import said_after_reasoning

MAX_SCANNED_CHARACTERS = 16_384
_LEADING_STOP = re.compile(r"stop\b")
_STOP = re.compile(
    r"stop\s+\+\s*(\d{1,6})\s+-\s*(\d{1,6})\s+(SUPPORT|REFUTE|MIXED)\s+([01](?:\.\d{1,6})?)((?:\s+\S+){0,64})",
    re.ASCII,
)
_WALK = re.compile(r"walk\s+([^\s{]\S{0,255})")  # a brace begins JSON, no alias


@dataclass(frozen=True, slots=True)
class WalkTo:
    """Walk to a node, by its alias."""

    node: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the episode; ``judgement`` is None when it does not parse."""

    judgement: Judgement | None


@dataclass(frozen=True, slots=True)
class Unparsed:
    """Not an action."""


Action = WalkTo | Stop | Unparsed


class JudgementModel(BaseModel):
    """The JSON shape of a judgement; unknown keys are ignored, numbers may not be strings, NaN is refused."""

    model_config = ConfigDict(extra="ignore", strict=True)

    verdict: str
    support_count: int = Field(ge=0, le=1_000_000)
    refute_count: int = Field(ge=0, le=1_000_000)
    confidence: float = Field(ge=0.0, le=1.0, allow_inf_nan=False)
    cited_sources: list[str] = Field(default_factory=list, max_length=64)
    rationale: str = ""

    @field_validator("verdict")
    @classmethod
    def _known_verdict(cls, value: str) -> str:
        return Verdict(value.strip().upper()).value

    def to_judgement(self) -> Judgement:
        """Return the record that outcomes hold."""
        return Judgement(
            Verdict(self.verdict),
            self.support_count,
            self.refute_count,
            self.confidence,
            tuple(self.cited_sources),
            self.rationale,
        )


def parse_action(text: str) -> Action:
    r"""Read the action in ``text`` by the module's rule; never raises.

    Example:
        >>> parse_action("walk n3")
        WalkTo(node='n3')
        >>> parse_action('Sure! ```json\n{"walk": "n3"}\n```')
        WalkTo(node='n3')
        >>> parse_action("stop now")
        Stop(judgement=None)
    """
    whole = _decode_whole(text)
    if whole is not None:
        return _read_object(whole) or Unparsed()
    head = (said_after_reasoning(text) or "")[:MAX_SCANNED_CHARACTERS].strip()
    action = _parse_short(head) or _scan(head)
    if action is not None:
        return action
    return Stop(None) if _LEADING_STOP.match(head) else Unparsed()


def find_decision(text: str) -> int | None:
    r"""Return the place at which the text of a stop has said that it is one; what follows states the judgement.

    That is behind the word ``stop`` of the action itself, not of prose before it; in a bare judgement, behind its first
    key.

    Returns:
        Characters from the start of the text, 1 or more; None if the text is no stop.

    Example:
        >>> find_decision("stop +1 -0 SUPPORT 0.9"), find_decision('To stop: {"stop": {}}'), find_decision("walk n3")
        (4, 15, None)
    """
    if not isinstance(parse_action(text), Stop):
        return None
    read = text if _decode_whole(text) is not None else said_after_reasoning(text) or ""
    head = read.lstrip()
    margin = len(text) - len(head)
    head = head[:MAX_SCANNED_CHARACTERS]
    if not isinstance(_parse_short(head.rstrip()), Stop):
        for found in find_json(head):
            if isinstance(_read_object(found.value), Stop):
                return margin + _decision_within(head, found)
    return margin + len("stop")


def format_stop(judgement: Judgement) -> str:
    """Write a judgement in the short grammar.

    Example:
        >>> format_stop(Judgement(Verdict.SUPPORT, 3, 1, 0.9, ("S2", "S5")))
        'stop +3 -1 SUPPORT 0.9 S2 S5'
    """
    head = f"stop +{judgement.support_count} -{judgement.refute_count} {judgement.verdict.value}"
    return " ".join([head, f"{judgement.confidence:.1f}", *judgement.cited_sources])


def _decode_whole(text: str) -> Any | None:
    """Decode a text that is one JSON object; None if it is something else."""
    head = text[:MAX_SCANNED_CHARACTERS].strip()
    if not head.startswith("{"):
        return None
    try:
        return json.loads(head, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def _parse_short(text: str) -> Action | None:
    """Read an action in the short grammar off a stripped text's first line; None if that line is none."""
    line = text.splitlines()[0].strip() if text else ""
    walk = _WALK.fullmatch(line)
    if walk is not None:
        return WalkTo(walk.group(1))
    stop = _STOP.fullmatch(line)
    if stop is None or float(stop.group(4)) > 1.0:
        return None
    return Stop(
        Judgement(
            Verdict(stop.group(3)),
            int(stop.group(1)),
            int(stop.group(2)),
            float(stop.group(4)),
            tuple(stop.group(5).split()),
        )
    )


def _scan(text: str) -> Action | None:
    """Read the action that the JSON objects of a text agree on; None if none of them is an action."""
    agreed: Action | None = None
    is_torn = False
    for found in find_json(text):
        action = _read_object(found.value)
        if action is None or action == agreed:
            continue
        if agreed is None:
            agreed = action
        elif isinstance(agreed, Stop) and isinstance(action, Stop):
            is_torn = True
        else:
            return Unparsed()
    return Stop(None) if is_torn else agreed


def _decision_within(text: str, found: FoundValue) -> int:
    """Return the place behind the word that makes a JSON object a stop; behind the first key of a bare judgement."""
    naming = "name" if "name" in found.value else "action"
    is_named = found.value.get(naming) == "stop"
    members = list(members_of(text, found.start))
    word = members[0].key
    for member in members:
        if is_named and member.key.value == naming:
            word = member.value
        elif not is_named and member.key.value == "stop":
            word = member.key
    return word.end - len('"')


def _read_object(value: Any) -> Action | None:
    """Read one decoded JSON value; None if it is no action."""
    if not isinstance(value, dict):
        return None
    name = value.get("name", value.get("action"))
    if name in ("walk", "stop"):
        arguments = value.get("arguments", value)
        if isinstance(arguments, str):  # OpenAI-compatible servers send arguments as a JSON string
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                arguments = None
        node = arguments.get("node") if isinstance(arguments, dict) else None
        return _walk_to(node) if name == "walk" else Stop(_read_judgement(arguments))
    if "walk" in value:
        return _walk_to(value["walk"])
    if "stop" in value:
        return Stop(_read_judgement(value["stop"]))
    if "verdict" in value:
        return Stop(_read_judgement(value))
    return None


def _walk_to(node: Any) -> Action:
    return WalkTo(node) if isinstance(node, str) and 0 < len(node) <= 256 else Unparsed()


def _read_judgement(value: Any) -> Judgement | None:
    try:
        return JudgementModel.model_validate(value).to_judgement()
    except ValidationError:
        return None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
