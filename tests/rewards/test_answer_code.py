"""Code read out of what models write, and put together with its prompt; nothing is run here."""

from __future__ import annotations

import ast
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provgym.rewards.answer_code import CodeGold, assemble_program, extract_code
from provgym.rewards.answers import extract_answer, is_correct

PROMPT = 'import math\n\ndef area(r: float) -> float:\n    """Area of a circle.\n    >>> area(0)\n    0.0\n    """\n'
GOLD = CodeGold(PROMPT, "area", "def check(candidate):\n    assert candidate(0) == 0\n")
F = "def f(x):\n    return x + 1"
BODY = "y = x + 1\nreturn y"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (F, F),
        (f"```python\n{F}\n```", F),
        (f"```\n{F}\n```", F),
        (f"```py\n{F}\n```\n", F),
        (f"~~~Python\n{F}\n~~~", F),
        (f"Here you are:\n\n```python\n{F}\n```\nIt adds one. Hope this helps!", F),
        (f"```python\n{F}", F),  # never closed
        (f"<think>```python\ndef f(x): return 7\n```</think>\n```python\n{F}\n```", F),
        (f"First run this:\n```bash\npip install f\n```\n```python\n{F}\n```\nOutput:\n```text\n2\n```", F),
        (f"```python\nimport math\n```\nand then\n```python\n{F}\n```", f"import math\n\n{F}"),
        (f"```python\n{F}\n```\nFor example:\n```python\nprint(f(1))\nassert f(1) == 3\n```", F),
        (f"```python\n{F}\n\nif __name__ == '__main__':\n    print(f(input()))\n```", F),
        (f"```python\n{F}\n\nassert f(1) == 3\n```", F),
        (f"```python\n{F}\nfor i in range(10**9):\n    f(i)\n```", F),
        ("```python\ndef f(x):\n    return 0\n```\nNo, that is wrong.\n```python\n" + F + "\n```", None),
        (f"Sure, here it is.\n\n{F}\n\nThis function adds one.", F),
        (f"Sure.\nfrom math import pi\n{F}\nDone, I hope.", f"from math import pi\n\n{F}"),
        ("    y = x+1\n    return y", BODY),
        ("y = x+1\n    return y\n", BODY),  # the first line's indentation was taken away
        ("    y = x+1\n    return y\n\nprint(f(1))\n", BODY),
        ("```python\n    y = x+1\n    return y\n```", BODY),
        ("    return x", "return x"),
        ("```python\r\ndef f(x):\r\n    return x + 1\r\n```\r\n", F),
        ("def f(x):\n    return 'a\u2028b'", "def f(x):\n    return 'a\\u2028b'"),
        ("f = lambda x: x+1", "f = lambda x: x + 1"),
        ("async def f(x):\n  return x", "async def f(x):\n    return x"),
        ("def g(x):\n    return x\n\nf = g", "def g(x):\n    return x\nf = g"),
        ("import sys\nsys.setrecursionlimit(9999)\n" + F, "import sys\nsys.setrecursionlimit(9999)\n\n" + F),
        (json.dumps({"code": F}), F),
        (json.dumps({"answer": f"```python\n{F}\n```"}), F),
        ("def f(x:\n    return x", "def f(x:\n    return x"),  # an answer, and a wrong one
        ("Well:\n```python\ndef f(x)\n    return x\n```", "def f(x)\n    return x"),
        ("I can't help with that.", None),
        ("Answer: 42", None),
        ("return", None),
        ("x in y", None),
        ("```text\nnothing\n```", None),
        ("```bash\nls\n```", None),
        ("```\n\n```", None),
        ("The function returns x from a class of values.", None),
        (f"<think>{F}", None),
        ("", None),
    ],
)
def test_code_is_read(text: str, code: str | None) -> None:
    """Fault kind: fenced or wrapped replies."""
    found = extract_answer("code", text)
    if "No, that is wrong" in text:  # both are kept: the later definition is the one that holds
        assert found is not None
        assert [each.name for each in ast.parse(found).body if isinstance(each, ast.FunctionDef)] == ["f", "f"]
        assert found.endswith(F)
    else:
        assert found == code


@given(
    st.text(max_size=300)
    | st.lists(st.sampled_from(["def f", "(x)", ":\n", "```", "\n", "    ", "return x"])).map("".join)
)
def test_nothing_raises_and_what_was_read_is_read_again(text: str) -> None:
    found = extract_code(text)
    if found is not None and (tree := _parsed(found)):
        assert extract_code(found) == found
        assert tree.body


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000,
        "```\n" * 50_000,
        "def f(" * 20_000,
        "def f():\n" * 20_000,
        "import a\n!\n" * 10_000,
        "\0def f(): return 1",
    ],
)
def test_hostile_texts_are_read_in_bounded_work(text: str) -> None:
    """Fault kind: braces and several objects (a megabyte of openings)."""
    extract_answer("code", text)


def test_comments_and_spaces_make_no_other_answer() -> None:
    """Votes are counted over normal forms."""
    assert extract_code("def f( x ):  # adds\n\n  return (x+1)") == extract_code(f"```\n{F}\n```")


@pytest.mark.parametrize(
    ("reply", "radius", "area"),
    [
        ("    return math.pi * r ** 2", 1, 3.141592653589793),
        ("return math.pi * r ** 2", 1, 3.141592653589793),
        ("    def square(x):\n        return x * x\n    return square(r)", 3, 9),
        (PROMPT + "    return r", 2, 2),
        ("def area(r):\n  return helper(r)\ndef helper(r):\n  return 5", 1, 5),
        ("from __future__ import annotations\ndef area(r: Unknown):\n    return 6", 1, 6),
        ("area = lambda r: 8", 1, 8),
        ('    text = """a\n  b\nc"""\n    return len(text)', 1, 7),  # a string of several lines keeps them
        ('    text = f"""a\n  {r}\nc"""\n    return len(text)', 1, 7),
    ],
)
def test_a_program_defines_the_function(reply: str, radius: float, area: float) -> None:
    answer = extract_code(reply)
    assert answer is not None
    namespace: dict[str, object] = {}
    exec(assemble_program(GOLD, answer), namespace)
    function = namespace["area"]
    assert callable(function)
    assert function(radius) == area


def test_a_body_takes_the_prompt_s_indentation() -> None:
    gold = CodeGold('def f(x):\n  """Two spaces."""\n', "f", "def check(c): c(1)")
    namespace: dict[str, object] = {}
    exec(assemble_program(gold, "return x"), namespace)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("def other(r):\n    return 1", r"defines no area\(\)"),
        ("def area(r:", "no Python"),
        ("import area", "defines no"),
    ],
)
def test_an_answer_that_defines_nothing_is_named(answer: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assemble_program(GOLD, answer)


def test_gold_is_checked_and_kept_as_text() -> None:
    assert CodeGold.from_text(GOLD.to_text()) == GOLD
    for changes in (
        {"prompt": "def g(): pass"},
        {"tests": "assert True"},
        {"prompt": "def area(:"},
        {"prompt": "class area: pass"},
        {"more": "x"},
    ):
        fields = {"prompt": PROMPT, "entry_point": "area", "tests": GOLD.tests} | changes
        with pytest.raises(ValueError, match="none of kind 'code'"):
            CodeGold.from_text(json.dumps(fields))
    for text in ("", "[]", "{}", "3", "def f(): pass"):
        with pytest.raises(ValueError, match="none of kind 'code'"):
            CodeGold.from_text(text)


def test_no_text_comparison_says_whether_code_is_right() -> None:
    with pytest.raises(ValueError, match="by running it"):
        is_correct("code", F, F)


@pytest.mark.parametrize(
    "text",
    [
        "Sure:\n" + "~" * 20_000,
        "```" + "a" * 20_000,
        "```" + " " * 20_000,
        "@a\n" * 10_000,
        "import a\n" * 4_000 + ")",
        "def " + "a" * 20_000,
    ],
    ids=["tildes", "tag", "spaces", "decorators", "imports", "name"],
)
def test_a_reply_that_repeats_itself_is_read_soon(text: str) -> None:
    """Ten thousand tildes took minutes: a model that loops must not hold everybody up."""
    began = time.process_time()
    extract_code(text)
    assert time.process_time() - began < 10


@pytest.mark.parametrize("many", [400, 2_000])
def test_an_answer_nested_too_deep_is_refused_and_ends_nothing(many: int) -> None:
    for answer in ("return " + "-" * many + "1", "return 1" + "+1" * many):
        with pytest.raises(ValueError, match="nested too deep|no Python"):
            assemble_program(GOLD, answer)
