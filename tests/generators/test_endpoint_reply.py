"""Replies of a server: what the model did is a completion, what the infrastructure did is a failure of its kind."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provgym.generators.endpoint_reply import EndpointFailure, Reply, read_reply, retry_after_s

URL = "http://agents.test/v1/chat/completions"
CALL = {"function": {"name": "walk", "arguments": '{"node": "n1"}'}}

TEXTS = st.none() | st.text(max_size=9)
MESSAGES = st.dictionaries(st.sampled_from(["content", "tool_calls", "refusal"]), TEXTS | st.lists(TEXTS, max_size=2))
CHOICES = st.dictionaries(st.sampled_from(["message", "finish_reason"]), TEXTS | MESSAGES)


def reply(body: Any, status: int = 200, **headers: str) -> Reply:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Reply(URL, status, headers, raw)


def chat(content: Any, reason: Any = "stop", usage: Any = None, **message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content, **message}, "finish_reason": reason}], "usage": usage}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (chat("walk n1"), "walk n1"),
        (chat(""), ""),
        (chat(None, "length"), ""),  # a model that spent its tokens on reasoning: its doing, not the server's
        (chat(None, refusal="I can't judge that."), "I can't judge that."),
        (chat([{"type": "text", "text": "walk "}, {"type": "image"}, {"type": "text", "text": "n1"}]), "walk n1"),
        (chat(None, tool_calls=[CALL]), json.dumps(CALL["function"])),
        (chat("", tool_calls=[CALL]), json.dumps(CALL["function"])),
        (chat("said", tool_calls=[CALL]), "said"),
        (b'{"choices": [{"message": {"content": "\\ud800 a\\u0000b"}}]}', "? a\x00b"),
    ],
)
def test_what_the_model_did_is_its_answer(body: Any, text: str) -> None:
    """Fault kind: one failure loses its siblings (null content, ``finish_reason: length``)."""
    assert read_reply(reply(body)).text == text


def test_a_cut_answer_is_marked() -> None:
    """Fault kind: one failure loses its siblings (``finish_reason: length``)."""
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    assert read_reply(reply(chat('{"walk": "n', "length", usage))).counts == {"cut": 1, **usage}


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        "many",
        {"prompt_tokens": 5},
        {"prompt_tokens": 5, "completion_tokens": None},
        {"prompt_tokens": 5, "completion_tokens": -1},
        {"prompt_tokens": True, "completion_tokens": 2},
        {"prompt_tokens": 5.5, "completion_tokens": 2},
        {"prompt_tokens": 10**30, "completion_tokens": 2},
    ],
)
def test_tokens_that_were_not_counted_are_not_invented(usage: Any) -> None:
    """Fault kind: one failure loses its siblings (no usage)."""
    assert read_reply(reply(chat("x", usage=usage))).counts == {"usage_missing": 1}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"choices": []}, "no_choices"),
        (chat(None), "no_content"),
        (chat(None, "content_filter"), "no_content"),
        (chat([]), "no_content"),
        (chat(7), "no_content"),
        (b"<html><body>Bad gateway</body></html>", "not_json"),
        (b'{"choices": [{"mess', "not_json"),
        (b"", "not_json"),
        (b"\xff\xfe\xfa", "not_json"),
        (b"[" * 100_000, "not_json"),
        (b"9" * 100_000, "not_json"),
        ([1], "malformed"),
        ({"error": {"message": "overloaded"}}, "malformed"),
        ({"choices": "no"}, "malformed"),
        ({"choices": [None]}, "malformed"),
        ({"choices": [{"text": "x"}]}, "malformed"),
    ],
)
def test_what_the_server_did_is_a_failure_of_its_kind(body: Any, kind: str) -> None:
    """Fault kind: one failure loses its siblings (HTTP 200 with ``choices: []``, null content)."""
    with pytest.raises(EndpointFailure) as caught:
        read_reply(reply(body))
    assert (caught.value.kind, caught.value.status) == (kind, 200)
    assert str(caught.value).startswith(f"{kind}: {URL} answered HTTP 200: ")
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (429, "slow down", "rate_limited"),
        (408, "", "server"),
        (409, "", "server"),
        (425, "", "server"),
        (500, "<html>", "server"),
        (503, "loading", "server"),
        (529, "overloaded", "server"),
        (401, "no key", "refused"),
        (403, "", "refused"),
        (404, "no such model", "refused"),
        (204, "", "refused"),
        (413, "<html>Request Entity Too Large</html>", "refused"),
        (400, "unknown field seed", "refused"),
        (400, '{"error": {"code": "context_length_exceeded"}}', "too_long"),
        (400, "This model's maximum context length is 8192 tokens", "too_long"),
        (400, "the request exceeds the available context size. try increasing it", "too_long"),
        (413, "prompt is too long: 210000 tokens > 200000 maximum", "too_long"),
    ],
)
def test_every_status_has_its_kind(status: int, text: str, kind: str) -> None:
    with pytest.raises(EndpointFailure, match=f"^{kind}: {URL} answered HTTP {status}") as caught:
        read_reply(reply(text.encode(), status))
    assert caught.value.status == status


def test_a_redirect_is_refused_without_repeating_where_to() -> None:
    with pytest.raises(EndpointFailure, match="a redirect, which is not followed") as caught:
        read_reply(reply(b"", 307, location="http://elsewhere.test/?key=secret"))
    assert caught.value.kind == "refused"
    assert "secret" not in str(caught.value)


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    """Fault kind: one failure loses its siblings (429 with Retry-After)."""
    soon = datetime.now(UTC) + timedelta(seconds=300)
    for text in (format_datetime(soon, usegmt=True), format_datetime(soon.replace(tzinfo=None))):
        found = retry_after_s({"retry-after": text})
        assert found is not None
        assert 200 <= found <= 300
    past = format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)
    values = {"7": 7.0, "1.5": 1.5, "-3": 0.0, past: 0.0, "inf": float("inf")}
    assert {text: retry_after_s({"retry-after": text}) for text in values} == values
    for text in ("soon", "nan", "", "Wed, 99 Foo 2015 07:28:00 GMT"):
        assert retry_after_s({"retry-after": text}) is None
    assert retry_after_s({}) is None


def test_an_echoed_key_is_blotted_out() -> None:
    failure = EndpointFailure("refused", "Incorrect API key provided: sk-1. Use another than sk-1", 3.0, 401)
    assert str(failure.without("sk-1")) == "refused: Incorrect API key provided: ***. Use another than ***"
    assert (failure.without("sk-1").retry_after_s, failure.without("sk-1").status) == (3.0, 401)
    assert failure.without("") is failure


@settings(max_examples=50)
@given(st.binary(max_size=200) | st.recursive(st.none() | st.text(), st.lists).map(json.dumps).map(str.encode))
def test_bytes_that_are_no_completion_are_a_typed_failure(body: bytes) -> None:
    try:
        outcome: str = read_reply(reply(body)).text
    except EndpointFailure as failure:
        outcome = failure.kind
    assert outcome in ("not_json", "malformed", "no_choices", "no_content")


@settings(max_examples=50)
@given(
    st.dictionaries(st.sampled_from(["choices", "usage"]), TEXTS | st.lists(st.none() | CHOICES, max_size=2)),
)
def test_any_shape_is_a_completion_or_a_typed_failure(body: Any) -> None:
    try:
        text = read_reply(reply(body)).text
    except EndpointFailure:
        return
    text.encode("utf-8")
