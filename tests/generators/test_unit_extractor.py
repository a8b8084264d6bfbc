"""Extraction with a fake model: every span is a real place; every reply a model may write is counted, never raised."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provgym.generators.endpoint_entry import CallTag
from provgym.generators.endpoint_reply import EndpointFailure
from provgym.generators.triple_reading import find_quote, read_triples
from provgym.generators.unit_extractor import Extraction, TextDocument, extract_units, extract_units_now

TEXT = "Bolnan raised the yield of dalkon.\n\nNobody knows why. Tests go on."


class ScriptedModel:
    """Answers a passage by a function of its text."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, float, int, CallTag | None]] = []

    async def complete(
        self,
        messages: list[dict[str, str]],
        temperature: float,
        seed: int,
        usage: Counter[str],
        tag: CallTag | None = None,
    ) -> str:
        passage = messages[-1]["content"].removeprefix("Passage:\n")
        self.asked.append((passage, temperature, seed, tag))
        await asyncio.sleep(0)
        usage["prompt_tokens"] += 3
        return self.answer(passage)


def triple(quote: str, **change: Any) -> dict[str, Any]:
    return {"head": "Bolnan", "relation": "raised", "tail": "the yield", "quote": quote} | change


def extract(reply: Any, text: str = TEXT) -> Extraction:
    said = reply if isinstance(reply, str) else json.dumps(reply)
    return extract_units_now([TextDocument("d", text, "s")], ScriptedModel(lambda _: said))


def test_a_unit_stands_where_its_quote_stands() -> None:
    graph, report = extract([triple("raised the yield"), triple("raised  THE\nyield of", tail="the yield of dalkon")])
    assert [(u.unit_id, u.span.start, u.span.text, u.source_id) for u in graph.units] == [
        ("u1", 7, "raised the yield", "s"),
        ("u2", 7, "raised the yield of", "s"),
    ]
    assert graph.documents == {"d": TEXT}
    assert (report.passages, report.units, report.unreadable, report.failed) == (1, 2, 0, ())
    assert report.usage == {"prompt_tokens": 3}


def test_what_is_not_there_is_refused_and_counted() -> None:
    """model output is never trusted: an invented quote gives no unit and no made-up place."""
    entries = [
        triple("lowered the yield"),
        triple(" "),
        triple("Nobody", head=3),
        {"head": "a", "relation": "b", "tail": "c"},
        triple("Nobody"),
        triple("Nobody"),
        triple("\ud800"),
    ]
    graph, report = extract(entries)
    assert len(graph.units) == 1
    assert report.refused == {
        "quote not in the passage": 1,
        "field 'quote' missing or no visible text": 3,
        "field 'head' missing or no visible text": 1,
        "said twice": 1,
    }
    assert "1 units from 1 passages" in report.text()


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ("[]", []),
        ('{"triples": [{"head": "a"}]}', [{"head": "a"}]),
        ('Sure, {here} it is:\n```json\n[{"head": "a"}]\n```\nDone [1].', [{"head": "a"}]),
        ('```[{"head": "}]"}]', [{"head": "}]"}]),
        ('See [1] and {"note": 2}: [{"head": "a"}] or [{"head": "b"}]', [{"head": "a"}]),
        ('Of [] and {} come [1]: [{"head": "a"}]', [{"head": "a"}]),
        (r"\frac{1}{2} [2] {note} " * 200 + '{"triples": [{"head": "a"}]}', [{"head": "a"}]),
        ('None in {"triples": []}, stop. []', []),
        ('<think>[{"head": "b"}]?</think>[{"head": "a"}]', [{"head": "a"}]),
        ('<think>[{"head": "b"}] or', None),
        ('[{"head": "a"}, {"head": "b', None),
        ("no triples", None),
        ("", None),
        ("[" * 1_000_000, None),
        ('{"a":' * 1_000, None),
        ('"head"', None),
        ("[1, 2]", None),
    ],
)
def test_the_rule_for_replies(reply: str, found: list[Any] | None) -> None:
    """fenced or wrapped JSON, braces and several objects: one rule, a real decoder, never an exception."""
    assert read_triples(reply) == found


@given(st.text(max_size=200))
def test_no_reply_raises(reply: str) -> None:
    graph, report = extract(reply)
    assert len(graph.units) == 0
    assert report.unreadable + sum(report.refused.values()) <= 1


@given(st.text(max_size=60), st.data())
def test_a_literal_quote_is_always_found_at_its_words(text: str, data: st.DataObject) -> None:
    start, end = sorted(data.draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
    place = find_quote(text[start:end], text)
    assert place is not None
    assert text[slice(*place)] == text[start:end]


def test_one_failed_passage_does_not_lose_the_others() -> None:
    """one failure loses its siblings; an endpoint failure is no empty answer."""

    def answer(passage: str) -> str:
        if "two" in passage:
            raise EndpointFailure("timeout", "no answer")
        return json.dumps([triple(passage.strip())])

    documents = [TextDocument(name, name, name) for name in ("one", "two", "three")]
    graph, report = extract_units_now(documents, ScriptedModel(answer))
    assert [unit.span.document_id for unit in graph.units] == ["one", "three"]
    assert report.failed == ("two from 0: timeout: no answer",)
    assert set(graph.documents) == {"one", "two", "three"}
    assert "1 passages failed" in report.text()


def test_long_documents_are_read_in_passages_that_lose_no_character() -> None:
    """truncation: a text is cut between paragraphs, else sentences, else words; every character is in one passage."""
    model = ScriptedModel(lambda _: "[]")
    texts = ["A b c.\n\nD e f. G h i.\n\n" * 20, "Sentence one. Sentence two. " * 10, "word " * 50, "x" * 100]
    documents = [TextDocument(str(n), text, "s") for n, text in enumerate(texts)]
    extract_units_now(documents, model, passage_characters=30)
    asked = [passage for passage, *_ in model.asked]
    assert "".join(asked) == "".join(texts)
    assert max(map(len, asked)) <= 30
    assert all(passage.endswith(("\n\n", ". ", " ", "x")) for passage in asked)
    assert all(temperature == 0.0 for _, temperature, *_ in model.asked)


def test_places_in_later_passages_count_from_the_start_of_the_document() -> None:
    document = TextDocument("d", "One fish.\n\nTwo fish.\n\nRed fish.", "s")
    model = ScriptedModel(lambda passage: json.dumps([triple(passage.strip())]))
    graph, _ = extract_units_now([document], model, passage_characters=12)
    assert [(u.span.start, u.span.text) for u in graph.units] == [
        (0, "One fish."),
        (11, "Two fish."),
        (22, "Red fish."),
    ]


def test_the_synchronous_entry_works_twice_and_within_a_loop() -> None:
    """closed event loop."""
    assert extract([triple("Nobody")]).graph == extract([triple("Nobody")]).graph

    async def inside() -> Extraction:
        return extract([triple("Nobody")])

    assert asyncio.run(inside()).report.units == 1


def test_nothing_to_read_asks_nothing_and_mistakes_are_named() -> None:
    model = ScriptedModel(lambda _: "[]")
    assert extract_units_now([TextDocument("d", " \n", "s")], model).report.passages == 0
    assert extract_units_now([], model).graph.units == ()
    assert model.asked == []
    with pytest.raises(ValueError, match=r"document ids \['d'\] stand more than once"):
        extract_units_now([TextDocument("d", "a", "s")] * 2, model)
    with pytest.raises(ValueError, match="passage_characters=0"):
        asyncio.run(extract_units([], model, passage_characters=0))
