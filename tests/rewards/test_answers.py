"""Answer checkers on what models really write: each text with the answer a careful reader would take from it."""

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provgym.rewards.answer_numbers import MAX_DIGITS, read_numbers, write_number
from provgym.rewards.answer_readers import normalised_text
from provgym.rewards.answers import MAX_READ_CHARACTERS, AnswerKind, extract_answer, is_correct

COLOURS = ("red", "green", "blue", "a car")
KINDS: tuple[AnswerKind, ...] = ("verdict", "multiple_choice", "yes_no", "number", "exact")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("SUPPORT", "SUPPORT"),
        ("  refutes.  ", "REFUTE"),
        ("Answer: MIXED", "MIXED"),
        ("**Verdict:** REFUTE, because no independent source supports it.", "REFUTE"),
        ("The two sources contradict the claim.", "REFUTE"),
        ("Some units SUPPORT it.\nFinal answer: REFUTE", "REFUTE"),
        ("Answer: SUPPORT\nOn reflection the echo counts once.\nAnswer: MIXED", "MIXED"),
        ("The claim is not supported but refuted.", "REFUTE"),
        ("The evidence doesn't support the claim.", None),
        ("It is neither supported nor refuted.", None),
        ("Answer with SUPPORT, REFUTE or MIXED.", None),
        ("Answer: SUPPORT/REFUTE/MIXED", None),
        ("Answer: SUPPORT or REFUTE, hard to say", None),
        ("The verdict is SUPPORT. It cannot be MIXED: no source refutes it.", "SUPPORT"),
        ("Sources support and refute it; taken together: MIXED", "MIXED"),
        ("There is not enough information.", None),
        ("supporting documents were filed", None),
        ("", None),
    ],
)
def test_verdicts(text: str, answer: str | None) -> None:
    assert extract_answer("verdict", text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(c)", "C"),
        ("B. It grows in spring.", "B"),
        ("B) green", "B"),
        ("The answer is (B).", "B"),
        ("The correct answer is **B**", "B"),
        ("Answer: option C", "C"),
        ("The answer would be A because grass isn't.", "A"),
        ("answer: a", "A"),
        ("A car is fast, and so is the answer: B", "B"),
        ("A car is fast.", None),
        ("I think that it is hard to say.", None),
        ("The answer is a matter of taste.", None),
        ("Answer: a car", "D"),
        ("green", "B"),
        ("The answer is: Green.", "B"),
        (r"Therefore \boxed{\text{C}}.", "C"),
        (r"\boxed{B}", "B"),
        ("Answer: A and B", None),
        ("Answer: B or C", None),
        ("Answer: (A), (C)", None),
        ("The answer is not A", None),
        ("(A) is wrong since grass is not red. (B) it is.", None),
        ("Only (B) fits.", "B"),
        ("E", None),
        ("Answer: E", None),
        ("Answer: B\n\nLet me check (A) again: no.", "B"),
        ("Let me think.\n\nB", "B"),
        ("P(A n B) = P(B) / 2, which is the first.\nA", "A"),
        ("(A) can't be, it is too hot.\n\n(B)", "B"),
        ("(A) and (C) can't be.\nSo it remains to say which.", None),
        ("B. For (A) is too hot.\nThat settles it.", None),
        ("B. It is the only cool one.\nThat settles it.", "B"),
        ("", None),
    ],
)
def test_choices(text: str, answer: str | None) -> None:
    assert extract_answer("multiple_choice", text, choices=COLOURS) == answer


def test_choices_without_their_texts() -> None:
    assert extract_answer("multiple_choice", "The answer is (J)") == "J"
    assert extract_answer("multiple_choice", "The answer is red") is None


def test_two_choices_of_one_text_name_neither() -> None:
    assert extract_answer("multiple_choice", "Answer: red", choices=("red", "red", "blue")) is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Yes", "yes"),
        ("no.", "no"),
        ("**No**", "no"),
        ("Yes, because it is cold there.", "yes"),
        ("No evidence was found for either.", None),
        ("Nobody knows.", None),
        ("It is cold there.\nSo: it is.\nTrue", "yes"),
        ("The answer is False.", "no"),
        ("Answer: yes or no?", None),
        ("Answer: yes/no", None),
        ("Yes.\nOn the other hand:\nNo.", None),
        ("Could one say yes? The answer is no.", "no"),
        ("", None),
    ],
)
def test_yes_and_no(text: str, answer: str | None) -> None:
    assert extract_answer("yes_no", text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("18", "18"),
        ("#### 1,234", "1234"),
        ("$1,234.50", "1234.5"),
        ("The answer is 18.", "18"),
        ("The answer is 5 + 13 = 18 eggs.", "18"),
        ("Answer: 18 eggs (that is 1.5 dozen)", "18"),
        ("To find the answer: let's think.\n16-3=13\nShe makes $26 a day.", "26"),
        ("16 - 3 - 4 = 9 eggs, 9 * 2 = $18 every day", "18"),
        ("-3.50", "-3.5"),
        ("\u22127", "-7"),
        ("about 50%", "50"),
        (r"\boxed{\frac{3}{4}}", "0.75"),
        (r"\boxed{-\frac{1}{3}}", "-1/3"),
        ("#### 007", "7"),
        ("Answer: 1.5e3", "1500"),
        ("Answer: 3/4", "0.75"),
        ("Answer: 1/0", None),
        ("Final answer: it can't be determined", None),
        ("Method A4 of v1", None),
        ("", None),
    ],
)
def test_numbers(text: str, answer: str | None) -> None:
    assert extract_answer("number", text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Paris", "paris"),
        ("The answer is:\nThe Eiffel Tower.", "eiffel tower"),
        ("Some thoughts first.\n\n  Paris!  ", "paris"),
        ("```\nParis\n```", "paris"),
        ("Answer: 3.5 kg", "3.5 kg"),
        ("\uff30\uff41\uff52\uff49\uff53", "paris"),
        ("!!!", None),
        ("", None),
    ],
)
def test_exact_texts(text: str, answer: str | None) -> None:
    assert extract_answer("exact", text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('{"verdict": "SUPPORT"}', "SUPPORT"),
        ('Here is it:\n```json\n{"verdict": "REFUTE", "confidence": 0.9}\n```\nHope it helps.', "REFUTE"),
        ('```json {"answer": "MIXED"} ```', "MIXED"),
        ('```json\n{"verdict": "MIXED"}', "MIXED"),
        ('{"verdict": "SUPPORT", "answer": "as {sentence 2} says"}', "SUPPORT"),
        ('As {sentence 2} says, {"answer": "SUPPORT"}', "SUPPORT"),
        ('{"rationale": "a {brace} and \\"quotes\\"", "answer": "REFUTE"}', "REFUTE"),
        ('{"verdict": "SUPPORT"} {"verdict": "REFUTE"}', None),
        ('{"verdict": "SUPPORT"} {"verdict": "supports"}', "SUPPORT"),
        ('{"verdict": null} but the text says SUPPORT', None),
        ('{"verdict": "SUPP', None),
    ],
)
def test_json(text: str, answer: str | None) -> None:
    """Faults "fenced or wrapped JSON" and "braces and several objects"."""
    assert extract_answer("verdict", text) == answer


def test_json_of_other_types() -> None:
    assert extract_answer("yes_no", '{"answer": true}') == "yes"
    assert extract_answer("number", '{"answer": 18.0}') == "18"
    assert extract_answer("number", '{"answer": NaN}') is None
    assert extract_answer("number", '{"answer": [18]}') is None
    assert extract_answer("multiple_choice", '{"final_answer": "B", "answer": "C"}', choices=COLOURS) == "B"


@pytest.mark.parametrize("kind", KINDS)
def test_a_reply_cut_inside_its_reasoning_holds_no_answer(kind: AnswerKind) -> None:
    """Fault "fenced or wrapped JSON": a reply cut inside the rationale is counted as unparsed."""
    assert extract_answer(kind, "<think>The answer is B, yes, 18, SUPPORT") is None
    assert extract_answer(kind, "<think>x</think>first<think>The answer is yes, B, 18, SUPPORT") is None


def test_reasoning_is_not_read() -> None:
    assert extract_answer("verdict", "<think>Answer: SUPPORT?</think>\nAnswer: REFUTE") == "REFUTE"
    assert extract_answer("number", "<think>4 or 5</think> none") is None
    assert extract_answer("yes_no", "No more than that.</think>Yes.") == "yes"


def test_braces_of_formulas_do_not_hide_the_stated_answer() -> None:
    """Fault "braces and several objects": no number of braces before the object makes it unread."""
    assert extract_answer("number", r"\frac{1}{2} {x} " * 500 + '{"final_answer": 7}') == "7"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text",
    [
        "{" * 1_000_000,
        '{"a":' * 200_000,
        "answer is " * 100_000,
        r"\boxed{" * 100_000,
        "1" * 1_000_000,
        "\x00\ud800 🙂 ἓν",
    ],
    ids=["braces", "nested", "marks", "boxes", "digits", "odd"],
)
def test_hostile_texts_do_not_raise(kind: AnswerKind, text: str) -> None:
    """Fault "braces and several objects": a megabyte of braces is read, or not, in bounded work."""
    answer = extract_answer(kind, text, choices=COLOURS if kind == "multiple_choice" else ())
    assert answer is None or kind == "exact"


@given(kind=st.sampled_from(KINDS), text=st.text(max_size=300))
def test_no_text_raises(kind: AnswerKind, text: str) -> None:
    answer = extract_answer(kind, text, choices=COLOURS if kind == "multiple_choice" else ())
    assert answer is None or answer


def test_only_the_end_of_a_long_text_is_read() -> None:
    assert extract_answer("verdict", "Answer: SUPPORT" + " x" * MAX_READ_CHARACTERS) is None
    assert extract_answer("verdict", "x " * MAX_READ_CHARACTERS + "Answer: SUPPORT") == "SUPPORT"


@pytest.mark.parametrize(
    ("kind", "gold", "choices"),
    [("verdict", "REFUTE", ()), ("multiple_choice", "D", COLOURS), ("yes_no", "no", ()), ("number", "-1,234.5", ())],
)
def test_gold_is_right_and_nothing_is_wrong(kind: AnswerKind, gold: str, choices: tuple[str, ...]) -> None:
    """Reward tests of the house: gold gives the maximum, the empty text the minimum, and so does naming everything."""
    assert is_correct(kind, gold, gold, choices=choices)
    assert is_correct(kind, f"So, the final answer is {gold}.", gold, choices=choices)
    assert not is_correct(kind, "", gold, choices=choices)
    everything = {
        "verdict": "SUPPORT REFUTE MIXED",
        "multiple_choice": "(A) (B) (C) (D)",
        "yes_no": "yes and no",
        "number": "-1,234.5 1 2 3",
    }
    assert not is_correct(kind, everything[kind], gold, choices=choices)


@given(answer=st.sampled_from(["SUPPORT", "REFUTE", "MIXED"]))
def test_an_answer_read_again_is_itself(answer: str) -> None:
    assert extract_answer("verdict", json.dumps({"verdict": answer})) == answer


@given(numerator=st.integers(-(10**9), 10**9), denominator=st.integers(1, 10**6))
def test_a_number_has_one_form(numerator: int, denominator: int) -> None:
    value = Fraction(numerator, denominator)
    written = write_number(value)
    assert Fraction(written) == value
    assert read_numbers(written) == [written]
    assert read_numbers(f"{numerator}/{denominator}") == [written]


@given(value=st.integers(-(10**12), 10**12))
def test_separators_change_nothing(value: int) -> None:
    assert read_numbers(f"{value:,}") == read_numbers(f"{value}.00") == [str(value)]


def test_numbers_without_bounds_are_none() -> None:
    assert read_numbers("9" * (MAX_DIGITS + 1)) == []
    assert read_numbers("1e999") == []
    assert read_numbers("1" + "0" * (MAX_DIGITS - 1)) == ["1" + "0" * (MAX_DIGITS - 1)]


@given(st.text(max_size=60))
def test_normalising_twice_changes_nothing(text: str) -> None:
    once = normalised_text(text)
    assert normalised_text(once) == once


def test_signs_inside_numbers_stay() -> None:
    """SQuAD's own normalisation makes 3.5 and 35 equal, and -5 and 5."""
    assert not is_correct("exact", "35", "3.5")
    assert not is_correct("exact", "5", "-5")
    assert is_correct("exact", "The U.S.A.", "u s a")


@pytest.mark.parametrize(
    ("kind", "gold", "message"),
    [
        ("verdict", "NEI", "gold 'NEI' is no answer of kind 'verdict'"),
        ("multiple_choice", "E", "gold 'E' is no answer of kind 'multiple_choice' to 4 choices"),
        ("yes_no", "perhaps", "gold 'perhaps' is no answer"),
        ("number", "eighteen", "gold 'eighteen' is no answer"),
        ("exact", " . ", "gold ' . ' is no answer"),
        ("essay", "x", "answer kind 'essay' is unknown; choose one of"),
    ],
)
def test_an_unreadable_gold_answer_is_named(kind: AnswerKind, gold: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        is_correct(kind, "anything", gold, choices=COLOURS if kind == "multiple_choice" else ())


def test_too_many_choices_are_named() -> None:
    with pytest.raises(ValueError, match="found 27 choices"):
        extract_answer("multiple_choice", "A", choices=[str(k) for k in range(27)])
