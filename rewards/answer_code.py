"""Code as an answer: read out of a reply, and put together with the prompt that it completes. Nothing is run here.

What is read, in this order:

1. Fenced blocks without a language tag or with one for Python (a fence that was never closed counts). If some define
   something, all definitions and imports of all blocks, joined; of two with one name the later one holds. If none
   does, the last block that is the body of a function.
2. Without such blocks: the whole text, if it is Python that defines something or the body of a function; else the
   longest piece that starts with a definition or an import at the beginning of a line and is Python.
3. Where nothing can be parsed but a block, or a line of the text, begins a definition: that piece as it stands. It is
   an answer, and a wrong one.

Else there is no answer. What follows the last definition of a block shows how it is used (calls, ``assert``, ``print``,
``if __name__ ...``) and is left out. Code that can be parsed is returned as :func:`ast.unparse` writes it: one normal
form, whatever its comments and spaces. The body of a function stands without indentation.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

MAX_TRIED_PIECES, MAX_TRIED_CHARACTERS = 64, 262_144

_FENCED = re.compile(  # "+": what was taken is not given back, so that a reply of ten thousand tildes takes no minutes
    r"^[ \t]*+(?P<fence>`{3,}+|~{3,}+)[ \t]*+(?P<tag>[^\s`]*+)[^\n`]*+\n"
    r"(?P<code>.*?)(?:^[ \t]*+(?P=fence)[`~]*+[ \t]*+$|\Z)",
    re.MULTILINE | re.DOTALL,
)
_TAGS = frozenset({"", "py", "python", "python3", "py3", "{.python}", "{python}"})
_BEGINS = re.compile(r"^(?:(?:def|async def|class|import|from)\b|@\w)", re.MULTILINE)
_DEFINES = re.compile(r"^[ \t]*(?:async[ \t]+)?def[ \t]+\w+[ \t]*\(", re.MULTILINE)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)


@dataclass(frozen=True, slots=True)
class CodeGold:
    """What an answer in code is held against; it reaches no agent.

    Attributes:
        prompt: Python that begins the function, with what it needs before it.
        entry_point: Name of the function.
        tests: Python that defines ``check(candidate)``, which raises if the function is wrong.

    Raises:
        ValueError: If prompt or tests are no Python, or do not define what they must.
    """

    prompt: str
    entry_point: str
    tests: str

    def __post_init__(self) -> None:
        for name, defined in (("prompt", self.entry_point), ("tests", "check")):
            tree = _parsed(getattr(self, name))
            if tree is None or _function(tree, defined) is None:
                raise ValueError(
                    f"{name}: found {getattr(self, name)[:60]!r}, expected Python that defines {defined}()"
                )

    def to_text(self) -> str:
        """Return it as a task's gold answer; :meth:`from_text` reverses it exactly."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> CodeGold:
        """Read a task's gold answer.

        Raises:
            ValueError: If it is none for code.
        """
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"gold {text[:60]!r} is none of kind 'code', expected JSON with prompt, entry_point and tests: {error}"
            ) from error


def extract_code(text: str) -> str | None:
    r"""Return the code in a reply in its normal form, or None if there is none.

    Example:
        >>> print(extract_code("Sure!\n```python\ndef f(x):\n    return x+1  # one more\n```\nDone."))
        def f(x):
            return x + 1
        >>> extract_code("    return x+1"), extract_code("I can't say.")
        ('return x + 1', None)
    """
    text = text.replace("\r\n", "\n")
    blocks = [found["code"] for found in _FENCED.finditer(text) if found["tag"].lower() in _TAGS]
    if blocks:
        code = _of_trees([tree for block in blocks if (tree := _code_tree(block)) is not None])
        return code or _as_it_stands(blocks[-1:] if _DEFINES.search(blocks[-1]) else blocks)
    whole = _code_tree(text)
    if whole is not None and (_defines(whole) or _is_body(whole)):
        return _of_trees([whole])
    piece = next(_pieces(text), None)
    return _as_it_stands([text]) if piece is None else _of_trees([piece])


def assemble_program(gold: CodeGold, answer: str) -> str:
    r"""Return a program that defines the function: the prompt, completed by the body, or followed by the definition.

    Args:
        gold: Whose prompt is completed.
        answer: As :func:`extract_code` returns it.

    Raises:
        ValueError: If the answer is no Python, defines no such function, or is nested too deep.

    Example:
        >>> gold = CodeGold("def f(x):\n    '''Add one.'''\n", "f", "def check(c): assert c(1) == 2")
        >>> print(assemble_program(gold, "return x + 1").replace('"', "'"))
        def f(x):
            '''Add one.'''
            return x + 1
    """
    tree = _parsed(answer)
    if tree is None:
        raise ValueError("the answer is no Python that can be parsed")
    if _is_body(tree):
        prompt = ast.parse(gold.prompt)
        function = _function(prompt, gold.entry_point)
        assert function is not None
        function.body += tree.body
        return _program(prompt)  # as a tree: indenting the text would change strings of several lines
    if gold.entry_point not in _names(tree.body):
        raise ValueError(f"the answer defines no {gold.entry_point}()")
    first, rest = _future_first(tree.body)
    if not first:
        return f"{gold.prompt.rstrip()}\n\n\n{answer}"
    return f"{_program(ast.Module(first, []))}\n{gold.prompt.rstrip()}\n\n\n{_program(ast.Module(rest, []))}"


def _program(tree: ast.Module) -> str:
    try:
        return ast.unparse(tree)
    except RecursionError as error:
        raise ValueError("the answer is nested too deep to be written as a program") from error


def _code_tree(text: str) -> ast.Module | None:
    """Parse a module or a body, also one whose first line, or whose indentation, was cut or goes on behind it."""
    for variant in _variants(_lines(text)):
        is_indented = variant[0][:1].isspace()
        tree = _parsed("\n".join(["if True:", *variant] if is_indented else variant))
        if tree is not None and is_indented:
            block = tree.body[0]
            assert isinstance(block, ast.If)
            return ast.Module(block.body, [])
        if tree is not None:
            return tree
    return None


def _lines(text: str) -> list[str]:
    return text.strip("\n").split("\n")  # a raw U+2028 ends no line


def _variants(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    yield lines
    indents = [len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()]
    if indents and not lines[0][:1].isspace():
        yield [" " * min(indents) + lines[0], *lines[1:]]
    if lines[0][:1].isspace():
        ends = [number for number, line in enumerate(lines) if line.strip() and not line[0].isspace()]
        yield from [lines[: min(ends)]] if ends else []


def _pieces(text: str) -> Iterator[ast.Module]:
    """Yield what can be parsed from a line that begins a definition or an import, the longest first; bounded."""
    found = _BEGINS.search(text)
    tried, left = 0, MAX_TRIED_CHARACTERS
    while found is not None and tried < MAX_TRIED_PIECES and left > 0:
        lines = _lines(text[found.start() :])
        ends = [n for n, line in enumerate(lines) if n and line.strip() and not line[0].isspace()] + [len(lines)]
        for end in ends[: -MAX_TRIED_PIECES - 1 : -1]:
            piece = "\n".join(lines[:end])
            tried, left = tried + 1, left - len(piece)
            tree = _parsed(piece)
            if tree is not None and _defines(tree):
                yield tree
                return
            if left <= 0:
                return
        found = _BEGINS.search(text, found.end())


def _of_trees(trees: Sequence[ast.Module]) -> str | None:
    """Return the definitions of several pieces as one module, else the last body."""
    if any(_defines(tree) and not _is_body(tree) for tree in trees):
        kept = [each for tree in trees if not _is_body(tree) for each in _without_use(tree.body)]
        first, rest = _future_first(kept)
        return _written(first + rest)
    bodies = [tree for tree in trees if _is_body(tree)]
    return _written(bodies[-1].body) if bodies else None


def _without_use(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Leave out what follows the last definition, other names for it and imports excepted."""
    last = max((n for n, each in enumerate(statements) if _name(each) is not None), default=-1)
    return [each for n, each in enumerate(statements) if n <= last or isinstance(each, _IMPORTS)]


def _future_first(statements: Sequence[ast.stmt]) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Return imports from ``__future__``, which must stand before all else, and the rest."""
    first = [each for each in statements if isinstance(each, ast.ImportFrom) and each.module == "__future__"]
    return list(first), [each for each in statements if each not in first]


def _name(statement: ast.stmt) -> str | None:
    """Return the name that a statement gives to a function or a class; None if it does not."""
    if isinstance(statement, _DEFINITIONS):
        return statement.name
    if isinstance(statement, ast.Assign) and isinstance(statement.value, (ast.Lambda, ast.Name)):
        target = statement.targets[0]
        return target.id if isinstance(target, ast.Name) else None
    return None


def _function(tree: ast.Module, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the function of that name that holds: the last one."""
    return next((each for each in reversed(tree.body) if isinstance(each, _FUNCTIONS) and each.name == name), None)


def _names(statements: Sequence[ast.stmt]) -> set[str | None]:
    return {_name(each) for each in statements} - {None}


def _defines(tree: ast.Module) -> bool:
    return bool(_names(tree.body))


def _is_body(tree: ast.Module) -> bool:
    """Whether something is returned outside of every function of the piece itself."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)) and node.value is not None:
            return True
        if not isinstance(node, (*_DEFINITIONS, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)
    return False


def _parsed(text: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of foreign code, such as invalid escapes
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deep
            return None


def _written(statements: list[ast.stmt]) -> str | None:
    try:
        return ast.unparse(ast.Module(statements, [])) or None
    except (RecursionError, ValueError):
        return None


def _as_it_stands(texts: Sequence[str]) -> str | None:
    """Return the text from the first line that begins a definition; such an answer can't be parsed."""
    for text in texts:
        found = _DEFINES.search(text)
        if found is not None:
            return text[found.start() :].rstrip()
    return None
