"""What a chat-completions server may answer: a completion, or a failure of a named kind.

One rule decides between the two: what the *model* did is a completion, however odd (cut at the token limit, empty
because the limit was spent on reasoning, a refusal), and is scored; what the *infrastructure* did is a failure, and is
never scored as an answer.
"""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Literal, NamedTuple, NoReturn

FailureKind = Literal[
    "rate_limited",
    "timeout",
    "deadline",
    "connection",
    "server",
    "refused",
    "too_long",
    "not_json",
    "malformed",
    "no_choices",
    "no_content",
    "given_up",
]
RETRIED: frozenset[FailureKind] = frozenset(["rate_limited", "timeout", "connection", "server", "not_json"])
"""What a second attempt may cure. A reply of the wrong shape or without content would come again, and be paid again."""

RETRIED_STATUSES = frozenset([408, 409, 425, 429])
"""HTTP statuses below 500 that ask for a second attempt."""

_EXCERPT = 300
_LONGEST_REASON = 40
_MOST_TOKENS = 2**53  # more is no count, and would not fit into every number format on the way
_TOO_LONG_STATUSES = (400, 413, 422)
_TOO_LONG_MARKS = (
    "context_length",
    "context length",
    "context size",
    "context window",
    "exceed_context",
    "max_model_len",
    "maximum context",
    "prompt is too long",
)


class Reply(NamedTuple):
    """An HTTP reply, read whole.

    Attributes:
        url: Where it comes from.
        status: HTTP status.
        headers: By lower-case name.
        body: Decompressed bytes.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def excerpt(self) -> str:
        """The beginning of the body, for messages."""
        return self.body[: 4 * _EXCERPT].decode("utf-8", "replace")[:_EXCERPT]


class EndpointFailure(Exception):
    """A completion that could not be had.

    Attributes:
        kind: What went wrong.
        detail: Where and how, without secrets.
        retry_after_s: Seconds that the server asked to wait, or None.
        status: HTTP status, or None if there was no reply.
    """

    def __init__(
        self, kind: FailureKind, detail: str, retry_after_s: float | None = None, status: int | None = None
    ) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.status = status

    def without(self, secret: str) -> EndpointFailure:
        """Return the failure with a secret blotted out, which some servers echo in their messages."""
        if not secret or secret not in self.detail:
            return self
        return EndpointFailure(self.kind, self.detail.replace(secret, "***"), self.retry_after_s, self.status)


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of a model.

    Attributes:
        text: As written, also when it was cut; the empty text is an answer too.
        prompt_tokens: As the server counted them, or None if it did not.
        completion_tokens: The same of the answer.
        finish_reason: As the server named it, or None.
    """

    text: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None

    @property
    def counts(self) -> dict[str, int]:
        """Tokens for a tally: ``prompt_tokens``, ``completion_tokens``, or ``usage_missing``; ``cut`` if it was cut."""
        counts = {} if self.finish_reason != "length" else {"cut": 1}
        if self.prompt_tokens is None or self.completion_tokens is None:
            return {**counts, "usage_missing": 1}
        return {**counts, "prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}


def read_reply(reply: Reply) -> Completion:
    """Return the completion in a reply.

    A tool call becomes the JSON that the environment reads; a refusal is its text; content that a server sends in parts
    is joined; no content at the token limit is the empty text (the model spent its tokens elsewhere).

    Raises:
        EndpointFailure: If there is none; its kind says why.
    """
    if reply.status != 200:
        raise _status_failure(reply)
    try:
        body = json.loads(reply.body)
    except (ValueError, RecursionError):
        _fail(reply, "not_json", f"expected JSON, found {reply.excerpt!r}")
    if not isinstance(body, dict) or not isinstance(body.get("choices"), list):
        _fail(reply, "malformed", f"expected a chat completion with choices, found {reply.excerpt!r}")
    if not body["choices"]:
        _fail(reply, "no_choices", "an empty list of choices")
    choice = body["choices"][0]
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        _fail(reply, "malformed", f"the first choice holds no message: {reply.excerpt!r}")
    named = choice.get("finish_reason")
    reason = named.encode("ascii", "replace").decode("ascii")[:_LONGEST_REASON] if isinstance(named, str) else None
    text = _text_of(message)
    if text is None and reason == "length":
        text = ""
    if text is None:
        _fail(reply, "no_content", f"content {message.get('content')!r}, finish_reason {reason!r}")
    # A lone surrogate is legal JSON but can't be sent back: it becomes a replacement character.
    return Completion(text.encode("utf-8", "replace").decode("utf-8"), *_tokens_of(body.get("usage")), reason)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a Retry-After header asks for, given as seconds or as an HTTP date; None without one.

    Example:
        >>> retry_after_s({"retry-after": "7"})
        7.0
        >>> retry_after_s({"retry-after": "soon"}) is None
        True

    Source:
        RFC 9110, section 10.2.3.
    """
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        pass
    else:
        return max(0.0, seconds) if seconds == seconds else None  # NaN asks for nothing
    try:
        when = email.utils.parsedate_to_datetime(value)
        aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        return max(0.0, aware.timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _status_failure(reply: Reply) -> EndpointFailure:
    status = reply.status
    detail = f"{reply.url} answered HTTP {status}: {reply.excerpt}"
    if 300 <= status < 400:
        # Never followed: the place it names would be sent the key.
        detail = f"{reply.url} answered HTTP {status}, a redirect, which is not followed; give its target as base_url"
        return EndpointFailure("refused", detail, None, status)
    if status in RETRIED_STATUSES or status >= 500:
        kind: FailureKind = "rate_limited" if status == 429 else "server"
        return EndpointFailure(kind, detail, retry_after_s(reply.headers), status)
    text = reply.body[:10_000].decode("utf-8", "replace").lower()
    if status in _TOO_LONG_STATUSES and any(mark in text for mark in _TOO_LONG_MARKS):
        return EndpointFailure("too_long", detail, None, status)
    return EndpointFailure("refused", detail, None, status)


def _fail(reply: Reply, kind: FailureKind, found: str) -> NoReturn:
    raise EndpointFailure(kind, f"{reply.url} answered HTTP {reply.status}: {found}", None, reply.status) from None


def _text_of(message: Mapping[str, Any]) -> str | None:
    """Return what the model said, or None if there is nothing of it."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        content = "".join(part for part in parts if isinstance(part, str)) if parts else None
    calls = message.get("tool_calls")
    if not content and isinstance(calls, list) and calls and isinstance(calls[0], dict):
        return json.dumps(calls[0].get("function"))
    if isinstance(content, str):
        return content
    refusal = message.get("refusal")
    return refusal if isinstance(refusal, str) and refusal else None


def _tokens_of(usage: Any) -> tuple[int | None, int | None]:
    """Return prompt and completion tokens; what is no whole number of tokens is none."""
    found = usage if isinstance(usage, dict) else {}
    counts = [found.get(name) for name in ("prompt_tokens", "completion_tokens")]
    prompt, completion = (c if _is_count(c) else None for c in counts)
    return prompt, completion


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_TOKENS
