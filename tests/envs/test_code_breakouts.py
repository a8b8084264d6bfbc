"""What a breaker tried: floods outside every limit, folders that don't go, exceptions that end loops."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.envs.test_code_sandbox import GOLD, RIGHT, WRONG, said

from provgym.envs import code_sandbox, code_sandbox_child
from provgym.envs.code_folders import ForeignFolder, remove_tree
from provgym.envs.code_sandbox import SandboxFailure, check_code
from provgym.rewards.answer_code import CodeGold

PROMPT = GOLD.prompt


@pytest.fixture(params=[True, False], ids=["apart", "beside"])
def own_temp(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files that the sandbox alone uses."""
    monkeypatch.setattr(code_sandbox, "_MAY_UNSHARE", request.param)
    with tempfile.TemporaryDirectory(prefix="provgym-test-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)
        monkeypatch.undo()


@pytest.mark.parametrize(
    "makes",
    [
        "for _ in range(1200):\n    os.mkdir('d'); os.chdir('d')\n",
        "os.mkdir('d'); open('d/x', 'w').close(); os.chmod('d', 0)\n",
        "os.mkdir('d'); os.symlink('/', 'd/root'); os.symlink('.', 'own'); os.mkfifo('d/pipe')\n",
    ],
    ids=["deep", "closed", "links"],
)
def test_whatever_is_made_in_the_folder_goes(own_temp: Path, makes: str) -> None:
    """Folders in folders raised a RecursionError in the parent, and stayed."""
    assert check_code(GOLD, "import os\n" + makes + WRONG).outcome == "failed"
    assert list(own_temp.iterdir()) == []


def test_a_tree_of_any_depth_and_with_any_names_is_removed(tmp_path: Path) -> None:
    folder = ForeignFolder("provgym-test-")
    for name in ("a", "b", "moved-1"):
        (Path(folder.name) / name / "x" / "x").mkdir(parents=True)
        (Path(folder.name) / name / "file").write_text("x", encoding="utf-8")
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x", encoding="utf-8")
    (Path(folder.name) / "a" / "link").symlink_to(kept)
    folder.cleanup()
    folder.cleanup()  # what is gone already is no matter
    assert not Path(folder.name).exists()
    assert (kept / "file").exists()
    link = tmp_path / "link"
    link.symlink_to(kept)
    with pytest.raises(OSError, match="link"):
        remove_tree(str(link))


def needs_namespaces() -> None:
    apart = check_code(GOLD, RIGHT).is_apart
    if apart is False:
        pytest.skip("this system grants no namespaces")
    assert apart, "the sandbox itself failed: that is no reason to skip"


def test_the_folder_is_of_bounded_size() -> None:
    needs_namespaces()
    many = "import os\ndef f():\n    n = 0\n    try:\n        while n < 300:\n"
    many += "            open(str(n), 'wb').write(bytes(2 ** 20)); n += 1\n"
    many += "    except OSError:\n        pass\n    return n < 300"
    assert said(many) == "True"


def test_memory_that_outlives_processes_is_refused() -> None:
    """Shared memory counts in no process once it is let go: ten times 100 MiB were had."""
    needs_namespaces()
    if os.geteuid() != 0:
        pytest.skip("another user may not set the limits of its namespace on every kernel")
    body = "import ctypes\ndef f():\n    return ctypes.CDLL(None).{}"
    assert said(body.format("shmget(0, 4096, 0o1600)")) == "-1"
    assert said(body.format("msgget(0, 0o1600)")) == "-1"


def test_the_keys_of_the_parent_s_session_are_out_of_reach() -> None:
    """A session keyring is inherited, also by another user."""
    if code_sandbox_child._KEYCTL != 250:
        pytest.skip("numbers of x86-64")
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    key = libc.syscall(248, b"user", b"provgym-test", b"secret", 6, -3)
    if key < 0:
        pytest.skip("no keyrings here")
    search = "import ctypes\ndef f():\n    return ctypes.CDLL(None).syscall(250, 10, -3, b'user', b'provgym-test', 0)"
    try:
        assert said(search) == "-1"
    finally:
        libc.syscall(250, 3, key)


def test_an_exception_that_ends_loops_passes_no_test() -> None:
    """In map() a StopIteration is the end of the cases, and all() of none is true."""
    tests = "def check(candidate):\n    assert all(map(lambda x: candidate(x) == x + 1, [1, 2, 3]))\n"
    for name in ("StopIteration", "StopAsyncIteration"):
        found = check_code(CodeGold(PROMPT, "add", tests), f"def add(x):\n    raise {name}")
        assert (found.outcome, found.detail) == ("failed", f"SolutionError: {name}: ")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [(RIGHT, "passed"), (WRONG, "failed"), ("import os\ndef add(x):\n    os._exit(0)", "crashed")],
)
def test_tests_that_begin_at_once_judge_the_solution_too(answer: str, outcome: str) -> None:
    """A wrong value there was an error of the infrastructure, so that the answer counted nowhere."""
    tests = "def check(candidate):\n    assert candidate(1) == 2\ncheck(add)\n"
    assert check_code(CodeGold(PROMPT, "add", tests), answer).outcome == outcome
    with pytest.raises(SandboxFailure, match="NameError"):
        check_code(CodeGold(PROMPT, "add", "nothing_such\ndef check(candidate):\n    candidate(1)\n"), answer)
