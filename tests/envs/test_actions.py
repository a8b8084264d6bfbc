"""Reading an action out of any text: one written rule, no exception, bounded work."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provgym.envs import actions
from provgym.envs.actions import Stop, Unparsed, WalkTo, find_decision, format_stop, parse_action
from provgym.rewards.json_in_text import FoundValue, find_json
from provgym.rewards.outcome import Judgement, Verdict

JUDGEMENT: dict[str, Any] = {
    "verdict": "SUPPORT",
    "support_count": 3,
    "refute_count": 1,
    "confidence": 0.9,
    "cited_sources": ["S2", "S5"],
    "rationale": "Three against one.",
}
READ = Stop(Judgement(Verdict.SUPPORT, 3, 1, 0.9, ("S2", "S5"), "Three against one."))
BARE = json.dumps(JUDGEMENT)
OTHER = json.dumps({**JUDGEMENT, "verdict": "REFUTE"})


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in JUDGEMENT.items() if key not in keys}


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("walk n3", WalkTo("n3")),
        ("  walk   n3  \nbecause it is new", WalkTo("n3")),
        ('{"walk": "n3"}', WalkTo("n3")),
        ('{"action": "walk", "node": "n3"}', WalkTo("n3")),
        ('{"name": "walk", "arguments": {"node": "n3"}}', WalkTo("n3")),
        ('{"name": "walk", "arguments": "{\\"node\\": \\"n3\\"}"}', WalkTo("n3")),
        ("stop +3 -1 SUPPORT 0.9 S2 S5", Stop(Judgement(Verdict.SUPPORT, 3, 1, 0.9, ("S2", "S5")))),
        ("stop +0 -0 MIXED 1", Stop(Judgement(Verdict.MIXED, 0, 0, 1.0))),
        (BARE, READ),
        (json.dumps({"stop": JUDGEMENT}), READ),
        (json.dumps({"name": "stop", "arguments": JUDGEMENT}), READ),
        (json.dumps({"name": "stop", "arguments": BARE}), READ),
        (json.dumps({**JUDGEMENT, "verdict": " support "}), READ),
        (json.dumps({**JUDGEMENT, "mood": "sure"}), READ),
    ],
)
def test_every_written_form(text: str, action: actions.Action) -> None:
    assert parse_action(text) == action


@pytest.mark.parametrize(
    "text",
    [
        f"Here is my verdict:\n```json\n{BARE}\n```\nI hope this helps.",
        f"```json {BARE} ```",
        f"```\n{BARE}",  # never closed
        f"Thinking about {{sentence 2}} and {{x}}: {BARE}",
        f"{{sentence 2}} says so. {BARE}",
        f"{BARE} So: {BARE}",  # twice the same
        BARE.replace("Three against one.", "a } b { c"),
        f"<|im_start|>assistant\n{BARE}<|im_end|>",
        "\ufeff" + BARE,
    ],
)
def test_wrapped_verdicts_are_read(text: str) -> None:
    """Faults "fenced or wrapped JSON" and "braces and several objects": one rule finds the one action."""
    action = parse_action(text)
    assert isinstance(action, Stop)
    assert action.judgement is not None
    assert (action.judgement.verdict, action.judgement.support_count) == (Verdict.SUPPORT, 3)


def test_disagreeing_verdicts_are_a_stop_without_judgement() -> None:
    """Fault "braces and several objects": two verdicts that disagree are not picked from."""
    assert parse_action(f"{BARE} or rather {OTHER}") == Stop(None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "walk",
        "walk ",
        "walk n1 n2",
        "walking n3",
        "WALK n3",
        "Let me think about it.",
        '{"walk": 3}',
        '{"walk": ""}',
        '{"walk": "' + "n" * 300 + '"}',
        '{"walk": ["n1"]}',
        '{"name": "walk", "arguments": null}',
        '{"name": "fly", "arguments": {"node": "n1"}}',
        "[]",
        "null",
        "{}",
        '{"thought": {"walk": "n3"}}',  # a whole object is one action or none
        f'{{"walk": "n3"}} and {BARE}',
        BARE[:-12],  # cut inside the rationale
        "ὄρος 🙂 \x00 \ud800",
        "<|im_end|>",
    ],
)
def test_what_is_no_action(text: str) -> None:
    """Fault "fenced or wrapped JSON": what can't be read is counted as unparsed, never guessed."""
    assert parse_action(text) == Unparsed()


@pytest.mark.parametrize(
    "value",
    [
        without("verdict") | {"verdict": "MAYBE"},
        without("support_count"),
        without("confidence"),
        {**JUDGEMENT, "support_count": "3"},
        {**JUDGEMENT, "support_count": 3.5},
        {**JUDGEMENT, "support_count": True},
        {**JUDGEMENT, "support_count": -1},
        {**JUDGEMENT, "refute_count": 10**30},
        {**JUDGEMENT, "confidence": 1.5},
        {**JUDGEMENT, "confidence": float("nan")},
        {**JUDGEMENT, "confidence": float("inf")},
        {**JUDGEMENT, "verdict": None},
        {**JUDGEMENT, "cited_sources": "S1"},
        {**JUDGEMENT, "cited_sources": ["S"] * 65},
        {**JUDGEMENT, "rationale": {"x": 1}},
    ],
    ids=str,
)
def test_a_stop_with_an_unreadable_judgement(value: dict[str, Any]) -> None:
    """Not a number, huge, negative, of another type: a stop, but without a judgement."""
    assert parse_action(json.dumps({"stop": value})) == Stop(None)
    assert parse_action(json.dumps({"name": "stop", "arguments": value})) == Stop(None)


@pytest.mark.parametrize(
    "text",
    [
        "stop",
        "stop now",
        "stop +1 -1 MAYBE 0.5",
        "stop +1 -1 SUPPORT 1.5",
        "stop +1 -1 SUPPORT nan",
        "stop +9999999 -1 SUPPORT 0.5",
        "stop -1 +1 SUPPORT 0.5",
        "stop +1 -1 SUPPORT 0.5 " + "S1 " * 65,
        "stop +١ -1 SUPPORT 0.5",  # an Arabic digit
        '{"stop": null}',
        '{"stop": "SUPPORT"}',
    ],
)
def test_a_stop_that_does_not_parse(text: str) -> None:
    assert parse_action(text) == Stop(None)


def test_a_judgement_survives_writing_and_reading() -> None:
    judgement = Judgement(Verdict.REFUTE, 2, 4, 0.7, ("S1",))
    assert parse_action(format_stop(judgement)) == Stop(judgement)


BOMBS = {
    "braces": "{" * 1_000_000,
    "nested objects": '{"a":' * 200_000,
    "nested lists": '{"a":' + "[" * 500_000,
    "closed lists": '{"a":' + "[" * 5_000 + "]" * 5_000 + "}",
    "objects": '{"a": 1} ' * 100_000,
    "verdicts": (BARE + " ") * 5_000,
    "huge integer": '{"walk": ' + "9" * 500_000 + "}",
    "huge count": json.dumps({**JUDGEMENT, "support_count": 0}).replace(": 0", ": " + "9" * 15_000),
    "spaces": "stop" + " " * 1_000_000,
    "spaced stop": "stop +1 -1 SUPPORT 0.5 " + " S" * 500_000,
    "quotes": '{"' * 500_000,
    "backslashes": '{"a": "' + "\\" * 999_999,
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_read_with_bounded_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault "1 MB of ``{``" and its neighbours: the decoder sees a bounded text, no exception, no wait."""
    lengths: list[int] = []

    def find_counted(text: str) -> Iterator[FoundValue]:
        lengths.append(len(text))
        return find_json(text)

    monkeypatch.setattr(actions, "find_json", find_counted)
    started = time.perf_counter()
    parse_action(BOMBS[name])
    assert time.perf_counter() - started < 5.0
    assert all(length <= actions.MAX_SCANNED_CHARACTERS for length in lengths)


PROSE = [
    "stop and think:",
    "walk on, or stop? No:",
    "stop here or not, {sentence 2} says",
    "walk ",
    r"stop \frac{1}{2} " * 50,
    "I would stop {now} if I could.",
    '<think>{"walk": "n9"}? Or stop: {"stop": {}}?</think>',
    "stop +1 -0 SUPPORT 0.9\n</think>",
    "<think>" + "stop? " * 5_000 + "</think>",
    '{"thought": "stop"}',
    "stop:",
]


@pytest.mark.parametrize("prose", PROSE)
def test_prose_before_the_json_decides_nothing(prose: str) -> None:
    """Whatever words and braces stand before it, the action is the JSON's."""
    assert parse_action(f'{prose}{{"walk": "n3"}}') == WalkTo("n3")
    assert parse_action(f'{prose}\n{{"walk": "n3"}}') == WalkTo("n3")
    assert parse_action(f"{prose} {BARE}") == READ
    assert parse_action(f"{prose} {BARE} {OTHER}") == Stop(None)


def test_reasoning_is_no_action() -> None:
    """Cut inside its reasoning, a text is no action, whatever stands there; a whole JSON object may hold the mark."""
    assert parse_action(f'<think>Perhaps {{"walk": "n3"}} or {BARE}') == Unparsed()
    assert parse_action("<think>\nstop +1 -0 SUPPORT 0.9") == Unparsed()
    assert parse_action(BARE.replace("Three", "<think>")) != Unparsed()


STOPS = [
    (json.dumps({"stop": JUDGEMENT}), '{"stop'),
    (json.dumps({"name": "stop", "arguments": JUDGEMENT}), '{"name": "stop'),
    (json.dumps({"action": "stop", **JUDGEMENT}), '{"action": "stop'),
    (json.dumps({"thought": "stop?", "stop": JUDGEMENT}), '{"thought": "stop?", "stop'),
    (json.dumps({"arguments": {**JUDGEMENT, "rationale": "stop"}, "name": "stop"}), None),
    (json.dumps({**JUDGEMENT, "rationale": "so I stop"}), '{"verdict'),
]


@pytest.mark.parametrize("prose", ["", *(f"{prose} " for prose in PROSE), "\n ```json\n"])
@pytest.mark.parametrize(("text", "decided"), STOPS)
def test_a_stop_decides_where_the_action_says_so(prose: str, text: str, decided: str | None) -> None:
    """Not at a "stop" in the prose before it, nor in its own thoughts or rationale."""
    place = find_decision(prose + text)
    assert place is not None
    assert (prose + text)[:place] == prose + (text[: text.rindex("stop") + 4] if decided is None else decided)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("stop +1 -0 SUPPORT 0.9 S1", 4),
        (' stop +1 -0 SUPPORT 0.9\n{"stop": {}}', 5),
        ("stop now", 4),
        ("walk n3", None),
        ("", None),
        ('I stop. {"walk": "n3"}', None),
    ],
)
def test_the_decision_of_short_stops_and_of_no_stop(text: str, place: int | None) -> None:
    assert find_decision(text) == place


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=30) | st.text(alphabet='{}":, stopwalk\n', max_size=60))
def test_a_text_has_a_decision_exactly_if_it_is_a_stop(text: str) -> None:
    place = find_decision(text)
    assert (place is not None) == isinstance(parse_action(text), Stop)
    assert place is None or 0 < place <= len(text)


@settings(max_examples=300, deadline=None)
@given(st.text() | st.text(alphabet='{}[]":,walkstopn0123+-. \n'))
def test_no_text_raises(text: str) -> None:
    assert isinstance(parse_action(text), (WalkTo, Stop, Unparsed))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["walk", "stop", "verdict", "name", "arguments", "node", "action", "support_count", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(json_values, st.text(max_size=10), st.text(max_size=10))
def test_no_json_raises(value: Any, before: str, after: str) -> None:
    assert isinstance(parse_action(before + json.dumps(value) + after), (WalkTo, Stop, Unparsed))


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(list(Verdict)),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 10),
    st.lists(st.from_regex(r"S[1-9]", fullmatch=True), max_size=6),
)
def test_every_short_stop_round_trips(verdict: Verdict, s: int, r: int, tenths: int, cited: list[str]) -> None:
    judgement = Judgement(verdict, s, r, tenths / 10, tuple(cited))
    assert parse_action(format_stop(judgement)) == Stop(judgement)
