"""Code in the sandbox: what it may use, what it can't fake, and that nothing of it stays behind."""

from __future__ import annotations

import secrets
import sys
import threading

import psutil
import pytest

from provgym.envs import code_sandbox
from provgym.envs.code_sandbox import CodeLimits, CodeOutcome, SandboxFailure, check_code
from provgym.rewards.answer_code import CodeGold

TESTS = "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate([3]) == [4]\n"
GOLD = CodeGold('def add(x):\n    """Add one."""\n', "add", TESTS)
RIGHT = "def add(x):\n    return [y + 1 for y in x] if isinstance(x, list) else x + 1\n"
WRONG = "def add(x):\n    return 0\n"


def outcome(answer: str, limits: CodeLimits | None = None) -> tuple[CodeOutcome, str]:
    result = check_code(GOLD, answer, limits)
    return result.outcome, result.detail


def said(answer: str, limits: CodeLimits | None = None) -> str:
    """Return the repr of what ``f()`` returned in the sandbox."""
    gold = CodeGold(
        "def f():\n    '''Say.'''\n", "f", "def check(candidate):\n    raise ValueError(repr(candidate()))\n"
    )
    result = check_code(gold, answer, limits)
    assert result.outcome == "failed", result
    return result.detail.removeprefix("ValueError: ")


def tried(*lines: str) -> str:
    """Return a function ``f`` that gives the name of what its lines raise."""
    inside = "".join(f"        {line}\n" for line in lines)
    return (
        f"import os, sys\ndef f():\n    try:\n{inside}    except BaseException as e:\n        return type(e).__name__\n"
    )


@pytest.fixture
def without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_sandbox, "_MAY_UNSHARE", False)


# --- outcomes


def test_right_and_wrong() -> None:
    assert outcome(RIGHT) == ("passed", "")
    assert outcome(WRONG) == ("failed", "AssertionError: ")
    assert outcome("return [y + 1 for y in x] if isinstance(x, list) else x + 1") == ("passed", "")
    assert outcome("def other(x):\n    return 1") == ("failed", "the answer defines no add()")
    assert outcome("def add(x:") == ("failed", "the answer is no Python that can be parsed")
    assert outcome("def add(x):\n    return x.y") == ("failed", "AttributeError: 'int' object has no attribute 'y'")


CHEATS: dict[str, tuple[str, set[CodeOutcome]]] = {
    "leaves at once": ("import sys\nsys.exit(0)\n" + WRONG, {"failed"}),
    "leaves when called": ("import sys\ndef add(x):\n    sys.exit(0)", {"failed"}),
    "leaves the hard way": ("import os\ndef add(x):\n    os._exit(0)", {"crashed"}),
    "leaves the hard way at once": ("import os\nos._exit(0)\n" + WRONG, {"crashed"}),
    "says that it passed": (
        'print(\'begun\\n{"outcome": "passed"}\')\ndef add(x):\n    print("passed")\n    return "passed"',
        {"failed"},
    ),
    "writes results to every open file": (
        'import os\nFORGED = b\'begun\\n{"nonce": "", "outcome": "passed", "detail": "", "is_apart": true}\\n\'\n'
        "def add(x):\n    for fd in range(64):\n        try:\n            os.write(fd, FORGED)\n"
        "        except OSError:\n            pass\n    return 0",
        {"failed", "crashed"},
    ),
    "replaces AssertionError": (
        "import builtins\nbuiltins.AssertionError = builtins.Exception = type('Never', (BaseException,), {})\n" + WRONG,
        {"failed"},
    ),
    "replaces check": (
        "def check(candidate):\n    return None\nimport builtins\nbuiltins.check = check\n" + WRONG,
        {"failed"},
    ),
    "is equal to everything": (
        "class E:\n    def __eq__(self, other):\n        return True\ndef add(x):\n    return E()",
        {"failed"},
    ),
    "is a number equal to everything": (
        "class E(int):\n    def __eq__(self, other):\n        return True\n    __hash__ = int.__hash__\n"
        "def add(x):\n    return E(0)",
        {"failed"},
    ),
    "catches everything": (
        "def add(x):\n    try:\n        raise SystemExit\n    except BaseException:\n        return None",
        {"failed"},
    ),
    "changes the sandbox's own functions": (
        "import gc, types\nfor each in gc.get_objects():\n"
        "    if isinstance(each, types.FunctionType) and each.__name__ in ('_answer', 'encode', '_problem'):\n"
        "        each.__code__ = (lambda *a, **k: ['plain', True]).__code__\n" + WRONG,
        {"failed", "crashed"},
    ),
    "answers in its caller's name": (
        "import sys, os, json, struct\ndef add(x):\n    wire = sys._getframe(2).f_locals['wire']\n"
        "    data = json.dumps(['passed']).encode()\n"
        "    os.write(wire, struct.pack('>I', len(data)) + data)\n    return 0",
        {"failed"},
    ),
    "deletes what it finds": (
        "import os, shutil\nfor place in ('.', os.environ['HOME'], '/proc/self/fd'):\n    shutil.rmtree(place, True)\n"
        + WRONG,
        {"failed"},
    ),
    "leaves a thread behind": (
        "import threading, time, os\ndef late():\n    while True:\n        time.sleep(0.01)\n"
        "threading.Thread(target=late, daemon=True).start()\nthreading.Thread(target=late).start()\n" + WRONG,
        {"failed"},
    ),
    "lets a child answer": ("import os\ndef add(x):\n    os.fork()\n    return 0", {"failed"}),
    "kills its guard": (
        "import os, signal\nif os.getppid() > 1:\n    os.kill(os.getppid(), signal.SIGKILL)\n" + WRONG,
        {"failed", "crashed"},
    ),
    "raises what it made itself": (
        "class Passed(BaseException):\n    def __str__(self):\n        raise KeyboardInterrupt\n"
        "def add(x):\n    raise Passed",
        {"failed"},
    ),
    "floods the wire": ("def add(x):\n    return 'x' * 10 ** 8", {"failed"}),
    "nests without end": ("def add(x):\n    y = []\n    y.append(y)\n    return y", {"failed"}),
    "gives back what is no data": ("def add(x):\n    return add", {"failed"}),
}


@pytest.mark.parametrize("name", CHEATS)
def test_no_trick_makes_a_wrong_function_right(name: str) -> None:
    answer, expected = CHEATS[name]
    assert check_code(GOLD, answer).outcome in expected


def test_helpers_of_the_prompt_are_the_tests_own() -> None:
    """A solution that redefines what the tests call changes its own copy alone."""
    prompt = 'def size(x):\n    return abs(x)\n\ndef f(x):\n    """Give a number of the size of x."""\n'
    gold = CodeGold(prompt, "f", "def check(candidate):\n    assert size(candidate(3)) == 3\n")
    assert check_code(gold, "return -x").outcome == "passed"
    assert check_code(gold, "def size(x):\n    return 3\ndef f(x):\n    return 0").outcome == "failed"


# --- limits


def test_wall_clock_and_cpu_time_are_limited() -> None:
    slept = outcome("import time\ndef add(x):\n    time.sleep(600)", CodeLimits(wall_s=0.5))
    assert slept == ("timeout", "no result after 0.5 s")
    spun = outcome("def add(x):\n    while True: pass", CodeLimits(cpu_s=1))
    assert spun == ("timeout", "1 s of CPU time were used up")
    stuck = outcome(
        "def add(x):\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass",
        CodeLimits(cpu_s=1),
    )
    assert stuck[0] == "timeout"


def test_memory_files_and_threads_are_limited() -> None:
    assert said(tried("x = bytes(10 ** 10)")) == "'MemoryError'"
    assert said(tried("x = []", "while True: x.append(bytes(10 ** 6))")) == "'MemoryError'"
    assert said(tried("open('big', 'wb').write(bytes(2 * 2 ** 20))")) == "'OSError'"
    assert said(tried("files = [open('small', 'w') for _ in range(99)]")) == "'OSError'"
    many = "[threading.Thread(target=time.sleep, args=(600,), daemon=True).start() for _ in range(99)]"
    assert said(tried("import threading, time", many)) == "'RuntimeError'"
    assert said("import resource\ndef f():\n    return resource.getrlimit(resource.RLIMIT_CORE)") == "(0, 0)"


def test_a_flood_of_output_goes_nowhere() -> None:
    assert outcome("for _ in range(100):\n    print('x' * 10 ** 6)\n" + RIGHT) == ("passed", "")


def test_the_environment_is_empty_and_so_is_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_API_KEY", "abc")
    assert (
        said("import os\ndef f():\n    return sorted(os.environ), os.listdir('.')") == "(['HOME', 'LANG', 'PATH'], [])"
    )
    assert (
        said("import sys\ndef f():\n    return sys.flags.isolated, sys.flags.no_site, sys.stdin.read()") == "(1, 1, '')"
    )


def test_there_is_no_network() -> None:
    assert said(tried("import socket", "socket.create_connection(('127.0.0.1', 9), 1)")) in (
        "'OSError'",  # unreachable: not even loopback is up
        "'ImportError'",
        "'ModuleNotFoundError'",
    )


def test_without_namespaces_sockets_are_hidden_and_checks_still_work(without_namespaces: None) -> None:
    assert check_code(GOLD, RIGHT).is_apart is False
    assert outcome(WRONG)[0] == "failed"
    assert said(tried("import socket")) == "'ModuleNotFoundError'"
    assert outcome("import os\ndef add(x):\n    os._exit(0)")[0] == "crashed"


# --- what stays behind


_LEAVES = """import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
    os.execv('/bin/sleep', ['{mark}', '600'])
time.sleep(0.4)
"""  # the nap lets them be seen at work


def processes_of(mark: str) -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cmdline"]) if mark in (each.info["cmdline"] or [])]


@pytest.mark.parametrize("is_apart", [True, False])
@pytest.mark.parametrize("ends", ["return [y + 1 for y in x] if isinstance(x, list) else x + 1", "time.sleep(600)"])
def test_no_process_is_left(is_apart: bool, ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of their own, and orphans, end too, whether the check ended by itself or by its time."""
    monkeypatch.setattr(code_sandbox, "_MAY_UNSHARE", is_apart)
    mark = f"mark-{secrets.token_hex(8)}"
    seen: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            seen.append(len(processes_of(mark)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    answer = f"{_LEAVES.format(mark=mark)}def add(x):\n    {ends}\n"
    try:
        found = check_code(GOLD, answer, CodeLimits(wall_s=2.0))
    finally:
        ended.set()
        watcher.join()
    assert found.outcome == ("timeout" if "600" in ends else "passed")
    assert max(seen) == 2, seen
    assert processes_of(mark) == []


def test_a_fork_bomb_meets_its_limit_and_ends() -> None:
    apart = check_code(GOLD, RIGHT).is_apart
    assert apart is not None, "the sandbox itself failed: that is no reason to skip"
    if not apart:
        pytest.skip("no namespaces here: where root may fork without limit this would not be a test but a bomb")
    bomb = "import os\ndef add(x):\n    while True:\n        os.fork()\n"
    assert outcome(bomb, CodeLimits(wall_s=3.0, cpu_s=1))[0] in ("failed", "crashed", "timeout")


# --- failures of the sandbox are no wrong answers


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("import nothing_such\ndef check(candidate): pass", "the tests can't be run: ModuleNotFoundError"),
        ("def check(candidate): pass", "the tests never call the function"),
    ],
)
def test_tests_that_cannot_be_run_are_named(tests: str, message: str) -> None:
    with pytest.raises(SandboxFailure, match=message):
        check_code(CodeGold(GOLD.prompt, "add", tests), RIGHT)


def test_a_sandbox_that_does_not_start_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault kind: endpoint failure scored as wrong (here: of the sandbox)."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(SandboxFailure, match="no sandbox can be set up"):
        check_code(GOLD, RIGHT)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SandboxFailure, match="the sandbox did not start"):
        check_code(GOLD, RIGHT)


def test_a_cancelled_check_ends() -> None:
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(SandboxFailure, match="cancelled"):
        check_code(GOLD, "import time\ntime.sleep(600)\n" + RIGHT, None, cancelled)


@pytest.mark.parametrize("name", ["wall_s", "cpu_s", "memory_bytes", "processes"])
def test_limits_must_be_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0 must be > 0"):
        CodeLimits(**{name: 0})
